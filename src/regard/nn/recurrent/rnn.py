"""Recurrent layers with PyTorch's fused kernels (RNN, GRU, LSTM), one call per layer for all steps.

Rows of different lengths are padded on the left with zero vectors. The cells have no biases, so a zero state stays zero during
padding, and the last state of every row belongs to its last token. (Packed sequences require lengths on the CPU, which would
synchronize with the GPU at every step.) Shape letters: B rows, L steps, E input width, W hidden size, N layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import capabilities

CellName = Literal["rnn", "gru", "lstm"]
CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

RecurrentTensors = dict[str, Tensor]
"""States of all layers, (B, N, W) each: `h`, and the cell states `c` of LSTMs."""


def _make_layers(cell: CellName, inputs: int, width: int, depth: int, read: int) -> nn.ModuleList:
    """`read`: input width of all layers except the first.

    Layers are separate modules, because dropout between the layers of one cuDNN call would not follow the seed of PyTorch."""
    widths = [inputs] + [read] * (depth - 1)
    return nn.ModuleList(CELLS[cell](each, width, bias=False, batch_first=True) for each in widths)


def _state_dict(last: Any) -> RecurrentTensors:
    """Named tensors of the last state of a layer, (1, B, W) or a pair of them."""
    return {"h": last[0], "c": last[1]} if isinstance(last, tuple) else {"h": last}


def run_layer(layer: nn.Module, x: Tensor, *initial_state: Any) -> tuple[Tensor, Any]:
    """Outputs and last state of a recurrent layer.

    On CUDA in the dtype of the weights: under autocast, cuDNN computes in float16 for any autocast dtype, and gradients
    summed over thousands of tokens overflow. Also on CPUs without a bfloat16 LSTM in oneDNN."""
    if not x.is_cuda and not (isinstance(layer, nn.LSTM) and torch.is_autocast_enabled("cpu")):
        return layer(x, *initial_state)
    if not x.is_cuda and capabilities.is_available("autocast_lstm"):
        return capabilities.autocast_lstm(layer, x, *initial_state)
    dtype = next(layer.parameters()).dtype
    given = [
        tuple(part.to(dtype) for part in each) if isinstance(each, tuple) else each.to(dtype) for each in initial_state
    ]
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(dtype), *given)


def _stack_layers(layers: list[RecurrentTensors]) -> RecurrentTensors:
    return {name: torch.stack([kept[name][0] for kept in layers], 1) for name in layers[0]}


class RecurrentDecoder(nn.Module):
    """Recurrent decoder from an initial state, for all steps at once or step by step."""

    def __init__(self, cell: CellName, inputs: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = _make_layers(cell, inputs, width, depth, width)
        self.dropout = nn.Dropout(dropout)

    @property
    def state_size(self) -> int:
        """Values per row of the state."""
        layers: Any = self.layers
        return sum(layer.hidden_size * (2 if layer.mode == "LSTM" else 1) for layer in layers)

    def forward(
        self, x: Float[Tensor, "B L E"], state: RecurrentTensors
    ) -> tuple[Float[Tensor, "B L W"], RecurrentTensors]:
        """States of the last layer, and the state of all layers after the last step."""
        after: list[RecurrentTensors] = []
        for number, layer in enumerate(self.layers):
            begin = [state[name][None, :, number].contiguous() for name in ("h", "c") if name in state]
            whole = tuple(begin) if len(begin) > 1 else begin[0]
            x, last = run_layer(layer, self.dropout(x) if number else x, whole)
            after.append(_state_dict(last))
        return x, _stack_layers(after)


class RecurrentEncoder(nn.Module):
    """Recurrent encoder with an initial state of 0. `bidirectional`: half of each layer runs backward, and every layer gets
    both halves of the layer below."""

    def __init__(
        self, cell: CellName, inputs: int, width: int, depth: int, dropout: float, bidirectional: bool = False
    ) -> None:
        super().__init__()
        own = width // 2 if bidirectional else width
        self.layers = _make_layers(cell, inputs, own, depth, width)
        self.back = _make_layers(cell, inputs, own, depth, width) if bidirectional else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L E"], order: ReadingOrder) -> RecurrentTensors:
        """Last state of each layer for left-padded rows; [forward | backward] if bidirectional."""
        after = []
        for number, layer in enumerate(self.layers):
            x = self.dropout(x) if number else x
            y, last = run_layer(layer, x)
            kept = _state_dict(last)
            if self.back is not None:
                z, other = run_layer(self.back[number], order.reverse(x))
                kept = {name: torch.cat([kept[name], part], -1) for name, part in _state_dict(other).items()}
                y = torch.cat([y, order.reverse(z)], -1)
            x = y
            after.append(kept)
        return _stack_layers(after)


@dataclass(frozen=True)
class ReadingOrder:
    """Column order of tokens, such that rows are left-padded."""

    columns: Int[Tensor, "B L"] | None = None
    """(B, L) source column of each position, before reversal; None: rows without padding."""
    valid: Bool[Tensor, "B L"] | None = None
    """False at padding, in the order of `columns`."""
    reversed: bool = False
    """Read the last token first."""
    reverse_columns: Int[Tensor, "B L"] | None = None
    """(B, L) source column of each position when reading in the opposite direction."""

    @classmethod
    def from_mask(cls, valid: Bool[Tensor, "B L"] | None, reversed: bool = False) -> ReadingOrder:
        """Order that moves padding before the tokens."""
        if valid is None:
            return cls(reversed=reversed)
        L, lengths = valid.shape[1], valid.sum(1, keepdim=True)
        # padding first, or last if the row is reversed afterward
        columns = (valid ^ reversed).long().argsort(dim=1, stable=True)
        at, first = torch.arange(L, device=valid.device), L - lengths
        back = torch.where(at >= first, L - 1 + first - at, at.expand_as(valid))
        return cls(columns, valid.gather(1, columns), reversed, back)

    def reorder_ids(self, ids: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        return ids if self.columns is None else ids.gather(1, self.columns)

    def reorder_embeddings(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L E"]:
        """Embeddings of `reorder_ids` in reading order, 0 at padding."""
        x = x if self.valid is None else x * self.valid[..., None]
        return x.flip(1) if self.reversed else x

    def reverse(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Reverse the tokens of each row (an involution); padding stays in front."""
        return x.flip(1) if self.reverse_columns is None else gather_columns(x, self.reverse_columns)


def gather_columns(x: Float[Tensor, "B L D"], columns: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class CompactTargets:
    """Target ids with padding moved to the end, so that a causal decoder never attends to padding."""

    ids: Int[Tensor, "B L"]
    order: Int[Tensor, "B L"] | None = None

    @classmethod
    def from_mask(cls, ids: Int[Tensor, "B L"], mask: Tensor | None) -> CompactTargets:
        """A mask of lengths (B,) needs no reordering."""
        if mask is None or mask.ndim == 1:
            return cls(ids)
        order = (~mask).long().argsort(dim=1, stable=True)
        return cls(ids.gather(1, order), order)

    def restore(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """States in the original order of columns."""
        return x if self.order is None else gather_columns(x, self.order.argsort(dim=1))
