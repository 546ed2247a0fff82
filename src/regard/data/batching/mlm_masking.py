"""Token masking for masked language modeling (MLM).

In a row with n non-special tokens, round(mask_prob · n) tokens are selected, at least one. As in BERT, a selected token is
replaced by the mask token (80 %) or by a random token (10 %), or kept unchanged (10 %).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import Indices

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""Fractions of the selected tokens replaced by the mask token and by a random token."""


class MaskedRows(NamedTuple):
    """Input ids, selected positions and original ids of each row."""

    inputs: list[Indices]
    positions: list[Indices]
    labels: list[Indices]


@dataclass(frozen=True, eq=False)
class TokenMasker:
    mask_id: int
    """id of the mask token"""
    maskable: npt.NDArray[np.bool_]
    """(V,) True for non-special ids: only non-special ids are selected or used as random tokens"""
    mask_prob: float
    word_starts: Callable[[Indices], npt.NDArray[np.bool_]] | None = None
    """marks the first token of each word, for whole-word masking"""

    def num_masked(self, num_tokens: npt.ArrayLike) -> Indices:
        """Number of selected tokens in rows with `num_tokens` non-special tokens."""
        many = np.asarray(num_tokens, dtype=np.int64)
        return np.where(many > 0, np.maximum(np.rint(self.mask_prob * many), 1), 0).astype(np.int64)

    def max_masked(self, num_tokens: int, num_rows: int, max_length: int, num_special: int) -> int:
        """Maximum number of selected tokens in `num_rows` rows of `num_tokens` tokens in total, special tokens included."""
        sizes = np.arange(1, max(max_length - num_special, 1) + 1)
        over = float((self.num_masked(sizes) - self.mask_prob * (sizes + num_special)).max())
        return int(self.mask_prob * num_tokens + num_rows * max(over, 0.0)) + 1

    def __call__(self, rows: Sequence[npt.NDArray[np.integer]], rng: np.random.Generator) -> MaskedRows:
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        ids = np.concatenate(rows).astype(np.int64)
        open_ = self.maskable[ids]
        of = np.repeat(np.arange(len(rows)), lengths)
        wanted = self.num_masked(np.bincount(of[open_], minlength=len(rows)))
        pick = self._pick_tokens if self.word_starts is None else self._pick_words
        places = pick(ids, open_, of, wanted, rng)
        read, right = ids.copy(), ids[places]
        read[places] = self._replacements(right, rng)
        ends = np.cumsum(lengths)
        parts = np.searchsorted(places, ends)
        inside = places - (ends - lengths)[of[places]]
        return MaskedRows(np.split(read, ends[:-1]), np.split(inside, parts[:-1]), np.split(right, parts[:-1]))

    @cached_property
    def _maskable_ids(self) -> Indices:
        return np.flatnonzero(self.maskable)

    def _pick_tokens(
        self, ids: Indices, open_: npt.NDArray[np.bool_], of: Indices, wanted: Indices, random: np.random.Generator
    ) -> Indices:
        """Flat indices of `wanted` random tokens per row, sorted."""
        at = np.flatnonzero(open_)
        at = at[np.lexsort((random.random(len(at)), of[at]))]
        first = np.searchsorted(of[at], np.arange(len(wanted)))
        return np.sort(at[np.arange(len(at)) - first[of[at]] < wanted[of[at]]])

    def _pick_words(
        self, ids: Indices, open_: npt.NDArray[np.bool_], of: Indices, wanted: Indices, random: np.random.Generator
    ) -> Indices:
        """Flat indices of random whole words, sorted; words longer than the remaining number of tokens are skipped.

        If all words of a row are too long, single tokens are selected."""
        assert self.word_starts is not None
        chosen = []
        limits = np.searchsorted(of, np.arange(len(wanted) + 1))
        for first, last, left in zip(limits, limits[1:], wanted, strict=False):
            begins = first + np.flatnonzero(self.word_starts(ids[first:last]))
            begins, ends = begins[open_[begins]], np.append(begins[1:], last)[open_[begins]]
            taken: list[Indices] = []
            for word in random.permutation(len(begins)) if left else ():
                if (size := ends[word] - begins[word]) <= left:
                    taken.append(np.arange(begins[word], ends[word]))
                    left -= size
                if not left:
                    break
            if not taken and left:
                taken.append(random.choice(first + np.flatnonzero(open_[first:last]), left, replace=False))
            chosen += taken
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)

    def _replacements(self, right: Indices, random: np.random.Generator) -> Indices:
        """Input ids that replace the selected tokens `right`."""
        chance, many = random.random(len(right)), len(self._maskable_ids)
        other = random.integers(0, max(many - 1, 1), len(right))
        other += other >= np.searchsorted(self._maskable_ids, right)  # skips the original id
        changed = np.where(
            chance < MASK_FRACTION + RANDOM_FRACTION, self._maskable_ids[np.minimum(other, many - 1)], right
        )
        return np.where(chance < MASK_FRACTION, self.mask_id, changed)
