"""Figures with positions in inches from the top left corner, fonts, and atomic file writes."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from regard.draw.colormap import INK, LINE, MUTED
from regard.draw.token_label import label
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

DPI: Final = 160
CHAR_WIDTH_PER_POINT: Final = 0.61 / 72  # inches per character and point of font size, slightly overestimated

# DejaVu is part of matplotlib; the other fonts, if installed, add missing scripts.
_FONTS: Final = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "Hiragino Sans",
    "PingFang SC", "Malgun Gothic", "Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Emoji",
)  # fmt: skip


def check_suffix(path: Path, suffixes: Sequence[str]) -> str:
    """Return the file extension without the dot. Raise if the extension is not one of `suffixes`."""
    if path.suffix.lower() not in suffixes:
        raise RegardError(
            f"Unsupported file type '{path}': use {' or '.join(suffixes)} here "
            "(.png and .svg for figures, .html for the interactive page)."
        )
    return path.suffix.lower()[1:]


def write_atomic(path: Path, write: Callable[[Path], object]) -> Path:
    """Write a temporary file in the same folder, then rename the file to `path`, so that no partial file is ever visible."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        os.replace(beside, path)
    except OSError as error:
        raise RegardError(f"Cannot write '{path}': {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            beside.unlink()
    return path


def wrap_text(text: str, inches: float, size: float, max_lines: int) -> str:
    """The text wrapped at `inches`, with an ellipsis if more than `max_lines` lines are needed."""
    seen = label(" ".join(text.split()), max_width=2000)
    return "\n".join(
        textwrap.wrap(seen, max(12, int(inches / (CHAR_WIDTH_PER_POINT * size))), max_lines=max_lines, placeholder=" …")
    )


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply fixed matplotlib settings, independent of the settings of the user, which are restored afterwards."""
    import matplotlib
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": [name for name in _FONTS if name in installed],
                "text.parse_math": False,  # tokens may contain dollar signs
                "text.color": INK,
                "axes.edgecolor": LINE,
                "axes.labelcolor": MUTED,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "svg.fonttype": "none",  # text stays searchable, and browsers have every glyph
                "svg.hashsalt": "regard",
            }
        )
        warnings.filterwarnings("ignore", message="Glyph|Matplotlib currently does not support")
        yield


def monospace_fonts() -> list[str]:
    """Monospace fonts, for use within `figure_style`."""
    import matplotlib

    return ["DejaVu Sans Mono", *matplotlib.rcParams["font.family"]]


class Sheet:
    """A white figure with positions in inches from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def text(self, left: float, top: float, text: str, size: float, color: str = INK, weight: str = "normal") -> None:
        self.figure.text(
            left / self.width, 1 - top / self.height, text, size=size, color=color, weight=weight, va="top", ha="left",
            linespacing=1.3,
        )  # fmt: skip

    def colorbar(
        self, left: float, top: float, width: float, cmap: Colormap, max_value: float, tick_labels: tuple[str, str, str]
    ) -> None:
        """Draw a color bar with labels for 0, half and all of `max_value`."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        bar = self.axes(left, top, width, 0.11)
        scale = ScalarMappable(Normalize(0, max_value), cmap)
        self.figure.colorbar(scale, cax=bar, orientation="horizontal", ticks=[0, max_value / 2, max_value])
        bar.set_xticklabels(tick_labels, size=7.5)
        bar.get_xticklabels()[-1].set_horizontalalignment("left")
        bar.tick_params(length=2, pad=2)

    def save(self, path: Path, file_format: str) -> Path:
        metadata = {"Date": None} if file_format == "svg" else None
        return write_atomic(path, lambda to: self.figure.savefig(to, format=file_format, dpi=DPI, metadata=metadata))
