"""Alignment scores of recurrent models against loops, and models with a state of constant size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from oracle import noisy
from regard.nn.recording import record_attention
from regard.nn.recurrent.rnn import RecurrentState
from regard.nn.recurrent.score_attention import AdditiveScore, MultiplicativeScore, ScoreAttention, make_score

torch.manual_seed(0)


@pytest.mark.parametrize("name", ["additive", "additive with biases", "dot", "general"])
def test_scores_equal_the_formulas_of_the_papers(name: str) -> None:
    D, C, n = 3, 3 if name == "dot" else 5, 4
    score = AdditiveScore(D, C, n, bias=True) if " " in name else make_score(name, D, C, n)  # type: ignore[arg-type]
    align = noisy(ScoreAttention(score))
    query, context = torch.randn(3, 2, D, dtype=torch.float64), torch.randn(3, 6, C, dtype=torch.float64)
    real = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [False] * 6])
    mixed, weights = align(query, align.prepare(context, real))  # type: ignore[operator]
    for b in range(2):
        for i in range(2):
            raw = []
            for j in range(6 if b == 0 else 4):
                q, k = query[b, i], context[b, j]
                if isinstance(score, AdditiveScore):
                    inner = score.q.weight @ q + score.k.weight @ k + (0 if score.k.bias is None else score.k.bias)
                    e = (score.v.weight[0] * inner.tanh()).sum() + (0 if score.v.bias is None else score.v.bias[0])
                else:
                    e = q @ (k if isinstance(score.k, nn.Identity) else score.k.weight @ k)
                raw.append(math.exp(float(e.detach())))
            right = torch.tensor([x / sum(raw) for x in raw], dtype=torch.float64)
            torch.testing.assert_close(weights[b, i, : len(raw)], right, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(mixed[b, i], right @ context[b, : len(raw)], rtol=1e-10, atol=1e-12)
    assert not weights[1, :, 4:].any() and not weights[2].any() and not mixed[2].any()


def test_alignments_can_be_recorded() -> None:
    model = nn.ModuleDict({"align": noisy(ScoreAttention(MultiplicativeScore(3, 5, general=True)))})
    align = model["align"]
    ready = align.prepare(torch.randn(2, 6, 5, dtype=torch.float64))  # type: ignore[operator]
    with record_attention(model) as seen:
        weights = align(torch.randn(2, 1, 3, dtype=torch.float64), ready)[1]
    assert torch.equal(seen.weights("align")[:, 0], weights)
    with pytest.raises(ValueError, match="width"):
        MultiplicativeScore(3, 5, general=False)


def held(rows: int, places: int, first: float, mask: bool = False) -> RecurrentState:
    own = {"h": first + torch.arange(rows * 4.0).view(rows, 2, 2)}
    context = {"keys": first + torch.arange(rows * places * 3.0).view(rows, places, 3)}
    real = {"valid": torch.ones(rows, places, dtype=torch.bool)} if mask else {}
    return RecurrentState.from_tensors(own, {**context, **real})


def test_beams_swap_their_prefixes_and_not_their_sources() -> None:
    state = held(2, 3, 0.0)
    state.expand_beams(2)
    assert len(state.positions) == 4 and torch.equal(state.state["h"][0], state.state["h"][1])
    state.update(h=torch.arange(16.0).view(4, 2, 2))
    before, keys, place = state.state["h"].clone(), state.context["keys"].clone(), state.state["h"].data_ptr()
    state.reorder(torch.tensor([1, 1, 3, 2]))
    assert torch.equal(state.state["h"], before[[1, 1, 3, 2]]) and torch.equal(state.context["keys"], keys)
    assert state.state["h"].data_ptr() == place and state.positions.tolist() == [1, 1, 1, 1]
    state.select_rows(torch.tensor([2, 3]))
    assert torch.equal(state.context["keys"], keys[[2, 3]]) and len(state.tensors()) == 3
