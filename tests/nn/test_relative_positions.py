"""Positions inside attention: against other implementations and reference loops, for every kernel and KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import kernel_name, near, noise, noisy, same_with_gradients
from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import AttentionMask, Causal, Dense, Padding, SlidingWindow, materialize
from regard.nn.attention.positions import AttentionPosition, BoundPosition, PositionIds, Rotary, Shaw, T5Bias
from regard.nn.blocks.block import Residual, RMSNorm
from regard.nn.kernels import dispatch

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
                scores[:, :, i, j] += position.table.weight[position.bucket(apart[i, j])]
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
    """Eight rows as two rows."""
    placed = Buckets(H)
    q, k, v = noise(8, H, 2, D), noise(8, H, L, D, seed=1), noise(8, H, L, D, seed=2)
    at, homes = torch.tensor([[9, 10]] * 8), torch.randint(0, 11, (8, L), generator=torch.Generator().manual_seed(3))
    rule = Dense(noise(8, 2, L, seed=5) > -1) if written else None
    said = []
    with torch.no_grad():
        for rows in (slice(0, 8), slice(0, 2)):
            own = None if rule is None else Dense(rule.table[rows])
            assert kernel_name(q[rows], k[rows], own, at[rows], 0.0, False, has_bias=True) == "sdpa"
            here = BoundPosition(noisy(placed, 7), PositionIds(at[rows], homes[rows]))
            bias = here.position.bias(q[rows], k[rows], 0.5, here)
            call = dispatch.AttentionCall(q[rows], k[rows], v[rows], 0.5, own, at[rows], bias=bias, position=here)
            said.append(dispatch.attend(call))
    near(said[0][:2], said[1])


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


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("kind", "sizes"), [(T5Bias, (32, 128)), (Buckets, (8, 9))])
def test_buckets_are_those_of_t5(kind: type[T5Bias], sizes: tuple[int, int], both_ways: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    apart = torch.arange(-2000, 2001)
    right = T5Attention._relative_position_bucket(apart, both_ways, *sizes)
    assert torch.equal(kind(H, both_ways).bucket(apart), right)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_rms_norm_returns_the_dtype_of_its_weight(kind: torch.dtype) -> None:
    """16-bit states are cast to the dtype of the gain, as in layer norm under autocast."""
    norm = noisy(RMSNorm(6, eps=0.1))
    x = noise(2, 3, 6).to(kind)
    near(norm(x), x.double() / (x.double().square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight)
    block = Residual(nn.Identity(), 6, "post", norm_type=RMSNorm).double()
    near(block(x.double()), block.norm(2 * x.double()))
