"""A text as its tokens, each on the colour of how surprising it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from regard.draw.colormap import ACCENT, INK, LINE, QUIET, WARM_LIGHT, ramp
from regard.draw.figure import Sheet, monospace, wrapped
from regard.draw.surprisal import Guess, Reading
from regard.draw.token_label import columns, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE: Final = 12.0
COLUMN: Final = 0.602 * SIZE / 72  # inches of a letter of the font, all of which are equally wide
LINE_HEIGHT: Final = 0.3
BOX: Final = 0.245  # inches of the colour behind a token
GAP: Final = 0.018  # and between two of them
HEADING: Final = 0.62
LEGEND: Final = 0.55
MOST_LINES: Final = 32
LONGEST: Final = 40

BLANK, BREAKS = "␣", ("⏎", "↵")


@dataclass(frozen=True)
class Placed:
    """Where a token stands: its line, and its box in inches from the left."""

    guess: Guess
    number: int
    line: int
    left: float

    @property
    def text(self) -> str:
        return shown(self.guess)

    @property
    def width(self) -> float:
        return columns(self.text) * COLUMN


def shown(guess: Guess) -> str:
    return running(guess.piece)


def running(piece: str) -> str:
    """As running text: a blank is seen only where it stands alone."""
    text = label(piece, LONGEST)
    return text if not text.strip(BLANK) else text.replace(BLANK, " ")


def place(reading: Reading, width: float) -> list[Placed]:
    found = laid([guess.piece for guess in reading.guesses], width)
    return [Placed(reading.guesses[at], at, line, left) for at, (line, left) in enumerate(found)]


def laid(pieces: Sequence[str], width: float) -> list[tuple[int, float]]:
    """The line and the left edge of each. Lines break where the text has one and between words; within a word only where it
    is wider than a line."""
    placed: list[tuple[int, float]] = []
    line, left = 0, 0.0
    for word in _words(pieces):
        sizes = [columns(running(pieces[at])) * COLUMN + GAP for at in word]
        if left and left + sum(sizes) > width:
            line, left = line + 1, 0.0
        for size in sizes:
            if left and left + size > width:
                line, left = line + 1, 0.0
            placed.append((line, left))
            left += size
        if pieces[word[-1]].endswith(BREAKS):
            line, left = line + 1, 0.0
    return placed


def _words(pieces: Sequence[str]) -> list[list[int]]:
    """Runs of tokens that stay together. A blank alone ends one, a blank at the beginning of more begins one."""
    words: list[list[int]] = [[]]
    for at, piece in enumerate(pieces):
        alone = not piece.strip(BLANK)
        if words[-1] and piece.startswith(BLANK) and not alone:
            words.append([])
        words[-1].append(at)
        if alone or piece.endswith(BREAKS):
            words.append([])
    return [word for word in words if word]


class Strip:
    """The coloured text with its heading above and its legend below, so many inches wide."""

    def __init__(self, reading: Reading, width: float) -> None:
        self.reading, self.width = reading, width
        placed = place(reading, width)
        self.first = max(placed[-1].line + 1 - MOST_LINES, 0)
        self.placed = [token for token in placed if token.line >= self.first]

    @property
    def text_height(self) -> float:
        return (self.placed[-1].line - self.first + 1) * LINE_HEIGHT

    @property
    def height(self) -> float:
        return HEADING + self.text_height + LEGEND

    @property
    def brief(self) -> bool:
        return False  # what was expected is read along a whole line

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, "How surprising each token was, given those before it", size=11, weight="bold")
        sheet.text(left, top + 0.25, wrapped(self._subtitle(), self.width, 8.5, 1), size=8.5, colour=QUIET)
        axes = sheet.axes(left, top + HEADING, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.reading.evenly
        names = ("0", f"{most / 2:.1f}", f"{most:.1f} bits: an even guess among {self.reading.vocabulary:,}")
        below = top + HEADING + self.text_height + 0.16
        sheet.bar(left, below, 2.4, ramp(WARM_LIGHT), most, names)

    def _subtitle(self) -> str:
        missing = self.placed[0].number
        cut = (f"the first {missing:,} are left out",) if missing else ()
        return " · ".join([*cut, *(f"{name} {value}" for name, value in self.reading.facts().items())])

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, most, family = ramp(WARM_LIGHT), self.reading.evenly, monospace()
        for token in self.placed:
            share = min(token.guess.surprise / most, 1.0)
            middle = (token.line - self.first + 0.5) * LINE_HEIGHT
            corner = (token.left, middle - BOX / 2)
            axes.add_patch(Rectangle(corner, token.width, BOX, facecolor=colours(share), edgecolor=LINE, linewidth=0.4))
            if token.number == self.reading.given > 0:
                edge = token.left - GAP / 2
                axes.plot([edge, edge], [middle - 0.6 * BOX, middle + 0.6 * BOX], color=ACCENT, linewidth=2)
            text = token.text.lstrip()  # a browser would leave out the blanks of an .svg
            left = token.left + (columns(token.text) - columns(text)) * COLUMN
            strength = 1.0 if text.strip(BLANK + "".join(BREAKS)) else 0.55
            ink: dict[str, Any] = {"color": INK, "alpha": strength, "size": SIZE, "family": family}
            axes.text(left, middle, text, ha="left", va="center_baseline", **ink)
