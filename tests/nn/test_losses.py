"""Chunked cross-entropy with a large vocabulary equals the loss of the full logits, with its gradients.

A formula replaces the kernel here; the kernel is tested in test_triton.py, and both on a GPU in test_cuda.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from oracle import near, noise
from regard import capabilities
from regard.nn.kernels import losses as loss
from regard.nn.kernels.losses import cross_entropy, fused_linear_cross_entropy, linear_cross_entropy
from regard.types import IGNORE

R, D, V = 300, 8, 50
"""Rows for three chunks of at least 128 rows."""


def problem(dtype: torch.dtype = torch.float64, biased: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """x, weight, bias and labels, some of them ignored."""
    x, weight, bias = noise(3, R // 3, D), noise(V, D, seed=1), noise(V, seed=2)
    labels = torch.arange(R).view(3, -1) * 7 % V
    labels[labels % 5 == 0] = IGNORE
    leaves = [part.to(dtype).requires_grad_() for part in (x, weight, bias)]
    return leaves[0], leaves[1], leaves[2] if biased else None, labels


def pulled(made: tuple[Tensor, Tensor], leaves: list[Tensor], scale: float = 1.0) -> list[Tensor]:
    total, count = made
    return [total.detach(), count, *torch.autograd.grad(total * scale, leaves)]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MAX_LOGIT_BYTES", 1)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bool]]:
    """Calls of the kernel: address of the logits, number of rows, with or without gradient."""
    seen: list[tuple[int, int, bool]] = []
    real = loss._loss_and_gradient_

    def sweep(logits: Tensor, labels: Tensor, losses: Tensor, V: int, spread: float, gradient: bool) -> None:
        seen.append((logits.data_ptr(), len(logits), gradient))
        assert logits.shape[1] == 128 and all(part.is_contiguous() for part in (logits, labels, losses))
        real(logits, labels, losses, V, spread, gradient)

    monkeypatch.setattr(loss, "_loss_and_gradient_", sweep)
    return seen


@pytest.mark.parametrize("limit", [1, 2**30])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_it_is_the_loss_of_the_logits_and_so_are_its_gradients(
    limit: int, smoothing: float, biased: bool, scale: float, swept: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "MAX_LOGIT_BYTES", limit)
    x, weight, bias, labels = problem(biased=biased)
    leaves = [part for part in (x, weight, bias) if part is not None]
    ours = pulled(fused_linear_cross_entropy(x, weight, bias, labels, smoothing), leaves, scale)
    right = pulled(cross_entropy(torch.nn.functional.linear(x, weight, bias), labels, smoothing), leaves, scale)
    assert int(ours[1]) == int(right[1]) < R
    for mine, theirs in zip(ours, right, strict=True):
        assert mine.dtype == theirs.dtype
        near(mine, theirs)
    assert [rows for _, rows, _ in swept] == ([128, 128, 44] if limit == 1 else [R])
    assert len({place for place, _, _ in swept}) == 1  # one buffer for all chunks


def test_the_kernel_gets_contiguous_tensors(in_parts: None, swept: list[Any]) -> None:
    x, weight, _, labels = problem(biased=False)
    apart, states = labels.reshape(-1)[::2], x.reshape(-1, D)[::2]
    assert not apart.is_contiguous()
    near(fused_linear_cross_entropy(states, weight, None, apart)[0], cross_entropy(states @ weight.T, apart)[0])
    assert len(swept) == 2


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_required_gradients_are_computed(wanted: tuple[bool, ...], in_parts: None) -> None:
    *parts, labels = problem()
    parts = [part.detach().requires_grad_(asked) for part, asked in zip(parts, wanted, strict=True)]
    made = loss._fused_op(parts[0].reshape(-1, D), *parts[1:], labels.reshape(-1), 0.1, [*wanted])
    assert [bool(gradient.numel()) for gradient in made[1:]] == list(wanted)
    leaf = parts[wanted.index(True)]
    right = cross_entropy(torch.nn.functional.linear(*parts), labels, 0.1)[0]
    near(pulled(fused_linear_cross_entropy(*parts, labels, 0.1), [leaf])[2], torch.autograd.grad(right, leaf)[0])


def test_where_nothing_learns_only_the_loss_is_made(swept: list[Any]) -> None:
    x, weight, bias, labels = problem()
    with torch.no_grad():
        total = fused_linear_cross_entropy(x, weight, bias, labels, 0.1)[0]
    assert [gradient for _, _, gradient in swept] == [False] and not total.requires_grad
    near(total, fused_linear_cross_entropy(x, weight, bias, labels, 0.1)[0])


@pytest.mark.parametrize("rows", [0, 3])
def test_without_labels_there_is_no_loss_and_no_gradient(rows: int) -> None:
    x, weight = noise(rows, D).requires_grad_(), noise(V, D).requires_grad_()
    labels = torch.full((rows,), IGNORE)
    for loss_of in (fused_linear_cross_entropy(x, weight, None, labels, 0.1), cross_entropy(x @ weight.T, labels, 0.1)):
        total, count, *gradients = pulled(loss_of, [x, weight])
        assert total.item() == 0.0 and int(count) == 0
        assert all(gradient.shape == leaf.shape for gradient, leaf in zip(gradients, (x, weight), strict=True))
        assert not any(gradient.any() for gradient in gradients)


def test_sums_of_sixteen_bits_are_made_in_thirty_two(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias, labels = problem(torch.float32)
    assert bias is not None
    narrow = x.detach().bfloat16().requires_grad_()
    whole = pulled(fused_linear_cross_entropy(narrow, weight, bias, labels, 0.1), [narrow, weight, bias], 0.3)
    monkeypatch.setattr(loss, "MAX_LOGIT_BYTES", 1)
    parts = pulled(fused_linear_cross_entropy(narrow, weight, bias, labels, 0.1), [narrow, weight, bias], 0.3)
    exact = [part.detach().double().requires_grad_() for part in (narrow, weight, bias)]
    right = pulled(cross_entropy(torch.nn.functional.linear(*exact), labels, 0.1), exact, 0.3)
    assert [made.dtype for made in whole] == [torch.float32, torch.int64, torch.bfloat16, torch.float32, torch.float32]
    for one, other, theirs in zip(whole, parts, right, strict=True):
        near(one.double(), theirs.double(), 2e-2)
        near(one.double(), other.double(), 1e-6)


def test_incoming_gradients_are_not_rounded_to_sixteen_bits() -> None:
    x, weight, bias, labels = problem(torch.bfloat16)
    total = fused_linear_cross_entropy(x, weight, bias, labels)[0]
    (once,) = torch.autograd.grad(total, x, retain_graph=True)
    (scaled,) = torch.autograd.grad(total / 3, x)
    assert torch.equal(scaled, (once.float() * (torch.ones(()) / 3)).bfloat16())
    assert not torch.equal(scaled, once * (torch.ones(()) / 3).bfloat16())


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x, weight, bias, labels = problem()
    (gradient,) = torch.autograd.grad(fused_linear_cross_entropy(x, weight, bias, labels)[0], x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivative"):
        torch.autograd.grad(gradient.square().sum(), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_the_operator_passes_the_checks_of_torch(biased: bool, dtype: torch.dtype) -> None:
    x, weight, bias, labels = problem(dtype, biased)
    # without the check that differentiates every output: the gradient outputs are not differentiable
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    call = (x.reshape(-1, D), weight, bias, labels.reshape(-1), 0.1, [True, True, biased])
    torch.library.opcheck(loss._fused_op, call, test_utils=checks)
    parts = [None if part is None else part.detach() for part in (x.reshape(-1, D), weight, bias)]
    torch.library.opcheck(loss._fused_op, (*parts, labels.reshape(-1), 0.1, [False] * 3))


def test_it_is_traced_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "_half_dtype", lambda x, weight: torch.bfloat16)
    x, weight, _, labels = problem(torch.float32, biased=False)
    leaves = [x, weight]
    right = pulled(linear_cross_entropy(x, weight, None, labels, 0.1), leaves)
    assert right[3].dtype == torch.float32
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    for mine, theirs in zip(pulled(compiled(x, weight, None, labels, 0.1), leaves), right, strict=True):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        assert torch.equal(compiled(x, weight, None, labels, 0.1)[0], right[0])


CHOICES = [
    (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16, None, torch.bfloat16),
    (torch.float16, torch.float16, None, torch.float16),
    (torch.float32, torch.float32, None, None),
    (torch.bfloat16, torch.float32, None, None),  # refused, as in torch
    (torch.float64, torch.float64, torch.bfloat16, None),  # unchanged under autocast, as in torch
]


@pytest.mark.parametrize(("states", "weights", "cast", "chosen"), CHOICES)
def test_it_is_chosen_where_cuda_would_multiply_in_sixteen_bits(
    states: torch.dtype, weights: torch.dtype, cast: torch.dtype | None, chosen: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(capabilities._results, "triton", True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda" and cast is not None)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: cast)
    with FakeTensorMode():
        for device in ("cpu", "cuda"):
            x, weight = torch.empty(3, D, dtype=states, device=device), torch.empty(V, D, dtype=weights, device=device)
            assert loss._half_dtype(x, weight) == (chosen if device == "cuda" else None)
    monkeypatch.setitem(capabilities._results, "triton", False)
    assert loss._half_dtype(x, weight) is None


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 128, R])
def test_where_nothing_learns_only_a_part_of_the_logits_is_there(
    rows: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias, labels = problem(biased=biased)
    right = cross_entropy(loss.linear(x, weight, bias), labels, 0.1)
    monkeypatch.setattr(loss, "MAX_EVAL_LOGIT_BYTES", rows * V * x.element_size())
    sizes: list[int] = []
    real = cross_entropy
    monkeypatch.setattr(
        loss, "cross_entropy", lambda logits, *more: sizes.append(logits.numel() // V) or real(logits, *more)
    )
    with torch.no_grad():
        total, count = linear_cross_entropy(x, weight, bias, labels, 0.1)
    near(total, right[0])
    assert count == right[1] and sum(sizes) == R and max(sizes) <= rows
    frozen = [None if part is None else part.detach() for part in (x, weight, bias)]
    linear_cross_entropy(frozen[0], frozen[1], frozen[2], labels, 0.1)  # type: ignore[arg-type]
    assert max(sizes) <= rows
    linear_cross_entropy(x, weight, bias, labels, 0.1)[0].backward()
    assert sizes[-1] == R and x.grad is not None
