"""Tiny text encoders with a WordPiece tokenizer, for all text tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from regard.model import Model, ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from tiny import noisy

SIZES: dict[str, Any] = {
    "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "max_length": 24, "dropout": 0.0, "attention_dropout": 0.0,
    "head_dropout": 0.0,
}  # fmt: skip

SMALL = (
    "model.width=16", "model.depth=1", "model.heads=2", "model.ffn_dim=32", "model.max_length=48", "model.dropout=0",
    "model.attention_dropout=0", "model.head_dropout=0", "data.vocab_size=200", "train.precision=float32",
)  # fmt: skip
"""Settings of a tiny model for fast tests."""


def encoder(
    task: str,
    texts: Sequence[str],
    labels: Sequence[str] = (),
    system: str = "bert",
    vocab_size: int = 120,
    options: HeadOptions | None = None,
    scale: float = 0.6,
    **changes: Any,
) -> Model:
    """A model with random weights and a tokenizer trained on `texts`."""
    text = TextTokenizer.train_wordpiece(texts, vocab_size)
    sizes = dict(SIZES)
    if system == "universal-encoder":
        sizes["num_steps"] = sizes.pop("depth")
    chosen, options = find_task(task, "text"), options or HeadOptions(tuple(labels))
    config = chosen.objective.adapt_config(chosen.modality.fit_config(SYSTEMS[system].config(**sizes), text))
    config = replace(config, **changes)
    return noisy(assemble(ModelSpec(SYSTEMS[system], config, chosen, options=options), text), scale)
