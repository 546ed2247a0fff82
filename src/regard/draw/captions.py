"""Images with generated and reference captions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from regard.draw.colors import ACCENT, LINE, MUTED
from regard.draw.figure import Sheet, check_suffix, figure_style, wrap_text
from regard.errors import RegardError

COLUMNS: Final = 4
IMAGE_WIDTH: Final = 2.7  # inches
IMAGE_HEIGHT: Final = 2.2
TEXT_HEIGHT: Final = 1.2  # inches below the image
GAP: Final = 0.3
MARGIN: Final = 0.45
MAX_LINES: Final = 3


class CaptionSample(NamedTuple):
    image: npt.NDArray[np.uint8]
    """bytes (H, W, 3)"""
    prediction: str
    reference: str


def draw_captions(
    samples: Sequence[CaptionSample], path: Path, title: str = "Generated and reference captions"
) -> Path:
    """Draw images and captions into a .png or .svg file."""
    ending = check_suffix(path, (".png", ".svg"))
    if not samples:
        raise RegardError("No images to draw.")
    many, rows, top = min(len(samples), COLUMNS), -(-len(samples) // COLUMNS), MARGIN + 0.4
    width = max(2 * MARGIN + many * (IMAGE_WIDTH + GAP) - GAP, 5.0)
    with figure_style():
        sheet = Sheet(width, top + rows * (IMAGE_HEIGHT + TEXT_HEIGHT + GAP) - GAP + MARGIN)
        sheet.text(MARGIN, MARGIN - 0.1, title, size=13, weight="bold")
        for number, one in enumerate(samples):
            left = MARGIN + number % COLUMNS * (IMAGE_WIDTH + GAP)
            _draw_sample(sheet, one, left, top + number // COLUMNS * (IMAGE_HEIGHT + TEXT_HEIGHT + GAP))
        return sheet.save(path, ending)


def _draw_sample(sheet: Sheet, one: CaptionSample, left: float, top: float) -> None:
    """Draw the image as large as fits, at the bottom of its cell, and the captions below."""
    high, wide = one.image.shape[:2]
    scale = min(IMAGE_WIDTH / wide, IMAGE_HEIGHT / high)
    width, height = scale * wide, scale * high
    axes = sheet.axes(left, top + IMAGE_HEIGHT - height, width, height)
    axes.imshow(one.image, interpolation="antialiased", aspect="auto")
    axes.set_xticks([])
    axes.set_yticks([])
    for edge in axes.spines.values():
        edge.set(edgecolor=LINE, linewidth=0.6)
    said = wrap_text(one.prediction, IMAGE_WIDTH, 8.5, MAX_LINES) if one.prediction.strip() else "(empty)"
    sheet.text(left, top + IMAGE_HEIGHT + 0.08, said, size=8.5, color=ACCENT, weight="bold")
    down = 0.08 + 0.165 * (said.count("\n") + 1) + 0.04
    sheet.text(
        left, top + IMAGE_HEIGHT + down, wrap_text(one.reference, IMAGE_WIDTH, 8.5, MAX_LINES), size=8.5, color=MUTED
    )
