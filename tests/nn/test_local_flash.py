"""Sliding-window attention on GPUs: a flash kernel plus global tokens; formulas replace GPU-only kernels."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle import near, noise, same_with_gradients
from regard import capabilities
from regard.nn.attention.masks import AttentionMask, GlobalTokens, Padding, SlidingWindow
from regard.nn.kernels import local_flash
from regard.nn.kernels.local_attention import LocalCall, LocalPattern, chunked_attention
from windows import CASES, SOME, Columns, H, L, band_of, leaves, written_out


def flash_scores(
    q: Tensor, k: Tensor, starts: Tensor, longest: int, *, scale: float, window_size_left: int, window_size_right: int
) -> Tensor:
    """Scores (H, T, T) with every document separate, limited to the window."""
    assert starts.dtype == torch.int32 and int(starts.diff().max()) <= longest
    place = torch.arange(len(q))
    stretch = torch.searchsorted(starts, place.int(), right=True)
    apart = place[None] - place[:, None]
    may = (stretch[:, None] == stretch[None]) & (apart >= -window_size_left) & (apart <= window_size_right)
    return (torch.einsum("thd,shd->hts", q, k) * scale).masked_fill(~may, -torch.inf)


def flash_kept(scores: Tensor, dropout: float, chance: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(int(chance[0]))
    return torch.empty_like(scores).bernoulli_(1 - dropout, generator=generator) / (1 - dropout)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, _: Tensor, longest: int, __: int, dropout: float, *flags: bool,
    **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scores, chance = flash_scores(q, k, starts, longest, **how), torch.randint(2**40, (2,)).to(torch.uint64)
    mixed = torch.einsum("hts,shd->thd", scores.softmax(-1) * flash_kept(scores, dropout, chance), v)
    return mixed, scores.logsumexp(-1), chance


def flash_backward(
    told: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, starts: Tensor, _: Tensor, longest: int,
    __: int, dropout: float, causal: bool, chance: Tensor, unused: Tensor, **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Backward pass as in the kernel: from the given output and log-sum-exp, without recomputed sums."""
    scores = flash_scores(q, k, starts, longest, **how)
    weights, kept = (scores - lse[..., None]).exp(), flash_kept(scores, dropout, chance)
    own = (told * out).sum(-1).T[..., None]
    d_scores = weights * (torch.einsum("thd,shd->hts", told, v) * kept - own) * how["scale"]
    pairs = (d_scores, "hts,shd->thd", k), (d_scores, "hts,thd->shd", q), (weights * kept, "hts,thd->shd", told)
    dq, dk, dv = (torch.einsum(form, x, y) for x, form, y in pairs)
    return dq, dk, dv


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "flash_forward", flash_forward)
    monkeypatch.setattr(capabilities, "flash_backward", flash_backward)


LYING = [name for name, (rows, rule) in CASES.items() if band_of(rule).is_contiguous(rows)]


def test_the_flash_kernel_gets_supported_arguments_only() -> None:
    others = {
        "dilated", "dilated beyond the row", "heads apart", "holes", "marked, heads apart", "marked, holes",
        "marked, packed, holes",
    }  # fmt: skip
    assert set(CASES) - set(LYING) == others


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", LYING)
def test_flash_and_columns_joined_are_one_softmax(name: str) -> None:
    rows, rule = CASES[name]
    band, x = band_of(rule), noise(rows, L, 3, H, 4).requires_grad_()
    q, k, v = x.permute(2, 0, 3, 1, 4)  # views of one matrix, as after a joint projection
    ours = local_flash.flash_local_attention(LocalCall(q, k, v, band, 0.7))
    right = written_out(q, k, v, Columns(band))[0]
    real = band.valid_tokens(L)
    if real is not None:  # rows of padding are not read
        ours, right = (y * real[:, None, :, None] for y in (ours, right))
    same_with_gradients(ours, right, [x])


@pytest.mark.usefixtures("emulated")
def test_flash_with_dropout_has_the_gradient_of_kept_weights() -> None:
    given = [x[:, :, :14].detach().requires_grad_() for x in leaves(2, width=2)]
    rule = (SlidingWindow(2, 3) | GlobalTokens(SOME[:, :14])) & Padding(torch.tensor([9, 14]))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(4)
        real = torch.arange(14) < torch.tensor([[9], [14]])
        out = local_flash.flash_local_attention(LocalCall(q, k, v, band_of(rule), 0.7, 0.4))
        return out * real[:, None, :, None]

    assert torch.autograd.gradcheck(attend, tuple(given), fast_mode=True)


@pytest.mark.parametrize("way", [chunked_attention, local_flash.flash_local_attention])
@pytest.mark.usefixtures("emulated")
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


# -- compiled, and on a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("way", [local_flash.flash_local_attention, chunked_attention])
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


def on_gpu(rule: AttentionMask) -> LocalPattern:
    """Copy of a band with its tensors on the GPU; shared objects stay shared."""
    buffer = io.BytesIO()
    torch.save(rule, buffer)
    buffer.seek(0)
    return band_of(torch.load(buffer, map_location="cuda", weights_only=False))
