"""Pictures with what was said of them, and what a person said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colormap import ACCENT, LINE, QUIET
from regard.draw.figure import Sheet, check_ending, styled, wrapped
from regard.errors import RegardError

ACROSS: Final = 4
WIDE: Final = 2.7  # inches of a picture
TALL: Final = 2.2
TEXT: Final = 1.2  # below it
GAP: Final = 0.3
MARGIN: Final = 0.45
LINES: Final = 3


class Said(NamedTuple):
    picture: npt.NDArray[np.uint8]
    """bytes (H, W, 3)"""
    answer: str
    reference: str


def draw_captions(shown: Sequence[Said], path: Path, title: str = "What was said, and what a person said") -> Path:
    """Into a .png or .svg file."""
    ending = check_ending(path, (".png", ".svg"))
    if not shown:
        raise RegardError("there is no picture to draw.")
    many, rows, top = min(len(shown), ACROSS), -(-len(shown) // ACROSS), MARGIN + 0.4
    width = max(2 * MARGIN + many * (WIDE + GAP) - GAP, 5.0)
    with styled():
        sheet = Sheet(width, top + rows * (TALL + TEXT + GAP) - GAP + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, title, size=13, weight="bold")
        for number, one in enumerate(shown):
            left = MARGIN + number % ACROSS * (WIDE + GAP)
            _put(sheet, one, left, top + number // ACROSS * (TALL + TEXT + GAP))
        return sheet.save(path, ending)


def _put(sheet: Sheet, one: Said, left: float, top: float) -> None:
    """The picture stands on a line with its neighbours, as large as its place allows."""
    high, wide = one.picture.shape[:2]
    scale = min(WIDE / wide, TALL / high)
    width, height = scale * wide, scale * high
    axes = sheet.axes(left, top + TALL - height, width, height)
    axes.imshow(one.picture, interpolation="antialiased", aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    for edge in axes.spines.values():
        edge.set(edgecolor=LINE, linewidth=0.6)
    said = wrapped(one.answer, WIDE, 8.5, LINES) if one.answer.strip() else "(nothing)"
    sheet.text(left, top + TALL + 0.08, said, size=8.5, colour=ACCENT, weight="bold")
    down = 0.08 + 0.165 * (said.count("\n") + 1) + 0.04
    sheet.text(left, top + TALL + down, wrapped(one.reference, WIDE, 8.5, LINES), size=8.5, colour=QUIET)
