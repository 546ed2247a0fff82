"""The Triton kernels on the CPU, by Triton's own interpreter: what they compute, forward and backward."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SHORT = """
import torch
from regard.nn import short
from regard.nn.kernels import plain

def right(q, k, v, starts, others, causal, scale):
    out = []
    for i in range(len(starts) - 1):
        one, keys, values = (x[a[i] : a[i + 1]].transpose(0, 1)[None] for x, a in ((q, starts), (k, others), (v, others)))
        if one.shape[2] and not keys.shape[2]:
            out.append(torch.zeros_like(one[0]).transpose(0, 1))
        elif one.shape[2]:
            mask = torch.ones(one.shape[2], keys.shape[2]).tril().bool()[None, None] if causal else None
            out.append(plain(one, keys, values, mask, scale)[0][0].transpose(0, 1))
    return torch.cat(out)

torch.manual_seed(0)
for causal in (False, True):
    for heads, width, longest in ((2, 16, 20), (1, 32, 40)):
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

JOINED = """
import torch
from regard.nn import joined
for width in (8, 100):
    norm = torch.nn.LayerNorm(width)
    with torch.no_grad():
        norm.weight.normal_(), norm.bias.normal_()
        x, y = torch.randn(3, 5, width), torch.randn(3, 5, width)
        assert (joined.add_norm(x, y, norm.weight, norm.bias, norm.eps) - norm(x + y)).abs().max() < 1e-5
"""

VOCABULARY = """
import torch
from regard.nn import vocabulary
from regard.nn.loss import cross_entropy
from regard.waists import IGNORE

vocabulary.LANES = 16  # 128 columns at a time: several turns over a row, the last of them not full
torch.manual_seed(0)
for V, P in ((3, 128), (128, 128), (300, 384), (601, 640)):
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
            vocabulary.sweep(logits, labels, losses, V, spread, False)
            assert torch.equal(room, before)
            again = torch.full((7,), 9.0)
            vocabulary.sweep(logits, labels, again, V, spread, True)
            assert torch.equal(again.nan_to_num(), losses.nan_to_num()) and (losses.isnan() == (torch.arange(7) > 4)).all()
            assert (losses[:5] - right).abs().max() < 2e-5 * right.abs().max(), (V, spread, dtype)
            near = 1e-5 if dtype == torch.float32 else 4e-3
            assert (logits[:5, :V] - exact.grad).abs().max() < near, (V, spread, dtype)
            assert not logits[:, V:].any() and not logits[2].any() and (room[:, P:] == 9).all()
            assert logits[5:, :V].isnan().all()  # no token: said as NaN
"""


@pytest.mark.parametrize("program", [SHORT, JOINED, VOCABULARY])
def test_a_kernel_says_what_the_formula_says(program: str) -> None:
    # in a process of its own: the interpreter is chosen when Triton is imported
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
