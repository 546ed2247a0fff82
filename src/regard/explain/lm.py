"""What a language model expected of a text, token by token, and what it looked at meanwhile in every layer and head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.draw.attention_maps import AttentionMap
from regard.draw.surprisal import Guess, Reading
from regard.draw.token_label import label
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.recorded_pass import layers, look
from regard.processors.tokenizer.token_text import SIGNS, Form
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.protocol import Asked
from regard.types import Batch

SHOWN = 96
"""Tokens that a map has rows for: of more, nobody could read the labels."""

LIKELIEST = 5
"""Alternatives that are named at each place."""

TITLE = "What each token looked at: itself and those before it"


def explain_language(model: Asked, source: str, target: str | None = None) -> Explanation:
    """Read the text behind the end token, so that its first token too has a past to be expected from.

    With `target` that is what is asked for, given `source`; the numbers are then those of `target` alone."""
    text, config = model.text_or_refuse(), model.config
    given, said = text.encode([source, target or ""])
    ids = [*given, *said]
    if not ids:
        raise RegardError("there is nothing to explain: the text is empty.")
    if len(ids) > config.length:
        raise RegardError(
            f"the text has {len(ids):,} tokens, and the model reads {config.length:,} at once: explain a part of it."
        )
    # where the context is full, the last token is expected and not read
    read = [config.end, *ids][: config.length]
    seen, logs = look(model, Batch(torch.tensor([read], device=model.device)))
    # no row for the end token, which has only itself to look at; all that is not shown is one column
    first = max(len(read) - SHOWN, 1)
    reading = Reading(
        guesses=_guesses(text, config.end, ids, logs),
        vocabulary=logs.shape[-1],
        size=len((target if said and target else source).encode("utf-8", "replace")),
        given=len(given) if said else 0,
        row=1 - first,
    )
    pieces = spelled(text, read)
    before, rows = f"{first:,} before" if first > 1 else pieces[0], pieces[first:]
    title = f"{TITLE} (the last {len(rows)} tokens)" if first > 1 else TITLE
    maps = (AttentionMap("text", title, tuple(rows), (before, *rows), layers(seen, seen.names(), first), first > 1),)
    whole = " ▸ ".join(_short(part) for part in (source, target) if part)
    return Explanation(whole, maps, reading.facts(), reading)


def _guesses(text: Text, end: int, ids: Sequence[int], logs: Tensor) -> tuple[Guess, ...]:
    """`logs` (L, V): row t is what was expected after the end token and the first t tokens."""
    logs, own = logs[: len(ids)], torch.tensor(ids)[:, None]
    hit = logs.gather(1, own)
    ranks = (logs > hit).sum(1) + 1
    best = logs.topk(min(LIKELIEST, logs.shape[-1]))
    chances = best.values.exp().tolist()
    found = []
    for at, piece in enumerate(spelled(text, [end, *ids])[1:]):
        last = end if at == 0 else ids[at - 1]
        likely = [spelled(text, [last, other])[1] for other in best.indices[at].tolist()]
        found.append(Guess(piece, float(hit[at]), int(ranks[at]), tuple(zip(likely, chances[at], strict=True))))
    return tuple(found)


def spelled(text: Text, ids: Sequence[int]) -> list[str]:
    """The pieces with the blanks before them seen, also where the tokenizer leaves those to whoever joins its words."""
    pieces, blank = text.pieces(ids), SIGNS[" "]
    if text.form in (Form.BYTES, Form.JOINED):
        return pieces
    shown = []
    for at, piece in enumerate(pieces):
        opens = at == 0 or ids[at - 1] in text.special or ids[at] in text.special
        shown.append(piece[1:] if piece.startswith("·") else piece if opens else blank + piece)
    return shown


def _short(text: str) -> str:
    return label(" ".join(text.split()) or text, 72)
