"""The sheet a picture is drawn on: fonts, inches from the top left corner, and safe writing to disk."""

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
CHAR_WIDTH_PER_POINT: Final = 0.61 / 72  # inches a letter takes per point of font size, a little generously

# DejaVu comes with matplotlib; the others add the scripts it lacks, where the machine has them.
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
    """Let `write` fill a file beside `path` and move it into place, so that no half-written file is ever seen."""
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
    """The text in lines that are not wider than so many inches; an ellipsis where it needs more of them."""
    seen = label(" ".join(text.split()), max_width=2000)
    return "\n".join(
        textwrap.wrap(seen, max(12, int(inches / (CHAR_WIDTH_PER_POINT * size))), max_lines=max_lines, placeholder=" …")
    )


@contextmanager
def figure_style() -> Iterator[None]:
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
                "axes.labelcolor": MUTED,
                "xtick.color": MUTED,
                "ytick.color": MUTED,
                "svg.fonttype": "none",  # text stays text: it can be searched, and a browser has every glyph
                "svg.hashsalt": "regard",
            }
        )
        warnings.filterwarnings("ignore", message="Glyph|Matplotlib currently does not support")
        yield


def monospace_fonts() -> list[str]:
    """Fonts for text in which every letter is equally wide, within `styled`."""
    import matplotlib

    return ["DejaVu Sans Mono", *matplotlib.rcParams["font.family"]]


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

    def text(self, left: float, top: float, text: str, size: float, color: str = INK, weight: str = "normal") -> None:
        self.figure.text(
            left / self.width, 1 - top / self.height, text, size=size, color=color, weight=weight, va="top", ha="left",
            linespacing=1.3,
        )  # fmt: skip

    def colorbar(
        self, left: float, top: float, width: float, cmap: Colormap, max_value: float, tick_labels: tuple[str, str, str]
    ) -> None:
        """What the colours mean: names for 0, the half and `most`."""
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
