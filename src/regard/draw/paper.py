"""The sheet a picture is drawn on: fonts, inches from the top left corner, and safe writing to disk."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from regard.draw.colour import INK, LINE, QUIET
from regard.errors import RegardError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI: Final = 160

# DejaVu comes with matplotlib; the others add the scripts it lacks, where the machine has them.
_FONTS: Final = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei", "Hiragino Sans",
    "PingFang SC", "Malgun Gothic", "Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Emoji",
)  # fmt: skip


def check_ending(path: Path, endings: Sequence[str]) -> str:
    """The path's ending without its dot, refused unless it is one of `endings`."""
    if path.suffix.lower() not in endings:
        raise RegardError(
            f"cannot draw into '{path}': this picture is written as {' or '.join(endings)} "
            "(supported are .png and .svg for pictures, .html for the interactive page)."
        )
    return path.suffix.lower()[1:]


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a file beside `path` and move it into place, so that no half-written file is ever seen."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        os.replace(beside, path)
    except OSError as error:
        raise RegardError(f"cannot write '{path}': {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            beside.unlink()
    return path


@contextmanager
def styled() -> Iterator[None]:
    """Our own settings of matplotlib, whatever the person's are, and theirs again afterwards."""
    import matplotlib
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": [name for name in _FONTS if name in installed],
                "text.parse_math": False,  # a token may hold any number of dollar signs
                "text.color": INK,
                "axes.edgecolor": LINE,
                "axes.labelcolor": QUIET,
                "xtick.color": QUIET,
                "ytick.color": QUIET,
                "svg.fonttype": "none",  # text stays text: it can be searched, and a browser has every glyph
                "svg.hashsalt": "regard",
            }
        )
        warnings.filterwarnings("ignore", message="Glyph|Matplotlib currently does not support")
        yield


class Sheet:
    """A white figure measured in inches from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.width, self.height = width, height
        self.figure: Figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(self.figure)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def text(self, left: float, top: float, text: str, size: float, colour: str = INK, weight: str = "normal") -> None:
        self.figure.text(
            left / self.width, 1 - top / self.height, text, size=size, color=colour, weight=weight, va="top", ha="left",
            linespacing=1.3,
        )  # fmt: skip

    def save(self, path: Path, ending: str) -> Path:
        metadata = {"Date": None} if ending == "svg" else None
        return write_whole(path, lambda to: self.figure.savefig(to, format=ending, dpi=DPI, metadata=metadata))
