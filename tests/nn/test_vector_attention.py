"""Vector attention of the paper and of the released code, against loops and PyG, with missing neighbors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.nn.points.body import find_neighbors, max_over_neighbors
from regard.nn.points.packing import CloudSizes
from regard.nn.points.vector_attention import (
    BatchNormRows,
    Neighbors,
    VectorAttention,
    paper_attention,
    reference_attention,
)
from regard.nn.recording import record_attention
from tiny import noisy

FORMS = ["paper", "released"]
forms = pytest.mark.parametrize("form", FORMS)


def made(form: str, width: int = 8, shares: int = 2) -> VectorAttention:
    return noisy(reference_attention(width, shares) if form == "released" else paper_attention(width), 0.4)


def near_in(places: Tensor, counts: tuple[int, ...], count: int) -> Neighbors:
    return find_neighbors(places, CloudSizes(counts), count, places, CloudSizes(counts))


def cloud(counts: tuple[int, ...], width: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    total = sum(counts)
    return torch.randn(total, 3, generator=draw).double(), torch.randn(total, width, generator=draw).double()


@forms
def test_recorded_key_indices_mark_missing_neighbors(form: str) -> None:
    """test_point_transformer.py tests the recorded weights of all levels."""
    attention, counts = made(form), (3, 9)
    places, x = cloud(counts)
    with record_attention(nn.ModuleDict({"a": attention})) as seen:
        attention(x, near_in(places, counts, 6))
    (look,) = seen.records
    assert look.key_index is not None and look.weights.shape == (1, attention.heads, 12, 6)
    assert look.key_index[0, 0, 0].tolist()[3:] == [-1] * 3 and not look.weights[0, :, :3, 3:].any()
    assert look.key_index[0, 0, :, 0].tolist() == list(range(12)), "each point is its own nearest neighbor"


@forms
def test_padding_for_a_missing_neighbor_has_no_effect(form: str) -> None:
    """Neither in outputs, nor in gradients, nor in batch norm statistics."""
    attention, counts = made(form).train(), (2, 9)
    places, x = cloud(counts)
    near = near_in(places, counts, 6)
    assert near.valid is not None and int((~near.valid).sum()) == 8
    told = torch.randn(11, 8, generator=torch.Generator().manual_seed(3)).double()
    found = []
    for other in (0, 7):
        again = copy.deepcopy(attention)
        index = near.index.where(near.valid, other)
        given = x.clone().requires_grad_()
        offsets = near.offsets.where(near.valid[..., None], 5.0 + other)
        said = again(given, Neighbors(index, offsets, near.valid, near.valid_index))
        said.backward(told)
        found.append((said.detach(), given.grad, [p.grad for p in again.parameters()], list(again.buffers())))
    (said, grad, grads, kept), (said2, grad2, grads2, kept2) = found
    assert torch.equal(said, said2) and torch.equal(grad, grad2)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip([*grads, *kept], [*grads2, *kept2], strict=True))  # type: ignore[arg-type]


# -- batch norm of rows


def test_the_gradient_of_the_maximum_goes_to_one_neighbor() -> None:
    x = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [3.0, -1.0]]], requires_grad=True)
    found = max_over_neighbors(x)
    with torch.no_grad():
        assert torch.equal(max_over_neighbors(x), found)  # another code path without gradients
    found.backward(torch.tensor([[5.0, 7.0]]))
    assert x.grad is not None and found.tolist() == [[3.0, 0.0]]
    assert sorted(x.grad[0, :, 0].tolist()) == [0, 0, 5] and x.grad[0, 0, 0] == 0
    assert sorted(x.grad[0, :, 1].tolist()) == [0, 0, 7] and x.grad[0, 2, 1] == 0


def test_a_norm_of_rows_is_that_of_torch() -> None:
    ours, theirs = BatchNormRows(6).double(), nn.BatchNorm1d(6).double()
    for part in (ours, theirs):
        part.load_state_dict(
            {"weight": torch.arange(1.0, 7), "bias": torch.arange(6.0)} | dict(part.named_buffers()), strict=False
        )
    x = torch.randn(7, 5, 6).double()
    for _ in range(2):
        assert torch.allclose(ours(x), theirs(x.flatten(0, 1)).view_as(x), atol=1e-12)
    assert torch.allclose(ours.running_var, theirs.running_var)  # type: ignore[arg-type]
    assert torch.allclose(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x), atol=1e-12)
    assert ours(x[:0]).shape == (0, 5, 6)
    with pytest.raises(RegardError, match="more than one point"):
        ours.train()(x[0, :1])
    ours.weight.requires_grad_(False)
    ours(x[0, :1])
