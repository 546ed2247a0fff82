"""Explanation of a language model: likelihood of each token, and attention of every layer and head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.draw.text import label
from regard.draw.token_data import AttentionMap, TextLikelihood, TokenLikelihood
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.recorded_pass import record_forward, stack_layers
from regard.processors.tokenizer.token_text import WHITESPACE_SYMBOLS, TokenFormat
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

MAX_MAP_TOKENS = 96
"""Limit of tokens per map, so that labels stay readable."""

TOP_K = 5
"""Alternatives listed per token."""

MAP_TITLE = "Causal self-attention"


def explain_lm(model: ModelProtocol, source: str, target: str | None = None) -> Explanation:
    """Explain the likelihood of a text. The end token is prepended, so that the first token has a context.

    With `target`, `source` is the prompt, and the metrics include only the tokens of `target`."""
    text, config = model.require_tokenizer(), model.config
    given, said = text.encode([source, target or ""])
    ids = [*given, *said]
    if not ids:
        raise RegardError("Nothing to explain: the text is empty.")
    if len(ids) > config.max_length:
        raise RegardError(
            f"The text has {len(ids):,} tokens, but the context of the model has {config.max_length:,}. Pass a shorter text."
        )
    # if the context is full, the last token is predicted but is not an input
    read = [config.eos_id, *ids][: config.max_length]
    seen, logs = record_forward(model, Batch(torch.tensor([read], device=model.device)))
    # no row for the end token, which attends only to itself; tokens without a row are summed into one column
    first = max(len(read) - MAX_MAP_TOKENS, 1)
    reading = TextLikelihood(
        tokens=_token_likelihoods(text, config.eos_id, ids, logs),
        vocab_size=logs.shape[-1],
        num_bytes=len((target if said and target else source).encode("utf-8", "replace")),
        prompt_length=len(given) if said else 0,
        first_row=1 - first,
    )
    pieces = display_pieces(text, read)
    before, rows = f"{first:,} before" if first > 1 else pieces[0], pieces[first:]
    title = f"{MAP_TITLE} (last {len(rows)} tokens)" if first > 1 else MAP_TITLE
    maps = (
        AttentionMap("text", title, tuple(rows), (before, *rows), stack_layers(seen, seen.names(), first), first > 1),
    )
    whole = " ▸ ".join(_short_title(part) for part in (source, target) if part)
    return Explanation(whole, maps, reading.facts(), reading)


def _token_likelihoods(text: TextTokenizer, end: int, ids: Sequence[int], logs: Tensor) -> tuple[TokenLikelihood, ...]:
    """Log-probability, rank and alternatives of each token. Row t of `logs` (L, V) predicts token t."""
    logs, own = logs[: len(ids)], torch.tensor(ids)[:, None]
    hit = logs.gather(1, own)
    ranks = (logs > hit).sum(1) + 1
    best = logs.topk(min(TOP_K, logs.shape[-1]))
    chances = best.values.exp().tolist()
    found = []
    for at, piece in enumerate(display_pieces(text, [end, *ids])[1:]):
        last = end if at == 0 else ids[at - 1]
        likely = [display_pieces(text, [last, other])[1] for other in best.indices[at].tolist()]
        found.append(
            TokenLikelihood(piece, float(hit[at]), int(ranks[at]), tuple(zip(likely, chances[at], strict=True)))
        )
    return tuple(found)


def display_pieces(text: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens with a visible leading space, also if spaces are not part of the tokens."""
    pieces, blank = text.display_tokens(ids), WHITESPACE_SYMBOLS[" "]
    if text.token_format in (TokenFormat.BYTES, TokenFormat.CHARACTERS):
        return pieces
    shown = []
    for at, piece in enumerate(pieces):
        opens = at == 0 or ids[at - 1] in text.special_ids or ids[at] in text.special_ids
        shown.append(piece[1:] if piece.startswith("·") else piece if opens else blank + piece)
    return shown


def _short_title(text: str) -> str:
    return label(" ".join(text.split()) or text, 72)
