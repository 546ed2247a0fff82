"""What stands above the maps of a decision: the answer among all that could have been said, and the text on the colours of
how much each token counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regard.draw.attribution import BARS, GRADIENT, Counted, Decided, percent
from regard.draw.colormap import ACCENT, COOL_LIGHT, INK, LINE, QUIET, WARM, WARM_LIGHT, ramp
from regard.draw.figure import Sheet, monospace, wrapped
from regard.draw.token_label import columns, label
from regard.draw.token_strip import BLANK, BOX, BREAKS, COLUMN, GAP, HEADING, LEGEND, LINE_HEIGHT, SIZE, laid, running

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN: Final = 6
"""Of many answers the likeliest are drawn."""
STRIPS: Final = 6
"""Texts in one picture."""
TOKENS: Final = 480
"""Of a long text so many are drawn, where it counted most."""
PROFILE: Final = 0.5  # inches of the bars along a long text
APART: Final = 0.12  # inches between two texts of a row


class Chances:
    """The answers with their probabilities, the likeliest first."""

    brief = True

    def __init__(self, decided: Decided, width: float) -> None:
        self.decided, self.width = decided, width
        self.rows = decided.chances[:SHOWN]

    @property
    def height(self) -> float:
        return 0.34 + 0.25 * len(self.rows) + 0.12 * (len(self.decided.chances) > SHOWN)

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, self.decided.asked, size=11, weight="bold")
        fits = 48 if self.width > 7 else 24
        widest = min(max(columns(label(name, fits)) for name, _ in self.rows) * 0.0846 + 0.15, 4.4)
        long = min(self.width - widest - 0.8, 4.0)
        axes = sheet.axes(left + widest, top + 0.3, long, 0.25 * len(self.rows))
        axes.set_xlim(0, 1)
        axes.set_ylim(len(self.rows), 0)
        axes.axis("off")
        for at, (name, chance) in enumerate(self.rows):
            said = name == self.decided.said
            axes.barh(at + 0.5, 1, height=0.56, color="#f1f3f7")
            axes.barh(at + 0.5, chance, height=0.56, color=ACCENT if said else "#a9b4c8")
            style: dict[str, Any] = {"size": 9.5, "va": "center", "weight": "bold" if said else "normal"}
            axes.text(-0.1 / long, at + 0.52, label(name, fits), ha="right", color=INK, **style)
            axes.text(1 + 0.08 / long, at + 0.52, f"{100 * chance:.1f} %", ha="left", color=INK, **style)
        if (more := len(self.decided.chances) - SHOWN) > 0:
            rest = 100 * sum(chance for _, chance in self.decided.chances[SHOWN:])
            sheet.text(left + widest, top + 0.32 + 0.25 * SHOWN, f"{more} others: {rest:.1f} %", size=8, colour=QUIET)


class CountedStrip:
    """One text with its heading above and the legend below. Of a long one the passages that counted most are shown, and
    above them how much each stretch of the whole counted."""

    def __init__(self, counted: Counted, width: float) -> None:
        self.counted, self.width = counted, width
        self.passages = counted.passages(TOKENS)
        self.long = len(self.passages) > 1 or self.passages[0][1] < len(counted.pieces)
        self.placed: list[tuple[int | str, float, float]] = []
        """a token, or what is said of those left out; inches from the top, inches from the left"""
        self.text_height = 0.0
        for text in self._texts():
            self.text_height += APART if self.placed else 0.0
            found = laid([self._piece(item) for item in text], width)
            blanks: dict[int, float] = {}  # before the first token of a line nothing is to be kept apart
            for item, (line, left) in zip(text, found, strict=True):
                blank = blanks.setdefault(line, _blank(running(self._piece(item))))
                self.placed.append((item, self.text_height + line * LINE_HEIGHT, left - blank))
            self.text_height += (found[-1][0] + 1) * LINE_HEIGHT

    def _texts(self) -> list[list[int | str]]:
        """The tokens that are shown of each text, and between them how many are left out."""
        texts: list[list[int | str]] = [[]]
        last = 0
        lost = dict(self.counted.seams)
        for begin, end in [*self.passages, (len(self.counted.pieces),) * 2]:
            if begin > last:
                texts[-1].append(f"{BLANK}… {begin - last:,} tokens …")
            for at in range(begin, end):
                if at == self.counted.second and texts[-1]:
                    texts.append([])
                if at in lost:
                    texts[-1].append(f"{BLANK}… {lost[at]:,} left out …")
                texts[-1].append(at)
            last = end
        return texts

    def _piece(self, item: int | str) -> str:
        """A token as it is written; a special one with its share, for it has no colour."""
        if isinstance(item, str):
            return item
        piece = self.counted.pieces[item]
        return f"{piece}{BLANK}{percent(float(self.counted.shares[item]))}" if self.counted.special[item] else piece

    @property
    def profile_height(self) -> float:
        return PROFILE + 0.42 if self.long else 0.0

    @property
    def note(self) -> str:
        return wrapped(self.counted.note(), self.width, 8.5, 2)

    @property
    def heading(self) -> float:
        return HEADING + 0.16 * self.note.count("\n")

    @property
    def height(self) -> float:
        return self.heading + self.profile_height + self.text_height + LEGEND

    @property
    def brief(self) -> bool:
        return not self.long and self.text_height <= 3 * LINE_HEIGHT + APART

    @property
    def colours(self) -> tuple[str, ...]:
        return WARM_LIGHT if self.counted.way == GRADIENT else COOL_LIGHT

    def draw(self, sheet: Sheet, left: float, top: float) -> None:
        sheet.text(left, top, wrapped(self.counted.heading, self.width, 11, 1), size=11, weight="bold")
        sheet.text(left, top + 0.25, self.note, size=8.5, colour=QUIET)
        down = top + self.heading
        if self.long:
            self._draw_profile(sheet, left, down)
            down += self.profile_height
        axes = sheet.axes(left, down, self.width, self.text_height)
        axes.set_xlim(0, self.width)
        axes.set_ylim(self.text_height, 0)
        axes.axis("off")
        self._draw_tokens(axes)
        most = self.counted.most
        names = ("0", percent(most / 2).removesuffix(" %"), f"{percent(most)} {self.counted.unit}, a word as a whole")
        sheet.bar(left, down + self.text_height + 0.16, min(2.4, self.width / 3), ramp(self.colours), most, names)

    def _draw_tokens(self, axes: Axes) -> None:
        from matplotlib.patches import Rectangle

        colours, counted, family = ramp(self.colours), self.counted, monospace()
        for at, top, left in self.placed:
            text = running(self._piece(at)).lstrip()  # a browser would leave out the blanks of an .svg
            left += _blank(running(self._piece(at)))
            middle, wide = top + LINE_HEIGHT / 2, columns(text) * COLUMN
            if isinstance(at, str):
                axes.text(left + wide / 2, middle, text, ha="center", va="center", color=QUIET, size=8.5)
                continue
            face: dict[str, Any] = {"facecolor": colours(float(counted.whole[at]) / counted.most), "edgecolor": LINE}
            if counted.special[at]:
                face = {"facecolor": "white", "edgecolor": "#d5dae2", "hatch": "/////"}
            axes.add_patch(Rectangle((left, middle - BOX / 2), wide, BOX, linewidth=0.4, **face))
            if at in counted.at and len(counted.at) < 9:
                low = middle + BOX / 2 + 0.012
                axes.plot([left + GAP, left + wide - GAP], [low, low], color=ACCENT, linewidth=1.6)
            quiet = counted.special[at] or not text.strip(BLANK + "".join(BREAKS))
            ink: dict[str, Any] = {"color": INK, "alpha": 0.55 if quiet else 1.0, "size": SIZE, "family": family}
            axes.text(left, middle, text, ha="left", va="center_baseline", **ink)

    def _draw_profile(self, sheet: Sheet, left: float, top: float) -> None:
        """How much each stretch of the whole text counted; those that are written out below are underlined."""
        many, values = len(self.counted.pieces), self.counted.profile(BARS)
        size = -(-many // BARS)
        axes = sheet.axes(left, top, self.width, PROFILE)
        at = np.arange(len(values)) * size
        wide = np.minimum(at + size, many) - at
        axes.bar(at, values, wide * 0.86, align="edge", color=ramp(self.colours)(1.0))
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
            many, most * 1.05, f"highest bar: {percent(most)} in {size:,} tokens; underlined: written out below",
            size=7.5, color=QUIET, ha="right", va="bottom",
        )  # fmt: skip


def _blank(text: str) -> float:
    """Inches of the blanks before it."""
    return (columns(text) - columns(text.lstrip())) * COLUMN


def strips(decided: Decided, width: float) -> list[Chances | CountedStrip]:
    """The answers, every text by gradients where there are some, and the first one rolled out too."""
    found: list[Chances | CountedStrip] = [Chances(decided, width)] if decided.chances else []
    ways = {one.way for one in decided.counted}
    first = next(iter(decided.counted), None)
    shown = [one for one in decided.counted if one.way == GRADIENT or len(ways) == 1][:STRIPS]
    shown += [one for one in decided.counted if len(ways) > 1 and one.way != GRADIENT and first is not None][:1]
    return [*found, *(CountedStrip(one, width) for one in shown)]
