"""Nearest neighbours on CUDA: a Triton kernel that compares each with each, exactly, and keeps the best in registers.

A thread has one query (or two) and goes through all points of its cloud, some at a time; only where one of them is nearer than
the worst that a query has, it is put in its place. Points are visited in leaps: in an order by place every one would be nearer
than those before. Distance and index are one number, so the order of visits means nothing. No distance is ever written down,
and nothing is waited for: a recording can hold it. Imported only where Triton is.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# the arguments of a kernel are pointers and numbers of Triton's own language

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.points.packing import Packing

ASK, VISIT = 32, 32
"""queries of a program, and points that they visit at a time"""
LEAP = 1_000_003
"""a prime above the number of visits: so each comes once"""
MOST = 32
"""neighbours that registers have room for"""
NOBODY, LAST = tl.constexpr(2**63 - 2**32), tl.constexpr(2**63 - 1)
"""behind a distance of infinity; and behind that"""


@triton.jit
def _visits(
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
        nobody = tl.zeros((room, ask), tl.int64) + slots + NOBODY
        best = tl.where(slots < count, nobody, -nobody)  # slots that only make a power of two are never the worst
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
                said = tl.where(real[:, None], said, LAST)
                low = tl.min(said, 0)
                while tl.max((low < worst).to(tl.int32), 0) > 0:
                    best = tl.where((best == worst[None, :]) & (low < worst)[None, :], low[None, :], best)
                    said = tl.where(said == low[None, :], LAST, said)
                    low, worst = tl.min(said, 0), tl.max(best, 0)
            turn = (turn + leap) % turns
        for place in tl.static_range(room):
            low = tl.min(best, 0)
            best = tl.where(best == low[None, :], LAST, best)
            if place >= room - count:
                name = tl.where(low >= NOBODY, -1, begin + (low & 4294967295))
                tl.store(out + row * count + place - (room - count), name, mask=asked)


def nearest(places: Tensor, queries: Tensor, packing: Packing, asking: Packing, count: int) -> Tensor:
    """As nn/points/knn.py says it."""
    count = min(count, packing.longest)
    places, queries, device = places.contiguous(), queries.contiguous(), places.device
    out = torch.empty((len(queries), count), dtype=torch.int64, device=device)
    grid = (triton.cdiv(asking.longest, ASK), len(packing.counts))
    with torch.cuda.device(device) if places.is_cuda else nullcontext():  # Triton launches on the current one
        _visits[grid](
            places, queries, packing.starts(device), asking.starts(device), out, LEAP, count=count,
            room=triton.next_power_of_2(count), ask=ASK, visit=VISIT, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def serves(places: Tensor, count: int) -> bool:
    """Distances are float32 there."""
    return places.is_cuda and places.dtype == torch.float32 and count <= MOST
