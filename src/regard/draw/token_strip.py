"""Tokens of a text, colored by surprisal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from regard.draw.colormap import ACCENT, INK, LINE, MUTED, WARM_LIGHT, colormap
from regard.draw.figure import Sheet, monospace_fonts, wrap_text
from regard.draw.surprisal import TextLikelihood, TokenLikelihood
from regard.draw.token_label import display_width, label

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
