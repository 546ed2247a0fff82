"""Which of two languages a text is in, by profiles of letters that are learnt from the data itself.

A profile counts the threes of neighbouring letters on either side. A text is weighed by the sum over its threes of
log P(three | source) − log P(three | target): above 0 it reads like a source. A row whose source reads like a target
and whose target reads like a source has its sides exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Counts = NDArray[np.int64]

HASH_BITS = 14
"""Threes share 2¹⁴ places: alphabets use far fewer, and where two fall together they weigh less."""
NUM_BUCKETS = 1 << HASH_BITS
SMOOTHING = 0.5
"""added to every count, so that what was never seen says nothing"""


def trigrams(texts: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The place of each three of letters in a profile, and the number of the text it stands in."""
    # a word's first and last letters tell much, so a blank stands at both ends; \0 keeps the texts apart
    joined = "\0".join(f" {text.lower()} " for text in texts)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32)
    a, b, c = codes[:-2], codes[1:-1], codes[2:]
    mixed = (a * np.uint32(0x9E3779B1)) ^ (b * np.uint32(0x85EBCA6B)) ^ (c * np.uint32(0xC2B2AE35))
    mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x2C1B3C6D)
    inside = (a != 0) & (b != 0) & (c != 0)
    owner = np.cumsum(codes == 0)[:-2]
    return (mixed >> np.uint32(32 - HASH_BITS))[inside].astype(np.intp), owner[inside]


@dataclass
class TrigramProfile:
    """Counts of both sides, (2, SIZE)."""

    counts: Counts

    @classmethod
    def empty(cls) -> TrigramProfile:
        return cls(np.zeros((2, NUM_BUCKETS), dtype=np.int64))

    def update(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        for side, texts in enumerate((sources, targets)):
            self.counts[side] += np.bincount(trigrams(texts)[0], minlength=NUM_BUCKETS)

    def swap_sides(self) -> TrigramProfile:
        """With source and target exchanged."""
        return TrigramProfile(self.counts[::-1])

    def __add__(self, other: TrigramProfile) -> TrigramProfile:
        return TrigramProfile(self.counts + other.counts)

    def log_ratios(self) -> FloatArray:
        """log P(three | source) − log P(three | target) of every place."""
        logs = np.log(self.counts + SMOOTHING)
        weights: FloatArray = logs[0] - logs[1] - (self._log_total(0) - self._log_total(1))
        return weights

    def similarity(self, other: TrigramProfile) -> float:
        """From 1 (the same sides) over 0 (nothing to do with each other) to −1 (exchanged).

        Only threes that both have seen are compared, each as much as the smaller of the two has seen it."""
        seen = np.minimum(self.counts.sum(0), other.counts.sum(0))
        a, b = self.log_ratios(), other.log_ratios()
        norm = np.sqrt((seen * a * a).sum() * (seen * b * b).sum())
        return float((seen * a * b).sum() / norm) if norm else 0.0

    def source_scores(
        self, sources: Sequence[str], targets: Sequence[str], leave_one_out: bool
    ) -> tuple[FloatArray, FloatArray]:
        """How much each source and each target reads like a source, as a mean over its threes.

        `own` says that the profile has learnt from these very rows: each is then weighed as if it had not been."""
        logs = np.log(self.counts + SMOOTHING)
        without = np.log(np.maximum(self.counts - 1, 0) + SMOOTHING) if leave_one_out else logs
        shift = self._log_total(0) - self._log_total(1)
        tables = without[0] - logs[1] - shift, logs[0] - without[1] - shift
        found = []
        for texts, table in zip((sources, targets), tables, strict=True):
            places, owner = trigrams(texts)
            sums = np.bincount(owner, weights=table[places], minlength=len(texts))
            found.append(sums / np.maximum(np.bincount(owner, minlength=len(texts)), 1))
        return found[0], found[1]

    def _log_total(self, side: int) -> float:
        return float(np.log(self.counts[side].sum() + SMOOTHING * NUM_BUCKETS))
