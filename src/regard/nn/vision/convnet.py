"""Convolutional bodies: a stem and stages of residual blocks, each stage coarser and wider than the stage before.

ResNet (He et al. 2015) and BiT (Kolesnikov et al. 2019); the first stages of BiT are also the stem of hybrid ViT and
DPT models. Norms come after (`PostActBlock`) or before (`PreActBlock`) the convolutions. Convolutions are plain with
batch norm, or standardized with group norm.

Shape letters: B images, C channels, h and w size of a feature map; D, H and W of the output map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import InputError, RegardError
from regard.nn.recording import keep_state, recorded
from regard.types import Batch, Body, BodyOutput

FeatureMap = Float[Tensor, "B C h w"]
OutputMap = Float[Tensor, "B D H W"]


class BatchNorm(nn.Module):
    """Batch norm per channel; uses running statistics in evaluation.

    In training, statistics are per micro-batch and per process, so results depend on both numbers. Frozen norms do not update
    the running statistics. PyTorch's counter of batches is omitted, because it is unused with a fixed momentum."""

    running_mean: Tensor
    running_var: Tensor
    single_value_error = (
        "BatchNorm requires more than one value per channel in training, got one position of one image. Use larger images or "
        "a larger batch."
    )

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: FeatureMap) -> FeatureMap:
        uses_batch = self.training and self.weight.requires_grad
        if uses_batch and x.numel() == x.shape[1]:
            raise RegardError(self.single_value_error)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, uses_batch)


def pad_same(x: FeatureMap, kernel: int, stride: int, dilation: int = 1) -> OutputMap:
    """Pad with zeros so that the output has size ceil(size / stride); with an odd number, the last zero goes to the end.

    TensorFlow's "same" padding, which depends on the input size."""
    heights, widths = (
        max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0) for size in x.shape[-2:]
    )
    if not (heights or widths):
        return x
    return F.pad(x, [widths // 2, widths - widths // 2, heights // 2, heights - heights // 2])


class StridedConv2d(nn.Conv2d):
    """Convolution with stride 1 along a width of 1: for larger strides, oneDNN leaves gradients of bfloat16 weights unset
    there."""

    def forward(self, x: FeatureMap) -> OutputMap:
        return self.convolve(x, self.weight)

    def convolve(self, x: FeatureMap, weight: Float[Tensor, "D C k k"]) -> OutputMap:
        stride = (self.stride[0], 1) if x.shape[-1] == 1 else self.stride
        return F.conv2d(x, weight, self.bias, stride, self.padding, self.dilation)


class Convolution(StridedConv2d):
    """Convolution without bias, which a following norm would cancel, and with padding that keeps the size at stride 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False)


class StandardizedConv2d(Convolution):
    """Convolution whose filters have mean 0 and variance 1 (Qiao et al. 2019). `same`: TensorFlow padding."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1, same: bool = False
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, dilation)
        self.pads_same = same and stride > 1
        if self.pads_same:
            self.padding = (0, 0)

    def forward(self, x: FeatureMap) -> OutputMap:
        weight = F.layer_norm(self.weight, self.weight.shape[1:], eps=1e-8)  # three times as fast as var_mean
        if self.pads_same:
            x = pad_same(x, self.kernel_size[0], self.stride[0], self.dilation[0])
        return self.convolve(x, weight)


class ConvNorm(nn.Module):
    """Convolution and norm, in the order of the block; with `relu`, followed by a ReLU."""

    def __init__(self, conv: nn.Module, norm: nn.Module | None, relu: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.has_relu = conv, norm, relu

    def forward(self, x: FeatureMap) -> OutputMap:
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x)
        return x.relu_() if self.has_relu else x


class PostActBlock(nn.Module):
    """ReLU(units(x) + x), norms after the convolutions; `shortcut` adapts the size of x."""

    def __init__(self, units: Iterable[ConvNorm], shortcut: ConvNorm | None = None) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.shortcut = shortcut

    def forward(self, x: FeatureMap) -> OutputMap:
        kept = x if self.shortcut is None else self.shortcut(x)
        for unit in self.units:
            x = unit(x)
        return (x + kept).relu_()


class PreActBlock(PostActBlock):
    """units(x) + x, norms and ReLUs before the convolutions (He et al. 2016); the shortcut uses the first pre-activation."""

    def forward(self, x: FeatureMap) -> OutputMap:
        kept = x
        for number, unit in enumerate(self.units):
            x = unit.norm(x).relu_()  # type: ignore[operator]
            if number == 0 and self.shortcut is not None:
                kept = self.shortcut(x)
            x = unit.conv(x)  # type: ignore[operator]
        return x + kept


def check_images(x: Tensor, channels: int) -> None:
    """Raise an error if x is not (B, C, H, W) with this number of channels."""
    if x.ndim != 4 or x.shape[1] != channels or not x.shape[2] * x.shape[3]:
        raise InputError(
            f"Expected images of shape (batch, channels, height, width) with {channels} channels, got {tuple(x.shape)}."
        )


class Stem(nn.Module):
    """Convolution, `padding` zeros around its output, norm with ReLU, and pooling."""

    def __init__(
        self, conv: nn.Conv2d, norm: nn.Module | None, pool: Callable[[Tensor], Tensor] | None = None, padding: int = 0
    ) -> None:
        super().__init__()
        self.conv, self.norm, self.pool, self.padding = conv, norm, pool, padding

    def forward(self, x: Tensor) -> OutputMap:
        check_images(x, self.conv.in_channels)
        x = self.conv(x)
        if self.padding:
            x = F.pad(x, [self.padding] * 4)
        if self.norm is not None:
            x = self.norm(x).relu_()
        return x if self.pool is None else self.pool(x)


def same_max_pool(x: FeatureMap) -> OutputMap:
    """3 x 3 max pooling with stride 2 and TensorFlow padding."""
    return F.max_pool2d(pad_same(x, 3, 2), 3, 2)


class ConvBody(Body):
    """Convolutional body. Taps are feature maps (B, C, h, w) after the given stages; the sequence is the flattened last
    map, after the final norm if there is one, and `pooled` is its mean."""

    def __init__(self, stem: Stem, stages: Iterable[Sequence[nn.Module]], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(nn.Sequential(*blocks) for blocks in stages)
        self.norm = norm

    @recorded
    def feature_maps(self, x: Tensor) -> list[Tensor]:
        """Feature maps after each stage, before the final norm."""
        x, maps = keep_state(self, self.stem(x.to(self.stem.conv.weight.dtype))), []
        for stage in self.stages:
            x = keep_state(self, stage(x))
            maps.append(x)
        return maps

    def unused_modules(self, taps: Sequence[int]) -> list[nn.Module]:
        """Modules that are not needed for the given taps."""
        return [*self.stages[max(taps) + 1 :], *([] if self.norm is None else [self.norm])]

    def truncate(self, tap: int) -> None:
        """Remove all modules after the tap."""
        del self.stages[tap + 1 :]
        self.norm = None

    def forward(self, batch: Batch, taps: Sequence[int] = ()) -> BodyOutput:
        maps = self.feature_maps(batch.inputs)
        last = maps[-1] if self.norm is None else self.norm(maps[-1]).relu_()
        return BodyOutput(last.flatten(2).mT, last.mean((2, 3)), tuple(maps[number] for number in taps))


def init_resnet_weights(body: nn.Module) -> nn.Module:
    """Initialize as ResNet: filters N(0, 2 / fan out) (He et al. 2015)."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return body


def resnet_block(inputs: int, outputs: int, stride: int, bottleneck: bool, stride_first: bool = False) -> PostActBlock:
    """Two 3 x 3 convolutions, or a bottleneck (1 x 1, 3 x 3, 1 x 1). `stride_first`: stride in the first 1 x 1
    convolution (He et al. 2015), else in the 3 x 3 convolution (ResNet 1.5)."""

    def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, active: bool = True) -> ConvNorm:
        return ConvNorm(Convolution(inputs, outputs, kernel, stride), BatchNorm(outputs), active)

    shortcut = None if inputs == outputs and stride == 1 else unit(inputs, outputs, 1, stride, active=False)
    if not bottleneck:
        return PostActBlock([unit(inputs, outputs, 3, stride), unit(outputs, outputs, 3, active=False)], shortcut)
    narrow, (first, second) = outputs // 4, (stride, 1) if stride_first else (1, stride)
    units = [unit(inputs, narrow, 1, first), unit(narrow, narrow, 3, second), unit(narrow, outputs, 1, active=False)]
    return PostActBlock(units, shortcut)


def bit_body(
    channels: int,
    stem_width: int,
    widths: Sequence[int],
    depths: Sequence[int],
    pre_norm: bool,
    same_padding: bool,
    pad_pool: bool,
    groups: int = 32,
    output_stride: int = 32,
) -> ConvBody:
    """BiT body. `pad_pool`: TensorFlow padding in the stem pooling; `output_stride`: maximum stride of feature maps:
    later stages use dilation instead (with `pre_norm`, neither stride nor dilation).

    Hybrid ViT and DPT models use pre_norm=False, same_padding=True, pad_pool=True and depths (3, 4, 9)."""

    def norm(channels: int) -> nn.GroupNorm:
        return nn.GroupNorm(groups, channels)

    def block(inputs: int, outputs: int, stride: int, dilation: int, first: bool) -> PostActBlock:
        narrow = bottleneck_width(outputs)
        shapes = ((inputs, narrow, 1, 1, 1), (narrow, narrow, 3, stride, dilation), (narrow, outputs, 1, 1, 1))
        convs = [StandardizedConv2d(*shape, same=same_padding) for shape in shapes]
        kept = StandardizedConv2d(inputs, outputs, 1, stride, same=same_padding) if first else None
        if pre_norm:
            units = [ConvNorm(conv, norm(conv.in_channels)) for conv in convs]
            return PreActBlock(units, None if kept is None else ConvNorm(kept, None))
        units = [ConvNorm(conv, norm(conv.out_channels), relu=number < 2) for number, conv in enumerate(convs)]
        return PostActBlock(units, None if kept is None else ConvNorm(kept, norm(outputs)))

    stages, inputs, reached, dilation = [], stem_width, 4, 1
    for number, (outputs, depth) in enumerate(zip(widths, depths, strict=True)):
        step = 1 if number == 0 else 2
        if reached >= output_stride:
            step, dilation = 1, dilation * step
        reached *= step
        # the first block has the dilation of the stage before, at most 2
        reaches = [1 if dilation <= 2 else 2, *[dilation] * (depth - 1)]
        made = []
        for at, reach in enumerate(reaches):
            made.append(block(inputs, outputs, step if at == 0 else 1, 1 if pre_norm else reach, first=at == 0))
            inputs = outputs
        stages.append(made)
    conv = StandardizedConv2d(channels, stem_width, 7, 2, same=same_padding)
    pool = same_max_pool if pad_pool else nn.MaxPool2d(3, 2)
    stem = Stem(conv, None if pre_norm else norm(stem_width), pool, padding=0 if same_padding else 1)
    return ConvBody(stem, stages, norm(inputs) if pre_norm else None)


def bottleneck_width(outputs: int) -> int:
    """A quarter of `outputs`, rounded to a multiple of 8, at most 10 % below the quarter."""
    near = max(8, (outputs // 4 + 4) // 8 * 8)
    return near + 8 if near < 0.9 * outputs / 4 else near
