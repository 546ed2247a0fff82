"""Pictures to learn from are cut out, mirrored, coloured, covered in part and mixed, each time otherwise.

Chance is drawn where batches are planned, as a small table of numbers, a row a picture; the pixels are changed by that table
on the device. So a batch is a function of its number, and the work on pixels has one shape and no branches: it can be recorded.

A cut-out is resized by the filter that Pillow calls bilinear, a triangle that grows with the step from one new pixel to the
next, so that shrinking leaves no jagged edges. It is made of two products with sparse matrices, one for rows and one for
columns: on a GPU they cost less than reading the pixels one by one, and where nothing is changed they change nothing at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import SettingError

COLUMNS = (
    "left", "top", "width", "height", "mirrored", "brightness", "contrast", "saturation", "weight", "partner",
    "right", "down", "across", "along", "wide", "high", "grey",
)  # fmt: skip
"""What the numbers of a row are: the cut-out in shares of the picture, 1 where it is mirrored, factors, and the weight
of a picture beside its partner, the place of that one in the batch, how far a picture is moved, in shares of its sides, and
the middle, the sides and the grey of a rectangle that covers it (sides of 0: nothing does)."""
MIN_ERASE_AREA, MAX_ERASE_RATIO = 0.02, 3.3
"""Of rectangles that cover pictures: the least share of the area, and the longer side in shorter ones at most."""
LUMA_WEIGHTS = (0.299, 0.587, 0.114)
"""how bright red, green and blue are"""


@dataclass(frozen=True)
class Augment:
    """How much pictures are changed, at most; `NOTHING` leaves them as they are."""

    crop: float = 0.35
    """the least share of a picture that is cut out; 1: all of it"""
    ratio: float = 4 / 3
    """by how much the sides of a cut-out are drawn apart at most; 1: they keep their ratio"""
    flip: bool = True
    """every second one is mirrored"""
    color_jitter: float = 0.2
    """brightness, contrast and saturation are changed by up to this share"""
    mixup: float = 0.0
    """the parameter of the Beta distribution of the weights that two pictures are mixed with; 0: none are"""
    shift: float = 0.0
    """they are moved by up to this share of their sides, by whole pixels"""
    erase: float = 0.0
    """a grey rectangle covers up to this share of every second one (random erasing)"""

    def __post_init__(self) -> None:
        if not 0 < self.crop <= 1:
            raise SettingError(
                f"data.crop_scale (minimum fraction of the image area) must be above 0 and at most 1, got {self.crop}."
            )
        if self.ratio < 1:
            raise SettingError(f"The maximum aspect ratio of random crops must be at least 1, got {self.ratio}.")
        if not 0 <= self.color_jitter < 1:
            raise SettingError(f"data.color_jitter must be at least 0 and below 1, got {self.color_jitter}.")
        if self.mixup < 0:
            raise SettingError(f"data.mixup must be at least 0, got {self.mixup}.")
        if not 0 <= self.shift < 1:
            raise SettingError(f"data.shift must be at least 0 and below 1, got {self.shift}.")
        if self.erase and not MIN_ERASE_AREA <= self.erase < 1:
            raise SettingError(
                f"data.random_erasing must be 0, or at least {MIN_ERASE_AREA} and below 1, got {self.erase}."
            )

    @property
    def is_identity(self) -> bool:
        """Whether pictures stay as they are."""
        changed = (self.flip, self.color_jitter, self.mixup, self.shift, self.erase)
        return self.crop == 1 and not any(changed)


NO_AUGMENT = Augment(crop=1.0, ratio=1.0, flip=False, color_jitter=0.0, mixup=0.0, shift=0.0, erase=0.0)


def sample_params(rng: np.random.Generator, count: int, augment: Augment) -> NDArray[np.float32]:
    """(count, 17) numbers, as `COLUMNS` names them. Whatever `how` says, as much chance is used: with one thing switched off
    the others fall out as before."""
    share = 1 - (1 - augment.crop) * rng.random(count)
    widest = np.minimum(math.log(augment.ratio), -np.log(share))  # drawn further apart, it would leave the picture
    apart = np.exp(widest * (2 * rng.random(count) - 1))
    width, height = np.sqrt(share * apart), np.sqrt(share / apart)
    left, top = rng.random(count) * (1 - width), rng.random(count) * (1 - height)
    mirrored = (rng.random(count) < 0.5) & augment.flip
    rng.random(count)  # unused: a seed keeps its other numbers
    colours = 1 + augment.color_jitter * (2 * rng.random((3, count)) - 1)
    weight, partner = np.ones(count), rng.permutation(count)
    if augment.mixup:
        weight = rng.beta(augment.mixup, augment.mixup, count)
    moved = augment.shift * (2 * rng.random((2, count)) - 1)
    covered = _sample_erase_boxes(rng, count, augment.erase)
    rows = np.stack([left, top, width, height, mirrored, *colours, weight, partner, *moved, *covered], axis=1)
    return rows.astype(np.float32)


def _sample_erase_boxes(random: np.random.Generator, count: int, most: float) -> NDArray[np.float64]:
    """(5, count): the middle, the sides and the grey of what covers a picture; it may reach over an edge."""
    across, along, drawn, apart, chance, grey = random.random((6, count))
    share = (chance < 0.5) * (MIN_ERASE_AREA + (most - MIN_ERASE_AREA) * drawn) * (most > 0)
    apart = np.exp(math.log(MAX_ERASE_RATIO) * (2 * apart - 1))
    return np.stack([across, along, np.sqrt(share * apart), np.sqrt(share / apart), grey])


def mixup_weights(augment_params: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) the weight of each picture and (B,) the place of the one that has the rest: labels are mixed likewise."""
    return augment_params[:, 8], augment_params[:, 9].long()


def augment_images(
    x: Tensor, augment_params: Tensor, size: int | tuple[int, int], augment: Augment | None = None
) -> Tensor:
    """(B, 3, H, W) bytes as (B, 3, size, size) floats from 0 to 1, changed by the rows of `changes`.

    What cannot happen under `how` is not computed; None: everything is. Gradients do not pass."""
    new = (size, size) if isinstance(size, int) else size
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        augment_params = augment_params.float()
        found = _crop_resize(x.float(), augment_params, new) / 255
        if augment is None or augment.color_jitter:
            found = _jitter_color(found, augment_params)
        if augment is None or augment.erase:
            found = _erase(found, augment_params)
        if augment is None or augment.mixup:
            weight, partner = mixup_weights(augment_params)
            found = torch.lerp(found[partner], found, weight.view(-1, 1, 1, 1))
        return found


def augment_maps(values: Tensor, augment_params: Tensor, size: int | tuple[int, int]) -> Tensor:
    """(B, H, W) numbers of classes, or depths, as (B, size, size), cut out and mirrored as pictures are. The nearest
    is taken, so that nothing is mixed: a class stays one, and an unknown depth unknown."""
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
    """(B, new) where the middle of each new pixel lies, in old pixels, of which the first has its middle at 0.5.

    Steps are counted in pixels: of a whole picture at its own size they are 1 exactly, and nothing is rounded."""
    places = torch.arange(new, device=first.device, dtype=torch.float32) + 0.5
    at = first[:, None] * old + places * (share[:, None] * (old / new))
    return at if mirrored is None else torch.where(mirrored[:, None] > 0, at.flip(1), at)


def _source_positions(changes: Tensor, height: int, width: int, new: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(B, new) down and (B, new) across: where new pixels lie in old ones. What a move uncovers repeats the edge."""
    down = _pixel_centers(changes[:, 1], changes[:, 3], height, new[0])
    across = _pixel_centers(changes[:, 0], changes[:, 2], width, new[1], changes[:, 4])
    right, below = ((changes[:, place] * side).round()[:, None] for place, side in ((10, width), (11, height)))
    return (down - below).clamp(0.5, height - 0.5), (across - right).clamp(0.5, width - 0.5)


def _resample_weights(centres: Tensor, share: Tensor, old: int, new: int) -> Tensor:
    """(B, new, old) how much of each old pixel is in each new one."""
    reach = (share * (old / new)).clamp(min=1).view(-1, 1, 1)
    middles = torch.arange(old, device=centres.device, dtype=torch.float32) + 0.5
    weights = (1 - (middles - centres[:, :, None]).abs() / reach).clamp(min=0)
    return weights / weights.sum(2, keepdim=True)


def _crop_resize(x: Tensor, changes: Tensor, new: tuple[int, int]) -> Tensor:
    batch, channels, height, width = x.shape
    down, across = _source_positions(changes, height, width, new)
    columns = _resample_weights(across, changes[:, 2], width, new[1])
    rows = _resample_weights(down, changes[:, 3], height, new[0])
    narrow = torch.bmm(x.reshape(batch, channels * height, width), columns.mT).view(batch, channels, height, new[1])
    # channel by channel: a product of them all would copy the matrices of the rows three times
    return torch.stack([torch.bmm(rows, narrow[:, channel]) for channel in range(channels)], 1)


# -- colour


def _jitter_color(x: Tensor, changes: Tensor) -> Tensor:
    """Brighter or darker, then further from or nearer to its mean grey, then from or to its own greys."""
    brightness, contrast, saturation = (changes[:, place].view(-1, 1, 1, 1) for place in (5, 6, 7))
    x = x * brightness
    x = x + (contrast - 1) * (x - _grayscale(x).mean((2, 3), keepdim=True))
    x = x + (saturation - 1) * (x - _grayscale(x))
    return x.clamp(0, 1)


def _grayscale(x: Tensor) -> Tensor:
    red, green, blue = (weight * x[:, place : place + 1] for place, weight in enumerate(LUMA_WEIGHTS))
    return red + green + blue


# -- covering


def _erase(x: Tensor, changes: Tensor) -> Tensor:
    height, width = x.shape[2:]
    across, along, wide, high, grey = changes[:, 12:17].T
    columns, rows = (
        ((torch.arange(size, device=x.device) + 0.5) / size - middle[:, None]).abs() < side[:, None] / 2
        for size, middle, side in ((width, across, wide), (height, along, high))
    )
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], grey.view(-1, 1, 1, 1), x)
