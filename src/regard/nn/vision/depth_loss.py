"""What depth is learnt by, as (sum, count) over the pictures that have a pixel whose depth is known.

Depth from many sources has no common scale, so `relative_loss` compares inverse depth up to a scale and a shift of each
picture (MiDaS, Ranftl et al. 2019); `metric_loss` compares logarithms of depth in one unit (Eigen et al. 2014). B pictures
of H x W pixels; `known` is True where the target says something.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

DepthMaps = Float[Tensor, "B H W"]
ValidMask = Bool[Tensor, "B H W"]
LossSum = tuple[Float[Tensor, ""], Int[Tensor, ""]]
Alignment = Literal["robust", "squares"]

EPSILON = 1e-6
"""A spread below this part of its middle is none: a picture that is one plane, or one number said everywhere."""


def relative_loss(
    prediction: DepthMaps,
    target: DepthMaps,
    valid: ValidMask,
    alignment: Alignment = "robust",
    alpha: float = 0.5,
    keep_fraction: float = 0.8,
) -> LossSum:
    """MiDaS's loss of inverse depths: what differs after alignment, and `alpha` times how differently it changes.

    `robust`: both sides are brought to median 0 and mean deviation 1, and the largest differences, all but `keep`, are not
    counted: they are where the target is wrong. `squares`: what is said is scaled and shifted to the target, and squared
    differences are counted."""
    prediction, target, valid = _at_least_float32(prediction), _at_least_float32(target), valid & target.isfinite()
    target = torch.where(valid, target, 0.0)
    many = valid.sum((1, 2))
    if alignment == "robust":
        left = standardize(prediction, valid) - standardize(target, valid)
        size = _trimmed_sum(left.abs(), valid, keep_fraction)
    else:
        scale, shift = fit_scale_shift(prediction, target, valid)
        left = scale[:, None, None] * prediction + shift[:, None, None] - target
        size = torch.where(valid, left.square(), 0.0).sum((1, 2))
    losses = (0.5 * size + alpha * _gradient_loss(left, valid)) / many.clamp(min=1)
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def metric_loss(prediction: DepthMaps, target: DepthMaps, valid: ValidMask, variance_weight: float = 0.85) -> LossSum:
    """Root of the mean square of log ratios, less `share` of their squared mean: with 1 a common factor costs nothing, with 0
    it costs as any other error."""
    prediction, target, valid = (
        _at_least_float32(prediction),
        _at_least_float32(target),
        valid & target.isfinite() & (target > 0),
    )
    ratio = prediction.clamp(min=EPSILON).log() - torch.where(valid, target, 1.0).log()
    ratio = torch.where(valid, ratio, 0.0)
    many = valid.sum((1, 2))
    mean, square = (part.sum((1, 2)) / many.clamp(min=1) for part in (ratio, ratio.square()))
    # at 0 the root has no slope: nothing is to be learnt there
    losses = (square - variance_weight * mean.square()).clamp(min=EPSILON**2).sqrt()
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def inverse_depth(depth: DepthMaps, valid: ValidMask) -> tuple[DepthMaps, ValidMask]:
    """Inverse depth, and where it is known: not where nothing was measured, which sensors write as 0."""
    valid = valid & depth.isfinite() & (depth > 0)
    return torch.where(valid, 1 / torch.where(valid, depth, 1.0), 0.0), valid


def standardize(x: DepthMaps, valid: ValidMask) -> DepthMaps:
    """(x - median) / mean deviation from it, both over what is known of each picture. Of an even number the lower of the two
    middle values is the median."""
    flat, counted = x.flatten(1), valid.flatten(1)
    many = counted.sum(1, keepdim=True)
    # by sorting: torch's own median has no deterministic form on CUDA
    middle = torch.where(counted, flat, torch.inf).sort(1).values.gather(1, (many - 1).clamp(min=0) // 2)
    middle = torch.where(many > 0, middle, 0.0)
    from_middle = flat - middle
    spread = torch.where(counted, from_middle.abs(), 0.0).sum(1, keepdim=True) / many.clamp(min=1)
    return (from_middle / torch.where(spread > EPSILON * middle.abs(), spread, 1.0)).view_as(x)


def fit_scale_shift(
    prediction: DepthMaps, target: DepthMaps, valid: ValidMask
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """The scale and the shift of each picture with the least Σ (scale · said + shift - target)²; scale 0 where one number was
    said everywhere, or nothing is known."""
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


def _trimmed_sum(sizes: DepthMaps, known: ValidMask, keep: float) -> Float[Tensor, "B"]:
    """Sum of the smallest: `keep` of those that are known."""
    ranked = torch.where(known, sizes, torch.inf).flatten(1).sort(1).values
    most = (known.sum((1, 2)).double() * keep).floor()
    return torch.where(torch.arange(ranked.shape[1], device=ranked.device) < most[:, None], ranked, 0.0).sum(1)


def _gradient_loss(left: DepthMaps, known: ValidMask, scales: int = 4) -> Float[Tensor, "B"]:
    """How much a difference changes from one place to the next one that is known, to the right and down, in the picture and
    in every second, fourth and eighth row and column of it.

    All of it is divided by the known places of the whole picture, as the paper writes it, so that coarse changes count little;
    programs that circulate divide each scale by its own places."""
    total = left.new_zeros(len(left))
    for scale in range(scales):
        step = 2**scale
        x, there = left[:, ::step, ::step], known[:, ::step, ::step]
        for axis in (1, 2):
            length = x.shape[axis] - 1
            change = (x.narrow(axis, 1, length) - x.narrow(axis, 0, length)).abs()
            both = there.narrow(axis, 1, length) & there.narrow(axis, 0, length)
            total = total + torch.where(both, change, 0.0).sum((1, 2))
    return total


def _at_least_float32(x: Tensor) -> Tensor:
    """Sums over a picture need more than sixteen bits."""
    return x if x.dtype == torch.float64 else x.float()
