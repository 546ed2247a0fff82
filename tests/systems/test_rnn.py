"""Recurrent encoder–decoder and RNNsearch against their equations, one row and one token at a time; the lecture's example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.model import Model
from regard.nn.recording import record_attention
from regard.nn.recurrent.score_attention import AdditiveScore, ScoreAttention
from regard.types import Batch, DecoderInputs
from tiny import lecture, near, same_gradients, tiny

X = torch.tensor([[5, 3, 6, 2], [4, 2, 0, 0], [6, 6, 2, 0]])
LENGTHS = torch.tensor([4, 2, 3])
TARGET = torch.tensor([[1, 4, 5], [1, 3, 0], [1, 6, 3]])
BATCH = Batch(X, LENGTHS, decoder=DecoderInputs(TARGET))
Weights = dict[str, Tensor]


def assert_rows(model: Model, row_logits: Callable[[Weights, Tensor, Tensor], Tensor]) -> None:
    """Compare logits and gradients of the longest source and of a source with padding with an implementation for one row."""
    weights = dict(model.body.named_parameters())
    ours, rows = model.body.to_logits(model.body(BATCH).sequence), ((0, 3), (1, 2))
    right = [row_logits(weights, X[row, : LENGTHS[row]], TARGET[row, :length]) for row, length in rows]
    same_gradients(model.body, torch.cat([ours[row, :length] for row, length in rows]), torch.cat(right), 1e-11)


def run(kind: str, weights: Weights, prefix: str, xs: list[Tensor], h: Tensor, c: Tensor) -> tuple[Any, Tensor, Tensor]:
    """Outputs of a layer for a sequence, with cells of torch."""
    own, out = [weights[f"{prefix}.weight_{part}_l0"] for part in ("ih", "hh")], []
    for x in xs:
        if kind == "lstm":
            h, c = torch.lstm_cell(x, (h, c), *own)
        else:
            h = (torch.gru_cell if kind == "gru" else torch.rnn_tanh_cell)(x, h, *own)
        out.append(h)
    return out, h, c


def rnn_logits(config: Any, weights: Weights, source: Tensor, target: Tensor) -> Tensor:
    table = weights["tables.target.weight"]
    xs = list(weights.get("tables.source.weight", table)[source][:, None])
    xs = xs[::-1] if config.reverse_source else xs
    zero, states = torch.zeros(1, config.width // (1 + config.bidirectional), dtype=torch.float64), []
    for layer in range(config.depth):
        outputs, h, c = run(config.cell, weights, f"encoder.layers.{layer}", xs, zero, zero)
        if config.bidirectional:
            back, *last = run(config.cell, weights, f"encoder.back.{layer}", xs[::-1], zero, zero)
            outputs = [torch.cat(pair, -1) for pair in zip(outputs, back[::-1], strict=True)]
            h, c = torch.cat([h, last[0]], -1), torch.cat([c, last[1]], -1)
        xs = outputs
        states.append((h, c))
    ys = [torch.cat([y, states[-1][0]], -1) if config.feed_context else y for y in table[target][:, None]]
    for layer, (h, c) in enumerate(states):
        ys = run(config.cell, weights, f"decoder.layers.{layer}", ys, h, c)[0]
    return torch.cat(ys) @ (table if config.tie_embeddings == "all" else weights["tables.output.weight"]).T


@pytest.mark.parametrize("form", [
    {"reverse_source": False}, {"reverse_source": True, "tie_embeddings": "source_target"},
    {"bidirectional": True, "reverse_source": False, "feed_context": True},
    {"bidirectional": True, "reverse_source": True, "depth": 1},
    {"feed_context": True, "depth": 1, "embedding_dim": 4, "tie_embeddings": "all"},
])  # fmt: skip
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_recurrent_model_equals_cells_of_torch_with_gradients(cell: str, form: dict[str, Any]) -> None:
    model = tiny("rnn", cell=cell, **{"width": 4, "embedding_dim": 3, "depth": 2, "vocab_size": 7, **form})
    assert_rows(model, lambda *given: rnn_logits(model.config, *given))


def search_cell(w: Weights, name: str, x: Tensor, h: Tensor, seen: Tensor | None = None) -> Tensor:
    """GRU cell of the paper: gates z and r, r inside the product, and z as the weight of the new state."""
    given = affine(w, f"{name}.given", x)
    given = given if seen is None else given + w["decoder.seen.weight"] @ seen
    (gz, gr, gn), (uz, ur) = given.chunk(3), w[f"{name}.gates"].chunk(2)
    z, r = torch.sigmoid(gz + uz @ h), torch.sigmoid(gr + ur @ h)
    return (1 - z) * h + z * torch.tanh(gn + w[f"{name}.new"] @ (r * h))


def affine(w: Weights, name: str, x: Tensor) -> Tensor:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", torch.zeros((), dtype=torch.float64))


def search_logits(config: Any, w: Weights, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention weights (T, S) by the appendix of the paper."""
    table = w["tables.target.weight"]
    words, score = w.get("tables.source.weight", table)[source], "decoder.align.score"
    sides: dict[str, list[Tensor]] = {"onward": [], "back": []}
    for side, states in sides.items():
        h = torch.zeros(config.encoder_width, dtype=torch.float64)
        for x in words if side == "onward" else words.flip(0):
            h = search_cell(w, f"encoder.{side}", x, h)
            states.append(h)
    places = torch.cat([torch.stack(sides["onward"]), torch.stack(sides["back"][::-1])], -1)
    s, said, seen = torch.tanh(affine(w, "decoder.first", sides["back"][-1])), [], []
    for y in table[target]:
        if config.attention_score == "additive":
            inner = torch.tanh(w[f"{score}.q.weight"] @ s + places @ w[f"{score}.k.weight"].T)
            alpha = (inner @ w[f"{score}.v.weight"][0]).softmax(0)
        else:
            keys = places if config.attention_score == "dot" else places @ w[f"{score}.k.weight"].T
            alpha = (keys @ s).softmax(0)
        c = alpha @ places
        t = affine(w, "decoder.out", torch.cat([s, y, c])).view(-1, 2).amax(1)  # with the previous state
        s = search_cell(w, "decoder.cell", y, s, c)
        said.append(table @ t if config.tie_embeddings == "all" else affine(w, "tables.output", t))
        seen.append(alpha)
    return torch.stack(said), torch.stack(seen)


@pytest.mark.parametrize("form", [
    {}, {"bias": False, "tie_embeddings": "source_target"}, {"attention_score": "dot", "encoder_width": 2},
    {"attention_score": "general", "embedding_dim": 3, "tie_embeddings": "all"},
])  # fmt: skip
def test_rnnsearch_equals_the_equations_of_the_paper_with_gradients(form: dict[str, Any]) -> None:
    sizes = {"width": 4, "encoder_width": 3, "embedding_dim": 2, "attention_dim": 5, "maxout_dim": 3, "vocab_size": 7}
    model = tiny("rnnsearch", **{**sizes, "source_vocab_size": 0, **form})
    assert_rows(model, lambda *given: search_logits(model.config, *given)[0])
    with record_attention(model.body) as seen:
        model.body(BATCH)
    weights = seen.weights("decoder.align")
    for row, length in ((0, 3), (1, 2)):
        given = dict(model.body.named_parameters()), X[row, : LENGTHS[row]], TARGET[row, :length]
        near(weights[row, 0, :length, : LENGTHS[row]], search_logits(model.config, *given)[1])
    assert weights.shape == (3, 1, 3, 4) and not weights[1, :, :, 2:].any()


def test_one_attention_step_equals_the_lectures() -> None:
    given, right = lecture("additive attention")
    align: Any = ScoreAttention(AdditiveScore(3, 3, 4)).double()
    with torch.no_grad():
        align.score.q.weight.copy_(given["W_S"].T)
        align.score.k.weight.copy_(given["U_H"].T)
        align.score.v.weight.copy_(given["V"][None])
    context, query = align.prepare(given["H"][None]), given["S"][None, None]
    mixed, weights = align(query, context)
    near(align.score(query, context.keys)[0, 0], right["E"])
    near(weights[0, 0], right["ALPHA"])
    near(mixed[0, 0], right["C"])
    order = torch.tensor([2, 0, 3, 1])  # attention does not depend on the order of the keys
    near(align(query, align.prepare(given["H"][None, order]))[0], mixed)
