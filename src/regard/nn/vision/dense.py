"""Dense prediction (Ranftl et al. 2021): up to four feature maps of a vision body -> one prediction per pixel.

Feature maps are reassembled at several resolutions and fused from the deepest to the finest, doubling in size. Patch
sequences and convolutional feature maps are both supported, so `DepthHead` and `SegmentationHead` work with ViT (as in
DPT), Swin, or ResNet (similar to MiDaS). B images of H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.errors import SettingError
from regard.nn.blocks.block import ACTIVATIONS
from regard.nn.kernels.linear import Linear
from regard.nn.vision.convnet import BatchNorm, safe_stride

Readout = Literal["project", "add", "ignore"]
Shape = tuple[int, int]


@dataclass(frozen=True)
class FeatureTap:
    """A feature map of a body for dense heads."""

    index: int
    """Index in `taps` of the body."""
    channels: int
    stride: int
    """Pixels between adjacent positions of the map."""
    is_sequence: bool
    """A sequence (B, 1+L, D), to be reshaped to a grid; else a feature map (B, C, h, w)."""
    has_class_token: bool = True
    """The sequence starts with a class token."""


@dataclass(frozen=True)
class NeckConfig:
    """Fusion of the feature maps; the defaults are the values of DPT."""

    channels: tuple[int, ...]
    """Channels of each reassembled sequence; feature maps keep their own channels."""
    width: int = 256
    """Channels of the fused maps."""
    factors: tuple[float, ...] = (4, 2, 1, 0.5)
    """Upsampling factor of each sequence, relative to its patch grid."""
    readout: Readout = "project"
    """Use of the class token: projected with each patch token, added to each, or ignored."""
    activation: str = "gelu"
    """Activation after the projection."""
    norm: bool | None = None
    """Batch norms in the residual units; None: only for segmentation."""
    bias: bool | None = None
    """Biases in the convolutions of the residual units; None: only without batch norms."""
    unused_residual: bool = False
    """Give the deepest fusion an unused, frozen residual unit, as in published checkpoints."""
    head_dropout: float = 0.1
    """Dropout before the layer for classes."""
    auxiliary: bool = True
    """Auxiliary head for segmentation, for training only."""


def resize_bilinear(x: Float[Tensor, "B C h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """Bilinear resizing with `align_corners=True`, as everywhere in DPT except for positions."""
    if x.shape[-2:] == size:
        return x
    if _can_use_kernel(x, size):
        from regard.nn.kernels import upsample

        return upsample.upsample_bilinear(x, None, *size)
    return F.interpolate(x, size, mode="bilinear", align_corners=True)


def _can_use_kernel(x: Tensor, size: Shape) -> bool:
    """Whether the Triton kernel for bilinear resizing supports the input."""
    if not x.is_cuda or torch.is_grad_enabled() or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import upsample

    return upsample.is_supported(x, *size)


def conv_then_resize(convolution: nn.Conv2d, x: Float[Tensor, "B c h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """`resize_bilinear(convolution(x), size)`. Resizing does not change the bias, so the resizing kernel adds it."""
    if not _can_use_kernel(x, size) or x.shape[-2:] == size or convolution.out_channels < 32:
        return resize_bilinear(convolution(x), size)
    from regard.nn.kernels import upsample

    found = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
    return upsample.upsample_bilinear(found, convolution.bias, *size)


class ReadoutProjection(Linear):
    """Linear layer of [patch token | class token]. The half of the class token is computed once."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__(2 * width, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L-1 D"]:
        places, first = self.weight.chunk(2, dim=1)
        # the class token goes through the patch half too, and is dropped: slicing before would copy all patch tokens
        return self.activation(F.linear(x, places)[:, 1:] + F.linear(x[:, :1], first, self.bias))


class Reassemble(nn.Module):
    """Sequence -> feature map: readout of the class token, reshaping to the grid, projection, and resampling."""

    def __init__(self, tap: FeatureTap, channels: int, factor: float, readout: Readout, activation: str) -> None:
        super().__init__()
        if readout != "ignore" and not tap.has_class_token:
            raise SettingError(
                f"model.readout={readout} requires a class token, which this model does not have. Set model.readout=ignore."
            )
        self.tap, self.readout = tap, readout
        if readout == "project":
            self.read = ReadoutProjection(tap.channels, activation)
        self.project = nn.Conv2d(tap.channels, channels, 1)
        self.resize = make_resampler(channels, factor)

    def forward(self, x: Float[Tensor, "B L D"], shape: Shape) -> Float[Tensor, "B C h w"]:
        grid = (shape[0] // self.tap.stride, shape[1] // self.tap.stride)
        if self.readout == "project":
            x = self.read(x)
        elif self.tap.has_class_token:
            x = x[:, 1:] + x[:, :1] if self.readout == "add" else x[:, 1:]
        # channels stay innermost (channels-last), which is fastest for convolutions
        return self.resize(self.project(x.transpose(1, 2).view(len(x), -1, *grid)))


def make_resampler(channels: int, factor: float) -> nn.Module:
    if factor > 1:
        return Upsample(channels, channels, round(factor), stride=round(factor))
    return nn.Identity() if factor == 1 else Downsample(channels, channels, 3, stride=round(1 / factor), padding=1)


class Upsample(nn.ConvTranspose2d):
    """Transposed convolution without overlap: each position becomes a square."""

    def forward(self, x: Float[Tensor, "B C h w"], output_size: list[int] | None = None) -> Float[Tensor, "B C H W"]:
        if x.shape[-1] > 1:
            return super().forward(x, output_size)
        # for a width of 1, oneDNN computes wrong bfloat16 input gradients; without overlap, a linear layer is equivalent
        squares = F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1).mT)
        squares = squares.view(*squares.shape[:3], *self.weight.shape[1:])
        wide = squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return wide if self.bias is None else wide + self.bias.to(wide.dtype)[:, None, None]


class Downsample(nn.Conv2d):
    """Strided convolution."""

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C H W"]:
        return F.conv2d(x, self.weight, self.bias, safe_stride(x, self.stride), self.padding)


class ResidualConvUnit(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))), each convolution optionally followed by a batch norm."""

    def __init__(self, width: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.first_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()
        self.second_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()
        self.has_no_norm = not norm

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        inner = self.first(F.relu(x))
        inner = F.relu(inner if self.has_no_norm else self.first_norm(inner))
        return x + self.second_norm(self.second(inner))


class FeatureFusion(nn.Module):
    """Sum of the fused map and a finer map through a residual unit, another residual unit, and resizing."""

    def __init__(self, width: int, norm: bool, bias: bool, deepest: bool, spare: bool) -> None:
        super().__init__()
        if not deepest or spare:
            self.skip = ResidualConvUnit(width, norm, bias).requires_grad_(not deepest)
        self.unit = ResidualConvUnit(width, norm, bias)
        self.out = nn.Conv2d(width, width, 1)

    def forward(
        self, x: Float[Tensor, "B C h w"], finer: Float[Tensor, "B C h w"] | None, size: Shape
    ) -> Float[Tensor, "B C H W"]:
        x = x if finer is None else x + self.skip(finer)
        # the paper resizes before the 1 x 1 convolution: the order does not matter, and there are fewer positions here
        return conv_then_resize(self.out, self.unit(x), size)


class DenseHead(nn.Module):
    """Feature maps -> one fused map at half of the image resolution. Base class of `DepthHead` and `SegmentationHead`."""

    def __init__(self, taps: Sequence[FeatureTap], neck: NeckConfig, classifies: bool = False) -> None:
        """`classifies`: True for segmentation, which has batch norms unless the neck specifies otherwise."""
        super().__init__()
        sizes = (len(taps), len(neck.channels), len(neck.factors))
        if len(set(sizes)) > 1:
            raise SettingError(
                f"The neck must have one channel count and one factor for each of {sizes[0]} feature maps, got {sizes[1]} "
                f"and {sizes[2]}."
            )
        self.feature_taps, self.neck = tuple(taps), neck
        norm = classifies if neck.norm is None else neck.norm
        bias = not norm if neck.bias is None else neck.bias
        rows = list(zip(taps, neck.channels, neck.factors, strict=True))
        self.reassemble = nn.ModuleList(
            Reassemble(tap, channels, factor, neck.readout, neck.activation) if tap.is_sequence else nn.Identity()
            for tap, channels, factor in rows
        )
        self.levels = nn.ModuleList(
            nn.Conv2d(channels if tap.is_sequence else tap.channels, neck.width, 3, padding=1, bias=False)
            for tap, channels, _ in rows
        )
        self.fusion = nn.ModuleList(
            FeatureFusion(neck.width, norm, bias, n == 0, neck.unused_residual) for n in range(len(taps))
        )

    @property
    def tap_indices(self) -> tuple[int, ...]:
        """Taps required from the body."""
        return tuple(tap.index for tap in self.feature_taps)

    def fuse(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B C h w"]:
        """Fused map for images of size `shape`. The first module of `fusion` gets the deepest map."""
        laid = [
            level(part(x, shape) if tap.is_sequence else x)
            for tap, part, level, x in zip(self.feature_taps, self.reassemble, self.levels, taps, strict=True)
        ]
        # each map is resized to the next finer map, which has twice the size if divisible
        high, wide = laid[0].shape[-2:]
        found, *finer = reversed(laid)
        sizes = [*(x.shape[-2:] for x in finer), (min(2 * high, shape[0]), min(2 * wide, shape[1]))]
        for fuse, more, size in zip(self.fusion, [None, *finer], sizes, strict=True):
            found = fuse(found, more, size)
        return found


class DepthHead(DenseHead):
    """Relative inverse depth per pixel (at least 0), or with `metric` depth in the unit of the data.

    With `metric`, the prediction is `typical` · softplus(x), where `typical` is the initial prediction, a buffer saved
    with the weights. Softplus is never 0, so that every pixel has a gradient."""

    typical: Tensor

    def __init__(
        self, taps: Sequence[FeatureTap], neck: NeckConfig, metric: float | None = None, inner: int = 32
    ) -> None:
        super().__init__(taps, neck)
        half = neck.width // 2
        self.first = nn.Conv2d(neck.width, half, 3, padding=1)
        self.second = nn.Conv2d(half, inner, 3, padding=1)
        self.last = nn.Conv2d(inner, 1, 1)
        self.metric = metric is not None
        if metric is not None:
            self.register_buffer("typical", torch.tensor(float(metric)))
        assert self.last.bias is not None
        nn.init.constant_(self.last.bias, INVERSE_SOFTPLUS_ONE if self.metric else 1.0)  # ReLU has no gradient below 0

    def forward(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B H W"]:
        x = conv_then_resize(self.first, self.fuse(taps, shape), shape)
        x = self.last(F.relu(self.second(x)))[:, 0]
        return self.typical * F.softplus(x) if self.metric else F.relu(x)


INVERSE_SOFTPLUS_ONE = 0.5413248546129181
"""softplus(INVERSE_SOFTPLUS_ONE) = 1."""


class ConvNormDropout(nn.Sequential):
    """Convolution, batch norm, ReLU and dropout before the classification layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.add_module("dense", nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.add_module("norm", BatchNorm(width))
        self.add_module("relu", nn.ReLU())
        self.add_module("dropout", nn.Dropout(dropout))


class SegmentationHead(DenseHead):
    """Class logits per pixel, with an optional auxiliary head on the fused map, for training only."""

    def __init__(self, taps: Sequence[FeatureTap], neck: NeckConfig, classes: int) -> None:
        super().__init__(taps, neck, classifies=True)
        self.before, self.classes = ConvNormDropout(neck.width, neck.head_dropout), nn.Conv2d(neck.width, classes, 1)
        self.auxiliary = neck.auxiliary
        if neck.auxiliary:
            self.beside_before, self.beside = ConvNormDropout(neck.width, 0.1), nn.Conv2d(neck.width, classes, 1)

    def forward(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B K H W"]:
        return resize_bilinear(self.classes(self.before(self.fuse(taps, shape))), shape)

    def forward_with_auxiliary(
        self, taps: Sequence[Tensor], shape: Shape
    ) -> tuple[Float[Tensor, "B K H W"], Float[Tensor, "B K H W"] | None]:
        """Logits of the main and of the auxiliary head."""
        fused = self.fuse(taps, shape)
        logits = resize_bilinear(self.classes(self.before(fused)), shape)
        if not self.auxiliary:
            return logits, None
        beside = self.beside(self.beside_before(fused))
        return logits, F.interpolate(beside, shape, mode="bilinear", align_corners=False)


def default_neck(maps: Sequence[FeatureTap]) -> NeckConfig:
    """Neck for these feature maps: sequences are reassembled as in DPT-Large, and the width is a third of the channels of
    the deepest map, between 32 and the 256 of DPT."""
    if not 1 <= len(maps) <= 4:
        raise SettingError(f"Dense heads support 1 to 4 feature maps; this model has {len(maps)}.")
    flat = [max(8, tap.channels // share) for tap, share in zip(maps, (4, 2, 1, 1)[-len(maps) :], strict=True)]
    width = min(256, max(32, 16 * round(maps[-1].channels / 48)))
    token = all(tap.has_class_token for tap in maps if tap.is_sequence)
    factors = (4, 2, 1, 0.5)[-len(maps) :]
    return NeckConfig(tuple(flat), width, factors, readout="project" if token else "ignore")


def depth_head(config: Any, metric: float | None = None) -> DepthHead:
    return DepthHead(config.feature_maps(), config.neck(), metric)


def segmentation_head(config: Any, classes: int) -> SegmentationHead:
    return SegmentationHead(config.feature_maps(), config.neck(), classes)
