"""The ways to compute an attention within windows, of which the fastest that can is taken.

| way | where | attention dropout | padding | documents | steps wider than 1 |
|---|---|---|---|---|---|
| blocked | any device, any dtype | yes | lengths or marks | yes | yes |
| flash | CUDA, 16 bits | yes | lengths | packed | no |

All are held equal to the rule by tests. A row costs time and memory that are linear in its length.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.nn.kernels import dispatch
from regard.nn.kernels.local_chunked import blocked
from regard.nn.kernels.local_flash import flashed, lies
from regard.nn.kernels.local_pattern import Band

Way = Literal["blocked", "flash"]


def way_for(q: Tensor, band: Band) -> Way:
    half = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16)
    return "flash" if half and lies(band, q.shape[0]) and dispatch.flashes(q) else "blocked"


def near(
    q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0, way: Way | None = None
) -> Tensor:
    """Every query over its window and the marked tokens, each key once: (B, H, L, e). What marked queries see besides is
    not seen here, and rows of padding hold what nobody should read."""
    way = way or way_for(q, band)
    if way == "flash":
        return flashed(q, k, v, band, scale, dropout)
    return blocked(q, k, v, band, scale, dropout)


def far(q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0) -> Tensor:
    """The marked queries, (B, H, G, d) in the order of `Band.places`, over all that is real and theirs: (B, H, G, e)."""
    found = band.places()
    assert found is not None
    return dispatch.sdpa(q, k, v, band.rest, found[0], scale, dropout)


def put(x: Tensor, rows: Tensor, band: Band, real: Tensor | None = None) -> Tensor:
    """x (B, L, D) with `rows` (B, G, D) in the places of the marked tokens, and 0 where a token is not `real`."""
    found = band.places()
    assert found is not None and band.marked is not None
    (places, there), (B, L, D), hidden = found, x.shape, band.marked.tokens
    if real is not None:
        there, hidden = there & real.gather(1, places), hidden | ~real
    flat = (torch.arange(0, B * L, L, device=x.device)[:, None] + places).flatten()
    rows = torch.where(there[:, :, None], rows, 0.0).to(x.dtype)  # those that are not there add nothing
    rest = x.masked_fill(hidden[:, :, None], 0.0).view(B * L, D)
    return rest.index_add_(0, flat, rows.flatten(0, 1)).view(B, L, D)


def banded(
    q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, dropout: float = 0.0, way: Way | None = None
) -> Tensor:
    """The rule itself, where marked queries use the matrices of all: (B, H, L, e)."""
    mixed, found = near(q, k, v, band, scale, dropout, way), band.places()
    if found is None:
        return mixed
    index = found[0][:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
    rows = far(q.gather(2, index), k, v, band, scale, dropout)
    joined = put(mixed.transpose(1, 2).flatten(2), rows.transpose(1, 2).flatten(2), band)
    return joined.view(*joined.shape[:2], q.shape[1], -1).transpose(1, 2)
