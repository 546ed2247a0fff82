"""Sliding-window masks of all forms, and naive attention with the same masks."""

from __future__ import annotations

import torch
from torch import Tensor

from oracle import noise
from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
)
from regard.nn.kernels import dispatch, local_attention
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.local_attention import LocalCall, LocalPattern, parse_pattern
from regard.types import Packing

H, L = 3, 37


def marked(*places: list[int]) -> Tensor:
    """Bool mask with one row per list of positions."""
    marks = torch.zeros(len(places), L, dtype=torch.bool)
    for row, own in enumerate(places):
        marks[row, own] = True
    return marks


HOLES = torch.rand(2, L, generator=torch.Generator().manual_seed(5)) < 0.7
OFFSETS = Packing(torch.tensor([0, 10, 10, 25, 26, L]), 15)
PACKED = PackedDocuments(OFFSETS, OFFSETS)
SOME = marked([0, 20, 36], [3])
NONE, ALL = marked([], []), torch.ones(2, L, dtype=torch.bool)
LENGTHS = torch.tensor([30, L])

CASES: dict[str, tuple[int, AttentionMask]] = {
    "window": (2, SlidingWindow(4, 4)), "itself only": (2, SlidingWindow(0, 0)), "uneven": (1, SlidingWindow(2, 7)),
    "back only": (2, Causal() & SlidingWindow(5, 3)), "ahead only": (1, SlidingWindow(0, 6)),
    "longer than the row": (2, SlidingWindow(50, 40)), "dilated": (2, SlidingWindow(2, 3, 3)),
    "dilated beyond the row": (1, SlidingWindow(1, 1, 50)), "heads apart": (2, SlidingWindow(2, 3, (1, 4, 4))),
    "lengths": (2, SlidingWindow(3, 3) & Padding(LENGTHS)),
    "a row of padding": (2, SlidingWindow(3, 3) & Padding(torch.tensor([0, 9]))),
    "holes": (2, Padding(HOLES) & SlidingWindow(2, 1)), "packed": (1, SlidingWindow(4, 4) & PACKED),
    "marked": (2, SlidingWindow(2, 3) | GlobalTokens(SOME)),
    "marked, counted before": (2, GlobalTokens(SOME, max_count=8) | SlidingWindow(2, 3)),
    "nobody marked": (2, SlidingWindow(2, 3) | GlobalTokens(NONE)),
    "nobody marked, counted before": (2, SlidingWindow(2, 3) | GlobalTokens(NONE, max_count=4)),
    "all marked": (2, SlidingWindow(2, 3) | GlobalTokens(ALL)),
    "marked in a window longer than the row": (2, SlidingWindow(50, 50) | GlobalTokens(SOME)),
    "marked, heads apart": (2, SlidingWindow(2, 3, (3, 1, 2)) | GlobalTokens(SOME)),
    "marked, lengths": (2, Memoized((SlidingWindow(2, 3) | GlobalTokens(SOME)) & Padding(LENGTHS))),
    "marked, holes": (2, (SlidingWindow(1, 3) | GlobalTokens(SOME)) & Padding(HOLES)),
    "marked, packed": (1, (SlidingWindow(2, 3) | GlobalTokens(marked([0, 10, 14, 26]))) & PACKED),
    "marked, packed, holes": (1, (SlidingWindow(2, 3) | GlobalTokens(SOME[:1])) & PACKED & Padding(HOLES[:1])),
}  # fmt: skip


def band_of(rule: AttentionMask) -> LocalPattern:
    band = parse_pattern(rule)
    assert band is not None
    return band


class Columns(AttentionMask):
    """The mask without the additional keys of global queries."""

    def __init__(self, band: LocalPattern) -> None:
        self.band = band

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = self.band.window(b, h, q, k)
        if self.band.global_tokens is not None:
            seen = seen | self.band.global_tokens.tokens[b, k]
        return seen if self.band.token_mask is None else seen & self.band.token_mask(b, h, q, k)


def leaves(rows: int, width: int = 4, length: int = L) -> list[Tensor]:
    return [noise(rows, H, length, width, seed=n).requires_grad_() for n in range(3)]


def attend_local_global(q: Tensor, k: Tensor, v: Tensor, band: LocalPattern, scale: float) -> Tensor:
    """Local attention with the rows of the global tokens replaced, all from the same queries and keys: (B, H, L, e)."""
    mixed, found = local_attention.local_attention(LocalCall(q, k, v, band, scale)), band.global_positions()
    if found is None:
        return mixed
    index = found[0][:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
    rows = dispatch.attend(AttentionCall(q.gather(2, index), k, v, scale, band.token_mask, found[0]))
    joined = local_attention.scatter_global_rows(
        mixed.transpose(1, 2).flatten(2), rows.transpose(1, 2).flatten(2), band
    )
    return joined.view(*joined.shape[:2], q.shape[1], -1).transpose(1, 2)


def written_out(q: Tensor, k: Tensor, v: Tensor, rule: AttentionMask, scale: float = 0.7) -> tuple[Tensor, Tensor]:
    return dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), scale)
