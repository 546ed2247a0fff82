"""Recurrent cells, layers and decoding states.

Layers run on PyTorch's fused kernels (RNN, GRU, LSTM), one call per layer for all steps. Rows of different lengths are
padded on the left with zero vectors. The cells have no biases, so a zero state stays zero during padding, and the last
state of every row belongs to its last token. (Packed sequences require lengths on the CPU, which would synchronize with
the GPU at every step.) Shape letters: B rows, L steps, E input width, W hidden size, N layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import capabilities
from regard.nn.kernels.linear import Linear, linear

CellName = Literal["rnn", "gru", "lstm"]
CELLS: dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GateOrder = Literal["ifgo", "ifog"]
"""Order of the gates in the rows: input, forget, candidate (g), output. PyTorch uses the first, Xu et al. 2015 the second."""
RecurrentTensors = dict[str, Tensor]  # States of all layers, (B, N, W) each: `h`, and the cell states `c` of LSTMs.
LinearMap = Callable[[Tensor], Tensor]


# -- cells


class GRUCell(nn.Module):
    """Gated cell of Cho et al. and Bahdanau et al. (2014). In contrast to `torch.nn.GRU`, r is inside the product and z
    weights h̃.

        z, r = σ(W x + U h)      h̃ = tanh(W x + U (r ∘ h))      h' = (1 − z) ∘ h + z ∘ h̃

    No fused kernel exists. Input products `given(x)` of z, r and h̃ are computed for all steps at once; the loop has two
    matrix products per step."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.given = Linear(input_width, 3 * width, bias)
        self.gates, self.new = nn.Parameter(torch.empty(2 * width, width)), nn.Parameter(torch.empty(width, width))
        for square in (*self.gates.chunk(2), self.new):
            nn.init.orthogonal_(square)

    def forward(self, projected: Float[Tensor, "B three_W"], h: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        return _gru_step(projected, h, lambda x: linear(x, self.gates), lambda x: linear(x, self.new))


def _gru_step(given: Tensor, h: Tensor, gates: LinearMap, new: LinearMap, real: Tensor | None = None) -> Tensor:
    """New state; rows with `real` 0 keep their state."""
    W = h.shape[-1]
    of_gates, of_new = torch.split(given, [2 * W, W], -1)  # each slice would have a gradient of full size
    z, r = (of_gates + gates(h)).sigmoid().chunk(2, -1)
    made = (of_new + new(r * h)).tanh()
    return h + (z if real is None else z * real) * (made - h)


class BidirectionalGRU(nn.Module):
    """Two cells, one forward and one backward; the outputs are concatenated.

    Both cells run in one loop, with as many operators per step as one cell."""

    def __init__(self, input_width: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.onward, self.back = GRUCell(input_width, width, bias), GRUCell(input_width, width, bias)

    def forward(
        self, x: Float[Tensor, "B L E"], valid: Bool[Tensor, "B L"] | None = None
    ) -> tuple[Float[Tensor, "B L two_W"], Float[Tensor, "B W"]]:
        """[forward | backward] states at every position, and the backward state at the first position."""
        B = len(x)
        gates = torch.stack([self.onward.gates, self.back.gates]).mT
        new = torch.stack([self.onward.new, self.back.new]).mT
        given = torch.stack([self.onward.given(x), self.back.given(x).flip(1)])
        marks = None if valid is None else torch.stack([valid, valid.flip(1)])[..., None].to(given.dtype)
        h, states = x.new_zeros(2, B, gates.shape[1]), []
        for at, now in enumerate(given.unbind(2)):
            h = _gru_step(now, h, lambda x: x @ gates, lambda x: x @ new, None if marks is None else marks[:, :, at])
            states.append(h)
        onward, back = torch.stack(states, 2)
        return torch.cat([onward, back.flip(1)], -1), h[1]


def lstm_cell(
    gates: Float[Tensor, "*rows four_n"], cell: Float[Tensor, "*rows n"], order: GateOrder = "ifgo"
) -> tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows n"]]:
    """New hidden state o · tanh(c), and new cell c = f · cell + i · g."""
    part = dict(zip(order, gates.chunk(4, -1), strict=True))
    cell = part["f"].sigmoid() * cell + part["i"].sigmoid() * part["g"].tanh()
    return part["o"].sigmoid() * cell.tanh(), cell


# -- layers


def _make_layers(cell: CellName, inputs: int, width: int, depth: int, read: int) -> nn.ModuleList:
    """`read`: input width of all layers except the first.

    Layers are separate modules, because dropout between the layers of one cuDNN call would not follow the seed of PyTorch."""
    widths = [inputs] + [read] * (depth - 1)
    return nn.ModuleList(CELLS[cell](each, width, bias=False, batch_first=True) for each in widths)


def run_layer(layer: nn.Module, x: Tensor, initial: Sequence[Tensor] = ()) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs and last states of a recurrent layer, (1, B, W) each: hidden state, and cell state of an LSTM. `initial`:
    initial states; empty: 0.

    On CUDA in the dtype of the weights: under autocast, cuDNN computes in float16 for any autocast dtype, and gradients
    summed over thousands of tokens overflow. Also on CPUs without a bfloat16 LSTM in oneDNN."""
    casts = isinstance(layer, nn.LSTM) and torch.is_autocast_enabled("cpu")
    keeps = not x.is_cuda and (not casts or capabilities.is_available("autocast_lstm"))
    if not keeps:
        dtype = next(layer.parameters()).dtype
        x, initial = x.to(dtype), [h.to(dtype) for h in initial]
    given = [tuple(initial)] if len(initial) > 1 else initial
    with nullcontext() if keeps else torch.autocast(x.device.type, enabled=False):
        y, last = layer(x, *given)
    return y, last if isinstance(last, tuple) else (last,)


def _stack_layers(layers: list[tuple[Tensor, ...]]) -> RecurrentTensors:
    states = [torch.stack([h[0] for h in each], 1) for each in zip(*layers, strict=True)]
    return dict(zip("hc", states, strict=False))


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
        after = []
        for number, layer in enumerate(self.layers):
            initial = [state[name][None, :, number].contiguous() for name in ("h", "c") if name in state]
            x, last = run_layer(layer, self.dropout(x) if number else x, initial)
            after.append(last)
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
            if self.back is not None:
                z, other = run_layer(self.back[number], order.reverse(x))
                last = tuple(torch.cat(pair, -1) for pair in zip(last, other, strict=True))
                y = torch.cat([y, order.reverse(z)], -1)
            x = y
            after.append(last)
        return _stack_layers(after)


@dataclass(frozen=True)
class ReadingOrder:
    """Column order of tokens, such that rows are left-padded."""

    columns: Int[Tensor, "B L"] | None = None
    """(B, L) source column of each position, before reversal; None: rows without padding."""
    valid: Bool[Tensor, "B L"] | None = None  # False at padding, in the order of `columns`.
    reversed: bool = False
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


def decode_compact(
    decode: Callable[[Tensor], Tensor], ids: Int[Tensor, "B L"], mask: Tensor | None
) -> Float[Tensor, "B L D"]:
    """decode(ids), with padding moved to the end meanwhile, so that a causal decoder never attends to padding. A mask of
    lengths (B,) needs no reordering."""
    if mask is None or mask.ndim == 1:
        return decode(ids)
    order = (~mask).long().argsort(dim=1, stable=True)
    return gather_columns(decode(ids.gather(1, order)), order.argsort(dim=1))


# -- decoding state


@dataclass
class RecurrentState:
    """Decoding state of recurrent and convolutional decoders: named tensors, one row per batch row, beams adjacent.

    Shapes are constant and tensors are updated in place, so that a CUDA graph can capture a step."""

    positions: Tensor  # (B,) number of tokens processed per row.
    state: dict[str, Tensor]  # Tensors that steps update and beams reorder.
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
        if beams > 1:
            self.select_rows(torch.arange(len(self.positions), device=self.positions.device).repeat_interleave(beams))

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

    def tensors(self) -> list[Tensor]:
        return [self.positions, *self.state.values(), *self.context.values()]
