"""Nearest neighbors, farthest points and interpolation against plain loops; all search methods agree."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import point_transformer_reference as reference
from regard.errors import RegardError
from regard.nn.points import knn as knn_module
from regard.nn.points.knn import knn, knn_grid, knn_interpolation
from regard.nn.points.packing import CloudSizes, batch_groups, farthest_point_sampling
from regard.types import Packing

KINDS = ("spread", "grid", "far", "line", "clusters", "copies", "one place")
kinds = pytest.mark.parametrize("kind", KINDS)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
COUNTS = [(40,), (1,), (7, 30, 2, 1, 25), (16, 16, 16), (5, 90)]


def points(count: int, kind: str, seed: int = 0) -> Tensor:
    """Multiples of 1/32, exact in float32, so that ties are ties in every precision."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(-40, 40, (count, 3), generator=draw).double()
    if kind == "spread":
        x = torch.randint(-1000, 1000, (count, 3), generator=draw).double()
    if kind == "grid":
        x = (x / 16).round() * 16
    if kind == "far":
        x = (x / 8).round() * 8 + 2**18
    if kind == "line":
        x = x[:, :1] * torch.tensor([1.0, 2.0, 0.0]).double()
    if kind == "clusters":
        x = x.sign() * 1000 + (x / 20).round()
    if kind == "copies":
        x = x[torch.randint(0, max(count // 5, 1), (count,), generator=draw)]
    if kind == "one place":
        x = x[:1].expand(count, 3).clone()
    return x / 32


def plain_nearest(
    places: Tensor, counts: tuple[int, ...], count: int, queries: Tensor, asking: tuple[int, ...]
) -> Tensor:
    rows, first = [], 0
    for own, asked in zip(places.split(counts), queries.split(asking), strict=True):
        near = reference.nearest(own.double().numpy(), count, asked.double().numpy())
        rows += [[first + j for j in row] + [-1] * (min(count, max(counts)) - len(row)) for row in near]
        first += len(own)
    return torch.tensor(rows)


# -- neighbors


@pytest.mark.every(2)
@kinds
@dtypes
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize(("count", "room"), [(1, knn_module.MAX_PAIRS), (8, knn_module.MAX_PAIRS), (6, 1), (6, 70)])
def test_neighbors_equal_a_plain_search(
    kind: str, dtype: Any, counts: tuple[int, ...], count: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, or with room for a few pairs at a time."""
    monkeypatch.setattr(knn_module, "MAX_PAIRS", room)
    x = points(sum(counts), kind).to(dtype)
    found = knn(x, CloudSizes(counts), count)
    assert torch.equal(found, plain_nearest(x, counts, count, x, counts))


@kinds
@pytest.mark.parametrize("counts", COUNTS)
def test_other_points_may_query_neighbors(kind: str, counts: tuple[int, ...]) -> None:
    x, kept = points(sum(counts), kind).float(), CloudSizes(counts).downsampled(3)
    queries = points(sum(kept.counts), kind, seed=1).float()
    assert torch.equal(knn(x, CloudSizes(counts), 5, queries, kept), plain_nearest(x, counts, 5, queries, kept.counts))
    assert torch.equal(knn(queries, kept, 3, x, CloudSizes(counts)), plain_nearest(queries, kept.counts, 3, x, counts))


# -- by a tree or by cells


@pytest.fixture(params=["tree", "cells"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "cells":
        monkeypatch.setitem(sys.modules, "scipy.spatial", None)
    else:
        pytest.importorskip("scipy")


@pytest.mark.every(7)
@pytest.mark.usefixtures("search")
@kinds
@dtypes
@pytest.mark.parametrize("count", [3, 16])
def test_cell_lists_equal_all_pairs(kind: str, dtype: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 700
    x, queries = points(n, kind).to(dtype), points(90, kind, seed=1).to(dtype) * 1.5
    wanted, others = knn(x, CloudSizes((n,)), count), knn(x, CloudSizes((n,)), count, queries, CloudSizes((90,)))
    for room in (500, 20_000):  # several rounds, partial rounds, and rows longer than the memory limit
        assert torch.equal(knn_grid(x, x, count, room), wanted)
        assert torch.equal(knn_grid(x, queries, count, room), others)
    monkeypatch.setattr(knn_module, "GRID_MIN_POINTS", 1)
    monkeypatch.setattr(knn_module, "MAX_PAIRS", 1000)
    assert torch.equal(knn(x, CloudSizes((n,)), count), wanted)
    counts = (200, 3, 497)
    assert torch.equal(knn(x, CloudSizes(counts), count), plain_nearest(x, counts, count, x, counts))


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_cell_lists_support_extreme_densities(scale: float) -> None:
    """Densities that differ by many powers of ten, and one distant point."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1500, 3, generator=draw) ** 5
    x[7] = 1e6
    x = x * scale
    wanted = knn(x, CloudSizes((1500,)), 12)
    assert torch.equal(knn_grid(x, x, 12, 10_000), wanted)


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_coordinates_do_not_keep_the_search_from_ending(bad: float) -> None:
    places = torch.full((2100, 3), bad)
    assert knn(places, CloudSizes((2100,)), 4).shape == (2100, 4)


@pytest.mark.usefixtures("search")
def test_a_point_far_off_does_not_make_cells_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    x = 1e-3 * torch.rand(4000, 3, generator=torch.Generator().manual_seed(0))
    for number, far in ((7, (1e5, 0, 0)), (8, (-1e5, 3, 0)), (1500, (-1e5, 3, 1e-3)), (9, (0, 0, 1e6))):
        x[number] = torch.tensor(far)
    compared = count_pairs(monkeypatch)
    assert torch.equal(knn_grid(x, x, 8, 2**16), _all_pairs(x, 8))
    assert sum(compared) < len(x) ** 2 / 4


def count_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of pairs in each later call of the distance."""
    compared, real = list[int](), knn_module.squared_distance

    def squared(a: Any, b: Any) -> Tensor:
        compared.append(real(a, b).numel())
        return real(a, b)

    monkeypatch.setattr(knn_module, "squared_distance", squared)
    return compared


def _all_pairs(x: Tensor, count: int) -> Tensor:
    far = (x[:, None] - x).square()
    return (far[..., 0] + far[..., 1] + far[..., 2]).sort(dim=1, stable=True).indices[:, :count]


def test_of_many_copies_only_the_first_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    places = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 0, 0], [-0.0, 0, 0]]).repeat(100, 1)
    compared = count_pairs(monkeypatch)
    assert torch.equal(knn_grid(places, places, 2, 2**16), _all_pairs(places, 2)) and sum(compared) == 2 * 4


@pytest.mark.usefixtures("search")
def test_a_large_point_cloud_is_never_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, n = count_pairs(monkeypatch), 20_000
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(0))
    found = knn(x, CloudSizes((n,)), 8)
    assert max(compared) <= knn_module.MAX_PAIRS and sum(compared) < n * n / 50
    compared.clear()
    assert torch.equal(knn_grid(x, x, 8, 2**16), found) and max(compared) <= 2**16
    some = torch.arange(0, n, 997)
    assert torch.equal(found[some], knn(x, CloudSizes((n,)), 8, x[some], CloudSizes((len(some),))))


def test_a_tree_proves_most_neighbors_and_leaves_ties_to_the_cells() -> None:
    pytest.importorskip("scipy")
    for kind, least, most in (("spread", 0.9, 1.0), ("grid", 0.0, 0.5)):
        x = points(1500, kind).float()
        found = torch.full((1500, 8), -1)
        proven = knn_module._search_tree(x, x, 8, found)
        assert least <= float(proven.float().mean()) <= most
        assert torch.equal(found[proven], _all_pairs(x, 8)[proven])


@kinds
@dtypes
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize(("rate", "least"), [(2, 2**14), (4, 2**14), (1, 20), (3, 20)])
def test_farthest_points_are_those_of_plain_loops(
    kind: str, dtype: Any, counts: tuple[int, ...], rate: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, or in slices for point clouds of at least 20 points."""
    monkeypatch.setattr("regard.nn.points.packing.SLICED_MIN_POINTS", least)
    monkeypatch.setattr("regard.nn.points.packing.SLICE_SIZE", 16)
    x, packing = points(sum(counts), kind).to(dtype), CloudSizes(counts)
    kept = packing.downsampled(rate)
    assert kept.counts == tuple(max(1, count // rate) for count in counts)
    wanted, first = [], 0
    for own, count in zip(x.split(counts), kept.counts, strict=True):
        wanted += [first + j for j in reference.farthest(own.double().numpy(), count)]
        first += len(own)
    assert farthest_point_sampling(x, packing, kept).tolist() == wanted


# -- interpolation


@kinds
def test_values_are_carried_by_the_inverse_of_the_distance(kind: str) -> None:
    counts, few = (30, 2, 11), (9, 1, 2)
    coarse, fine = points(sum(few), kind), points(sum(counts), kind, 1)
    index, share = knn_interpolation(coarse, CloudSizes(few), fine, CloudSizes(counts))
    assert index.shape == share.shape == (43, 3) and torch.allclose(share.sum(1), torch.ones(43).double())
    row, first = 0, 0
    for many, own in zip(counts, coarse.split(few), strict=True):
        for _ in range(many):
            wanted = {first + j: s for j, s in reference.shares(own.numpy(), fine[row].numpy()).items()}
            got = {int(j): float(s) for j, s in zip(index[row], share[row], strict=True) if s > 0}
            assert got.keys() == {j for j, s in wanted.items() if s > 0}
            assert all(abs(got[j] - wanted[j]) < 1e-12 for j in got)
            row += 1
        first += len(own)


def test_a_point_that_is_there_already_keeps_its_value_and_has_no_gradient() -> None:
    coarse = torch.randn(8, 3, requires_grad=True)
    index, share = knn_interpolation(coarse, CloudSizes((8,)), coarse, CloudSizes((8,)))
    assert not index.requires_grad and not share.requires_grad
    assert index[:, 0].tolist() == list(range(8)) and bool((share[:, 0] > 1 - 1e-6).all())


# -- packing


def test_point_clouds_are_counted_from_their_offsets() -> None:
    starts = torch.tensor([0, 4, 5, 9])
    assert CloudSizes.from_offsets(9, Packing(starts, 16)) == CloudSizes((4, 1, 4))
    assert CloudSizes.from_offsets(12, Packing(torch.tensor([0, 4, 8, 12]), 4)).uniform_size == 4
    assert CloudSizes((4, 1, 4)).cloud_index(starts.device).tolist() == [0] * 4 + [1] + [2] * 4
    assert CloudSizes((4, 1, 4)).starts(starts.device).tolist() == starts.tolist()
    with pytest.raises(RegardError, match="points"):
        CloudSizes.from_offsets(9, Packing(torch.tensor([0, 4, 4, 9]), 9))
    with pytest.raises(ValueError, match="12"):
        CloudSizes.from_offsets(12, Packing(starts, 16))


def test_point_clouds_are_padded_side_by_side_if_little_is_empty() -> None:
    assert list(batch_groups(True, (9, 5, 8))) == [(0, 3)]
    assert list(batch_groups(True, (90, 1, 1))) == [(0, 1), (1, 2), (2, 3)]
    laid = CloudSizes((2, 3)).pad(torch.arange(5.0)[:, None])
    assert laid.shape == (2, 3, 1) and laid[0, :2, 0].tolist() == [0, 1] and laid[1, :, 0].tolist() == [2, 3, 4]
