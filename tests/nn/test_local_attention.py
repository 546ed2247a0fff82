"""Kernels of sliding-window attention against dense attention with the same mask; formulas replace GPU-only kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oracle import grads, near, noise, same_with_gradients, stand_in
from regard import capabilities
from regard.nn.attention.masks import (
    Causal,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
    materialize,
)
from regard.nn.kernels import local_attention, local_flash
from regard.nn.kernels.local_attention import LocalCall, LocalPattern, parse_pattern
from regard.nn.kernels.table import choose
from regard.types import Packing
from windows import (
    CASES,
    LENGTHS,
    NONE,
    OFFSETS,
    PACKED,
    SOME,
    Columns,
    H,
    L,
    band_of,
    flash_backward,
    flash_forward,
    on_gpu,
    written_out,
)

CHUNKED, FLASH = local_attention.chunked_attention, local_flash.flash_local_attention
WAYS = {"chunked": CHUNKED, "flash": FLASH, "recorded": local_attention.local_attention_with_weights}
LYING = [name for name, (rows, rule) in CASES.items() if band_of(rule).is_contiguous(rows)]


@pytest.fixture(params=[(5, 60), (16, 2**20), (128, 2**20)], ids=["small", "middle", "one"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: request.param)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "flash_forward", flash_forward)
    monkeypatch.setattr(capabilities, "flash_backward", flash_backward)


def inputs(rows: int, width: int = 4, length: int = L) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A leaf, and q, k and v (B, H, L, d) as views of it, as after a joint projection."""
    x = noise(rows, length, 3, H, width).requires_grad_()
    return x, x.permute(2, 0, 3, 1, 4).unbind(0)


def defined(band: LocalPattern, way: str) -> Tensor | int:
    """Rows that a kernel defines: no padding, and in recorded attention no global tokens."""
    real, marks = band.valid_tokens(L), band.global_tokens
    real = torch.ones(1, L, dtype=torch.bool) if real is None else real
    if way == "recorded" and marks is not None:
        real = real & ~marks.tokens
    return real[:, None, :, None]


@pytest.mark.usefixtures("cut", "emulated")
@pytest.mark.parametrize(("way", "name"), [(w, n) for w in WAYS for n in CASES if w != "flash" or n in LYING])
def test_every_kernel_attends_as_masked(way: str, name: str) -> None:
    """Global tokens are in every softmax once."""
    rows, rule = CASES[name]
    band, (x, (q, k, v)) = band_of(rule), inputs(rows)
    ours, right = WAYS[way](LocalCall(q, k, v, band, 0.7)), written_out(q, k, v, Columns(band))[0]
    same_with_gradients(ours * defined(band, way), right * defined(band, way), [x])


def test_the_flash_kernel_gets_supported_arguments_only() -> None:
    others = {
        "dilated", "dilated beyond the row", "heads apart", "holes", "marked, heads apart", "marked, holes",
        "marked, packed, holes",
    }  # fmt: skip
    assert set(CASES) - set(LYING) == others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_dtype_is_near_the_exact_result(dtype: torch.dtype) -> None:
    rows, rule = CASES["marked, lengths"]
    results = []
    for kind in (dtype, torch.float64):
        x = inputs(rows)[0].detach().to(dtype).to(kind).requires_grad_()
        q, k, v = x.permute(2, 0, 3, 1, 4)
        out = CHUNKED(LocalCall(q, k, v, band_of(rule), 0.7))
        assert out.dtype == kind
        results.append((out, *grads(out, [x])))
    for ours, right in zip(*results, strict=True):
        near(ours.double(), right, 1e-5 if dtype == torch.float32 else 0.05)


def test_sums_over_all_tokens_for_a_global_token_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-bit sums stop growing when the summands become relatively small."""
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: (4, 2**20))
    length, values = 2048, noise(1, 1, 2048, 8).bfloat16()
    band = LocalPattern(SlidingWindow(1, 1), GlobalTokens(torch.arange(length)[None] == 0))
    found = []
    for kind in (torch.float64, torch.bfloat16):
        v = values.to(kind).requires_grad_()
        q = torch.zeros_like(v)
        (gradient,) = torch.autograd.grad(CHUNKED(LocalCall(q, q, v, band, 1.0)).sum(), v)
        found.append(gradient[0, 0, 0].double())
    near(found[1], found[0], 0.01)


# -- dropout


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("way", "name"), [
    ("chunked", "window"), ("chunked", "heads apart"), ("chunked", "marked, lengths"), ("flash", "marked, lengths"),
])  # fmt: skip
def test_dropout_leaves_out_the_same_weights_backward(way: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: (6, 60))
    rule, real = CASES[name][1], torch.tensor([[14], [14]])
    if name == "marked, lengths":
        real = torch.tensor([[9], [14]])
        rule = (SlidingWindow(2, 3) | GlobalTokens(SOME[:, :14])) & Padding(real[:, 0])
    x = inputs(2, width=2, length=14)[0]

    def attend(x: Tensor, seed: int = 4) -> Tensor:
        torch.manual_seed(seed)
        q, k, v = x.permute(2, 0, 3, 1, 4)
        out: Tensor = WAYS[way](LocalCall(q, k, v, band_of(rule), 0.7, 0.4))
        return out * (torch.arange(14) < real)[:, None, :, None]

    assert torch.autograd.gradcheck(attend, (x,), fast_mode=True)
    assert not torch.equal(attend(x), attend(x, 5)), "another seed gives another dropout mask"


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("way", [CHUNKED, FLASH])
def test_dropout_removes_its_fraction_and_keeps_the_mean(way: Any) -> None:
    length, share = 256, 0.25
    torch.manual_seed(0)
    q, k = torch.zeros(2, 1, 2, length, 4, dtype=torch.float64)
    values = torch.eye(length, dtype=torch.float64).expand(1, 2, -1, -1)
    band = band_of(SlidingWindow(15, 16) | GlobalTokens(torch.arange(length)[None] < 8))
    right = written_out(q, k, values, Columns(band))[0]
    found = way(LocalCall(q, k, values, band, 1.0, share))
    kept = found[right > 0] / right[right > 0]
    assert set(kept.round(decimals=9).unique().tolist()) == {0.0, round(1 / (1 - share), 9)}
    assert abs(float((kept == 0).double().mean()) - share) < 0.02
    far = found[..., 64:, :8]
    assert abs(float((far == 0).double().mean()) - share) < 0.04, "global tokens too"


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", CASES)
def test_the_weights_of_windows_are_those_of_the_rule(name: str) -> None:
    rows, rule = CASES[name]
    band, (_, (q, k, v)) = band_of(rule), inputs(rows)
    seen: list[Tensor] = []
    record = lambda *told: seen.extend(told) or told[0]  # noqa: E731
    mixed = local_attention.local_attention(LocalCall(q, k, v, band, 0.7, record=record))
    weights, keys = seen
    right, exact = written_out(q, k, v, Columns(band))
    near(mixed, right * defined(band, "recorded"))
    places = band.global_positions()
    wide = band.window.left + band.window.right + 1 + (0 if places is None else places[0].shape[1])
    assert weights.shape == (rows, H, L, wide) and not weights[keys.expand_as(weights) < 0].any()
    if places is not None:
        own = torch.where(places[1], places[0], -1)[:, None, None].expand(rows, keys.shape[1], L, -1)
        assert torch.equal(keys[..., : own.shape[-1]].long(), own), "global tokens first, missing ones as -1"
    columns = keys.long().expand_as(weights)
    table = torch.zeros(rows, H, L, L + 1, dtype=torch.float64).scatter_add(-1, columns % (L + 1), weights.detach())
    near(table[..., :L], exact * defined(band, "recorded"))
    told, there = noise(*mixed.shape, seed=77) @ v.transpose(2, 3), columns >= 0
    owed = grads(mixed, [weights])[0]  # gradients by attention weights are available
    near(owed[there], told.gather(-1, columns.clamp(min=0))[there])


# -- kernel selection


def test_window_masks_are_recognized_by_their_form() -> None:
    window, marks, real = SlidingWindow(2, 3), GlobalTokens(SOME), Padding(LENGTHS)
    for rule in (None, Causal(), real, marks, PACKED, window & window, window | window, window | real):
        assert parse_pattern(rule) is None, rule
    others = PackedDocuments(OFFSETS, Packing(OFFSETS.starts, 15))
    for rule in (window & others, (window | marks) & Causal(), window & (marks | real)):
        assert parse_pattern(rule) is None, rule
    found = band_of(real & (marks | window) & PACKED)
    assert (found.window, found.global_tokens) == (window, marks)
    expected = materialize(real & PACKED, 2, 1, torch.arange(L), torch.arange(L))
    assert torch.equal(materialize(found.token_mask, 2, 1, torch.arange(L), torch.arange(L)), expected)
    assert band_of(Memoized(Causal() & window)).window.right == 0
    with pytest.raises(ValueError, match="heads"):
        local_attention.local_attention(LocalCall(*inputs(1)[1], LocalPattern(SlidingWindow(1, 1, (1, 2))), 1.0))


def test_a_window_covers_rows_no_longer_than_each_of_its_sides() -> None:
    for window, length, covers in ((SlidingWindow(9, 8), 9, True), (SlidingWindow(9, 8), 10, False),
                                   (SlidingWindow(9, 9, 2), 9, False)):  # fmt: skip
        assert LocalPattern(window).covers(length) == covers


def test_global_tokens_are_found_once_from_left_to_right() -> None:
    marks = GlobalTokens(SOME)
    places, there = marks.positions()
    assert places[there].tolist() == [0, 20, 36, 3] and there.sum(1).tolist() == [3, 1]
    assert marks.positions()[0] is places
    assert GlobalTokens(SOME, max_count=8).positions()[0].shape == (2, 8)
    assert GlobalTokens(NONE).positions()[0].shape == (2, 0)
    assert GlobalTokens(SOME, max_count=50).positions()[1].sum() == 4


HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("way", "rows", "dtype", "width", "device", "name"),
    [
        ("flash", 2, BRAIN, 64, "cuda", "marked, lengths"),
        ("flash", 1, HALF, 64, "cuda", "marked, packed"),
        ("flash", 2, BRAIN, 64, "cuda", "window"),
        ("chunked", 2, BRAIN, 64, "cpu", "marked, lengths"),
        ("chunked", 2, SINGLE, 64, "cuda", "marked, lengths"),
        ("chunked", 2, BRAIN, 63, "cuda", "marked, lengths"),
        *(("chunked", 2, BRAIN, 64, "cuda", name) for name in ("marked, holes", "heads apart", "packed")),
    ],
)
@pytest.mark.usefixtures("cuda_capabilities")
def test_the_way_follows_from_form_device_and_dtype(
    way: str, rows: int, dtype: torch.dtype, width: int, device: str, name: str
) -> None:
    q = stand_in(rows, L, dtype, device, width, H)
    assert choose(local_attention.LOCAL_KERNELS, LocalCall(q, q, q, band_of(CASES[name][1]), 1.0)).name == way


class LargestTensor(TorchDispatchMode):
    """Number of bytes of the largest tensor that is computed."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [part.untyped_storage().nbytes() for part in tree_leaves(made) if isinstance(part, Tensor)]
        self.bytes = max(self.bytes, *sizes, 0)
        return made


@pytest.mark.parametrize("way", ["chunked", "recorded"])
def test_no_tensor_of_a_long_row_is_quadratic_in_its_length(way: str) -> None:
    """A bool mask of 2,048 × 2,048 takes 4 MiB; the weights of 66 keys for two heads take 1 MiB."""
    length = 2**11
    near_or_first = SlidingWindow(32, 32) | GlobalTokens(torch.arange(length)[None] == 0)
    band = band_of(near_or_first & Padding(torch.tensor([2000])))
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
    with LargestTensor() as largest:
        WAYS[way](LocalCall(q, k, v, band, 0.3, 0.1 if way == "chunked" else 0.0)).sum().backward()
    assert largest.bytes < 3 * 2**20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("way", [FLASH, CHUNKED])
@pytest.mark.parametrize("name", ["window", "back only", "lengths", "marked", "marked, lengths", "marked, packed"])
def test_on_a_gpu_every_way_is_the_rule(name: str, way: Any) -> None:
    rows, rule = CASES[name]
    band, x = band_of(rule), noise(rows, L, 3, H, 64).bfloat16().double()
    results = []
    for kind, device in ((torch.float64, "cpu"), (torch.bfloat16, "cuda")):
        own = x.to(device, kind).requires_grad_()
        q, k, v = own.permute(2, 0, 3, 1, 4)
        out = (
            written_out(q, k, v, Columns(band), 0.1)[0]
            if device == "cpu"
            else way(LocalCall(q, k, v, on_gpu(rule), 0.1))
        )
        real = band.valid_tokens(L)
        out = out if real is None else out * real[:, None, :, None].to(device)
        told = noise(*out.shape, seed=77).to(device, kind)
        results.append([y.double().cpu() for y in (out, *torch.autograd.grad((out * told).sum(), [own]))])
    for ours, right in zip(results[1], results[0], strict=True):
        near(ours, right, 0.02)
