"""Tokens of a text as colored boxes: surprisal, computation steps and attribution; candidate probabilities as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regard.draw.colors import ACCENT, COOL_LIGHT, INK, LINE, MUTED, WARM, WARM_LIGHT, colormap
from regard.draw.figure import Sheet, monospace_fonts, wrap_text
from regard.draw.text import display_width, label
from regard.draw.token_data import (
    GRADIENT,
    PROFILE_BINS,
    ActSteps,
    DecisionAttribution,
    TextLikelihood,
    TokenAttribution,
    TokenLikelihood,
    percent,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FONT_SIZE: Final = 12.0
CHAR_WIDTH: Final = 0.602 * FONT_SIZE / 72  # inches per character of the monospace font
LINE_HEIGHT: Final = 0.3
BOX_HEIGHT: Final = 0.245  # inches, height of the colored box of a token
GAP: Final = 0.018  # inches between two boxes
HEADING: Final = 0.62
LEGEND: Final = 0.55
MAX_LINES: Final = 32
MAX_TOKEN_WIDTH: Final = 40

SPACE_SYMBOL, NEWLINE_SYMBOLS = "␣", ("⏎", "↵")

DESCRIPTION: Final = "−log₂ p(token | previous tokens). Higher means less expected."


@dataclass(frozen=True)
class TokenBox:
    """Position of a token: line number, and left edge in inches."""

    token: TokenLikelihood
    index: int
    line: int
    left: float

    @property
    def text(self) -> str:
        return token_text(self.token)

    @property
    def width(self) -> float:
        return display_width(self.text) * CHAR_WIDTH


def token_text(guess: TokenLikelihood) -> str:
    return inline_text(guess.piece)


def inline_text(piece: str) -> str:
    """Displayed text of a token: spaces are visible symbols only if the token has no other characters."""
    text = label(piece, MAX_TOKEN_WIDTH)
    return text if not text.strip(SPACE_SYMBOL) else text.replace(SPACE_SYMBOL, " ")


def layout_tokens(likelihood: TextLikelihood, width: float) -> list[TokenBox]:
    found = wrap_pieces([guess.piece for guess in likelihood.tokens], width)
    return [TokenBox(likelihood.tokens[at], at, line, left) for at, (line, left) in enumerate(found)]


def wrap_pieces(pieces: Sequence[str], width: float) -> list[tuple[int, float]]:
    """Line number and left edge in inches of each token. Lines break at newlines and between words; within a word only if the
    word is wider than a line."""
    placed: list[tuple[int, float]] = []
    line, left = 0, 0.0
    for word in _word_groups(pieces):
        sizes = [display_width(inline_text(pieces[at])) * CHAR_WIDTH + GAP for at in word]
        if left and left + sum(sizes) > width:
            line, left = line + 1, 0.0
        for size in sizes:
            if left and left + size > width:
                line, left = line + 1, 0.0
            placed.append((line, left))
            left += size
        if pieces[word[-1]].endswith(NEWLINE_SYMBOLS):
            line, left = line + 1, 0.0
    return placed


def _word_groups(pieces: Sequence[str]) -> list[list[int]]:
    """Groups of tokens without line breaks inside. A leading space starts a group, a token of only spaces ends a group."""
    words: list[list[int]] = [[]]
    for at, piece in enumerate(pieces):
        alone = not piece.strip(SPACE_SYMBOL)
        if words[-1] and piece.startswith(SPACE_SYMBOL) and not alone:
            words.append([])
        words[-1].append(at)
        if alone or piece.endswith(NEWLINE_SYMBOLS):
            words.append([])
    return [word for word in words if word]


class SurprisalStrip:
    """Tokens colored by surprisal, with title and legend, `width` inches wide."""

    def __init__(self, likelihood: TextLikelihood, width: float) -> None:
        self.likelihood, self.width = likelihood, width
        placed = layout_tokens(likelihood, width)
        self.first_line = max(placed[-1].line + 1 - MAX_LINES, 0)
        self.boxes = [token for token in placed if token.line >= self.first_line]

    @property
    def text_height(self) -> float:
        return (self.boxes[-1].line - self.first_line + 1) * LINE_HEIGHT

    @property
    def height(self) -> float:
        return self.heading_height + self.text_height + LEGEND

    @property
    def heading_height(self) -> float:
        return HEADING + 0.16

    @property
    def is_short(self) -> bool:
        return False  # always uses the full width

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, "Token surprisal (bits)", size=11, weight="bold")
        note = "\n".join((DESCRIPTION, wrap_text(self._subtitle(), self.width, 8.5, 1)))
        sheet.text(left, top + 0.25, note, size=8.5, color=MUTED)
        axes = sheet.axes(left, top + self.heading_height, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.likelihood.uniform_surprisal
        names = ("0", f"{most / 2:.1f}", f"uniform over {self.likelihood.vocab_size:,} tokens: {most:.1f} bits")
        below = top + self.heading_height + self.text_height + 0.16
        sheet.colorbar(left, below, 2.4, colormap(WARM_LIGHT), most, names)

    def _subtitle(self) -> str:
        missing = self.boxes[0].index
        cut = (f"first {missing:,} tokens not shown",) if missing else ()
        return " · ".join([*cut, *(f"{name} {value}" for name, value in self.likelihood.facts().items())])

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, most, family = colormap(WARM_LIGHT), self.likelihood.uniform_surprisal, monospace_fonts()
        for token in self.boxes:
            share = min(token.token.surprisal / most, 1.0)
            middle = (token.line - self.first_line + 0.5) * LINE_HEIGHT
            corner = (token.left, middle - BOX_HEIGHT / 2)
            axes.add_patch(
                Rectangle(corner, token.width, BOX_HEIGHT, facecolor=colours(share), edgecolor=LINE, linewidth=0.4)
            )
            if token.index == self.likelihood.prompt_length > 0:
                edge = token.left - GAP / 2
                axes.plot(
                    [edge, edge], [middle - 0.6 * BOX_HEIGHT, middle + 0.6 * BOX_HEIGHT], color=ACCENT, linewidth=2
                )
            text = token.text.lstrip()  # browsers drop leading spaces of .svg text
            left = token.left + (display_width(token.text) - display_width(text)) * CHAR_WIDTH
            strength = 1.0 if text.strip(SPACE_SYMBOL + "".join(NEWLINE_SYMBOLS)) else 0.55
            ink: dict[str, Any] = {"color": INK, "alpha": strength, "size": FONT_SIZE, "family": family}
            axes.text(left, middle, text, ha="left", va="center_baseline", **ink)


STEPS_LINE_HEIGHT: Final = 0.44  # inches per line of tokens and step numbers
MAX_STEPS_LINES: Final = 24


class ActStepsStrip:
    """Colored tokens with title and legend, `width` inches wide."""

    def __init__(self, act_steps: ActSteps, width: float) -> None:
        self.act_steps, self.width = act_steps, width
        # a space on both sides, so that the step number fits below a short token
        self.texts = [
            f" {label(piece, 40).replace(SPACE_SYMBOL, ' ').strip() or SPACE_SYMBOL} " for piece in act_steps.pieces
        ]
        self.boxes = [place for place in wrap_pieces(self.texts, width) if place[0] < MAX_STEPS_LINES]

    @property
    def text_height(self) -> float:
        return (self.boxes[-1][0] + 1) * STEPS_LINE_HEIGHT

    @property
    def height(self) -> float:
        return HEADING + self.text_height + LEGEND

    @property
    def is_short(self) -> bool:
        return self.boxes[-1][0] < 3

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, wrap_text(self.act_steps.title, self.width, 11, 1), size=11, weight="bold")
        left_out = len(self.texts) - len(self.boxes)
        note = self.act_steps.note() + (f" The last {left_out:,} tokens are not shown." if left_out else "")
        sheet.text(left, top + 0.25, wrap_text(note, self.width, 8.5, 1), size=8.5, color=MUTED)
        axes = sheet.axes(left, top + HEADING, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.act_steps.max_steps
        names = ("0", f"{most / 2:g}", f"{most} steps (maximum)")
        sheet.colorbar(
            left, top + HEADING + self.text_height + 0.16, min(2.4, self.width / 3), colormap(WARM_LIGHT), most, names
        )

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, ink = colormap(WARM_LIGHT), {"family": monospace_fonts(), "ha": "center", "va": "center_baseline"}
        for (line, left), text, steps in zip(self.boxes, self.texts, self.act_steps.steps, strict=False):
            wide, top = display_width(text) * CHAR_WIDTH, line * STEPS_LINE_HEIGHT
            face: dict[str, Any] = {"facecolor": colours(steps / self.act_steps.max_steps), "edgecolor": LINE}
            axes.add_patch(Rectangle((left, top + 0.01), wide, BOX_HEIGHT, linewidth=0.4, **face))
            axes.text(left + wide / 2, top + 0.01 + BOX_HEIGHT / 2, text.strip(), color=INK, size=FONT_SIZE, **ink)  # type: ignore[arg-type]
            below = top + BOX_HEIGHT + 0.09
            axes.text(left + wide / 2, below, str(steps), color=MUTED, size=7, **ink)  # type: ignore[arg-type]


MAX_ANSWERS: Final = 6
"""Maximum number of candidates, most likely first."""
MAX_STRIPS: Final = 6
"""Maximum number of texts per figure."""
MAX_TOKENS: Final = 480
"""Maximum number of tokens per text; longer texts show the passages with the largest attribution."""
PROFILE_HEIGHT: Final = 0.5  # inches of the bars for a long text
TEXT_GAP: Final = 0.12  # inches between two texts of one row


class ProbabilityBars:
    """Candidate predictions with probabilities, most likely first."""

    is_short = True

    def __init__(self, decision: DecisionAttribution, width: float) -> None:
        self.decision, self.width = decision, width
        self.rows = decision.probabilities[:MAX_ANSWERS]

    @property
    def height(self) -> float:
        return 0.34 + 0.25 * len(self.rows) + 0.12 * (len(self.decision.probabilities) > MAX_ANSWERS)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, self.decision.probabilities_title, size=11, weight="bold")
        fits = 48 if self.width > 7 else 24
        widest = min(max(display_width(label(name, fits)) for name, _ in self.rows) * 0.0846 + 0.15, 4.4)
        long = min(self.width - widest - 0.8, 4.0)
        axes = sheet.axes(left + widest, top + 0.3, long, 0.25 * len(self.rows))
        axes.set_xlim(0, 1)
        axes.set_ylim(len(self.rows), 0)
        axes.axis("off")
        for at, (name, chance) in enumerate(self.rows):
            said = name == self.decision.prediction
            axes.barh(at + 0.5, 1, height=0.56, color="#f1f3f7")
            axes.barh(at + 0.5, chance, height=0.56, color=ACCENT if said else "#a9b4c8")
            style: dict[str, Any] = {"size": 9.5, "va": "center", "weight": "bold" if said else "normal"}
            axes.text(-0.1 / long, at + 0.52, label(name, fits), ha="right", color=INK, **style)
            axes.text(1 + 0.08 / long, at + 0.52, f"{100 * chance:.1f} %", ha="left", color=INK, **style)
        if (more := len(self.decision.probabilities) - MAX_ANSWERS) > 0:
            rest = 100 * sum(chance for _, chance in self.decision.probabilities[MAX_ANSWERS:])
            sheet.text(
                left + widest, top + 0.32 + 0.25 * MAX_ANSWERS, f"{more} others: {rest:.1f} %", size=8, color=MUTED
            )


class AttributionStrip:
    """One text colored by attribution, with title and legend. A long text has a profile of all tokens as bars, and below only
    the passages with the largest attribution."""

    def __init__(self, attribution: TokenAttribution, width: float) -> None:
        self.attribution, self.width = attribution, width
        self.passages = attribution.top_passages(MAX_TOKENS)
        self.is_truncated = len(self.passages) > 1 or self.passages[0][1] < len(attribution.pieces)
        self.boxes: list[tuple[int | str, float, float]] = []
        """token index or omission mark, inches from the top, inches from the left"""
        self.text_height = 0.0
        for text in self._visible_tokens():
            self.text_height += TEXT_GAP if self.boxes else 0.0
            found = wrap_pieces([self._token_text(item) for item in text], width)
            blanks: dict[int, float] = {}  # leading space of each line, removed from all boxes of the line
            for item, (line, left) in zip(text, found, strict=True):
                blank = blanks.setdefault(line, _indent_width(inline_text(self._token_text(item))))
                self.boxes.append((item, self.text_height + line * LINE_HEIGHT, left - blank))
            self.text_height += (found[-1][0] + 1) * LINE_HEIGHT

    def _visible_tokens(self) -> list[list[int | str]]:
        """Shown tokens of each text, with marks for omitted and removed tokens."""
        texts: list[list[int | str]] = [[]]
        last = 0
        lost = dict(self.attribution.truncations)
        for begin, end in [*self.passages, (len(self.attribution.pieces),) * 2]:
            if begin > last:
                texts[-1].append(f"{SPACE_SYMBOL}… {begin - last:,} tokens …")
            for at in range(begin, end):
                if at == self.attribution.second_start and texts[-1]:
                    texts.append([])
                if at in lost:
                    texts[-1].append(f"{SPACE_SYMBOL}… {lost[at]:,} removed …")
                texts[-1].append(at)
            last = end
        return texts

    def _token_text(self, item: int | str) -> str:
        """Displayed text of a token. Special tokens have no color, so the text contains the attribution."""
        if isinstance(item, str):
            return item
        piece = self.attribution.pieces[item]
        return (
            f"{piece}{SPACE_SYMBOL}{percent(float(self.attribution.fractions[item]))}"
            if self.attribution.special[item]
            else piece
        )

    @property
    def profile_height(self) -> float:
        return PROFILE_HEIGHT + 0.42 if self.is_truncated else 0.0

    @property
    def note(self) -> str:
        parts = (self.attribution.description, self.attribution.note())
        return "\n".join(wrap_text(part, self.width, 8.5, 3) for part in parts)

    @property
    def heading(self) -> str:
        return wrap_text(self.attribution.heading, self.width, 11, 2)

    @property
    def heading_height(self) -> float:
        return HEADING + 0.16 * self.note.count("\n") + 0.2 * self.heading.count("\n")

    @property
    def height(self) -> float:
        return self.heading_height + self.profile_height + self.text_height + LEGEND

    @property
    def is_short(self) -> bool:
        return not self.is_truncated and self.text_height <= 3 * LINE_HEIGHT + TEXT_GAP

    @property
    def colors(self) -> tuple[str, ...]:
        return WARM_LIGHT if self.attribution.method == GRADIENT else COOL_LIGHT

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, self.heading, size=11, weight="bold")
        sheet.text(left, top + 0.25 + 0.2 * self.heading.count("\n"), self.note, size=8.5, color=MUTED)
        down = top + self.heading_height
        if self.is_truncated:
            self._draw_profile(sheet, left, down)
            down += self.profile_height
        axes = sheet.axes(left, down, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.attribution.max_fraction
        names = (
            "0",
            percent(most / 2).removesuffix(" %"),
            f"{percent(most)} {self.attribution.unit} (per word)",
        )
        sheet.colorbar(
            left, down + self.text_height + 0.16, min(2.4, self.width / 3), colormap(self.colors), most, names
        )

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, counted, family = colormap(self.colors), self.attribution, monospace_fonts()
        for at, top, left in self.boxes:
            text = inline_text(self._token_text(at)).lstrip()  # browsers drop leading spaces of .svg text
            left += _indent_width(inline_text(self._token_text(at)))
            middle, wide = top + LINE_HEIGHT / 2, display_width(text) * CHAR_WIDTH
            if isinstance(at, str):
                axes.text(left + wide / 2, middle, text, ha="center", va="center", color=MUTED, size=8.5)
                continue
            face: dict[str, Any] = {
                "facecolor": colours(float(counted.word_fractions[at]) / counted.max_fraction),
                "edgecolor": LINE,
            }
            if counted.special[at]:
                face = {"facecolor": "white", "edgecolor": "#d5dae2", "hatch": "/////"}
            axes.add_patch(Rectangle((left, middle - BOX_HEIGHT / 2), wide, BOX_HEIGHT, linewidth=0.4, **face))
            if at in counted.output_positions and len(counted.output_positions) < 9:
                low = middle + BOX_HEIGHT / 2 + 0.012
                axes.plot([left + GAP, left + wide - GAP], [low, low], color=ACCENT, linewidth=1.6)
            quiet = counted.special[at] or not text.strip(SPACE_SYMBOL + "".join(NEWLINE_SYMBOLS))
            ink: dict[str, Any] = {"color": INK, "alpha": 0.55 if quiet else 1.0, "size": FONT_SIZE, "family": family}
            axes.text(left, middle, text, ha="left", va="center_baseline", **ink)

    def _draw_profile(self, sheet: Sheet, left: float, top: float) -> None:
        """Draw the sum of each segment of the text; segments shown below are underlined."""
        many, values = len(self.attribution.pieces), self.attribution.profile(PROFILE_BINS)
        size = -(-many // PROFILE_BINS)
        axes = sheet.axes(left, top, self.width, PROFILE_HEIGHT)
        at = np.arange(len(values)) * size
        wide = np.minimum(at + size, many) - at
        axes.bar(at, values, wide * 0.86, align="edge", color=colormap(self.colors)(1.0))
        most = float(values.max()) or 1.0
        for begin, end in self.passages:
            axes.plot([begin, end], [-0.07 * most] * 2, color=WARM, linewidth=2, clip_on=False, solid_capstyle="butt")
        axes.set_xlim(0, many)
        axes.set_ylim(0, most * 1.05)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_yticks([])
        ticks = [0, many // 2, many]
        axes.set_xticks(ticks, ["token 1", f"{many // 2:,}", f"{many:,}"], size=7.5)
        first, _, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
        axes.tick_params(length=0, pad=7)
        axes.text(
            many, most * 1.05, f"maximum: {percent(most)} in {size:,} tokens; underlined: shown below",
            size=7.5, color=MUTED, ha="right", va="bottom",
        )  # fmt: skip


def _indent_width(text: str) -> float:
    """Width of the leading spaces in inches."""
    return (display_width(text) - display_width(text.lstrip())) * CHAR_WIDTH


def decision_strips(decision: DecisionAttribution, width: float) -> list[ProbabilityBars | AttributionStrip]:
    """Probabilities, all gradient attributions, and the first rollout; without gradients, all rollouts."""
    found: list[ProbabilityBars | AttributionStrip] = (
        [ProbabilityBars(decision, width)] if decision.probabilities else []
    )
    ways = {one.method for one in decision.attributions}
    first = next(iter(decision.attributions), None)
    shown = [one for one in decision.attributions if one.method == GRADIENT or len(ways) == 1][:MAX_STRIPS]
    shown += [one for one in decision.attributions if len(ways) > 1 and one.method != GRADIENT and first is not None][
        :1
    ]
    return [*found, *(AttributionStrip(one, width) for one in shown)]
