"""Convolution and ReLU in one kernel, if supported: tested with meta tensors, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from regard.nn.kernels import conv_relu as one
from regard.nn.kernels.conv_relu import conv_relu, is_supported, preserves_size


@pytest.mark.parametrize("bias", [True, False])
def test_on_a_cpu_it_is_the_two_after_another(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    convolution = nn.Conv2d(8, 16, 3, padding=1, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(2, 8, 5, 7, dtype=torch.bfloat16)
    with torch.no_grad():
        assert not is_supported(x, convolution.weight)
        assert torch.equal(conv_relu(convolution, x), F.relu(convolution(x)))


def made(inputs: int, outputs: int, dtype: torch.dtype, bias: bool = True) -> nn.Conv2d:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias, device="meta")
    for name, parameter in list(convolution.named_parameters()):
        setattr(convolution, name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device="cuda")))
    return convolution


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, True),
        ({"dtype": torch.float16}, True),
        ({"dtype": torch.float32}, False),
        ({"inputs": 12}, False),
        ({"outputs": 12}, False),
        ({"bias": False}, False),
    ],
)
@pytest.mark.usefixtures("cuda_capabilities")
def test_one_kernel_is_taken_of_halves_by_eights_where_nothing_learns(
    given: dict[str, Any], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    joined = one.conv_relu_op
    monkeypatch.setattr(one, "conv_relu_op", lambda *parts: calls.append(0) or joined(*parts))
    sizes = {"inputs": 16, "outputs": 24, "dtype": torch.bfloat16, **given}
    with FakeTensorMode():
        convolution = made(**sizes)
        x = torch.empty(2, sizes["inputs"], 5, 7, dtype=sizes["dtype"], device="cuda")
        with torch.no_grad():
            found, wanted = conv_relu(convolution, x), F.relu(convolution(x))
        assert len(calls) == taken
        assert (found.shape, found.dtype, found.device) == (wanted.shape, wanted.dtype, wanted.device)
        assert found.is_contiguous(memory_format=torch.channels_last) == taken
        assert not is_supported(x, convolution.weight)  # gradients are required here


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"kernel_size": 3, "padding": 1}, True),
        ({"kernel_size": 1}, True),
        ({"kernel_size": 3}, False),
        ({"kernel_size": 3, "padding": 1, "stride": 2}, False),
        ({"kernel_size": 3, "padding": 2, "dilation": 2}, False),
        ({"kernel_size": 3, "padding": 1, "groups": 4}, False),
    ],
)
def test_one_kernel_is_for_convolutions_of_stride_1(given: dict[str, Any], kept: bool) -> None:
    assert preserves_size(nn.Conv2d(8, 8, **given, device="meta")) == kept
