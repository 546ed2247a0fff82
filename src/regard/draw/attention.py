"""Attention maps as a figure: one large heatmap, and small heatmaps of every layer and head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from regard.draw.colors import LIGHT, LINE, MUTED, WARM, colormap
from regard.draw.figure import MARGIN, Sheet, check_suffix, draw_matrix, new_figure, text_width, wrap_text
from regard.draw.text import label
from regard.draw.token_data import ActSteps, AttentionMap, DecisionAttribution, TextLikelihood, sort_cross_first
from regard.draw.token_strips import ProbabilityBars, TokenStrip, act_steps_strip, decision_strips, surprisal_strip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADING: Final = 0.62  # inches above a panel for title and subtitle
LEGEND: Final = 0.75  # inches below a panel for the color bar
COLUMN_GAP: Final = 0.6  # inches between two header blocks in one row
MAX_MOSAIC_WIDTH: Final = 5.0  # inches, for all layers and heads of a map
MIN_PANEL_WIDTH: Final = 5.6  # inches, so that the title fits on one line


def draw_heatmaps(
    maps: Sequence[AttentionMap],
    path: Path,
    *,
    title: str,
    layer: int | None = None,
    head: int | None = None,
    likelihood: TextLikelihood | None = None,
    decision: DecisionAttribution | None = None,
    act_steps: Sequence[ActSteps] = (),
) -> Path:
    """Draw the maps into a .png or .svg file.

    Without `layer` and `head`: a large heatmap of the last layer, averaged over heads, of the cross-attention or else the first
    map; to the right, small heatmaps of all layers and heads of every map; above, tokens colored by surprisal (`likelihood`),
    attribution (`decision`) and computation steps (`act_steps`), and maps with one row per layer.
    With `layer` or `head`, counted from 1: only this layer (default: last) and head (default: average) of each map.
    """
    check_suffix(path, (".png", ".svg"))
    ordered = sort_cross_first(tuple(item for item in maps if item.row_kind == "tokens"))
    layered = [item for item in maps if item.row_kind == "layers"]
    # for a single layer with one head and no header blocks, one large heatmap shows everything
    bare = all(item.is_single for item in maps) and likelihood is None and decision is None and not act_steps
    if layer is not None or head is not None or bare:
        return _draw_selected(ordered, path, title, layer, head)

    def blocks_of(width: float) -> list[HeaderBlock]:
        blocks: list[HeaderBlock] = [] if likelihood is None else [surprisal_strip(likelihood, width)]
        blocks += [] if decision is None else decision_strips(decision, width)
        blocks += [act_steps_strip(steps, width) for steps in act_steps]
        return [*blocks, *(LayerPanel(item, width) for item in layered)]

    def header_rows(width: float) -> list[list[HeaderBlock]]:
        """Header blocks in rows: two per row if all blocks are short."""
        halves = blocks_of((width - COLUMN_GAP) / 2)
        if len(halves) > 1 and all(item.is_short for item in halves):
            return [halves[at : at + 2] for at in range(0, len(halves), 2)]
        return [[item] for item in blocks_of(width)]

    return _draw_overview(ordered, path, title, header_rows)


class MatrixPanel:
    """A matrix of an attention map. Sizes are in inches and depend on the number and length of the tokens."""

    def __init__(
        self,
        item: AttentionMap,
        matrix: NDArray[np.float64],
        subtitle: str,
        max_size: float,
        max_cell: float = 0.56,
        min_row_height: float = 0.0,
    ) -> None:
        self.item, self.matrix, self.subtitle = item, matrix, subtitle
        self.rows, self.columns = ([label(token) for token in tokens] for tokens in (item.queries, item.keys))
        self.cell = cell = min(max_size / max(len(self.rows), len(self.columns)), max_cell)
        self.row_height = max(cell, min_row_height)  # cells are square unless rows would be too low
        self.angle = 45 if cell > 0.2 else 90
        slant = math.radians(self.angle)
        lengths = [text_width((text,), font_size(cell)) + 0.12 for text in self.columns]
        reach = [cell * (at + 0.5) + length * math.cos(slant) for at, length in enumerate(lengths)]
        self.left = text_width(self.rows, font_size(self.row_height)) + 0.12
        self.top = max(lengths) * math.sin(slant) + 0.06 + HEADING
        self.width = self.left + max(cell * len(self.columns) + 0.1, *reach)
        self.height = self.top + self.row_height * len(self.rows) + LEGEND


def font_size(inches: float) -> float:
    """Font size of labels for cells of this size."""
    return min(max(inches * 72 * 0.62, 5.0), 10.5)


def spaced_labels(labels: Sequence[str], inches: float) -> dict[int, str]:
    """Labels by index, with a stride, so that labels do not overlap."""
    return dict(list(enumerate(labels))[:: math.ceil(font_size(inches) * 1.1 / (inches * 72))])


def make_panel(item: AttentionMap, layer: int, head: int | None, max_size: float) -> MatrixPanel:
    heads = (
        f"head {head} of {item.heads}" if head else f"average over {item.heads} heads" if item.heads > 1 else "1 head"
    )
    subtitle = f"{item.description.removesuffix('.')} · layer {layer} of {item.layers}, {heads}"
    return MatrixPanel(item, item.view(layer, head), item.description if item.is_single else subtitle, max_size)


class LayerPanel(MatrixPanel):
    """A map with one row per layer, averaged over heads."""

    def __init__(self, item: AttentionMap, width: float) -> None:
        note = f"{item.description} Average over {item.heads} heads." if item.heads > 1 else item.description
        super().__init__(item, item.view(1, None), note, width - 1.6, max_cell=0.36, min_row_height=0.17)
        self.frame_width, self.is_short = width, self.cell >= 0.2 and self.width <= width

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        draw_panel(sheet, self, left, top, self.frame_width, self.top)


HeaderBlock = TokenStrip | ProbabilityBars | LayerPanel  # `is_short`: half the width is enough


@contextmanager
def titled_figure(path: Path, width: float, height: float, title: str) -> Iterator[tuple[Sheet, float]]:
    """A sheet with a title, and the vertical position below the title in inches."""
    text = wrap_text(title, width - 2 * MARGIN, 15, max_lines=3)
    begin = MARGIN + 0.3 * (text.count("\n") + 1) + 0.2
    with new_figure(path, width, begin + height + MARGIN) as sheet:
        sheet.text(MARGIN, MARGIN, text, size=15, weight="bold")
        yield sheet, begin


def _draw_selected(maps: tuple[AttentionMap, ...], path: Path, title: str, layer: int | None, head: int | None) -> Path:
    board, gap = 7.5 if len(maps) == 1 else 5.0, 0.5
    panels = [make_panel(item, item.layers if layer is None else layer, head, board) for item in maps]
    widths = [max(panel.width, MIN_PANEL_WIDTH) for panel in panels]
    whole = sum(widths) + gap * (len(panels) - 1) + 2 * MARGIN
    with titled_figure(path, whole, max(panel.height for panel in panels), title) as (sheet, top):
        left, lowest = MARGIN, max(panel.top for panel in panels)
        for panel, width in zip(panels, widths, strict=True):
            draw_panel(sheet, panel, left, top, width, lowest)
            left += width + gap
    return path


def _draw_overview(
    maps: tuple[AttentionMap, ...], path: Path, title: str, header_rows: Callable[[float], list[list[HeaderBlock]]]
) -> Path:
    main = make_panel(maps[0], maps[0].layers, None, max_size=8.4)
    shapes = [tile_height(item) * item.layers / item.heads for item in maps]
    heading, below = 0.95, 0.2  # inches above a mosaic (three title lines, head numbers) and below
    fitting = (main.height - len(maps) * (heading + below)) / sum(shapes)
    side = max(2.2, 0.17 * max(item.heads for item in maps), min(fitting, MAX_MOSAIC_WIDTH))
    names = [item.title if len(maps) > 1 else "All layers and heads" for item in maps]
    titles = [wrap_text(text, side + 0.2, 9, max_lines=3) for text in names]
    above = heading - 0.17 * (2 - max(text.count("\n") for text in titles))
    mosaics = above * len(maps) + side * sum(shapes) + below * (len(maps) - 1)
    main_width, gap = max(main.width, MIN_PANEL_WIDTH), 0.75
    width = main_width + gap + side
    rows = header_rows(width)
    height = sum(max(block.height for block in row) + 0.4 for row in rows) + max(main.height, mosaics + LEGEND)
    with titled_figure(path, width + 2 * MARGIN, height, title) as (sheet, down):
        for row in rows:
            for at, text in enumerate(row):
                text.draw(sheet, MARGIN + at * (width + COLUMN_GAP) / 2, down)
            down += max(text.height for text in row) + 0.4
        draw_panel(sheet, main, MARGIN, down, main_width, main.top)
        left = MARGIN + main_width + gap
        for item, name, shape in zip(maps, titles, shapes, strict=True):
            sheet.text(left - 0.18, down, name, size=9, weight="bold")
            draw_mosaic(sheet.axes(left, down + above, side, side * shape), item)
            down += above + side * shape + below
        note = wrap_text("Color: √weight, scaled per map.", side + 0.2, 7.5, 3)
        sheet.text(left - 0.18, down, note, size=7.5, color=MUTED)
    return path


def draw_panel(sheet: Sheet, panel: MatrixPanel, left: float, top: float, width: float, matrix_top: float) -> None:
    """Draw the panel. `matrix_top`: inches from heading to matrix, so that the matrices of adjacent panels are aligned."""
    item, most = panel.item, panel.item.color_max(panel.matrix)
    sheet.text(left, top, wrap_text(item.title, width, 11, max_lines=1), size=11, weight="bold")
    sheet.text(left, top + 0.25, wrap_text(panel.subtitle, width, 8.5, max_lines=1), size=8.5, color=MUTED)
    num_rows, num_columns = panel.matrix.shape
    width, height = panel.cell * num_columns, panel.row_height * num_rows
    axes = sheet.axes(left + panel.left, top + matrix_top, width, height)
    fractions = np.sqrt(panel.matrix / most) if item.sqrt_scale else panel.matrix / most
    rows, columns = spaced_labels(panel.rows, panel.row_height), spaced_labels(panel.columns, panel.cell)
    texts = {}
    if panel.cell >= 0.34:
        values = np.ndenumerate(panel.matrix)
        texts = {at: f"{weight:.2f}".removeprefix("0") for at, weight in values if weight >= 0.005}
    font_sizes = font_size(panel.row_height), font_size(panel.cell)
    draw_matrix(axes, fractions, rows, columns, font_sizes, texts, font_sizes[1] * 0.74, panel.angle)
    if panel.cell >= 0.13:
        axes.set_xticks(np.arange(num_columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(num_rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=LINE, linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    for boundary in item.boundaries:
        axes.axhline(boundary - 0.5, color=WARM, linewidth=1)
        axes.axvline(boundary - 0.5, color=WARM, linewidth=1)
    half = f"{most / 4:.2g}" if item.sqrt_scale else f"{most / 2:.2g}"
    unit = "fraction of the gradient norm" if item.is_gradient else "attention weight"
    labels = ("0", half, f"{unit} (max {most:.2g})" + (", √ scale" if item.sqrt_scale else ""))
    below = top + matrix_top + height + 0.22
    sheet.colorbar(left + panel.left, below, min(width, 2.4), colormap(LIGHT), most, labels)


def tile_height(item: AttentionMap) -> float:
    """Height of a tile of width 1: square cells, limited to aspect ratios between 0.5 and 2."""
    return min(max(len(item.queries) / len(item.keys), 0.5), 2.0)


def draw_mosaic(axes: Axes, item: AttentionMap) -> None:
    """Draw all layers (rows) and heads (columns) into one axes, because hundreds of axes would take minutes."""
    from matplotlib.patches import Rectangle

    tall, gap = tile_height(item), 0.06
    colors, most = colormap(LIGHT), item.color_max(item.weights)
    for layer in range(item.layers):
        for head in range(item.heads):
            low = -(layer + 1) * tall + gap / 2
            extent = (head + gap / 2, head + 1 - gap / 2, low, low + tall - gap)
            corner, width, height = extent[::2], 1 - gap, tall - gap
            shade = np.sqrt(np.clip(item.weights[layer, head] / most, 0, 1))
            axes.imshow(shade, cmap=colors, vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="antialiased")
            axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=LINE, linewidth=0.6))
    axes.set_xlim(0, item.heads)
    axes.set_ylim(-item.layers * tall, 0)
    size = 7.0 if max(item.heads, item.layers) <= 16 else 5.0
    axes.xaxis.tick_top()
    heads, layers = np.arange(item.heads), np.arange(item.layers)
    axes.set_xticks(heads + 0.5, [str(number + 1) for number in heads], size=size)
    axes.set_yticks(-(layers + 0.5) * tall, [str(number + 1) for number in layers], size=size)
    axes.tick_params(length=0, pad=2)
    axes.set_xlabel("columns: heads, rows: layers", size=7.5, loc="left", labelpad=3)
    axes.xaxis.set_label_position("top")
    for side in axes.spines.values():
        side.set_visible(False)
