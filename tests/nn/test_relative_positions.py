"""Positions inside attention: against other implementations and reference loops, for every kernel and KV cache."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import grads, kernel_name, near, noise, noisy, same_with_gradients, stand_in
from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import AttentionMask, Causal, Dense, PackedDocuments, Padding, SlidingWindow, materialize
from regard.nn.attention.positions import AttentionPosition, BoundPosition, PositionIds, Rotary, Shaw, T5Bias
from regard.nn.blocks.block import FeedForward, Residual, RMSNorm, Stack, TransformerBlock
from regard.nn.kernels import dispatch
from regard.types import Packing

B, H, D, L = 2, 3, 8, 11


def attention(heads: int = H, seed: int = 1, **more: Any) -> Any:
    return noisy(Attention(heads * D, heads, **more), seed).eval()


def whole(position: AttentionPosition, **standing: Tensor) -> BoundPosition:
    return BoundPosition(noisy(position, 7), PositionIds(**standing))


class Buckets(T5Bias):
    buckets, max_distance = 8, 9


class NearShaw(Shaw):
    max_distance = 3


KINDS: dict[str, Callable[[], AttentionPosition]] = {
    "rotary": lambda: Rotary(D),
    "rotary-halves": lambda: Rotary(D, "halves"),
    "rotary values": lambda: Rotary(D, rotate_values=True),
    "buckets": lambda: Buckets(H),
    "buckets back": lambda: Buckets(H, bidirectional=False),
    "shaw": lambda: NearShaw(D),
}
kinds = pytest.mark.parametrize("kind", KINDS)


# -- definitions in plain loops


def looked(one: Any, x: Tensor, kind: str, position: Any, mask: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, L, d) and attention weights by the formulas of the papers, per query and key."""
    q, k, v = one.project(x)
    apart = at[None, :] - at[:, None]
    if kind.startswith("rotary"):
        turn = torch.stack([turning(int(place), position) for place in at])
        q, k = (torch.einsum("lij,bhlj->bhli", turn, y) for y in (q, k))
        v = torch.einsum("lij,bhlj->bhli", turn, v) if position.rotates_values else v
    scores, offsets = q @ k.mT / D**0.5, torch.zeros(L, L, D, dtype=q.dtype)
    for i in range(L):
        for j in range(L):
            if kind.startswith("buckets"):
                scores[:, :, i, j] += position.table.weight[bucket(int(apart[i, j]), position)]
            if kind.startswith("shaw"):
                row = max(-3, min(3, int(apart[i, j]))) + 3
                scores[:, :, i, j] += q[:, :, i] @ position.keys.weight[row] / D**0.5
                offsets[i, j] = position.values.weight[row]
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, offsets), weights


def turning(place: int, position: Rotary) -> Tensor:
    """Matrix that rotates each pair of channels by its angle."""
    matrix = torch.zeros(D, D, dtype=torch.float64)
    for pair in range(D // 2):
        angle = place * 10000.0 ** (-2 * pair / D)
        a, b = (pair, pair + D // 2) if position.layout == "halves" else (2 * pair, 2 * pair + 1)
        matrix[a, a], matrix[a, b], matrix[b, a] = math.cos(angle), -math.sin(angle), math.sin(angle)
        matrix[b, b] = math.cos(angle)
    return matrix


def bucket(apart: int, position: T5Bias) -> int:
    """One of 8 buckets up to a distance of 9: bidirectional 2 exact and 2 logarithmic per side, else 4 and 4."""
    ahead = 4 * (apart > 0) if position.bidirectional else 0
    away = abs(apart) if position.bidirectional else max(-apart, 0)
    # 2 · 4.5^(1/2) = 4.2; 4 · 2.25^(1/4) = 4.9, …
    limits = (1, 2, 5) if position.bidirectional else (1, 2, 3, 4, 5, 6, 8)
    return ahead + sum(away >= limit for limit in limits)


RULES: dict[str, AttentionMask | None] = {
    "all": None,
    "causal": Causal(),
    "padded": Padding(torch.tensor([L, 4])),
    "a row of nothing": Causal() & Padding(torch.tensor([0, 7])),
    "band": Causal() & SlidingWindow(3, 0),
}
rules = pytest.mark.parametrize("rule", RULES)


@kinds
@rules
@pytest.mark.parametrize("places", [None, [3, 4, 5, 9, 20, 21, 22, 50, 51, 2, 0]])
def test_it_is_the_formula_whichever_kernel_takes_it(kind: str, rule: str, places: list[int] | None) -> None:
    """With and without recorded attention, with gradients of the input and of all parameters."""
    one, x, r = attention(), noise(B, L, H * D).requires_grad_(), RULES[rule]
    at = torch.arange(L) if places is None else torch.tensor(places)
    placed = whole(KINDS[kind](), **({} if places is None else {"queries": at, "keys": at}))
    index = torch.arange(L)
    mask = torch.ones(B, 1, L, L, dtype=torch.bool)
    if r is not None:
        mask = materialize(r, B, 1, index, index).expand_as(mask)
    mixed, weights = looked(one, x, kind, placed.position, mask, at)
    right = one.out(mixed.transpose(1, 2).flatten(2))
    seen: list[Tensor] = []
    learned = [x, *one.parameters(), *placed.position.parameters()]
    for watched in (None, lambda w: seen.append(w) or w):
        same_with_gradients(one(x, mask=r, position=placed, record=watched), right, learned, 1e-11)
    near(seen[0], weights)


@pytest.mark.parametrize("written", [False, True])
def test_few_queries_of_a_step_have_the_same_bias(written: bool) -> None:
    """Eight rows use the decoding kernel, fewer rows the fused kernel."""
    placed = Buckets(H)
    q, k, v = noise(8, H, 2, D), noise(8, H, L, D, seed=1), noise(8, H, L, D, seed=2)
    at, homes = torch.tensor([[9, 10]] * 8), torch.randint(0, 11, (8, L), generator=torch.Generator().manual_seed(3))
    rule = Dense.from_table(noise(8, 2, L, seed=5) > -1) if written else None
    said = []
    with torch.no_grad():
        for rows in (slice(0, 8), slice(0, 2)):
            own = None if rule is None else Dense.from_table(rule.table[rows])
            kernel = kernel_name(q[rows], k[rows], own, at[rows], 0.0, False, has_bias=True)
            assert kernel == ("bmm" if rows.stop == 8 else "sdpa")
            here = BoundPosition(noisy(placed, 7), PositionIds(at[rows], homes[rows]))
            bias = here.position.bias(q[rows], k[rows], 0.5, here)
            call = dispatch.AttentionCall(q[rows], k[rows], v[rows], 0.5, own, at[rows], bias=bias, position=here)
            said.append(dispatch.attend(call))
    near(said[0][:2], said[1])


STARTS = Packing(torch.tensor([0, 200, 300]), 256)


@pytest.mark.usefixtures("cuda_capabilities")
@pytest.mark.parametrize("rule", [PackedDocuments(STARTS, STARTS), Causal()])
def test_kernels_without_bias_support_are_not_chosen_with_a_bias(rule: AttentionMask) -> None:
    x, band = stand_in(1, 300, torch.bfloat16, width=64), rule & SlidingWindow(9, 0)
    assert kernel_name(x, x, band, None, 0.0, False) == "varlen"
    assert kernel_name(x, x, band, None, 0.0, False, has_bias=True) == "sdpa"


@pytest.mark.parametrize("kind", ["rotary", "buckets", "shaw"])
@pytest.mark.parametrize("length", [30, 140])
def test_sixteen_bits_are_near(kind: str, length: int) -> None:
    """Short rows use the plain kernel, longer rows the fused kernel in float32."""
    one, x = attention(), noise(B, length, H * D) / 3
    right = one(x, mask=Causal(), position=whole(KINDS[kind]()))
    half = BoundPosition(noisy(KINDS[kind](), 7).bfloat16(), PositionIds())
    ours = one.bfloat16()(x.bfloat16(), mask=Causal(), position=half)
    assert ours.dtype == torch.bfloat16
    assert float((ours.double() - right).detach().norm() / right.detach().norm()) < 0.02


@pytest.mark.parametrize("kind", ["rotary", "buckets"])
def test_weights_are_dropped_in_training_and_only_then(kind: str) -> None:
    one, x, placed = attention(dropout=0.5), noise(B, L, H * D), whole(KINDS[kind]())
    right = one(x, position=placed)
    assert torch.equal(right, one(x, position=placed))
    torch.manual_seed(0)
    drawn = torch.stack([one.train()(x, position=placed) for _ in range(300)])
    assert not torch.equal(drawn[0], drawn[1])
    near(drawn.mean(0), right, 0.12)


def test_dropped_weights_add_no_relative_value_either() -> None:
    one, x, placed = attention(dropout=0.5).train(), noise(B, L, H * D), whole(NearShaw(D))
    weights: list[Tensor] = []
    one(x, position=placed, record=lambda w: weights.append(w) or w)
    torch.manual_seed(3)
    ours = one(x, position=placed)
    torch.manual_seed(3)
    kept = nn.functional.dropout(weights[0], 0.5)
    rows = (torch.arange(L) - torch.arange(L)[:, None]).clamp(-3, 3) + 3
    position: Any = placed.position
    mixed = kept @ one.project(x)[2] + torch.einsum("bhij,ijd->bhid", kept, position.values.weight[rows])
    near(ours, one.out(mixed.transpose(1, 2).flatten(2)))


def test_waves_are_made_for_each_dtype_of_a_pass() -> None:
    standing, q = PositionIds(), noise(1, 1, 2, D)
    Rotary(D).rotate(q.bfloat16(), q.bfloat16(), q, standing)
    near(Rotary(D).rotate(q, q, q, standing)[0], Rotary(D).rotate(q, q, q, PositionIds())[0])


# -- other implementations


def fill(pairs: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for theirs, ours in pairs:
            theirs.copy_(ours)


def share_projections(one: Any, layers: list[Any]) -> None:
    """Copy the parts of the joint matrix into layers of query, key and value."""
    for layer, weight, bias in zip(layers, one.qkv.weight.chunk(3), one.qkv.bias.chunk(3), strict=True):
        fill([(layer.weight, weight), (layer.bias, bias)])


def same_gradients(
    ours: Tensor, right: Tensor, one: Any, layers: list[Any], x: Tensor, tolerance: float = 1e-12
) -> None:
    near(ours, right, tolerance)
    mine, wanted = grads(ours, [x, one.qkv.weight]), grads(right, [x, *(layer.weight for layer in layers)])
    near(mine[0], wanted[0], tolerance)
    near(mine[1], torch.cat(wanted[1:]), tolerance)


def test_half_rotations_equal_llama_and_layouts_are_convertible() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as theirs

    config = LlamaConfig(
        hidden_size=H * D, num_attention_heads=H, num_key_value_heads=H, attention_bias=True, attn_implementation="sdpa"
    )
    right, one = theirs.LlamaAttention(config, 0).double().eval(), attention()
    layers = [right.q_proj, right.k_proj, right.v_proj]
    share_projections(one, layers)
    fill([(right.o_proj.weight, one.out.weight), (right.o_proj.bias, one.out.bias)])
    position, at = Rotary(D, "halves"), torch.arange(L) + 3
    waves = tuple(torch.cat([wave, wave], -1)[None] for wave in position.cos_sin(at, torch.float64))
    x = noise(B, L, H * D).requires_grad_()
    for mine, table in zip(waves, theirs.LlamaRotaryEmbedding(config)(x, at[None]), strict=True):
        assert torch.allclose(mine, table.double(), atol=1e-5)
    wanted = right(x, position_embeddings=waves, attention_mask=None)[0]  # causal without a mask
    ours = one(x, mask=Causal(), position=BoundPosition(position, PositionIds(at, at)))
    same_gradients(ours, wanted, one, layers, x)
    other = copy.deepcopy(one)
    # channels i and i + D/2 of a head become channels 2i and 2i + 1, in queries and keys
    places = torch.arange(H * D).view(H, 2, D // 2).transpose(1, 2).flatten()
    joined = torch.cat([places, H * D + places, 2 * H * D + torch.arange(H * D)])
    fill([(other.qkv.weight, one.qkv.weight[joined]), (other.qkv.bias, one.qkv.bias[joined])])
    near(other(x, mask=Causal(), position=BoundPosition(Rotary(D), PositionIds(at, at))), ours)


def test_vectors_for_distances_are_those_of_wav2vec2_bert() -> None:
    from transformers import Wav2Vec2BertConfig
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as theirs

    config = Wav2Vec2BertConfig(
        hidden_size=H * D, num_attention_heads=H, position_embeddings_type="relative_key",
        left_max_position_embeddings=3, right_max_position_embeddings=3,
    )  # fmt: skip
    right, one, position = theirs.Wav2Vec2BertSelfAttention(config).double().eval(), attention(), NearShaw(D)
    layers = [right.linear_q, right.linear_k, right.linear_v]
    share_projections(one, layers)
    fill([(right.linear_out.weight, one.out.weight), (right.linear_out.bias, one.out.bias)])
    fill([(right.distance_embedding.weight, noisy(position, 3).keys.weight)])
    nn.init.zeros_(position.values.weight)  # not in this model
    x = noise(B, L, H * D).requires_grad_()
    same_gradients(one(x, position=BoundPosition(position, PositionIds())), right(x)[0], one, layers, x)


@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_are_those_of_t5(both_ways: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    apart = torch.arange(-2000, 2001)
    right = T5Attention._relative_position_bucket(apart, both_ways, 32, 128)
    assert torch.equal(T5Bias(H, both_ways).bucket(apart), right)


def t5_encoder(depth: int, hidden: int) -> Any:
    width = H * D

    def residual(inner: nn.Module) -> Residual:
        return Residual(inner, width, "pre", eps=1e-6, norm_type=RMSNorm)

    def block() -> TransformerBlock:
        attention, feed = Attention(width, H, bias=False, scale=1.0), FeedForward(width, hidden, bias=False)
        return TransformerBlock(residual(attention), residual(feed))

    blocks = [block() for _ in range(depth)]
    return noisy(Stack(blocks, RMSNorm(width), T5Bias(H))).eval()


def test_the_encoder_of_t5_is_built_from_our_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, gradients and padding, with one table for all blocks."""
    from transformers import T5Config, T5EncoderModel
    from transformers.models.t5 import modeling_t5

    length, ours = 150, t5_encoder(3, 20)
    config = T5Config(vocab_size=17, d_model=H * D, d_kv=D, d_ff=20, num_layers=3, num_heads=H, dropout_rate=0.0)
    right: Any = T5EncoderModel(config).double().eval()
    mine, theirs = [ours.position.table.weight, ours.norm.weight], [
        right.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight,
        right.encoder.final_layer_norm.weight,
    ]  # fmt: skip
    for block, other in zip(ours.blocks, right.encoder.block, strict=True):
        attend, feed = other.layer
        own = attend.SelfAttention
        fill([*zip((own.q.weight, own.k.weight, own.v.weight), block.attend.inner.qkv.weight.chunk(3), strict=True)])
        mine += [block.attend.norm.weight, block.attend.inner.out.weight, block.feed.norm.weight]
        mine += [block.feed.inner.up.weight, block.feed.inner.down.weight]
        theirs += [attend.layer_norm.weight, own.o.weight, feed.layer_norm.weight]
        theirs += [feed.DenseReluDense.wi.weight, feed.DenseReluDense.wo.weight]
    fill([*zip(theirs, mine, strict=True)])
    assert [name for name in ours.state_dict() if "table" in name] == ["position.table.weight"]
    lengths = torch.tensor([length, 60])
    x, real = noise(B, length, H * D).requires_grad_(), torch.arange(length) < lengths[:, None]
    said = ours(x, mask=Padding(lengths))[0][real]
    rounded = right(inputs_embeds=x, attention_mask=real.long()).last_hidden_state[real]
    near(said, rounded, 1e-6)  # the RMSNorm of transformers averages in float32

    def clean(norm: Any, x: Tensor) -> Tensor:
        return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", clean)
    wanted = right(inputs_embeds=x, attention_mask=real.long()).last_hidden_state[real]
    near(said, wanted)
    for here, there in zip(grads(said, [x, *mine]), grads(wanted, [x, *theirs]), strict=True):
        near(here, there, 1e-11)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_rms_norm_returns_the_dtype_of_its_weight(kind: torch.dtype) -> None:
    """16-bit states are cast to the dtype of the gain, as in layer norm under autocast."""
    norm = noisy(RMSNorm(6, eps=0.1))
    x = noise(2, 3, 6).to(kind)
    near(norm(x), x.double() / (x.double().square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight)
    block = Residual(nn.Identity(), 6, "post", norm_type=RMSNorm).double()
    near(block(x.double()), block.norm(2 * x.double()))
