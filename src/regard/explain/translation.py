"""What a translator looked at: encoder, decoder and cross-attention of every layer and head."""

from __future__ import annotations

import torch

from regard.draw.maps import AttentionMap
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.looking import layers, look
from regard.tasks.asked import Asked
from regard.waists import Batch, Seen

TITLES = {
    "cross": "What each word of the translation looked at in the source",
    "encoder": "What the words of the source looked at among themselves",
    "decoder": "What each word of the translation looked at in what was said before",
}
PLACES = {
    "cross": ("decoder.blocks", "cross"),
    "encoder": ("encoder.blocks", "attend"),
    "decoder": ("decoder.blocks", "attend"),
}


def explain_translation(model: Asked, source: str, target: str | None = None) -> Explanation:
    """Translate (unless `target` is given), then read source and translation once more with all attentions watched.

    A row of the cross map is the moment at which that word is said: the decoder has read all before it."""
    if not source.strip():
        raise RegardError("there is nothing to explain: the input is empty.")
    text, config = model.text_or_refuse(), model.config
    answer = model.answer(source, best=1) if target is None else None
    answered = target if answer is None else str(answer.value)
    # the tokens that were said, which need not be those that the text would be split into
    said = text.encode([str(answered)])[0] if answer is None else list(answer.extra["ids"])
    x = torch.tensor(model.task.source_ids(text, [source], config), device=model.device)
    read = torch.tensor([[config.start, *said]], device=model.device)
    seen, logs = look(model, Batch(x, target=read))
    says = [*said, config.end]
    sure = logs[torch.arange(len(says)), torch.tensor(says)].exp().tolist()
    keys, queries = text.pieces(x[0].tolist()), text.pieces(says)
    read_pieces = text.pieces(read[0].tolist())
    labels = {"cross": (queries, keys), "encoder": (keys, keys), "decoder": (read_pieces, read_pieces)}
    maps = tuple(
        AttentionMap(
            name, TITLES[name], tuple(labels[name][0]), tuple(labels[name][1]), layers(seen, _names(seen, name))
        )
        for name in PLACES
    )
    facts = {"probability of each token": _chances(queries, sure)}
    return Explanation(title=f"{source} → {answered}", maps=maps, facts=facts)


def _names(seen: Seen, kind: str) -> list[str]:
    stack, part = PLACES[kind]
    return [name for name in seen.names() if name.startswith(stack + ".") and name.endswith("." + part)]


def _chances(pieces: list[str], chances: list[float]) -> str:
    return " | ".join(f"{piece} {chance:.2f}" for piece, chance in zip(pieces, chances, strict=True))
