"""Layouts: which tokens form the rows of attention. `gather` arranges the rows before the projection, `scatter` restores
the order of the tokens after it.

None                         a row is a sequence
GridWindows(window, shift)   a row is a window of a grid of tokens (Swin, Liu et al. 2021)

Shape letters: B images, L tokens of a grid, N windows of an image, M tokens of a window, H heads, D width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from regard.nn.attention.masks import AttentionMask, Dense
from regard.nn.attention.positions import PositionIds
from regard.nn.recording import Record


@dataclass(frozen=True)
class GridWindows:
    """Windows of `window` x `window` tokens of a grid, whose size `position_ids` gives (`GridPositionIds`).

    With a shift, the grid is rolled first, so that windows cross the borders of windows without shift; pairs that are
    adjacent only because of the roll are masked. Padding is projected too, as in the published models."""

    window: int
    shift: int = 0

    def grid(self, ids: PositionIds | None) -> WindowGrid:
        if not isinstance(ids, GridPositionIds):
            raise ValueError(
                "GridWindows requires the size of the grid as position_ids: GridPositionIds(height, width)."
            )
        least = min(
            ids.height, ids.width
        )  # for a grid no larger than a window: no shift, and a window of the shorter side
        window, shift = (self.window, self.shift) if least > self.window else (least, 0)
        return WindowGrid(ids.height, ids.width, window, shift)

    def gather(
        self, x: Tensor, mask: AttentionMask | None, record: Record | None, ids: PositionIds | None
    ) -> tuple[Tensor, AttentionMask | None, Record | None]:
        """Tokens in rows of attention, their mask, and the receiver of their weights."""
        if mask is not None:
            raise ValueError("GridWindows does not support a mask.")
        grid = self.grid(ids)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # before partitioning: half as many bytes are moved
        if grid.shift:
            assert ids is not None
            mask = ids.memoize((), (grid,), lambda: Dense(cached_constant(WindowGrid.visible, grid, device=x.device)))
        if record is not None:
            record = functools.partial(grid.record, record)
        return grid.partition(x), mask, record

    def scatter(self, x: Tensor, ids: PositionIds | None) -> Tensor:
        return self.grid(ids).reverse(x)


class GridPositionIds(PositionIds):
    """Positions of tokens in a grid, row by row."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width


class WindowGrid(NamedTuple):
    """A grid split into `window` x `window` windows: zero-padded at the bottom and right, then rolled up and left by
    `shift`."""

    height: int
    width: int
    window: int
    shift: int

    @property
    def num_windows(self) -> tuple[int, int]:
        """Number of rows and columns of windows."""
        return -(-self.height // self.window), -(-self.width // self.window)

    @property
    def padded(self) -> WindowGrid:
        """The grid including padding."""
        down, across = self.num_windows
        return self._replace(height=down * self.window, width=across * self.window)

    def partition(self, x: Shaped[Tensor, "B L D"]) -> Shaped[Tensor, "rows M D"]:
        """Grid -> rows of windows, image by image."""
        (B, _, D), (down, across), whole = x.shape, self.num_windows, self.padded
        x = x.reshape(B, self.height, self.width, D)
        if whole != self:
            x = F.pad(x, (0, 0, 0, whole.width - self.width, 0, whole.height - self.height))
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        return x.view(B, down, self.window, across, self.window, D).transpose(2, 3).reshape(-1, self.window**2, D)

    def reverse(self, x: Shaped[Tensor, "rows M D"]) -> Shaped[Tensor, "B L D"]:
        """Inverse of `partition`."""
        D, (down, across), whole = x.shape[-1], self.num_windows, self.padded
        x = (
            x.view(-1, down, across, self.window, self.window, D)
            .transpose(2, 3)
            .reshape(-1, whole.height, whole.width, D)
        )
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return x[:, : self.height, : self.width].flatten(1, 2)

    def visible(self, device: torch.device) -> Bool[Tensor, "N M M"]:
        """False for pairs that are adjacent only because of the roll: the first `shift` rows or columns with the other
        end."""
        rows, columns = (torch.arange(n, device=device) < self.shift for n in (self.padded.height, self.padded.width))
        region = self.padded.partition((2 * rows[:, None] + columns.long()).view(1, -1, 1))[..., 0]
        return region[:, :, None] == region[:, None, :]

    def record(self, record: Record, weights: Float[Tensor, "rows H M M"]) -> Float[Tensor, "rows H M M"]:
        """Record weights (B, H, N·M, M) per image instead of per window. Padding tokens are attended to as well: their key
        index is -1, their weight is not 0."""
        numbers = torch.arange(1, self.height * self.width + 1, device=weights.device)[None, :, None]
        index = self.partition(numbers)[..., 0] - 1  # (N, M) index in the grid
        (N, M), H = index.shape, weights.shape[1]
        images = weights.view(-1, N, H, M, M).transpose(1, 2).flatten(2, 3)
        keys, queries = index.repeat_interleave(M, 0)[None, None], index.view(1, -1).expand(len(images), -1)
        return record(images, keys, queries).view(-1, H, N, M, M).transpose(1, 2).flatten(0, 1)


@functools.lru_cache(maxsize=64)
def _make_cached(make: Callable[..., Tensor], form: tuple[Any, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a normal tensor, usable in training
        return make(*form, device)


def cached_constant(make: Callable[..., Tensor], *args: Any, device: torch.device) -> Tensor:
    """`make(*args, device)`, cached for all forward passes outside the modules, which have no state. Not cached in
    compiled code, and not during CUDA graph capture, because a graph must own the tensors it reads."""
    if torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return make(*args, device)
    return _make_cached(make, args, device)
