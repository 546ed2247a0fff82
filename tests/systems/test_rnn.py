"""Recurrent encoder-decoder against loops over its units, and against torch layers on packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.model import Model
from regard.nn.recurrent.rnn import ReadingOrder
from regard.types import Batch, DecoderInputs
from tiny import gradients, near, noise, tiny

Vector = list[Tensor]
Matrix = list[Vector]

X = torch.tensor([[5, 3, 6, 2], [4, 2, 0, 0], [6, 6, 2, 0]])
LENGTHS = torch.tensor([4, 2, 3])
TARGET = torch.tensor([[1, 4, 5], [1, 3, 0], [1, 6, 3]])
SIZES: dict[str, Any] = {"width": 4, "embedding_dim": 3, "depth": 2, "vocab_size": 7}


# -- loops


def numbers(matrix: Tensor) -> Matrix:
    return [list(row.unbind()) for row in matrix.unbind()]


def times(matrix: Matrix, vector: Vector) -> Vector:
    found = []
    for row in matrix:
        total = torch.zeros((), dtype=torch.float64)
        for weight, value in zip(row, vector, strict=True):
            total = total + weight * value
        found.append(total)
    return found


def plus(*vectors: Vector) -> Vector:
    return [sum(values[1:], values[0]) for values in zip(*vectors, strict=True)]


def each(function: Callable[[Tensor], Tensor], vector: Vector) -> Vector:
    return [function(value) for value in vector]


def by(*vectors: Vector) -> Vector:
    return [one * other for one, other in zip(*vectors, strict=True)]


def cell(kind: str, given: Matrix, kept: Matrix, x: Vector, h: Vector, c: Vector) -> tuple[Vector, Vector]:
    """One step by the equations; gates in the order of torch: i f g o of an LSTM, r z n of a GRU."""
    W = len(h)
    sums, own = times(given, x), times(kept, h)
    part = [slice(W * n, W * (n + 1)) for n in range(4)]
    if kind == "rnn":
        return each(torch.tanh, plus(sums, own)), c
    if kind == "gru":
        r = each(torch.sigmoid, plus(sums[part[0]], own[part[0]]))
        z = each(torch.sigmoid, plus(sums[part[1]], own[part[1]]))
        n = each(torch.tanh, plus(sums[part[2]], by(r, own[part[2]])))
        return [(1 - z[k]) * n[k] + z[k] * h[k] for k in range(W)], c
    i, f, o = (each(torch.sigmoid, plus(sums[part[k]], own[part[k]])) for k in (0, 1, 3))
    g = each(torch.tanh, plus(sums[part[2]], own[part[2]]))
    c = plus(by(f, c), by(i, g))
    return by(o, each(torch.tanh, c)), c


def run(model: Model, prefix: str, xs: Matrix, h: Vector, c: Vector) -> tuple[Matrix, Vector, Vector]:
    """Outputs of a layer for a sequence."""
    weights = dict(model.body.named_parameters())
    given, kept = numbers(weights[f"{prefix}.weight_ih_l0"]), numbers(weights[f"{prefix}.weight_hh_l0"])
    out = []
    for x in xs:
        h, c = cell(model.config.cell, given, kept, x, h, c)
        out.append(h)
    return out, h, c


def looped(model: Model, source: list[int], target: list[int]) -> Tensor:
    """Logits (T, V) of one row in loops over tokens and units."""
    weights, config = dict(model.body.named_parameters()), model.config
    table = numbers(weights["tables.target.weight"])
    read_by = numbers(weights["tables.source.weight"]) if "tables.source.weight" in weights else table
    xs = [read_by[token] for token in source]
    xs = xs[::-1] if config.reverse_source else xs
    W = config.width // (2 if config.bidirectional else 1)
    nothing = [torch.zeros((), dtype=torch.float64)] * W
    states = []
    for layer in range(config.depth):
        onward, h, c = run(model, f"encoder.layers.{layer}", xs, nothing, nothing)
        if config.bidirectional:
            back, *last = run(model, f"encoder.back.{layer}", xs[::-1], nothing, nothing)
            onward = [[*one, *other] for one, other in zip(onward, back[::-1], strict=True)]
            h, c = [*h, *last[0]], [*c, *last[1]]
        xs = onward
        states.append((h, c))
    fed = states[-1][0] if config.feed_context else []
    ys = [[*table[token], *fed] for token in target]
    for layer, (h, c) in enumerate(states):
        ys = run(model, f"decoder.layers.{layer}", ys, h, c)[0]
    out = table if config.tie_embeddings == "all" else numbers(weights["tables.output.weight"])
    return torch.stack([torch.stack(times(out, y)) for y in ys])


CELLS = ("rnn", "gru", "lstm")
FORMS: list[dict[str, Any]] = [
    {"reverse_source": False},
    {"reverse_source": True, "tie_embeddings": "source_target"},
    {"bidirectional": True, "reverse_source": False, "feed_context": True},
    {"bidirectional": True, "reverse_source": True, "depth": 1},
    {"feed_context": True, "depth": 1, "embedding_dim": 4, "tie_embeddings": "all"},
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cell", CELLS)
def test_logits_and_gradients_are_those_of_loops_over_the_equations(cell: str, form: dict[str, Any]) -> None:
    model = tiny("rnn", cell=cell, **{**SIZES, **form})
    ours = model.body.to_logits(model.body(Batch(X, LENGTHS, decoder=DecoderInputs(TARGET))).sequence)
    rows, lengths = (0, 1), (3, 2)  # the longest source, and a source with padding
    right = [
        looped(model, X[row, : LENGTHS[row]].tolist(), TARGET[row, :n].tolist())
        for row, n in zip(rows, lengths, strict=True)
    ]
    for row, n, logits in zip(rows, lengths, right, strict=True):
        near(ours[row, :n], logits)
    pull = [noise(*logits.shape, seed=row) for row, logits in enumerate(right)]
    mine = sum((ours[row, :n] * p).sum() for row, n, p in zip(rows, lengths, pull, strict=True))
    theirs = sum((logits * p).sum() for logits, p in zip(right, pull, strict=True))
    found, wanted = gradients(model.body, mine), gradients(model.body, theirs)  # type: ignore[arg-type]
    assert set(found) == set(wanted) == set(dict(model.body.named_parameters()))
    for name, gradient in wanted.items():
        near(found[name], gradient, 1e-11)


# -- torch layers


TORCHS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def torchs(model: Model) -> tuple[Any, Any]:
    """One torch module per side, with the same parameters."""
    config, kind = model.config, TORCHS[model.config.cell]
    ways = 2 if config.bidirectional else 1
    fed = config.width if config.feed_context else 0
    usual: dict[str, Any] = {"num_layers": config.depth, "bias": False, "batch_first": True, "dtype": torch.float64}
    encoder = kind(config.embedding_dim, config.width // ways, bidirectional=ways == 2, **usual)
    decoder = kind(config.embedding_dim + fed, config.width, **usual)
    for module, side in ((encoder, model.body.encoder), (decoder, model.body.decoder)):
        for layer, way, part in product(range(config.depth), range(ways), ("ih", "hh")):
            if way and module is decoder:
                continue
            ours = (side.back if way else side.layers)[layer]
            theirs = getattr(module, f"weight_{part}_l{layer}{'_reverse' * way}")
            theirs.data.copy_(getattr(ours, f"weight_{part}_l0"))
    return encoder, decoder


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("both_ways", "feeds"), [(False, False), (True, False), (False, True)])
def test_it_is_torchs_layers_on_packed_sequences(cell: str, both_ways: bool, feeds: bool) -> None:
    model = tiny("rnn", cell=cell, bidirectional=both_ways, feed_context=feeds, reverse_source=False, width=6, depth=3)
    encoder, decoder = torchs(model)
    tables, config = model.body.tables, model.config
    x = tables.source(X)
    packed = nn.utils.rnn.pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    last = encoder(packed)[1]
    kept = list(last) if isinstance(last, tuple) else [last]
    if both_ways:
        kept = [torch.cat([part[0::2], part[1::2]], -1) for part in kept]
    for name, part in zip("hc", kept, strict=False):
        near(model.body.encode(Batch(X, LENGTHS))[name], part.transpose(0, 1))
    y = tables.target(TARGET)
    if feeds:
        y = torch.cat([y, kept[0][-1][:, None].expand(-1, 3, -1)], -1)
    right = tables.output(decoder(y, tuple(kept) if len(kept) > 1 else kept[0])[0])
    ours = model.body.to_logits(model.body(Batch(X, LENGTHS, decoder=DecoderInputs(TARGET))).sequence)
    near(ours, right)
    pull = noise(*ours.shape, seed=4)
    mine = gradients(model.body, (ours * pull).sum())
    whole = nn.ModuleDict({"encoder": encoder, "decoder": decoder, "tables": tables})
    theirs = gradients(whole, (right * pull).sum())
    for name, gradient in mine.items():
        side, _, rest = name.partition(".")
        if side != "tables":
            stack, layer, weight = rest.split(".")
            rest = f"{weight[:-1]}{layer}{'_reverse' * (stack == 'back')}"
        near(gradient, theirs[f"{side}.{rest}"], 1e-11)
    assert len(mine) == len(theirs) and config.depth == 3


def test_the_fed_context_is_the_last_state_and_changes_outputs() -> None:
    model = tiny("rnn", feed_context=True, depth=1)
    kept = model.body.encode(Batch(X, LENGTHS))
    near(kept["fed"], kept["h"][:, -1])
    right = model.body.decode(TARGET, kept)[0]
    other = model.body.decode(TARGET, {**kept, "fed": kept["fed"] + 1})[0]
    assert not torch.allclose(right, other)


def test_rows_are_reversed_within_their_lengths_and_back() -> None:
    ids = torch.arange(12).view(2, 6) + 1
    real = torch.tensor([[True] * 6, [True, False, True, True, False, False]])

    def read(order: ReadingOrder) -> Tensor:
        return order.reorder_embeddings(order.reorder_ids(ids)[..., None].double())

    order = ReadingOrder.from_mask(real)
    assert read(order)[..., 0].tolist() == [[1, 2, 3, 4, 5, 6], [0, 0, 0, 7, 9, 10]]
    turned = order.reverse(read(order))
    assert turned[..., 0].tolist() == [[6, 5, 4, 3, 2, 1], [0, 0, 0, 10, 9, 7]]
    assert torch.equal(order.reverse(turned), read(order))
    assert torch.equal(read(ReadingOrder.from_mask(real, reversed=True)), turned)
    full = ReadingOrder.from_mask(None, reversed=True)
    assert full.reorder_ids(ids) is ids
    assert torch.equal(read(full), ReadingOrder.from_mask(None).reverse(read(ReadingOrder.from_mask(None))))
