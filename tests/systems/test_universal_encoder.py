"""Encoder of the Universal Transformer: repeated torch layer, positions and steps, and tasks on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_universal import coordinates, torch_layer
from torch import Tensor

import regard
from encoders import encoder
from regard.data.settings import DataSettings
from regard.data.text.qa import QASample
from regard.data.text.samples import LabeledText, Pair
from regard.data.text.tagged import TaggedSentence
from regard.model import Model
from regard.nn.recording import record_attention
from regard.systems import universal_encoder
from regard.tasks.base import LossWeights
from regard.types import Batch
from tiny import near, noise, noisy
from tiny_text_models import train

NAME = "universal-encoder"
HALTING = ("halting", "halting, accumulated")
SIZES: dict[str, Any] = {"width": 12, "num_steps": 4, "heads": 3, "ffn_dim": 20, "vocab_size": 23, "dropout": 0.0}
IDS: dict[str, Any] = {"bos_id": 2, "eos_id": 3, "mask_id": 4}
TEXT = "The unbelievably old cat sat on a mat. The dog slept in Rome, near the river."
TEXTS = [TEXT, "who sat on what", "where did it sleep"] * 3
STOPS: dict[str, Any] = {"act": True, "act_max_steps": 5, "act_epsilon": 0.1}


def test_a_fixed_number_of_steps_is_torchs_layer_again_and_again_with_its_gradients() -> None:
    body = noisy(universal_encoder.build(universal_encoder.Config(**SIZES, **IDS)))
    layer: Any = torch_layer(body.encoder.block, False)
    x, lengths = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0]]), torch.tensor([5, 3])
    types = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    table, kinds = (part.weight.detach().clone().requires_grad_() for part in (body.tokens.table, body.types))
    hidden, right = torch.arange(5) >= lengths[:, None], table[x] * 12**0.5 + kinds[types]
    for step in range(1, 5):
        right = layer(right + coordinates(5, step), src_key_padding_mask=hidden)
    states = body(Batch(x, lengths, token_types=types))
    real = ~hidden
    near(states.sequence[real], right[real], 1e-10)
    near(states.pooled, right[:, 0], 1e-10)
    assert states.act_steps is None and not states.aux_losses
    weights = noise(8, 12, seed=3)
    (states.sequence[real] * weights).sum().backward()
    (right[real] * weights).sum().backward()
    near(body.tokens.table.weight.grad, table.grad, 1e-9)
    near(body.types.weight.grad, kinds.grad, 1e-9)
    near(body.encoder.block.feed.inner.up.weight.grad, layer.linear1.weight.grad, 1e-9)
    near(body.encoder.block.attend.inner.qkv.weight.grad, layer.self_attn.in_proj_weight.grad, 1e-9)
    near(body.encoder.block.attend.norm.weight.grad, layer.norm1.weight.grad, 1e-9)


@pytest.mark.parametrize("mixing", ["convex", "accumulated"])
def test_tokens_halt_as_in_a_loop(mixing: str) -> None:
    config = universal_encoder.Config(**SIZES, **IDS, act=True, act_max_steps=6, act_epsilon=0.05, act_mixing=mixing)  # type: ignore[arg-type]
    body = noisy(universal_encoder.build(config), seed=4)
    layer: Any = torch_layer(body.encoder.block, False)
    x = torch.tensor([[3, 4, 5, 6, 7, 9, 11]])
    gate = body.encoder.halting.gate
    chances, afters = [], []
    with torch.no_grad():
        state = body.tokens.table.weight[x] * 12**0.5 + body.types.weight[0]
        for step in range(1, 7):
            state = state + coordinates(7, step)
            chances.append(torch.sigmoid(state @ gate.weight[0] + gate.bias)[0].tolist())
            state = layer(state)
            afters.append(state[0].numpy())
        states = body(Batch(x))
    spent = 0.0
    for i in range(7):
        halt, out, steps, rest = 0.0, np.zeros(12), 0, 0.0
        while halt < 1 and steps < 6:
            p = chances[steps][i]
            share = p
            if halt + p > 0.95:
                share = rest = 1 - halt
            halt = 1.0 if rest else halt + p
            out = out * (1 - share) * (mixing == "convex") + out * (mixing != "convex") + afters[steps][i] * share
            steps += 1
        near(states.sequence[0, i], torch.from_numpy(out), 1e-10)
        assert int(states.act_steps[0, i]) == steps
        spent += steps + rest
    assert len(states.act_steps.unique()) > 2, "tokens must have different numbers of steps"
    assert states.aux_losses["cost"].item() == pytest.approx(0.01 * spent / 7)


# -- tasks

SAMPLES: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "classify": (
        [LabeledText("the cat sat", "", "no"), LabeledText("on a mat", "near the river", "yes")],
        ("no", "yes"),
    ),
    "choose": ([], ()),
    "tag": (
        [TaggedSentence(("the", "old", "cat"), ("O", "O", "B-x")), TaggedSentence(("Rome",), ("B-x",))],
        ("O", "B-x", "I-x"),
    ),
    "qa": ([QASample("who sat", TEXT, ("cat",), (TEXT.index("cat"),))], ()),
    "embed": ([Pair("the cat", "sat on a mat", "", 0), Pair("the dog", "slept in Rome", "", 0)], ()),
}


def asked(task: str, **changes: Any) -> Model:
    return encoder(task, TEXTS, SAMPLES.get(task, ((), ()))[1], NAME, **{"max_length": 48, **STOPS, **changes})


@pytest.mark.parametrize("task", ["classify", "tag", "qa", "embed"])
def test_steps_cost_while_a_model_learns_and_not_when_it_is_judged(task: str) -> None:
    model, (samples, labels) = asked(task, ponder_cost=0.3), SAMPLES[task]
    encoded = model.task.encode(samples, model.require_tokenizer(), model.config, 48, DataSettings(), labels)
    batch = model.task.collate(encoded, range(len(samples)), model.config)
    judged, count = model.task.loss(model, batch)
    model.train()
    learnt, again = model.task.loss(model, batch, LossWeights())
    assert int(count) == int(again)
    cost = (learnt - judged) / count
    sides = [model.body(Batch(batch.inputs.flatten(0, -2), None if batch.mask is None else batch.mask.flatten()))]
    if batch.decoder_inputs is not None:
        sides.append(model.body(Batch(batch.decoder_inputs, batch.decoder_mask)))
    if batch.token_types is None or not batch.token_types.any():  # else the second text would be read as the first
        near(cost, torch.stack([side.aux_losses["cost"] for side in sides]).mean(), 1e-9)
    assert 0.3 < float(cost.detach()) < 0.3 * 6
    learnt.backward()
    assert model.body.encoder.halting.gate.weight.grad.abs().sum() > 0


def test_masked_tokens_are_predicted_with_a_ponder_cost() -> None:
    model = asked("mlm")
    batch = Batch(
        torch.tensor([[2, 7, 4, 9, 3]]),
        labels=torch.tensor([8]),
        label_positions=torch.tensor([2]),
        token_types=torch.zeros(1, 5).long(),
    )
    judged, count = model.task.loss(model, batch)
    model.train()
    near(model.task.loss(model, batch)[0] - judged, model.body(batch).aux_losses["cost"] * count, 1e-9)
    answer = model.eval().predict("the [MASK] sat on a mat")
    (thought,) = model.explain("the [MASK] sat on a mat").act_steps
    assert answer.extra["act_steps"] == list(thought.steps) and "[MASK]" in thought.pieces


ASKED: dict[str, Any] = {
    "classify": "the old cat sat",
    "choose": {"context": "the cat", "choices": ["sat on a mat", "slept", "in Rome"]},
    "tag": "the old cat slept in Rome",
    "qa": ("who sat", TEXT),
}


@pytest.mark.parametrize("task", ASKED)
def test_a_prediction_reports_the_ponder_steps_of_its_tokens(task: str) -> None:
    model = asked(task)
    answer = model.predict(ASKED[task])
    told = model.explain(*[ASKED[task]] if task != "qa" else ASKED[task])
    steps = [step for thought in told.act_steps for step in thought.steps]
    # choices are sorted by probability
    assert answer.extra["act_steps"] == steps or task == "choose"
    assert sorted(answer.extra["act_steps"]) == sorted(steps)
    assert len(set(steps)) > 1
    assert all(thought.max_steps == 5 for thought in told.act_steps)
    both = model.predict([ASKED[task], ASKED[task]])
    assert [one.extra["act_steps"] for one in both] == [answer.extra["act_steps"]] * 2
    assert "steps" not in encoder(task, TEXTS, SAMPLES[task][1], NAME, max_length=48).predict(ASKED[task]).extra


def test_windows_of_a_long_text_follow_one_another_in_the_steps() -> None:
    model = asked("tag", max_length=8)
    (answer,) = model.predict([" ".join(["the old cat"] * 5)])
    encoded = model.task.encode(
        [TaggedSentence(tuple(["the", "old", "cat"] * 5), ())], model.require_tokenizer(), model.config, 8
    )
    assert len(encoded) > 1
    assert len(answer.extra["act_steps"]) == sum(len(row) for row in encoded.fields["text"])


# -- attention maps


@pytest.mark.parametrize("changes", [{}, STOPS])
def test_each_step_is_a_layer_of_attributions(changes: dict[str, Any]) -> None:
    model = encoder("classify", TEXTS, ("no", "yes"), NAME, max_length=48, **{"num_steps": 3, **changes})
    found = model.explain("the old cat sat")
    assert found.decision is not None
    counted, rolled = found.decision.attributions[:2]
    ids = [model.config.bos_id, *model.require_tokenizer().encode(["the old cat sat"])[0], model.config.eos_id]
    with record_attention(model.body, gradients=True) as seen:
        logits = model.task.logits(model, Batch(torch.tensor([ids])))[0]
    which = ("no", "yes").index(counted.title)
    owed = torch.autograd.grad(
        logits[which] - logits.mean(), [look.weights for look in seen.records], allow_unused=True
    )
    steps = len(seen.records)
    assert steps == (max(found.act_steps[0].steps) if changes else 3) and len(seen.names()) == 1
    assert found.maps[0].weights.shape[0] == steps and model.body.repeats == (5 if changes else 3)
    product = joined = torch.eye(len(ids), dtype=torch.float64)
    for look, slope in zip(seen.records, owed, strict=True):
        weights = look.weights.detach()[0]
        counts = torch.zeros_like(weights) if slope is None else (slope[0] * weights).clamp(min=0)
        product = (weights.mean(0) + torch.eye(len(ids))) / 2 @ product
        joined = joined + counts.mean(0) @ joined
    right = joined[0] - torch.eye(len(ids))[0]
    np.testing.assert_allclose(counted.fractions, right / right.sum(), atol=1e-10)
    np.testing.assert_allclose(rolled.fractions, product[0], atol=1e-10)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("thinking")
    rows = [f"the {word} is {how}\n" for word in ("cat", "dog", "sea") for how in ("old\tyes", "new\tno")]
    (place / "data.tsv").write_text("text\tlabel\n" + "".join(rows * 8))
    sizes = ("model.width=16", "model.heads=2", "model.ffn_dim=32", "model.num_steps=2", "model.max_length=16")
    steps = ("train.steps=4", "train.eval_every=2", "train.batch_tokens=256", "train.precision=float32")
    settings = (*sizes, *steps, "data.vocab_size=100")
    train("classify", place / "data.tsv", place / "run", *settings, model="universal-encoder-mini-halting")
    return place / "run"


@pytest.mark.every(3)
@pytest.mark.parametrize("ending", ["png", "html", "json"])
def test_a_run_is_loaded_and_its_ponder_steps_are_drawn(run: Path, tmp_path: Path, ending: str) -> None:
    model = regard.load(run)
    assert model.config.act and model.config.max_steps == 4
    told = model.explain("the cat is old")
    (thought,) = told.act_steps
    assert list(thought.steps) == model.predict("the cat is old").extra["act_steps"]
    assert told.values["act_steps"][0]["steps"] == thought.steps
    made = told.save(tmp_path / f"it.{ending}")
    assert made.stat().st_size > 1000
    if ending != "png":
        assert "Steps for the tokens of the text" in made.read_text()


def test_the_published_block_has_the_published_size() -> None:
    with torch.device("meta"):
        body = universal_encoder.build(universal_encoder.PRESETS["universal-encoder-base"].config)
    parameters: list[Tensor] = list(body.encoder.block.parameters())
    assert sum(part.numel() for part in parameters) == 12_596_224
