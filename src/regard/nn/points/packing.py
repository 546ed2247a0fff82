"""Packed point clouds of different sizes, squared distances of points, and farthest point sampling.

The points of all point clouds are concatenated. Sizes are Python integers, so that shapes follow without synchronizing
with the device. Shape letters: B point clouds, N points of all point clouds.

The formula |a|² + |b|² - 2 a·b is faster, but loses most digits far from the origin. Here differences are squared and
summed in the order x, y, z, so that all devices and search algorithms compute the same numbers.

Farthest point sampling: each next point has the largest distance to the points already sampled. The first sample is the
first point of the point cloud; ties go to the lowest index, and no point is sampled twice, even if several points have
the same coordinates. A point cloud of n points keeps n // stride of them, and at least one (`CloudSizes.downsampled`),
as in the published code of Point Transformer. No gradients.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import capabilities
from regard.errors import InputError
from regard.types import Packing

MAX_PADDING_FACTOR = 2  # Maximum ratio of padded size to packed size for processing point clouds in one padded batch.
SLICED_MIN_POINTS = 2**14  # Minimum size of point clouds that are sampled separately, in slices, on CPUs.
SLICE_SIZE = 512


@dataclass(frozen=True)
class CloudSizes:
    counts: tuple[int, ...]  # Points of each point cloud, at least one.

    @classmethod
    def from_offsets(cls, num_points: int, offsets: Packing) -> CloudSizes:
        """Sizes from offsets. Reads the offsets from the device only if the point clouds have different sizes."""
        clouds = len(offsets.starts) - 1
        if clouds > 0 and offsets.max_length * clouds == num_points and num_points > 0:
            return cls((offsets.max_length,) * clouds)
        starts = offsets.starts.tolist()
        counts = tuple(after - before for before, after in itertools.pairwise(starts))
        if not counts or starts[0] != 0 or starts[-1] != num_points:
            raise ValueError(
                f"Offsets {starts[:3]} … {starts[-1:]} of the point clouds do not match {num_points} points."
            )
        for number, count in enumerate(counts):
            if count < 1:
                raise InputError(f"Point cloud {number} of the batch has no points. Remove empty point clouds.")
        return cls(counts)

    @property
    def uniform_size(self) -> int:
        """Points per point cloud if all are equal, else 0."""
        return self.counts[0] if all(count == self.counts[0] for count in self.counts) else 0

    def downsampled(self, stride: int) -> CloudSizes:
        """Sizes after keeping one of `stride` points of each point cloud, rounded down, at least one."""
        return CloudSizes(tuple(max(count // stride, 1) for count in self.counts))

    def starts(self, device: torch.device) -> Int[Tensor, "starts"]:
        if self.uniform_size:
            return torch.arange(len(self.counts) + 1, device=device) * self.uniform_size
        return torch.tensor([*itertools.accumulate(self.counts, initial=0)], device=device)

    def sizes(self, device: torch.device) -> Int[Tensor, "B"]:
        if self.uniform_size:
            return torch.full((len(self.counts),), self.uniform_size, device=device)
        return torch.tensor(self.counts, device=device)

    def cloud_index(self, device: torch.device) -> Int[Tensor, "N"]:
        """Point cloud of each point."""
        numbers = torch.arange(len(self.counts), device=device)
        if self.uniform_size:
            return numbers[:, None].expand(-1, self.uniform_size).reshape(-1)
        return numbers.repeat_interleave(self.sizes(device), output_size=sum(self.counts))

    def subset(self, first: int, last: int) -> tuple[CloudSizes, slice]:
        """Sizes of the point clouds first … last - 1, and the rows of their points."""
        before = sum(self.counts[:first])
        part = CloudSizes(self.counts[first:last])
        return part, slice(before, before + sum(part.counts))

    def pad(self, x: Tensor) -> Tensor:
        """(N, …) -> (B, longest, …); padding consists of points of other point clouds."""
        if self.uniform_size:
            return x.view(len(self.counts), self.uniform_size, *x.shape[1:])
        rows = self.starts(x.device)[:-1, None] + torch.arange(max(self.counts), device=x.device)
        return x[rows.clamp_(max=len(x) - 1)]

    def valid_mask(self, device: torch.device) -> Tensor | None:
        """(B, longest) False at padding; None: no padding."""
        return (
            None if self.uniform_size else torch.arange(max(self.counts), device=device) < self.sizes(device)[:, None]
        )


def batch_groups(together: bool, *counts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of point clouds to pad and process together: all, or each separately if not `together`, or if padding would
    exceed MAX_PADDING_FACTOR. `counts`: padded sizes of the point clouds, which are multiplied."""
    clouds, packed = len(counts[0]), sum(map(math.prod, zip(*counts, strict=True)))
    if together and clouds * math.prod(map(max, counts)) <= MAX_PADDING_FACTOR * packed:
        yield 0, clouds
    else:
        yield from ((number, number + 1) for number in range(clouds))


def to_search_dtype(points: Tensor) -> Tensor:
    """Points as float64 if they are float64, else as float32."""
    return points.detach().to(torch.float64 if points.dtype == torch.float64 else torch.float32)


def squared_distance(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    """Squared distances of points given as (x, y, z), with broadcasting."""
    total = (a[0] - b[0]).square_()
    for one, other in zip(a[1:], b[1:], strict=True):
        total += (one - other).square_()
    return total


def smallest_k(
    distances: Float[Tensor, "*rows n"], k: int, indices: Int[Tensor, "*#rows n"]
) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """The k smallest distances of each row, ascending, and their indices; ties are ordered by index.

    Distances are not negative, so their bits have the same order: bits and index form one integer key, and all keys differ."""
    if distances.dtype == torch.float64:  # no spare bits for the index
        indices = indices.expand_as(distances)
        indices, order = indices.sort(-1)
        found, again = distances.gather(-1, order).sort(dim=-1, stable=True)
        return found[..., :k], indices.gather(-1, again[..., :k])
    keys = distances.contiguous().view(torch.int32).to(torch.int64).bitwise_left_shift_(32).bitwise_or_(indices)
    best = keys.topk(k, largest=False).values
    return (best >> 32).to(torch.int32).view(torch.float32), best & (2**32 - 1)


def lexicographic_order(x: Float[Tensor, "N C"]) -> Int[Tensor, "N"]:
    """Order of the rows, sorted by the first column, then by the second, …; equal rows keep their order."""
    order = torch.arange(len(x), device=x.device)
    for column in reversed(x.unbind(-1)):
        order = order[column[order].argsort(stable=True)]
    return order


# -- farthest point sampling


def farthest_point_sampling(
    points: Float[Tensor, "N 3"], sizes: CloudSizes, sample_sizes: CloudSizes
) -> Int[Tensor, "M"]:
    """Indices of the sampled points, per point cloud in the order of sampling."""
    choose = _fps_op if torch.compiler.is_compiling() else torch.no_grad()(_fps)  # compiled graphs need the operator
    return choose(to_search_dtype(points), list(sizes.counts), list(sample_sizes.counts))


def _fps(places: Tensor, counts: list[int], kept: list[int]) -> Tensor:
    packing, wanted = CloudSizes(tuple(counts)), CloudSizes(tuple(kept))
    if places.is_cuda and capabilities.is_available("triton"):
        from regard.nn.points import triton_kernels

        if triton_kernels.fps_supported(places, packing):
            return triton_kernels.farthest_point_sampling(places, packing, wanted)
    samples = _empty_samples(places, counts, kept)
    separately = not places.is_cuda and max(packing.counts) >= SLICED_MIN_POINTS
    for first, last in batch_groups(not separately, packing.counts):
        (some, rows), (few, chosen) = packing.subset(first, last), wanted.subset(first, last)
        if not places.is_cuda and max(some.counts) >= SLICED_MIN_POINTS:
            samples[chosen] = _fps_sliced(places[rows], max(few.counts)) + rows.start
        else:
            samples[chosen] = _fps_padded(places[rows], some, few) + rows.start
    return samples


def _empty_samples(places: Tensor, counts: list[int], kept: list[int]) -> Tensor:
    return places.new_empty((sum(kept),), dtype=torch.int64)


_fps_op = torch.library.custom_op("regard::spread", _fps, mutates_args=())
_fps_op.register_fake(_empty_samples)


def _fps_padded(places: Tensor, packing: CloudSizes, kept: CloudSizes) -> Tensor:
    """Sample all point clouds in parallel, up to the largest sample; surplus samples are dropped."""
    axes, real = packing.pad(places).unbind(-1), packing.valid_mask(places.device)
    axes = tuple(axis.contiguous() for axis in axes)
    nearest = torch.full_like(axes[0], torch.inf)
    if real is not None:  # padding is never farthest
        nearest.masked_fill_(~real, -1.0)
    last = torch.zeros((len(packing.counts), 1), dtype=torch.int64, device=places.device)
    chosen = [last]
    for _ in range(max(kept.counts) - 1):
        here = tuple(axis.gather(1, last) for axis in axes)
        torch.minimum(nearest, squared_distance(axes, here), out=nearest).scatter_(1, last, -1.0)
        last = nearest.argmax(1, keepdim=True)
        chosen.append(last)
    samples = torch.cat(chosen, 1) + packing.starts(places.device)[:-1, None]
    wanted = kept.valid_mask(places.device)
    return samples.flatten() if wanted is None else samples[wanted]


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
