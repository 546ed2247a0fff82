"""Colormaps of attention and surprisal: 0 is the background, and equal steps of weight are equal steps of lightness (OKLab).

LIGHT is for white and DARK for dark backgrounds, both interpolated linearly between nine stops. WARM_LIGHT and WARM_DARK
(surprisal, gradient attribution) differ clearly from the colors of attention and end while text is still readable on
the color. COOL_LIGHT and COOL_DARK, the first half of the attention colors, do the same for attention rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

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
