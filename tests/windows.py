"""Sliding-window masks of all forms, naive attention with the same masks, and formulas of the flash kernels."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor

from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
)
from regard.nn.kernels import dispatch
from regard.nn.kernels.local_attention import LocalPattern, parse_pattern
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


def written_out(q: Tensor, k: Tensor, v: Tensor, rule: AttentionMask, scale: float = 0.7) -> tuple[Tensor, Tensor]:
    return dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), scale)


def on_gpu(rule: AttentionMask) -> LocalPattern:
    """Copy of a band with its tensors on the GPU; shared objects stay shared."""
    buffer = io.BytesIO()
    torch.save(rule, buffer)
    buffer.seek(0)
    return band_of(torch.load(buffer, map_location="cuda", weights_only=False))


# -- formulas of the flash kernels


def flash_scores(
    q: Tensor, k: Tensor, starts: Tensor, longest: int, *, scale: float, window_size_left: int, window_size_right: int
) -> Tensor:
    """Scores (H, T, T) with every document separate, limited to the window."""
    assert starts.dtype == torch.int32 and int(starts.diff().max()) <= longest
    place = torch.arange(len(q))
    stretch = torch.searchsorted(starts, place.int(), right=True)
    apart = place[None] - place[:, None]
    may = (stretch[:, None] == stretch[None]) & (apart >= -window_size_left) & (apart <= window_size_right)
    return (torch.einsum("thd,shd->hts", q, k) * scale).masked_fill(~may, -torch.inf)


def flash_kept(scores: Tensor, dropout: float, chance: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int(chance[0]))
    return torch.empty_like(scores).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, _: Tensor, longest: int, __: int, dropout: float, *flags: bool,
    **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scores, chance = flash_scores(q, k, starts, longest, **how), torch.randint(2**40, (2,)).to(torch.uint64)
    mixed = torch.einsum("hts,shd->thd", scores.softmax(-1) * flash_kept(scores, dropout, chance), v)
    return mixed, scores.logsumexp(-1), chance


def flash_backward(
    told: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, starts: Tensor, _: Tensor, longest: int,
    __: int, dropout: float, causal: bool, chance: Tensor, unused: Tensor, **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Backward pass as in the kernel: from the given output and log-sum-exp, without recomputed sums."""
    scores = flash_scores(q, k, starts, longest, **how)
    weights, kept = (scores - lse[..., None]).exp(), flash_kept(scores, dropout, chance)
    own = (told * out).sum(-1).T[..., None]
    d_scores = weights * (torch.einsum("thd,shd->hts", told, v) * kept - own) * how["scale"]
    pairs = (d_scores, "hts,shd->thd", k), (d_scores, "hts,thd->shd", q), (weights * kept, "hts,thd->shd", told)
    dq, dk, dv = (torch.einsum(form, x, y) for x, form, y in pairs)
    return dq, dk, dv
