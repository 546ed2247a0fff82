"""Loss and gradient of rows of logits in one Triton kernel.

Two loops over a row: log-sum-exp, then probability minus target, written over the logits. The second loop reads the row
from the GPU cache, so each logit is loaded from memory and stored once. Imported only if Triton is available.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from regard.nn.kernels.table import device_of
from regard.types import IGNORE

MAX_THREADS = 1024
"""Maximum threads per row. With many threads per row, few rows run at once and stay in the cache between the loops."""


@triton.jit
def _log_sum_exp(own, columns, vocabulary, padded, smooth: tl.constexpr, lanes: tl.constexpr):
    """log Σ exp of a row and, with `smooth`, Σ of the logits. Threads sum their own columns, with one reduction at the end."""
    highest = tl.full((lanes,), float("-inf"), tl.float32)
    total, plain = tl.zeros((lanes,), tl.float32), tl.zeros((lanes,), tl.float32)
    for first in range(0, padded, lanes * 8):
        at = first + columns
        # masked by the padded width, which is aligned, so that eight columns are one load
        value = tl.load(own + at, mask=at < padded, other=0.0).to(tl.float32)
        if smooth:
            plain += tl.sum(tl.where(at < vocabulary, value, 0.0), 1)
        value = tl.where(at < vocabulary, value, float("-inf"))
        higher = tl.maximum(highest, tl.max(value, 1))
        from_here = tl.where(higher == float("-inf"), 0.0, higher)  # no column yet in this thread
        total = total * tl.exp(highest - from_here) + tl.sum(tl.exp(value - from_here[:, None]), 1)
        highest = higher
    top = tl.max(highest, 0)
    return top + tl.log(tl.sum(total * tl.exp(highest - top), 0)), tl.sum(plain, 0)


@triton.jit
def _cross_entropy_kernel(
    logits,
    labels,
    losses,
    step,
    vocabulary,
    padded,
    spread,
    ignore: tl.constexpr,
    smooth: tl.constexpr,
    gradient: tl.constexpr,
    lanes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * step
    label = tl.load(labels + row)
    columns = tl.arange(0, lanes)[:, None] * 8 + tl.arange(0, 8)[None, :]
    if label == ignore:
        tl.store(losses + row, 0.0)
        if gradient:
            for first in range(0, padded, lanes * 8):
                at = first + columns
                tl.store(own + at, tl.zeros((lanes, 8), logits.dtype.element_ty), mask=at < padded)
    else:
        known = (label >= 0) & (label < vocabulary)
        right = tl.load(own + label, mask=known, other=0.0).to(tl.float32)  # before the logits are overwritten
        norm, plain = _log_sum_exp(own, columns, vocabulary, padded, smooth, lanes)
        norm = tl.where(known, norm, float("nan"))  # invalid labels give NaN instead of training another class
        share, place = spread / vocabulary, label.to(tl.int32)
        tl.store(losses + row, norm - (1.0 - spread) * right - share * plain)
        if gradient:
            for first in range(0, padded, lanes * 8):
                at = first + columns
                value = tl.load(own + at, mask=at < padded, other=0.0).to(tl.float32)
                change = tl.exp(value - norm) - share
                change = tl.where(at == place, change - (1.0 - spread), change)
                change = tl.where(at < vocabulary, change, 0.0)
                tl.store(own + at, change.to(logits.dtype.element_ty), mask=at < padded)


def cross_entropy_forward(
    logits: Tensor, labels: Tensor, losses: Tensor, vocab_size: int, smoothing: float, with_gradient: bool
) -> None:
    """Write the losses (R,), and with `with_gradient` replace the logits (R, P) by their gradient; columns from `vocab_size`
    on are padding. Invalid labels (neither a token nor IGNORE) give NaN, because an error would synchronize with the GPU."""
    rows, padded = logits.shape
    lanes = min(MAX_THREADS, triton.next_power_of_2(triton.cdiv(padded, 8)))
    with device_of(logits):
        numbers = (logits.stride(0), vocab_size, padded, smoothing)
        sizes = {
            "smooth": smoothing != 0.0,
            "gradient": with_gradient,
            "lanes": lanes,
            "num_warps": max(lanes // 32, 1),
        }
        _cross_entropy_kernel[(rows,)](logits, labels, losses, *numbers, ignore=IGNORE, **sizes)
