"""Answers for each pixel on the picture they are about: classes in colours with their names, depths with a scale, and what was
looked at as a glow. Pictures are bytes (H, W, 3); a void pixel stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from regard.draw.colour import INK, LINE, QUIET
from regard.draw.label import columns, label
from regard.draw.paper import LETTER, Sheet, check_ending, styled, write_whole
from regard.draw.shades import BLANK, GLOW, NEAR_FAR, Map, Picture, class_colours, ramped
from regard.errors import RegardError
from regard.waists import IGNORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARGIN: Final = 0.45
GAP: Final = 0.14
WIDE: Final = 10.5  # inches of a sheet between its margins, at most
PANEL: Final = 3.4  # of a picture on it
LEAST: Final = 1.1
HEAD: Final = 0.26  # inches above a column for its name
SWATCH: Final = 0.15
ENTRY: Final = 0.25  # inches of a line of the legend
NAMED: Final = 36
"""Classes in a legend; of more those that cover most."""
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
    legend = _Legend(names, _shares(samples, len(names)), " of answer and truth together" if both else "")
    return _sheet(rows, [sample.name for sample in samples], path, title, about, legend)


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
    below = _Scale(ramped(np.linspace(0, 1, 256)[None], NEAR_FAR), ("near", "", "far") if relative else names, gaps)
    return _sheet(rows, [sample.name for sample in samples], path, title, about, below)


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
    return _sheet(rows, names, path, title, about, _Scale(glowing, ("0", *ends)), mark)


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


class _Legend:
    """The classes that are seen, those that cover most first, in columns."""

    def __init__(self, names: Sequence[str], shares: Map, of: str = "") -> None:
        """`of`: of which pixels these are shares."""
        order = [int(at) for at in np.argsort(-shares, kind="stable") if shares[at] > 0]
        colours = class_colours(len(names))
        self.items = [(label(names[at], 24), colours[at], float(shares[at])) for at in order[:NAMED]]
        more = f"; {len(order) - NAMED} others cover less" if len(order) > NAMED else ""
        self.note = f"shares of all pixels{of}{more}"
        self.wide = max((columns(name) for name, _, _ in self.items), default=1) * LETTER * 8.5 + SWATCH + 0.75

    def across(self, width: float) -> int:
        return max(1, min(int(width / self.wide), len(self.items)))

    def height(self, width: float) -> float:
        return -(-len(self.items) // self.across(width)) * ENTRY + ENTRY

    def draw(self, axes: Axes, top: float, width: float) -> None:
        from matplotlib.patches import Rectangle

        across = self.across(width)
        for number, (name, colour, share) in enumerate(self.items):
            left, down = number % across * (width / across), top + number // across * ENTRY
            rgb = tuple(part / 255 for part in colour)
            axes.add_patch(Rectangle((left, down), SWATCH, SWATCH, facecolor=rgb, edgecolor=INK, linewidth=0.4))
            axes.text(left + SWATCH + 0.08, down + SWATCH / 2, name, size=8.5, color=INK, va="center")
            beside = left + self.wide - 0.15
            axes.text(beside, down + SWATCH / 2, _percent(share), size=7.5, color=QUIET, va="center", ha="right")
        axes.text(0, top + self.height(width) - ENTRY / 2, self.note, size=7.5, color=QUIET, va="center")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"


class _Scale:
    """A bar of the colours with names for its beginning, its middle and its end; `gaps`: somewhere nothing is known."""

    def __init__(self, colours: Picture, names: tuple[str, str, str], gaps: bool = False) -> None:
        """`colours`: one row of pixels."""
        self.colours, self.names, self.gaps = colours, names, gaps

    def height(self, width: float) -> float:
        return 0.36

    def draw(self, axes: Axes, top: float, width: float) -> None:
        from matplotlib.patches import Rectangle

        long = min(0.6 * width, 3.0)
        colours: Any = self.colours
        axes.imshow(colours, extent=(0, long, top + 0.12, top), aspect="auto", interpolation="nearest", zorder=1)
        for at, name, place in zip((0.0, long / 2, long), self.names, ("left", "center", "right"), strict=True):
            # a number ends under the end of the bar, and what is counted stands behind it
            number, _, unit = name.partition(" ")
            axes.text(at, top + 0.17, number, size=8, color=QUIET, va="top", ha=place)
            axes.text(at + 0.05, top + 0.17, unit, size=8, color=QUIET, va="top", ha="left")
        if self.gaps:
            grey, left = tuple(part / 255 for part in BLANK), long + 0.7
            axes.add_patch(
                Rectangle((left, top - 0.01), SWATCH, SWATCH, facecolor=grey, edgecolor=QUIET, linewidth=0.4)
            )
            axes.text(left + SWATCH + 0.08, top + 0.06, "not known", size=8, color=QUIET, va="center")


def _sheet(
    rows: Sequence[Sequence[Picture]], names: Sequence[Any], path: Path, title: str, about: str, below: _Legend | _Scale,
    mark: tuple[float, float] | None = None,
) -> Path:  # fmt: skip
    """Panels in rows. `names`: one for each row, where the columns have fixed meanings, or one for each panel."""
    ending = check_ending(path, (".png", ".svg"))
    many = max((len(row) for row in rows), default=0)
    if not many:
        raise RegardError("there is no picture to draw.")
    side = max(LEAST, min(PANEL, (WIDE + GAP) / many - GAP))
    heights = [side * max(panel.shape[0] / panel.shape[1] for panel in row) for row in rows]
    width = max(many * (side + GAP) - GAP, 3.4)
    heads: Callable[[int, int], str] = lambda row, column: _head(names[row], row, column)  # noqa: E731
    above = [HEAD if any(heads(row, column) for column in range(len(rows[row]))) else 0.0 for row in range(len(rows))]
    top = MARGIN + (0.24 if title else 0.0) + (0.22 if about else 0.0)
    height = sum(heights) + sum(above) + GAP * len(rows) + below.height(width) + 0.08
    with styled():
        sheet = Sheet(2 * MARGIN + width, top + height + MARGIN - 0.1)
        sheet.text(MARGIN, MARGIN - 0.1, label(title, int(width / (LETTER * 13))) if title else "", 13, weight="bold")
        sheet.text(MARGIN, MARGIN + (0.2 if title else -0.1), about, size=8.5, colour=QUIET)
        axes = sheet.axes(MARGIN, top, width, height)
        axes.set_axis_off()
        down = 0.0
        for row, panels in enumerate(rows):
            for column, panel in enumerate(panels):
                left = column * (side + GAP)
                head = label(heads(row, column), int(side / (LETTER * 8.5))) if heads(row, column) else ""
                axes.text(left, down + above[row] - 0.07, head, size=8.5, color=QUIET, va="bottom")
                _put(axes, panel, left, down + above[row], side, mark)
            down += above[row] + heights[row] + GAP
        below.draw(axes, down + 0.04, width)
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        return sheet.save(path, ending)


COLUMNS: Final = ("picture", "answer", "truth")


def _head(names: Any, row: int, column: int) -> str:
    if not isinstance(names, str):
        return str(names[column])
    meaning = COLUMNS[column] if row == 0 else ""
    return (names or meaning) if column == 0 else meaning


def _put(
    axes: Axes, panel: Picture, left: float, top: float, side: float, mark: tuple[float, float] | None
) -> None:  # fmt: skip
    from matplotlib.patches import Rectangle

    tall = side * panel.shape[0] / panel.shape[1]
    colours: Any = np.repeat(panel[..., None], 3, 2) if panel.ndim == 2 else panel
    box = (left, left + side, top + tall, top)
    way = "nearest" if panel.shape[1] < 480 else "antialiased"
    axes.imshow(colours, extent=box, interpolation=way, aspect="auto", zorder=1)
    axes.add_patch(Rectangle((left, top), side, tall, fill=False, edgecolor=LINE, linewidth=0.6, zorder=2))
    if mark is not None:
        for colour, wide in (("black", 2.2), ("white", 1.1)):  # seen on dark and on light ground
            axes.plot(
                left + mark[1] * side, top + mark[0] * tall, "o", ms=6, mfc="none", mec=colour, mew=wide, zorder=3
            )
