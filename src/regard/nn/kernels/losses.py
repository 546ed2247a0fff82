"""Losses as (sum, count), so that gradient accumulation and data parallelism divide once by the total count, and the highest
logits of a vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard import capabilities
from regard.nn.kernels.linear import linear
from regard.nn.kernels.table import Kernel, choose
from regard.types import IGNORE

MAX_LOGIT_BYTES = 4 * 2**30  # Maximum size of logits in memory during training.
MAX_EVAL_LOGIT_BYTES = 2**27  # Maximum size of logits in memory without gradients; larger chunks are not faster.
ALIGNMENT = 128
"""Multiple for matrix dimensions, for fast matrix units: GPT-2's 50,257 rows are padded to 50,304 inside a product only."""


def cross_entropy(
    logits: Float[Tensor, "*rows V"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Cross-entropy sum and label count, with the label smoothing of the paper: 1 - ε for the label, ε / (V - 1) for
    other classes.

    `F.cross_entropy` distributes its ε over all V classes, including the label; ε · V / (V - 1) there equals ε here.
    """
    V = logits.shape[-1]
    call = logits.reshape(-1, V), labels.reshape(-1), _torch_smoothing(smoothing, V)
    total: Tensor = choose(CROSS_ENTROPY_KERNELS, *call).run(*call)
    return total, (labels != IGNORE).sum()


def linear_cross_entropy(
    x: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    labels: Int[Tensor, "*rows"],
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """`cross_entropy(linear(x, weight, bias), labels, smoothing)`; with 16-bit dtypes on CUDA without storing the logits."""
    call = x, weight, bias, labels, smoothing
    return choose(VOCABULARY_LOSS_KERNELS, *call).run(*call)


def _num_eval_chunks(x: Tensor, weight: Tensor, bias: Tensor | None) -> int:
    """Number of chunks with logits of at most MAX_EVAL_LOGIT_BYTES; 1 with gradients."""
    learns = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in (x, weight, bias))
    if learns or torch.compiler.is_compiling():
        return 1
    return -(-(x.numel() // x.shape[-1]) * len(weight) * x.element_size() // MAX_EVAL_LOGIT_BYTES)


def _chunked_evaluation(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    parts = _num_eval_chunks(x, weight, bias)
    rows, targets = x.reshape(-1, x.shape[-1]).chunk(parts), labels.reshape(-1).chunk(parts)
    sums = [
        # not `linear`, which would cache packed weights for the few rows of a chunk
        cross_entropy(F.linear(part, weight, bias), target, smoothing)[0]
        for part, target in zip(rows, targets, strict=True)
    ]
    return torch.stack(sums).sum(), (labels != IGNORE).sum()


def fused_linear_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`linear_cross_entropy` in 16 bits if CUDA multiplies in 16 bits, else in the dtype of x; gradients are computed with
    the logits, chunk by chunk (`_fused_op`)."""
    x, (V, D) = x.to(_half_dtype(x, weight) or x.dtype), weight.shape
    learns = torch.is_grad_enabled()
    needed = [learns and part is not None and part.requires_grad for part in (x, weight, bias)]
    made = _fused_op(x.reshape(-1, D), weight, bias, labels.reshape(-1), _torch_smoothing(smoothing, V), needed)
    return made[0], (labels != IGNORE).sum()


def _torch_smoothing(smoothing: float, V: int) -> float:
    return smoothing * V / max(V - 1, 1)


def _half_dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """16-bit dtype of the product on CUDA; None for other dtypes and devices."""
    if not x.is_cuda or torch.float64 in (x.dtype, weight.dtype) or not capabilities.is_available("triton"):
        return None
    casts = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if casts else x.dtype
    return dtype if dtype in (torch.bfloat16, torch.float16) and (casts or weight.dtype == dtype) else None


def _loss_and_gradient(logits: Tensor, labels: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    """Loss of each row and its gradient, probability minus target; 0 for ignored labels."""
    V = logits.shape[-1]
    valid = labels != IGNORE
    right = torch.where(valid, labels, 0)[:, None]
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    own = logs.gather(1, right)[:, 0]
    losses = -(1 - spread) * own - (spread / V) * logs.sum(-1) if spread else -own
    change = logs.exp_()
    if spread:
        change -= spread / V
    change.scatter_add_(1, right, torch.full_like(right, spread - 1, dtype=change.dtype))
    if not bool(valid.all()):
        losses, change = losses.masked_fill_(~valid, 0.0), change.masked_fill_(~valid[:, None], 0.0)
    return losses, change


class ChunkedCrossEntropy(torch.autograd.Function):
    """Cross-entropy on CPUs: loss and gradient of a few rows at a time, while the rows are in the CPU cache.

    `F.cross_entropy` reads all logits of a batch about six times, mostly in float32: a fifth of a training step with
    8,000 tokens. The gradient is computed with the loss and stored in the dtype of the logits.
    """

    CHUNK_NUMEL = 2**18  # Logits per chunk.

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, spread: float) -> Tensor:
        R, V = logits.shape
        gradient = torch.empty_like(logits)
        total = torch.zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        for first in range(0, R, step := max(ChunkedCrossEntropy.CHUNK_NUMEL // V, 1)):
            part = slice(first, first + step)
            losses, gradient[part] = _loss_and_gradient(logits[part], labels[part], spread)
            total += losses.sum()
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_output: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        once = float(grad_output[0]) == 1.0  # the usual case in training
        return gradient if once else gradient * grad_output[0].to(gradient.dtype), None, None


def _torch_cross_entropy(logits: Tensor, labels: Tensor, spread: float) -> Tensor:
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum", label_smoothing=spread)


CROSS_ENTROPY_KERNELS = (
    Kernel("chunked", lambda logits, labels, spread: (
               logits.device.type == "cpu" and logits.requires_grad and not torch.compiler.is_compiling()
           ), ChunkedCrossEntropy.apply, formula="F.cross_entropy",
           gain="369 → 257 ms per step of Transformer training in bfloat16 on a CPU"),
    Kernel("torch", lambda *call: True, _torch_cross_entropy, formula="F.cross_entropy", gain="0: the formula"),
)  # fmt: skip
"""Kernels of `cross_entropy`."""

VOCABULARY_LOSS_KERNELS = (
    Kernel("fused", lambda x, weight, *rest: _half_dtype(x, weight) is not None, fused_linear_cross_entropy,
           formula="cross_entropy(linear(x, weight, bias), labels, smoothing)",
           gain="30.0 % of GPT-2 training, 2.3 % of Transformer-base training"),
    Kernel("chunked_evaluation", lambda x, weight, bias, *rest: _num_eval_chunks(x, weight, bias) > 1, _chunked_evaluation,
           formula="cross_entropy(linear(x, weight, bias), labels, smoothing)",
           gain="memory: at most 128 MiB of logits; not for speed"),
    Kernel("plain", lambda *call: True, lambda x, weight, bias, *rest: cross_entropy(linear(x, weight, bias), *rest),
           formula="cross_entropy(linear(x, weight, bias), labels, smoothing)", gain="0: the formula"),
)  # fmt: skip
"""Kernels of `linear_cross_entropy`."""


# -- fused output layer and loss for large vocabularies


@torch.library.custom_op("regard::vocabulary_loss", mutates_args=())
def _fused_op(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, spread: float, needed: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum of the losses of x (R, D), and its gradients by x, weight and bias, empty if not `needed`.

    Logits are computed once, chunk by chunk, and overwritten by their gradient; the backward pass only scales the
    gradients. Sums over chunks are in float32."""
    table, shift = _pad_rows(weight, x.dtype), None if bias is None else _pad_rows(bias, x.dtype)
    for_x, for_weight, for_bias = needed
    R, wide = len(x), torch.promote_types(x.dtype, torch.float32)
    parts = max(-(-R * len(table) * x.element_size() // MAX_LOGIT_BYTES), 1)  # of about equal size
    step = max(_align_up(-(-R // parts)), ALIGNMENT)
    logits, losses = x.new_empty(min(step, R), len(table)), x.new_empty(R, dtype=wide)
    dx = x.new_empty(x.shape if for_x else 0)
    dw: Tensor | None = None
    db: Tensor | None = None
    labels = labels.contiguous()
    for first in range(0, max(R, 1), step):
        at = slice(first, first + step)
        part = x[at]
        change = logits[: len(part)]
        with torch.autocast(x.device.type, enabled=False):
            if shift is None:
                torch.mm(part, table.T, out=change)
            else:
                torch.addmm(shift, part, table.T, out=change)
            _loss_and_gradient_(change, labels[at], losses[at], len(weight), spread, any(needed))
            if for_x:
                torch.mm(change, table, out=dx[at])
            if for_weight:
                if x.is_cuda and x.dtype != wide:
                    more = torch.mm(change.T, part, out_dtype=wide)
                else:
                    more = change.T.to(wide) @ part.to(wide)
                dw = more if dw is None else dw.add_(more)
            if for_bias:
                more = change.sum(0, dtype=wide)
                db = more if db is None else db.add_(more)
    return losses.sum(), dx, _trim_gradient(dw, weight), _trim_gradient(db, weight if bias is None else bias)


def _pad_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy with zero rows appended, up to a multiple of ALIGNMENT."""
    made = rows.new_empty((_align_up(len(rows)), *rows.shape[1:]), dtype=dtype)
    made[: len(rows)] = rows
    made[len(rows) :] = 0.0
    return made


def _align_up(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _trim_gradient(gradient: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if gradient is None else gradient[: len(like)].to(like.dtype)


def _loss_and_gradient_(logits: Tensor, labels: Tensor, losses: Tensor, V: int, spread: float, gradient: bool) -> None:
    """Write the losses, and with `gradient` replace the logits by their gradient."""
    if logits.is_cuda and capabilities.is_available("triton"):
        from regard.nn.kernels import cross_entropy as vocabulary

        vocabulary.cross_entropy_forward(logits, labels, losses, V, spread, gradient)
        return
    losses[:], change = _loss_and_gradient(logits[:, :V], labels, spread)
    if gradient:
        logits[:, :V] = change  # columns after V are padding and already 0


@_fused_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, spread: float, needed: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    likes = (x, weight, weight if bias is None else bias)
    made = [like.new_empty(like.shape if need else 0) for like, need in zip(likes, needed, strict=True)]
    return x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32)), made[0], made[1], made[2]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)  # None instead of zeros as large as the weights
    ctx.needed = inputs[5]
    ctx.save_for_backward(*output[1:])


def _backward_autograd(ctx: Any, grad_output: Tensor | None, *second: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad_output is None or any(gradient is not None for gradient in second):
        raise RuntimeError("The fused loss does not support second derivatives. Use cross_entropy of the logits.")
    made = [  # the factor is not rounded to 16 bits
        (gradient.to(grad_output.dtype) * grad_output).to(gradient.dtype) if need else None
        for gradient, need in zip(ctx.saved_tensors, ctx.needed, strict=True)
    ]
    return (*made, None, None, None)


_fused_op.register_autograd(_backward_autograd, setup_context=_setup_context)


# -- highest logits

CHUNK_SIZE = 64  # Tokens per chunk.


def chunked_topk(
    values: Float[Tensor, "R V"], k: int, sort_key: Float[Tensor, "R V"] | None = None
) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `k` highest values of each row, highest first, and their indices. `sort_key` has the order of the values.

    The k highest values are in the k chunks with the highest maxima: the vocabulary is not sorted."""
    rows, V = values.shape
    k, chunks = min(k, V), V // CHUNK_SIZE
    if chunks < 2 * k:
        highest, tokens = values.topk(k)
        return highest, tokens
    sort_key = values if sort_key is None else sort_key
    best = sort_key[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE).amax(-1).topk(k).indices[..., None]
    whole = values[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE)
    candidates = whole.gather(1, best.expand(-1, -1, CHUNK_SIZE)).flatten(1)
    tokens = (best * CHUNK_SIZE + torch.arange(CHUNK_SIZE, device=values.device)).flatten(1)
    rest = V - chunks * CHUNK_SIZE
    if rest:  # the incomplete last chunk is always included
        candidates = torch.cat([candidates, values[:, -rest:]], 1)
        tokens = torch.cat([tokens, torch.arange(V - rest, V, device=values.device).expand(rows, -1)], 1)
    highest, places = candidates.topk(k)
    return highest, tokens.gather(1, places)
