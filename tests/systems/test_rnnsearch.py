"""RNNsearch of Bahdanau et al. against loops of its equations, and its attention against the lecture's example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_rnn import LENGTHS, TARGET, Matrix, Vector, X, by, each, numbers, plus, times
from torch import Tensor

from regard.model import Model
from regard.nn.recording import record_attention
from regard.nn.recurrent.rnn import GRUCell
from regard.nn.recurrent.score_attention import AdditiveScore, ScoreAttention
from regard.types import Batch, DecoderInputs
from tiny import gradients, lecture, near, noise, noisy, tiny

SIZES: dict[str, Any] = {
    "width": 4, "encoder_width": 3, "embedding_dim": 2, "attention_dim": 5, "maxout_dim": 3, "vocab_size": 7,
    "source_vocab_size": 0,
}  # fmt: skip

# -- loops


class Loops:
    """One row in loops over tokens and units, by the appendix of the paper; W E y, U s and C c are separate."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.tensors = dict(model.body.named_parameters())

    def get(self, name: str) -> Matrix:
        return numbers(self.tensors[name])

    def bias(self, name: str) -> Vector | None:
        return list(self.tensors[name].unbind()) if name in self.tensors else None

    def affine(self, name: str, x: Vector) -> Vector:
        found, bias = times(self.get(f"{name}.weight"), x), self.bias(f"{name}.bias")
        return found if bias is None else plus(found, bias)

    def cell(self, name: str, x: Vector, h: Vector, seen: Vector | None = None) -> Vector:
        """GRU cell: gates z and r, r inside the product, and z as the weight of the new state."""
        W = len(h)
        given = self.affine(f"{name}.given", x)
        if seen is not None:
            given = plus(given, times(self.get("decoder.seen.weight"), seen))
        gates, new = self.get(f"{name}.gates"), self.get(f"{name}.new")
        z = each(torch.sigmoid, plus(given[:W], times(gates[:W], h)))
        r = each(torch.sigmoid, plus(given[W : 2 * W], times(gates[W:], h)))
        made = each(torch.tanh, plus(given[2 * W :], times(new, by(r, h))))
        return [(1 - z[k]) * h[k] + z[k] * made[k] for k in range(W)]

    def annotations(self, source: list[int]) -> tuple[Matrix, Vector]:
        table = self.get("tables.source.weight" if "tables.source.weight" in self.tensors else "tables.target.weight")
        nothing = [torch.zeros((), dtype=torch.float64)] * self.config.encoder_width
        onward, back = [], []
        h = nothing
        for token in source:
            h = self.cell("encoder.onward", table[token], h)
            onward.append(h)
        h = nothing
        for token in reversed(source):
            h = self.cell("encoder.back", table[token], h)
            back.insert(0, h)
        return [[*one, *other] for one, other in zip(onward, back, strict=True)], back[0]

    def score(self, s: Vector, h: Vector) -> Tensor:
        name = "decoder.align.score"
        if self.config.attention_score == "additive":
            inner = each(
                torch.tanh, plus(times(self.get(f"{name}.q.weight"), s), times(self.get(f"{name}.k.weight"), h))
            )
            return times(self.get(f"{name}.v.weight"), inner)[0]
        key = h if self.config.attention_score == "dot" else times(self.get(f"{name}.k.weight"), h)
        return sum(by(s, key)[1:], by(s, key)[0])

    def looks(self, s: Vector, places: Matrix) -> Vector:
        powers = [self.score(s, h).exp() for h in places]
        return [power / sum(powers[1:], powers[0]) for power in powers]

    def logits(self, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
        """Logits (T, V) and attention weights (T, S)."""
        places, first = self.annotations(source)
        s = each(torch.tanh, self.affine("decoder.first", first))
        table, said, seen = self.get("tables.target.weight"), [], []
        for token in target:
            y = table[token]
            alpha = self.looks(s, places)
            c = plus(*[[weight * value for value in h] for weight, h in zip(alpha, places, strict=True)])
            two = self.affine("decoder.out", [*s, *y, *c])  # with the previous state
            t = [torch.maximum(two[2 * k], two[2 * k + 1]) for k in range(self.config.maxout_dim)]
            s = self.cell("decoder.cell", y, s, c)
            said.append(times(table, t) if self.config.tie_embeddings == "all" else self.affine("tables.output", t))
            seen.append(torch.stack(alpha))
        return torch.stack([torch.stack(row) for row in said]), torch.stack(seen)


FORMS: list[dict[str, Any]] = [
    {},
    {"bias": False, "tie_embeddings": "source_target"},
    {"attention_score": "general", "embedding_dim": 3, "tie_embeddings": "all"},
    {"attention_score": "dot", "encoder_width": 2},
]


@pytest.mark.parametrize("form", FORMS)
def test_logits_weights_and_gradients_are_those_of_loops_over_the_equations(form: dict[str, Any]) -> None:
    model = tiny("rnnsearch", **{**SIZES, **form})
    loops = Loops(model)
    with record_attention(model.body) as seen:
        ours = model.body.to_logits(model.body(Batch(X, LENGTHS, decoder=DecoderInputs(TARGET))).sequence)
    rows, lengths = (0, 1), (3, 2)  # the longest source, and a source with padding
    right = []
    for row, n in zip(rows, lengths, strict=True):
        logits, alpha = loops.logits(X[row, : LENGTHS[row]].tolist(), TARGET[row, :n].tolist())
        right.append(logits)
        near(ours[row, :n], logits)
        near(seen.weights("decoder.align")[row, 0, :n, : LENGTHS[row]], alpha)
    assert seen.weights("decoder.align").shape == (3, 1, 3, 4) and not seen.weights("decoder.align")[1, :, :, 2:].any()
    pull = [noise(*logits.shape, seed=row) for row, logits in enumerate(right)]
    mine: Any = sum((ours[row, :n] * p).sum() for row, n, p in zip(rows, lengths, pull, strict=True))
    theirs: Any = sum((logits * p).sum() for logits, p in zip(right, pull, strict=True))
    found, wanted = gradients(model.body, mine), gradients(model.body, theirs)
    assert set(found) == set(wanted) == set(dict(model.body.named_parameters()))
    for name, gradient in wanted.items():
        near(found[name], gradient, 1e-11)


def test_the_cell_is_not_torchs() -> None:
    """Equal to torch for r = 1 and 1 - z; different for r inside the product."""
    cell, W = noisy(GRUCell(3, 4)), 4
    other = torch.nn.GRUCell(3, 4, dtype=torch.float64)
    z, r, n = cell.given.weight.chunk(3)
    bz, br, bn = cell.given.bias.chunk(3)
    with torch.no_grad():
        other.weight_ih.copy_(torch.cat([r, -z, n]))
        other.weight_hh.copy_(torch.cat([cell.gates[W:], -cell.gates[:W], cell.new]))
        other.bias_ih.copy_(torch.cat([br, -bz, bn]))
        other.bias_hh.zero_()
    x, h = noise(2, 3), noise(2, 4, seed=1)
    assert not torch.allclose(cell(cell.given(x), h), other(x, h))
    with torch.no_grad():
        other.bias_ih[:W] = cell.given.bias[W : 2 * W] = 50.0
    near(cell(cell.given(x), h), other(x, h), 1e-10)


# -- the lecture's example


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
