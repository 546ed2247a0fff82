"""What counted for a decision: the gradient of its number by each attention weight, against differences; words that decide."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from headed import headed
from regard.data.tables import Labelled
from regard.draw.counted import GRADIENT, ROLLED, Counted, Decided
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.inputs.text import Text
from regard.model import Identity, Model, assemble
from regard.nn import kernels
from regard.nn.watch import watch
from regard.systems import SYSTEMS
from regard.tasks import TASKS
from regard.tasks.heads import read
from regard.waists import Batch
from tiny import near, noisy

SENTENCES = (
    "the cat sat on the mat and looked at the moon",
    "a dog that never barked was sleeping under the table",
    "who saw the unbelievable comet yesterday evening",
)
LABELS = ("good", "bad", "so")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def encoder(task: str, labels: Sequence[str] = (), pair: str = "", **changes: Any) -> Model:
    """A noisy BERT of two layers that knows the words of the sentences."""
    text = Text.wordpiece(SENTENCES * 3, 130)
    sizes = {"width": 12, "depth": 2, "heads": 3, "hidden": 20, "length": 48}
    config = TASKS[task].bodied(TASKS[task].fit(SYSTEMS["bert"].config(**{**sizes, **changes}), text))
    return noisy(assemble(Identity(SYSTEMS["bert"], config, TASKS[task], labels=tuple(labels), pair=pair), text), 0.3)


def counted(found: Explanation, way: str = GRADIENT) -> list[Counted]:
    assert found.decided is not None
    return [one for one in found.decided.counted if one.way == way]


# -- the numbers


def moved(model: Model, batch: Batch, which: tuple[int, ...], step: float, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The logits when one weight (layer, head, query, key) is another by `step`."""
    real, calls = kernels.plain, iter(range(1000))

    def plain(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        out, weights = real(q, k, v, *rest)
        layer, head, query, key = which
        if next(calls) == layer:
            out = out.clone()
            out[0, head, query] += step * v[0, head, key]
        return out, weights

    with monkeypatch.context() as patch, torch.no_grad(), watch(model.body):
        patch.setattr(kernels, "plain", plain)
        return model.task.logits(model, batch)


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_what_each_token_counted_is_the_difference_that_each_weight_makes(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Differences of the logit by every weight, times the weight, its positive part, mean over heads: Ā; then R ← R + Ā R."""
    model = encoder("classify", LABELS) if system == "bert" else headed("classify", labels=LABELS)
    source = "the cat sat" if system == "bert" else "deaf"
    found = model.explain(source)
    one = counted(found)[0]
    label = model.identity.labels.index(one.title)
    assert found.decided is not None and one.title == found.decided.said
    length, depth, heads = len(one.pieces), model.config.depth, model.config.heads
    row = [model.text_or_refuse().id_of(piece.strip("␣")) for piece in one.pieces]
    batch = Batch(torch.tensor([row]))
    with torch.no_grad(), watch(model.body) as seen:
        chance = float(model.task.logits(model, batch).softmax(-1)[0, label])
    assert chance == pytest.approx(found.decided.chances[0][1], rel=1e-12)
    joined = torch.eye(length, dtype=torch.float64)
    for layer, name in enumerate(seen.names()):
        weights, mean = seen.weights(name)[0], torch.zeros(length, length, dtype=torch.float64)
        for head, query, key in np.ndindex(heads, length, length):
            up, down = (
                moved(model, batch, (layer, head, query, key), step, monkeypatch)[0, label] for step in (1e-4, -1e-4)
            )
            mean[query, key] += (weights[head, query, key] * (up - down) / 2e-4).clamp(min=0) / heads
        joined = joined + mean @ joined
    assert layer == depth - 1
    asked = 0 if system == "bert" else length - 1
    right = joined[asked] - torch.eye(length)[asked]
    assert one.at == (asked,) and float(right.sum()) > 0
    np.testing.assert_allclose(one.shares, right / right.sum(), atol=1e-7)


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_attention_is_rolled_out_from_the_token_that_is_asked(system: str) -> None:
    model = encoder("classify", LABELS) if system == "bert" else headed("classify", labels=LABELS)
    found = model.explain("the cat sat" if system == "bert" else "deaf")
    one = counted(found, ROLLED)[0]
    text, asked = (item.weights.astype(np.float64) for item in found.maps)
    product = np.eye(len(one.pieces))
    for layer in text:
        product = (layer.mean(0) + np.eye(len(product))) / 2 @ product
    np.testing.assert_allclose(one.shares, product[one.at[0]], atol=1e-6)
    assert one.shares.sum() == pytest.approx(1) and (system == "bert") == (one.at == (0,))
    # the row of that token, layer by layer
    np.testing.assert_allclose(asked[0].transpose(1, 0, 2), text[:, :, one.at[0]], atol=1e-7)
    assert found.maps[1].queries == tuple(f"layer {n + 1}" for n in range(model.config.depth))
    if system == "gpt2":
        assert not np.triu(text, 1).any()


def test_weights_stay_in_the_graph_only_where_that_is_asked_for() -> None:
    model = encoder("classify", LABELS)
    batch = Batch(torch.tensor([[2, 7, 9, 3]]))
    with watch(model.body) as plain:
        model.task.logits(model, batch)
    assert not any(look.weights.requires_grad for look in plain.looks)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with watch(model.body, gradients=True) as seen:  # frozen all the same
        value = model.task.logits(model, batch)[0, 1]
    found = torch.autograd.grad(value, [look.weights for look in seen.looks])
    assert len(found) == 2 and all(bool(gradient.any()) for gradient in found)
    kept: list[str] = []
    with torch.no_grad(), watch(model.body, each=lambda look: kept.append(look.name)) as none:
        model.task.logits(model, batch)
    assert kept == plain.names() and not none.looks


def test_explaining_leaves_the_model_as_it_was() -> None:
    model = encoder("classify", LABELS).train()
    quiet = encoder("classify", LABELS).explain(SENTENCES[0])
    again = model.explain(SENTENCES[0])
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    for a, b in zip(counted(quiet), counted(again), strict=True):
        assert np.array_equal(a.shares, b.shares)  # dropout is off, though it was on


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def reader(request: pytest.FixtureRequest) -> Model:
    """Has learnt in a second that one of two words decides, among words that do not; without them the class is so."""
    words = ["cat", "dog", "mat", "moon", "table", "comet", "evening", "wonderful", "dreadful"]
    if request.param == "bert":
        text = Text.wordpiece([" ".join(words)] * 9, 200)
    else:
        text = TASKS["classify"].grow(Text.language([" ".join(words), " " + " ".join(words)] * 9, 400), None)
    sizes = {"width": 32, "depth": 2, "heads": 2, "hidden": 64, "length": 24, "dropout": 0.0, "attention_dropout": 0.0}
    sizes |= {"head_dropout": 0.0} if request.param == "bert" else {"embedding_dropout": 0.0}
    config = TASKS["classify"].fit(SYSTEMS[request.param].config(**sizes), text)
    torch.manual_seed(3)
    model = assemble(Identity(SYSTEMS[request.param], config, TASKS["classify"], labels=LABELS), text)
    random = np.random.default_rng(0)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(120):
        lines, right = random.choice(words[:7], (16, 6)).tolist(), random.integers(0, 3, 16).tolist()
        for line, number in zip(lines, right, strict=True):
            if number < 2:
                line[random.integers(6)] = words[7 + number]
        samples = [Labelled(" ".join(line), "", LABELS[number]) for line, number in zip(lines, right, strict=True)]
        encoded = model.task.encode(samples, text, config, 24, None, LABELS)
        total, count = model.task.loss(model, model.task.collate(encoded, range(16), config))
        optimiser.zero_grad()
        (total / count).backward()
        optimiser.step()
    assert float((total / count).detach()) < 0.1
    return model.eval()


@pytest.mark.parametrize("keyword", ["wonderful", "dreadful"])
def test_the_word_that_decides_is_the_word_that_counted(reader: Model, keyword: str) -> None:
    found = reader.explain(f"cat moon table {keyword} evening dog")
    assert found.decided is not None and found.decided.said == ("good" if keyword == "wonderful" else "bad")
    one = counted(found)[0]
    (best, share), *_ = one.strongest(1)
    assert best == keyword and share > 0.5
