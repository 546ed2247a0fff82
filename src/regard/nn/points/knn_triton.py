"""Exact k-nearest-neighbor search on CUDA: a Triton kernel that compares all pairs and keeps the best in registers.

Each thread has one or two queries and visits all points of the point cloud in blocks; only points nearer than the
current worst neighbor are inserted. Blocks are visited with a stride, because in spatial order each block would be
nearer than the blocks before. Distance and index are one integer, so the result does not depend on the order. Distances
are not stored and nothing synchronizes, so CUDA graphs can capture the kernel. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.points.packing import CloudSizes

QUERIES_PER_PROGRAM, POINTS_PER_VISIT = 32, 32
"""Queries per program, and points per visit."""
VISIT_STRIDE = 1_000_003
"""A prime larger than the number of visits, so that each block is visited once."""
MAX_NEIGHBORS = 32
"""Maximum number of neighbors, limited by registers."""
NO_NEIGHBOR, MAX_KEY = tl.constexpr(2**63 - 2**32), tl.constexpr(2**63 - 1)
"""Keys larger than the key of any distance, infinity included; MAX_KEY is the largest."""


@triton.jit
def _knn_kernel(
    places, queries, starts, asking, out, leap, count: tl.constexpr, room: tl.constexpr, ask: tl.constexpr, visit: tl.constexpr
):  # fmt: skip
    cloud = tl.program_id(1)
    begin, end = tl.load(starts + cloud), tl.load(starts + cloud + 1)
    first, last = tl.load(asking + cloud), tl.load(asking + cloud + 1)
    row = first + tl.program_id(0) * ask + tl.arange(0, ask)
    asked = row < last
    if first + tl.program_id(0) * ask < last:
        here = queries + row * 3
        x, y, z = tl.load(here, mask=asked), tl.load(here + 1, mask=asked), tl.load(here + 2, mask=asked)
        slots = tl.arange(0, room)[:, None]
        nobody = tl.zeros((room, ask), tl.int64) + slots + NO_NEIGHBOR
        best = tl.where(slots < count, nobody, -nobody)  # padding slots are never the worst
        worst = tl.max(best, 0)
        total = (end - begin).to(tl.int32)
        turns = (total + visit - 1) // visit
        turn = turns * 0
        for _ in range(turns):
            at = turn * visit + tl.arange(0, visit)
            real = at < total
            there = places + (begin + at) * 3
            dx = tl.load(there, mask=real)[:, None] - x[None, :]
            dy = tl.load(there + 1, mask=real)[:, None] - y[None, :]
            dz = tl.load(there + 2, mask=real)[:, None] - z[None, :]
            far = tl.where(real[:, None], dx * dx + dy * dy + dz * dz, float("inf"))
            limit = (worst >> 32).to(tl.int32)
            if tl.max((tl.min(far, 0).to(tl.int32, bitcast=True) <= limit).to(tl.int32), 0) > 0:
                said = (far.to(tl.int32, bitcast=True).to(tl.int64) << 32) | at.to(tl.int64)[:, None]
                said = tl.where(real[:, None], said, MAX_KEY)
                low = tl.min(said, 0)
                while tl.max((low < worst).to(tl.int32), 0) > 0:
                    best = tl.where((best == worst[None, :]) & (low < worst)[None, :], low[None, :], best)
                    said = tl.where(said == low[None, :], MAX_KEY, said)
                    low, worst = tl.min(said, 0), tl.max(best, 0)
            turn = (turn + leap) % turns
        for place in tl.static_range(room):
            low = tl.min(best, 0)
            best = tl.where(best == low[None, :], MAX_KEY, best)
            if place >= room - count:
                name = tl.where(low >= NO_NEIGHBOR, -1, begin + (low & 4294967295))
                tl.store(out + row * count + place - (room - count), name, mask=asked)


def knn(points: Tensor, queries: Tensor, sizes: CloudSizes, query_sizes: CloudSizes, k: int) -> Tensor:
    """See nn/points/knn.py."""
    k = min(k, sizes.max_size)
    points, queries, device = points.contiguous(), queries.contiguous(), points.device
    out = torch.empty((len(queries), k), dtype=torch.int64, device=device)
    grid = (triton.cdiv(query_sizes.max_size, QUERIES_PER_PROGRAM), len(sizes.counts))
    with torch.cuda.device(device) if points.is_cuda else nullcontext():  # Triton uses the current device
        _knn_kernel[grid](
            points,
            queries,
            sizes.starts(device),
            query_sizes.starts(device),
            out,
            VISIT_STRIDE,
            count=k,
            room=triton.next_power_of_2(k),
            ask=QUERIES_PER_PROGRAM,
            visit=POINTS_PER_VISIT,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out


def is_supported(points: Tensor, k: int) -> bool:
    """Whether the points are float32 on CUDA and k fits into registers."""
    return points.is_cuda and points.dtype == torch.float32 and k <= MAX_NEIGHBORS
