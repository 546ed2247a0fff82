"""Parts of Swin (Liu et al. 2021): relative positions within windows, merging of patches, and stages of blocks.

Attention has the layout `GridWindows` (nn/attention/layouts.py), shifted in every second block. `SwinBody` has stages of
such blocks, each with half the resolution and twice the width; tokens are a sequence (B, h·w, D), row by row.

Shape letters: B images, L tokens of a grid, M tokens of a window, H heads, D width, d head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention.layouts import GridPositionIds, WindowGrid, cached_constant
from regard.nn.attention.positions import AttentionPosition, BoundPosition
from regard.nn.blocks.block import Stack, to_autocast_dtype
from regard.nn.kernels.linear import Linear
from regard.nn.recording import keep_state, recorded
from regard.nn.vision.convnet import check_images
from regard.nn.vision.patches import PatchEmbedding
from regard.types import Batch, Body, BodyOutput


def relative_index(window: int, max_window: int, device: torch.device) -> Int[Tensor, "M M"]:
    """Row of the table of (2 · max_window - 1)² offsets for each query and key of a window: query - key, rows first."""
    at = torch.arange(window, device=device)
    row, column = at.repeat_interleave(window), at.repeat(window)
    apart = row[:, None] - row, column[:, None] - column
    return (apart[0] + max_window - 1) * (2 * max_window - 1) + apart[1] + max_window - 1


class RelativePositionBias(AttentionPosition):
    """Bias per head and offset (rows, columns) between the tokens of a window; smaller windows use the center of the
    table."""

    has_bias = True
    no_weight_decay = ("table.weight",)

    def __init__(self, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.table = nn.Embedding((2 * window - 1) ** 2, heads)
        nn.init.trunc_normal_(self.table.weight, std=0.02)

    def bias(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H K d"], scale: float, bound: BoundPosition
    ) -> Float[Tensor, "1 H Q K"]:
        index = cached_constant(relative_index, math.isqrt(q.shape[-2]), self.window, device=q.device)
        return self.table(index).movedim(-1, 0)[None].to(q.dtype).contiguous()


class PatchMerging(nn.Module):
    """Merge 2 x 2 tokens into one of twice the width, in the order top left, bottom left, top right, bottom right."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Float[Tensor, "B L D"], height: int, width: int) -> Float[Tensor, "B K E"]:
        whole = WindowGrid(height, width, 2, 0)
        (B, _, D), (down, across) = x.shape, whole.num_windows
        near = whole.partition(x).view(B, down * across, 2, 2, D)
        return self.reduce(self.norm(near.transpose(2, 3).flatten(2)))


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, drops x for random samples and rescales the others."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Float[Tensor, "B *rest"]) -> Float[Tensor, "B *rest"]:
        if not self.training or not self.drop_prob:
            return x
        stays = x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)
        return x * stays.div_(1 - self.drop_prob)


class SwinBody(Body):
    """`first`: norm of the patches; `norm`: norm of the final states, whose mean is `pooled`. Taps are feature maps (B,
    C, h, w) after the given stages, before merging."""

    def __init__(
        self,
        patches: PatchEmbedding,
        first: nn.LayerNorm,
        stages: Iterable[Stack],
        merges: Iterable[PatchMerging],
        norm: nn.LayerNorm,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches, self.first, self.norm = patches, first, norm
        self.stages, self.merges = nn.ModuleList(stages), nn.ModuleList(merges)
        self.dropout = nn.Dropout(dropout)

    @recorded
    def forward(self, batch: Batch, taps: Sequence[int] = ()) -> BodyOutput:
        x = batch.inputs
        check_images(x, self.patches.channels)
        below, right = (-n % self.patches.patch for n in x.shape[2:])  # zeros up to a multiple of the patch size
        x = F.pad(x, (0, right, 0, below)) if below or right else x
        x, (height, width) = self.patches(x.to(self.patches.weight.dtype))
        x = keep_state(self, self.dropout(to_autocast_dtype(self.first(x))))
        found: dict[int, Tensor] = {}
        for number, stage in enumerate(self.stages):
            if number:
                x = keep_state(self, self.merges[number - 1](x, height, width))
                height, width = -(-height // 2), -(-width // 2)
            x, _ = stage(x, position_ids=GridPositionIds(height, width))
            if number in taps:
                found[number] = x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
        sequence = self.norm(keep_state(self, x))
        return BodyOutput(sequence, sequence.mean(1), tuple(found[number] for number in taps))

    def unused_modules(self, taps: Sequence[int]) -> list[nn.Module]:
        """Modules that are not needed for the given taps."""
        return [*self.merges[max(taps) :], *self.stages[max(taps) + 1 :], self.norm]

    def truncate(self, tap: int) -> None:
        """Remove all modules after the tap."""
        del self.merges[tap:], self.stages[tap + 1 :]
        self.norm = nn.Identity()  # type: ignore[assignment]
