"""Recurrent layers of torch's fused kernels: plain, GRU and LSTM, a call for all steps of a layer.

Rows of different lengths are read without their lengths being known to Python: tokens stand at the end of their row, and
what fills it up stands before them as vectors of 0. The cells have no biases, so a state of 0 that reads 0 stays 0, and the
last state of every row is that of its last token. (Packed sequences want lengths on the CPU, for which a GPU would be waited
for at every step.) Shape letters: B rows, L steps, E width of what is read, W width of the states, N layers.
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
"""What is kept of all layers between steps, (B, N, W) each: `h`, and the cells `c` of LSTMs."""


def _make_layers(cell: CellName, inputs: int, width: int, depth: int, read: int) -> nn.ModuleList:
    """`read`: the width of what every layer but the first reads.

    Each is a module of its own: dropout between them then follows torch's seed, which cuDNN's own does not."""
    widths = [inputs] + [read] * (depth - 1)
    return nn.ModuleList(CELLS[cell](each, width, bias=False, batch_first=True) for each in widths)


def _state_dict(last: Any) -> RecurrentTensors:
    """The last state of a layer, (1, B, W) or a pair of them."""
    return {"h": last[0], "c": last[1]} if isinstance(last, tuple) else {"h": last}


def run_layer(layer: nn.Module, x: Tensor, *initial_state: Any) -> tuple[Tensor, Any]:
    """The outputs and the last state of a recurrent layer.

    On CUDA in the dtype of the weights: under autocast cuDNN would compute in float16 whatever dtype was chosen, where
    gradients of a sum over thousands of words overflow. On CPUs whose oneDNN has no LSTM in bfloat16, likewise."""
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
    """Layers that go on from a state: a decoder, over all steps at once or one by one."""

    def __init__(self, cell: CellName, inputs: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = _make_layers(cell, inputs, width, depth, width)
        self.dropout = nn.Dropout(dropout)

    @property
    def state_size(self) -> int:
        """That are kept of a row."""
        layers: Any = self.layers
        return sum(layer.hidden_size * (2 if layer.mode == "LSTM" else 1) for layer in layers)

    def forward(
        self, x: Float[Tensor, "B L E"], state: RecurrentTensors
    ) -> tuple[Float[Tensor, "B L W"], RecurrentTensors]:
        """The states of the last layer, and what is kept of all after the last step."""
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
        """What is kept of each layer when rows are read that end together; of both directions, [onward | back]."""
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
    """In which order rows are read, so that they end together."""

    columns: Int[Tensor, "B L"] | None = None
    """which token stands where before any is turned; None: as they are, for the rows are full"""
    valid: Bool[Tensor, "B L"] | None = None
    """which of these are tokens"""
    reversed: bool = False
    """the last token is read first"""
    reverse_columns: Int[Tensor, "B L"] | None = None
    """which column has which in rows that are read the other way round"""

    @classmethod
    def from_mask(cls, valid: Bool[Tensor, "B L"] | None, reversed: bool = False) -> ReadingOrder:
        """What is not real is left out."""
        if valid is None:
            return cls(reversed=reversed)
        L, lengths = valid.shape[1], valid.sum(1, keepdim=True)
        # those that are not real first, or last to be turned
        columns = (valid ^ reversed).long().argsort(dim=1, stable=True)
        at, first = torch.arange(L, device=valid.device), L - lengths
        back = torch.where(at >= first, L - 1 + first - at, at.expand_as(valid))
        return cls(columns, valid.gather(1, columns), reversed, back)

    def reorder_ids(self, ids: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        return ids if self.columns is None else ids.gather(1, self.columns)

    def reorder_embeddings(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L E"]:
        """Embeddings of those ids as they are read, 0 before the first token."""
        x = x if self.valid is None else x * self.valid[..., None]
        return x.flip(1) if self.reversed else x

    def reverse(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """The other way round, and back again; what fills up stays before it."""
        return x.flip(1) if self.reverse_columns is None else gather_columns(x, self.reverse_columns)


def gather_columns(x: Float[Tensor, "B L D"], columns: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class CompactTargets:
    """Targets whose holes are closed: what is not real stands behind all that is, where a decoder that looks back does not
    see it."""

    ids: Int[Tensor, "B L"]
    order: Int[Tensor, "B L"] | None = None

    @classmethod
    def from_mask(cls, ids: Int[Tensor, "B L"], mask: Tensor | None) -> CompactTargets:
        """Lengths (B,) say that there are no holes."""
        if mask is None or mask.ndim == 1:
            return cls(ids)
        order = (~mask).long().argsort(dim=1, stable=True)
        return cls(ids.gather(1, order), order)

    def restore(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """States back in the columns of their tokens."""
        return x if self.order is None else gather_columns(x, self.order.argsort(dim=1))
