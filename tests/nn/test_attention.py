"""Attention and its kernels against equation 1 of Vaswani et al. (2017), per query and key."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import kernel_name, near, noise, noisy, same_with_gradients, stand_in
from regard import capabilities
from regard.nn.attention.attention import Attention
from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    Full,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
    materialize,
)
from regard.nn.blocks.block import is_pristine_block, transformer_block
from regard.nn.kernels import dispatch
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.linear import Linear
from regard.types import Packing

B, H, L = 2, 2, 5


def by_hand(q: Tensor, k: Tensor, v: Tensor, may: Tensor, scale: float) -> Tensor:
    """Σ_j exp(s_ij) v_j / Σ_j exp(s_ij) over the keys j that query i attends to; 0 without such a key."""
    may, rows = may.expand(*q.shape[:3], k.shape[2]), []
    for b, h, i in product(*map(range, q.shape[:3])):
        seen = may[b, h, i].nonzero()[:, 0].tolist()
        powers = [torch.exp((q[b, h, i] * k[b, h, j]).sum() * scale) for j in seen]
        parts = [power * v[b, h, j] for power, j in zip(powers, seen, strict=True)]
        rows.append(sum(parts) / sum(powers) if seen else q[b, h, i].new_zeros(v.shape[-1]))
    return torch.stack(rows).view(*q.shape[:3], v.shape[-1])


LENGTHS, MARKS = torch.tensor([3, 0]), torch.tensor([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1]]).bool()
DOCUMENTS, FEWER = Packing(torch.tensor([0, 2, 5]), 3), Packing(torch.tensor([0, 0, 4, 5]), 4)
RULES: dict[str, AttentionMask | None] = {
    "none": None,
    "causal": Causal(),
    "window": SlidingWindow(1, 2),
    "dilated": SlidingWindow(1, 1, 2),
    "one row of nothing but padding": Padding(LENGTHS),
    "band": Causal() & SlidingWindow(1, 0),
    "band, written once": Memoized(Causal() & SlidingWindow(2, 0)),
    "a band as long as the row": Memoized(Causal() & SlidingWindow(4, 0)),
    "holes, written once": Memoized(Causal() & Padding(MARKS)),
    "holes": Causal() & Padding(MARKS),
    "documents": Causal() & PackedDocuments(DOCUMENTS, DOCUMENTS),
    "an empty document": PackedDocuments(DOCUMENTS, FEWER),
    "longformer": SlidingWindow(0, 1) | GlobalTokens(MARKS),
}
"""Masks, which test_masks.py compares with predicates."""


def leaves(queries: int = L, keys: int = L, rows: int = B) -> list[Tensor]:
    sizes = ((queries, 3), (keys, 3), (keys, 4))
    return [noise(rows, H, *size, seed=n).requires_grad_() for n, size in enumerate(sizes)]


@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
@pytest.mark.parametrize("name", RULES)
def test_a_kernel_mixes_exactly_the_unmasked_values(name: str, kernel: str) -> None:
    rule, (q, k, v), at = RULES[name], leaves(), torch.arange(L)
    may = torch.ones(1, 1, L, L).bool() if rule is None else materialize(rule, B, H, at, at)
    if kernel == "plain":
        ours, weights = dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), 0.7)
        near(weights @ v, ours)
    else:
        ours = dispatch.sdpa(AttentionCall(q, k, v, 0.7, rule, None, 0.0))
    same_with_gradients(ours, by_hand(q, k, v, may, 0.7), [q, k, v])


@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
@pytest.mark.parametrize("at", [None, [3, 4], [[3, 4], [0, 2]], [[1, 1], [4, 3]], [4, 0, 2, 1, 3]])
def test_queries_attend_from_their_positions(at: list[Any] | None, kernel: str) -> None:
    """None: three queries at the positions 0, 1 and 2."""
    places = None if at is None else torch.tensor(at)
    q, k, v = leaves(queries=3 if places is None else places.shape[-1])
    last = torch.arange(3) if places is None else places
    may = torch.arange(L) <= last.expand(B, -1)[:, None, :, None]
    ours = (dispatch._eager if kernel == "plain" else dispatch.sdpa)(AttentionCall(q, k, v, 1.3, Causal(), places))
    same_with_gradients(ours, by_hand(q, k, v, may, 1.3), [q, k, v])


def emulated(
    q: Tensor, k: Tensor, v: Tensor, starts: tuple[Tensor, Tensor], longest: tuple[int, int],
    window: tuple[int, int], scale: float,
) -> Tensor:  # fmt: skip
    """Packed GPU kernel emulated per document: the last query is aligned with the last key; -1 is unlimited."""
    ends, (left, right) = [], window
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    for x, begins, most in zip((q, k), starts, longest, strict=True):
        assert begins.dtype == torch.int32 and begins.diff().max() <= most
        ends.append(torch.searchsorted(begins, torch.arange(len(x)).int(), right=True))
    places = [torch.arange(len(x)) - begins[end] for x, begins, end in zip((q, k), starts, ends, strict=True)]
    apart = places[1] - places[0][:, None]
    may = (ends[0][:, None] == ends[1]) & (apart >= (-left if left >= 0 else -L * L))
    may = may & (apart <= (right if right >= 0 else L * L))
    return by_hand(*(x.transpose(0, 1)[None] for x in (q, k, v)), may, scale)[0].transpose(0, 1)


PACKED = Packing(torch.tensor([0, 4, 4, 5, 11]), 8)
SOURCES = Packing(torch.tensor([0, 2, 3, 3, 7]), 4)
OURS, ACROSS = PackedDocuments(PACKED, PACKED), PackedDocuments(PACKED, SOURCES)
PACKED_RULES: dict[str, tuple[AttentionMask, int]] = {
    "documents": (OURS, 11),
    "causal": (Causal() & OURS, 11),
    "causal, the other way round": (OURS & Causal(), 11),
    "window": (SlidingWindow(2, 1) & OURS, 11),
    "causal window": (Causal() & SlidingWindow(2, 3) & OURS, 11),
    "window, then causal": ((OURS & SlidingWindow(1, 2)) & Causal(), 11),
    "sources, one of them empty": (ACROSS, 7),
    "causal across": (Causal() & ACROSS, 7),
    "window across": (ACROSS & SlidingWindow(3, 3), 7),
    "band": (Causal() & SlidingWindow(2, 0), 11),
    "band, written once": (Memoized(SlidingWindow(1, 0) & Causal()), 11),
    "band by its window": (SlidingWindow(3, 0), 11),
}


@pytest.mark.parametrize("name", PACKED_RULES)
def test_a_mask_accepted_by_the_packed_kernel_gives_equal_outputs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed documents, or rows under a band, each of which is one document."""
    monkeypatch.setattr(capabilities, "varlen_attention", emulated)
    rule, keys = PACKED_RULES[name]
    q, k, v = leaves(11, keys, rows=3 if name.startswith("band") else 1)
    if dispatch.match_packed(rule) is None and not name.startswith("band"):
        assert "across" in name, "this case must use the kernel"
        return
    right, _ = dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), 0.7)
    same_with_gradients(dispatch.varlen(AttentionCall(q, k, v, 0.7, rule)), right, [q, k, v])


def test_the_packed_kernel_refuses_unsupported_masks() -> None:
    q, k, v = leaves(rows=1)
    compound = SlidingWindow(1, 1, 2) & OURS, SlidingWindow(1, 1) | OURS, OURS & Padding(LENGTHS)
    for rule in (None, Causal(), Padding(MARKS), *compound):
        assert dispatch.match_packed(rule) is None
        with pytest.raises(ValueError):
            dispatch.varlen(AttentionCall(q, k, v, 1.0, rule))
    assert dispatch.match_packed(SlidingWindow(1, 1) & OURS & SlidingWindow(3, 0)) is None
    assert dispatch.match_packed(OURS & ACROSS) is None


BAND = Causal() & SlidingWindow(3, 0)


@pytest.mark.parametrize("changed", ["", "deterministic", "old", "off", "dropout", "short", "float32"])
def test_cudnn_comes_first_only_where_it_may(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_capability_of", lambda device: (8, 0) if changed == "old" else (9, 0))
    monkeypatch.setattr(dispatch, "_cudnn_available", lambda: changed != "off")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: changed == "deterministic")
    length, dtype = 500 if changed == "short" else 512, torch.float32 if changed == "float32" else torch.bfloat16
    chosen = dispatch._choose_backends(stand_in(2, length, dtype, width=64), 0.1 if changed == "dropout" else 0.0, True)
    assert chosen == (dispatch.SDPA_BACKENDS if changed else dispatch.CUDNN_BACKENDS)
    seen = dispatch._choose_backends(stand_in(2, length, dtype, width=64), 0.1 if changed == "dropout" else 0.0, False)
    # images have few lengths
    assert seen == (dispatch.SDPA_BACKENDS if changed not in ("", "short") else dispatch.CUDNN_BACKENDS)
    assert set(dispatch.SDPA_BACKENDS) < set(dispatch.CUDNN_BACKENDS), "other kernels follow cuDNN"


# -- attention modules


class Adapted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias


class OtherLinear(Linear):
    pass


CHANGES: dict[str, Callable[[Any], object]] = {
    "an adapter": lambda block: setattr(block.attend.inner, "qkv", Adapted(block.attend.inner.qkv)),
    "a subclass": lambda block: setattr(block.attend.inner, "qkv", OtherLinear(8, 8)),
    "another forward": lambda block: setattr(block.feed.inner.up, "forward", lambda x: x),
    "a parametrization": lambda block: nn.utils.parametrize.register_parametrization(
        block.feed.inner.up, "weight", nn.Identity()
    ),
    "a hook of all modules": lambda _: nn.modules.module.register_module_forward_hook(lambda *_: None),
    **{
        f"{hook} of {path}": lambda block, path=path, hook=hook: getattr(block.get_submodule(path), hook)(
            lambda *_: None
        )
        for path in ("attend.inner.qkv", "attend.norm", "attend.dropout", "feed", "feed.inner", "")
        for hook in ("register_forward_hook", "register_forward_pre_hook")
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_block_with_changes_or_hooks_is_not_gone_around(change: str) -> None:
    block: Any = transformer_block(8, 2, 16, norm="pre", activation="gelu").eval()
    assert is_pristine_block(block)
    handle: Any = CHANGES[change](block)
    assert not is_pristine_block(block)
    if "hook" in change:
        handle.remove()
        assert is_pristine_block(block)


CUDA, CPU, MPS = "cuda", "cpu", "mps"
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
SIMPLE = None, Causal(), Padding(MARKS), SlidingWindow(3, 1), Causal() & SlidingWindow(3, 0, 2)
COMPOUND = BAND & Padding(LENGTHS), OURS & Padding(LENGTHS), SlidingWindow(1, 1, 2) & OURS
CHOICES: list[tuple[str, str, torch.dtype, int, AttentionMask | None, bool, float, bool]] = [
    *(("varlen", CUDA, BRAIN, 11, rule, False, dropout, False) for rule in (BAND, OURS) for dropout in (0.0, 0.1)),
    *(("varlen", CUDA, HALF, 11, rule, False, 0.0, False) for rule in (Memoized(BAND), OURS & SlidingWindow(2, 2))),
    ("varlen", CUDA, BRAIN, 11, Causal() & OURS, False, 0.0, False),
    ("sdpa", CUDA, BRAIN, 4, BAND, False, 0.0, False),  # the band covers the row: causal without a mask
    *(("sdpa", CUDA, SINGLE, 11, rule, False, 0.0, False) for rule in (BAND, OURS)),
    *(("sdpa", CUDA, BRAIN, 11, rule, False, 0.0, False) for rule in (*SIMPLE, *COMPOUND)),
    ("eager", CUDA, BRAIN, 11, OURS, False, 0.0, True),
    ("sdpa", CUDA, BRAIN, 11, OURS, True, 0.0, False),
    ("eager", CPU, BRAIN, dispatch.SHORT_ROW, Causal(), False, 0.0, False),
    ("sdpa_float32", CPU, BRAIN, dispatch.SHORT_ROW + 1, Causal(), False, 0.0, False),
    ("sdpa_float32", CPU, BRAIN, dispatch.MIDDLE_ROW, Causal(), False, 0.0, False),
    ("eager", CPU, BRAIN, dispatch.MIDDLE_ROW, Full(), False, 0.0, False),
    ("sdpa", CPU, BRAIN, dispatch.MIDDLE_ROW + 1, Full(), False, 0.0, False),
    ("sdpa", CPU, BRAIN, dispatch.MIDDLE_ROW + 1, Causal(), False, 0.0, False),
    ("sdpa", CPU, SINGLE, 11, OURS, False, 0.0, False),
    ("sdpa", CPU, DOUBLE, 11, None, True, 0.0, False),
    ("eager", CPU, SINGLE, 11, None, False, 0.0, True),
    ("sdpa", MPS, SINGLE, 11, Causal(), False, 0.0, False),
]


@pytest.mark.usefixtures("cuda_capabilities")
@pytest.mark.parametrize("case", CHOICES)
def test_the_kernel_follows_from_rule_device_and_dtype(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, device, dtype, keys, rule, at, dropout, watched = case
    x = stand_in(1, keys, dtype, device)
    where = torch.arange(1) if at else None
    assert kernel_name(x, x, rule, where, dropout, watched) == kernel
    if kernel == "varlen":
        longer, odd = stand_in(1, keys + 1, dtype, device), stand_in(1, keys, dtype, device, width=12)
        assert rule is not BAND or kernel_name(x, longer, rule, where, dropout, watched) == "sdpa"
        assert kernel_name(odd, x, rule, where, dropout, watched) == "sdpa"
        assert kernel_name(x, x, rule, where, dropout, watched, has_bias=True) == "sdpa", "no support of a bias"
        monkeypatch.setattr(dispatch, "_capability_of", lambda device: (7, 5))
        assert kernel_name(x, x, rule, where, dropout, watched) == "sdpa", "supported since Ampere"
        monkeypatch.setattr(dispatch, "_capability_of", lambda device: (9, 0))
    monkeypatch.setitem(capabilities._results, "varlen_attention", False)
    assert kernel_name(x, x, rule, where, dropout, watched) == ("sdpa" if kernel == "varlen" else kernel)


@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_is_the_one_of_torch(bias: bool) -> None:
    ours = noisy(Attention(6, 2, context_width=5, bias=bias))
    theirs = nn.MultiheadAttention(6, 2, bias=bias, batch_first=True, kdim=5, vdim=5).double()
    weights = {"q_proj_weight": ours.q.weight, "k_proj_weight": ours.kv.weight[:6], "v_proj_weight": ours.kv.weight[6:]}
    weights["out_proj.weight"] = ours.out.weight
    if bias:
        weights |= {"in_proj_bias": torch.cat([ours.q.bias, ours.kv.bias]), "out_proj.bias": ours.out.bias}
    x, context, lengths = noise(B, 3, 6).requires_grad_(), noise(B, 4, 5, seed=5).requires_grad_(), torch.tensor([2, 4])
    padding = torch.arange(4) >= lengths[:, None]
    call = {"key_padding_mask": padding, "need_weights": False}
    right = torch.func.functional_call(theirs, weights, (x, context, context), call)[0]
    same_with_gradients(ours(x, context, mask=Padding(lengths)), right, [x, context, *ours.parameters()])


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="heads"):
        Attention(6, 4)
    with pytest.raises(ValueError, match="context"):
        Attention(6, 2, context_width=6)(torch.zeros(1, 2, 6))


def test_dropout_removes_a_fraction_of_the_weights_and_scales_the_others() -> None:
    torch.manual_seed(0)
    q, k = noise(1, 1, 400, 4), noise(1, 1, 50, 4, seed=1)
    dropped, weights = dispatch.eager_attention(q, k, torch.eye(50).double()[None, None], None, 0.5, dropout=0.3)
    near(weights, by_hand(q, k, torch.eye(50).double()[None, None], torch.tensor(True), 0.5))
    gone = dropped == 0
    assert abs(gone.double().mean() - 0.3) < 4 * (0.3 * 0.7 / gone.numel()) ** 0.5
    near(dropped[~gone], (weights / 0.7)[~gone])
