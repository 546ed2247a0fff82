"""Colours of what is said of pixels: of classes, and from cold to hot, from near to far."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

ImageArray = npt.NDArray[np.uint8]
MapArray = npt.NDArray[Any]

UNKNOWN_COLOR: Final = (228, 232, 238)
"""Where nothing is known."""
HEAT_COLORS: Final = ("#2d1160", "#721f81", "#b6377a", "#f1605d", "#feae77", "#fcfdbf")
"""From cold to hot, ever lighter: colours of matplotlib's magma without its black, which a dark picture has itself."""
DEPTH_COLORS: Final = ("#fcffa4", "#fbb61a", "#ed6925", "#bc3754", "#781c6d", "#320a5e", "#08051d")
"""From near to far: what is near stands out. Colours of matplotlib's inferno, its black lifted."""


@functools.cache
def class_colors(num_classes: int) -> tuple[tuple[int, int, int], ...]:
    """A colour for each class, each as unlike all before it as can be (in OKLab, where equal steps look equal). More classes
    do not change the colours of the first ones."""
    steps = np.linspace(0, 255, 14).round()
    every = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
    seen = _oklab(every)
    vivid = np.hypot(seen[:, 1], seen[:, 2])
    useful = (seen[:, 0] > 0.48) & (seen[:, 0] < 0.87)  # neither black nor white,
    useful &= (vivid > 0.085) & (vivid < 0.19)  # nor grey, nor glaring
    every, seen = every[useful], seen[useful]
    chosen = [int(np.argmin(np.abs(every - (43, 81, 190)).sum(1)))]
    apart = np.full(len(every), np.inf)
    while len(chosen) < num_classes:
        apart = np.minimum(apart, ((seen - seen[chosen[-1]]) ** 2 * (0.2, 1, 1)).sum(1))
        chosen.append(int(apart.argmax()))
    return tuple((int(r), int(g), int(b)) for r, g, b in every[chosen[:num_classes]])


def _oklab(colours: MapArray) -> MapArray:
    """Bytes (n, 3) -> lightness and two axes of colour (Ottosson 2020)."""
    linear = np.where(colours <= 0.04045 * 255, colours / 255 / 12.92, ((colours / 255 + 0.055) / 1.055) ** 2.4)
    return np.cbrt(linear @ np.array(_RGB_TO_LMS).T) @ np.array(_LMS_TO_LAB).T


_RGB_TO_LMS: Final = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
_LMS_TO_LAB: Final = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)


def apply_colormap(values: MapArray, stops: Sequence[str]) -> ImageArray:
    """Shares of 0 to 1 -> bytes with one axis more, between evenly spaced colours."""
    colours = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], dtype=np.float64)
    at = np.clip(np.nan_to_num(values), 0, 1) * (len(stops) - 1)
    channels = [np.interp(at, np.arange(len(stops)), colours[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)
