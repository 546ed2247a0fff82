"""Sliding-window attention in blocks of queries against dense attention with a mask; and kernel selection."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from oracle import grads, near, noise, same_with_gradients, stand_in
from regard.nn.attention.masks import (
    Causal,
    GlobalTokens,
    Memoized,
    PackedDocuments,
    Padding,
    SlidingWindow,
    materialize,
)
from regard.nn.kernels import local_attention
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
    attend_local_global,
    band_of,
    leaves,
    written_out,
)


@pytest.fixture(params=[(5, 60), (16, 2**20), (128, 2**20)], ids=["small", "middle", "one"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: request.param)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_queries_attend_as_masked(name: str) -> None:
    """Global tokens are in every softmax once."""
    rows, rule = CASES[name]
    band, (q, k, v) = band_of(rule), leaves(rows)
    same_with_gradients(attend_local_global(q, k, v, band, 0.7), written_out(q, k, v, rule)[0], [q, k, v])
    ours = local_attention.local_attention(LocalCall(q, k, v, band, 0.7))
    same_with_gradients(ours, written_out(q, k, v, Columns(band))[0], [q, k, v])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_dtype_is_near_the_exact_result(dtype: torch.dtype) -> None:
    rows, rule = CASES["marked, lengths"]
    exact = [x.detach().to(dtype).double().requires_grad_() for x in leaves(rows)]
    given = [x.detach().to(dtype).requires_grad_() for x in exact]
    ours, right = (attend_local_global(*leaves, band_of(rule), 0.7) for leaves in (given, exact))
    assert ours.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    near(ours.double(), right, tolerance)
    for one, other in zip(grads(ours, given), grads(right, exact), strict=True):
        near(one.double(), other, tolerance)


def test_sums_over_all_tokens_for_a_global_token_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """16-bit sums stop growing when the summands become relatively small."""
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: (4, 2**20))
    length, values = 2048, noise(1, 1, 2048, 8).bfloat16()
    band = LocalPattern(SlidingWindow(1, 1), GlobalTokens(torch.arange(length)[None] == 0))
    found = []
    for kind in (torch.float64, torch.bfloat16):
        v = values.to(kind).requires_grad_()
        q = torch.zeros_like(v)
        found.append(
            torch.autograd.grad(local_attention.chunked_attention(LocalCall(q, q, v, band, 1.0)).sum(), v)[0][
                0, 0, 0
            ].double()
        )
    near(found[1], found[0], 0.01)


# -- dropout


@pytest.mark.parametrize("name", ["window", "heads apart", "marked, lengths"])
def test_dropout_leaves_out_the_same_weights_on_the_way_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: (6, 60))
    rows, rule = CASES[name]
    given = [x[:, :, :14].detach().requires_grad_() for x in leaves(rows, width=2)]
    marks = band_of(rule).global_tokens
    if marks is not None:
        rule = (SlidingWindow(2, 3) | GlobalTokens(marks.tokens[:, :14])) & Padding(torch.tensor([9, 14]))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(4)
        return local_attention.chunked_attention(LocalCall(q, k, v, band_of(rule), 0.7, 0.4))

    assert torch.autograd.gradcheck(attend, tuple(given), fast_mode=True)
    torch.manual_seed(5)
    other = local_attention.chunked_attention(LocalCall(*given, band_of(rule), 0.7, 0.4))
    assert not torch.equal(attend(*given), other), "another seed gives another dropout mask"


# -- recorded attention


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("name", CASES)
def test_the_weights_of_windows_are_those_of_the_rule(name: str) -> None:
    rows, rule = CASES[name]
    band, (q, k, v) = band_of(rule), leaves(rows)
    seen: list[Tensor] = []
    record = lambda *told: seen.extend(told) or told[0]  # noqa: E731
    mixed = local_attention.local_attention(LocalCall(q, k, v, band, 0.7, record=record))
    weights, keys = seen
    right, exact = written_out(q, k, v, Columns(band))
    hidden = torch.zeros(rows, L, dtype=torch.bool) if band.global_tokens is None else band.global_tokens.tokens
    real = band.valid_tokens(L)
    hidden = (hidden if real is None else hidden | ~real)[:, None, :, None]
    same_with_gradients(mixed, right.masked_fill(hidden, 0.0), [q, k, v])
    places = band.global_positions()
    wide = band.window.left + band.window.right + 1 + (0 if places is None else places[0].shape[1])
    assert weights.shape == (rows, H, L, wide) and not weights[keys.expand_as(weights) < 0].any()
    if places is not None:
        own = torch.where(places[1], places[0], -1)[:, None, None].expand(rows, keys.shape[1], L, -1)
        assert torch.equal(keys[..., : own.shape[-1]].long(), own), "global tokens first, missing ones as -1"
    columns = keys.long().expand_as(weights)
    table = torch.zeros(rows, H, L, L + 1, dtype=torch.float64).scatter_add(-1, columns % (L + 1), weights.detach())
    near(table[..., :L], exact.masked_fill(hidden, 0.0))
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
    assert found.token_mask is not None and torch.equal(
        materialize(found.token_mask, 2, 1, torch.arange(L), torch.arange(L)), expected
    )
    assert band_of(Memoized(Causal() & window)).window.right == 0
    with pytest.raises(ValueError, match="heads"):
        local_attention.local_attention(LocalCall(*leaves(1), LocalPattern(SlidingWindow(1, 1, (1, 2))), 1.0))


def test_a_window_covers_rows_no_longer_than_each_of_its_sides() -> None:
    for window, length, covers in ((SlidingWindow(9, 8), 9, True), (SlidingWindow(9, 8), 10, False),
                                   (SlidingWindow(9, 9, 2), 9, False)):  # fmt: skip
        assert LocalPattern(window).covers(length) == covers


def test_global_tokens_are_found_once_from_left_to_right() -> None:
    marks = GlobalTokens(SOME)
    places, there = marks.positions()
    assert places[there].tolist() == [0, 20, 36, 3] and there.sum(1).tolist() == [3, 1]
    assert marks.positions()[0] is places
    assert GlobalTokens(SOME, max_count=8).positions()[0].shape == (2, 8) and GlobalTokens(NONE).positions()[
        0
    ].shape == (2, 0)
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
        ("chunked", 2, BRAIN, 64, "cuda", "marked, holes"),
        ("chunked", 2, BRAIN, 64, "cuda", "heads apart"),
        ("chunked", 2, BRAIN, 64, "cuda", "packed"),
    ],
)
@pytest.mark.usefixtures("cuda_capabilities")
def test_the_way_follows_from_form_device_and_dtype(
    way: str, rows: int, dtype: torch.dtype, width: int, device: str, name: str
) -> None:
    q = stand_in(rows, L, dtype, device, width, H)
    assert choose(local_attention.LOCAL_KERNELS, LocalCall(q, q, q, band_of(CASES[name][1]), 1.0)).name == way


# -- cost


LONG = """
import resource
import torch
from regard.nn.attention.masks import GlobalTokens, Padding, SlidingWindow
from regard.nn.kernels.local_attention import LocalCall, chunked_attention, local_attention_with_weights, parse_pattern

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

L = 2**15
marks = torch.zeros(1, L, dtype=torch.bool)
marks[0, 0] = True
band = parse_pattern((SlidingWindow(32, 32) | GlobalTokens(marks)) & Padding(torch.tensor([L - 5])))
q, k, v = (torch.randn(1, 2, L, 16, requires_grad=True) for _ in range(3))
short = LocalCall(*(x[:, :, :256] for x in (q, k, v)), parse_pattern(SlidingWindow(32, 32)), 0.3, 0.1)
chunked_attention(short).sum().backward()
before = peak()
chunked_attention(LocalCall(q, k, v, band, 0.3, 0.1)).sum().backward()
local_attention_with_weights(LocalCall(q, k, v, band, 0.3)).sum().backward()
print(peak() - before)
"""


@pytest.mark.slow
def test_a_long_row_costs_memory_that_is_linear_in_its_length() -> None:
    """A dense table of 32,768 × 32,768 for two heads takes 8 GiB, a mask 256 MiB; windows of 66 keys take 17 MiB."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 250
