"""Properties of every system that generates, captioners included: cached steps, beams, and search in fixed shapes."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.decode.cuda_graphs import _graph_caches, graphed_search
from regard.decode.search import search
from regard.decode.searches import SearchInputs
from regard.decode.settings import DecodeSettings
from regard.systems import SYSTEMS
from regard.types import Batch, DecoderInputs
from tiny import CASES, TINY, collate, near, noise, noisy, tiny
from tiny_caption_models import USUAL, batch_of, made
from toy_language_models import WAYS

GENERATING = [(name, label) for name, label in CASES if hasattr(SYSTEMS[name].build(TINY[name].config), "step")]
generating = pytest.mark.parametrize(("name", "label"), [*GENERATING, *USUAL])


def body_and_batch(name: str, label: str) -> tuple[Any, Batch, int]:
    """A body with random weights, inputs of three rows, and the id of the end-of-text token."""
    if name.startswith("caption-"):
        return made(name, label, seed=5), batch_of((2, 2, 2)), 2
    model = tiny(name, label)
    return model.body, replace(collate(model, TINY[name].samples, [0, 1, 3]), labels=None), model.config.eos_id


def with_prompt(batch: Batch, ids: Tensor) -> Batch:
    """The same sources or images with other decoder inputs."""
    return Batch(ids) if batch.decoder is None else replace(batch, labels=None, decoder=DecoderInputs(ids))


def last_logits(body: Any, batch: Batch) -> Tensor:
    return body.to_logits(body(batch).sequence)[:, -1]


@pytest.mark.every(4)
@generating
@pytest.mark.parametrize("prompt", [1, 2, 4])
@pytest.mark.parametrize("room", [None, 7, 11])
def test_cached_steps_equal_one_pass(name: str, label: str, prompt: int, room: int | None) -> None:
    body, batch, _ = body_and_batch(name, label)
    target = torch.randint(3, 20, (3, 7), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        right = body.to_logits(body(with_prompt(batch, target)).sequence)
        state = body.start(with_prompt(batch, target[:, :prompt]), room)
        assert state.positions.tolist() == [prompt - 1] * 3
        addresses = [] if room is None else [tensor.data_ptr() for tensor in state.tensors()]
        ours = torch.stack([body.step(target[:, at], state) for at in range(prompt - 1, 7)], 1)
    near(ours, right[:, prompt - 1 :], 1e-11)
    assert state.positions.tolist() == [7] * 3
    assert room is None or [tensor.data_ptr() for tensor in state.tensors()] == addresses


@pytest.mark.every(2)
@generating
def test_steps_in_bfloat16_are_near(name: str, label: str) -> None:
    body, batch, _ = body_and_batch(name, label)
    body = noisy(body, 0.1).float()
    batch = replace(batch, inputs=batch.inputs.float() if batch.inputs.is_floating_point() else batch.inputs)
    target = torch.randint(3, 20, (3, 3), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        right = last_logits(body, with_prompt(batch, target))
        with torch.autocast("cpu", torch.bfloat16):
            ours = body.step(target[:, 2], body.start(with_prompt(batch, target)))
    torch.testing.assert_close(ours.float(), right, rtol=0.05, atol=0.05 * float(right.abs().max()))


@pytest.mark.every(3)
@generating
@pytest.mark.parametrize("room", [None, 14])
def test_beams_keep_their_own_caches(name: str, label: str, room: int | None) -> None:
    """Two beams of three rows swap their caches, and the second row is removed."""
    body, batch, _ = body_and_batch(name, label)
    start = torch.randint(3, 15, (3, 3), generator=torch.Generator().manual_seed(5))
    tokens_of = noise(4, 6, seed=3).abs().mul(5).long() + 3
    owners, paths = torch.arange(3).repeat_interleave(2), start.repeat_interleave(2, 0)[:, :-1]
    with torch.no_grad():
        state = body.start(with_prompt(batch, start), room)
        state.expand_beams(2)
        for number, rows in enumerate(([1, 0, 2, 2, 5, 4], [0, 1, 3, 2, 4, 4], [1, 0, 2, 3], [0, 1, 2, 3])):
            tokens = start[:, -1].repeat_interleave(2) if number == 0 else tokens_of[number, : len(paths)]
            paths = torch.cat([paths, tokens[:, None]], 1)
            near(body.step(tokens, state), last_logits(body, with_prompt(batch.select_rows(owners), paths)), 1e-11)
            assert set(state.positions.tolist()) == {paths.shape[1]}
            addresses = [] if room is None else [tensor.data_ptr() for tensor in state.tensors()]
            state.reorder(torch.tensor(rows))
            assert room is None or [tensor.data_ptr() for tensor in state.tensors()] == addresses
            paths = paths[rows]
            if number == 1:
                kept = [4, 5, 0, 1]
                state.select_rows(torch.tensor(kept))
                paths, owners = paths[kept], owners[kept]


@pytest.mark.every(9)
@pytest.mark.parametrize("way", WAYS)
@generating
def test_search_in_fixed_shapes_and_of_single_rows_finds_the_same(name: str, label: str, way: dict[str, Any]) -> None:
    settings = DecodeSettings(**way)
    body, batch, end = body_and_batch(name, label)
    prompt = torch.randint(3, 20, (3, 2), generator=torch.Generator().manual_seed(2))
    lengths, limits = torch.tensor([1, 2, 2]), torch.tensor([9, 7, 8])
    decoder_only = batch.decoder is None
    batch = Batch(prompt, lengths) if decoder_only else with_prompt(batch, prompt)
    right = search(body, batch, end, limits, settings, banned=(5,))
    for row in range(3):
        prompt_alone = prompt[row : row + 1, : lengths[row]]
        one = Batch(prompt_alone) if decoder_only else batch.select_rows(torch.tensor([row]))
        (alone,) = search(body, one, end, limits[row : row + 1], settings, np.array([row]), (5,))
        assert [found.tokens for found in alone] == [found.tokens for found in right[row]]
    with torch.inference_mode():
        for _ in range(2):  # the second time with reused buffers
            inputs = SearchInputs(body, batch, end, limits, settings, np.arange(3), torch.tensor([5]))
            ours = graphed_search(inputs, capture=False)
            for mine, theirs in zip(chain(*ours), chain(*right), strict=True):
                assert (mine.tokens, mine.finish_reason) == (theirs.tokens, theirs.finish_reason)
                assert mine.score == pytest.approx(theirs.score, rel=1e-9)
    assert len(_graph_caches[body].entries) == 1 and not any(5 in f.tokens for options in right for f in options)
    assert name == "rnn" or any(len(options[0].tokens) > 2 for options in right)


@generating
def test_captured_tensors_can_be_written(name: str, label: str) -> None:
    """Empty positions are one expanded zero, which cannot be written to by a CUDA graph."""
    body, batch, _ = body_and_batch(name, label)
    with torch.inference_mode():
        for tensor in body.start(with_prompt(batch, torch.tensor([[4, 5], [6, 7], [8, 9]])), 16).tensors():
            tensor.copy_(tensor.clone())
