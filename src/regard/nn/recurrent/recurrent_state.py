"""What bodies keep between steps whose past is of one size: recurrent ones, and convolutions that look a little way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class RecurrentSizes:
    """What a body keeps of one row, and of each beam of it, while it is searched: a body says it before it reads anything."""

    state_size: int
    """Values per row of the recurrent state."""
    vocab_size: int
    """tokens that are chosen from"""


@dataclass
class RecurrentState:
    """Tensors by name, a row of each for each row of the batch; beams are rows that stand together.

    Shapes never change from step to step, and what is new is written over what was, so that a step can be recorded."""

    positions: Tensor
    """(B,) tokens that each row has read"""
    state: dict[str, Tensor]
    """what a step changes, and what beams exchange"""
    context: dict[str, Tensor] = field(default_factory=dict)
    """what was read of the source, (B, places, …): beams of a row have the same"""

    @classmethod
    def from_tensors(cls, state: Mapping[str, Tensor], context: Mapping[str, Tensor] | None = None) -> RecurrentState:
        first = next(iter(state.values()))
        at = torch.zeros(len(first), dtype=torch.long, device=first.device)
        # copies: what is written over at every step must not lie in what another name holds
        state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        return cls(at, state, dict(context or {}))

    def update(self, steps: int = 1, /, **state: Tensor) -> None:
        """After so many more tokens of each row."""
        for name, tensor in state.items():
            self.state[name].copy_(tensor)
        self.positions += steps

    def expand_beams(self, beams: int) -> None:
        rows = torch.arange(len(self.positions), device=self.positions.device).repeat_interleave(beams)
        if beams > 1:
            self.select_rows(rows)

    def reorder(self, rows: Tensor) -> None:
        """Rows of the same source exchange their pasts: what was read of the source stays as it is."""
        for tensor in self.state.values():
            tensor.copy_(tensor.index_select(0, rows))
        self.positions.copy_(self.positions.index_select(0, rows))

    def select_rows(self, rows: Tensor) -> None:
        """Take these rows, in this order; a row may be taken several times or not at all."""
        for held in (self.state, self.context):
            for name, tensor in held.items():
                held[name] = tensor.index_select(0, rows)
        self.positions = self.positions.index_select(0, rows)

    def append_rows(self, other: RecurrentState) -> None:
        """The rows of another state of the same body stand below these; shorter contexts are filled up, and not real there."""
        for name, tensor in self.state.items():
            self.state[name] = torch.cat([tensor, other.state[name]])
        mine, theirs = self._context_with_mask(), other._context_with_mask()
        for name in mine:
            longest = max(mine[name].shape[1], theirs[name].shape[1])
            self.context[name] = torch.cat([_pad_length(part[name], longest) for part in (mine, theirs)])
        self.positions = torch.cat([self.positions, other.positions])

    def _context_with_mask(self) -> dict[str, Tensor]:
        """The context with its mask written out."""
        if not self.context or "valid" in self.context:
            return self.context
        first = next(iter(self.context.values()))
        return {**self.context, "valid": torch.ones(first.shape[:2], dtype=torch.bool, device=first.device)}

    def tensors(self) -> list[Tensor]:
        return [self.positions, *self.state.values(), *self.context.values()]


def _pad_length(tensor: Tensor, length: int) -> Tensor:
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, length - tensor.shape[1]))
