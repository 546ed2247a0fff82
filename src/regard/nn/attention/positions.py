"""Where things are, added to what they are."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import RegardError

Layout = Literal["halves", "interleaved"]


def exact(device: torch.device) -> torch.dtype:
    """What tables are made in before they are rounded once: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


class Sinusoid(nn.Module):
    """Sines and cosines of wavelengths from 2π to base·2π; nothing to learn, any length.

    `interleaved` is the paper's formula (channel 2i a sine, 2i+1 its cosine), `halves` is [sin | cos] as published
    checkpoints have it: the same model with channels permuted. The table is made in float64 and then rounded once.
    An odd width is allowed: the last sine has no cosine.
    """

    def __init__(self, width: int, layout: Layout = "halves", base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.layout, self.base = width, layout, base
        self.length: int | None = None

    def forward(self, where: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        dtype = exact(where.device)
        pairs = torch.arange((self.width + 1) // 2, device=where.device, dtype=dtype)
        angles = where.to(dtype)[..., None] * torch.exp(pairs * (-2 * math.log(self.base) / self.width))
        waves = (angles.sin(), angles.cos())
        if self.layout == "halves":
            return torch.cat(waves, dim=-1)[..., : self.width]
        return torch.stack(waves, dim=-1).flatten(-2)[..., : self.width]


class Learned(nn.Module):
    """One vector a position, trained; there is none beyond `length`."""

    def __init__(self, length: int, width: int, std: float = 0.02) -> None:
        super().__init__()
        self.length: int | None = length
        self.table = nn.Embedding(length, width)
        nn.init.normal_(self.table.weight, std=std)

    def forward(self, where: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return self.table(where)


class Nowhere(nn.Module):
    """Nothing is added: order is known from the causal rule alone, or from positions inside attention (relative.py)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.length: int | None = None

    def forward(self, where: Int[Tensor, "..."]) -> Float[Tensor, "... D"]:
        return torch.zeros((), device=where.device).expand(*where.shape, self.width)


Added = Learned | Sinusoid | Nowhere


def added(config: Any) -> Added:
    """What `config.positions` asks for."""
    if config.positions == "none":
        return Nowhere(config.width)
    if config.positions == "learned":
        return Learned(config.length, config.width)
    return Sinusoid(config.width, config.positions)


def refuse_beyond(most: int | None, length: int) -> None:
    """`most`: positions that there are; None: any number."""
    if most is not None and length > most:
        raise RegardError(
            f"the context has {most} positions, and position {length} was asked for. Give fewer tokens, or ask for fewer."
        )
