"""The colours of attention: 0 is the paper itself, and equal steps of weight are equal steps of lightness (OKLab).

LIGHT is for white paper, DARK for a dark screen; both are read by linear interpolation between their nine stops.
"""

from __future__ import annotations

from typing import Final

LIGHT: Final = ("#ffffff", "#d0e6ec", "#9ccde0", "#6ab2d8", "#3c93d2", "#2f73bf", "#2b51aa", "#2e3483", "#261b5b")
DARK: Final = ("#18191f", "#252e4a", "#304672", "#346299", "#0585b9", "#0aa8c5", "#45c9ca", "#92e4cb", "#d8f9dd")

INK: Final = "#1c2430"
QUIET: Final = "#6b7686"
LINE: Final = "#e4e8ee"
ACCENT: Final = "#2b51aa"
WARM: Final = "#c8501e"
