"""Attention within windows by FlexAttention: window, marked tokens, padding and documents in one compiled kernel (CUDA).

What tiles of 128 x 128 hold anything is counted out by tile, without a table as long and as wide as the row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from regard.nn.bands import Band, conjuncts
from regard.nn.rules import Packed, Same

TILE = 128


def may_look(band: Band, length: int, device: torch.device) -> Callable[..., Tensor]:
    """The rule as the kernel is to be told it: the rows of marked queries are left out, which take another way."""
    window, real = band.window, band.real(length)
    marked = None if band.places() is None or band.marked is None else band.marked.tokens
    numbers = [_numbers(part, length, device) for part in conjuncts(band.rest) if isinstance(part, Packed | Same)]

    def may(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = window(b, h, q, k)
        if marked is not None:
            seen = seen | marked[b, k]
        if real is not None:
            seen = seen & real[b, k]
        for number in numbers:
            seen = seen & (number[b, q] == number[b, k])
        return seen

    return may


def _numbers(part: Packed | Same, length: int, device: torch.device) -> Tensor:
    """(B, L) of the document of each token."""
    if isinstance(part, Same):
        return part.documents
    return part.queries.document(torch.arange(length, device=device))[None]


def tiles(band: Band, rows: int, length: int, device: torch.device) -> BlockMask:
    """Which tiles to compute, and which of these without asking key by key."""
    count = -(-length // TILE)
    first = torch.arange(count, device=device)[:, None] * TILE
    keys, last = first.T, first + TILE - 1
    wide = band.window.dilation if isinstance(band.window.dilation, int) else max(band.window.dilation)
    left, right = band.window.left * wide, band.window.right * wide
    touched = ((keys + TILE - 1 >= first - left) & (keys <= last + right))[None].expand(rows, -1, -1)
    inside = (keys >= last - left) & (keys + TILE - 1 <= first + right) & (keys + TILE <= length)
    if wide > 1 or any(isinstance(part, Packed | Same) for part in conjuncts(band.rest)):
        inside = torch.zeros_like(inside)
    inside = inside[None].expand(rows, -1, -1)
    if band.places() is not None and band.marked is not None:
        touched = touched | _by_tile(band.marked.tokens, count).any(-1)[:, None]
    real = band.real(length)
    if real is not None:
        some = _by_tile(real, count)
        touched, inside = touched & some.any(-1)[:, None], inside & some.all(-1)[:, None]
    parts = [_listed(x[:, None]) for x in (touched & ~inside, touched & inside)]
    return BlockMask.from_kv_blocks(
        *parts[0], *parts[1], BLOCK_SIZE=TILE, mask_mod=may_look(band, length, device), seq_lengths=(length, length)
    )


def _by_tile(marks: Tensor, count: int) -> Tensor:
    return F.pad(marks, (0, count * TILE - marks.shape[1])).view(len(marks), count, TILE)


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles each row of tiles has, and which, those first."""
    return tiles.sum(-1).int(), tiles.int().argsort(dim=-1, descending=True, stable=True).int()


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def flexed(q: Tensor, k: Tensor, v: Tensor, band: Band, scale: float, mask: BlockMask | None = None) -> Tensor:
    """Every query over its window and the marked tokens: (B, H, L, d). `mask`: `tiles`, made once for several layers."""
    if mask is None:
        mask = tiles(band, q.shape[0], q.shape[2], q.device)
    attend = _compiled() if q.is_cuda else flex_attention
    return attend(q, k, v, block_mask=mask, scale=scale)
