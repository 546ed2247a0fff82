"""A text as its tokens, each on the colour of how many steps it was thought about, with the number below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from regard.draw.colormap import INK, LINE, QUIET, WARM_LIGHT, ramp
from regard.draw.figure import Sheet, monospace, wrapped
from regard.draw.token_label import columns, label
from regard.draw.token_strip import BLANK, BOX, COLUMN, HEADING, LEGEND, SIZE, laid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_HEIGHT: Final = 0.44  # inches of a line of tokens with their numbers
MOST_LINES: Final = 24


@dataclass(frozen=True)
class Thought:
    """One text of an example; `most` steps could be taken."""

    title: str
    pieces: tuple[str, ...]
    steps: tuple[int, ...]
    most: int

    def __post_init__(self) -> None:
        if len(self.pieces) != len(self.steps) or not self.pieces:
            raise ValueError(f"'{self.title}': {len(self.pieces)} tokens with {len(self.steps)} numbers of steps")

    def note(self) -> str:
        mean = sum(self.steps) / len(self.steps)
        return f"{mean:.1f} steps of {self.most} on average, {min(self.steps)} at least and {max(self.steps)} at most"


class ThoughtStrip:
    """The coloured text with its heading above and its legend below, so many inches wide."""

    def __init__(self, thought: Thought, width: float) -> None:
        self.thought, self.width = thought, width
        # a blank on both sides, so that the shortest tokens have room for their numbers
        self.texts = [f" {label(piece, 40).replace(BLANK, ' ').strip() or BLANK} " for piece in thought.pieces]
        self.placed = [place for place in laid(self.texts, width) if place[0] < MOST_LINES]

    @property
    def text_height(self) -> float:
        return (self.placed[-1][0] + 1) * LINE_HEIGHT

    @property
    def height(self) -> float:
        return HEADING + self.text_height + LEGEND

    @property
    def brief(self) -> bool:
        return self.placed[-1][0] < 3

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, wrapped(self.thought.title, self.width, 11, 1), size=11, weight="bold")
        left_out = len(self.texts) - len(self.placed)
        note = self.thought.note() + (f" · the last {left_out:,} are left out" if left_out else "")
        sheet.text(left, top + 0.25, wrapped(note, self.width, 8.5, 1), size=8.5, colour=QUIET)
        axes = sheet.axes(left, top + HEADING, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.thought.most
        names = ("0", f"{most / 2:g}", f"{most} steps, which is all that there may be")
        sheet.bar(
            left, top + HEADING + self.text_height + 0.16, min(2.4, self.width / 3), ramp(WARM_LIGHT), most, names
        )

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, ink = ramp(WARM_LIGHT), {"family": monospace(), "ha": "center", "va": "center_baseline"}
        for (line, left), text, steps in zip(self.placed, self.texts, self.thought.steps, strict=False):
            wide, top = columns(text) * COLUMN, line * LINE_HEIGHT
            face: dict[str, Any] = {"facecolor": colours(steps / self.thought.most), "edgecolor": LINE}
            axes.add_patch(Rectangle((left, top + 0.01), wide, BOX, linewidth=0.4, **face))
            axes.text(left + wide / 2, top + 0.01 + BOX / 2, text.strip(), color=INK, size=SIZE, **ink)  # type: ignore[arg-type]
            below = top + BOX + 0.09
            axes.text(left + wide / 2, below, str(steps), color=QUIET, size=7, **ink)  # type: ignore[arg-type]
