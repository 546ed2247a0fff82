"""`model.relative_position`: decoding kernels, given positions, errors; test_systems.py has a variant for each value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.nn.attention.attention import DECODE_KERNELS, Attention
from regard.nn.attention.kv_cache import LayerCache, StaticCache
from regard.nn.attention.masks import Causal, Dense
from regard.nn.attention.positions import AttentionPosition, BoundPosition, PositionIds, Rotary, Shaw, T5Bias
from regard.nn.blocks.block import FeedForward, Residual, Stack, TransformerBlock, transformer_block
from regard.nn.kernels import dispatch
from regard.types import Batch
from tiny import CASES, TINY, collate, near, noise, noisy, tiny

RELATIVE = [(name, label) for name, label in CASES if "relative_position" in TINY[name].variants.get(label, {})]


@pytest.mark.parametrize("name", ["decoder", "gpt3"])  # GPT-3 attends to three tokens in every second layer
@pytest.mark.parametrize("kind", ["rotary", "t5", "shaw"])
def test_the_decoding_kernel_gets_rotated_keys_and_no_bias(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    model = tiny(name, relative_position=kind, position_embedding="none")
    x = torch.randint(3, 20, (3, 9), generator=torch.Generator().manual_seed(4))
    monkeypatch.setattr(dispatch, "has_decode_kernel", lambda k: k is not None)
    monkeypatch.setattr(dispatch, "decode_step", step)
    monkeypatch.setitem(DECODE_KERNELS, "cpu", DECODE_KERNELS["cuda"])
    with torch.no_grad():
        right = model.body.to_logits(model.body(Batch(x)).sequence)
        state = model.body.start(Batch(x[:, :4]), 12)
        for at in range(3, 9):
            near(model.body.step(x[:, at], state), right[:, at])
    assert bool(used) == (kind == "rotary") == (not isinstance(state.next_step(1).masks[0], Dense))
    if not used:  # not even if the shapes would allow the kernel
        stack, y, where = model.body.decoder, noise(3, 1, 12), torch.zeros(3, 1, dtype=torch.long)
        stack(y, mask=Causal(), cache=[LayerCache(StaticCache(4)) for _ in stack.blocks], at=where)
        assert not used


@pytest.mark.parametrize(("name", "label"), RELATIVE)
def test_positions_that_are_given_are_those_that_count(name: str, label: str) -> None:
    model = tiny(name, label)
    x = collate(model, TINY[name].samples, rows=[0]).inputs[:, :4]
    y, at = None if name != "transformer" else torch.tensor([[4, 5, 6]]), torch.arange(x.shape[1])
    right = model.logits(x, y)
    assert torch.equal(model.logits(x, y, positions=at), right)
    assert not torch.allclose(model.logits(x, y, positions=2 * at), right)
    if name != "longformer" and model.config.position_embedding == "none":
        near(model.logits(x, y, positions=at + 7), right, 1e-11)


def test_shared_terms_of_all_blocks_are_computed_once_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: made.append(name) or real(*given))

    counted(T5Bias, "bucket")
    counted(Rotary, "cos_sin")
    counted(dispatch, "masked_bias")
    for label in ("buckets beside learned", "rotary in halves"):
        tiny("gpt2", label).body(Batch(torch.arange(9)[None]))
    assert made == ["bucket", "masked_bias", "cos_sin"]


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
    x, cross = torch.zeros(1, 2, 12), Attention(12, 3, context_width=12)
    with pytest.raises(ValueError, match="cross-attention"):
        cross(x, x, position=BoundPosition(Rotary(4), PositionIds()))


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
