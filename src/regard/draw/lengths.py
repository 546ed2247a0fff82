"""Distribution of sequence lengths: histograms, source against target length of pairs, and cumulative tokens of documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from regard.data.check.findings import Lengths, display_name
from regard.draw.colormap import ACCENT, INK, LIGHT, LINE, MUTED, WARM
from regard.draw.figure import Sheet, check_suffix, figure_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH: Final = 12.0
MARGIN: Final = 0.45
PLOT_HEIGHT: Final = 4.6
COLORS: Final = (ACCENT, WARM)
DASH_PATTERN: Final = (0, (4, 3))
MAX_OUTLIERS: Final = 2000
"""maximum number of outliers drawn; more would cover the density"""


def draw_lengths(lengths: Lengths, path: Path) -> Path:
    """Draw sequence lengths in estimated tokens, the unit of `data.max_length`, into a .png or .svg file."""
    ending = check_suffix(path, (".png", ".svg"))
    pairs, over = len(lengths.names) == 2, int((lengths.tokens.max(axis=1) > lengths.max_length).sum())
    said = f"{len(lengths.tokens):,} {lengths.unit}"
    if lengths.max_length:
        said += f", {over:,} longer than data.max_length={lengths.max_length:,}"
    of = " and ".join(map(display_name, lengths.names)) if pairs else lengths.unit
    if pairs:
        said += f", {len(lengths.outliers):,} outlier{'' if len(lengths.outliers) == 1 else 's'}"
    with figure_style():
        sheet = Sheet(WIDTH, MARGIN + 0.95 + PLOT_HEIGHT + 0.75)
        sheet.text(MARGIN, MARGIN - 0.1, f"Sequence lengths: {of}", size=15, weight="bold")
        sheet.text(MARGIN, MARGIN + 0.25, f"{said}. Tokens are estimated from bytes and words.", size=9, color=MUTED)
        left, top = MARGIN + 0.5, MARGIN + 0.95
        _draw_histograms(sheet.axes(left, top, 5.2, PLOT_HEIGHT), lengths)
        right = left + 5.2 + 0.85
        (_draw_pair_density if pairs else _draw_cumulative)(
            sheet.axes(right, top, WIDTH - right - MARGIN, PLOT_HEIGHT), lengths
        )
        return sheet.save(path, ending)


def _bin_edges(lengths: Lengths, many: int) -> tuple[NDArray[np.floating[Any]], bool]:
    """Bin edges between integers, and True for logarithmic bins, used if a few very long texts would compress all other lengths
    into one bin."""
    least, most = int(lengths.tokens.min()), int(lengths.tokens.max())
    if least == most:  # for example one document: a visible bar in the middle
        return np.array([0.85 * least, 1.15 * least + 1]), False
    if most > 10 * np.quantile(lengths.tokens, 0.99):
        return np.unique(np.geomspace(1, most + 1, many + 1).round()) - 0.5, True
    width = -(-(most + 1) // many)
    return np.arange(0.0, most + 1 + width, width) - 0.5, False


def _axis_start(edges: NDArray[np.floating[Any]], lengths: Lengths) -> float:
    return max(float(edges[0]), 0.6 * float(lengths.tokens.min()) - 0.5)


def _draw_histograms(axes: Axes, lengths: Lengths) -> None:
    _style_axes(axes, "Histogram")
    edges, grows = _bin_edges(lengths, 48)
    limit, most = lengths.max_length, edges[-1]
    near = most > limit / 2 and limit > 0  # a distant limit would compress the histogram
    highest = 1
    for side, (name, colour) in enumerate(zip(lengths.names, COLORS, strict=False)):
        values = lengths.tokens[:, side]
        heights = np.histogram(values, edges)[0]
        highest = max(highest, int(heights.max()))
        axes.stairs(heights, edges, color=colour, fill=True, alpha=0.16)
        axes.stairs(
            heights,
            edges,
            color=colour,
            linewidth=1.6,
            label=f"{display_name(name)}, median {int(np.median(values)):,}",
        )
    axes.set_yscale("log")
    axes.set_ylim(0.7, 3.0 * highest)  # space for the legend above the highest bars
    if grows:
        axes.set_xscale("log")
    axes.set_xlim(_axis_start(edges, lengths), 1.02 * (max(most, limit) if near else most))
    _format_ticks(axes)
    axes.set_xlabel("tokens (estimated)", size=8.5, labelpad=4)
    axes.set_ylabel(f"{lengths.unit} (log scale)", size=8.5)
    if near:
        axes.axvline(limit, color=INK, linewidth=1.2, linestyle=DASH_PATTERN, label=f"data.max_length={limit:,}")
    axes.legend(loc="upper right", fontsize=8.5, labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)


def _draw_pair_density(axes: Axes, lengths: Lengths) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    _style_axes(axes, "Source vs. target")
    source, target = lengths.tokens[:, 0], lengths.tokens[:, 1]
    edges, grows = _bin_edges(lengths, 80)
    density = np.histogram2d(source, target, bins=[edges, edges])[0].T
    shades = LinearSegmentedColormap.from_list("regard", LIGHT[1:])
    axes.pcolormesh(
        edges, edges, np.ma.masked_equal(density, 0), cmap=shades, norm=LogNorm(1, max(2.0, density.max())),
        rasterized=True,
    )  # fmt: skip
    slope = float(np.median(target / np.maximum(source, 1)))
    line = np.array([max(edges[0], 0.5), edges[-1]])
    shown = lengths.outliers[:: max(1, -(-len(lengths.outliers) // MAX_OUTLIERS))]
    if len(shown):
        axes.plot(
            source[shown], target[shown], "o", markersize=6.5, markerfacecolor="none", markeredgecolor=WARM,
            markeredgewidth=1.3, label="outliers", zorder=4,
        )  # fmt: skip
    axes.plot(line, slope * line, color=MUTED, linewidth=1, linestyle=DASH_PATTERN, label=f"median ratio {slope:.2g}")
    if edges[-1] > lengths.max_length:
        axes.axvline(lengths.max_length, color=INK, linewidth=1.1, linestyle=DASH_PATTERN, label="data.max_length")
        axes.axhline(lengths.max_length, color=INK, linewidth=1.1, linestyle=DASH_PATTERN)
    if grows:
        axes.set_xscale("log")
        axes.set_yscale("log")
    for limits in (axes.set_xlim, axes.set_ylim):
        limits(_axis_start(edges, lengths), (1.1 if grows else 1.02) * edges[-1])
    _format_ticks(axes)
    axes.set_xlabel(f"{display_name(lengths.names[0])} tokens (estimated)", size=8.5, labelpad=4)
    axes.set_ylabel(f"{display_name(lengths.names[1])} tokens (estimated)", size=8.5)
    axes.legend(loc="lower right", fontsize=8.5, labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)


def _draw_cumulative(axes: Axes, lengths: Lengths) -> None:
    """Draw the fraction of all tokens in samples up to each length: a few long samples may contain most tokens."""
    _style_axes(axes, "Cumulative tokens")
    values = np.sort(lengths.tokens[:, 0])
    share = 100 * np.cumsum(values) / max(int(values.sum()), 1)
    half = int(values[np.searchsorted(share, 50.0)])
    edges, grows = _bin_edges(lengths, 48)  # same scale as the histogram
    shown = np.unique(np.linspace(0, len(values) - 1, 1000).astype(int))
    axes.step([values[0], *values[shown]], [0.0, *share[shown]], where="post", color=ACCENT, linewidth=1.6)
    axes.axvline(half, color=MUTED, linewidth=1, linestyle=DASH_PATTERN, label=f"half of all tokens: ≤ {half:,}")
    if grows:
        axes.set_xscale("log")
    axes.set_xlim(_axis_start(edges, lengths), 1.02 * edges[-1])
    axes.set_ylim(0, 102)
    _format_ticks(axes)
    axes.set_xlabel("tokens (estimated)", size=8.5, labelpad=4)
    axes.set_ylabel("% of all tokens", size=8.5)
    axes.legend(loc="lower right", fontsize=8.5, labelcolor=INK, facecolor="white", edgecolor="none", framealpha=0.9)


def _style_axes(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", size=10.5, weight="bold", pad=8)
    axes.grid(color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=8)


def _format_ticks(axes: Axes) -> None:
    """Format ticks as integers; call after setting the scales."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
