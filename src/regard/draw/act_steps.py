"""Tokens of a text, colored by the number of computation steps (ACT), with the number below each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from regard.draw.colormap import INK, LINE, MUTED, WARM_LIGHT, colormap
from regard.draw.figure import Sheet, monospace_fonts, wrap_text
from regard.draw.token_label import display_width, label
from regard.draw.token_strip import BOX_HEIGHT, CHAR_WIDTH, FONT_SIZE, HEADING, LEGEND, SPACE_SYMBOL, wrap_pieces

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_HEIGHT: Final = 0.44  # inches per line of tokens and step numbers
MAX_LINES: Final = 24


@dataclass(frozen=True)
class ActSteps:
    """Computation steps of each token of one text, at most `max_steps`."""

    title: str
    pieces: tuple[str, ...]
    steps: tuple[int, ...]
    max_steps: int

    def __post_init__(self) -> None:
        if len(self.pieces) != len(self.steps) or not self.pieces:
            raise ValueError(
                f"'{self.title}': expected one step count per token, got {len(self.steps)} for {len(self.pieces)}"
            )

    def note(self) -> str:
        mean = sum(self.steps) / len(self.steps)
        return f"{mean:.1f} of {self.max_steps} steps on average (min {min(self.steps)}, max {max(self.steps)})."


class ActStepsStrip:
    """Colored tokens with title and legend, `width` inches wide."""

    def __init__(self, act_steps: ActSteps, width: float) -> None:
        self.act_steps, self.width = act_steps, width
        # a space on both sides, so that the step number fits below a short token
        self.texts = [
            f" {label(piece, 40).replace(SPACE_SYMBOL, ' ').strip() or SPACE_SYMBOL} " for piece in act_steps.pieces
        ]
        self.boxes = [place for place in wrap_pieces(self.texts, width) if place[0] < MAX_LINES]

    @property
    def text_height(self) -> float:
        return (self.boxes[-1][0] + 1) * LINE_HEIGHT

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
            wide, top = display_width(text) * CHAR_WIDTH, line * LINE_HEIGHT
            face: dict[str, Any] = {"facecolor": colours(steps / self.act_steps.max_steps), "edgecolor": LINE}
            axes.add_patch(Rectangle((left, top + 0.01), wide, BOX_HEIGHT, linewidth=0.4, **face))
            axes.text(left + wide / 2, top + 0.01 + BOX_HEIGHT / 2, text.strip(), color=INK, size=FONT_SIZE, **ink)  # type: ignore[arg-type]
            below = top + BOX_HEIGHT + 0.09
            axes.text(left + wide / 2, below, str(steps), color=MUTED, size=7, **ink)  # type: ignore[arg-type]
