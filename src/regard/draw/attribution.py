"""What was decided, and how much each token counted for it, ready to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from regard.errors import RegardError

GRADIENT: Final = "gradient × attention"
ROLLOUT: Final = "attention rollout"

PROBABILITIES_TITLE: Final = "Class probabilities"

CHUNK_TOKENS: Final = 24
"""Tokens that are shown or left out together."""
PROFILE_BINS: Final = 160
"""Stretches of a long text that are measured as wholes."""


@dataclass(frozen=True)
class TokenAttribution:
    """A text as its tokens, and how much each counted: parts of 1 (all 0 where nothing did)."""

    title: str
    """for what"""
    method: str
    """how that was found"""
    pieces: tuple[str, ...]
    fractions: NDArray[np.float64]
    special: tuple[bool, ...]
    """tokens that stand for no word: they count too, but have no colour, or words could not be told apart beside them"""
    words: tuple[int, ...]
    """the number of the word that each token belongs to"""
    second_start: int = 0
    """where the second text begins; 0 where there is one"""
    output_positions: tuple[int, ...] = ()
    """the tokens at which the answer was read"""
    map_index: int = 0
    """the map of the same tokens"""
    truncations: tuple[tuple[int, int], ...] = ()
    """tokens before which others were left out because the text was too long, and how many"""
    target_kind: str = ""
    """kind of the explained output, for example `class`"""

    def __post_init__(self) -> None:
        many = {len(self.pieces), len(self.fractions), len(self.special), len(self.words)}
        if len(many) > 1 or not self.pieces:
            raise ValueError(
                f"'{self.title}': pieces, fractions, special and words must have one length, got {sorted(many)}"
            )
        if not np.isfinite(self.fractions).all():
            raise RegardError(
                "Attribution contains NaN or infinite values: the model has diverged. No figure was drawn."
            )

    @cached_property
    def word_fractions(self) -> NDArray[np.float64]:
        """Of each token what its whole word counted: colours are of words, as what is told of them. Special tokens have 0."""
        sums = np.bincount(self.words, np.where(self.special, 0.0, self.fractions))
        found: NDArray[np.float64] = np.where(self.special, 0.0, sums[np.array(self.words)])
        return found

    @cached_property
    def max_fraction(self) -> float:
        """What the strongest colour means: the largest share of a word."""
        return float(self.word_fractions.max(initial=0)) or 1.0

    @property
    def special_fraction(self) -> float:
        """What special tokens took of the whole."""
        return float(self.fractions[np.array(self.special)].sum())

    @property
    def heading(self) -> str:
        """The name of the method and of the explained output. Rollout is independent of the prediction."""
        if self.method == GRADIENT:
            return f"Attribution for {self.target_kind} ‘{self.title}’ (gradient × attention)".replace("  ", " ")
        return f"Attention rollout to {self.output_names}"

    @property
    def description(self) -> str:
        """One sentence about the method, with the paper."""
        if self.method == GRADIENT:
            return (
                f"How much each token contributed to this {self.target_kind or 'output'}: attention weighted by its "
                "gradient, accumulated over layers (Chefer et al. 2021)."
            )
        return (
            f"How much of each input token is mixed into {self.output_names} after all layers "
            f"(Abnar & Zuidema 2020). Independent of the {self.target_kind or 'prediction'}."
        )

    @property
    def unit(self) -> str:
        return "of total attribution" if self.method == GRADIENT else "of total rollout weight"

    @property
    def output_names(self) -> str:
        """The tokens at which the answer was read, in a few words."""
        return describe_tokens(
            [self.word_at(at) if self.special[at] else f"‘{self.word_at(at)}’" for at in self.output_positions]
        )

    def word_at(self, position: int) -> str:
        """The whole word that a token belongs to, without the blank before it."""
        first = last = position
        while first and self.words[first - 1] == self.words[position]:
            first -= 1
        while last + 1 < len(self.words) and self.words[last + 1] == self.words[position]:
            last += 1
        return "".join(self.pieces[first : last + 1]).strip("␣⏎↵") or self.pieces[position]

    def top_words(self, count: int) -> list[tuple[str, float]]:
        """The words that counted most, the sums of their tokens; no special ones."""
        sums = np.bincount(self.words, np.where(self.special, 0.0, self.fractions))
        best = np.argsort(-sums, kind="stable")[:count]
        return [(self.word_at(self.words.index(int(word))), float(sums[word])) for word in best if sums[word] > 0]

    def note(self) -> str:
        """Output position, truncation, special tokens, and the words with the largest fractions."""
        output = f"output position: {self.output_names}" if self.method == GRADIENT and self.output_positions else ""
        special = f"special tokens: {percent(self.special_fraction)} (hatched)" if any(self.special) else ""
        best = ", ".join(f"{word} {percent(share)}" for word, share in self.top_words(3))
        lost = sum(many for _, many in self.truncations)
        cut = f"truncated: {lost:,} token{'s'[: lost > 1]} removed" if lost else ""
        return " · ".join(
            part for part in (output, cut, special, f"top tokens: {best}" if best else "no token contributed") if part
        )

    def top_passages(self, max_tokens: int) -> list[tuple[int, int]]:
        """Stretches of at most `most` tokens in all: those that counted most, in the order of the text, and its beginning."""
        if len(self.pieces) <= max_tokens:
            return [(0, len(self.pieces))]
        starts = np.arange(0, len(self.pieces), CHUNK_TOKENS)
        sums = np.add.reduceat(np.where(self.special, 0.0, self.fractions), starts)
        sums[0] = np.inf
        chosen = np.sort(np.argsort(-sums, kind="stable")[: max(max_tokens // CHUNK_TOKENS, 1)])
        found: list[tuple[int, int]] = []
        for begin in (starts[chosen]).tolist():
            end = min(begin + CHUNK_TOKENS, len(self.pieces))
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
                found.append((begin, end))
        return found

    def profile(self, max_bins: int) -> NDArray[np.float64]:
        """The shares of stretches of equal size along the whole text, special tokens left out."""
        size = -(-len(self.pieces) // max_bins)
        plain = np.where(self.special, 0.0, self.fractions)
        return np.add.reduceat(plain, np.arange(0, len(plain), size))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 or fraction == 0 else f"{100 * fraction:.2g} %"


def describe_tokens(names: Sequence[str]) -> str:
    """Some tokens in a few words."""
    return f"all {len(names):,} tokens" if len(names) > 3 else " and ".join(names)


@dataclass(frozen=True)
class DecisionAttribution:
    """What was said, what else could have been, and what counted for it."""

    prediction: str
    probabilities: tuple[tuple[str, float], ...]
    attributions: tuple[TokenAttribution, ...]
    probabilities_title: str = PROBABILITIES_TITLE
