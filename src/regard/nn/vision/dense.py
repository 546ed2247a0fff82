"""Dense prediction (Ranftl et al. 2021): four maps of any vision body -> one answer for each pixel of the picture.

Each map is laid out as a grid of its own fineness (reassembled), and the maps are added up from the deepest to the finest,
doubling in size as they go (fused). Sequences of patches and maps of convolutions are taken alike, so `Depth` and `Segment`
stand on ViT (then it is DPT), on Swin or on a ResNet (then it is much like MiDaS). B pictures of H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.errors import SettingError
from regard.nn.blocks.block import ACTIVATIONS
from regard.nn.kernels.conv_relu import conv_relu
from regard.nn.kernels.linear import Linear
from regard.nn.vision.convnet import BatchNorm, safe_stride

Readout = Literal["project", "add", "ignore"]
Shape = tuple[int, int]


@dataclass(frozen=True)
class FeatureTap:
    """A map that a body offers to dense heads."""

    index: int
    """the number to ask for in `taps`"""
    channels: int
    stride: int
    """pixels from one place of the map to the next"""
    is_sequence: bool
    """it is a sequence (B, 1+L, D), to be laid out as a grid; else a map (B, C, h, w)"""
    has_class_token: bool = True
    """of a sequence: a class token stands first"""


@dataclass(frozen=True)
class NeckConfig:
    """How maps are brought together; the defaults are DPT's."""

    channels: tuple[int, ...]
    """of each map once it is laid out; those of a map that is one already are its own"""
    width: int = 256
    """channels of the fused maps"""
    factors: tuple[float, ...] = (4, 2, 1, 0.5)
    """how much finer than its patches each sequence is laid out"""
    readout: Readout = "project"
    """what becomes of the class token: projected into each place with its state, added to each, or ignored"""
    activation: str = "gelu"
    """non-linearity after that projection"""
    norm: bool | None = None
    """batch norms in the residual units; None: where classes are told"""
    bias: bool | None = None
    """biases in the convolutions of the residual units; None: where there are no batch norms"""
    unused_residual: bool = False
    """the deepest fusion has a residual unit for a map that nobody hands it, as the published files have; it is frozen"""


def resize_bilinear(x: Float[Tensor, "B C h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """Corners stay corners, as in all of DPT but its positions."""
    if x.shape[-2:] == size:
        return x
    if _can_use_kernel(x, size):
        from regard.nn.kernels import upsample

        return upsample.upsample_bilinear(x, None, *size)
    return F.interpolate(x, size, mode="bilinear", align_corners=True)


def _can_use_kernel(x: Tensor, size: Shape) -> bool:
    """Whether the Triton kernel for bilinear upsampling takes this map."""
    if not x.is_cuda or torch.is_grad_enabled() or not capabilities.is_available("triton"):
        return False
    from regard.nn.kernels import upsample

    return upsample.is_supported(x, *size)


def conv_then_resize(convolution: nn.Conv2d, x: Float[Tensor, "B c h w"], size: Shape) -> Float[Tensor, "B C H W"]:
    """`resized` of what a convolution finds. A bias is the same before and after: the kernel adds it on its way."""
    if not _can_use_kernel(x, size) or x.shape[-2:] == size or convolution.out_channels < 32:
        return resize_bilinear(convolution(x), size)
    from regard.nn.kernels import upsample

    found = F.conv2d(x, convolution.weight, None, convolution.stride, convolution.padding)
    return upsample.upsample_bilinear(found, convolution.bias, *size)


class ReadoutProjection(Linear):
    """The class token and the state of a place side by side through one matrix. The token's half is computed once."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__(2 * width, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L-1 D"]:
        places, first = self.weight.chunk(2, dim=1)
        # the token goes through its places' half too and is dropped: to leave it out before would copy all the others
        return self.activation(F.linear(x, places)[:, 1:] + F.linear(x[:, :1], first, self.bias))


class Reassemble(nn.Module):
    """A sequence -> a map: the class token read, states laid out as they lie in the picture, made finer or coarser."""

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
        # the channels stay innermost, which is how convolutions like it best
        return self.resize(self.project(x.transpose(1, 2).view(len(x), -1, *grid)))


def make_resampler(channels: int, factor: float) -> nn.Module:
    if factor > 1:
        return Upsample(channels, channels, round(factor), stride=round(factor))
    return nn.Identity() if factor == 1 else Downsample(channels, channels, 3, stride=round(1 / factor), padding=1)


class Upsample(nn.ConvTranspose2d):
    """Each place becomes a square of places, beside those of its neighbours."""

    def forward(self, x: Float[Tensor, "B C h w"], output_size: list[int] | None = None) -> Float[Tensor, "B C H W"]:
        if x.shape[-1] > 1:
            return super().forward(x, output_size)
        # of one column oneDNN gets the gradient of what is read wrong in bfloat16; squares do not overlap, so a matrix does it
        squares = F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1).mT)
        squares = squares.view(*squares.shape[:3], *self.weight.shape[1:])
        wide = squares.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        return wide if self.bias is None else wide + self.bias.to(wide.dtype)[:, None, None]


class Downsample(nn.Conv2d):
    """A convolution at every so many places."""

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C H W"]:
        return F.conv2d(x, self.weight, self.bias, safe_stride(x, self.stride), self.padding)


class ResidualConvUnit(nn.Module):
    """x + two convolutions of it, each after a ReLU, and perhaps with a batch norm behind it."""

    def __init__(self, width: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=bias)
        self.first_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()
        self.second_norm: nn.Module = BatchNorm(width) if norm else nn.Identity()
        self.has_no_norm = not norm

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        inner = conv_relu(self.first, F.relu(x)) if self.has_no_norm else F.relu(self.first_norm(self.first(F.relu(x))))
        return x + self.second_norm(self.second(inner))


class FeatureFusion(nn.Module):
    """What was fused so far, and a finer map of the same size through a unit: a sum, one more unit, and twice the size."""

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
        # the 1 x 1 convolution stands behind the resizing in the paper: the two can be exchanged, and here are fewer places
        return conv_then_resize(self.out, self.unit(x), size)


class DenseHead(nn.Module):
    """Maps -> one fused map at half the fineness of the pixels. `Depth` and `Segment` read it."""

    def __init__(self, taps: Sequence[FeatureTap], neck: NeckConfig, classifies: bool = False) -> None:
        """`told`: classes are, which decides about batch norms where the neck leaves them open."""
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
        """What to ask the body for."""
        return tuple(tap.index for tap in self.feature_taps)

    def fuse(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B C h w"]:
        """`shape` is the height and the width of the pictures. The first of `fusion` takes the deepest map."""
        laid = [
            level(part(x, shape) if tap.is_sequence else x)
            for tap, part, level, x in zip(self.feature_taps, self.reassemble, self.levels, taps, strict=True)
        ]
        # each is brought to the size of the next finer one, which is twice its own wherever the sides allow it
        high, wide = laid[0].shape[-2:]
        found, *finer = reversed(laid)
        sizes = [*(x.shape[-2:] for x in finer), (min(2 * high, shape[0]), min(2 * wide, shape[1]))]
        for fuse, more, size in zip(self.fusion, [None, *finer], sizes, strict=True):
            found = fuse(found, more, size)
        return found


class DepthHead(DenseHead):
    """How near each pixel is (inverse depth, at least 0, in a unit of the picture's own), or with `metric` how far.

    There the answer is `typical` · softplus: never 0, so that no pixel stops to learn, and of the unit of the data, of
    which `typical` is what an untaught head says everywhere. It is kept with the weights."""

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
        nn.init.constant_(
            self.last.bias, INVERSE_SOFTPLUS_ONE if self.metric else 1.0
        )  # behind a ReLU, pixels below 0 would not learn

    def forward(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B H W"]:
        x = conv_then_resize(self.first, self.fuse(taps, shape), shape)
        x = self.last(conv_relu(self.second, x))[:, 0]
        return self.typical * F.softplus(x) if self.metric else F.relu(x)


INVERSE_SOFTPLUS_ONE = 0.5413248546129181
"""softplus of this is 1"""


class ConvNormDropout(nn.Sequential):
    """What stands before a convolution that tells classes."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.add_module("dense", nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.add_module("norm", BatchNorm(width))
        self.add_module("relu", nn.ReLU())
        self.add_module("dropout", nn.Dropout(dropout))


class SegmentationHead(DenseHead):
    """Logits of the classes of each pixel; an auxiliary head beside it says the same of the fused map, in training only."""

    def __init__(
        self, taps: Sequence[FeatureTap], neck: NeckConfig, classes: int, dropout: float = 0.1, auxiliary: bool = True
    ) -> None:
        super().__init__(taps, neck, classifies=True)
        self.before, self.classes = ConvNormDropout(neck.width, dropout), nn.Conv2d(neck.width, classes, 1)
        self.auxiliary = auxiliary
        if auxiliary:
            self.beside_before, self.beside = ConvNormDropout(neck.width, 0.1), nn.Conv2d(neck.width, classes, 1)

    def forward(self, taps: Sequence[Tensor], shape: Shape) -> Float[Tensor, "B K H W"]:
        return resize_bilinear(self.classes(self.before(self.fuse(taps, shape))), shape)

    def forward_with_auxiliary(
        self, taps: Sequence[Tensor], shape: Shape
    ) -> tuple[Float[Tensor, "B K H W"], Float[Tensor, "B K H W"] | None]:
        """The same, and what the auxiliary head says."""
        fused = self.fuse(taps, shape)
        logits = resize_bilinear(self.classes(self.before(fused)), shape)
        if not self.auxiliary:
            return logits, None
        beside = self.beside(self.beside_before(fused))
        return logits, F.interpolate(beside, shape, mode="bilinear", align_corners=False)


def default_neck(config: Any) -> NeckConfig:
    """The neck that a config describes; of a body that was not made for dense prediction one that suits its maps: sequences
    are laid out as in DPT-Large, and fused in a third of the deepest map's channels, from 32 to DPT's 256."""
    if hasattr(config, "neck"):
        return config.neck()
    maps: tuple[FeatureTap, ...] = config.feature_maps()
    if not 1 <= len(maps) <= 4:
        raise SettingError(f"Dense heads support 1 to 4 feature maps; this model has {len(maps)}.")
    flat = [max(8, tap.channels // share) for tap, share in zip(maps, (4, 2, 1, 1)[-len(maps) :], strict=True)]
    width = min(256, max(32, 16 * round(maps[-1].channels / 48)))
    token = all(tap.has_class_token for tap in maps if tap.is_sequence)
    factors = (4, 2, 1, 0.5)[-len(maps) :]
    return NeckConfig(tuple(flat), width, factors, readout="project" if token else "ignore")


def depth_head(config: Any, metric: float | None = None) -> DepthHead:
    return DepthHead(config.feature_maps(), default_neck(config), metric)


def segmentation_head(config: Any, classes: int) -> SegmentationHead:
    dropout, auxiliary = getattr(config, "head_dropout", 0.1), getattr(config, "auxiliary_head", True)
    return SegmentationHead(config.feature_maps(), default_neck(config), classes, dropout, auxiliary)


def resolve_fusion_norm(config: Any, classifies: bool) -> Any:
    """The config once it is known what is asked, for a published layout that says whether there are batch norms."""
    return (
        replace(config, fusion_batch_norm=classifies) if getattr(config, "fusion_batch_norm", False) is None else config
    )
