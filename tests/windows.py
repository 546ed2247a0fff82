"""Rules of windows of every form, and the attention that they mean, written out."""

from __future__ import annotations

import torch
from torch import Tensor

from oracle import grads, near, noise
from regard.nn.attention.masks import Causal, Global, Once, Packed, Real, Rule, Same, Window
from regard.nn.kernels import dispatch
from regard.nn.kernels.local_pattern import Band, read
from regard.types import Offsets

H, L = 3, 37


def marked(*places: list[int]) -> Tensor:
    """One row for each list of places."""
    marks = torch.zeros(len(places), L, dtype=torch.bool)
    for row, own in enumerate(places):
        marks[row, own] = True
    return marks


HOLES = torch.rand(2, L, generator=torch.Generator().manual_seed(5)) < 0.7
OFFSETS = Offsets(torch.tensor([0, 10, 10, 25, 26, L]), 15)
PACKED = Packed(OFFSETS, OFFSETS)
NUMBERS = torch.arange(L)[None] // torch.tensor([[9], [14]])
SOME = marked([0, 20, 36], [3])
NONE, ALL = marked([], []), torch.ones(2, L, dtype=torch.bool)
LENGTHS = torch.tensor([30, L])

CASES: dict[str, tuple[int, Rule]] = {
    "window": (2, Window(4, 4)),
    "itself only": (2, Window(0, 0)),
    "uneven": (1, Window(2, 7)),
    "back only": (2, Causal() & Window(5, 3)),
    "ahead only": (1, Window(0, 6)),
    "longer than the row": (2, Window(50, 40)),
    "dilated": (2, Window(2, 3, 3)),
    "dilated beyond the row": (1, Window(1, 1, 50)),
    "heads apart": (2, Window(2, 3, (1, 4, 4))),
    "lengths": (2, Window(3, 3) & Real(LENGTHS)),
    "a row of padding": (2, Window(3, 3) & Real(torch.tensor([0, 9]))),
    "holes": (2, Real(HOLES) & Window(2, 1)),
    "packed": (1, Window(4, 4) & PACKED),
    "numbered": (2, Window(4, 4) & Same(NUMBERS)),
    "marked": (2, Window(2, 3) | Global(SOME)),
    "marked, counted before": (2, Global(SOME, most=8) | Window(2, 3)),
    "nobody marked": (2, Window(2, 3) | Global(NONE)),
    "nobody marked, counted before": (2, Window(2, 3) | Global(NONE, most=4)),
    "all marked": (2, Window(2, 3) | Global(ALL)),
    "marked in a window longer than the row": (2, Window(50, 50) | Global(SOME)),
    "marked, heads apart": (2, Window(2, 3, (3, 1, 2)) | Global(SOME)),
    "marked, lengths": (2, Once((Window(2, 3) | Global(SOME)) & Real(LENGTHS))),
    "marked, holes": (2, (Window(1, 3) | Global(SOME)) & Real(HOLES)),
    "marked, packed": (1, (Window(2, 3) | Global(marked([0, 10, 14, 26]))) & PACKED),
    "marked, numbered": (2, (Window(2, 3) | Global(SOME)) & Same(NUMBERS) & Real(HOLES)),
}


def band_of(rule: Rule) -> Band:
    band = read(rule)
    assert band is not None
    return band


class Columns(Rule):
    """The rule without what marked queries see besides."""

    def __init__(self, band: Band) -> None:
        self.band = band

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = self.band.window(b, h, q, k)
        if self.band.marked is not None:
            seen = seen | self.band.marked.tokens[b, k]
        return seen if self.band.rest is None else seen & self.band.rest(b, h, q, k)


def leaves(rows: int, width: int = 4, length: int = L) -> list[Tensor]:
    return [noise(rows, H, length, width, seed=n).requires_grad_() for n in range(3)]


def written_out(q: Tensor, k: Tensor, v: Tensor, rule: Rule, scale: float = 0.7) -> tuple[Tensor, Tensor]:
    return dispatch.plain(q, k, v, dispatch.allowed(q, k, rule, None), scale)


def same_with_gradients(ours: Tensor, right: Tensor, given: list[Tensor]) -> None:
    near(ours, right)
    for one, other in zip(grads(ours, given), grads(right, given), strict=True):
        near(one, other)
