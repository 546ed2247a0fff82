"""Attention rollout and relevance against their definitions in loops, and on rows too long for a dense matrix."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from encoders import encoder
from regard.explain.rollout import (
    AttentionLayer,
    AttentionSlice,
    RowAttention,
    TokenBlocks,
    relevance,
    rollout,
    slice_records,
)
from regard.nn.recording import record_attention
from regard.types import AttentionRecord, Batch, TextFields
from tiny import near, noise

L, H, DEPTH = 7, 3, 4


def looks(causal: bool = False, blind: int | None = None, seed: int = 0) -> list[Tensor]:
    """Attention weights (H, L, L) per layer; query `blind` attends to nothing."""
    found = []
    for layer in range(DEPTH):
        weights = (noise(H, L, L, seed=10 * seed + layer) * 2).exp()
        weights = weights.tril() if causal else weights
        weights = weights / weights.sum(-1, keepdim=True)
        if blind is not None:
            weights[:, blind] = 0
        found.append(weights)
    return found


def written_out(weights: list[Tensor]) -> Tensor:
    """Product over the layers of (A + I) / 2 with rows normalized to 1."""
    found = torch.eye(L, dtype=torch.float64)
    for heads in weights:
        step = heads.double().mean(0) + torch.eye(L)
        found = step / step.sum(1, keepdim=True) @ found
    return found


def whole(weights: list[Tensor]) -> list[AttentionLayer]:
    return [[AttentionSlice(heads.mean(0)[None])] for heads in weights]


def one(at: int, length: int = L) -> Tensor:
    row = torch.zeros(length, dtype=torch.float64)
    row[at] = 1
    return row


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blind", [None, 2])
def test_a_row_is_propagated_as_the_product_of_all_layers(causal: bool, blind: int | None) -> None:
    weights = looks(causal, blind)
    right = written_out(weights)
    for at in range(L):
        row = rollout(whole(weights), one(at))
        near(row, right[at])
        assert float(row.sum()) == pytest.approx(1, abs=1e-12) and float(row.min()) >= 0
        assert not causal or not row[at + 1 :].any()
    mean = rollout(whole(weights), torch.full((L,), 1 / L, dtype=torch.float64))
    near(mean, right.mean(0))


def test_relevance_is_joined_from_the_first_layer_to_the_last() -> None:
    weights = looks(seed=3)
    found = torch.eye(L, dtype=torch.float64)
    for heads in weights:  # R ← R + Ā R
        found = found + heads.double().mean(0) @ found
    for at in range(L):
        near(relevance(whole(weights), one(at)), found[at] - one(at), 1e-11)


# -- windows: a record has fewer columns than tokens, with the key index of each column


def windowed(length: int, wide: int, heads: int, steps: tuple[int, ...] = (1,), seed: int = 0) -> AttentionRecord:
    """Weights over the neighbors up to `wide` steps to each side; columns outside the row have key -1."""
    at, beside = torch.arange(length), torch.arange(-wide, wide + 1)
    keys = torch.stack([at[:, None] + beside * step for step in steps])
    there = (keys >= 0) & (keys < length)
    keys = torch.where(there, keys, -1)
    weights = torch.rand(heads, length, 2 * wide + 1, generator=torch.Generator().manual_seed(seed)) * there
    return AttentionRecord("it", (weights / weights.sum(-1, keepdim=True))[None], keys[None])


def dense(look: AttentionRecord, length: int) -> Tensor:
    """The same weights as a dense matrix (H, L, L)."""
    assert look.key_index is not None
    found = torch.zeros(look.weights.shape[1], length, length, dtype=look.weights.dtype)
    for h, i, c in np.ndindex(*look.weights.shape[1:]):
        key = int(look.key_index[0, h if look.key_index.shape[1] > 1 else 0, i, c])
        if key >= 0:
            found[h, i, key] += look.weights[0, h, i, c]
    return found


@pytest.mark.parametrize("steps", [(1,), (1, 2, 3)])
def test_windows_are_propagated_as_their_dense_matrix(steps: tuple[int, ...]) -> None:
    records = [windowed(L, 2, H, steps, seed) for seed in range(DEPTH)]
    view = RowAttention(0, L, TokenBlocks.split(L, L), (3,))
    for record in records:
        view.add([record])
    weights = [dense(record, L).double() for record in records]
    near(torch.from_numpy(view.rollout((3,))), written_out(weights)[3], 1e-6)
    for layer in range(DEPTH):
        assert np.allclose(view.block_maps[layer], weights[layer], atol=1e-6)
        assert np.allclose(view.query_maps[layer], weights[layer][:, 3], atol=1e-6)


def test_a_global_token_has_a_separate_row() -> None:
    record = windowed(L, 1, H)
    far = torch.rand(1, H, 3, L, generator=torch.Generator().manual_seed(9)).softmax(-1)
    extra = AttentionRecord("it", far, None, torch.tensor([[0, 4, -1]]))
    right = dense(record, L)
    right[:, [0, 4]] = far[0, :, :2]
    view = RowAttention(0, L, TokenBlocks.split(L, L), (4,))
    view.add([record, extra])
    near(torch.from_numpy(view.rollout((4,))), rollout(whole([right]), one(4)), 1e-6)
    assert np.allclose(view.block_maps[0], right, atol=1e-6) and np.allclose(view.query_maps[0], right[:, 4], atol=1e-6)


def test_padding_and_other_rows_are_left_out() -> None:
    weights = torch.rand(2, H, L, L, generator=torch.Generator().manual_seed(1))
    part = slice_records([AttentionRecord("it", weights)], 1, 5)[0]
    assert torch.equal(part.weights, weights[1, :, :5, :5])


@pytest.mark.parametrize("dilation", [(), (1, 2, 3)])
def test_a_longformer_is_explained_as_by_its_dense_matrices(dilation: tuple[int, ...]) -> None:
    words, labels = "the cat sat on the mat and looked at the moon", ("good", "bad")
    more = {"attention_window": (4,), "dilation": dilation, "scale": 0.3}
    model = encoder("classify", [words] * 3, labels, "longformer", 90, **more)
    config, text = model.config, model.tokenizer
    found = model.explain(words)
    assert found.decision is not None
    counted, rolled = found.decision.attributions[:2]
    row = torch.tensor([[config.bos_id, *text.encode([words])[0], config.eos_id]])
    length, marked = row.shape[1], torch.zeros_like(row, dtype=torch.bool)
    marked[0, 0] = True  # the first token has global attention
    with record_attention(model.body, gradients=True) as seen:
        logits = model.task.objective.logits(model, Batch(row, text=TextFields(global_tokens=marked)))[0]
    which = labels.index(counted.title)
    owed = torch.autograd.grad(logits[which] - logits.mean(), [look.weights for look in seen.records])
    # per layer a record of windows and a record of the global row
    assert len(seen.records) == 4 and len(seen.names()) == 2
    product = joined = torch.eye(length, dtype=torch.float64)
    for layer in range(2):
        near_by, far = seen.records[2 * layer : 2 * layer + 2]
        parts = [near_by.weights.detach(), (owed[2 * layer] * near_by.weights).detach().clamp(min=0)]
        mean, counts = (dense(replace(near_by, weights=part), length).mean(0) for part in parts)
        mean[0] = far.weights.detach()[0, :, 0].mean(0)
        counts[0] = (owed[2 * layer + 1] * far.weights).detach().clamp(min=0)[0, :, 0].mean(0)
        product = (mean + torch.eye(length)) / 2 @ product
        joined = joined + counts @ joined
        np.testing.assert_allclose(found.maps[0].weights[layer].mean(0), mean, atol=1e-7)
    right = joined[0] - torch.eye(length)[0]
    np.testing.assert_allclose(counted.fractions, right / right.sum(), atol=1e-10)
    np.testing.assert_allclose(rolled.fractions, product[0], atol=1e-10)


# -- blocks


def test_a_tile_is_the_mean_of_its_tokens() -> None:
    weights = looks()[0]
    blocks = TokenBlocks.split(L, 4, isolated=(0,))
    assert blocks.starts == (0, 1, 3, 5, 7) and not blocks.is_trivial and TokenBlocks.split(L, L).is_trivial
    view = RowAttention(0, L, blocks, (0,))
    view.add([AttentionRecord("it", weights[None])])
    for h, i, j in np.ndindex(H, 4, 4):
        (a, b), (c, d) = blocks.starts[i : i + 2], blocks.starts[j : j + 2]
        right = sum(float(weights[h, x, y]) for x in range(a, b) for y in range(c, d)) / (b - a)
        assert view.block_maps[0][h, i, j] == pytest.approx(right, abs=1e-6)
    assert np.allclose(view.block_maps[0].sum(-1), 1, atol=1e-6)
    assert blocks.names(list("abcdefg")) == ("a", "b c", "d e", "f g")


def test_there_are_at_most_the_requested_tiles_and_separate_texts_stay_separate() -> None:
    for length in (1, 5, 96, 97, 500, 4097, 65_536):
        for apart in ((), (0,), (0, length - 1), tuple(range(min(length, 9))), tuple(range(0, length, 3))):
            blocks = TokenBlocks.split(length, 96, apart)
            assert len(blocks) <= 96 and blocks.starts[0] == 0 and blocks.starts[-1] == length
            assert blocks.sizes.min() > 0 and blocks.is_trivial == (length <= 96)
            if len(apart) < 3:
                assert all(blocks.sizes[int(blocks.block_ids[at])] == 1 for at in apart)
    assert TokenBlocks.split(65_536, 96, (0,)).names(["x"] * 65_536)[:2] == ("x", "2–691")


def test_sixty_thousand_tokens_are_explained_in_bounded_memory() -> None:
    """The record of a layer with 2 heads has 26 MB; a dense matrix would have 17 GB per head."""
    length, wide, depth = 65_536, 24, 3
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = RowAttention(0, length, TokenBlocks.split(length, 96, (0,)), (0,))
    record = windowed(length, wide, 2)
    all_of_it = torch.full((1, 2, 1, length), 1 / length)
    for _ in range(depth):
        view.add([record, AttentionRecord("it", all_of_it, None, torch.zeros(1, 1, dtype=torch.long))])
    row = view.rollout((0,))
    assert row.sum() == pytest.approx(1, abs=1e-5) and row.shape == (length,) and (row[1:] > 0).all()
    assert row[0] == pytest.approx(0.5**depth, rel=0.01)  # the first token keeps half of its weight in each layer
    assert view.layers[0][0].keys is view.layers[2][0].keys  # as large as the weights: stored once
    tiles = view.block_maps[0]
    assert tiles.shape == (2, 96, 96) and np.allclose(tiles.sum(-1), 1, atol=1e-3)
    band = np.abs(np.subtract.outer(np.arange(96), np.arange(96))) <= 1
    assert not tiles[:, 1:][:, ~band[1:]].any() and (tiles[:, 0] > 0).all()  # a band and one global row
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 5e8
