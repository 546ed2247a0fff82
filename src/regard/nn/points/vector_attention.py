"""Vector attention (Zhao et al. 2021): every channel has separate attention weights over the neighbors of a point.

y_i = Σ_j softmax_j(γ(φ(x_i) - ψ(x_j) + δ_ij)) ∘ (α(x_j) + δ_ij), where δ_ij = θ(p_i - p_j) encodes the relative
position in scores and values. φ, ψ and α are linear layers, applied before gathering the neighbors; θ and γ are small
networks, here `place` and `score`. The paper and the published code of its authors use different networks.

Shape letters: N points, K neighbors, D width, H weights per neighbor (each for D / H channels).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear
from regard.nn.recording import Record, RecordedModule, recorded
from regard.nn.vision.convnet import BatchNorm


def gather_rows(x: Float[Tensor, "N D"], index: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows D"]:
    """Rows of x, with the operator that has the fastest gradient on the device."""
    flat = index.reshape(-1)
    rows = x.index_select(0, flat) if x.is_cuda else x.gather(0, flat[:, None].expand(-1, x.shape[1]))
    return rows.view(*index.shape, x.shape[1])


class BatchNormRows(BatchNorm):
    """Batch norm of the last axis, over all other axes."""

    single_value_error = (
        "BatchNorm requires more than one point in training, got 1. Use larger point clouds or a larger batch."
    )

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        # as a channels-last feature map: for a 2-D input, the CPU kernel iterates over columns
        feature_map = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
        return super().forward(feature_map).permute(0, 2, 3, 1).view(x.shape)


@dataclass(frozen=True)
class Neighbors:
    """Neighbors of each point, and their relative coordinates."""

    index: Int[Tensor, "N K"]  # Rows of the neighbors; any row for missing neighbors.
    offsets: Float[Tensor, "N K 3"]
    valid: Bool[Tensor, "N K"] | None = None  # False for missing neighbors; None: none are missing.

    valid_index: Int[Tensor, "E"] | None = None  # Flat indices of the True entries of `valid`.

    def apply(self, net: nn.Module, x: Float[Tensor, "N K C"]) -> Float[Tensor, "N K C2"]:
        """Apply a network to every neighbor. Missing neighbors give 0 and are excluded from batch norm statistics."""
        if self.valid_index is None:
            return net(x)
        made = net(gather_rows(x.flatten(0, 1), self.valid_index))
        every = made.new_zeros(self.index.numel(), made.shape[-1]).index_copy(0, self.valid_index, made)
        return every.view(*self.index.shape, -1)


class VectorAttention(RecordedModule):
    """`channels_per_weight`: channels that share a weight; channel c uses weight c mod (width / channels_per_weight).
    `reverse_difference`: neighbor minus point, for features and coordinates, as in the published code."""

    def __init__(
        self,
        width: int,
        position_net: nn.Module,
        score_net: nn.Module,
        channels_per_weight: int = 1,
        bias: bool = False,
        reverse_difference: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.channels_per_weight, self.reverses_difference = width, channels_per_weight, reverse_difference
        self.heads = width // channels_per_weight
        self.q, self.kv = Linear(width, width, bias), Linear(width, 2 * width, bias)
        self.place, self.score = position_net, score_net

    @recorded
    def forward(
        self, x: Float[Tensor, "N D"], neighbors: Neighbors, *, record: Record | None = None
    ) -> Float[Tensor, "N D"]:
        offset = neighbors.apply(
            self.place, (neighbors.offsets if self.reverses_difference else -neighbors.offsets).to(x.dtype)
        )
        k, v = (gather_rows(part, neighbors.index) for part in self.kv(x).chunk(2, -1))
        apart = k - self.q(x)[:, None]
        scores = neighbors.apply(self.score, offset + apart if self.reverses_difference else offset - apart)
        keys = neighbors.index
        if neighbors.valid is not None:  # every point has at least one neighbor, itself
            keys, scores = keys.where(neighbors.valid, -1), scores.masked_fill(~neighbors.valid[..., None], -torch.inf)
        weights = (scores if scores.dtype == torch.float64 else scores.float()).softmax(1).to(scores.dtype)
        if record is not None:
            weights = record(weights.permute(2, 0, 1)[None], keys[None, None])[0].permute(1, 2, 0)
        (N, K, _), H = offset.shape, self.heads
        values = (v + offset).view(N, K, self.channels_per_weight, H)
        return (values * weights.to(values.dtype)[:, :, None]).sum(1).view(N, self.width)


def paper_attention(width: int) -> VectorAttention:
    """Attention of the paper: θ and γ are two linear layers with a ReLU, all of size `width` (not specified in the paper)."""
    place = nn.Sequential(Linear(3, width), nn.ReLU(), Linear(width, width))
    score = nn.Sequential(Linear(width, width), nn.ReLU(), Linear(width, width))
    return VectorAttention(width, place, score)


def reference_attention(width: int, channels_per_weight: int) -> VectorAttention:
    """Attention of the published code: batch norms in θ and γ, and weights shared by several channels."""
    few = width // channels_per_weight
    place = nn.Sequential(Linear(3, 3), BatchNormRows(3), nn.ReLU(), Linear(3, width))
    score = nn.Sequential(
        BatchNormRows(width), nn.ReLU(), Linear(width, few), BatchNormRows(few), nn.ReLU(), Linear(few, few)
    )
    return VectorAttention(width, place, score, channels_per_weight, bias=True, reverse_difference=True)
