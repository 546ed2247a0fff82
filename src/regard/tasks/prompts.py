"""Texts that are to be gone on with: how they are read, how far an answer may go, and where it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.decode.protocol import Found
from regard.decode.settings import Decode
from regard.errors import RegardError
from regard.processors.tokenizer.stream_decoder import Flow
from regard.processors.tokenizer.tokenizer import Text

SAID = 256
"""Tokens that are said when nobody says how many."""


def prompt_ids(prompt: str, text: Text, config: Any, decode: Decode) -> list[int]:
    """An empty text is the beginning of a document."""
    ids = text.encode([prompt])[0] or [config.end]
    if len(ids) <= config.length:
        return ids
    if decode.crop:
        keep = max(config.length + 1 - (decode.length or SAID), config.length // 2)
        return ids[-keep:]
    raise RegardError(
        f"the prompt has {len(ids):,} tokens, and the model reads {config.length:,}. Shorten it, or set decode.crop=true to "
        "keep its end."
    )


def room_left(given: int, config: Any, decode: Decode) -> int:
    """How many tokens may be said: the last of them is not read again."""
    return min(decode.length or SAID, config.length - given + 1)


def reason(found: Found, given: int, config: Any) -> str:
    """Why an answer ended: end, until, length, or context where there was no more room to read."""
    full = len(found.tokens) == config.length - given + 1
    return "context" if found.why == "length" and full else found.why


def stops(text: Text, until: Sequence[str]) -> Callable[[int, list[int]], bool] | None:
    """Whether what a row has said holds a stop string; each is asked again and again as it grows."""
    # by the list, which grows; it is kept, so that no other has its number
    flows: dict[int, tuple[list[int], Flow, int]] = {}

    def heard(row: int, tokens: list[int]) -> bool:
        _, flow, known = flows.get(id(tokens), (tokens, Flow(text, until), 0))
        flow.add(tokens[known:])
        flows[id(tokens)] = tokens, flow, len(tokens)
        return flow.stopped

    return heard if until else None


def cut_text(text: Text, found: Found, until: Sequence[str]) -> str:
    """What was said, before the first stop string."""
    if not until:
        return text.decode([found.tokens])[0]
    flow = Flow(text, until)
    return flow.add(found.tokens) + flow.end()
