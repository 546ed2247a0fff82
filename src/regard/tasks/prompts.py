"""Prompts of text generation: tokenization, maximum number of new tokens, stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.decode.protocol import Hypothesis
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.processors.tokenizer.token_text import StreamDecoder
from regard.processors.tokenizer.tokenizer import TextTokenizer

DEFAULT_NEW_TOKENS = 256
"""Default of the maximum number of new tokens."""


def prompt_ids(prompt: str, text: TextTokenizer, config: Any, decode: DecodeSettings) -> list[int]:
    """Token ids of a prompt. The empty prompt is the end token, which begins a document."""
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
    """Maximum number of new tokens. The last new token is not an input, so the context has one more."""
    return min(decode.new_token_limit(prompt_length, DEFAULT_NEW_TOKENS), config.max_length - prompt_length + 1)


def finish_reason(hypothesis: Hypothesis, prompt_length: int, config: Any) -> str:
    """Reason for the end of generation: eos, stop, length, or context (the context is full)."""
    full = len(hypothesis.tokens) == config.max_length - prompt_length + 1
    return "context" if hypothesis.finish_reason == "length" and full else hypothesis.finish_reason


def stop_condition(text: TextTokenizer, stop_strings: Sequence[str]) -> Callable[[int, list[int]], bool] | None:
    """Function of a row and its new tokens: True if a stop string was generated. Called after every step."""
    # Keyed by the id of the token list, which grows in place. The list is kept so that no other list has this id.
    flows: dict[int, tuple[list[int], StreamDecoder, int]] = {}

    def heard(row: int, tokens: list[int]) -> bool:
        _, flow, known = flows.get(id(tokens), (tokens, StreamDecoder(text, stop_strings), 0))
        flow.add(tokens[known:])
        flows[id(tokens)] = tokens, flow, len(tokens)
        return flow.stopped

    return heard if stop_strings else None


def text_before_stop(text: TextTokenizer, hypothesis: Hypothesis, stop_strings: Sequence[str]) -> str:
    """Generated text before the first stop string."""
    if not stop_strings:
        return text.decode([hypothesis.tokens])[0]
    flow = StreamDecoder(text, stop_strings)
    return flow.add(hypothesis.tokens) + flow.end()
