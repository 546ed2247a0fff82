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

Maps = Float[Tensor, "B H W"]
Known = Bool[Tensor, "B H W"]
Loss = tuple[Float[Tensor, ""], Int[Tensor, ""]]
Alignment = Literal["robust", "squares"]

LEAST = 1e-6
"""A spread below this part of its middle is none: a picture that is one plane, or one number said everywhere."""


def relative_loss(
    said: Maps, target: Maps, known: Known, alignment: Alignment = "robust", alpha: float = 0.5, keep: float = 0.8
) -> Loss:
    """MiDaS's loss of inverse depths: what differs after alignment, and `alpha` times how differently it changes.

    `robust`: both sides are brought to median 0 and mean deviation 1, and the largest differences, all but `keep`, are not
    counted: they are where the target is wrong. `squares`: what is said is scaled and shifted to the target, and squared
    differences are counted."""
    said, target, known = _wide(said), _wide(target), known & target.isfinite()
    target = torch.where(known, target, 0.0)
    many = known.sum((1, 2))
    if alignment == "robust":
        left = centred(said, known) - centred(target, known)
        size = _trimmed(left.abs(), known, keep)
    else:
        scale, shift = least_squares(said, target, known)
        left = scale[:, None, None] * said + shift[:, None, None] - target
        size = torch.where(known, left.square(), 0.0).sum((1, 2))
    losses = (0.5 * size + alpha * _unlike(left, known)) / many.clamp(min=1)
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def metric_loss(said: Maps, target: Maps, known: Known, share: float = 0.85) -> Loss:
    """Root of the mean square of log ratios, less `share` of their squared mean: with 1 a common factor costs nothing, with 0
    it costs as any other error."""
    said, target, known = _wide(said), _wide(target), known & target.isfinite() & (target > 0)
    ratio = said.clamp(min=LEAST).log() - torch.where(known, target, 1.0).log()
    ratio = torch.where(known, ratio, 0.0)
    many = known.sum((1, 2))
    mean, square = (part.sum((1, 2)) / many.clamp(min=1) for part in (ratio, ratio.square()))
    # at 0 the root has no slope: nothing is to be learnt there
    losses = (square - share * mean.square()).clamp(min=LEAST**2).sqrt()
    return torch.where(many > 0, losses, 0.0).sum(), (many > 0).sum()


def inverse(depth: Maps, known: Known) -> tuple[Maps, Known]:
    """Inverse depth, and where it is known: not where nothing was measured, which sensors write as 0."""
    known = known & depth.isfinite() & (depth > 0)
    return torch.where(known, 1 / torch.where(known, depth, 1.0), 0.0), known


def centred(x: Maps, known: Known) -> Maps:
    """(x - median) / mean deviation from it, both over what is known of each picture. Of an even number the lower of the two
    middle values is the median."""
    flat, counted = x.flatten(1), known.flatten(1)
    many = counted.sum(1, keepdim=True)
    # by sorting: torch's own median has no deterministic form on CUDA
    middle = torch.where(counted, flat, torch.inf).sort(1).values.gather(1, (many - 1).clamp(min=0) // 2)
    middle = torch.where(many > 0, middle, 0.0)
    from_middle = flat - middle
    spread = torch.where(counted, from_middle.abs(), 0.0).sum(1, keepdim=True) / many.clamp(min=1)
    return (from_middle / torch.where(spread > LEAST * middle.abs(), spread, 1.0)).view_as(x)


def least_squares(said: Maps, target: Maps, known: Known) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
    """The scale and the shift of each picture with the least Σ (scale · said + shift - target)²; scale 0 where one number was
    said everywhere, or nothing is known."""
    said, target = torch.where(known, said, 0.0), torch.where(known, target, 0.0)
    many = known.sum((1, 2)).clamp(min=1)
    means = [part.sum((1, 2)) / many for part in (said, target)]
    off, other = (
        torch.where(known, part - mean[:, None, None], 0.0) for part, mean in zip((said, target), means, strict=True)
    )
    square, product = off.square().sum((1, 2)) / many, (off * other).sum((1, 2)) / many
    varied = square > (LEAST * means[0]).square()
    scale = torch.where(varied, product / torch.where(varied, square, 1.0), 0.0)
    return scale, means[1] - scale * means[0]


def _trimmed(sizes: Maps, known: Known, keep: float) -> Float[Tensor, "B"]:
    """Sum of the smallest: `keep` of those that are known."""
    ranked = torch.where(known, sizes, torch.inf).flatten(1).sort(1).values
    most = (known.sum((1, 2)).double() * keep).floor()
    return torch.where(torch.arange(ranked.shape[1], device=ranked.device) < most[:, None], ranked, 0.0).sum(1)


def _unlike(left: Maps, known: Known, scales: int = 4) -> Float[Tensor, "B"]:
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


def _wide(x: Tensor) -> Tensor:
    """Sums over a picture need more than sixteen bits."""
    return x if x.dtype == torch.float64 else x.float()
