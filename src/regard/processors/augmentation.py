"""Image augmentation for training: random crop, flip, color jitter, erasing and mixup.

Random parameters are sampled with the batch plan on the CPU, one row per image; the pixels are changed on the device. So a
batch depends only on its index, and the work on pixels has fixed shapes and no branches: CUDA graphs can capture it.

Crops are resized by Pillow's bilinear filter, a triangle as wide as the step between output pixels, to avoid aliasing. The
filter is two products with sparse matrices, for rows and for columns: on a GPU faster than gathering pixels, and an exact
identity for unchanged images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.processors import check_settings

COLUMNS = (
    "left", "top", "width", "height", "mirrored", "brightness", "contrast", "saturation", "weight", "partner",
    "right", "down", "across", "along", "wide", "high", "grey",
)  # fmt: skip
"""Columns of a parameter row: crop box (fractions of the image), flip (1: yes), color factors, mixup weight
and index of the mixup partner in the batch, shift (fractions of the sides), and center, sides (0: no erasing) and gray value
of the erased rectangle."""
MIN_ERASE_AREA, MAX_ERASE_RATIO = 0.02, 3.3
"""Erased rectangles: minimum area as a fraction of the image, and maximum ratio of the longer to the shorter side."""
LUMA_WEIGHTS = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """Maximum strength of each augmentation; `NO_AUGMENT` leaves images unchanged."""

    crop: float = 0.35
    """minimum area of a random crop as a fraction of the image; 1: no crop"""
    ratio: float = 4 / 3
    """maximum change of a crop's aspect ratio, as a factor; 1: unchanged"""
    flip: bool = True
    """horizontal flip with probability 0.5"""
    color_jitter: float = 0.2
    """maximum relative change of brightness, contrast and saturation"""
    mixup: float = 0.0
    """parameter of the Beta distribution of mixup weights; 0: no mixup"""
    shift: float = 0.0
    """maximum shift as a fraction of the sides, rounded to pixels"""
    erase: float = 0.0
    """maximum area fraction of a gray rectangle, drawn with probability 0.5 (random erasing)"""

    def __post_init__(self) -> None:
        check_settings(
            (
                0 < self.crop <= 1,
                f"data.crop_scale (minimum fraction of the image area) must be above 0 and at most 1, got {self.crop}.",
            ),
            (self.ratio >= 1, f"The maximum aspect ratio of random crops must be at least 1, got {self.ratio}."),
            (0 <= self.color_jitter < 1, f"data.color_jitter must be at least 0 and below 1, got {self.color_jitter}."),
            (self.mixup >= 0, f"data.mixup must be at least 0, got {self.mixup}."),
            (0 <= self.shift < 1, f"data.shift must be at least 0 and below 1, got {self.shift}."),
            (
                not self.erase or MIN_ERASE_AREA <= self.erase < 1,
                f"data.random_erasing must be 0, or at least {MIN_ERASE_AREA} and below 1, got {self.erase}.",
            ),
        )

    @property
    def is_identity(self) -> bool:
        """True if images stay unchanged."""
        changed = (self.flip, self.color_jitter, self.mixup, self.shift, self.erase)
        return self.crop == 1 and not any(changed)


NO_AUGMENT = Augment(crop=1.0, ratio=1.0, flip=False, color_jitter=0.0, mixup=0.0, shift=0.0, erase=0.0)


def sample_params(rng: np.random.Generator, count: int, augment: Augment) -> NDArray[np.float32]:
    """(count, 17) parameters with the columns `COLUMNS`. Disabling an augmentation other than mixup leaves the random values of
    the others unchanged."""
    share = 1 - (1 - augment.crop) * rng.random(count)
    widest = np.minimum(math.log(augment.ratio), -np.log(share))  # a larger ratio would exceed the image
    apart = np.exp(widest * (2 * rng.random(count) - 1))
    width, height = np.sqrt(share * apart), np.sqrt(share / apart)
    left, top = rng.random(count) * (1 - width), rng.random(count) * (1 - height)
    mirrored = (rng.random(count) < 0.5) & augment.flip
    rng.random(count)  # unused: a seed keeps its other numbers
    color_factors = 1 + augment.color_jitter * (2 * rng.random((3, count)) - 1)
    weight, partner = np.ones(count), rng.permutation(count)
    if augment.mixup:
        weight = rng.beta(augment.mixup, augment.mixup, count)
    moved = augment.shift * (2 * rng.random((2, count)) - 1)
    # center, sides and gray value of the erased rectangles, which may extend beyond the image
    across, along, drawn, apart, chance, gray = rng.random((6, count))
    share = (chance < 0.5) * (MIN_ERASE_AREA + (augment.erase - MIN_ERASE_AREA) * drawn) * (augment.erase > 0)
    apart = np.exp(math.log(MAX_ERASE_RATIO) * (2 * apart - 1))
    covered = across, along, np.sqrt(share * apart), np.sqrt(share / apart), gray
    rows = np.stack([left, top, width, height, mirrored, *color_factors, weight, partner, *moved, *covered], axis=1)
    return rows.astype(np.float32)


def mixup_weights(augment_params: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) weight of each image and (B,) index of the image with the remaining weight, to mix labels in the same way."""
    return augment_params[:, 8], augment_params[:, 9].long()


def augment_images(
    x: Tensor, augment_params: Tensor, size: int | tuple[int, int], augment: Augment | None = None
) -> Tensor:
    """Augmented images: (B, 3, H, W) uint8 -> (B, 3, size, size) floats in [0, 1], without gradients.

    Augmentations disabled in `augment` are skipped; None computes all of them."""
    new = (size, size) if isinstance(size, int) else size
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        augment_params = augment_params.float()
        x = _crop_resize(x.float(), augment_params, new) / 255
        if augment is None or augment.color_jitter:
            # brightness, then contrast around the mean gray value, then saturation around the gray value of each pixel
            brightness, contrast, saturation = (augment_params[:, at].view(-1, 1, 1, 1) for at in (5, 6, 7))
            x = x * brightness
            x = x + (contrast - 1) * (x - _grayscale(x).mean((2, 3), keepdim=True))
            x = (x + (saturation - 1) * (x - _grayscale(x))).clamp(0, 1)
        if augment is None or augment.erase:
            across, along, wide, high, gray = augment_params[:, 12:17].T
            columns, rows = (
                ((torch.arange(side, device=x.device) + 0.5) / side - middle[:, None]).abs() < extent[:, None] / 2
                for side, middle, extent in ((new[1], across, wide), (new[0], along, high))
            )
            x = torch.where((rows[:, :, None] & columns[:, None, :])[:, None], gray.view(-1, 1, 1, 1), x)
        if augment is None or augment.mixup:
            weight, partner = mixup_weights(augment_params)
            x = torch.lerp(x[partner], x, weight.view(-1, 1, 1, 1))
        return x


def augment_maps(values: Tensor, augment_params: Tensor, size: int | tuple[int, int]) -> Tensor:
    """(B, H, W) class ids or depths -> (B, size, size), cropped and flipped like the images. Nearest neighbor, so
    class ids and unknown depths are not interpolated."""
    new = (size, size) if isinstance(size, int) else size
    batch, height, width = values.shape
    augment_params = augment_params.float()
    down, across = _source_positions(augment_params, height, width, new)
    # rounded about the middle, so that a position between two pixels falls into the same one in every version
    rows, columns = (down - height / 2 + height / 2).long(), (across - width / 2 + width / 2).long()
    index = rows[:, :, None] * width + columns[:, None, :]
    return values.flatten(1).gather(1, index.flatten(1)).view(batch, *new)


# -- geometry


def _pixel_centers(first: Tensor, share: Tensor, old: int, new: int, mirrored: Tensor | None = None) -> Tensor:
    """(B, new) centers of new pixels in coordinates of the old image, whose first pixel has its center at 0.5.

    The unit is pixels, so a whole image at the original size has a step of exactly 1, without rounding errors."""
    places = torch.arange(new, device=first.device, dtype=torch.float32) + 0.5
    at = first[:, None] * old + places * (share[:, None] * (old / new))
    return at if mirrored is None else torch.where(mirrored[:, None] > 0, at.flip(1), at)


def _source_positions(changes: Tensor, height: int, width: int, new: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(B, new height) and (B, new width) source positions of the new pixels. Shifts repeat the edge pixels."""
    down = _pixel_centers(changes[:, 1], changes[:, 3], height, new[0])
    across = _pixel_centers(changes[:, 0], changes[:, 2], width, new[1], changes[:, 4])
    right, below = ((changes[:, place] * side).round()[:, None] for place, side in ((10, width), (11, height)))
    return (down - below).clamp(0.5, height - 0.5), (across - right).clamp(0.5, width - 0.5)


def _resample_weights(centers: Tensor, share: Tensor, old: int, new: int) -> Tensor:
    """(B, new, old) weights of the old pixels in each new pixel."""
    reach = (share * (old / new)).clamp(min=1).view(-1, 1, 1)
    middles = torch.arange(old, device=centers.device, dtype=torch.float32) + 0.5
    weights = (1 - (middles - centers[:, :, None]).abs() / reach).clamp(min=0)
    return weights / weights.sum(2, keepdim=True)


def _crop_resize(x: Tensor, changes: Tensor, new: tuple[int, int]) -> Tensor:
    batch, channels, height, width = x.shape
    down, across = _source_positions(changes, height, width, new)
    columns = _resample_weights(across, changes[:, 2], width, new[1])
    rows = _resample_weights(down, changes[:, 3], height, new[0])
    narrow = torch.bmm(x.reshape(batch, channels * height, width), columns.mT).view(batch, channels, height, new[1])
    # per channel: a single product for all channels would copy the row matrices three times
    return torch.stack([torch.bmm(rows, narrow[:, channel]) for channel in range(channels)], 1)


def _grayscale(x: Tensor) -> Tensor:
    red, green, blue = (weight * x[:, place : place + 1] for place, weight in enumerate(LUMA_WEIGHTS))
    return red + green + blue
