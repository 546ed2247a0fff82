"""Exact k-nearest-neighbor search and farthest point sampling on CUDA, as Triton kernels. Imported only if Triton is available.

k-nearest-neighbor search compares all pairs and keeps the best in registers. Each thread has one or two queries and visits
all points of the point cloud in blocks; only points nearer than the current worst neighbor are inserted. Blocks are
visited with a stride, because in spatial order each block would be nearer than the blocks before. Distance and index are
one integer, so the result does not depend on the order. Distances are not stored and nothing synchronizes, so CUDA
graphs can capture the kernel.

Farthest point sampling is one kernel for all steps of a point cloud. Each step depends on the step before, so latency
dominates: points and distances stay in registers, with a single kernel launch. Several programs share a large point
cloud: each publishes its farthest point, and all programs synchronize once per step, which requires a cooperative launch.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# kernel arguments have no Python types

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.table import device_of
from regard.nn.points.packing import CloudSizes

QUERIES_PER_PROGRAM, POINTS_PER_VISIT = 32, 32
VISIT_STRIDE = 1_000_003  # A prime larger than the number of visits, so that each block is visited once.
MAX_NEIGHBORS = 32  # Maximum number of neighbors, limited by registers.
NO_NEIGHBOR, MAX_KEY = tl.constexpr(2**63 - 2**32), tl.constexpr(2**63 - 1)
"""Keys larger than the key of any distance, infinity included; MAX_KEY is the largest."""


@triton.jit
def _knn_kernel(
    places,
    queries,
    starts,
    asking,
    out,
    leap,
    count: tl.constexpr,
    room: tl.constexpr,
    ask: tl.constexpr,
    visit: tl.constexpr,
):
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
    k = min(k, max(sizes.counts))
    points, queries, device = points.contiguous(), queries.contiguous(), points.device
    out = torch.empty((len(queries), k), dtype=torch.int64, device=device)
    grid = (triton.cdiv(max(query_sizes.counts), QUERIES_PER_PROGRAM), len(sizes.counts))
    with device_of(points):
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


def knn_supported(points: Tensor, k: int) -> bool:
    """Whether the points are float32 on CUDA and k fits into registers."""
    return points.is_cuda and points.dtype == torch.float32 and k <= MAX_NEIGHBORS


MAX_UNSHARED_POINTS = 8192
"""Maximum number of points for one program; larger point clouds are shared by several programs."""
MIN_BLOCK, MAX_BLOCK = 2048, 16384  # Minimum and maximum number of points per program of a shared point cloud.


@triton.jit
def _fps_kernel(places, starts, wanted, out, slots, arrived, clouds, block: tl.constexpr, shared: tl.constexpr):
    """`slots`: farthest point of each step, distance and index in one integer; `arrived`: number of programs at each step."""
    cloud, part, parts = clouds + tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    start, end = tl.load(starts + cloud), tl.load(starts + cloud + 1)
    first, last = tl.load(wanted + cloud), tl.load(wanted + cloud + 1)
    at = part * block + tl.arange(0, block)
    real = at < end - start
    row = places + (start + at) * 3
    x, y, z = tl.load(row, mask=real), tl.load(row + 1, mask=real), tl.load(row + 2, mask=real)
    nearest = tl.where(real, float("inf"), -1.0)
    chosen = first.to(tl.int32) * 0
    if part == 0:
        tl.store(out + first, start)
    for step in range(first + 1, last):
        here = places + (start + chosen) * 3
        dx, dy, dz = x - tl.load(here), y - tl.load(here + 1), z - tl.load(here + 2)
        far = dx * dx + dy * dy + dz * dz
        nearest = tl.where(at == chosen, -1.0, tl.minimum(nearest, far))
        top = tl.max(nearest, 0)
        chosen = tl.min(tl.where(nearest == top, at, 2147483647), 0)
        if shared:
            # for equal distances, the lowest index gives the largest integer
            said = (top.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (2147483647 - chosen).to(tl.int64)
            tl.atomic_max(slots + step, said)
            tl.atomic_add(arrived + step, 1)
            while tl.atomic_add(arrived + step, 0) < parts:
                pass
            chosen = 2147483647 - (tl.atomic_max(slots + step, 0) & 4294967295).to(tl.int32)
        if part == 0:
            tl.store(out + step, start + chosen)


def farthest_point_sampling(points: Tensor, sizes: CloudSizes, sample_sizes: CloudSizes) -> Tensor:
    """See nn/points/packing.py."""
    points, device = points.contiguous(), points.device
    starts, wanted = sizes.starts(device), sample_sizes.starts(device)
    out = torch.empty(sum(sample_sizes.counts), dtype=torch.int64, device=device)
    clouds, block, parts = len(sizes.counts), *_program_layout(max(sizes.counts), device)
    slots, arrived = (
        torch.zeros(sum(sample_sizes.counts) if parts > 1 else 1, dtype=kind, device=device)
        for kind in (torch.int64, torch.int32)
    )
    together = clouds if parts == 1 else max(_num_multiprocessors(device) // parts, 1)
    more = {"launch_cooperative_grid": True} if parts > 1 else {}
    with device_of(points):
        for first in range(0, clouds, together):
            _fps_kernel[(min(together, clouds - first), parts)](
                points,
                starts,
                wanted,
                out,
                slots,
                arrived,
                first,
                block=block,
                shared=parts > 1,
                num_warps=min(max(block // 256, 1), 32),
                enable_fp_fusion=False,
                **more,
            )
    return out


def _program_layout(longest: int, device: torch.device) -> tuple[int, int]:
    """Points per program, and programs per point cloud."""
    if longest <= MAX_UNSHARED_POINTS:
        return max(triton.next_power_of_2(longest), 16), 1
    block = MIN_BLOCK
    while triton.cdiv(longest, block) > _num_multiprocessors(device) and block < MAX_BLOCK:
        block *= 2
    return block, triton.cdiv(longest, block)


def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def fps_supported(points: Tensor, sizes: CloudSizes) -> bool:
    """Whether the points are float32 on CUDA and a point cloud fits into the registers of the device."""
    if not points.is_cuda or points.dtype != torch.float32:
        return False
    parts = _program_layout(max(sizes.counts), points.device)[1]
    return parts == 1 or parts <= _num_multiprocessors(points.device)
