"""Convolutional bodies: a stem, then stages of residual blocks, each stage coarser and wider than the one before.

ResNet (He et al. 2015) and BiT (Kolesnikov et al. 2019) are this; BiT's first stages also make the patches of ViT's and
DPT's hybrids. Two things vary: whether a block's norms are after its convolutions (`PostActBlock`) or before (`PreActBlock`),
and the convolutions and norms themselves: plain ones with batch norm, or standardised ones with group norm.

Shape letters: B pictures, C channels, h and w places of a map; D, H and W of the map that is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError
from regard.types import Batch, BodyOutput

FeatureMap = Float[Tensor, "B C h w"]
OutputMap = Float[Tensor, "B D H W"]


class BatchNorm(nn.Module):
    """Of each channel, over the pictures of a batch and all places; asked, not taught, by the statistics it has gathered.

    Here a picture's neighbours change what is learnt: a step of several grains takes statistics of each grain by itself, and
    several processes each of their own, so another number of processes gives other numbers in training. A norm that is frozen
    gathers nothing more. What PyTorch counts beside (`num_batches_tracked`) is used by nobody where the share of a batch is
    fixed, and is not kept."""

    weight: nn.Parameter
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        """`share` of a new batch in the gathered statistics."""
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: FeatureMap) -> FeatureMap:
        taught = self.training and self.weight.requires_grad
        if taught and x.numel() == x.shape[1]:
            raise RegardError(
                "BatchNorm requires more than one value per channel in training, got one position of one image. Use larger "
                "images or a larger batch."
            )
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, taught, self.momentum, self.eps
        )


def pad_same(x: FeatureMap, kernel: int, stride: int, dilation: int = 1) -> OutputMap:
    """Zeros around it, so that one place in `stride` is answered, the first one included; an odd one stands at the end.

    TensorFlow's "same": how much it is depends on the size of the map."""
    heights, widths = (
        max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0) for size in x.shape[-2:]
    )
    if not (heights or widths):
        return x
    return F.pad(x, [widths // 2, widths - widths // 2, heights // 2, heights - heights // 2])


def safe_stride(x: FeatureMap, stride: tuple[int, ...]) -> tuple[int, ...]:
    """The stride over a map. One column gives one whatever it is, and with more than 1 oneDNN leaves the gradient of bfloat16
    filters unset there."""
    return (stride[0], 1) if x.shape[-1] == 1 else stride


class Convolution(nn.Conv2d):
    """Without a bias, which the norm behind it would take away; as many zeros on every side as keep the places."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, dilation * (kernel // 2), dilation, bias=False)

    def forward(self, x: FeatureMap) -> OutputMap:
        return self.convolve(x, self.weight)

    def convolve(self, x: FeatureMap, weight: Float[Tensor, "D C k k"]) -> OutputMap:
        return F.conv2d(x, weight, None, safe_stride(x, self.stride), self.padding, self.dilation)


class StandardizedConv2d(Convolution):
    """Each filter with mean 0 and variance 1 (Qiao et al. 2019). `same`: padded as TensorFlow does."""

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
    """A convolution and its norm, of which a block says the order; with `active` a ReLU behind both."""

    def __init__(self, conv: nn.Module, norm: nn.Module | None, relu: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.has_relu = conv, norm, relu

    def forward(self, x: FeatureMap) -> OutputMap:
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x)
        return x.relu_() if self.has_relu else x

    def pre_activate(self, x: FeatureMap) -> FeatureMap:
        """What its convolution reads where the norm goes first."""
        assert self.norm is not None
        return self.norm(x).relu_()


class PostActBlock(nn.Module):
    """ReLU(units(x) + x), norms behind their convolutions; `shortcut` brings x to another size."""

    def __init__(self, units: Iterable[ConvNorm], shortcut: ConvNorm | None = None) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.shortcut = shortcut

    def forward(self, x: FeatureMap) -> OutputMap:
        kept = x if self.shortcut is None else self.shortcut(x)
        for unit in self.units:
            x = unit(x)
        return (x + kept).relu_()


class PreActBlock(nn.Module):
    """units(x) + x, norms and ReLUs before their convolutions (He et al. 2016); a shortcut reads what the first one does."""

    def __init__(self, units: Iterable[ConvNorm], shortcut: ConvNorm | None = None) -> None:
        super().__init__()
        self.units = nn.ModuleList(units)
        self.shortcut = shortcut

    def forward(self, x: FeatureMap) -> OutputMap:
        kept = x
        for number, unit in enumerate(self.units):
            x = unit.pre_activate(x)  # type: ignore[operator]
            if number == 0 and self.shortcut is not None:
                kept = self.shortcut(x)
            x = unit.conv(x)  # type: ignore[operator]
        return x + kept


class Stem(nn.Module):
    """Pixels -> the first map: a convolution, `frame` zeros around what it gives, a norm with its ReLU, and a pool."""

    def __init__(
        self, conv: nn.Conv2d, norm: nn.Module | None, pool: nn.Module | None = None, padding: int = 0
    ) -> None:
        super().__init__()
        self.conv, self.norm, self.pool, self.padding = conv, norm, pool, padding

    def forward(self, x: Tensor) -> OutputMap:
        if x.ndim != 4 or x.shape[1] != self.conv.in_channels:
            raise RegardError(
                "Expected images of shape (batch, channels, height, width) with "
                f"{self.conv.in_channels} channels, got {tuple(x.shape)}."
            )
        x = self.conv(x)
        if self.padding:
            x = F.pad(x, [self.padding] * 4)
        if self.norm is not None:
            x = self.norm(x).relu_()
        return x if self.pool is None else self.pool(x)


class StemMaxPool(nn.Module):
    """The largest of 3 x 3 places, at every second one; `fits`: zeros are put around first, else nothing is."""

    def __init__(self, pad_same: bool) -> None:
        super().__init__()
        self.pads_same = pad_same

    def forward(self, x: FeatureMap) -> OutputMap:
        return F.max_pool2d(pad_same(x, 3, 2) if self.pads_same else x, 3, 2)


class ConvBody(nn.Module):
    """`taps` are maps (B, C, h, w) after the stages asked for; the sequence is the last one, row by row, after the norm where
    there is one; the summary its mean."""

    def __init__(self, stem: Stem, stages: Iterable[Sequence[nn.Module]], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(nn.Sequential(*blocks) for blocks in stages)
        self.norm = norm

    def feature_maps(self, x: Tensor) -> list[Tensor]:
        """After each stage, before the last norm."""
        x, found = self.stem(x.to(self.stem.conv.weight.dtype)), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found

    def unused_modules(self, taps: Sequence[int]) -> list[nn.Module]:
        """What nobody reads who reads these taps alone."""
        return [*self.stages[max(taps) + 1 :], *([] if self.norm is None else [self.norm])]

    def truncate(self, tap: int) -> None:
        """Nothing is kept of what lies behind this tap."""
        del self.stages[tap + 1 :]
        self.norm = None

    def forward(self, batch: Batch, taps: Sequence[int] = ()) -> BodyOutput:
        maps = self.feature_maps(batch.inputs)
        last = maps[-1] if self.norm is None else self.norm(maps[-1]).relu_()
        return BodyOutput(last.flatten(2).mT, last.mean((2, 3)), tuple(maps[number] for number in taps))


def init_resnet_weights(body: nn.Module) -> nn.Module:
    """As ResNet begins: filters from N(0, 2 / fan out) (He et al. 2015)."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return body


BlockFactory = Callable[[int, int, int], nn.Module]
"""A block from its inputs, outputs and stride."""


def resnet_stage(make: BlockFactory, inputs: int, outputs: int, depth: int, stride: int) -> list[nn.Module]:
    """The first block of a stage changes the size, the others keep it."""
    return [make(inputs, outputs, stride), *(make(outputs, outputs, 1) for _ in range(depth - 1))]


def resnet_block(inputs: int, outputs: int, stride: int, bottleneck: bool, stride_first: bool = False) -> PostActBlock:
    """Two convolutions of 3 x 3, or one of them between two that make it narrow and wide again. `early`: the narrowing one
    takes the stride (the paper's), else that of 3 x 3 does (ResNet 1.5)."""

    def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, active: bool = True) -> ConvNorm:
        return ConvNorm(Convolution(inputs, outputs, kernel, stride), BatchNorm(outputs), active)

    shortcut = None if inputs == outputs and stride == 1 else unit(inputs, outputs, 1, stride, active=False)
    if not bottleneck:
        return PostActBlock([unit(inputs, outputs, 3, stride), unit(outputs, outputs, 3, active=False)], shortcut)
    narrow, first, second = outputs // 4, stride if stride_first else 1, 1 if stride_first else stride
    return PostActBlock(
        [
            unit(inputs, narrow, 1, first),
            unit(narrow, narrow, 3, second),
            unit(narrow, outputs, 1, active=False),
        ],
        shortcut,
    )


class BiTFactory:
    """Makes the parts of BiT: standardised convolutions, group norms. `before`: norms go before the convolutions; `same`: as
    TensorFlow pads."""

    def __init__(self, groups: int, pre_norm: bool, same_padding: bool) -> None:
        self.groups, self.pre_norm, self.same_padding = groups, pre_norm, same_padding

    def norm(self, channels: int) -> nn.GroupNorm:
        return nn.GroupNorm(self.groups, channels)

    def stem(self, channels: int, width: int, pad_pool: bool) -> Stem:
        conv = StandardizedConv2d(channels, width, 7, 2, same=self.same_padding)
        return Stem(
            conv,
            None if self.pre_norm else self.norm(width),
            StemMaxPool(pad_pool),
            padding=0 if self.same_padding else 1,
        )

    def block(self, inputs: int, outputs: int, stride: int, dilation: int, first: bool) -> PostActBlock | PreActBlock:
        narrow = bottleneck_width(outputs)
        shapes = ((inputs, narrow, 1, 1, 1), (narrow, narrow, 3, stride, dilation), (narrow, outputs, 1, 1, 1))
        convs = [StandardizedConv2d(*shape, same=self.same_padding) for shape in shapes]
        kept = StandardizedConv2d(inputs, outputs, 1, stride, same=self.same_padding) if first else None
        if self.pre_norm:
            units = [ConvNorm(conv, self.norm(conv.in_channels)) for conv in convs]
            return PreActBlock(units, None if kept is None else ConvNorm(kept, None))
        units = [ConvNorm(conv, self.norm(conv.out_channels), relu=number < 2) for number, conv in enumerate(convs)]
        return PostActBlock(units, None if kept is None else ConvNorm(kept, self.norm(outputs)))


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
    """BiT's body. `fits`: the pool of the stem is padded as TensorFlow does; `stride`: a map is never coarser than that: later
    stages widen the reach of their filters instead (not where norms go `before`: there only the stride is left out).

    ViT's and DPT's hybrids take it with before=False, same=True, fits=True and depths (3, 4, 9)."""
    parts = BiTFactory(groups, pre_norm, same_padding)
    stages, inputs, reached, dilation = [], stem_width, 4, 1
    for number, (outputs, depth) in enumerate(zip(widths, depths, strict=True)):
        step = 1 if number == 0 else 2
        if reached >= output_stride:
            step, dilation = 1, dilation * step
        reached *= step
        # the first block reads what the stage before made: it reaches as far as that one did, but never further than 2
        reaches = [1 if dilation <= 2 else 2, *[dilation] * (depth - 1)]
        made = []
        for at, reach in enumerate(reaches):
            made.append(parts.block(inputs, outputs, step if at == 0 else 1, 1 if pre_norm else reach, first=at == 0))
            inputs = outputs
        stages.append(made)
    return ConvBody(parts.stem(channels, stem_width, pad_pool), stages, parts.norm(inputs) if pre_norm else None)


def bottleneck_width(outputs: int) -> int:
    """A quarter of them, as a multiple of 8 that is not a tenth less."""
    near = max(8, (outputs // 4 + 4) // 8 * 8)
    return near + 8 if near < 0.9 * outputs / 4 else near
