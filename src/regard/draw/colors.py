"""Colors of figures, heatmaps, depth maps and classes.

In the colormaps of attention and surprisal, 0 is the background, and equal steps of weight are equal steps of lightness
(OKLab). LIGHT is for white and DARK for dark backgrounds, both interpolated linearly between nine stops. WARM_LIGHT and
WARM_DARK (surprisal, gradient attribution) differ clearly from the colors of attention and end while text is still readable
on the color. COOL_LIGHT and COOL_DARK, the first half of the attention colors, do the same for attention rollout.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

LIGHT: Final = ("#ffffff", "#d0e6ec", "#9ccde0", "#6ab2d8", "#3c93d2", "#2f73bf", "#2b51aa", "#2e3483", "#261b5b")
DARK: Final = ("#18191f", "#252e4a", "#304672", "#346299", "#0585b9", "#0aa8c5", "#45c9ca", "#92e4cb", "#d8f9dd")
WARM_LIGHT: Final = ("#ffffff", "#faf0de", "#f6dfc0", "#f3cea3", "#f0bc87", "#eda96c", "#ea9653", "#e68138", "#e26b1b")
WARM_DARK: Final = ("#18191f", "#321d15", "#422317", "#532a19", "#643019", "#763719", "#883e16", "#9b4511", "#ae4c07")
COOL_LIGHT: Final = LIGHT[:5]
COOL_DARK: Final = DARK[:4]

INK: Final = "#1c2430"
MUTED: Final = "#6b7686"
LINE: Final = "#e4e8ee"
ACCENT: Final = "#2b51aa"
WARM: Final = "#c8501e"


def colormap(stops: Sequence[str]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", list(stops))


ImageArray = npt.NDArray[np.uint8]
MapArray = npt.NDArray[Any]

UNKNOWN_COLOR: Final = (228, 232, 238)  # Color of pixels without a value.
HEAT_COLORS: Final = ("#2d1160", "#721f81", "#b6377a", "#f1605d", "#feae77", "#fcfdbf")
"""From low to high, increasingly bright: matplotlib's magma without black, which is common in dark images."""
DEPTH_COLORS: Final = ("#fcffa4", "#fbb61a", "#ed6925", "#bc3754", "#781c6d", "#320a5e", "#08051d")
"""From near to far, increasingly dark: matplotlib's inferno with a lighter black."""


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


@functools.cache
def class_colors(num_classes: int) -> tuple[tuple[int, int, int], ...]:
    """An RGB color for each class, as different as possible from all previous colors in OKLab."""
    steps = np.linspace(0, 255, 14).round()
    every = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)
    # lightness and two color axes of OKLab (Ottosson 2020)
    linear = np.where(every <= 0.04045 * 255, every / 255 / 12.92, ((every / 255 + 0.055) / 1.055) ** 2.4)
    seen = np.cbrt(linear @ np.array(_RGB_TO_LMS).T) @ np.array(_LMS_TO_LAB).T
    vivid = np.hypot(seen[:, 1], seen[:, 2])
    useful = (seen[:, 0] > 0.48) & (seen[:, 0] < 0.87)  # not too dark or too bright
    useful &= (vivid > 0.085) & (vivid < 0.19)  # not gray or too saturated
    every, seen = every[useful], seen[useful]
    chosen = [int(np.argmin(np.abs(every - (43, 81, 190)).sum(1)))]
    apart = np.full(len(every), np.inf)
    while len(chosen) < num_classes:
        apart = np.minimum(apart, ((seen - seen[chosen[-1]]) ** 2 * (0.2, 1, 1)).sum(1))
        chosen.append(int(apart.argmax()))
    return tuple((int(r), int(g), int(b)) for r, g, b in every[chosen[:num_classes]])


def apply_colormap(values: MapArray, stops: Sequence[str]) -> ImageArray:
    """RGB bytes (…, 3) for values from 0 to 1, interpolated between evenly spaced colors."""
    colours = np.array([[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in stops], dtype=np.float64)
    at = np.clip(np.nan_to_num(values), 0, 1) * (len(stops) - 1)
    channels = [np.interp(at, np.arange(len(stops)), colours[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)
