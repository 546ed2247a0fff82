"""Decoder-only model: masks, limits and caches; decode/test_generation.py compares steps with one pass over each row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import near, noisy
from regard.errors import RegardError
from regard.nn.attention.masks import materialize
from regard.nn.attention.positions import LearnedPosition, SinusoidalPosition
from regard.nn.blocks.block import Stack, TokenEmbedding, transformer_block
from regard.nn.blocks.decoder import DecoderOnly
from regard.types import Batch, Packing
from toy_language_models import follow, padded

V, LENGTH = 17, 24
BANDS = {"dense": (), "banded": (0, 3, 0), "all banded": (4, 4, 2)}


def body(bands: str = "dense", learned: bool = True) -> Any:
    blocks = [transformer_block(12, 3, 20, norm="pre", activation="gelu_tanh") for _ in range(3)]
    position = LearnedPosition(LENGTH, 12) if learned else SinusoidalPosition(12)
    stack = Stack(blocks, nn.LayerNorm(12))
    return noisy(DecoderOnly(TokenEmbedding(V, 12), position, stack, 0.0, BANDS[bands])).eval()


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def said(model: Any, x: Tensor) -> Tensor:
    """Logits of one pass over rows of equal length."""
    logits: Tensor = model.to_logits(model(Batch(x)).sequence)
    return logits


def last(model: Any, rows: list[list[int]]) -> Tensor:
    """Logits after the last token of each row, computed row by row."""
    return torch.stack([follow(model, row) for row in rows])


@pytest.fixture(autouse=True)
def calm() -> Any:
    with torch.no_grad():
        yield


# -- one pass


@pytest.mark.parametrize(("name", "masks"), [("dense", 0), ("banded", 1), ("all banded", 2)])
def test_a_mask_is_materialized_once_for_all_layers(name: str, masks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(
        "regard.nn.attention.masks.materialize", lambda *asked: written.append(1) or materialize(*asked)
    )
    model, x = body(name), ids(2, 9)
    model(Batch(x))
    assert len(written) == masks
    written.clear()
    model(Batch(x, torch.tensor([[True] * 4 + [False] + [True] * 4] * 2)))
    assert len(written) == len(set(BANDS[name] or [0]))
    written.clear()
    model(Batch(x[:, :2]))  # shorter than every band
    assert not written


def test_padding_of_a_packed_row_may_be_longer_than_the_context() -> None:
    model = body()
    row = ids(1, LENGTH + 9)
    offsets = Packing(torch.tensor([0, 4, LENGTH + 9]), LENGTH + 5)
    near(model.to_logits(model(Batch(row, packing=offsets)).sequence)[:, :4], said(model, row[:, :4]))


def test_exceeding_the_number_of_positions_is_a_clear_error() -> None:
    model = body()
    said(model, ids(1, LENGTH))
    state = model.start(Batch(ids(1, LENGTH)))
    model.step(torch.tensor([1]), state)
    for call in (
        lambda: said(model, ids(1, LENGTH + 1)),
        lambda: model.start(Batch(ids(1, LENGTH + 1))),
        lambda: model.step(torch.tensor([1]), state),
    ):
        with pytest.raises(RegardError, match=f"{LENGTH}"):
            call()
    assert said(body(learned=False), ids(1, 3 * LENGTH)).isfinite().all()


def test_a_prompt_that_is_none_is_refused() -> None:
    model = body()
    for batch, words in (
        (Batch(ids(2, 0)), "Prompt lengths"),
        (Batch(ids(2, 3), torch.tensor([2, 0])), "Prompt lengths"),
        (Batch(ids(2, 3), torch.tensor([2, 4])), "Prompt lengths"),
        (Batch(ids(1, 3), torch.tensor([[False, True, True]])), "padded on the right"),
        (Batch(ids(1, 3), packing=Packing(torch.tensor([0, 3]), 3)), "padded"),
    ):
        with pytest.raises((RegardError, ValueError), match=words):
            model.start(batch)


# -- cached steps


def test_rows_of_equal_length_are_trimmed_and_need_no_mask() -> None:
    """The kernel without a mask is faster."""
    model = body("banded")
    state = model.start(Batch(ids(2, 3)))
    assert state.next_step(1).masks == [None] * 3  # the band of 3 covers all keys
    model.step(torch.tensor([1, 2]), state)
    rules = state.next_step(1).masks
    assert rules[0] is None and rules[2] is None and rules[1] is not None
    state = model.start(padded([[3, 1, 4, 1, 5], [9, 2]]))
    assert state.next_step(1).masks[0] is not None
    state.select_rows(torch.tensor([1, 1]))
    assert state.aligned and state.layers[0].self_cache.k.shape[-2] == state.current_length == 1


@pytest.mark.parametrize("beams", [1, 2])
def test_a_finished_row_may_be_stepped_on_beyond_the_context(beams: int) -> None:
    """A finished long prompt is stepped together with an unfinished short one: both add columns."""
    model, rows = body("banded"), [ids(1, LENGTH - 2)[0].tolist(), [3, 4]]
    state = model.start(padded(rows), LENGTH - 3 + 14)
    if beams > 1:
        state.expand_beams(beams)
    other, tokens = [list(rows[1]) for _ in range(beams)], [row[-1] for row in rows for _ in range(beams)]
    for step in range(14):
        near(model.step(torch.tensor(tokens), state)[beams:], last(model, other))
        new = [step + beam for beam in range(beams)]
        tokens = [0] * beams + new
        for path, token in zip(other, new, strict=True):
            path.append(token)
    assert state.layers[0].self_cache.k.shape[0] == 2, "keys are stored per prompt, not per beam"


def test_noise_in_masked_rows_never_becomes_nan() -> None:
    """Unwritten cache columns contain arbitrary memory: the product with weight 0 must be 0."""
    model = body()
    state = model.start(padded([[1, 2, 3, 4], [5]]))
    for layer in state.layers:
        attend: Any = layer.self_cache
        attend.buffers = tuple(torch.full((2, 3, 40, 4), float("nan"), dtype=torch.float64) for _ in range(2))
        for buffer, kept in zip(attend.buffers, (attend.k, attend.v), strict=True):
            buffer[..., :3, :] = kept
    near(model.step(torch.tensor([4, 5]), state), last(model, [[1, 2, 3, 4], [5]]))
