"""Dense prediction heads on feature maps of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from data_files import refused
from regard.errors import SettingError
from regard.nn.vision.dense import (
    DenseHead,
    DepthHead,
    FeatureTap,
    NeckConfig,
    default_neck,
    depth_head,
    make_resampler,
    segmentation_head,
)
from regard.types import Batch, BodyOutput
from tiny import near, noise, noisy

FLAT = tuple(FeatureTap(at, 12, 16, is_sequence=True) for at in (0, 1, 2, 3))
KINDS: dict[str, tuple[FeatureTap, ...]] = {
    "vit": FLAT,
    "vit without a token": tuple(FeatureTap(at, 12, 8, is_sequence=True, has_class_token=False) for at in (0, 1, 2, 3)),
    "vit of small patches": tuple(FeatureTap(at, 12, 4, is_sequence=True) for at in (0, 1, 2, 3)),
    "swin": tuple(FeatureTap(at, 6 * 2**at, 4 * 2**at, is_sequence=False) for at in (0, 1, 2, 3)),
    "resnet": tuple(FeatureTap(at, 16 * 2**at, 4 * 2**at, is_sequence=False) for at in (0, 1, 2, 3)),
    "resnet that stops at 16": tuple(
        FeatureTap(at, 8, stride, is_sequence=False) for at, stride in enumerate((4, 8, 16, 16))
    ),
    "fine resnet": tuple(FeatureTap(at, 8 * 2**at, 2**at, is_sequence=False) for at in (0, 1, 2, 3)),
    "hybrid": (FeatureTap(-1, 16, 4, is_sequence=False), FeatureTap(-2, 32, 8, is_sequence=False), *FLAT[2:]),
}
kinds = pytest.mark.parametrize("kind", KINDS)


class Body(nn.Module):
    """Substitute body: one linear layer per feature tap on the pixels of each position."""

    def __init__(self, maps: Sequence[FeatureTap], channels: int = 2) -> None:
        super().__init__()
        self.maps = {tap.index: tap for tap in maps}
        self.layers = nn.ModuleDict({str(tap.index): nn.Conv2d(channels, tap.channels, 1) for tap in maps})

    def forward(self, batch: Batch, taps: Sequence[int] = ()) -> BodyOutput:
        found = [self.tapped(self.maps[at], batch.inputs) for at in taps]
        return BodyOutput(batch.inputs.flatten(2).mT, batch.inputs.mean((2, 3)), tuple(found))

    def tapped(self, tap: FeatureTap, x: Tensor) -> Tensor:
        size = [-(-side // tap.stride) for side in x.shape[-2:]]
        found = self.layers[str(tap.index)](nn.functional.adaptive_avg_pool2d(x, size))
        if not tap.is_sequence:
            return found
        tokens = found.flatten(2).mT
        return torch.cat([tokens.mean(1, keepdim=True), tokens], 1) if tap.has_class_token else tokens


def config(kind: str) -> Any:
    return SimpleNamespace(feature_maps=lambda: KINDS[kind], neck=lambda: default_neck(KINDS[kind]))


def ask(body: Body, head: DenseHead, x: Tensor) -> Tensor:
    return head(body(Batch(x), taps=head.tap_indices).hidden_states, tuple(x.shape[-2:]))


# -- heads


@kinds
@pytest.mark.parametrize("shape", [(64, 32), (48, 80), (16, 16)])
def test_every_pixel_has_a_prediction_on_feature_maps_of_every_kind(kind: str, shape: tuple[int, int]) -> None:
    body, x = noisy(Body(KINDS[kind])), noise(2, 2, *shape)
    depth, classes = (noisy(head, 0.2) for head in (depth_head(config(kind)), segmentation_head(config(kind), 5)))
    said, logits = ask(body, depth, x), ask(body, classes, x)
    assert said.shape == (2, *shape) and logits.shape == (2, 5, *shape)
    assert bool((said >= 0).all()) and bool(said.isfinite().all()) and bool(logits.isfinite().all())
    near(ask(body, depth, x[:1]), said[:1])
    near(ask(body, classes, x[1:]), logits[1:])


def test_a_neck_matches_its_feature_maps() -> None:
    wide = tuple(FeatureTap(at, 768, 16, True) for at in range(4))
    assert default_neck(wide) == NeckConfig((192, 384, 768, 768), 256)
    assert [default_neck(KINDS[kind]).width for kind in ("vit", "resnet")] == [32, 48]
    assert default_neck(KINDS["vit without a token"]).readout == "ignore"
    three = DepthHead(FLAT[1:], default_neck(FLAT[1:]))
    assert ask(Body(FLAT[1:]), three, noise(1, 2, 32, 32).float()).shape == (1, 32, 32)
    refused("1 to 4 feature maps", default_neck, (*FLAT, *FLAT), error=SettingError)
    refused("one channel count", DepthHead, FLAT, NeckConfig((3, 4, 5)), error=SettingError)
    refused("class", DepthHead, KINDS["vit without a token"], NeckConfig((3, 4, 5, 6), 8), error=SettingError)


def test_depths_in_meters_are_positive_and_initialized_to_a_typical_value() -> None:
    body, x = noisy(Body(FLAT)), noise(2, 2, 64, 64)
    head = DepthHead(FLAT, NeckConfig((3, 4, 5, 6), 16), metric=7.0).double()
    assert head.metric and "typical" in head.state_dict()
    with torch.no_grad():
        head.last.weight.zero_()
    near(ask(body, head, x), torch.full((2, 64, 64), 7.0, dtype=torch.float64), 1e-8)  # stored in float32
    with torch.no_grad():
        head.last.bias.fill_(-30.0)
    assert bool((ask(body, head, x) > 0).all())
    grads = torch.autograd.grad(ask(body, head, x).sum(), [head.last.bias])
    assert bool(grads[0].any())
    other = DepthHead(FLAT, NeckConfig((3, 4, 5, 6), 16), metric=1.0).double()
    other.load_state_dict(head.state_dict())
    near(ask(body, other, x), ask(body, head, x))


def test_a_new_head_for_depth_has_no_dead_pixels() -> None:
    torch.manual_seed(0)
    head, body = depth_head(config("vit")), Body(FLAT)
    assert float((ask(body, head, noise(2, 2, 64, 64).float()) > 0).float().mean()) > 0.9


@pytest.mark.parametrize("factor", [0.5, 2, 4])
@pytest.mark.parametrize(("high", "wide"), [(1, 1), (4, 1), (1, 4)])
def test_feature_maps_of_one_column_are_trained_on_in_bfloat16_too(factor: float, high: int, wide: int) -> None:
    """oneDNN leaves the weight gradient of strided convolutions uninitialized there, and computes a wrong input
    gradient of a transposed convolution from one to four positions."""
    torch.manual_seed(2)
    conv = make_resampler(16, factor)
    x = torch.randn(8, 16, high, wide).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = conv.parameters()
    if factor < 1:
        right = nn.functional.conv2d(x, weight, bias, stride=2, padding=1)
    else:
        right = nn.functional.conv_transpose2d(x, weight, bias, stride=int(factor))
    near(conv(x), right, 1e-6)
    weigh = torch.randn_like(right)
    asked = [x, weight, bias]
    gradients = torch.autograd.grad((right * weigh).sum(), asked)
    for _ in range(5):
        kept = torch.full((200_000,), torch.nan)
        del kept
        with torch.autocast("cpu", torch.bfloat16):
            found = conv(x)
        for own, gradient in zip(torch.autograd.grad((found * weigh).sum(), asked), gradients, strict=True):
            near(own, gradient, 0.05)
