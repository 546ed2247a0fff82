"""Rows padded to few shapes for recurrent models: equal losses, gradients and runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import regard
from conftest import Pairs, stopped_in, write_pairs
from regard.data.batching.samplers import FixedShape
from regard.runs.train import _use_packing
from regard.tasks import find_task
from regard.tasks.base import Encoded, EncodingContext
from regard.training.settings import TrainSettings
from regard.types import IGNORE
from tiny import CASES, TINY, Numbers, tiny

TASK = find_task("translate")


def encoded(name: str, label: str) -> tuple[regard.Model, Encoded]:
    model = tiny(name, label)
    return model, TASK.objective.encode(TINY[name].samples, model.config, EncodingContext(Numbers(), 100))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "label"), [c for c in CASES if c[0] in ("rnn", "rnnsearch", "convs2s")])
def test_padding_is_not_trained_on(name: str, label: str) -> None:
    model, found = encoded(name, label)
    plan = TASK.objective.sampler(found, model.config, 40, 0, packed=True)
    assert isinstance(plan, FixedShape)
    sums = torch.zeros(2, 2, dtype=torch.float64)
    gradients = []
    for way in (0, 1):
        model.zero_grad()
        for grain in plan.epoch(0):
            shape = plan.shape_of(grain) if way else None
            batch = TASK.objective.collate(found, grain, model.config, shape)
            if shape is not None:
                assert batch.inputs.shape == (shape.num_documents, shape.max_lengths[0]) and batch.mask is not None
                assert batch.labels is not None and batch.labels.shape == (shape.num_documents, shape.max_lengths[1])
                assert (batch.labels[len(grain) :] == IGNORE).all()
            total, count = TASK.objective.loss(model, batch)
            total.backward()
            sums[way] += torch.stack([total.detach(), count.double()])
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert torch.allclose(sums[0], sums[1], rtol=1e-12)
    for ours, right in zip(gradients[1], gradients[0], strict=True):
        assert (ours - right).norm() <= 1e-9 * (1 + right.norm())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "device", "asked", "begun", "filled"), [
    ("rnn", "cuda", "auto", None, True), ("rnn", "cuda", "off", None, False), ("rnn", "cuda", "auto", False, False),
    ("rnn", "cpu", "auto", None, False), ("rnn", "cpu", "auto", True, True),
    ("transformer", "cpu", "auto", None, False), ("transformer", "cpu", "on", None, True),
])  # fmt: skip
def test_rows_are_padded_on_a_gpu_in_any_precision(
    name: str, device: str, asked: Any, begun: bool | None, filled: bool, precision: Any
) -> None:
    model, found = encoded(name, "")
    settings = SimpleNamespace(train=TrainSettings(batch_tokens=200, packing=asked, precision=precision))
    order: Any = SimpleNamespace(settings=settings, identity=SimpleNamespace(task=TASK))
    prepared: Any = SimpleNamespace(config=model.config, train=found)
    said: list[str] = []
    assert _use_packing(order, prepared, torch.device(device), said.append, begun) == filled
    assert any("slow" in line for line in said) == (name == "transformer" and filled)


def test_a_run_begun_on_a_gpu_resumes_with_its_micro_batches(tmp_path: Path, pairs: Pairs, monkeypatch: Any) -> None:
    data = write_pairs(tmp_path / "pairs.tsv", pairs[:60])
    settings = "train.steps=6 train.batch_tokens=300 data.vocab_size=300 model.width=16 model.embedding_dim=16"
    given: dict[str, Any] = {"model": "rnn-tiny", "settings": settings.split(), "device": "cpu"}
    with monkeypatch.context() as there:
        there.setattr("regard.runs.train._use_packing", lambda *_: True)
        regard.train("translate", [str(data)], out=tmp_path / "whole", **given)
        with stopped_in(3):
            regard.train("translate", [str(data)], out=tmp_path / "run", **given)
    regard.train("translate", [str(data)], out=tmp_path / "run", **given, resume=True)
    card = (tmp_path / "run" / "README.md").read_text("utf-8")
    told = next(line for line in card.splitlines() if line.startswith("- Batches: "))
    assert re.fullmatch(r"- Batches: rows padded to (\d sizes|one size), \d+\.\d % padding", told)
    ours, right = (regard.load(tmp_path / name).state_dict() for name in ("run", "whole"))
    assert all(torch.equal(ours[key], right[key]) for key in right)
