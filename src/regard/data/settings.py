"""What a person may set about data."""

from __future__ import annotations

from dataclasses import dataclass


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
    score: int = 500
    """validation sentences translated for the score while training"""
