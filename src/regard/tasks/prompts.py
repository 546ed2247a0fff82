"""Texts that are to be gone on with: how they are read, how far an answer may go, and where it is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.decode.protocol import Hypothesis
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.processors.tokenizer.stream_decoder import StreamDecoder
from regard.processors.tokenizer.tokenizer import TextTokenizer

DEFAULT_NEW_TOKENS = 256
"""Tokens that are said when nobody says how many."""


def prompt_ids(prompt: str, text: TextTokenizer, config: Any, decode: DecodeSettings) -> list[int]:
    """An empty text is the beginning of a document."""
    ids = text.encode([prompt])[0] or [config.eos_id]
    if len(ids) <= config.max_length:
        return ids
    if decode.truncate_prompt:
        keep = max(config.max_length + 1 - (decode.max_new_tokens or DEFAULT_NEW_TOKENS), config.max_length // 2)
        return ids[-keep:]
    raise RegardError(
        f"The prompt has {len(ids):,} tokens; the context of the model has {config.max_length:,}. Shorten the prompt, "
        "or set decode.truncate_prompt=true to keep the end of the prompt."
    )


def max_new_tokens(prompt_length: int, config: Any, decode: DecodeSettings) -> int:
    """How many tokens may be said: the last of them is not read again."""
    return min(decode.new_token_limit(prompt_length, DEFAULT_NEW_TOKENS), config.max_length - prompt_length + 1)


def finish_reason(hypothesis: Hypothesis, prompt_length: int, config: Any) -> str:
    """Why an answer ended: end, until, length, or context where there was no more room to read."""
    full = len(hypothesis.tokens) == config.max_length - prompt_length + 1
    return "context" if hypothesis.finish_reason == "length" and full else hypothesis.finish_reason


def stop_condition(text: TextTokenizer, stop_strings: Sequence[str]) -> Callable[[int, list[int]], bool] | None:
    """Whether what a row has said holds a stop string; each is asked again and again as it grows."""
    # by the list, which grows; it is kept, so that no other has its number
    flows: dict[int, tuple[list[int], StreamDecoder, int]] = {}

    def heard(row: int, tokens: list[int]) -> bool:
        _, flow, known = flows.get(id(tokens), (tokens, StreamDecoder(text, stop_strings), 0))
        flow.add(tokens[known:])
        flows[id(tokens)] = tokens, flow, len(tokens)
        return flow.stopped

    return heard if stop_strings else None


def text_before_stop(text: TextTokenizer, hypothesis: Hypothesis, stop_strings: Sequence[str]) -> str:
    """What was said, before the first stop string."""
    if not stop_strings:
        return text.decode([hypothesis.tokens])[0]
    flow = StreamDecoder(text, stop_strings)
    return flow.add(hypothesis.tokens) + flow.end()
