"""Decoding state of constant size, for recurrent and convolutional decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass
class RecurrentState:
    """Named tensors with one row per batch row; beams are adjacent rows.

    Shapes are constant and tensors are updated in place, so that a CUDA graph can capture a step."""

    positions: Tensor
    """(B,) number of tokens processed per row."""
    state: dict[str, Tensor]
    """Tensors that steps update and beams reorder."""
    context: dict[str, Tensor] = field(default_factory=dict)
    """Encoded source, (B, positions, …), equal for all beams of a row."""

    @classmethod
    def from_tensors(cls, state: Mapping[str, Tensor], context: Mapping[str, Tensor] | None = None) -> RecurrentState:
        first = next(iter(state.values()))
        at = torch.zeros(len(first), dtype=torch.long, device=first.device)
        # copies: tensors that are overwritten at every step must not share memory
        state = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
        return cls(at, state, dict(context or {}))

    def update(self, steps: int = 1, /, **state: Tensor) -> None:
        """Copy the new state after `steps` more tokens of each row."""
        for name, tensor in state.items():
            self.state[name].copy_(tensor)
        self.positions += steps

    def expand_beams(self, beams: int) -> None:
        rows = torch.arange(len(self.positions), device=self.positions.device).repeat_interleave(beams)
        if beams > 1:
            self.select_rows(rows)

    def reorder(self, rows: Tensor) -> None:
        """Reorder rows of the same source (beams). `context` stays unchanged."""
        for tensor in self.state.values():
            tensor.copy_(tensor.index_select(0, rows))
        self.positions.copy_(self.positions.index_select(0, rows))

    def select_rows(self, rows: Tensor) -> None:
        """Select rows, in this order; rows may be repeated or dropped."""
        for held in (self.state, self.context):
            for name, tensor in held.items():
                held[name] = tensor.index_select(0, rows)
        self.positions = self.positions.index_select(0, rows)

    def append_rows(self, other: RecurrentState) -> None:
        """Append the rows of another state of the same model; shorter contexts are padded and masked."""
        for name, tensor in self.state.items():
            self.state[name] = torch.cat([tensor, other.state[name]])
        mine, theirs = self._context_with_mask(), other._context_with_mask()
        for name in mine:
            longest = max(mine[name].shape[1], theirs[name].shape[1])
            self.context[name] = torch.cat([_pad_length(part[name], longest) for part in (mine, theirs)])
        self.positions = torch.cat([self.positions, other.positions])

    def _context_with_mask(self) -> dict[str, Tensor]:
        """Context with an explicit `valid` mask."""
        if not self.context or "valid" in self.context:
            return self.context
        first = next(iter(self.context.values()))
        return {**self.context, "valid": torch.ones(first.shape[:2], dtype=torch.bool, device=first.device)}

    def tensors(self) -> list[Tensor]:
        return [self.positions, *self.state.values(), *self.context.values()]


def _pad_length(tensor: Tensor, length: int) -> Tensor:
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, length - tensor.shape[1]))
