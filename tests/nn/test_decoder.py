"""Decoder-only model: cached steps, ragged prompts, static shapes, beams and packing equal one pass over each row."""

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
from regard.nn.blocks.decoder import DecoderOnly, DecoderState
from regard.nn.recording import record_attention
from regard.types import Batch, Packing

V, LENGTH = 17, 24
BANDS = {"dense": (), "banded": (0, 3, 0), "all banded": (4, 4, 2)}
bands = pytest.mark.parametrize("bands", BANDS)
rooms = pytest.mark.parametrize("room", [None, LENGTH, 40])


def body(bands: str = "dense", learned: bool = True, norm: Any = "pre", dropout: float = 0.0) -> Any:
    blocks = [transformer_block(12, 3, 20, norm=norm, activation="gelu_tanh", dropout=dropout) for _ in range(3)]
    position = LearnedPosition(LENGTH, 12) if learned else SinusoidalPosition(12)
    stack = Stack(blocks, nn.LayerNorm(12) if norm == "pre" else None)
    return noisy(DecoderOnly(TokenEmbedding(V, 12), position, stack, dropout, BANDS[bands])).eval()


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def said(model: Any, x: Tensor) -> Tensor:
    """Logits of one pass over rows of equal length."""
    logits: Tensor = model.to_logits(model(Batch(x)).sequence)
    return logits


def last(model: Any, rows: list[list[int]]) -> Tensor:
    """Logits after the last token of each row, computed row by row."""
    return torch.cat([said(model, torch.tensor([row]))[:, -1] for row in rows])


def ragged(rows: list[list[int]], more: int = 0) -> Batch:
    """Right-padded prompts; padding has random tokens."""
    width = max(map(len, rows)) + more
    x = ids(len(rows), width, seed=9)
    for number, row in enumerate(rows):
        x[number, : len(row)] = torch.tensor(row)
    return Batch(x, torch.tensor([len(row) for row in rows]))


PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], [9, 3]]


def go_on(model: Any, state: DecoderState, rows: list[list[int]], steps: int, seed: int = 5) -> None:
    """Append to `rows` step by step; the logits of every step equal the logits of the row alone."""
    tokens = torch.tensor([row[-1] for row in rows])
    for step in range(steps):
        near(model.step(tokens, state), last(model, rows))
        tokens = ids(len(rows), 1, seed=seed + step)[:, 0]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)


@pytest.fixture(autouse=True)
def calm() -> Any:
    with torch.no_grad():
        yield


def copied(rows: list[list[int]]) -> list[list[int]]:
    return [list(row) for row in rows]


# -- one pass


@pytest.mark.parametrize(("name", "masks"), [("dense", 0), ("banded", 1), ("all banded", 2)])
def test_a_mask_is_materialized_once_for_all_layers_of_a_band(
    name: str, masks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.every(4)
@bands
@rooms
@pytest.mark.parametrize(("count", "more"), [(4, 0), (4, 2), (4, 20), (9, 0)])
def test_rows_of_different_lengths_equal_each_row_alone(bands: str, room: int | None, count: int, more: int) -> None:
    """Nine rows use the kernel for few queries."""
    model, rows = body(bands), copied((3 * PROMPTS)[:count])
    state = model.start(ragged(rows, more), room)
    assert state.positions.tolist() == [len(row) - 1 for row in rows]
    go_on(model, state, rows, 2)
    for taken in ([3, 1, 0, 1], [1, 3], [0, 0]):  # the longest row is removed; then all rows have equal length
        rows = [list(rows[i]) for i in taken]
        state.select_rows(torch.tensor(taken))
        go_on(model, state, rows, 3)
    if room is None:
        assert state.aligned and state.layers[0].self_cache.k.shape[-2] == state.current_length == len(rows[0]) - 1
    state.select_rows(torch.tensor([], dtype=torch.long))
    assert state.positions.tolist() == []


def test_rows_without_a_mask_step_without_one() -> None:
    """The kernel without a mask is faster: rows of equal length need no mask."""
    model = body("banded")
    state = model.start(Batch(ids(2, 3)))
    assert state.next_step(1).masks == [None] * 3  # the band of 3 covers all keys
    model.step(torch.tensor([1, 2]), state)
    rules = state.next_step(1).masks
    assert rules[0] is None and rules[2] is None and rules[1] is not None
    assert model.start(ragged(PROMPTS)).next_step(1).masks[0] is not None


# -- beams


@pytest.mark.every(4)
@bands
@rooms
@pytest.mark.parametrize("W", [2, 3])
def test_beams_of_ragged_prompts_equal_separate_rows(bands: str, room: int | None, W: int) -> None:
    model = body(bands)
    state = model.start(ragged(PROMPTS, more=1), room)
    state.expand_beams(W)
    homes = [(tensor.data_ptr(), tensor.shape) for tensor in state.tensors()] if room else []
    paths = [list(row) for row in PROMPTS for _ in range(W)]
    random = torch.Generator().manual_seed(3)
    tokens = torch.tensor([path[-1] for path in paths])
    for number in range(6):
        near(model.step(tokens, state), last(model, paths))
        rows = torch.arange(len(paths)) // W * W + torch.randint(W, (len(paths),), generator=random)
        state.reorder(rows)
        paths = [list(paths[row]) for row in rows.tolist()]
        if number == 2:  # the longest row is removed, the shortest is duplicated
            assert not room or [(tensor.data_ptr(), tensor.shape) for tensor in state.tensors()] == homes
            kept = [source * W + beam for source in (3, 1, 1, 0) for beam in range(W)]
            state.select_rows(torch.tensor(kept))
            paths = [list(paths[row]) for row in kept]
        tokens = torch.randint(V, (len(paths),), generator=random)
        for path, token in zip(paths, tokens.tolist(), strict=True):
            path.append(token)
    assert state.layers[0].self_cache.k.shape[0] == 4, "keys are stored per prompt, not per beam"


@pytest.mark.parametrize("beams", [1, 2])
def test_a_finished_row_may_be_stepped_on_beyond_the_context(beams: int) -> None:
    """A finished long prompt is stepped together with an unfinished short one: both add columns."""
    model, rows = body("banded"), [ids(1, LENGTH - 2)[0].tolist(), [3, 4]]
    state = model.start(ragged(rows), LENGTH - 3 + 14)
    if beams > 1:
        state.expand_beams(beams)
    other, tokens = [list(rows[1]) for _ in range(beams)], [row[-1] for row in rows for _ in range(beams)]
    for step in range(14):
        near(model.step(torch.tensor(tokens), state)[beams:], last(model, other))
        new = [step + beam for beam in range(beams)]
        tokens = [0] * beams + new
        for path, token in zip(other, new, strict=True):
            path.append(token)


# -- recording attention


def test_recorded_attention_is_causal_layer_by_layer() -> None:
    model, x = body("banded"), ids(1, 6)
    with record_attention(model) as seen:
        whole = said(model, x)
    assert seen.names() == [f"decoder.blocks.{n}.attend" for n in range(3)]
    at = torch.arange(6)
    for number, band in enumerate((6, 3, 6)):
        weights = seen.weights(f"decoder.blocks.{number}.attend")
        assert torch.equal(weights[0, 0] > 0, (at <= at[:, None]) & (at > at[:, None] - band))
        near(weights.sum(-1), torch.ones(1, 3, 6, dtype=torch.float64))
    with record_attention(model, ["decoder.blocks.1.attend"]) as steps:
        state = model.start(Batch(x[:, :3]))
        near(torch.stack([model.step(x[:, at], state) for at in (2, 3, 4, 5)], 1), whole[:, 2:])
    near(steps.weights("decoder.blocks.1.attend"), seen.weights("decoder.blocks.1.attend"))


def test_noise_in_masked_rows_never_becomes_nan() -> None:
    """Unwritten cache columns contain arbitrary memory: the product with weight 0 must be 0."""
    model = body()
    state = model.start(ragged([[1, 2, 3, 4], [5]]))
    for layer in state.layers:
        attend: Any = layer.self_cache
        attend.buffers = tuple(torch.full((2, 3, 40, 4), float("nan"), dtype=torch.float64) for _ in range(2))
        for buffer, kept in zip(attend.buffers, (attend.k, attend.v), strict=True):
            buffer[..., :3, :] = kept
    near(model.step(torch.tensor([4, 5]), state), last(model, [[1, 2, 3, 4], [5]]))
