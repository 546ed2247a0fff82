"""Tiny models with task heads, and naive reference implementations of their losses."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import regard
from regard.model import Model, ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import SYSTEMS, gpt2
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from tiny import noisy
from tokenizer_files import STORY

LETTERS = "abcdefghij \n"
SIZES: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "max_length": 24}

SMALL = (
    "model.width=16", "model.depth=1", "model.heads=2", "model.ffn_dim=32", "model.max_length=48", "model.dropout=0",
    "model.attention_dropout=0", "model.embedding_dropout=0", "data.vocab_size=290", "train.precision=float32",
)  # fmt: skip
QUICK = (
    "train.lr=1e-2", "train.batch_tokens=128", "train.eval_every=20", "train.log_every=10", "data.valid_fraction=0.2",
    "train.precision=float32",
)  # fmt: skip
"""Settings of a tiny model for fast tests."""


def letters() -> TextTokenizer:
    """Character tokenizer: the space first, then a, b, …, then the end-of-text and special tokens."""
    text = TextTokenizer.from_characters([LETTERS])
    return find_task("classify", "text").modality.build_processor(text, gpt2.Config())


def headed(task: str, system: str = "gpt2", labels: Sequence[str] = (), pair: str = "", **changes: Any) -> Model:
    """A model with random weights and the character tokenizer."""
    text = letters()
    config = replace(find_task(task, "text").modality.fit_config(SYSTEMS[system].config(**SIZES), text), **changes)
    options = HeadOptions(tuple(labels), pair_order=pair)
    return noisy(assemble(ModelSpec(SYSTEMS[system], config, find_task(task, "text"), options=options), text))


def translator(system: str, **changes: Any) -> Model:
    """A translation model with initial weights and a tokenizer."""
    task, text = find_task("translate", "text"), TextTokenizer.train_sentence_bpe([STORY], 300)
    sizes: dict[str, Any] = {"width": 12} if system == "rnn" else {**SIZES, "depth": 1, "decoder_depth": 1}
    config = task.modality.fit_config(SYSTEMS[system].config(**{**sizes, **changes}), text)
    return assemble(ModelSpec(SYSTEMS[system], config, task), text)


def language_loss(model: Model, row: Sequence[int]) -> Tensor:
    """Average −log p of each token after the first, given the tokens before it."""
    x = torch.tensor([list(row)])
    logs = model.body.to_logits(model.body(regard.types.Batch(x)).sequence)[0].log_softmax(-1)
    return -torch.stack([logs[place, row[place + 1]] for place in range(len(row) - 1)]).mean()


def last_state(model: Model, row: Sequence[int]) -> Tensor:
    return model.body(regard.types.Batch(torch.tensor([list(row)]))).sequence[0, -1]


def train(task: str, data: Any, out: Path, *settings: str, drawn: bool = False, **more: Any) -> str:
    """Train and return the console output. Curves are slow: drawn only if `drawn`."""
    said = io.StringIO()
    more = {"console": Console(file=said, width=300), "device": "cpu", **more}
    given = str(data) if data else ()
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)
        regard.train(task, given, out=out, settings=settings, **more)
    return said.getvalue()
