"""Rules of windows, read off their form, for the kernels whose cost is linear in the length of a row.

Window(256, 256)                                        everyone and their neighbours
(Window(256, 256) | Global(marked)) & Real(lengths)     Longformer over padded rows
(Window(256, 256) | Global(marked)) & Packed(at, at)    over documents packed into one row
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor

from regard.nn.attention.masks import Both, Causal, Either, Global, Once, Packed, Real, Rule, Same, Window, join, marks
from regard.types import Offsets

LONG = 1024
"""Shorter rows are attended whole under a mask, whatever the window: it costs little."""


@dataclass(frozen=True, eq=False)
class Band:
    """`(window | marked) & rest`, where the rest is which tokens are real and which belong together."""

    window: Window
    marked: Global | None = None
    rest: Rule | None = None

    def places(self) -> tuple[Tensor, Tensor] | None:
        """(B, G) where the marked tokens stand and which of these are there; None: nobody is marked."""
        found = None if self.marked is None else self.marked.places()
        return None if found is None or found[0].shape[1] == 0 else found

    def covers(self, length: int) -> bool:
        """Whether everyone in a row of this length is everyone's neighbour: then nothing is saved."""
        return self.window.dilation == 1 and min(self.window.left, self.window.right) >= length - 1

    def narrow(self, length: int) -> bool:
        """Whether a row is so long that cutting it saves more than it costs."""
        return length >= max(LONG, 2 * (self.window.left + self.window.right + 1))

    def longest(self, length: int) -> int:
        """How far apart at most two tokens of a row of this length are that may see each other, itself counted."""
        packed = [part.queries.longest for part in conjuncts(self.rest) if isinstance(part, Packed)]
        return min([length, *packed])

    def lanes(self, heads: int) -> Iterator[tuple[slice, Window]]:
        """Heads beside each other that step equally wide, and their window."""
        wide = self.window.dilation
        widths = (wide,) * heads if isinstance(wide, int) else wide
        if len(widths) != heads:
            raise ValueError(f"the window has steps for {len(widths)} heads, and there are {heads}")
        for width, run in groupby(range(heads), key=widths.__getitem__):
            lane = list(run)
            yield slice(lane[0], lane[-1] + 1), replace(self.window, dilation=width)

    def real(self, length: int) -> Tensor | None:
        """(B, length) True where a token is real; None: all are."""
        every = [marks(part.tokens, length) for part in conjuncts(self.rest) if isinstance(part, Real)]
        for other in every[1:]:
            every[0] = every[0] & other
        return every[0] if every else None

    def stretches(self) -> Tensor | Offsets | None:
        """What belongs together if it lies together: (B,) lengths of rows, or documents packed into one; None: neither.

        Only where that is all the rest says; rows without a rest have no lengths."""
        found = conjuncts(self.rest)
        if len(found) != 1:
            return None
        only = found[0]
        if isinstance(only, Packed):
            return only.queries
        return only.tokens if isinstance(only, Real) and only.tokens.ndim == 1 else None


def conjuncts(rule: Rule | None) -> list[Rule]:
    """The rules that are joined by `&`."""
    if rule is None:
        return []
    if isinstance(rule, Once):
        return conjuncts(rule.rule)
    return conjuncts(rule.left) + conjuncts(rule.right) if isinstance(rule, Both) else [rule]


def read(rule: Rule | None) -> Band | None:
    """The rule as a band; None: it has another form."""
    windows, causal, rest = [], False, None
    for part in conjuncts(rule):
        if isinstance(part, Window | Either):
            windows.append(part)
        elif isinstance(part, Causal):
            causal = True
        elif _of_tokens(part):
            rest = join(rest, part)
        else:
            return None
    if len(windows) != 1:
        return None
    near = _window(windows[0])
    if near is None or (causal and near[1] is not None):
        return None
    window, marked = near
    return Band(replace(window, right=0) if causal else window, marked, rest)


def _of_tokens(part: Rule) -> bool:
    """Which tokens are real or belong together, on both sides alike: queries and keys are the same tokens."""
    if isinstance(part, Packed):
        return part.queries is part.keys
    return isinstance(part, Real) or (isinstance(part, Same) and part.others is None)


def _window(part: Rule) -> tuple[Window, Global | None] | None:
    if isinstance(part, Window):
        return part, None
    assert isinstance(part, Either)
    for window, marked in ((part.left, part.right), (part.right, part.left)):
        if isinstance(window, Window) and isinstance(marked, Global):
            return window, marked
    return None
