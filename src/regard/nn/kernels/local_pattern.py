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

from regard.nn.attention.masks import (
    And,
    AttentionMask,
    Causal,
    GlobalTokens,
    Memoized,
    Or,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    valid_mask,
)
from regard.types import Offsets


@dataclass(frozen=True, eq=False)
class LocalPattern:
    """`(window | marked) & rest`, where the rest is which tokens are real and which belong together."""

    window: SlidingWindow
    global_tokens: GlobalTokens | None = None
    token_mask: AttentionMask | None = None

    def global_positions(self) -> tuple[Tensor, Tensor] | None:
        """(B, G) where the marked tokens stand and which of these are there; None: nobody is marked."""
        found = None if self.global_tokens is None else self.global_tokens.positions()
        return None if found is None or found[0].shape[1] == 0 else found

    def covers(self, length: int) -> bool:
        """Whether everyone in a row of this length is everyone's neighbour: then nothing is saved."""
        return self.window.dilation == 1 and min(self.window.left, self.window.right) >= length - 1

    def max_span(self, length: int) -> int:
        """How far apart at most two tokens of a row of this length are that may see each other, itself counted."""
        packed = [part.queries.max_length for part in conjuncts(self.token_mask) if isinstance(part, PackedDocuments)]
        return min([length, *packed])

    def head_groups(self, heads: int) -> Iterator[tuple[slice, SlidingWindow]]:
        """Heads beside each other that step equally wide, and their window."""
        wide = self.window.dilation
        widths = (wide,) * heads if isinstance(wide, int) else wide
        if len(widths) != heads:
            raise ValueError(f"The window has dilations for {len(widths)} heads, but the attention has {heads}.")
        for width, run in groupby(range(heads), key=widths.__getitem__):
            lane = list(run)
            yield slice(lane[0], lane[-1] + 1), replace(self.window, dilation=width)

    def valid_tokens(self, length: int) -> Tensor | None:
        """(B, length) True where a token is real; None: all are."""
        every = [valid_mask(part.valid, length) for part in conjuncts(self.token_mask) if isinstance(part, Padding)]
        for other in every[1:]:
            every[0] = every[0] & other
        return every[0] if every else None

    def segments(self) -> Tensor | Offsets | None:
        """What belongs together if it lies together: (B,) lengths of rows, or documents packed into one; None: neither.

        Only where that is all the rest says; rows without a rest have no lengths."""
        found = conjuncts(self.token_mask)
        if len(found) != 1:
            return None
        only = found[0]
        if isinstance(only, PackedDocuments):
            return only.queries
        return only.valid if isinstance(only, Padding) and only.valid.ndim == 1 else None


def conjuncts(mask: AttentionMask | None) -> list[AttentionMask]:
    """The rules that are joined by `&`."""
    if mask is None:
        return []
    if isinstance(mask, Memoized):
        return conjuncts(mask.mask)
    return conjuncts(mask.left) + conjuncts(mask.right) if isinstance(mask, And) else [mask]


def parse_pattern(mask: AttentionMask | None) -> LocalPattern | None:
    """The rule as a band; None: it has another form."""
    windows, causal, rest = [], False, None
    for part in conjuncts(mask):
        if isinstance(part, SlidingWindow | Or):
            windows.append(part)
        elif isinstance(part, Causal):
            causal = True
        elif _is_token_mask(part):
            rest = and_masks(rest, part)
        else:
            return None
    if len(windows) != 1:
        return None
    near = _split_window(windows[0])
    if near is None or (causal and near[1] is not None):
        return None
    window, marked = near
    return LocalPattern(replace(window, right=0) if causal else window, marked, rest)


def _is_token_mask(part: AttentionMask) -> bool:
    """Which tokens are real or belong together, on both sides alike: queries and keys are the same tokens."""
    if isinstance(part, PackedDocuments):
        return part.queries is part.keys
    return isinstance(part, Padding)


def _split_window(part: AttentionMask) -> tuple[SlidingWindow, GlobalTokens | None] | None:
    if isinstance(part, SlidingWindow):
        return part, None
    assert isinstance(part, Or)
    for window, marked in ((part.left, part.right), (part.right, part.left)):
        if isinstance(window, SlidingWindow) and isinstance(marked, GlobalTokens):
            return window, marked
    return None
