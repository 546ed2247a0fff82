"""ResNet and BiT: feature maps of all variants against transformers, convolutions and norms, sizes, checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from parity import assert_gradients, load_peer, peer_of, weighted_sum
from regard.errors import RegardError
from regard.nn.vision.convnet import BatchNorm, Convolution, StandardizedConv2d, bottleneck_width
from regard.systems import bit, resnet
from regard.systems.common.system import System
from regard.types import Batch, BodyOutput
from tiny import near, noise, noisy

NAMED = {"resnet": "ResNet", "bit": "Bit"}
ALL = (0, 1, 2, 3)
SHAPES = [(37, 53), (64, 32), (65, 41)]
systems = pytest.mark.parametrize("system", [resnet.SYSTEM, bit.SYSTEM], ids=["resnet", "bit"])


def theirs(system: str, kind: str = "Model", **changes: Any) -> Any:
    return peer_of(NAMED[system] + kind, **changes)


def agree(model: regard.Model, peer: Any, x: Tensor, folder: Path) -> None:
    """Compare hidden states, pooled output, feature maps, all gradients, and running statistics."""
    ours, right = model.body(Batch(x), ALL), peer(x, output_hidden_states=True)
    own = (ours.sequence, ours.pooled, *ours.hidden_states)
    expected = right.last_hidden_state.flatten(2).mT, right.pooler_output.flatten(1), *right.hidden_states[1:]
    for found, wanted in zip(own, expected, strict=True):
        near(found, wanted, 1e-11)
    assert_gradients(model, peer, weighted_sum(own), weighted_sum(expected), folder)


RESNETS: list[dict[str, Any]] = [
    {},
    {"layer_type": "basic"},
    {"layer_type": "basic", "downsample_in_first_stage": True},
    {"downsample_in_bottleneck": True, "downsample_in_first_stage": True},
    {"hidden_sizes": [24, 24, 24, 24], "embedding_size": 24},
]
BITS: list[dict[str, Any]] = [
    *({"global_padding": way, "embedding_dynamic_padding": fits} for way in (None, "same") for fits in (False, True)),
    *({"global_padding": "same", "output_stride": stride} for stride in (4, 8, 16)),
]
VARIANTS = [
    *(("resnet", changes, training) for training in (False, True) for changes in RESNETS),
    *(("bit", {"layer_type": kind, **more}, True) for kind in ("preactivation", "bottleneck") for more in BITS),
]


@pytest.mark.parametrize(("system", "changes", "training"), VARIANTS)
def test_feature_maps_and_statistics_equal_transformers(
    system: str, changes: dict[str, Any], training: bool, tmp_path: Path
) -> None:
    peer = theirs(system, **changes)
    model = load_peer(peer, tmp_path).train(training)
    before = {name: tensor.clone() for name, tensor in model.body.named_buffers() if name.endswith("running_mean")}
    for seed, shape in enumerate(SHAPES):
        agree(model, peer.train(training), noise(4, 2, *shape, seed=seed), tmp_path / str(seed))
    assert all(torch.equal(model.body.get_buffer(name), tensor) is not training for name, tensor in before.items())


@pytest.mark.parametrize("kind", [Convolution, StandardizedConv2d, partial(StandardizedConv2d, same=True)])
@pytest.mark.parametrize(("high", "wide"), [(1, 1), (4, 1), (1, 4)])
def test_filters_learn_from_maps_of_one_column_in_bfloat16_too(kind: Any, high: int, wide: int) -> None:
    torch.manual_seed(2)
    conv, x = kind(16, 16, 3, 2), torch.randn(8, 16, high, wide)
    weigh = torch.randn_like(conv(x))
    (right,) = torch.autograd.grad((conv(x) * weigh).sum(), [conv.weight])
    for _ in range(5):  # uninitialized memory contains old values
        kept = torch.full((200_000,), torch.nan)
        del kept
        with torch.autocast("cpu", torch.bfloat16):
            found = conv(x)
        (grad,) = torch.autograd.grad((found * weigh).sum(), [conv.weight])
        near(grad, right, 0.05)


def test_inner_widths_are_rounded_as_the_published_ones() -> None:
    from transformers.models.bit.modeling_bit import make_div

    assert all(bottleneck_width(outputs) == make_div(outputs * 0.25) for outputs in range(1, 600))


def test_a_frozen_batch_norm_gathers_nothing_more() -> None:
    norm, x = noisy(BatchNorm(5)).train(), noise(4, 5, 3, 2)
    norm(x)
    kept = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    right = norm.eval()(x)
    near(norm.requires_grad_(False).train()(x), right)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in norm.state_dict().items())


def test_one_position_of_one_image_is_refused_by_batch_norm() -> None:
    norm = BatchNorm(5)
    with pytest.raises(RegardError, match="one position of one image"):
        norm(torch.ones(1, 5, 1, 1))
    norm.eval()(torch.ones(1, 5, 1, 1))


@systems
def test_backbones_are_read(system: System, tmp_path: Path) -> None:
    peer, x = theirs(system.name, "Backbone"), noise(2, 2, 37, 53)
    model = load_peer(peer, tmp_path)
    assert model.head is None and model.has_new_head
    states: BodyOutput = model.body(Batch(x), ALL)
    maps = peer(x, output_hidden_states=True).hidden_states[1:]
    for found, wanted in zip(states.hidden_states, maps, strict=True):
        near(found, wanted, 1e-11)
