"""Dense prediction (Ranftl et al. 2021): up to four feature maps of a vision body -> one prediction per pixel.

Feature maps are reassembled at several resolutions and fused from the deepest to the finest, doubling in size. Patch
sequences and convolutional feature maps are both supported, so `DepthHead` and `SegmentationHead` work with ViT (as in
DPT), Swin, or ResNet (similar to MiDaS). B images of H x W pixels.

Depth losses are (sum, count) over the images with at least one valid pixel. Data from several sources has no common
scale, so `relative_loss` compares inverse depth up to scale and shift per image (MiDaS, Ranftl et al. 2019);
`metric_loss` compares log depth in one unit (Eigen et al. 2014). `valid` is True at pixels with a label.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.errors import SettingError
from regard.nn.blocks.block import ACTIVATIONS
from regard.nn.kernels.linear import Linear
from regard.nn.kernels.table import Kernel
from regard.nn.vision.convnet import BatchNorm, StridedConv2d

Readout = Literal["project", "add", "ignore"]
Shape = tuple[int, int]
DepthMaps = Float[Tensor, "B H W"]
ValidMask = Bool[Tensor, "B H W"]
LossSum = tuple[Float[Tensor, ""], Int[Tensor, ""]]

EPSILON = 1e-6
"""Deviations below this fraction of the median or mean count as 0: a flat image or a constant prediction."""


@dataclass(frozen=True)
class FeatureTap:
    """A feature map of a body for dense heads."""

    index: int
    channels: int
    stride: int  # Pixels between adjacent positions of the map.
    is_sequence: bool  # A sequence (B, 1+L, D), to be reshaped to a grid; else a feature map (B, C, h, w).
    has_class_token: bool = True


def sequence_maps(blocks: Sequence[int], width: int, stride: int, class_token: bool = True) -> tuple[FeatureTap, ...]:
    """Feature maps from the hidden states after the given blocks."""
    return tuple(FeatureTap(block, width, stride, is_sequence=True, has_class_token=class_token) for block in blocks)


@dataclass(frozen=True)
class NeckConfig:
    """Fusion of the feature maps; the defaults are the values of DPT."""

    channels: tuple[int, ...]  # Channels of each reassembled sequence; feature maps keep their own channels.
    width: int = 256
    factors: tuple[float, ...] = (4, 2, 1, 0.5)  # Upsampling factor of each sequence, relative to its patch grid.
    readout: Readout = "project"  # Use of the class token: projected with each patch token, added to each, or ignored.
    activation: str = "gelu"
    norm: bool | None = None  # Batch norms in the residual units; None: only for segmentation.
    bias: bool | None = None  # Biases in the convolutions of the residual units; None: only without batch norms.
    unused_residual: bool = False
    """Give the deepest fusion an unused, frozen residual unit, as in published checkpoints."""
    head_dropout: float = 0.1
    auxiliary: bool = True


def check_neck(config: Any, blocks: Sequence[int]) -> None:
    """Raise a SettingError for invalid fields `out_layers`, `neck_dims`, `reassemble_factors` and `fusion_dim` of a
    config; `blocks`: the blocks whose states are reassembled."""
    if config.fusion_dim < 2:
        raise SettingError(f"model.fusion_dim must be at least 2, got {config.fusion_dim}.")
    layers, dims, factors = config.out_layers, config.neck_dims, config.reassemble_factors
    if not len(layers) == len(dims) == len(factors) == 4:
        raise SettingError(
            "model.out_layers, model.neck_dims and model.reassemble_factors must have four values each, one per "
            "feature map."
        )
    if list(blocks) != sorted(set(blocks)) or not 0 <= blocks[0] <= blocks[-1] < config.depth:
        spread = ",".join(str(config.depth * part // 4 - 1) for part in range(1, 5))
        advice = f" For model.depth={config.depth} set model.out_layers={spread}." if config.depth >= 4 else ""
        raise SettingError(
            f"model.out_layers must be increasing layer indices from 0 to {config.depth - 1}, got {blocks}.{advice}"
        )
    if min(dims) < 1 or min(factors) <= 0:
        raise SettingError("model.neck_dims and model.reassemble_factors must be greater than 0.")
    for factor in factors:
        if (factor if factor > 1 else 1 / factor) % 1:
            raise SettingError(f"model.reassemble_factors must be integers n or fractions 1/n, got {factor}.")


def _accepts_upsample(x: Tensor, size: Shape) -> bool:
    if not x.is_cuda or torch.is_grad_enabled() or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import upsample

    return upsample.is_supported(x, *size)


def _upsample(x: Tensor, size: Shape, bias: Tensor | None = None) -> Tensor:
    from regard.nn.kernels import upsample

    return upsample.upsample_bilinear(x, bias, *size)


UPSAMPLE = Kernel(
    name="upsample",
    accepts=_accepts_upsample,
    run=_upsample,
    formula="F.interpolate(x, size, mode='bilinear', align_corners=True) + bias",
    gain="3.3 % of DPT-Large inference",
)


def resize_bilinear(x: Float[Tensor, "B C h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """Bilinear resizing with `align_corners=True`, as everywhere in DPT except for positions."""
    if x.shape[-2:] == size:
        return x
    if UPSAMPLE.accepts(x, size):
        return UPSAMPLE.run(x, size)
    return F.interpolate(x, size, mode="bilinear", align_corners=True)


def conv_then_resize(convolution: nn.Conv2d, x: Float[Tensor, "B c h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """`resize_bilinear(convolution(x), size)`. Resizing does not change the bias, so the resizing kernel adds it."""
    if not UPSAMPLE.accepts(x, size) or x.shape[-2:] == size or convolution.out_channels < 32:
        return resize_bilinear(convolution(x), size)
    x = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
    return UPSAMPLE.run(x, size, convolution.bias)


class Reassemble(nn.Module):
    """Sequence -> feature map: readout of the class token, reshaping to the grid, projection, and resampling."""

    def __init__(self, tap: FeatureTap, channels: int, factor: float, readout: Readout, activation: str) -> None:
        super().__init__()
        if readout != "ignore" and not tap.has_class_token:
            raise SettingError(
                f"model.readout={readout} requires a class token, which this model does not have. Set model.readout=ignore."
            )
        self.tap, self.readout, self.activation = tap, readout, ACTIVATIONS[activation]
        if readout == "project":  # of [patch token | class token]
            self.read = Linear(2 * tap.channels, tap.channels)
        self.project = nn.Conv2d(tap.channels, channels, 1)
        self.resize = make_resampler(channels, factor)

    def forward(self, x: Float[Tensor, "B L D"], shape: Shape) -> Float[Tensor, "B C h w"]:
        grid = (shape[0] // self.tap.stride, shape[1] // self.tap.stride)
        if self.readout == "project":
            places, first = self.read.weight.chunk(2, dim=1)
            # the class token is projected once, and also with the patch half: slicing before would copy all patch tokens
            x = self.activation(F.linear(x, places)[:, 1:] + F.linear(x[:, :1], first, self.read.bias))
        elif self.tap.has_class_token:
            x = x[:, 1:] + x[:, :1] if self.readout == "add" else x[:, 1:]
        # channels stay innermost (channels-last), which is fastest for convolutions
        return self.resize(self.project(x.transpose(1, 2).view(len(x), -1, *grid)))


def make_resampler(channels: int, factor: float) -> nn.Module:
    if factor > 1:
        return Upsample(channels, channels, round(factor), stride=round(factor))
    return nn.Identity() if factor == 1 else StridedConv2d(channels, channels, 3, stride=round(1 / factor), padding=1)


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


class ResidualConvUnit(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))), each convolution optionally followed by a batch norm."""

    def __init__(self, width: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.first_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()
        self.second_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        inner = F.relu(self.first_norm(self.first(F.relu(x))))
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
        maps = [
            level(part(x, shape) if tap.is_sequence else x)
            for tap, part, level, x in zip(self.feature_taps, self.reassemble, self.levels, taps, strict=True)
        ]
        # each map is resized to the next finer map, which has twice the size if divisible
        high, wide = maps[0].shape[-2:]
        fused, *finer = reversed(maps)
        sizes = [*(x.shape[-2:] for x in finer), (min(2 * high, shape[0]), min(2 * wide, shape[1]))]
        for fuse, more, size in zip(self.fusion, [None, *finer], sizes, strict=True):
            fused = fuse(fused, more, size)
        return fused


class DepthHead(DenseHead):
    """Relative inverse depth per pixel (at least 0), or with `metric` depth in the unit of the data.

    With `metric`, the prediction is `typical` · softplus(x), where `typical` is the initial prediction, a buffer saved
    with the weights. Softplus is never 0, so that every pixel has a gradient."""

    typical: Tensor

    def __init__(self, taps: Sequence[FeatureTap], neck: NeckConfig, metric: float | None = None) -> None:
        super().__init__(taps, neck)
        half = neck.width // 2
        self.first = nn.Conv2d(neck.width, half, 3, padding=1)
        self.second = nn.Conv2d(half, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 1, 1)
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


def conv_norm_dropout(width: int, dropout: float) -> nn.Sequential:
    """Convolution, batch norm, ReLU and dropout before the classification layer."""
    dense = nn.Conv2d(width, width, 3, padding=1, bias=False)
    parts = {"dense": dense, "norm": BatchNorm(width), "relu": nn.ReLU(), "dropout": nn.Dropout(dropout)}
    return nn.Sequential(OrderedDict(parts))


class SegmentationHead(DenseHead):
    """Class logits per pixel, with an optional auxiliary head on the fused map, for training only."""

    def __init__(self, taps: Sequence[FeatureTap], neck: NeckConfig, classes: int) -> None:
        super().__init__(taps, neck, classifies=True)
        self.before, self.classes = conv_norm_dropout(neck.width, neck.head_dropout), nn.Conv2d(neck.width, classes, 1)
        self.auxiliary = neck.auxiliary
        if neck.auxiliary:
            self.beside_before, self.beside = conv_norm_dropout(neck.width, 0.1), nn.Conv2d(neck.width, classes, 1)

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


# -- depth losses


def relative_loss(
    prediction: DepthMaps, target: DepthMaps, valid: ValidMask, alpha: float = 0.5, keep_fraction: float = 0.8
) -> LossSum:
    """Loss of MiDaS for inverse depth: differences after alignment, plus `alpha` times the gradient loss.

    Prediction and target are normalized to median 0 and mean absolute deviation 1, and only the smallest
    `keep_fraction` of the differences counts, because large differences are often label errors."""
    prediction, target, valid = _at_least_float32(prediction), _at_least_float32(target), valid & target.isfinite()
    target = torch.where(valid, target, 0.0)
    many = valid.sum((1, 2))
    left = standardize(prediction, valid) - standardize(target, valid)
    ranked = torch.where(valid, left.abs(), torch.inf).flatten(1).sort(1).values
    most = (many.double() * keep_fraction).floor()
    size = torch.where(torch.arange(ranked.shape[1], device=ranked.device) < most[:, None], ranked, 0.0).sum(1)
    losses = (0.5 * size + alpha * _gradient_loss(left, valid)) / many.clamp(min=1)
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def metric_loss(prediction: DepthMaps, target: DepthMaps, valid: ValidMask, variance_weight: float = 0.85) -> LossSum:
    """√(mean(r²) − variance_weight · mean(r)²) of the log ratios r; with weight 1, a common factor is free."""
    prediction, target, valid = (
        _at_least_float32(prediction),
        _at_least_float32(target),
        valid & target.isfinite() & (target > 0),
    )
    ratio = prediction.clamp(min=EPSILON).log() - torch.where(valid, target, 1.0).log()
    ratio = torch.where(valid, ratio, 0.0)
    many = valid.sum((1, 2))
    mean, square = (part.sum((1, 2)) / many.clamp(min=1) for part in (ratio, ratio.square()))
    # clamped, because the gradient of the square root is infinite at 0
    losses = (square - variance_weight * mean.square()).clamp(min=EPSILON**2).sqrt()
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def inverse_depth(depth: DepthMaps, valid: ValidMask) -> tuple[DepthMaps, ValidMask]:
    """Inverse depth and its valid mask; depth 0 means missing, as sensors write."""
    valid = valid & depth.isfinite() & (depth > 0)
    return torch.where(valid, 1 / torch.where(valid, depth, 1.0), 0.0), valid


def standardize(x: DepthMaps, valid: ValidMask) -> DepthMaps:
    """(x - median) / mean absolute deviation, over the valid pixels of each image. For an even number of pixels, the
    lower of the two middle values is the median."""
    flat, counted = x.flatten(1), valid.flatten(1)
    many = counted.sum(1, keepdim=True)
    # by sorting: torch.median has no deterministic implementation on CUDA
    middle = torch.where(counted, flat, torch.inf).sort(1).values.gather(1, (many - 1).clamp(min=0) // 2)
    middle = torch.where(many > 0, middle, 0.0)
    from_middle = flat - middle
    spread = torch.where(counted, from_middle.abs(), 0.0).sum(1, keepdim=True) / many.clamp(min=1)
    return (from_middle / torch.where(spread > EPSILON * middle.abs(), spread, 1.0)).view_as(x)


def fit_scale_shift(
    prediction: DepthMaps, target: DepthMaps, valid: ValidMask
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """Scale and shift per image that minimize Σ (scale · prediction + shift - target)²; scale 0 for a constant
    prediction or without valid pixels."""
    prediction, target = torch.where(valid, prediction, 0.0), torch.where(valid, target, 0.0)
    many = valid.sum((1, 2)).clamp(min=1)
    means = [part.sum((1, 2)) / many for part in (prediction, target)]
    off, other = (
        torch.where(valid, part - mean[:, None, None], 0.0)
        for part, mean in zip((prediction, target), means, strict=True)
    )
    square, product = off.square().sum((1, 2)) / many, (off * other).sum((1, 2)) / many
    varied = square > (EPSILON * means[0]).square()
    scale = torch.where(varied, product / torch.where(varied, square, 1.0), 0.0)
    return scale, means[1] - scale * means[0]


def _gradient_loss(left: DepthMaps, known: ValidMask) -> Float[Tensor, "B"]:
    """Sum of absolute differences between adjacent valid pixels, to the right and down, at strides 1, 2, 4 and 8.

    The caller divides all scales by the valid pixels of the full image, as in the paper, so coarse scales count little;
    published implementations divide each scale by its own number of pixels."""
    total = left.new_zeros(len(left))
    for step in (1, 2, 4, 8):
        x, there = left[:, ::step, ::step], known[:, ::step, ::step]
        for axis in (1, 2):
            length = x.shape[axis] - 1
            change = (x.narrow(axis, 1, length) - x.narrow(axis, 0, length)).abs()
            both = there.narrow(axis, 1, length) & there.narrow(axis, 0, length)
            total = total + torch.where(both, change, 0.0).sum((1, 2))
    return total


def _at_least_float32(x: Tensor) -> Tensor:
    """Sums over an image need more than 16 bits."""
    return x if x.dtype == torch.float64 else x.float()
