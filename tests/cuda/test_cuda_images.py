"""Image systems on a CUDA device: training with CUDA graphs equals plain training, and kernels agree with the CPU."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard.data.settings import DataSettings
from regard.model import Model, assemble
from regard.nn.attention.masks import Full
from regard.nn.blocks.block import FeedForward
from regard.nn.kernels import dispatch
from regard.nn.kernels.cuda_graph import capture
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.linear import accepts_gelu, linear_gelu
from regard.nn.vision.dense import conv_then_resize, resize_bilinear
from regard.processors.image import Augment, augment_images, sample_params
from regard.tasks.base import HeadOptions, LossWeights
from regard.training.distributed import ProcessGroup
from regard.training.loop import ForwardBackward, LossModule
from regard.training.settings import TrainSettings
from regard.types import Augmentation, Batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CASES = [
    *(("classify", name) for name in ("vit-tiny", "hybrid-tiny", "resnet-tiny", "swin-mini")),
    *(("segment", name) for name in ("vit-tiny", "hybrid-tiny", "resnet-tiny", "swin-mini", "dpt-small")),
    *(("depth", name) for name in ("vit-tiny", "resnet-tiny", "swin-mini", "dpt-hybrid-small")),
]


def made(task: str, name: str, **changes: Any) -> Model:
    torch.manual_seed(1)
    model = regard.build(name, task=task, device="meta", **changes)
    labels = () if task == "depth" else tuple("abcde")
    model = assemble(
        replace(model.spec, options=HeadOptions(tuple(labels))),
        model.task.modality.default_processor(model.config, DataSettings()),
    )
    for parameter in model.parameters():
        if float(parameter.detach().abs().sum()) == 0:  # gates initialized to 0 would block all gradients
            torch.nn.init.normal_(parameter, std=0.02)
    for part in model.modules():  # dropout is disabled: random numbers differ in a CUDA graph
        if hasattr(part, "drop_prob"):
            part.drop_prob = 0.0
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def batch_for(model: Model, count: int = 4) -> Batch:
    how = Augment(crop=0.6, color_jitter=0.2, mixup=0.2 if model.task.name == "classify" else 0.0)
    random = np.random.default_rng(3)
    height, width = model.require_image_processor().size
    x = torch.from_numpy(random.integers(0, 256, (count, 3, height + 8, width + 8), dtype=np.uint8))
    labels: torch.Tensor = torch.from_numpy(random.integers(0, 5, count))
    if model.task.name == "segment":
        labels = torch.from_numpy(random.integers(0, 5, (count, height + 8, width + 8)))
    if model.task.name == "depth":
        labels = torch.from_numpy(random.random((count, height + 8, width + 8)).astype(np.float32) * 4 + 0.5)
    return Batch(
        x, labels=labels, augmentation=Augmentation(torch.from_numpy(sample_params(random, count, how)), settings=how)
    )


def gradients(model: Model, way: Any, batch: Batch, precision: str) -> tuple[float, dict[str, torch.Tensor]]:
    model = copy.deepcopy(model).cuda().train()
    settings = TrainSettings(precision=precision)  # type: ignore[arg-type]
    compute = ForwardBackward(
        LossModule(model, model.objective, LossWeights()),
        settings,
        torch.device("cuda"),
        ProcessGroup(),
        static_shape=True,
    )
    compute.set_mode(way)
    total = compute(batch)[0]
    # the second call replays the graph and overwrites the gradients
    total = compute(batch)[0] if way == "graph" else total
    return float(total), {name: p.grad.double().cpu() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("task", "name"), CASES)
def test_a_captured_step_equals_a_plain_step(task: str, name: str) -> None:
    model = made(task, name)
    batch = batch_for(model)
    plain, wanted = gradients(model, "plain", batch, "float32")
    recorded, got = gradients(model, "graph", batch, "float32")
    assert wanted.keys() == got.keys() and len(wanted) > 10
    assert recorded == pytest.approx(plain, rel=1e-3)
    whole = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
    apart = sum(float((got[key] - wanted[key]).square().sum()) for key in wanted) ** 0.5
    assert apart <= 2e-2 * whole  # convolution kernels are selected again and sum in any order


@pytest.mark.parametrize(("task", "name"), CASES)
def test_image_features_on_the_device_equal_the_cpu(task: str, name: str) -> None:
    model = made(task, name).eval()
    height, width = model.require_image_processor().size
    pixels = torch.rand(2, 3, height, width)
    with torch.no_grad():
        wanted = model.states(pixels).sequence
        got = copy.deepcopy(model).cuda().states(pixels.cuda()).sequence.cpu()
        low = copy.deepcopy(model).cuda().bfloat16().states(pixels.cuda().bfloat16()).sequence.cpu().float()
    assert (got - wanted).norm() <= 5e-3 * wanted.norm()
    assert (low - wanted).norm() <= 6e-2 * wanted.norm()


def test_gradients_of_small_patches_in_sixteen_bits_are_close_to_float32() -> None:
    """197 tokens use the cuDNN kernel."""
    model = made("classify", "vit-tiny", patch_size=2, depth=4)
    batch = batch_for(model, 16)
    _, wanted = gradients(model, "plain", batch, "float32")
    _, got = gradients(model, "graph", batch, "bfloat16")
    whole = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
    assert sum(float((got[key] - wanted[key]).square().sum()) for key in wanted) ** 0.5 <= 5e-2 * whole


def test_images_are_augmented_on_the_device_as_on_the_cpu() -> None:
    how = Augment(crop=0.3, color_jitter=0.3, mixup=0.4)
    random = np.random.default_rng(0)
    x = torch.from_numpy(random.integers(0, 256, (5, 3, 40, 52), dtype=np.uint8))
    changes = torch.from_numpy(sample_params(random, 5, how))
    wanted = augment_images(x, changes, (32, 30), how)
    assert (augment_images(x.cuda(), changes.cuda(), (32, 30), how).cpu() - wanted).abs().max() < 2e-3


@pytest.mark.parametrize("length", [50, 128, 197, 577])
@pytest.mark.parametrize("recorded", [False, True])
def test_attention_between_image_patches_equals_plain_attention(length: int, recorded: bool) -> None:
    """Queries, keys and values are views of one projection."""
    qkv = torch.randn(3, length, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    way = torch.randn(3, 4, length, 64, device="cuda", dtype=torch.bfloat16)

    def work() -> list[torch.Tensor]:
        out = dispatch.sdpa(AttentionCall(*(part.transpose(1, 2) for part in qkv.unbind(2)), 0.125, Full()))
        return [out, *torch.autograd.grad(out, (qkv,), way)]

    if recorded:  # before the gradient of qkv is touched on another stream
        graph, got = capture(work, torch.device("cuda"))
        graph.replay()
    else:
        got = work()
    exact = qkv.detach().double().requires_grad_()
    wanted = dispatch.eager_attention(*(part.transpose(1, 2) for part in exact.unbind(2)), None, 0.125)[0]
    for mine, right in zip(got, (wanted, *torch.autograd.grad(wanted, (exact,), way.double())), strict=True):
        assert (mine.double() - right).norm() <= 1e-2 * right.norm()


@pytest.mark.parametrize(("old", "new"), [((5, 7), (10, 14)), ((6, 6), (1, 9)), ((9, 4), (5, 3)), ((1, 3), (4, 6))])
@pytest.mark.parametrize("channels", [32, 40, 130])
def test_maps_are_made_larger_as_torch_does_it(old: tuple[int, int], new: tuple[int, int], channels: int) -> None:
    x = torch.randn(3, channels, *old, device="cuda")
    wanted = F.interpolate(x.double(), new, mode="bilinear", align_corners=True)
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last)):
            assert (resize_bilinear(given, new) - wanted).abs().max() < 1e-5
        assert (resize_bilinear(x.bfloat16(), new) - wanted).norm() < 1e-2 * wanted.norm()
        folded = torch.nn.Conv2d(channels, channels, 1, device="cuda")
        wanted = F.interpolate(copy.deepcopy(folded).double()(x.double()), new, mode="bilinear", align_corners=True)
        assert (conv_then_resize(folded, x, new) - wanted).abs().max() < 2e-3
    assert resize_bilinear(x.requires_grad_(), new).requires_grad and conv_then_resize(folded, x, new).requires_grad


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_a_matrix_and_gelu_in_one_kernel_are_nearer_to_float64_than_in_two(kind: str) -> None:
    torch.manual_seed(0)
    feed = FeedForward(192, 768, kind).cuda()
    torch.nn.init.normal_(feed.up.weight, std=0.12)  # preactivations as large as in a trained model
    torch.nn.init.normal_(feed.up.bias, std=0.5)
    x = torch.randn(4, 50, 192, device="cuda")
    low, small = copy.deepcopy(feed).bfloat16(), x.bfloat16()
    exact = copy.deepcopy(low).double()
    wanted = exact.activation(exact.up(small.double()))
    two = low.activation(low.up(small))
    with torch.no_grad():
        assert accepts_gelu(small, low.up.weight, low.up.bias, kind)
        one = linear_gelu(small, low.up.weight, low.up.bias)
        whole = low(small)
    assert (one - wanted).norm() <= 1.001 * (two - wanted).norm() and (one - wanted).abs().max() < 0.02
    assert (whole - exact(small.double())).norm() < 1e-2 * whole.norm()
    assert not accepts_gelu(small, low.up.weight, low.up.bias, kind), "with gradients"
    with torch.no_grad():
        assert torch.equal(torch.compile(low)(small), whole) or torch.allclose(
            torch.compile(low)(small), whole, atol=1e-2
        )
