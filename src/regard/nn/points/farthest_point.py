"""Farthest point sampling: each next point has the largest distance to the points already sampled.

The first sample is the first point of the point cloud; ties go to the lowest index, and no point is sampled twice, even
if several points have the same coordinates. A point cloud of n points keeps n // stride of them, and at least one
(`CloudSizes.downsampled`), as in the published code of Point Transformer. All implementations return the same points,
because they share the distances of nn/points/packing.py. No gradients.

Shape letters: N points, M sampled points, B point clouds.
"""

from __future__ import annotations

import bisect

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import capabilities
from regard.nn.points.packing import CloudSizes, squared_distance, to_search_dtype

SLICED_MIN_POINTS = 2**14
"""Minimum size of point clouds that are sampled separately, in slices, on CPUs."""
SLICE_SIZE = 512
"""Points per slice."""


def farthest_point_sampling(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, sample_sizes: CloudSizes
) -> Int[Tensor, "M"]:
    """Indices of the sampled points, per point cloud in the order of sampling."""
    for count, most in zip(sample_sizes.counts, sizes.counts, strict=True):
        if not 0 < count <= most:
            raise ValueError(f"The sample size must be between 1 and {most} points, got {count}.")
    choose = _fps_op if torch.compiler.is_compiling() else torch.no_grad()(_fps)  # compiled graphs need the operator
    return choose(to_search_dtype(points), list(sizes.counts), list(sample_sizes.counts))


def _fps(places: Tensor, counts: list[int], kept: list[int]) -> Tensor:
    packing, wanted = CloudSizes(tuple(counts)), CloudSizes(tuple(kept))
    if places.is_cuda and capabilities.is_available("triton"):
        from regard.nn.points import triton_kernels

        if triton_kernels.fps_supported(places, packing):
            return triton_kernels.farthest_point_sampling(places, packing, wanted)
    found = _empty_output(places, counts, kept)
    alone = not places.is_cuda and packing.max_size >= SLICED_MIN_POINTS
    for first, last in ((n, n + 1) for n in range(len(counts))) if alone else packing.batch_groups():
        (some, rows), (few, chosen) = packing.subset(first, last), wanted.subset(first, last)
        if not places.is_cuda and some.max_size >= SLICED_MIN_POINTS:
            found[chosen] = _fps_sliced(places[rows], few.max_size) + rows.start
        else:
            found[chosen] = _fps_padded(places[rows], some, few) + rows.start
    return found


def _empty_output(places: Tensor, counts: list[int], kept: list[int]) -> Tensor:
    return places.new_empty((sum(kept),), dtype=torch.int64)


_fps_op = torch.library.custom_op(
    "regard::spread", _fps, mutates_args=(), schema="(Tensor places, SymInt[] counts, SymInt[] kept) -> Tensor"
)
_fps_op.register_fake(_empty_output)


def _fps_padded(places: Tensor, packing: CloudSizes, kept: CloudSizes) -> Tensor:
    """Sample all point clouds in parallel, up to the largest sample; surplus samples are dropped."""
    axes, real = packing.pad(places).unbind(-1), packing.valid_mask(places.device)
    axes = tuple(axis.contiguous() for axis in axes)
    nearest = torch.full_like(axes[0], torch.inf)
    if real is not None:  # padding is never farthest
        nearest.masked_fill_(~real, -1.0)
    last = torch.zeros((len(packing.counts), 1), dtype=torch.int64, device=places.device)
    chosen = [last]
    for _ in range(kept.max_size - 1):
        here = tuple(axis.gather(1, last) for axis in axes)
        torch.minimum(nearest, squared_distance(axes, here), out=nearest).scatter_(1, last, -1.0)
        last = nearest.argmax(1, keepdim=True)
        chosen.append(last)
    found = torch.cat(chosen, 1) + packing.starts(places.device)[:-1, None]
    wanted = kept.valid_mask(places.device)
    return found.flatten() if wanted is None else found[wanted]


def _fps_sliced(places: Float[Tensor, "n 3"], kept: int) -> Int[Tensor, "m"]:
    """Sample one large point cloud on CPUs. Points are sorted along the longest axis, so a new sample affects only
    slices within the current maximum distance along that axis: few slices after the first samples.

    Rounding is safe: a rounded distance is never below its rounded component along one axis."""
    axis = int((places.amax(0) - places.amin(0)).argmax())
    names = places[:, axis].argsort(stable=True)
    count = -(-len(places) // SLICE_SIZE)
    # the last slice is padded with points that are never farthest
    names = torch.cat([names, names[-1:].expand(count * SLICE_SIZE - len(names))])
    held = places[names].T.contiguous().view(3, count, SLICE_SIZE)
    begins, ends = held[axis, :, 0].tolist(), held[axis, :, -1].tolist()
    nearest = torch.full((count, SLICE_SIZE), torch.inf, dtype=places.dtype)
    nearest.view(-1)[len(places) :] = -1.0
    where = (
        torch.empty(len(places), dtype=torch.int64)
        .scatter_(0, names[: len(places)], torch.arange(len(places)))
        .tolist()
    )
    names = names.view(count, SLICE_SIZE)
    far, lowest = torch.full((count,), torch.inf, dtype=places.dtype), torch.zeros(count, dtype=torch.int64)
    chosen, most = [0], torch.inf
    while len(chosen) < kept and most > 0:
        here, reach = places[chosen[-1]].tolist(), most**0.5 * (1 + 1e-5)
        first = bisect.bisect_left(ends, here[axis] - reach)
        last = bisect.bisect_right(begins, here[axis] + reach)
        part, before = held[:, first:last], nearest[first:last]
        total = (part[0] - here[0]).square_()
        total += (part[1] - here[1]).square_()
        total += (part[2] - here[2]).square_()
        torch.minimum(before, total, out=before)
        nearest.view(-1)[where[chosen[-1]]] = -1.0
        torch.amax(before, 1, out=far[first:last])
        torch.amin(names[first:last].where(before == far[first:last, None], len(places)), 1, out=lowest[first:last])
        most = float(far.max())
        chosen.append(int(lowest.where(far == most, len(places)).min()))
    if len(chosen) < kept:  # the remaining points are duplicates of sampled points
        left = torch.ones(len(places), dtype=torch.bool)
        left[chosen] = False
        chosen += left.nonzero()[: kept - len(chosen), 0].tolist()
    return torch.tensor(chosen)
