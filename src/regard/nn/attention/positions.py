"""Absolute position embeddings, added to the token embeddings."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import RegardError

SinusoidLayout = Literal["halves", "interleaved"]


def table_dtype(device: torch.device) -> torch.dtype:
    """Precision of position tables before rounding: float64, or float32 on MPS, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


class SinusoidalPosition(nn.Module):
    """Sines and cosines with wavelengths from 2π to base · 2π; no parameters, any length.

    `interleaved` is the formula of the paper (channel 2i sine, 2i + 1 cosine), `halves` is [sin | cos] as in published
    checkpoints: the same model with permuted channels. Computed in float64. With an odd width, the last sine has no cosine.
    """

    def __init__(self, width: int, layout: SinusoidLayout = "halves", base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.layout, self.base = width, layout, base
        self.max_length: int | None = None

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        dtype = table_dtype(positions.device)
        pairs = torch.arange((self.width + 1) // 2, device=positions.device, dtype=dtype)
        angles = positions.to(dtype)[..., None] * torch.exp(pairs * (-2 * math.log(self.base) / self.width))
        waves = (angles.sin(), angles.cos())
        if self.layout == "halves":
            return torch.cat(waves, dim=-1)[..., : self.width]
        return torch.stack(waves, dim=-1).flatten(-2)[..., : self.width]


class LearnedPosition(nn.Module):
    """Learned vector per position, for at most `max_length` positions."""

    def __init__(self, max_length: int, width: int, std: float = 0.02) -> None:
        super().__init__()
        self.max_length: int | None = max_length
        self.table = nn.Embedding(max_length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return self.table(positions)


class NoPosition(nn.Module):
    """Zeros: order comes from the causal mask alone, or from relative positions in attention (relative_positions.py)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.max_length: int | None = None

    def forward(self, positions: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return torch.zeros((), device=positions.device).expand(*positions.shape, self.width)


AbsolutePosition = LearnedPosition | SinusoidalPosition | NoPosition


def make_absolute_position(config: Any) -> AbsolutePosition:
    """Position embedding for `config.position_embedding`."""
    if config.position_embedding == "none":
        return NoPosition(config.width)
    if config.position_embedding == "learned":
        return LearnedPosition(config.max_length, config.width)
    return SinusoidalPosition(config.width, config.position_embedding)


def check_length(max_length: int | None, length: int) -> None:
    """Raise an error if `length` exceeds `max_length`, the number of positions (None: unlimited)."""
    if max_length is not None and length > max_length:
        raise RegardError(
            f"The model has {max_length} positions, but {length} are needed. Shorten the input, or generate fewer tokens."
        )
