"""Attention maps as a figure: one large heatmap, small heatmaps of every layer and head, and tokens as colored boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.draw import token_data
from regard.draw.colors import ACCENT, COOL_LIGHT, INK, LIGHT, LINE, MUTED, WARM, WARM_LIGHT, colormap
from regard.draw.figure import MARGIN, Sheet, draw_matrix, new_figure, text_width, wrap_text
from regard.draw.text import display_width, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADING: Final = 0.62  # inches above a panel for title and subtitle
LEGEND: Final = 0.75  # inches below a panel for the color bar
COLUMN_GAP: Final = 0.6  # inches between two header blocks in one row
MAX_MOSAIC_WIDTH: Final = 5.0  # inches, for all layers and heads of a map
MIN_PANEL_WIDTH: Final = 5.6  # inches, so that the title fits on one line
FONT_SIZE: Final = 12.0
CHAR_WIDTH: Final = 0.602 * FONT_SIZE / 72  # inches per character of the monospace font
LINE_HEIGHT: Final = 0.3
STEPS_LINE_HEIGHT: Final = 0.44  # inches per line of tokens and step numbers
BOX_HEIGHT: Final = 0.245  # inches, height of the colored box of a token
GAP: Final = 0.018  # inches between two boxes
STRIP_LEGEND: Final = 0.55
PROFILE_HEIGHT: Final = 0.5  # inches of the bars for a long text
TEXT_GAP: Final = 0.12  # inches between two texts of one row
MAX_LINES: Final = 32
MAX_STEPS_LINES: Final = 24
MAX_TOKEN_WIDTH: Final = 40
MAX_ANSWERS: Final = 6  # Maximum number of candidates, most likely first.
MAX_STRIPS: Final = 6  # Maximum number of texts per figure.
MAX_TOKENS: Final = 480  # longer texts show the passages with the largest attribution

SPACE_SYMBOL, NEWLINE_SYMBOLS = "␣", ("⏎", "↵")


# -- lines of tokens


def inline_text(piece: str) -> str:
    """Displayed text of a token: spaces are visible symbols only if the token has no other characters."""
    text = label(piece, MAX_TOKEN_WIDTH)
    return text if not text.strip(SPACE_SYMBOL) else text.replace(SPACE_SYMBOL, " ")


def wrap_pieces(pieces: Sequence[str], width: float) -> list[tuple[int, float]]:
    """Line number and left edge in inches of each token. Lines break at newlines and between words; within a word only if the
    word is wider than a line. A leading space starts a word, a token of only spaces ends a word."""
    words: list[list[str]] = [[]]
    for piece in pieces:
        is_space = not piece.strip(SPACE_SYMBOL)
        if words[-1] and piece.startswith(SPACE_SYMBOL) and not is_space:
            words.append([])
        words[-1].append(piece)
        if is_space or piece.endswith(NEWLINE_SYMBOLS):
            words.append([])
    placed: list[tuple[int, float]] = []
    line, left = 0, 0.0
    for word in filter(None, words):
        sizes = [display_width(inline_text(piece)) * CHAR_WIDTH + GAP for piece in word]
        if left and left + sum(sizes) > width:
            line, left = line + 1, 0.0
        for size in sizes:
            if left and left + size > width:
                line, left = line + 1, 0.0
            placed.append((line, left))
            left += size
        if word[-1].endswith(NEWLINE_SYMBOLS):
            line, left = line + 1, 0.0
    return placed


def _indent(text: str) -> float:
    """Width of the leading spaces in inches."""
    return (display_width(text) - display_width(text.lstrip())) * CHAR_WIDTH


class TokenBox(NamedTuple):
    """A token in a box as wide as the text, including spaces. Positions are in inches."""

    text: str
    left: float
    middle: float
    fraction: float | None = None  # position in the color scale; None: hatched, for special tokens
    below: str = ""  # small text below the box
    is_output: bool = False  # True to underline the box
    starts_text: bool = False  # True for a vertical bar before the box


class ColorRange(NamedTuple):
    """Color scale from 0 to `max_value`, with labels for 0, half and all."""

    stops: tuple[str, ...]
    max_value: float
    labels: tuple[str, str, str]


@dataclass
class TokenStrip:
    """Tokens as colored boxes in lines, with title, note and color scale, `width` inches wide."""

    title: str
    note: str
    width: float
    boxes: Sequence[TokenBox]
    text_height: float
    scale: ColorRange
    is_short: bool
    omissions: Sequence[TokenBox] = ()  # notes between tokens, in place of tokens that are not shown
    profile: token_data.TokenAttribution | None = None  # attribution of a long text, drawn as bars above the tokens

    def __post_init__(self) -> None:
        profile_height = 0.0 if self.profile is None else PROFILE_HEIGHT + 0.42
        self.heading = HEADING + 0.16 * self.note.count("\n") + 0.2 * self.title.count("\n") + profile_height
        self.height = self.heading + self.text_height + STRIP_LEGEND

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        import matplotlib
        from matplotlib.patches import Rectangle

        sheet.text(left, top, self.title, size=11, weight="bold")
        sheet.text(left, top + 0.25 + 0.2 * self.title.count("\n"), self.note, size=8.5, color=MUTED)
        down = top + self.heading
        if self.profile is not None:
            axes = sheet.axes(left, down - PROFILE_HEIGHT - 0.42, self.width, PROFILE_HEIGHT)
            _draw_profile(axes, self.profile, self.scale.stops)
        axes = sheet.canvas(left, down, self.width, self.text_height)
        for note in self.omissions:
            middle = note.left + display_width(note.text) * CHAR_WIDTH / 2
            axes.text(middle, note.middle, note.text, ha="center", va="center", color=MUTED, size=8.5)
        colors, family = colormap(self.scale.stops), ["DejaVu Sans Mono", *matplotlib.rcParams["font.family"]]
        for box in self.boxes:
            width, half = display_width(box.text) * CHAR_WIDTH, BOX_HEIGHT / 2
            face: dict[str, Any] = {"facecolor": "white", "edgecolor": "#d5dae2", "hatch": "/////"}
            if box.fraction is not None:
                face = {"facecolor": colors(box.fraction), "edgecolor": LINE}
            axes.add_patch(Rectangle((box.left, box.middle - half), width, BOX_HEIGHT, linewidth=0.4, **face))
            if box.starts_text:
                ends = [box.middle - 1.2 * half, box.middle + 1.2 * half]
                axes.plot([box.left - GAP / 2] * 2, ends, color=ACCENT, linewidth=2)
            if box.is_output:
                low = box.middle + half + 0.012
                axes.plot([box.left + GAP, box.left + width - GAP], [low, low], color=ACCENT, linewidth=1.6)
            text = box.text.strip()  # browsers drop leading spaces of .svg text
            is_quiet = box.fraction is None or not text.strip(SPACE_SYMBOL + "".join(NEWLINE_SYMBOLS))
            style: dict[str, Any] = {"family": family, "va": "center_baseline"}
            alpha = 0.55 if is_quiet else 1.0
            axes.text(box.left + _indent(box.text), box.middle, text, color=INK, alpha=alpha, size=FONT_SIZE, **style)
            if box.below:
                low = box.middle + half + 0.08
                axes.text(box.left + width / 2, low, box.below, color=MUTED, size=7, ha="center", **style)
        below = down + self.text_height + 0.16
        sheet.colorbar(left, below, min(2.4, self.width / 3), colors, self.scale.max_value, self.scale.labels)


# -- surprisal and computation steps


def surprisal_strip(likelihood: token_data.TextLikelihood, width: float) -> TokenStrip:
    """Tokens colored by surprisal. For a long text, only the last `MAX_LINES` lines."""
    places = wrap_pieces([token.piece for token in likelihood.tokens], width)
    first_line = max(places[-1][0] + 1 - MAX_LINES, 0)
    most = likelihood.uniform_surprisal
    boxes = []
    for index, (token, (line, left)) in enumerate(zip(likelihood.tokens, places, strict=True)):
        if line >= first_line:
            middle, fraction = (line - first_line + 0.5) * LINE_HEIGHT, min(token.surprisal / most, 1.0)
            starts_text = index == likelihood.prompt_length > 0
            boxes.append(TokenBox(inline_text(token.piece), left, middle, fraction, starts_text=starts_text))
    missing = len(places) - len(boxes)
    facts = [f"{name} {value}" for name, value in likelihood.facts().items()]
    subtitle = " · ".join([*[f"first {missing:,} tokens not shown"] * bool(missing), *facts])
    names = ("0", f"{most / 2:.1f}", f"uniform over {likelihood.vocab_size:,} tokens: {most:.1f} bits")
    return TokenStrip(
        "Token surprisal (bits)",
        f"−log₂ p(token | previous tokens). Higher means less expected.\n{wrap_text(subtitle, width, 8.5, 1)}",
        width,
        boxes,
        (places[-1][0] - first_line + 1) * LINE_HEIGHT,
        ColorRange(WARM_LIGHT, most, names),
        is_short=False,  # always uses the full width
    )


def act_steps_strip(act_steps: token_data.ActSteps, width: float) -> TokenStrip:
    """Tokens colored by the number of computation steps (ACT), with the number below each token."""
    # a space on both sides, so that the step number fits below a short token
    texts = [f" {label(piece, 40).replace(SPACE_SYMBOL, ' ').strip() or SPACE_SYMBOL} " for piece in act_steps.pieces]
    places = [place for place in wrap_pieces(texts, width) if place[0] < MAX_STEPS_LINES]
    most, missing = act_steps.max_steps, len(texts) - len(places)
    note = act_steps.note() + (f" The last {missing:,} tokens are not shown." if missing else "")
    middle = 0.01 + BOX_HEIGHT / 2
    boxes = [
        TokenBox(text, left, line * STEPS_LINE_HEIGHT + middle, steps / most, below=str(steps))
        for text, steps, (line, left) in zip(texts, act_steps.steps, places, strict=False)
    ]
    return TokenStrip(
        wrap_text(act_steps.title, width, 11, 1),
        wrap_text(note, width, 8.5, 1),
        width,
        boxes,
        (places[-1][0] + 1) * STEPS_LINE_HEIGHT,
        ColorRange(WARM_LIGHT, most, ("0", f"{most / 2:g}", f"{most} steps (maximum)")),
        is_short=places[-1][0] < 3,
    )


# -- predictions


def attribution_strip(attribution: token_data.TokenAttribution, width: float) -> TokenStrip:
    """Tokens colored by attribution. For a long text: a profile, and the passages with the largest attribution."""
    texts: list[list[tuple[str, int | None]]] = [[]]  # pieces of each text with token index, None for notes
    for kind, value in attribution.layout(MAX_TOKENS):
        if kind == "second text":
            texts.append([])
        elif kind == "token":
            piece = attribution.pieces[value]
            if attribution.special[value]:  # special tokens have no color, so the text contains the attribution
                piece = f"{piece}{SPACE_SYMBOL}{token_data.percent(float(attribution.fractions[value]))}"
            texts[-1].append((piece, value))
        else:
            texts[-1].append((f"{SPACE_SYMBOL}… {value:,} {kind} …", None))
    boxes: list[TokenBox] = []
    omissions: list[TokenBox] = []
    most, outputs = attribution.max_fraction, attribution.output_positions
    height = -TEXT_GAP
    for pieces in texts:
        height += TEXT_GAP
        places = wrap_pieces([piece for piece, _ in pieces], width)
        indents: dict[int, float] = {}  # leading space of each line, removed from all boxes of the line
        for (piece, index), (line, left) in zip(pieces, places, strict=True):
            text = inline_text(piece)
            left += _indent(text) - indents.setdefault(line, _indent(text))
            middle = height + line * LINE_HEIGHT + LINE_HEIGHT / 2
            if index is None:
                omissions.append(TokenBox(text.lstrip(), left, middle))
                continue
            fraction = None if attribution.special[index] else float(attribution.word_fractions[index]) / most
            is_output = index in outputs and len(outputs) < 9
            boxes.append(TokenBox(text.lstrip(), left, middle, fraction, is_output=is_output))
        height += (places[-1][0] + 1) * LINE_HEIGHT
    is_truncated = len(boxes) < len(attribution.pieces)
    unit = f"{token_data.percent(most)} {attribution.unit} (per word)"
    stops = WARM_LIGHT if attribution.method == token_data.GRADIENT else COOL_LIGHT
    return TokenStrip(
        wrap_text(attribution.heading, width, 11, 2),
        "\n".join(wrap_text(part, width, 8.5, 3) for part in (attribution.description, attribution.note())),
        width,
        boxes,
        height,
        ColorRange(stops, most, ("0", token_data.percent(most / 2).removesuffix(" %"), unit)),
        is_short=not is_truncated and height <= 3 * LINE_HEIGHT + TEXT_GAP,
        omissions=omissions,
        profile=attribution if is_truncated else None,
    )


def _draw_profile(axes: Axes, attribution: token_data.TokenAttribution, stops: tuple[str, ...]) -> None:
    """Draw the sum of each segment of the text; segments shown below are underlined."""
    length, values = len(attribution.pieces), attribution.profile(token_data.PROFILE_BINS)
    size = -(-length // token_data.PROFILE_BINS)
    starts = np.arange(len(values)) * size
    widths = np.minimum(starts + size, length) - starts
    axes.bar(starts, values, widths * 0.86, align="edge", color=colormap(stops)(1.0))
    most = float(values.max()) or 1.0
    for ends in attribution.top_passages(MAX_TOKENS):
        axes.plot(ends, [-0.07 * most] * 2, color=WARM, linewidth=2, clip_on=False, solid_capstyle="butt")
    axes.set_xlim(0, length)
    axes.set_ylim(0, most * 1.05)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks([])
    axes.set_xticks([0, length // 2, length], ["token 1", f"{length // 2:,}", f"{length:,}"], size=7.5)
    first, _, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    axes.tick_params(length=0, pad=7)
    note = f"maximum: {token_data.percent(most)} in {size:,} tokens; underlined: shown below"
    axes.text(length, most * 1.05, note, size=7.5, color=MUTED, ha="right", va="bottom")


class ProbabilityBars:
    """Candidate predictions with probabilities, most likely first."""

    is_short = True

    def __init__(self, decision: token_data.DecisionAttribution, width: float) -> None:
        self.decision, self.width = decision, width
        self.rows = decision.probabilities[:MAX_ANSWERS]
        self.height = 0.34 + 0.25 * len(self.rows) + 0.12 * (len(decision.probabilities) > MAX_ANSWERS)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, self.decision.probabilities_title, size=11, weight="bold")
        names = [label(name, 48 if self.width > 7 else 24) for name, _ in self.rows]
        label_width = min(max(map(display_width, names)) * 0.0846 + 0.15, 4.4)
        width = min(self.width - label_width - 0.8, 4.0)
        axes = sheet.canvas(left + label_width, top + 0.3, width, 0.25 * len(self.rows))
        for row, (name, (value, chance)) in enumerate(zip(names, self.rows, strict=True)):
            is_prediction, middle = value == self.decision.prediction, 0.25 * (row + 0.5)
            axes.barh(middle, width, height=0.14, color="#f1f3f7")
            axes.barh(middle, chance * width, height=0.14, color=ACCENT if is_prediction else "#a9b4c8")
            style: dict[str, Any] = {"size": 9.5, "va": "center", "weight": "bold" if is_prediction else "normal"}
            axes.text(-0.1, middle + 0.005, name, ha="right", color=INK, **style)
            axes.text(width + 0.08, middle + 0.005, f"{100 * chance:.1f} %", ha="left", color=INK, **style)
        if (more := len(self.decision.probabilities) - MAX_ANSWERS) > 0:
            rest = 100 * sum(chance for _, chance in self.decision.probabilities[MAX_ANSWERS:])
            down = top + 0.32 + 0.25 * MAX_ANSWERS
            sheet.text(left + label_width, down, f"{more} others: {rest:.1f} %", size=8, color=MUTED)


# -- heatmaps


def draw_heatmaps(
    maps: Sequence[token_data.AttentionMap],
    path: Path,
    title: str,
    layer: int | None = None,
    head: int | None = None,
    likelihood: token_data.TextLikelihood | None = None,
    decision: token_data.DecisionAttribution | None = None,
    act_steps: Sequence[token_data.ActSteps] = (),
) -> Path:
    """Draw the maps into a .png or .svg file.

    Without `layer` and `head`: a large heatmap of the last layer, averaged over heads, of the cross-attention or else the first
    map; to the right, small heatmaps of all layers and heads of every map; above, tokens colored by surprisal (`likelihood`),
    attribution (`decision`) and computation steps (`act_steps`), and maps with one row per layer.
    With `layer` or `head`, counted from 1: only this layer (default: last) and head (default: average) of each map.
    """
    ordered = token_data.sort_cross_first(tuple(item for item in maps if item.row_kind == "tokens"))
    layered = [item for item in maps if item.row_kind == "layers"]
    # for a single layer with one head and no header blocks, one large heatmap shows everything
    bare = all(item.is_single for item in maps) and likelihood is None and decision is None and not act_steps
    if layer is not None or head is not None or bare:
        return _draw_selected(ordered, path, title, layer, head)

    def blocks_of(width: float) -> list[HeaderBlock]:
        blocks: list[HeaderBlock] = [] if likelihood is None else [surprisal_strip(likelihood, width)]
        if decision is not None:
            # all gradient attributions and the first rollout; without gradients, all rollouts
            gradients = [item for item in decision.attributions if item.method == token_data.GRADIENT]
            rollouts = [item for item in decision.attributions if item.method != token_data.GRADIENT]
            shown = [*gradients[:MAX_STRIPS], *rollouts[:1]] if gradients else rollouts[:MAX_STRIPS]
            blocks += [ProbabilityBars(decision, width)] if decision.probabilities else []
            blocks += [attribution_strip(item, width) for item in shown]
        blocks += [act_steps_strip(steps, width) for steps in act_steps]
        return [*blocks, *(layer_panel(item, width) for item in layered)]

    return _draw_overview(ordered, path, title, blocks_of)


class MatrixPanel:
    """A matrix of an attention map, `width` inches wide; None: as wide as needed. Sizes depend on the tokens."""

    def __init__(
        self,
        item: token_data.AttentionMap,
        matrix: NDArray[np.float64],
        subtitle: str,
        max_size: float,
        width: float | None = None,
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
        needed = self.left + max(cell * len(self.columns) + 0.1, *reach)
        self.width = max(needed, MIN_PANEL_WIDTH) if width is None else width
        self.is_short = cell >= 0.2 and needed <= self.width
        self.height = self.top + self.row_height * len(self.rows) + LEGEND

    def draw(self, sheet: Sheet, left: float, top: float, matrix_top: float | None = None) -> None:
        """Draw the panel. `matrix_top`: inches from heading to matrix, so that the matrices of adjacent panels are aligned."""
        item, most = self.item, self.item.color_max(self.matrix)
        sheet.text(left, top, wrap_text(item.title, self.width, 11, max_lines=1), size=11, weight="bold")
        sheet.text(left, top + 0.25, wrap_text(self.subtitle, self.width, 8.5, max_lines=1), size=8.5, color=MUTED)
        num_rows, num_columns = self.matrix.shape
        down, width, height = top + (matrix_top or self.top), self.cell * num_columns, self.row_height * num_rows
        axes = sheet.axes(left + self.left, down, width, height)
        fractions = np.sqrt(self.matrix / most) if item.sqrt_scale else self.matrix / most
        rows, columns = spaced_labels(self.rows, self.row_height), spaced_labels(self.columns, self.cell)
        texts = {}
        if self.cell >= 0.34:
            values = np.ndenumerate(self.matrix)
            texts = {at: f"{weight:.2f}".removeprefix("0") for at, weight in values if weight >= 0.005}
        font_sizes = font_size(self.row_height), font_size(self.cell)
        draw_matrix(axes, fractions, rows, columns, font_sizes, texts, font_sizes[1] * 0.74, self.angle)
        if self.cell >= 0.13:
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
        sheet.colorbar(left + self.left, down + height + 0.22, min(width, 2.4), colormap(LIGHT), most, labels)


def font_size(inches: float) -> float:
    """Font size of labels for cells of this size."""
    return min(max(inches * 72 * 0.62, 5.0), 10.5)


def spaced_labels(labels: Sequence[str], inches: float) -> dict[int, str]:
    """Labels by index, with a stride, so that labels do not overlap."""
    return dict(list(enumerate(labels))[:: math.ceil(font_size(inches) * 1.1 / (inches * 72))])


def make_panel(item: token_data.AttentionMap, layer: int, head: int | None, max_size: float) -> MatrixPanel:
    heads = (
        f"head {head} of {item.heads}" if head else f"average over {item.heads} heads" if item.heads > 1 else "1 head"
    )
    subtitle = f"{item.description.removesuffix('.')} · layer {layer} of {item.layers}, {heads}"
    return MatrixPanel(item, item.view(layer, head), item.description if item.is_single else subtitle, max_size)


def layer_panel(item: token_data.AttentionMap, width: float) -> MatrixPanel:
    """A map with one row per layer, averaged over heads."""
    note = f"{item.description} Average over {item.heads} heads." if item.heads > 1 else item.description
    return MatrixPanel(item, item.view(1, None), note, width - 1.6, width, max_cell=0.36, min_row_height=0.17)


HeaderBlock = TokenStrip | ProbabilityBars | MatrixPanel  # `is_short`: half the width is enough


@contextmanager
def titled_figure(path: Path, width: float, height: float, title: str) -> Iterator[tuple[Sheet, float]]:
    """A sheet with a title, and the vertical position below the title in inches."""
    text = wrap_text(title, width - 2 * MARGIN, 15, max_lines=3)
    begin = MARGIN + 0.3 * (text.count("\n") + 1) + 0.2
    with new_figure(path, width, begin + height + MARGIN) as sheet:
        sheet.text(MARGIN, MARGIN, text, size=15, weight="bold")
        yield sheet, begin


def _draw_selected(
    maps: tuple[token_data.AttentionMap, ...], path: Path, title: str, layer: int | None, head: int | None
) -> Path:
    board, gap = 7.5 if len(maps) == 1 else 5.0, 0.5
    panels = [make_panel(item, item.layers if layer is None else layer, head, board) for item in maps]
    whole = sum(panel.width + gap for panel in panels) - gap + 2 * MARGIN
    with titled_figure(path, whole, max(panel.height for panel in panels), title) as (sheet, top):
        left, lowest = MARGIN, max(panel.top for panel in panels)
        for panel in panels:
            panel.draw(sheet, left, top, lowest)
            left += panel.width + gap
    return path


def _draw_overview(
    maps: tuple[token_data.AttentionMap, ...], path: Path, title: str, blocks_of: Callable[[float], list[HeaderBlock]]
) -> Path:
    """Draw the header blocks of a width, the large heatmap, and the mosaics of all maps."""
    main = make_panel(maps[0], maps[0].layers, None, max_size=8.4)
    shapes = [tile_height(item) * item.layers / item.heads for item in maps]
    heading, below = 0.95, 0.2  # inches above a mosaic (three title lines, head numbers) and below
    fitting = (main.height - len(maps) * (heading + below)) / sum(shapes)
    side = max(2.2, 0.17 * max(item.heads for item in maps), min(fitting, MAX_MOSAIC_WIDTH))
    names = [item.title if len(maps) > 1 else "All layers and heads" for item in maps]
    titles = [wrap_text(text, side + 0.2, 9, max_lines=3) for text in names]
    above = heading - 0.17 * (2 - max(text.count("\n") for text in titles))
    mosaics = above * len(maps) + side * sum(shapes) + below * (len(maps) - 1)
    gap = 0.75
    width = main.width + gap + side
    rows, halves = [[block] for block in blocks_of(width)], blocks_of((width - COLUMN_GAP) / 2)
    if len(halves) > 1 and all(block.is_short for block in halves):
        rows = [halves[at : at + 2] for at in range(0, len(halves), 2)]
    height = sum(max(block.height for block in row) + 0.4 for row in rows) + max(main.height, mosaics + LEGEND)
    with titled_figure(path, width + 2 * MARGIN, height, title) as (sheet, down):
        for row in rows:
            for at, block in enumerate(row):
                block.draw(sheet, MARGIN + at * (width + COLUMN_GAP) / 2, down)
            down += max(block.height for block in row) + 0.4
        main.draw(sheet, MARGIN, down)
        left = MARGIN + main.width + gap
        for item, name, shape in zip(maps, titles, shapes, strict=True):
            sheet.text(left - 0.18, down, name, size=9, weight="bold")
            draw_mosaic(sheet.axes(left, down + above, side, side * shape), item)
            down += above + side * shape + below
        note = wrap_text("Color: √weight, scaled per map.", side + 0.2, 7.5, 3)
        sheet.text(left - 0.18, down, note, size=7.5, color=MUTED)
    return path


def tile_height(item: token_data.AttentionMap) -> float:
    """Height of a tile of width 1: square cells, limited to aspect ratios between 0.5 and 2."""
    return min(max(len(item.queries) / len(item.keys), 0.5), 2.0)


def draw_mosaic(axes: Axes, item: token_data.AttentionMap) -> None:
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
    axes.spines[:].set_visible(False)
