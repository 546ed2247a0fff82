"""What bodies keep between steps whose past is of one size: recurrent ones, and convolutions that look a little way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Held:
    """What a body keeps of one row, and of each beam of it, while it is searched: a body says it before it reads anything."""

    numbers: int
    """in its `Rolling` state"""
    vocabulary: int
    """tokens that are chosen from"""


@dataclass
class Rolling:
    """Tensors by name, a row of each for each row of the batch; beams are rows that stand together.

    Shapes never change from step to step, and what is new is written over what was, so that a step can be recorded."""

    at: Tensor
    """(B,) tokens that each row has read"""
    own: dict[str, Tensor]
    """what a step changes, and what beams exchange"""
    context: dict[str, Tensor] = field(default_factory=dict)
    """what was read of the source, (B, places, …): beams of a row have the same"""

    @classmethod
    def fresh(cls, own: Mapping[str, Tensor], context: Mapping[str, Tensor] | None = None) -> Rolling:
        first = next(iter(own.values()))
        at = torch.zeros(len(first), dtype=torch.long, device=first.device)
        # copies: what is written over at every step must not lie in what another name holds
        own = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in own.items()}
        return cls(at, own, dict(context or {}))

    def put(self, steps: int = 1, /, **own: Tensor) -> None:
        """After so many more tokens of each row."""
        for name, tensor in own.items():
            self.own[name].copy_(tensor)
        self.at += steps

    def widen(self, beams: int) -> None:
        rows = torch.arange(len(self.at), device=self.at.device).repeat_interleave(beams)
        if beams > 1:
            self.keep(rows)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts: what was read of the source stays as it is."""
        for tensor in self.own.values():
            tensor.copy_(tensor.index_select(0, rows))
        self.at.copy_(self.at.index_select(0, rows))

    def keep(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all."""
        for held in (self.own, self.context):
            for name, tensor in held.items():
                held[name] = tensor.index_select(0, rows)
        self.at = self.at.index_select(0, rows)

    def join(self, other: Rolling) -> None:
        """The rows of another state of the same body stand below these; shorter contexts are filled up, and not real there."""
        for name, tensor in self.own.items():
            self.own[name] = torch.cat([tensor, other.own[name]])
        mine, theirs = self._real(), other._real()
        for name in mine:
            longest = max(mine[name].shape[1], theirs[name].shape[1])
            self.context[name] = torch.cat([_longer(part[name], longest) for part in (mine, theirs)])
        self.at = torch.cat([self.at, other.at])

    def _real(self) -> dict[str, Tensor]:
        """The context with its mask written out."""
        if not self.context or "real" in self.context:
            return self.context
        first = next(iter(self.context.values()))
        return {**self.context, "real": torch.ones(first.shape[:2], dtype=torch.bool, device=first.device)}

    def tensors(self) -> list[Tensor]:
        return [self.at, *self.own.values(), *self.context.values()]


def _longer(tensor: Tensor, length: int) -> Tensor:
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, length - tensor.shape[1]))
