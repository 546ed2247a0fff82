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

Kept = dict[str, Tensor]
"""What is kept of all layers between steps, (B, N, W) each: `h`, and the cells `c` of LSTMs."""


def _layers(cell: CellName, inputs: int, width: int, depth: int, read: int) -> nn.ModuleList:
    """`read`: the width of what every layer but the first reads.

    Each is a module of its own: dropout between them then follows torch's seed, which cuDNN's own does not."""
    widths = [inputs] + [read] * (depth - 1)
    return nn.ModuleList(CELLS[cell](each, width, bias=False, batch_first=True) for each in widths)


def _named(last: Any) -> Kept:
    """The last state of a layer, (1, B, W) or a pair of them."""
    return {"h": last[0], "c": last[1]} if isinstance(last, tuple) else {"h": last}


def fused(layer: nn.Module, x: Tensor, *begin: Any) -> tuple[Tensor, Any]:
    """The outputs and the last state of a recurrent layer.

    On CUDA in the dtype of the weights: under autocast cuDNN would compute in float16 whatever dtype was chosen, where
    gradients of a sum over thousands of words overflow. On CPUs whose oneDNN has no LSTM in bfloat16, likewise."""
    if not x.is_cuda and not (isinstance(layer, nn.LSTM) and torch.is_autocast_enabled("cpu")):
        return layer(x, *begin)
    if not x.is_cuda and capabilities.available("autocast_lstm"):
        return capabilities.autocast_lstm(layer, x, *begin)
    dtype = next(layer.parameters()).dtype
    given = [tuple(part.to(dtype) for part in each) if isinstance(each, tuple) else each.to(dtype) for each in begin]
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(dtype), *given)


def _stacked(layers: list[Kept]) -> Kept:
    return {name: torch.stack([kept[name][0] for kept in layers], 1) for name in layers[0]}


class Recurrent(nn.Module):
    """Layers that go on from a state: a decoder, over all steps at once or one by one."""

    def __init__(self, cell: CellName, inputs: int, width: int, depth: int, dropout: float) -> None:
        super().__init__()
        self.layers = _layers(cell, inputs, width, depth, width)
        self.dropout = nn.Dropout(dropout)

    @property
    def numbers(self) -> int:
        """That are kept of a row."""
        layers: Any = self.layers
        return sum(layer.hidden_size * (2 if layer.mode == "LSTM" else 1) for layer in layers)

    def forward(self, x: Float[Tensor, "B L E"], kept: Kept) -> tuple[Float[Tensor, "B L W"], Kept]:
        """The states of the last layer, and what is kept of all after the last step."""
        after: list[Kept] = []
        for number, layer in enumerate(self.layers):
            begin = [kept[name][None, :, number].contiguous() for name in ("h", "c") if name in kept]
            whole = tuple(begin) if len(begin) > 1 else begin[0]
            x, last = fused(layer, self.dropout(x) if number else x, whole)
            after.append(_named(last))
        return x, _stacked(after)


class Reader(nn.Module):
    """Layers that read rows from a state of 0: an encoder. `both_ways`: half of each layer reads from the end to the
    beginning, and every layer sees both halves of the one below it."""

    def __init__(
        self, cell: CellName, inputs: int, width: int, depth: int, dropout: float, both_ways: bool = False
    ) -> None:
        super().__init__()
        own = width // 2 if both_ways else width
        self.layers = _layers(cell, inputs, own, depth, width)
        self.back = _layers(cell, inputs, own, depth, width) if both_ways else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "B L E"], order: Order) -> Kept:
        """What is kept of each layer when rows are read that end together; of both directions, [onward | back]."""
        after = []
        for number, layer in enumerate(self.layers):
            x = self.dropout(x) if number else x
            y, last = fused(layer, x)
            kept = _named(last)
            if self.back is not None:
                z, other = fused(self.back[number], order.turned(x))
                kept = {name: torch.cat([kept[name], part], -1) for name, part in _named(other).items()}
                y = torch.cat([y, order.turned(z)], -1)
            x = y
            after.append(kept)
        return _stacked(after)


@dataclass(frozen=True)
class Order:
    """In which order rows are read, so that they end together."""

    columns: Int[Tensor, "B L"] | None = None
    """which token stands where before any is turned; None: as they are, for the rows are full"""
    real: Bool[Tensor, "B L"] | None = None
    """which of these are tokens"""
    reversed: bool = False
    """the last token is read first"""
    back: Int[Tensor, "B L"] | None = None
    """which column has which in rows that are read the other way round"""

    @classmethod
    def of(cls, real: Bool[Tensor, "B L"] | None, reversed: bool = False) -> Order:
        """What is not real is left out."""
        if real is None:
            return cls(reversed=reversed)
        L, lengths = real.shape[1], real.sum(1, keepdim=True)
        # those that are not real first, or last to be turned
        columns = (real ^ reversed).long().argsort(dim=1, stable=True)
        at, first = torch.arange(L, device=real.device), L - lengths
        back = torch.where(at >= first, L - 1 + first - at, at.expand_as(real))
        return cls(columns, real.gather(1, columns), reversed, back)

    def ids(self, ids: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        return ids if self.columns is None else ids.gather(1, self.columns)

    def laid(self, x: Float[Tensor, "B L E"]) -> Float[Tensor, "B L E"]:
        """Embeddings of those ids as they are read, 0 before the first token."""
        x = x if self.real is None else x * self.real[..., None]
        return x.flip(1) if self.reversed else x

    def turned(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """The other way round, and back again; what fills up stays before it."""
        return x.flip(1) if self.back is None else picked(x, self.back)


def picked(x: Float[Tensor, "B L D"], columns: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class Closed:
    """Targets whose holes are closed: what is not real stands behind all that is, where a decoder that looks back does not
    see it."""

    ids: Int[Tensor, "B L"]
    order: Int[Tensor, "B L"] | None = None

    @classmethod
    def of(cls, ids: Int[Tensor, "B L"], mask: Tensor | None) -> Closed:
        """Lengths (B,) say that there are no holes."""
        if mask is None or mask.ndim == 1:
            return cls(ids)
        order = (~mask).long().argsort(dim=1, stable=True)
        return cls(ids.gather(1, order), order)

    def opened(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """States back in the columns of their tokens."""
        return x if self.order is None else picked(x, self.order.argsort(dim=1))
