"""Processor of image captioning: image preprocessing and tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from regard.processors.image import ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer


@dataclass(frozen=True)
class CaptionProcessor:
    """Image processor for the inputs, and tokenizer for the captions."""

    pixels: ImageProcessor
    text: TextTokenizer

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> CaptionProcessor | ImageProcessor | TextTokenizer | None:
        """Both processors of a folder, or the only one found, or None; tasks report a missing processor when needed."""
        pixels = ImageProcessor.load(folder) if ImageProcessor.exists(folder) else None
        text = TextTokenizer.load(Path(folder)) if TextTokenizer.exists(Path(folder)) else None
        return pixels or text if pixels is None or text is None else cls(pixels, text)

    def with_fixed_size(self, side: int) -> CaptionProcessor:
        """Copy with one image size for training batches."""
        return replace(self, pixels=self.pixels.with_fixed_size(side))
