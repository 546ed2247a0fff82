"""Universal Transformer and its encoder against a repeated torch layer; halting, positions, tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from objectives import encode
from torch import Tensor, nn

from encoders import encoder
from parity import torch_call
from regard.data.text.tagged import TaggedSentence
from regard.model import Model
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.universal import Halting
from regard.nn.recording import record_attention
from regard.types import Batch, DecoderInputs, TextFields
from tiny import TINY, collate, near, noisy, same_gradients, tiny

HALTING = ("halting", "halting, accumulated")


def torch_layer(block: nn.Module, cross: bool) -> Any:
    """torch layer with the parameters of a block."""
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    layer: Any = kind(12, 3, 20, 0.0, batch_first=True)
    return torch_call(layer.double().eval(), block)


def coordinates(length: int, step: int) -> Tensor:
    """Position and step embeddings by the formula of the paper."""
    table = torch.zeros(length, 12, dtype=torch.float64)
    for i in range(length):
        for j in range(6):
            wave = 10000 ** (2 * j / 12)
            table[i, 2 * j] = np.sin(i / wave) + np.sin(step / wave)
            table[i, 2 * j + 1] = np.cos(i / wave) + np.cos(step / wave)
    return table


X, LENGTHS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0]]), torch.tensor([5, 3])
HIDDEN = torch.arange(5) >= LENGTHS[:, None]


def test_steps_are_one_layer_of_torch_again_and_again() -> None:
    body = tiny("universal", num_steps=4).body
    encoder, decoder = torch_layer(body.encoder.block, False), torch_layer(body.decoder.block, True)
    target = torch.tensor([[1, 4, 9, 12], [1, 3, 3, 7]])
    table = body.tokens.table.weight
    context = table[X] * 12**0.5
    for step in range(1, 5):
        context = encoder(context + coordinates(5, step), src_key_padding_mask=HIDDEN)
    right, causal = table[target] * 12**0.5, nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    for step in range(1, 5):
        right = decoder(
            right + coordinates(4, step), context, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=HIDDEN
        )
    states = body(Batch(X, LENGTHS, decoder=DecoderInputs(target)))
    near(states.cross_states[0], context[0], 1e-10)
    assert states.act_steps is None and not states.aux_losses
    same_gradients(body, states.sequence, right, 1e-9)


@pytest.mark.parametrize("label", HALTING)
@pytest.mark.parametrize("name", ["universal", "universal-encoder"])
def test_padding_does_not_ponder_and_changes_nothing(name: str, label: str) -> None:
    model, samples, cost = tiny(name, label), TINY[name].samples, "penalty" if name == "universal" else "cost"
    together, packed = (model.body(collate(model, samples, packed=packed)) for packed in (False, True))
    at = 0
    for row in range(len(samples)):
        batch = collate(model, samples, [row])
        alone, length = model.body(batch), batch.inputs.shape[1]
        assert torch.equal(together.act_steps[row, :length], alone.act_steps[0])
        assert not together.act_steps[row, length:].any()
        assert torch.equal(packed.act_steps[0, at : at + length], alone.act_steps[0])
        near(together.sequence[row, : alone.sequence.shape[1]], alone.sequence[0], 1e-10)
        if alone.pooled is not None:
            near(packed.pooled[row], alone.pooled[0], 1e-10)
        at += length
    assert not packed.act_steps[0, at:].any() and len(together.act_steps.unique()) > 1
    near(together.aux_losses[cost], packed.aux_losses[cost], 1e-10)


@pytest.mark.parametrize("name", ["universal", "transformer"])
def test_position_offsets_are_random_in_training_and_equal_on_both_sides(name: str) -> None:
    model = tiny(name, dropout=0.0, max_position_offset=9)
    seen: list[Tensor] = []
    kept = model.body.position

    class Listening(SinusoidalPosition):
        def forward(self, where: Tensor) -> Tensor:
            seen.append(where)
            return super().forward(where)

    model.body.position = Listening(kept.width, kept.layout)
    for packed in (False, True):
        seen.clear()
        model.body.train()
        batch = collate(model, TINY[name].samples, packed=packed)
        model.body(batch)
        source, target = seen
        if not packed:
            assert torch.equal(source[:, 0], target[:, 0]) and len(source[:, 0].unique()) > 1
        else:
            starts = [offsets.starts[:5] for offsets in (batch.packing, batch.decoder.packing)]  # type: ignore[union-attr]
            assert torch.equal(source[0, starts[0]], target[0, starts[1]])
            assert len(source[0, starts[0]].unique()) > 1
        seen.clear()
        model.body.eval()(batch)
        assert int(seen[0].max()) < 9 and not bool(seen[0].flatten()[0])


# -- encoder alone, and tasks on top

NAME = "universal-encoder"
TEXT = "The unbelievably old cat sat on a mat. The dog slept in Rome, near the river."
TEXTS = [TEXT, "who sat on what", "where did it sleep"] * 3
STOPS: dict[str, Any] = {"act": True, "act_max_steps": 5, "act_epsilon": 0.1}


def test_a_fixed_number_of_steps_is_torchs_layer_again_and_again_with_its_gradients() -> None:
    body = tiny("universal-encoder", num_steps=4).body
    layer = torch_layer(body.encoder.block, False)
    types = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    right = body.tokens.table.weight[X] * 12**0.5 + body.types.weight[types]
    for step in range(1, 5):
        right = layer(right + coordinates(5, step), src_key_padding_mask=HIDDEN)
    states = body(Batch(X, LENGTHS, text=TextFields(token_types=types)))
    near(states.pooled, right[:, 0], 1e-10)
    assert states.act_steps is None and not states.aux_losses
    same_gradients(body, states.sequence[~HIDDEN], right[~HIDDEN], 1e-9)


@pytest.mark.parametrize("mixing", ["convex", "accumulated"])
def test_tokens_halt_as_positions_of_torchs_layer(mixing: Any) -> None:
    """tests/nn/test_act.py compares halting with a loop over positions."""
    halts: dict[str, Any] = {"act": True, "act_max_steps": 6, "act_epsilon": 0.05, "act_mixing": mixing}
    body = tiny("universal-encoder", seed=4, **halts).body
    layer, x = torch_layer(body.encoder.block, False), torch.tensor([[3, 4, 5, 6, 7, 9, 11]])
    halting: Any = noisy(Halting(12, 6, 0.05, mixing))
    halting.gate.load_state_dict(body.encoder.halting.gate.state_dict())
    with torch.no_grad():
        first = body.tokens.table.weight[x] * 12**0.5 + body.types.weight[0]
        right = halting(first, lambda x, step: x + coordinates(7, step + 1), lambda x, step: layer(x))
        states = body(Batch(x))
    near(states.sequence, right.states, 1e-10)
    assert torch.equal(states.act_steps, right.steps)
    assert len(states.act_steps.unique()) > 2, "tokens must have different numbers of steps"
    near(states.aux_losses["cost"], 0.01 * right.ponder_cost()[0] / 7, 1e-10)


# -- tasks

LABELS = {"classify": ("no", "yes"), "tag": ("O", "B-x", "I-x")}


def asked(task: str, **changes: Any) -> Model:
    return encoder(task, TEXTS, LABELS.get(task, ()), NAME, **{"max_length": 48, **STOPS, **changes})


ASKED: dict[str, Any] = {
    "classify": "the old cat sat",
    "choose": {"context": "the cat", "choices": ["sat on a mat", "slept", "in Rome"]},
    "tag": "the old cat slept in Rome",
    "qa": ("who sat", TEXT),
    "mlm": "the [MASK] sat on a mat",
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
    assert "steps" not in encoder(task, TEXTS, LABELS.get(task, ()), NAME, max_length=48).predict(ASKED[task]).extra


def test_windows_of_a_long_text_follow_one_another_in_the_steps() -> None:
    model = asked("tag", max_length=8)
    (answer,) = model.predict([" ".join(["the old cat"] * 5)])
    encoded = encode(model, [TaggedSentence(tuple(["the", "old", "cat"] * 5), ())], 8)
    assert len(encoded) > 1
    assert len(answer.extra["act_steps"]) == sum(len(row) for row in encoded.fields["text"])


@pytest.mark.parametrize("changes", [{}, STOPS])
def test_each_step_is_a_layer_of_attributions(changes: dict[str, Any]) -> None:
    model = encoder("classify", TEXTS, ("no", "yes"), NAME, max_length=48, **{"num_steps": 3, **changes})
    found = model.explain("the old cat sat")
    assert found.decision is not None
    counted, rolled = found.decision.attributions[:2]
    ids = [model.config.bos_id, *model.tokenizer.encode(["the old cat sat"])[0], model.config.eos_id]
    with record_attention(model.body, gradients=True) as seen:
        logits = model.task.objective.logits(model, Batch(torch.tensor([ids])))[0]
    which = ("no", "yes").index(counted.title)
    recorded = [look.weights for look in seen.records]
    owed = torch.autograd.grad(logits[which] - logits.mean(), recorded, allow_unused=True)
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
