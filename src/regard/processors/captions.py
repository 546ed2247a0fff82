"""What a captioner reads and says: pixels in, tokens out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from regard.processors.image import Pixels
from regard.processors.tokenizer.tokenizer import Text


@dataclass(frozen=True)
class Captions:
    """How pictures are made ready, and the tokenizer of what is said of them."""

    pixels: Pixels
    text: Text

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Captions | Pixels | Text | None:
        """Both, as a folder has them; the one that it has where the other is missing, which is told when it is needed."""
        pixels = Pixels.load(folder) if Pixels.exists(folder) else None
        text = Text.load(Path(folder)) if Text.exists(Path(folder)) else None
        return pixels or text if pixels is None or text is None else cls(pixels, text)

    def steady(self, side: int) -> Captions:
        """As pictures are learnt from, all of one size."""
        return replace(self, pixels=self.pixels.steady(side))
