"""Universal Transformer against a repeated torch layer; cached steps against one pass; with and without halting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.nn.attention.positions import SinusoidalPosition
from regard.systems import universal
from regard.tasks.base import LossWeights
from regard.types import IGNORE, Batch
from tiny import TINY, collate, near, noise, noisy, tiny

HALTING = ("halting", "halting, accumulated")
SIZES: dict[str, Any] = {"width": 12, "num_steps": 4, "heads": 3, "ffn_dim": 20, "vocab_size": 23, "dropout": 0.0}


def torch_layer(block: nn.Module, cross: bool) -> nn.Module:
    """torch layer with the weights of a block."""
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    layer: Any = kind(12, 3, 20, 0.0, batch_first=True).double().eval()
    ours: Any = block
    pairs = [(layer.self_attn, ours.attend), *([(layer.multihead_attn, ours.cross)] if cross else [])]
    with torch.no_grad():
        for theirs, residual in pairs:
            inner = residual.inner
            joined = [inner.q, inner.kv] if inner.is_cross else [inner.qkv]
            theirs.in_proj_weight.copy_(torch.cat([part.weight for part in joined]))
            theirs.in_proj_bias.copy_(torch.cat([part.bias for part in joined]))
            theirs.out_proj.weight.copy_(inner.out.weight)
            theirs.out_proj.bias.copy_(inner.out.bias)
        for theirs, part in ((layer.linear1, ours.feed.inner.up), (layer.linear2, ours.feed.inner.down)):
            theirs.weight.copy_(part.weight)
            theirs.bias.copy_(part.bias)
        norms = [ours.attend, *([ours.cross] if cross else []), ours.feed]
        for number, residual in enumerate(norms, start=1):
            getattr(layer, f"norm{number}").weight.copy_(residual.norm.weight)
            getattr(layer, f"norm{number}").bias.copy_(residual.norm.bias)
    return layer


def coordinates(length: int, step: int) -> Tensor:
    """Position and step embeddings by the formula of the paper."""
    table = torch.zeros(length, 12, dtype=torch.float64)
    for i in range(length):
        for j in range(6):
            wave = 10000 ** (2 * j / 12)
            table[i, 2 * j] = np.sin(i / wave) + np.sin(step / wave)
            table[i, 2 * j + 1] = np.cos(i / wave) + np.cos(step / wave)
    return table


def test_steps_are_one_layer_of_torch_again_and_again() -> None:
    body = noisy(universal.build(universal.Config(**SIZES)))
    encoder, decoder = torch_layer(body.encoder.block, False), torch_layer(body.decoder.block, True)
    x, lengths = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 2, 0, 0]]), torch.tensor([5, 3])
    target = torch.tensor([[1, 4, 9, 12], [1, 3, 3, 7]])
    table = body.tokens.table.weight.detach().clone().requires_grad_()
    hidden = torch.arange(5) >= lengths[:, None]
    context = table[x] * 12**0.5
    for step in range(1, 5):
        context = encoder(context + coordinates(5, step), src_key_padding_mask=hidden)
    right, causal = table[target] * 12**0.5, nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    for step in range(1, 5):
        right = decoder(
            right + coordinates(4, step), context, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=hidden
        )
    states = body(Batch(x, lengths, target))
    near(states.sequence, right, 1e-10)
    near(states.cross_states[0], context[0], 1e-10)
    assert states.act_steps is None and not states.aux_losses
    weights = noise(2, 4, 12, seed=3)
    (states.sequence * weights).sum().backward()
    (right * weights).sum().backward()
    near(body.tokens.table.weight.grad, table.grad, 1e-9)
    for ours, theirs in ((body.encoder.block, encoder), (body.decoder.block, decoder)):
        near(ours.feed.inner.up.weight.grad, theirs.linear1.weight.grad, 1e-9)
        near(ours.attend.inner.qkv.weight.grad, theirs.self_attn.in_proj_weight.grad, 1e-9)
        near(ours.attend.norm.weight.grad, theirs.norm1.weight.grad, 1e-9)
    near(body.decoder.block.cross.inner.out.weight.grad, decoder.multihead_attn.out_proj.weight.grad, 1e-9)


def test_presets_have_the_sizes_of_the_published_code() -> None:
    with torch.device("meta"):
        body = universal.build(universal.PRESETS["universal-base-halting"].config)
    counts = [sum(part.numel() for part in side.block.parameters()) for side in (body.encoder, body.decoder)]
    assert counts == [12_596_224, 16_796_672]
    assert body.encoder.depth == body.decoder.depth == 12


@pytest.mark.parametrize("label", HALTING)
@pytest.mark.parametrize("room", [None, 11])
def test_a_later_token_attends_to_halted_earlier_ones_at_every_step(label: str, room: int | None) -> None:
    model = tiny("universal", label, seed=2)
    batch = replace(collate(model, TINY["universal"].samples, [0, 2, 3]), labels=None)
    target = torch.randint(3, 23, (3, 8), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        states = model.body(replace(batch, decoder_inputs=target))
        whole = model.body.to_logits(states.sequence)
        state = model.body.start(replace(batch, decoder_inputs=target[:, :1]), room)
        for at in range(8):
            near(model.body.step(target[:, at], state), whole[:, at], 1e-10)
    steps = states.aux_losses["target_ponder"]
    later = [(steps[:, at + 1 :] > steps[:, at : at + 1]).any() for at in range(7)]
    assert any(map(bool, later)), "a token must have more steps than an earlier one"
    assert len(state.layers) == model.config.max_steps
    assert len(state.cross_caches) == 1, "cross-attention keys are cached once for all steps"


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


def test_steps_cost_while_a_model_learns_and_not_when_it_is_judged() -> None:
    model = tiny("universal", "halting", dropout=0.0, max_position_offset=0)
    batch = collate(model, TINY["universal"].samples)
    judged, count = model.task.loss(model, batch)
    model.train()
    learnt, _ = model.task.loss(model, batch, LossWeights())
    states = model.body(batch)
    near(learnt - judged, states.aux_losses["penalty"])
    asked = batch.labels != IGNORE
    free = model.body(replace(batch, labels=None))
    spent = [states.act_steps, states.aux_losses["target_ponder"]]
    assert torch.equal(free.aux_losses["target_ponder"], spent[1]), "labels do not change hidden states"
    low = 0.01 * (spent[1][asked].sum() + count * spent[0].sum() / (spent[0] > 0).sum())
    high = low + 0.01 * 2 * count
    assert low < states.aux_losses["penalty"] < high, "remainders are between 0 and 1"
    states.aux_losses["penalty"].backward()
    assert model.body.encoder.halting.gate.weight.grad.abs().sum() > 0
    assert model.body.decoder.halting.gate.weight.grad.abs().sum() > 0


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
            starts = [offsets.starts[:5] for offsets in (batch.offsets, batch.decoder_offsets)]  # type: ignore[union-attr]
            assert torch.equal(source[0, starts[0]], target[0, starts[1]])
            assert len(source[0, starts[0]].unique()) > 1
        seen.clear()
        model.body.eval()(batch)
        assert int(seen[0].max()) < 9 and not bool(seen[0].flatten()[0])


def test_a_prediction_reports_the_ponder_steps_of_its_source() -> None:
    from regard.processors.tokenizer.tokenizer import TextTokenizer

    model = tiny("universal", "halting", vocab_size=8)
    model.tokenizer = TextTokenizer.from_words(["1 2 3 4 5"])
    config = replace(model.config, vocab_size=8, pad_id=5, bos_id=6, eos_id=7)
    model.spec = replace(model.spec, config=config)
    model.body.pad = 5
    one, other = model.predict(["1 2 3", "5"], num_beams=1)
    assert len(one.extra["act_steps"]) == 4 and len(other.extra["act_steps"]) == 2
    assert model.predict("5", num_beams=1).extra["act_steps"] == other.extra["act_steps"]
