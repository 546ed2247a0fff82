"""Answers for each pixel on the picture they are about: classes in colours with their names, depths with a scale, and what was
looked at as a glow. Pictures are bytes (H, W, 3); a void pixel stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from regard.draw.class_colors import BLANK, GLOW, NEAR_FAR, Map, Picture, class_colours, ramped
from regard.draw.figure import check_ending, write_whole
from regard.draw.panels import Legend, Scale, draw_panels
from regard.errors import RegardError
from regard.types import IGNORE

SEEN: Final = 1600
"""Pixels of a side that are drawn: more would be lost on a sheet, and fill the memory."""
STRENGTH: Final = 0.6
"""Share of a class's colour in what is seen of its pixels."""


class Segmented(NamedTuple):
    picture: Picture
    said: Map
    """(H, W) numbers of classes"""
    right: Map | None = None
    name: str = ""


class Measured(NamedTuple):
    picture: Picture
    said: Map
    """(H, W) depth, or with `relative` how near"""
    right: Map | None = None
    """(H, W) the same, as it is; what is no number is not known, nor is a depth of 0"""
    name: str = ""


S = TypeVar("S", Segmented, Measured)


class Regarded(NamedTuple):
    picture: Picture
    weights: Map
    """(h, w) how much was looked at each place, of a grid of any size"""
    name: str = ""
    covers: tuple[float, float] = (1.0, 1.0)
    """how far that grid reaches, in heights and widths of the picture: it may end below and to the right of it"""


# -- pictures of the size of the pixels


def over_classes(picture: Picture, classes: Map, many: int, void: int = IGNORE, strength: float = STRENGTH) -> Picture:
    """The picture in the colours of its classes, which have a dark edge; void pixels are left as they are."""
    picture = _coloured(picture, classes)
    there = (classes != void) & (classes >= 0) & (classes < many)
    colours = np.array(class_colours(many), dtype=np.float64)[np.where(there, classes, 0).astype(np.int64)]
    grey = picture.mean(-1, keepdims=True)
    mixed = (1 - strength) * (0.5 * picture + 0.5 * grey) + strength * colours
    mixed[_edges(classes)] *= 0.45
    return np.where(there[..., None], mixed, picture).round().astype(np.uint8)


def _edges(classes: Map) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbour is of another class."""
    found = np.zeros(classes.shape, dtype=bool)
    found[:, :-1] |= classes[:, :-1] != classes[:, 1:]
    found[:-1] |= classes[:-1] != classes[1:]
    return found


def depth_picture(depth: Map, near: float, far: float) -> Picture:
    """Light is near, dark is far; what is not known is grey. With `near` above `far` the numbers say how near."""
    known = _known(depth, near > far)
    shares = (np.where(known, depth, near) - near) / ((far - near) or 1.0)
    return np.where(known[..., None], ramped(shares, NEAR_FAR), np.array(BLANK, dtype=np.uint8))


def _known(depth: Map, relative: bool) -> npt.NDArray[np.bool_]:
    return np.isfinite(depth) & ((depth > 0) | relative)


def over_heat(
    picture: Picture, weights: Map, most: float | None = None, smooth: bool = True,
    covers: tuple[float, float] = (1.0, 1.0),
) -> Picture:  # fmt: skip
    """What was looked at glows on the darkened picture. The grid of weights is stretched over it, or beyond it (`covers`);
    not `smooth`: its places are seen. `most` is the weight of the brightest glow; None: the largest."""
    most = float(np.nanmax(weights, initial=0.0)) if most is None else most
    shape = picture.shape[0], picture.shape[1]
    wide = stretched(np.nan_to_num(weights) / (most or 1.0), shape, smooth, covers)[..., None]
    picture = _coloured(picture, wide[..., 0])
    shares = np.clip(wide, 0, 1)
    grey = 0.3 * picture + 0.5 * picture.mean(-1, keepdims=True)
    strength = 0.85 * shares**0.7
    return ((1 - strength) * grey + strength * ramped(shares[..., 0], GLOW)).round().astype(np.uint8)


def stretched(grid: Map, shape: tuple[int, int], smooth: bool, covers: tuple[float, float]) -> Map:
    from PIL import Image

    small = Image.fromarray(np.ascontiguousarray(grid, dtype=np.float32))
    way = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    part = (0, 0, grid.shape[1] / covers[1], grid.shape[0] / covers[0])
    return np.asarray(small.resize((shape[1], shape[0]), way, box=part), dtype=np.float64)


def _coloured(picture: Picture, beside: Map) -> Picture:
    picture = np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture
    if picture.shape[:2] != beside.shape:
        raise RegardError(f"an answer for {beside.shape} pixels cannot be laid over a picture of {picture.shape[:2]}.")
    return picture


def save_picture(picture: Picture, path: Path) -> Path:
    """As it is, pixel by pixel, into a .png file."""
    from PIL import Image

    check_ending(path, (".png",))
    return write_whole(path, lambda to: Image.fromarray(picture).save(to, format="PNG"))


# -- sheets with what the colours mean


def fitted(sample: S) -> S:
    """The picture no larger than is seen on a sheet, and what belongs to it at the same size. A picture may have been decoded
    smaller than it is, and what is said of it have its own size."""
    from PIL import Image

    picture = sample.picture
    shrunk = min(1.0, SEEN / max(picture.shape))
    high, wide = (max(round(shrunk * side), 1) for side in picture.shape[:2])
    if shrunk < 1:
        picture = np.asarray(Image.fromarray(picture).resize((wide, high), Image.Resampling.BOX))
    right = None if sample.right is None else _nearest(sample.right, (high, wide))
    return sample._replace(picture=picture, said=_nearest(sample.said, (high, wide)), right=right)


def _nearest(values: Map, size: tuple[int, int]) -> Map:
    if values.shape == size:
        return values
    rows, columns = ((np.arange(new) * 2 + 1) * old // (2 * new) for new, old in zip(size, values.shape, strict=True))
    return values[rows[:, None], columns[None]]


def draw_classes(
    samples: Sequence[Segmented], names: Sequence[str], path: Path, title: str = "", about: str = "", void: int = IGNORE
) -> Path:
    """Each picture beside its answer and, where it is known, the truth, over the names of the classes that are seen."""
    rows, samples = [], [fitted(sample) for sample in samples]
    for sample in samples:
        answers = [answer for answer in (sample.said, sample.right) if answer is not None]
        rows.append([sample.picture, *(over_classes(sample.picture, answer, len(names), void) for answer in answers)])
    both = any(sample.right is not None for sample in samples)
    legend = Legend(names, _shares(samples, len(names)), "pixels of answer and truth together" if both else "pixels")
    return draw_panels(rows, [sample.name for sample in samples], path, title, about, legend)


def draw_depths(
    samples: Sequence[Measured], path: Path, title: str = "", about: str = "", unit: str = "m", relative: bool = False
) -> Path:
    """Each picture beside its answer and, where it is known, the truth, in colours of one scale. `relative`: the numbers say
    how near, each map in a unit of its own."""
    samples = [fitted(sample) for sample in samples]
    rows, scale = [], _limits([answer for sample in samples for answer in _answers(sample)], relative)
    for sample in samples:
        limits = [_limits([answer], relative) if relative else scale for answer in _answers(sample)]
        maps = [depth_picture(answer, *each) for answer, each in zip(_answers(sample), limits, strict=True)]
        rows.append([sample.picture, *maps])
    names = (f"{scale[0]:.3g}", f"{(scale[0] + scale[1]) / 2:.3g}", f"{scale[1]:.3g} {unit}".rstrip())
    gaps = any(not bool(_known(answer, relative).all()) for sample in samples for answer in _answers(sample))
    below = Scale(ramped(np.linspace(0, 1, 256)[None], NEAR_FAR), ("near", "", "far") if relative else names, gaps)
    return draw_panels(rows, [sample.name for sample in samples], path, title, about, below)


def draw_heats(
    samples: Sequence[Regarded],
    path: Path,
    title: str = "",
    about: str = "",
    across: int = 4,
    unit: str | None = "of the weight",
    mark: tuple[float, float] | None = None,
) -> Path:
    """What was looked at, of one picture by several heads or of several pictures, in rows of so many, on one scale, or where
    there is no `unit` each on its own, which ends with the share above it. `mark`: a place, in heights and widths of the
    pictures."""
    mosts = [float(np.nanmax(sample.weights, initial=0.0)) for sample in samples]
    most = max(mosts, default=0.0)
    seen = [
        over_heat(sample.picture, sample.weights, most if unit else own, covers=sample.covers)
        for sample, own in zip(samples, mosts, strict=True)
    ]
    rows = [seen[at : at + across] for at in range(0, len(seen), across)]
    heads = [
        sample.name if unit else f"{sample.name} · {100 * own:.2g} %"
        for sample, own in zip(samples, mosts, strict=True)
    ]
    names = [heads[at : at + across] for at in range(0, len(seen), across)]
    ends = f"{50 * most:.2g}", f"{100 * most:.2g} % {unit or ''}"
    if not unit and len(samples) > 1:
        ends = "", "brightest place: the share that is written above its picture"
    # as it is seen on a grey picture, where nothing glows at 0
    glowing = over_heat(np.full((1, 256, 3), 212, np.uint8), np.linspace(0, 1, 256)[None], 1.0)
    return draw_panels(rows, names, path, title, about, Scale(glowing, ("0", *ends)), mark)


def _answers(sample: Measured) -> list[Map]:
    return [answer for answer in (sample.said, sample.right) if answer is not None]


def _limits(maps: Sequence[Map], relative: bool) -> tuple[float, float]:
    """The nearest and the farthest that colours tell apart: all but a hundredth of the pixels at either end."""
    known = [m[_known(m, relative)] for m in maps]
    values = np.concatenate(known) if known else np.zeros(0)
    if not values.size:
        return (1.0, 0.0) if relative else (0.0, 1.0)
    low, high = (float(value) for value in np.percentile(values, (1, 99)))
    high = high if high > low else low + max(abs(low), 1.0) * 1e-3
    return (high, low) if relative else (low, high)


def _shares(samples: Sequence[Segmented], many: int) -> Map:
    """Of all pixels, how many were said to be of each class, or are."""
    maps = [m for sample in samples for m in (sample.said, sample.right) if m is not None]
    counts = [np.bincount(m[(m >= 0) & (m < many)].astype(np.int64), minlength=many) for m in maps]
    return np.sum(counts, axis=0) / max(sum(m.size for m in maps), 1)
