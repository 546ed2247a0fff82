"""What a person may set about data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import SettingError


@dataclass(frozen=True)
class Data:
    kind: Literal["bytes", "characters"] = "bytes"
    """the tokenizer that is made, but for translation: byte-pair encoding of bytes, or one token a character"""
    vocabulary: int = 10_000
    """tokens of the tokenizer that is trained"""
    tokenizer: str = ""
    """an existing tokenizer.json, or a folder with one or with vocab.json and merges.txt, instead of training one"""
    longest: int = 256
    """pairs with more tokens than this on a side are counted, named and skipped; texts of classify and choose are cut in
    their middle, and that is counted"""
    pair: Literal["ordered", "symmetric"] = "ordered"
    """how classify reads two texts: one after the other (entailment), or in both orders, whose states are added
    (similarity)"""
    share: float = 0.02
    """share held out for validation when none is given (at most 2,000)"""
    tokenized: bool = False
    """the text is already split into tokens by spaces: BLEU is computed on it as it is"""
    workers: int = -1
    """processes that prepare batches ahead; -1 is 2 with CUDA and 0 elsewhere"""
    score: int = 500
    """validation samples answered for the score while training"""
    detokenise: Literal["none", "wikitext", "ptb"] = "none"
    """undo the spaces and signs that a published data set put into its text (task language)"""
    stride: int = 0
    """tokens between two windows when the loss of a text is measured; 0 is the whole context: windows do not overlap"""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "longest", "score"):
            if getattr(self, name) < 1:
                raise SettingError(f"data.{name} must be at least 1, not {getattr(self, name)}.")
        if self.workers < -1:
            raise SettingError(f"data.workers must be at least 0, or -1 for a sensible number, not {self.workers}.")
        if self.stride < 0:
            raise SettingError(f"data.stride must be at least 0, not {self.stride}.")
        if not 0 < self.share < 1:
            raise SettingError(f"data.share must lie between 0 and 1, not {self.share}.")
