"""Search in fixed shapes, as it is recorded on CUDA, finds what search in growing ones finds; beams that share their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regard.decode.likely import likeliest
from regard.decode.recorded import _kept, _up, recorded
from regard.decode.search import search
from regard.decode.settings import Decode
from regard.waists import Batch
from tiny import near, noise, tiny

SETTINGS = [
    Decode(), Decode(beam=2), Decode(beam=4, best=3, penalty=1.0), Decode(beam=3, stop="sure"),
    Decode(sample=True, best=2, seed=3), Decode(sample=True, temperature=0.7, top_k=5),
]  # fmt: skip


def asked(rows: int, model: Any) -> tuple[Batch, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    lengths = torch.randint(2, 9, (rows,), generator=random)
    x = torch.randint(3, model.config.vocabulary, (rows, int(lengths.max())), generator=random)
    x[torch.arange(x.shape[1]) >= lengths[:, None]] = model.config.pad
    prompt = torch.randint(3, model.config.vocabulary, (rows, 2), generator=random)
    return Batch(x, lengths, prompt), lengths + 4


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_fixed_shapes_find_what_growing_ones_find(settings: Decode, rows: int) -> None:
    model = tiny("transformer")
    batch, limits = asked(rows, model)
    requests, banned = np.arange(rows) + 7, torch.tensor([model.config.pad])
    right = search(model.body, batch, model.config.end, limits, settings, requests, (model.config.pad,))
    with torch.inference_mode():
        for _ in range(2):  # the second time in the tensors of the first
            ours = recorded(model.body, batch, model.config.end, limits, settings, requests, banned, graph=False)
            assert [[f.tokens for f in options] for options in ours] == [[f.tokens for f in o] for o in right]
            for mine, theirs in zip(ours, right, strict=True):
                assert [f.ended for f in mine] == [f.ended for f in theirs]
                for a, b in zip(mine, theirs, strict=True):
                    assert a.score == pytest.approx(b.score, rel=1e-10) and a.logs == pytest.approx(b.logs, rel=1e-9)
    assert len(_kept[model.body]) == 1


def test_recordings_of_many_sizes_are_forgotten_in_turn() -> None:
    model = tiny("transformer")
    with torch.inference_mode():
        for rows in range(1, 70, 6):
            batch, limits = asked(rows, model)
            recorded(model.body, batch, 2, limits, Decode(), np.arange(rows), None, graph=False)
    assert len(_kept[model.body]) <= 6
    assert [_up(n) for n in (1, 2, 3, 8, 9, 33, 200, 300)] == [1, 2, 4, 8, 16, 64, 224, 384]


@pytest.mark.parametrize("room", [None, 9])
@pytest.mark.parametrize("prompt", [1, 3])
def test_beams_share_keys_and_keep_their_own_pasts(room: int | None, prompt: int) -> None:
    """Two beams of three sources exchange their pasts twice; what they say is what a single pass over each path says."""
    model, W = tiny("transformer"), 2
    batch, _ = asked(3, model)
    start = torch.randint(3, 15, (3, prompt), generator=torch.Generator().manual_seed(5))
    said = noise(4, 6, seed=3).abs().mul(5).long() + 3
    with torch.no_grad():
        state = model.body.start(replace(batch, target=start), room)
        state.widen(W)
        paths = start.repeat_interleave(W, 0)[:, :-1]
        owners = torch.arange(3).repeat_interleave(W)
        for number, rows in enumerate(([1, 0, 2, 2, 5, 4], [0, 1, 3, 2, 4, 4], [0, 1, 2, 3, 4, 5])):
            tokens = start[:, -1].repeat_interleave(W) if number == 0 else said[number]
            paths = torch.cat([paths, tokens[:, None]], 1)
            ours = model.body.step(tokens, state)
            whole = replace(batch, x=batch.x[owners], mask=batch.mask[owners], target=paths)  # type: ignore[index]
            near(ours, model.body.read(model.body(whole).sequence)[:, -1])
            rows = rows[: len(paths)]
            state.reorder(torch.tensor(rows))
            paths = paths[rows]
            if number == 1:  # the second source leaves
                kept = [4, 5, 0, 1]
                state.keep(torch.tensor(kept))
                paths, owners, said = paths[kept], owners[kept], said[:, :4]
    assert state.layers[0].attend.k.shape[0] == 2, "keys are of sources, not of beams"


@pytest.mark.parametrize("vocabulary", [5, 64, 1000, 8191])
@pytest.mark.parametrize("count", [1, 8])
def test_the_likeliest_tokens_are_those_of_a_whole_sort(vocabulary: int, count: int) -> None:
    logits = noise(6, vocabulary)
    values, tokens = likeliest(logits, count)
    right = logits.log_softmax(-1).topk(min(count, vocabulary))
    assert torch.equal(tokens, right.indices)
    near(values, right.values)
