"""Vector attention (Zhao et al. 2021): every channel of a point has weights of its own over the point's neighbours.

y_i = Σ_j softmax_j(γ(φ(x_i) - ψ(x_j) + δ_ij)) ∘ (α(x_j) + δ_ij), where δ_ij = θ(p_i - p_j) says where j stands seen from i: it
is in the score and in the value. φ, ψ and α are matrices, applied before neighbours are gathered; θ and γ are small nets, here
`place` and `score`. The paper's form and that of the code which its authors released are two sets of such nets.

Shape letters: N points, K neighbours, D width, H weights of a point (each serves D / H channels).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.nn.attention.attention import AttentionRecorder
from regard.nn.kernels.linear import Linear
from regard.nn.vision.convnet import BatchNorm


def gather_rows(x: Float[Tensor, "N D"], index: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows D"]:
    """Rows of a table. Of several ways to say it, those whose gradients are quickest."""
    flat = index.reshape(-1)
    rows = x.index_select(0, flat) if x.is_cuda else x.gather(0, flat[:, None].expand(-1, x.shape[1]))
    return rows.view(*index.shape, x.shape[1])


class BatchNormRows(BatchNorm):
    """A batch norm of each column, over all rows of a table, which may be laid out by points and neighbours."""

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        taught = self.training and self.weight.requires_grad
        if taught and x.numel() == x.shape[-1]:
            raise RegardError(
                "BatchNorm requires more than one point in training, got 1. Use larger point clouds or a larger batch."
            )
        # as one map of many places, whose channels lie together: of a table the kernel for CPUs goes along the columns
        places = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)
        made = F.batch_norm(
            places, self.running_mean, self.running_var, self.weight, self.bias, taught, self.momentum, self.eps
        )
        return made.permute(0, 2, 3, 1).view(x.shape)


@dataclass(frozen=True)
class Neighbors:
    """Who is near to whom, and where they stand from there."""

    index: Int[Tensor, "N K"]
    """rows of the table that is looked at; any row where there is no neighbour"""
    offsets: Float[Tensor, "N K 3"]
    """the place of each neighbour, seen from the point"""
    valid: Bool[Tensor, "N K"] | None = None
    """True where there is a neighbour; None: everywhere"""

    valid_index: Int[Tensor, "E"] | None = None
    """where it is True, counted through all"""

    @classmethod
    def from_mask(
        cls, index: Int[Tensor, "N K"], offsets: Float[Tensor, "N K 3"], valid: Bool[Tensor, "N K"]
    ) -> Neighbors:
        """Of neighbours that are not all there; the device is waited for, to know how many are."""
        return cls(index, offsets, valid, valid.flatten().nonzero()[:, 0])

    def apply(self, net: nn.Module, x: Float[Tensor, "N K C"]) -> Float[Tensor, "N K C2"]:
        """A net applied to every neighbour. Those that are not there do not count in the statistics of norms: they are left
        out, and 0 stands for them."""
        if self.valid_index is None:
            return net(x)
        made = net(gather_rows(x.flatten(0, 1), self.valid_index))
        every = made.new_zeros(self.index.numel(), made.shape[-1]).index_copy(0, self.valid_index, made)
        return every.view(*self.index.shape, -1)

    def key_index(self) -> Int[Tensor, "1 1 N K"]:
        """As a watcher is told: -1 where there is no neighbour."""
        return (self.index if self.valid is None else self.index.where(self.valid, -1))[None, None]


class VectorAttention(nn.Module):
    """`shares`: how many channels each weight serves; channel c is weighed by weight c mod (width / shares). `turned`: the
    difference of both features and places is taken the other way round, neighbour less point, as released."""

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
        if width % channels_per_weight:
            raise ValueError(f"width ({width}) must be divisible by channels_per_weight ({channels_per_weight}).")
        self.width, self.channels_per_weight, self.reverses_difference = width, channels_per_weight, reverse_difference
        self.q, self.kv = Linear(width, width, bias), Linear(width, 2 * width, bias)
        self.place, self.score = position_net, score_net

    @property
    def heads(self) -> int:
        """Weights that a point has for each neighbour."""
        return self.width // self.channels_per_weight

    def forward(
        self, x: Float[Tensor, "N D"], neighbors: Neighbors, *, record: AttentionRecorder | None = None
    ) -> Float[Tensor, "N D"]:
        offset = neighbors.apply(
            self.place, (neighbors.offsets if self.reverses_difference else -neighbors.offsets).to(x.dtype)
        )
        k, v = (gather_rows(part, neighbors.index) for part in self.kv(x).chunk(2, -1))
        apart = k - self.q(x)[:, None]
        scores = neighbors.apply(self.score, offset + apart if self.reverses_difference else offset - apart)
        weights = self.attention_weights(scores, neighbors)
        if record is not None:
            record(weights.permute(2, 0, 1)[None], neighbors.key_index())
        (N, K, _), H = offset.shape, self.heads
        values = (v + offset).view(N, K, self.channels_per_weight, H)
        return (values * weights.to(values.dtype)[:, :, None]).sum(1).view(N, self.width)

    def attention_weights(self, scores: Float[Tensor, "N K H"], neighbors: Neighbors) -> Float[Tensor, "N K H"]:
        """softmax over the neighbours that are there; every point has at least one, itself."""
        if neighbors.valid is not None:
            scores = scores.masked_fill(~neighbors.valid[..., None], -torch.inf)
        wide = scores if scores.dtype == torch.float64 else scores.float()
        return wide.softmax(1).to(scores.dtype)


def paper_attention(width: int) -> VectorAttention:
    """θ and γ are two linear layers and a ReLU between them. How wide they are inside is not said: here as wide as the rest."""
    place = nn.Sequential(Linear(3, width), nn.ReLU(), Linear(width, width))
    score = nn.Sequential(Linear(width, width), nn.ReLU(), Linear(width, width))
    return VectorAttention(width, place, score)


def reference_attention(width: int, channels_per_weight: int) -> VectorAttention:
    """Batch norms inside θ and γ, and weights that several channels share."""
    few = width // channels_per_weight
    place = nn.Sequential(Linear(3, 3), BatchNormRows(3), nn.ReLU(), Linear(3, width))
    score = nn.Sequential(
        BatchNormRows(width), nn.ReLU(), Linear(width, few), BatchNormRows(few), nn.ReLU(), Linear(few, few)
    )  # fmt: skip
    return VectorAttention(width, place, score, channels_per_weight, bias=True, reverse_difference=True)
