"""`model.relative_position` in every system: training, decoding, beams, packing, attention maps, saving, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.model import Model
from regard.nn.attention.attention import DECODE_KERNELS, Attention
from regard.nn.attention.kv_cache import LayerCache, StaticCache
from regard.nn.attention.masks import Causal, Dense
from regard.nn.attention.positions import AttentionPosition, BoundPosition, PositionIds, Rotary, Shaw, T5Bias
from regard.nn.blocks.block import FeedForward, Residual, Stack, TransformerBlock, transformer_block
from regard.nn.kernels import dispatch
from regard.tasks.base import LossWeights
from regard.types import Batch, DecoderInputs
from tiny import TINY, collate, gradients, near, noise, noisy, tiny

NONE: dict[str, Any] = {"position_embedding": "none"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    f"{name} {kind}": (name, {"relative_position": kind, **more})
    for name, kind, more in (
        ("transformer", "rotary", {}), ("transformer", "rotary-halves", NONE), ("transformer", "shaw", NONE),
        ("transformer", "t5", {"norm_position": "pre", **NONE}), ("decoder", "rotary", NONE), ("decoder", "t5", NONE),
        ("decoder", "shaw", {}), ("gpt1", "rotary", NONE), ("gpt2", "rotary-halves", NONE), ("gpt2", "t5", {}),
        ("gpt2", "shaw", NONE), ("gpt3", "rotary", NONE), ("gpt3", "t5", NONE), ("gpt3", "shaw", NONE),
    )
}  # fmt: skip
"""GPT-3 has sparse attention over three tokens in every second layer."""
cases = pytest.mark.parametrize("case", CASES)


def model_of(case: str, **changes: Any) -> Model:
    name, fields = CASES[case]
    return tiny(name, **{**fields, **changes})


def batch_of(case: str, model: Model, **more: Any) -> Batch:
    return collate(model, TINY[CASES[case][0]].samples, **more)


def reading(batch: Batch, ids: Tensor) -> Batch:
    """The same sources with other decoder inputs."""
    return Batch(ids) if batch.decoder is None else replace(batch, labels=None, decoder=DecoderInputs(ids))


# -- generating


@pytest.mark.parametrize("case", ["decoder rotary", "gpt3 rotary", "gpt3 t5", "gpt2 shaw"])
def test_the_decoding_kernel_gets_rotated_keys_and_no_bias(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs on CUDA only; a PyTorch implementation replaces the kernel here."""
    used = []

    def step(qkv: Tensor, memory: Any, at: Tensor, scale: float, band: int) -> Tensor:
        used.append(band)
        q, k, v = qkv.view(len(qkv), 3, *memory.k.shape[1:2], -1).unbind(1)
        memory.k[range(len(k)), :, at], memory.v[range(len(k)), :, at] = k, v
        columns = torch.arange(memory.k.shape[2])
        mask = (columns <= at[:, None]) & (columns > at[:, None] - (band or 99))
        mixed, _ = dispatch.eager_attention(q[:, :, None], memory.k, memory.v, mask[:, None, None], scale)
        return mixed.flatten(1)

    model, x = model_of(case), torch.randint(3, 20, (3, 9), generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(dispatch, "has_decode_kernel", lambda k: k is not None)
    monkeypatch.setattr(dispatch, "decode_step", step)
    monkeypatch.setitem(DECODE_KERNELS, "cpu", DECODE_KERNELS["cuda"])
    with torch.no_grad():
        right = model.body.to_logits(model.body(Batch(x)).sequence)
        state = model.body.start(Batch(x[:, :4]), 12)
        for at in range(3, 9):
            near(model.body.step(x[:, at], state), right[:, at])
    assert bool(used) == case.endswith("rotary") == (not isinstance(state.next_step(1).masks[0], Dense))
    if not used:  # not even if the shapes would allow the kernel
        stack, y, where = model.body.decoder, noise(3, 1, 12), torch.zeros(3, 1, dtype=torch.long)
        stack(y, mask=Causal(), cache=[LayerCache(StaticCache(4)) for _ in stack.blocks], at=where)
        assert not used


# -- encoding


@cases
def test_positions_that_are_given_are_those_that_count(case: str) -> None:
    model = model_of(case)
    x = batch_of(case, model, rows=[0]).inputs[:, :4]
    y = None if CASES[case][0] != "transformer" else torch.tensor([[4, 5, 6]])
    at = torch.arange(x.shape[1])
    right = model.logits(x, y)
    assert torch.equal(model.logits(x, y, positions=at), right)
    assert not torch.allclose(model.logits(x, y, positions=2 * at), right)
    if model.config.position_embedding == "none":
        near(model.logits(x, y, positions=at + 7), right, 1e-11)


def test_shared_terms_of_all_blocks_are_computed_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: made.append(name) or real(*given))

    counted(T5Bias, "bucket")
    counted(Rotary, "cos_sin")
    counted(dispatch, "masked_bias")
    for case in ("gpt2 t5", "gpt2 rotary-halves"):
        model = model_of(case)
        model.body(Batch(torch.arange(9)[None]))
    assert made == ["bucket", "masked_bias", "cos_sin"]


# -- invalid settings


def refused(words: str, position: Any, blocks: Any = None) -> None:
    with pytest.raises(ValueError, match=words):
        Stack(blocks or [transformer_block(12, 3, 8), transformer_block(12, 3, 8)], position=position)


def test_incompatible_configs_are_refused_on_construction() -> None:
    refused("Rotary has head width 6, but the attention has head width 4", Rotary(6))
    refused("has head width 6, but the attention has head width 4", [Shaw(6), Shaw(6)])
    refused("T5Bias has 4 heads, but the attention has 3", T5Bias(4))
    refused("shorter", [Shaw(4)])
    refused("got Identity", Rotary(4), [torch.nn.Identity()])
    crossing = TransformerBlock(Residual(Attention(12, 3, context_width=12), 12), Residual(FeedForward(12, 8), 12))
    refused("require the self-attention of a TransformerBlock", Rotary(4), [crossing])
    with pytest.raises(ValueError, match="even"):
        Rotary(5)
    with pytest.raises(ValueError, match="cross-attention"):
        Attention(12, 3, context_width=12)(
            torch.zeros(1, 2, 12), torch.zeros(1, 2, 12), position=BoundPosition(Rotary(4), PositionIds())
        )


@pytest.mark.parametrize("position", [Rotary(4), T5Bias(3), None])
def test_steps_without_positions_are_refused(position: AttentionPosition | None) -> None:
    stack: Any = noisy(Stack([transformer_block(12, 3, 8), transformer_block(12, 3, 8)], position=position))
    x = noise(1, 3, 12)
    with torch.no_grad():
        right = stack(x, mask=Causal())[0]
        memory = [LayerCache(), LayerCache()]
        near(stack(x[:, :2], mask=Causal(), cache=memory)[0], right[:, :2])
        if position is not None:
            with pytest.raises(ValueError, match="position_ids"):
                stack(x[:, 2:], cache=memory)
        near(stack(x[:, 2:], cache=memory, at=torch.tensor([[2]]))[0], right[:, 2:])


def test_those_without_hand_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    real = Attention.forward
    monkeypatch.setattr(Attention, "forward", lambda *a, **k: calls.append(k) or real(*a, **k))
    model = tiny("gpt2")
    state = model.body.start(Batch(torch.tensor([[3, 4, 5]])))
    model.body.step(torch.tensor([5]), state)
    assert len(calls) == 6 and not any("position" in given for given in calls) and not state.has_bias


# -- on a device


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
some = pytest.mark.parametrize("case", ["transformer rotary", "transformer t5", "gpt2 shaw", "gpt3 rotary"])


@on_cuda
@some
@pytest.mark.parametrize("settings", [DecodeSettings(), DecodeSettings(num_beams=3)])
def test_captured_steps_equal_plain_steps(case: str, settings: DecodeSettings) -> None:
    model = model_of(case)
    batch = batch_of(case, model, rows=[0, 1, 3])
    prompt, limits = torch.tensor([[4, 5], [6, 7], [8, 9]]), torch.tensor([9, 7, 8])
    batch = Batch(prompt, torch.tensor([1, 2, 2])) if batch.decoder is None else reading(batch, prompt)
    right = search(model.body, batch, model.config.eos_id, limits, settings)
    model = model.float().cuda()
    ours = search(model.body, batch.to("cuda"), model.config.eos_id, limits.cuda(), settings)
    assert [[f.tokens for f in options] for options in ours] == [[f.tokens for f in options] for options in right]


@on_cuda
@some
@pytest.mark.parametrize("packed", [False, True])
def test_sixteen_bits_on_a_device_learn_about_the_same(case: str, packed: bool) -> None:
    model = model_of(case, width=48, heads=6 if case.startswith("gpt") else 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    batch = batch_of(case, model, packed=packed)
    right = model.task.objective.loss(model, batch, LossWeights())[0]
    theirs = gradients(model.body, right)
    model = model.float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        ours = model.task.objective.loss(model, batch.to("cuda"), LossWeights())[0]
    assert float(ours.detach()) == pytest.approx(float(right.detach()), rel=1e-2)
    gaps = {name: gradient.double().cpu() - theirs[name] for name, gradient in gradients(model.body, ours).items()}
    for name, gap in gaps.items():  # in 16 bits, rounding may activate a ReLU of a few tokens
        assert float(gap.norm()) < 0.2 * float(theirs[name].norm()) + 1e-3, name
    total = float(sum(gap.square().sum() for gap in gaps.values())) ** 0.5
    assert total < 0.02 * float(sum(right.square().sum() for right in theirs.values())) ** 0.5


@on_cuda
def test_weights_of_many_keys_are_summed_without_being_lost() -> None:
    """A 16-bit sum of thousands of weights would stop growing; CPUs accumulate in float32."""
    shaw, far = Shaw(8).bfloat16().cuda(), torch.arange(4000).cuda()
    torch.nn.init.ones_(shaw.values.weight)
    weights = torch.full((1, 1, 1, 4000), 1 / 4000, dtype=torch.bfloat16).cuda()
    said = shaw.add_values(weights, PositionIds(torch.tensor([5000]).cuda(), far))
    assert torch.allclose(said, torch.ones_like(said), atol=0.01)
