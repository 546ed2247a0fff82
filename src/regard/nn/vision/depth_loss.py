"""Depth losses as (sum, count) over the images with at least one valid pixel.

Data from several sources has no common scale, so `relative_loss` compares inverse depth up to scale and shift per image
(MiDaS, Ranftl et al. 2019); `metric_loss` compares log depth in one unit (Eigen et al. 2014). B images of H x W pixels;
`valid` is True at pixels with a label.
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
"""Deviations below this fraction of the median or mean count as 0: a flat image or a constant prediction."""


def relative_loss(
    prediction: DepthMaps,
    target: DepthMaps,
    valid: ValidMask,
    alignment: Alignment = "robust",
    alpha: float = 0.5,
    keep_fraction: float = 0.8,
) -> LossSum:
    """Loss of MiDaS for inverse depth: differences after alignment, plus `alpha` times the gradient loss.

    `robust`: prediction and target are normalized to median 0 and mean absolute deviation 1, and only the smallest
    `keep_fraction` of the differences counts, because large differences are often label errors. `squares`: the
    prediction is scaled and shifted to the target by least squares, with squared differences."""
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


def _trimmed_sum(sizes: DepthMaps, known: ValidMask, keep: float) -> Float[Tensor, "B"]:
    """Sum of the smallest valid values, a fraction `keep` of them."""
    ranked = torch.where(known, sizes, torch.inf).flatten(1).sort(1).values
    most = (known.sum((1, 2)).double() * keep).floor()
    return torch.where(torch.arange(ranked.shape[1], device=ranked.device) < most[:, None], ranked, 0.0).sum(1)


def _gradient_loss(left: DepthMaps, known: ValidMask, scales: int = 4) -> Float[Tensor, "B"]:
    """Sum of absolute differences between adjacent valid pixels, to the right and down, at strides 1, 2, 4 and 8.

    The caller divides all scales by the valid pixels of the full image, as in the paper, so coarse scales count little;
    published implementations divide each scale by its own number of pixels."""
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
    """Sums over an image need more than 16 bits."""
    return x if x.dtype == torch.float64 else x.float()
