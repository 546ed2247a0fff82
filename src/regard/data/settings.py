"""What a person may set about data."""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import SettingError


@dataclass(frozen=True)
class Data:
    vocabulary: int = 10_000
    """tokens of the tokenizer that is trained"""
    tokenizer: str = ""
    """an existing tokenizer.json to use instead of training one"""
    longest: int = 256
    """pairs with more tokens than this on a side are counted, named and skipped"""
    share: float = 0.02
    """share held out for validation when none is given (at most 2,000)"""
    tokenized: bool = False
    """the text is already split into tokens by spaces: BLEU is computed on it as it is"""
    workers: int = -1
    """processes that prepare batches ahead; -1 is 2 with CUDA and 0 elsewhere"""
    score: int = 500
    """validation sentences translated for the score while training"""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "longest", "score"):
            if getattr(self, name) < 1:
                raise SettingError(f"data.{name} must be at least 1, not {getattr(self, name)}.")
        if self.workers < -1:
            raise SettingError(f"data.workers must be at least 0, or -1 for a sensible number, not {self.workers}.")
        if not 0 < self.share < 1:
            raise SettingError(f"data.share must lie between 0 and 1, not {self.share}.")
