"""What a captioner reads and says: pixels in, tokens out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from regard.processors.image import ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True)
class CaptionProcessor:
    """How pictures are made ready, and the tokenizer of what is said of them."""

    pixels: ImageProcessor
    text: TextTokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CaptionProcessor | ImageProcessor | TextTokenizer | None:
        """Both, as a folder has them; the one that it has where the other is missing, which is told when it is needed."""
        pixels = ImageProcessor.load(folder) if ImageProcessor.exists(folder) else None
        text = TextTokenizer.load(Path(folder)) if TextTokenizer.exists(Path(folder)) else None
        return pixels or text if pixels is None or text is None else cls(pixels, text)

    def with_fixed_size(self, side: int) -> CaptionProcessor:
        """As pictures are learnt from, all of one size."""
        return replace(self, pixels=self.pixels.with_fixed_size(side))
