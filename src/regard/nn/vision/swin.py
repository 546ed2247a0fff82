"""Shifted-window attention (Liu et al. 2021): attention within windows of a grid, shifted in every second block.

Tokens are a sequence (B, h·w, D), row by row. The windows of a grid become the rows of attention, (B·N, M, D). A block with a
shift rolls the grid first, so that its windows cross the borders of the windows before; pairs that are adjacent only because
of the roll are masked. `SwinBody` has stages of such blocks, each with half the resolution and twice the width.

Shape letters: B images, L tokens of a grid, N windows of an image, M tokens of a window, H heads, D width, d head width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import KVCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.relative_positions import AttentionPosition, BoundPosition, PositionIds
from regard.nn.blocks.block import Residual, Stack
from regard.nn.blocks.norm import LayerNorm
from regard.nn.kernels.linear import Linear
from regard.nn.recording import AttentionRecorder, recorded
from regard.nn.vision.patches import PatchEmbedding
from regard.types import Batch, Body, BodyOutput


class WindowGrid(NamedTuple):
    """A grid split into `window` x `window` windows: zero-padded at the bottom and right, then rolled up and left by
    `shift`."""

    height: int
    width: int
    window: int
    shift: int

    @classmethod
    def create(cls, height: int, width: int, window: int, shift: int) -> WindowGrid:
        """For a grid no larger than a window: no shift, and the window size is the shorter side."""
        least = min(height, width)
        return cls(height, width, least, 0) if least <= window else cls(height, width, window, shift)

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

    def token_index(self, device: torch.device) -> Int[Tensor, "N M"]:
        """Grid index of the tokens of each window, counted row by row; -1 for padding."""
        return self.partition(torch.arange(1, self.height * self.width + 1, device=device)[None, :, None])[..., 0] - 1

    def blocked(self, device: torch.device) -> Bool[Tensor, "N M M"]:
        """Pairs that are adjacent only because of the roll: the first `shift` rows or columns with the other end."""
        rows, columns = (torch.arange(n, device=device) < self.shift for n in (self.padded.height, self.padded.width))
        region = self.padded.partition((2 * rows[:, None] + columns.long()).view(1, -1, 1))[..., 0]
        return region[:, :, None] != region[:, None, :]


def relative_index(window: int, max_window: int, device: torch.device) -> Int[Tensor, "M M"]:
    """Row of the table of (2 · max_window - 1)² offsets for each query and key of a window: query - key, rows first."""
    at = torch.arange(window, device=device)
    row, column = at.repeat_interleave(window), at.repeat(window)
    apart = row[:, None] - row, column[:, None] - column
    return (apart[0] + max_window - 1) * (2 * max_window - 1) + apart[1] + max_window - 1


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


class GridPositionIds(PositionIds):
    """Positions of tokens in a grid, row by row."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width


class RelativePositionBias(AttentionPosition):
    """Bias per head and offset (rows, columns) between the tokens of a window; also defines the windows.

    Grids smaller than a window use the center of the table."""

    has_bias = True
    no_weight_decay = ("table.weight",)

    def __init__(self, heads: int, window: int, shift: int = 0) -> None:
        super().__init__()
        if not 0 <= shift < window:
            raise ValueError(f"shift must be between 0 and window - 1 ({window - 1}), got {shift}.")
        self.heads, self.window, self.shift = heads, window, shift
        self.table = nn.Embedding((2 * window - 1) ** 2, heads)
        nn.init.trunc_normal_(self.table.weight, std=0.02)

    def check(self, heads: int, head_width: int) -> None:
        if heads != self.heads:
            raise ValueError(f"RelativePositionBias has {self.heads} heads, but the attention has {heads}.")

    def window_grid(self, position_ids: PositionIds) -> WindowGrid:
        if not isinstance(position_ids, GridPositionIds):
            raise ValueError(
                "Shifted-window attention requires the grid size as position_ids: GridPositionIds(height, width)."
            )
        return WindowGrid.create(position_ids.height, position_ids.width, self.window, self.shift)

    def bias(
        self, q: Float[Tensor, "B H Q d"], keys: int, scale: float, position_ids: PositionIds
    ) -> Float[Tensor, "B_or_1 H Q_or_1 K"]:
        """One bias for all windows, or with a shift one per row, with the lowest value at masked keys."""
        tiles = self.window_grid(position_ids)
        rows = cached_constant(relative_index, tiles.window, self.window, device=q.device)
        bias = self.table(rows).movedim(-1, 0)[None].to(q.dtype)
        if not tiles.shift:
            return bias.contiguous()
        hidden = position_ids.memoize((), (tiles,), lambda: cached_constant(WindowGrid.blocked, tiles, device=q.device))
        bias = bias.masked_fill(hidden[:, None], torch.finfo(bias.dtype).min / 2)
        return bias.repeat(q.shape[0] // len(hidden), 1, 1, 1)


class ShiftedWindowAttention(Attention):
    """Attention within windows, which `position` defines."""

    @recorded
    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *, mask: AttentionMask | None = None,
        cache: KVCache | None = None, at: Int[Tensor, "..."] | None = None, record: AttentionRecorder | None = None,
        position: BoundPosition | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        if position is None or not isinstance(position.position, RelativePositionBias):
            raise ValueError(
                "Shifted-window attention requires a RelativePositionBias as position, which defines the windows."
            )
        if context is not None or cache is not None or at is not None or mask is not None:
            raise ValueError("Shifted-window attention does not support context, cache, at or mask.")
        tiles = position.position.window_grid(position.position_ids)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # before partitioning: half as many bytes are moved
        q, k, v = self.project(tiles.partition(x))
        mixed = (
            self.attend(q, k, v, position=position)
            if record is None
            else self._attend_recorded(q, k, v, position, tiles, record)
        )
        return tiles.reverse(self.out(mixed.transpose(1, 2).flatten(2)))

    def _attend_recorded(
        self, q: Float[Tensor, "R H M d"], k: Float[Tensor, "R H M d"], v: Float[Tensor, "R H M d"], inside: BoundPosition,
        tiles: WindowGrid, seen: AttentionRecorder,
    ) -> Float[Tensor, "R H M d"]:  # fmt: skip
        """Attention with recorded weights (B, H, N·M, M), per image instead of per window, in the autograd graph.
        Padding tokens are attended to as well: their key index is -1, their weight is not 0."""
        places, scale = tiles.token_index(q.device), self.scale
        (N, M), H = places.shape, self.heads
        scores = (q * scale) @ k.transpose(-2, -1) + inside.bias(q, M, scale)  # type: ignore[operator]
        weights = scores.view(-1, N, H, M, M).transpose(1, 2).flatten(2, 3).softmax(-1).to(v.dtype)
        weights = seen(weights, places.repeat_interleave(M, 0)[None, None], places.view(1, -1).expand(len(weights), -1))
        used = F.dropout(weights, self.dropout, self.training).view(-1, H, N, M, M)
        return used.transpose(1, 2).flatten(0, 1) @ v


class PatchMerging(nn.Module):
    """Merge 2 x 2 tokens into one of twice the width, in the order top left, bottom left, top right, bottom right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = LayerNorm(4 * width), Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Float[Tensor, "B L D"], height: int, width: int) -> Float[Tensor, "B K E"]:
        whole = WindowGrid(height, width, 2, 0)
        (B, _, D), (down, across) = x.shape, whole.num_windows
        near = whole.partition(x).view(B, down * across, 2, 2, D)
        return self.reduce(self.norm(near.transpose(2, 3).flatten(2)))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, drops x for random samples and rescales the others."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        if not 0 <= drop_prob < 1:
            raise ValueError(f"drop_prob must be in [0, 1), got {drop_prob}.")
        self.drop_prob = drop_prob

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        if not self.training or not self.drop_prob:
            return x
        stays = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)
        return x * stays.div_(1 - self.drop_prob)


def add_drop_path(residual: Residual, drop_prob: float) -> Residual:
    """Insert stochastic depth into a residual branch: training skips the branch at random."""
    residual.dropout = nn.Sequential(residual.dropout, DropPath(drop_prob))  # type: ignore[assignment]
    return residual


class SwinBody(Body):
    """`first`: norm of the patches; `norm`: norm of the final states, whose mean is `pooled`. Taps are feature maps (B,
    C, h, w) after the given stages, before merging."""

    def __init__(
        self,
        patches: PatchEmbedding,
        first: LayerNorm,
        stages: Iterable[Stack],
        merges: Iterable[PatchMerging],
        norm: LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches, self.first, self.norm = patches, first, norm
        self.stages, self.merges = nn.ModuleList(stages), nn.ModuleList(merges)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch, taps: Sequence[int] = ()) -> BodyOutput:
        x, (height, width) = self.embed(batch.inputs)
        found: dict[int, Tensor] = {}
        for number, stage in enumerate(self.stages):
            if number:
                x = self.merges[number - 1](x, height, width)
                height, width = -(-height // 2), -(-width // 2)
            x, _ = stage(x, position_ids=GridPositionIds(height, width))
            if number in taps:
                found[number] = x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        sequence = self.norm(x)
        return BodyOutput(sequence, sequence.mean(1), tuple(found[number] for number in taps))

    def unused_modules(self, taps: Sequence[int]) -> list[nn.Module]:
        """Modules that are not needed for the given taps."""
        return [*self.merges[max(taps) :], *self.stages[max(taps) + 1 :], self.norm]

    def truncate(self, tap: int) -> None:
        """Remove all modules after the tap."""
        del self.merges[tap:], self.stages[tap + 1 :]
        self.norm = nn.Identity()  # type: ignore[assignment]

    def embed(self, x: Float[Tensor, "..."]) -> tuple[Float[Tensor, "B L D"], tuple[int, int]]:
        """Tokens of images (B, C, H, W), and the number of rows and columns; images are zero-padded at the bottom and
        right to multiples of the patch size."""
        if x.ndim != 4 or x.shape[1] != self.patches.channels or not x.shape[2] * x.shape[3]:
            raise RegardError(
                "Expected images of shape (batch, channels, height, width) with "
                f"{self.patches.channels} channels, got {tuple(x.shape)}."
            )
        below, right = (-n % self.patches.patch for n in x.shape[2:])
        x = F.pad(x, (0, right, 0, below)) if below or right else x
        x, grid = self.patches(x.to(self.patches.weight.dtype))
        x = self.first(x)
        if x.is_cuda and torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))  # 16-bit states between the blocks, too
        return self.dropout(x), grid


def init_swin_weights(body: SwinBody) -> SwinBody:
    """Initialize as Swin: weights and tables truncated N(0, 0.02), biases 0. Patch embeddings keep their larger
    default, because a norm follows."""
    for module in body.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return body
