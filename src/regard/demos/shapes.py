"""Rendering of colored shapes with anti-aliasing, and backgrounds.

Only arithmetic is used, so a scene has the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ImageArray = NDArray[np.uint8]
FloatArray = NDArray[np.float64]
InsideTest = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]

SAMPLES_PER_AXIS: Final = 4
"""Sample points per pixel and axis for the coverage of a shape."""


class Box(NamedTuple):
    """Bounding box in pixels from the top left; right and bottom are exclusive."""

    left: int
    top: int
    right: int
    bottom: int


class Background(NamedTuple):
    """Light background color, plain or with a faint texture."""

    color: tuple[int, int, int]
    texture: str = "plain"
    seed: int = 0


COLORS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (206, 32, 38), "orange": (243, 128, 22), "yellow": (250, 210, 22), "green": (42, 148, 62), "blue": (34, 92, 200),
    "purple": (136, 52, 160), "black": (26, 26, 30),
}  # fmt: skip

BACKGROUND_COLORS: Final = ((250, 250, 248), (232, 236, 240), (245, 238, 224), (226, 238, 232), (240, 230, 240))
TEXTURES: Final = ("plain", "grain", "stripes", "checks")
TEXTURE_AMPLITUDE: Final = 7.0
"""Maximum change of the background by a texture, in pixel values."""


def _polygon(corners: Sequence[tuple[float, float]]) -> InsideTest:
    """Inside test of a polygon: a ray to the right crosses the border an odd number of times."""

    def inside(x: FloatArray, y: FloatArray) -> NDArray[np.bool_]:
        found = np.zeros(np.broadcast_shapes(x.shape, y.shape), dtype=bool)
        for (x1, y1), (x2, y2) in zip(corners, [*corners[1:], corners[0]], strict=True):
            if y1 != y2:
                found ^= ((y1 > y) != (y2 > y)) & (x < x1 + (y - y1) * ((x2 - x1) / (y2 - y1)))
        return found

    return inside


def _star_vertices(radii: Sequence[float], many: int) -> list[tuple[float, float]]:
    """Vertices around the center, starting at the top, with alternating distances `radii`."""
    turns = [2 * math.pi * number / many for number in range(many)]
    return [
        (radii[n % len(radii)] * math.sin(turn), -radii[n % len(radii)] * math.cos(turn))
        for n, turn in enumerate(turns)
    ]


SHAPES: Final[dict[str, InsideTest]] = {
    "circle": lambda x, y: x * x + y * y < 0.94**2,
    "square": lambda x, y: (abs(x) < 0.84) & (abs(y) < 0.84),
    "triangle": _polygon([(0.0, -0.95), (0.98, 0.85), (-0.98, 0.85)]),
    "star": _polygon(_star_vertices((1.0, 0.42), 10)),
    "cross": lambda x, y: ((abs(x) < 0.3) & (abs(y) < 0.95)) | ((abs(y) < 0.3) & (abs(x) < 0.95)),
    "ring": lambda x, y: (x * x + y * y < 0.96**2) & (x * x + y * y > 0.52**2),
}
"""Inside tests; each shape is within a distance of 1 from the center on both axes."""


def coverage(shape: str, center: tuple[float, float], radius: float, image_size: int) -> tuple[Box, FloatArray]:
    """Bounding box of a shape, and the covered fraction of each pixel in the box. `center` is (y, x); all lengths are in
    pixels."""
    across, top, left = (
        math.ceil(2 * radius) + 3,
        math.floor(center[0] - radius) - 1,
        math.floor(center[1] - radius) - 1,
    )
    at = (np.arange(across * SAMPLES_PER_AXIS) + 0.5) / SAMPLES_PER_AXIS
    y, x = (at + top - center[0]) / radius, (at + left - center[1]) / radius
    held = SHAPES[shape](x[None], y[:, None]).reshape(across, SAMPLES_PER_AXIS, across, SAMPLES_PER_AXIS)
    shares = held.mean((1, 3))
    rows, columns = shares.any(1).nonzero()[0], shares.any(0).nonzero()[0]
    (first, last), (start, end) = (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)
    box = Box(left + int(start), top + int(first), left + int(end), top + int(last))
    if box.left < 0 or box.top < 0 or max(box.right, box.bottom) > image_size:
        raise ValueError(
            f"A {shape} at {center} of radius {radius} does not fit into {image_size} × {image_size} pixels."
        )
    return box, shares[first:last, start:end]


def render_background(background: Background, image_size: int) -> FloatArray:
    """(side, side, 3) background with texture."""
    at = np.arange(image_size)
    period = max(2, image_size // 16)
    shade = np.zeros((image_size, image_size))
    if background.texture == "grain":  # NumPy guarantees that the values of RandomState never change
        shade = 2 * np.random.RandomState(background.seed).random_sample((image_size, image_size)) - 1
    elif background.texture == "stripes":
        stripes = np.where((at + background.seed // 2) // period % 2, 1.0, -1.0)
        shade += stripes[:, None] if background.seed % 2 else stripes
    elif background.texture == "checks":
        shade += np.where((at[:, None] // period + at[None] // period + background.seed) % 2, 1.0, -1.0)
    return np.array(background.color, dtype=np.float64) + TEXTURE_AMPLITUDE * shade[..., None]


def blend_color(pixels: FloatArray, box: Box, alpha: FloatArray, color: Sequence[float]) -> None:
    """Blend a color into the pixels of a box, in place."""
    part = pixels[box.top : box.bottom, box.left : box.right]
    part += alpha[..., None] * (np.array(color, dtype=np.float64) - part)


def to_uint8(pixels: FloatArray) -> ImageArray:
    return np.rint(pixels.clip(0, 255)).astype(np.uint8)
