"""Triton kernels on the CPU in Triton's interpreter: forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHORT = """
import torch
from regard.nn.kernels import varlen_short as short
from regard.nn.kernels.dispatch import eager_attention

def right(q, k, v, starts, others, causal, scale):
    out = []
    for i in range(len(starts) - 1):
        one, keys, values = (x[a[i] : a[i + 1]].transpose(0, 1)[None] for x, a in ((q, starts), (k, others), (v, others)))
        if one.shape[2] and not keys.shape[2]:
            out.append(torch.zeros_like(one[0]).transpose(0, 1))
        elif one.shape[2]:
            mask = torch.ones(one.shape[2], keys.shape[2]).tril().bool()[None, None] if causal else None
            out.append(eager_attention(one, keys, values, mask, scale)[0][0].transpose(0, 1))
    return torch.cat(out)

torch.manual_seed(0)
for causal in (False, True):
    for heads, width, longest in some((2, 16, 20), (1, 32, 40)):
        starts = torch.tensor([0, 4, 4, 5, 5 + longest, 5 + longest], dtype=torch.int32)
        others = starts if causal else torch.tensor([0, 2, 3, 3, 3 + longest, 10 + longest], dtype=torch.int32)
        qkv, kv = torch.randn(int(starts[-1]), 3, heads, width), torch.randn(int(others[-1]), 2, heads, width)
        q, (k, v), told = qkv[:, 0], kv.unbind(1), torch.randn(int(starts[-1]), heads, width)
        sizes = (starts, others, longest, longest, causal, 0.3)
        out, lse = short.forward(q, k, v, *sizes)
        ours = out, *short.backward(told, q, k, v, out, lse, *sizes)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        wanted = right(*leaves, starts.tolist(), others.tolist(), causal, 0.3)
        wanted.backward(told)
        for mine, theirs in zip(ours, (wanted, *(x.grad for x in leaves)), strict=True):
            assert (mine - theirs).abs().max() < 1e-5, (causal, heads)
"""

VOCABULARY = """
import torch
from regard.nn.kernels import cross_entropy as vocabulary
from regard.nn.kernels.losses import cross_entropy
from regard.types import IGNORE

vocabulary.MAX_THREADS = 16  # 128 columns at a time: several turns over a row, the last of them not full
torch.manual_seed(0)
for V, P in some((300, 384), (3, 128), (128, 128), (601, 640)):
    for spread in (0.0, 0.1):
        for dtype in (torch.float32, torch.bfloat16):
            labels = torch.tensor([0, V - 1, IGNORE, V // 2, 1, V, -1])
            room = torch.full((7, P + 16), 9.0, dtype=dtype)  # rows lie apart; what is behind them stays
            logits = room[:, :P]
            logits[:, :V] = 5 * torch.randn(7, V)
            logits[3] -= 200
            logits[4] += 50  # padded columns too: they count for nothing
            exact = logits[:5, :V].double().requires_grad_()
            right = torch.stack([cross_entropy(exact[i], labels[i], spread * (V - 1) / V)[0] for i in range(5)])
            right.sum().backward()
            before, losses = room.clone(), torch.full((7,), 9.0)
            vocabulary.cross_entropy_forward(logits, labels, losses, V, spread, False)
            assert torch.equal(room, before)
            again = torch.full((7,), 9.0)
            vocabulary.cross_entropy_forward(logits, labels, again, V, spread, True)
            assert torch.equal(again.nan_to_num(), losses.nan_to_num()) and (losses.isnan() == (torch.arange(7) > 4)).all()
            assert (losses[:5] - right).abs().max() < 2e-5 * right.abs().max(), (V, spread, dtype)
            near = 1e-5 if dtype == torch.float32 else 4e-3
            assert (logits[:5, :V] - exact.grad).abs().max() < near, (V, spread, dtype)
            assert not logits[:, V:].any() and not logits[2].any() and (room[:, P:] == 9).all()
            assert logits[5:, :V].isnan().all()  # no token: said as NaN
"""

STEP = """
import torch
from regard.nn.kernels import decode_attention as onestep
from regard.nn.kernels.dispatch import eager_attention

def right(qkv, k, v, at, scale, band):
    (B, H, room, d), rows = k.shape, torch.arange(len(at))
    q, key, value = qkv.reshape(B, 3, H, d).unbind(1)
    k[rows, :, at], v[rows, :, at] = key, value
    columns = torch.arange(room)
    may = (columns <= at[:, None]) & (columns > at[:, None] - (band or room))
    return eager_attention(q[:, :, None], k.nan_to_num(), v.nan_to_num(), may[:, None, None], scale)[0].flatten(1)

torch.manual_seed(0)
onestep.TILE_NUMEL = 128
shares = set()
for heads, d, programs in some((2, 16, 512), (2, 16, 1), (1, 80, 1), (1, 20, 9), (3, 32, 512)):
    onestep.TARGET_PROGRAMS = programs
    for band in some(0, 5, 1, 100, quick=2):
        room, at = 37, torch.tensor([0, 3, 36, 17])
        beyond = (torch.arange(room) >= at[:, None])[:, None, :, None]
        k, v = (torch.randn(4, heads, room, d).masked_fill(beyond, torch.nan) for _ in range(2))
        qkv, counts = torch.randn(4, 3 * heads * d + 5)[:, 2:-3], onestep.make_counters(k)
        copies = k.clone(), v.clone()
        wanted = right(qkv, *copies, at, 0.3, band)
        for _ in range(2):  # the second step finds the counts as the first did
            ours = onestep.launch(qkv, k, v, at, counts, 0.3, band)
            assert (ours - wanted).abs().max() < 1e-5 and not counts.any(), (heads, d, programs, band)
        assert all(torch.equal(x.nan_to_num(7), y.nan_to_num(7)) for x, y in zip((k, v), copies, strict=True))
        shares.add(onestep.num_splits(k))
assert QUICK or shares == {1, 2, 4, 8}, shares

# a row beyond the room harms nothing: it looks at what there is, and writes nothing
k, v, qkv = torch.randn(2, 2, 8, 16), torch.randn(2, 2, 8, 16), torch.randn(2, 96)
copies = k.clone(), v.clone()
assert onestep.launch(qkv, k, v, torch.tensor([8, -1]), onestep.make_counters(k), 0.3, 0).isfinite().all()
assert torch.equal(k, copies[0]) and torch.equal(v, copies[1])

low = [x.to(torch.bfloat16) for x in (qkv, k, v)]
at = torch.tensor([5, 7])
ours = onestep.launch(*low, at, onestep.make_counters(k), 0.3, 0).float()
assert (ours - right(*(x.float() for x in low), at, 0.3, 0)).abs().max() < 0.02
"""

FEW = """
import itertools
import torch
from torch.nn import functional as F
from regard.nn.kernels import small_linear as few

forms = {"": lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}

def check(M, N, K, bias, residual, norm, activation, dtype=torch.float32):
    x, r = torch.randn(M, K + 3)[:, 1:-2] + 1, torch.randn(M, N + 2)[:, :-2]
    w, b, g, o = torch.randn(N, K + 4)[:, 4:] / K**0.5, torch.randn(N), torch.randn(K), torch.randn(K)
    x, r, w, b, g, o = (tensor.to(dtype) for tensor in (x, r, w, b, g, o))
    around = b if bias else None, activation, r if residual else None
    ours = few.launch(x, w, *around, *((g, o, 1e-2) if norm else (None, None, 0.0))).float()
    x, r, w, b, g, o = (tensor.float() for tensor in (x, r, w, b, g, o))
    right = forms[activation](F.linear(F.layer_norm(x, (K,), g, o, 1e-2) if norm else x, w, b if bias else None))
    right = right + r if residual else right
    assert (ours - right).abs().max() < (2e-5 if dtype == torch.float32 else 0.05), (M, N, K, around, norm)

torch.manual_seed(0)
tiles = set()
for few.WARP_COLUMNS, few.TARGET_WARPS in ((256, 1024), (16, 4)):
    for i, options in enumerate(some(*itertools.product((True, False), repeat=3), quick=2)):
        check((1, 3, 8)[i % 3], 13, (40, 64)[i % 2], *options, "")
    for activation in some("gelu", "", "relu", "gelu_tanh"):
        check(2, 9, 50, True, True, True, activation)
    check(1, 5, 130, True, True, True, "gelu", torch.bfloat16)
    tiles |= {few.tile_config(2, 9, 50), few.tile_config(1, 5, 130), few.tile_config(8, 13, 64)}
assert tiles == {(1, 1), (2, 1), (4, 4)}, tiles
"""


ENLARGED = """
import torch
from torch.nn import functional as F
from regard.nn.kernels import upsample as enlarged
enlarged.CHANNELS_PER_PROGRAM = 16
torch.manual_seed(0)
for channels in some(20, 16):
    for old, new in some(((3, 5), (6, 10)), ((6, 6), (1, 9)), ((9, 4), (5, 3)), ((1, 3), (5, 17)), quick=2):
        x, bias = torch.randn(2, channels, *old), torch.randn(channels)
        wanted = F.interpolate(x, new, mode="bilinear", align_corners=True)
        for given, more in ((None, 0.0), (bias, bias[:, None, None])):
            assert (enlarged.upsample_forward(x, given, *new) - wanted - more).abs().max() < 1e-5, (channels, old, new)
"""

NEARBY = """
import torch
from regard.nn.points import triton_kernels
from regard.nn.points import knn as neighbours
from regard.nn.points.packing import farthest_point_sampling
from regard.nn.points.packing import CloudSizes

torch.manual_seed(0)
triton_kernels.POINTS_PER_VISIT, triton_kernels.QUERIES_PER_PROGRAM = 8, 16
for counts, count in some(((15, 5, 20, 1), 3), ((1,), 4), ((17, 17), 16), ((20, 3), 5)):
    total, packing = sum(counts), CloudSizes(counts)
    for places in some(torch.randn(total, 3).round(), torch.zeros(total, 3), torch.randn(total, 3) + 1e4):
        assert torch.equal(triton_kernels.knn(places, places, packing, packing, count), neighbours.knn(places, packing, count))
        kept = packing.downsampled(3)
        chosen = farthest_point_sampling(places, packing, kept)
        assert torch.equal(triton_kernels.farthest_point_sampling(places, packing, kept), chosen), counts
        few = places[chosen]
        assert torch.equal(triton_kernels.knn(few, places, kept, packing, 3), neighbours.knn(few, kept, 3, places, packing))
        found = triton_kernels.knn(places, few, packing, kept, count)
        assert torch.equal(found, neighbours.knn(places, packing, count, few, kept))
places, packing = torch.randn(60, 3), CloudSizes((60,))
places = places[places[:, 0].argsort()]  # each nearer than those before
assert torch.equal(triton_kernels.knn(places, places, packing, packing, 8), neighbours.knn(places, packing, 8))
"""

BESIDE = """
import torch
from regard.nn.kernels import local_globals_triton as beside
from regard.nn.kernels import local_flash as columns
from regard.nn.kernels.local_attention import LocalPattern, chunked_attention
from regard.nn.attention.masks import GlobalTokens, SlidingWindow

torch.manual_seed(0)
beside.BLOCK, beside.SPAN = 16, 32
single = torch.float32
for B, L, H, d, many, dtype in some((1, 70, 1, 32, 20, single), (2, 45, 2, 16, 3, single), (2, 33, 3, 16, 1, torch.float16)):
    for dropout in (0.0, 0.3):
        marks = torch.zeros(B, L, dtype=torch.bool)
        marks[0, torch.randperm(L)[:many]] = True
        marks[-1, 0] = True
        starts = torch.tensor([at for b in range(B) for at in (b * L, b * L + L - 7)] + [B * L], dtype=torch.int32)
        far = columns.make_global_keys(LocalPattern(SlidingWindow(3, 5), GlobalTokens(marks)), starts, L)
        x, out, lse = torch.randn(B, L, 3, H, d).to(dtype), torch.randn(B * L, H, d).to(dtype), torch.randn(H, B * L)
        low, kept = x.unbind(2), far.dropout_mask(x[:, :, 0], dropout) if dropout else None
        high, wide = x.float().unbind(2), None if kept is None else kept.float()
        ours, right = (out.clone(), lse.clone()), (out.float().clone(), lse.clone())
        call, exact_call = columns.GlobalCall(*low, far, 0.3, kept), columns.GlobalCall(*high, far, 0.3, wide)
        beside.merge_global_(call, *ours)
        columns.merge_global_(exact_call, *right)
        told, before = torch.randn(B, L, H, d).to(dtype), [torch.randn(B, L, H, d).to(dtype) for _ in range(3)]
        after, exact = tuple(y.clone() for y in before), tuple(y.float().clone() for y in before)
        beside.add_global_gradients_(call, told, ours, after)
        columns.add_global_gradients_(exact_call, told.float(), (ours[0].float(), ours[1]), exact)
        for mine, theirs in zip((*ours, *after), (*right, *exact), strict=True):
            assert (mine - theirs).abs().max() < (2e-5 if dtype == torch.float32 else 0.01), (B, L, many, dtype, dropout)
        assert all((y.float() - z).abs().max() > 0.1 for y, z in zip(after, before, strict=True))
"""


SOME = """
import torch

def some(*cases, quick=1):
    return cases[:quick] if QUICK else cases
"""
PROGRAMS = (SHORT, VOCABULARY, STEP, FEW, ENLARGED, NEARBY, BESIDE)


def run_interpreted(quick: bool) -> None:
    """Run all programs in one subprocess: Triton selects its interpreter on import."""
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source}
    program = "\n".join((f"QUICK = {quick}", SOME, *PROGRAMS))
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_compute_their_formulas() -> None:
    run_interpreted(quick=True)


@pytest.mark.slow
def test_kernels_compute_their_formulas_for_every_size_and_form() -> None:
    run_interpreted(quick=False)
