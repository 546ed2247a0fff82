"""Properties of every system that generates: cached steps equal one pass while rows end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.model import Model
from regard.systems import SYSTEMS
from regard.types import Batch, DecoderInputs
from tiny import CASES, TINY, near, tiny
from tiny import collate as tiny_collate

GENERATING = [(name, label) for name, label in CASES if hasattr(SYSTEMS[name].build(TINY[name].config), "step")]
generating = pytest.mark.parametrize(("name", "label"), GENERATING)


def collate(model: Model, name: str, rows: Any = None) -> Batch:
    return tiny_collate(model, TINY[name].samples, rows)


def reading(batch: Batch, ids: Tensor) -> Batch:
    """The same batch with other decoder inputs."""
    return Batch(ids) if batch.decoder is None else replace(batch, labels=None, decoder=DecoderInputs(ids))


@generating
def test_future_tokens_do_not_change_earlier_outputs(name: str, label: str) -> None:
    model = tiny(name, label)
    batch = collate(model, name)
    right = model.body.to_logits(model.body(batch).sequence)
    for at in range(1, batch.prompt.shape[1]):
        target = batch.prompt.clone()
        target[:, at:] = (target[:, at:] + 1 + at % 7) % model.config.vocab_size
        changed = model.body.to_logits(model.body(reading(batch, target)).sequence)
        assert torch.equal(changed[:, :at], right[:, :at])
        assert not torch.equal(changed[:, at], right[:, at])


def sources(model: Model, name: str, length: int) -> tuple[Batch, Tensor]:
    """A batch whose rows have equally long decoder inputs, and these inputs."""
    batch = collate(model, name, [0, 1, 3])
    target = torch.randint(3, model.config.vocab_size, (3, length), generator=torch.Generator().manual_seed(9))
    return reading(batch, target), target


def steps(model: Model, state: Any, tokens: Tensor) -> Iterator[Tensor]:
    for at in range(tokens.shape[1]):
        yield model.body.step(tokens[:, at], state)


@pytest.mark.every(4)
@generating
@pytest.mark.parametrize("prompt", [1, 2, 4])
@pytest.mark.parametrize("room", [None, 7, 11])
def test_cached_steps_equal_one_pass(name: str, label: str, prompt: int, room: int | None) -> None:
    model = tiny(name, label)
    batch, target = sources(model, name, 7)
    with torch.no_grad():
        right = model.body.to_logits(model.body(batch).sequence)
        state = model.body.start(reading(batch, target[:, :prompt]), room)
        assert state.positions.tolist() == [prompt - 1] * 3
        addresses = [] if room is None else [tensor.data_ptr() for tensor in state.tensors()]
        ours = torch.stack(list(steps(model, state, target[:, prompt - 1 :])), 1)
    near(ours, right[:, prompt - 1 :])
    assert state.positions.tolist() == [7] * 3
    assert room is None or [tensor.data_ptr() for tensor in state.tensors()] == addresses


@pytest.mark.every(4)
@generating
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("room", [None, 9])
def test_kept_rows_continue_from_their_own_cache(name: str, label: str, prompt: int, room: int | None) -> None:
    model = tiny(name, label)
    batch, target = sources(model, name, 7)
    with torch.no_grad():
        state = model.body.start(reading(batch, target[:, :prompt]), room)
        if prompt == 1:  # rows may be selected before the first step
            state.select_rows(torch.arange(3))
        for _ in steps(model, state, target[:, prompt - 1 : 4]):
            pass
        rows = torch.tensor([2, 0, 2, 1])
        state.select_rows(rows)
        more = torch.tensor([[5, 6], [7, 8], [9, 10], [11, 12]])
        ours = torch.stack(list(steps(model, state, more)), 1)
        whole = torch.cat([target[rows, :4], more], 1)
        chosen = reading(batch.select_rows(rows), whole)
        right = model.body.to_logits(model.body(chosen).sequence)
        near(ours, right[:, 4:])
        state.select_rows(torch.tensor([3]))
        last = model.body.step(torch.tensor([13]), state)
        longer = torch.cat([whole[3:], torch.tensor([[13]])], 1)
        alone = reading(chosen.select_rows(torch.tensor([3])), longer)
        near(last, model.body.to_logits(model.body(alone).sequence)[:, -1])
