"""Recognition of sliding-window masks, for kernels with linear cost in the length.

SlidingWindow(256, 256)                                                       neighbors only
(SlidingWindow(256, 256) | GlobalTokens(tokens)) & Padding(lengths)           Longformer with padding
(SlidingWindow(256, 256) | GlobalTokens(tokens)) & PackedDocuments(at, at)    Longformer with packed documents
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor

from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    GlobalTokens,
    Or,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    conjuncts,
    valid_mask,
)
from regard.types import Offsets


@dataclass(frozen=True, eq=False)
class LocalPattern:
    """`(window | global_tokens) & token_mask`, where `token_mask` consists of padding and packed documents."""

    window: SlidingWindow
    global_tokens: GlobalTokens | None = None
    token_mask: AttentionMask | None = None

    def global_positions(self) -> tuple[Tensor, Tensor] | None:
        """(B, G) positions of the global tokens and a bool mask of the entries in use; None: no global tokens."""
        found = None if self.global_tokens is None else self.global_tokens.positions()
        return None if found is None or found[0].shape[1] == 0 else found

    def covers(self, length: int) -> bool:
        """Whether the window covers a whole row of this length, so that a local kernel saves nothing."""
        return self.window.dilation == 1 and min(self.window.left, self.window.right) >= length - 1

    def max_span(self, length: int) -> int:
        """Maximum number of tokens of a row that attend to each other: the row, or its longest document."""
        packed = [part.queries.max_length for part in conjuncts(self.token_mask) if isinstance(part, PackedDocuments)]
        return min([length, *packed])

    def head_groups(self, heads: int) -> Iterator[tuple[slice, SlidingWindow]]:
        """Ranges of heads with the same dilation, and their window."""
        wide = self.window.dilation
        widths = (wide,) * heads if isinstance(wide, int) else wide
        if len(widths) != heads:
            raise ValueError(f"The window has dilations for {len(widths)} heads, but the attention has {heads}.")
        for width, run in groupby(range(heads), key=widths.__getitem__):
            lane = list(run)
            yield slice(lane[0], lane[-1] + 1), replace(self.window, dilation=width)

    def valid_tokens(self, length: int) -> Tensor | None:
        """(B, length) False at padding; None: no padding."""
        every = [valid_mask(part.valid, length) for part in conjuncts(self.token_mask) if isinstance(part, Padding)]
        for other in every[1:]:
            every[0] = every[0] & other
        return every[0] if every else None

    def segments(self) -> Tensor | Offsets | None:
        """Contiguous segments of tokens: lengths (B,) of rows, or offsets of packed documents; None: any other mask.

        None also if there is no `token_mask`, because rows without a mask have no lengths."""
        found = conjuncts(self.token_mask)
        if len(found) != 1:
            return None
        only = found[0]
        if isinstance(only, PackedDocuments):
            return only.queries
        return only.valid if isinstance(only, Padding) and only.valid.ndim == 1 else None


def parse_pattern(mask: AttentionMask | None) -> LocalPattern | None:
    """The mask as a LocalPattern; None if the mask has another form."""
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
    """Whether the mask defines padding, or documents that are the same for queries and keys."""
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
