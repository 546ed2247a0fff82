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
ROLLED: Final = "attention rolled out"

ASKED: Final = "How likely each answer was"

CHUNK: Final = 24
"""Tokens that are shown or left out together."""
BARS: Final = 160
"""Stretches of a long text that are measured as wholes."""


@dataclass(frozen=True)
class Counted:
    """A text as its tokens, and how much each counted: parts of 1 (all 0 where nothing did)."""

    title: str
    """for what"""
    way: str
    """how that was found"""
    pieces: tuple[str, ...]
    shares: NDArray[np.float64]
    special: tuple[bool, ...]
    """tokens that stand for no word: they count too, but have no colour, or words could not be told apart beside them"""
    words: tuple[int, ...]
    """the number of the word that each token belongs to"""
    second: int = 0
    """where the second text begins; 0 where there is one"""
    at: tuple[int, ...] = ()
    """the tokens at which the answer was read"""
    map: int = 0
    """the map of the same tokens"""
    seams: tuple[tuple[int, int], ...] = ()
    """tokens before which others were left out because the text was too long, and how many"""

    def __post_init__(self) -> None:
        many = {len(self.pieces), len(self.shares), len(self.special), len(self.words)}
        if len(many) > 1 or not self.pieces:
            raise ValueError(f"'{self.title}': pieces, shares, marks and words of {sorted(many)} tokens")
        if not np.isfinite(self.shares).all():
            raise RegardError(
                "what counted for the answer are no numbers (NaN or infinite): the model has diverged, and there is "
                "nothing true to draw."
            )

    @cached_property
    def whole(self) -> NDArray[np.float64]:
        """Of each token what its whole word counted: colours are of words, as what is told of them. Special tokens have 0."""
        sums = np.bincount(self.words, np.where(self.special, 0.0, self.shares))
        found: NDArray[np.float64] = np.where(self.special, 0.0, sums[np.array(self.words)])
        return found

    @cached_property
    def most(self) -> float:
        """What the strongest colour means: the largest share of a word."""
        return float(self.whole.max(initial=0)) or 1.0

    @property
    def of_special(self) -> float:
        """What special tokens took of the whole."""
        return float(self.shares[np.array(self.special)].sum())

    @property
    def heading(self) -> str:
        """Gradients are of one answer; what attention brought is there whatever was answered."""
        return f"What counted for ‘{self.title}’" if self.way == GRADIENT else f"What reached {self.who}"

    @property
    def unit(self) -> str:
        return "of all that counted" if self.way == GRADIENT else "of all that reached it"

    @property
    def who(self) -> str:
        """The tokens at which the answer was read, in a few words."""
        return told([self.word(at) if self.special[at] else f"‘{self.word(at)}’" for at in self.at])

    def word(self, at: int) -> str:
        """The whole word that a token belongs to, without the blank before it."""
        first = last = at
        while first and self.words[first - 1] == self.words[at]:
            first -= 1
        while last + 1 < len(self.words) and self.words[last + 1] == self.words[at]:
            last += 1
        return "".join(self.pieces[first : last + 1]).strip("␣⏎↵") or self.pieces[at]

    def strongest(self, many: int) -> list[tuple[str, float]]:
        """The words that counted most, the sums of their tokens; no special ones."""
        sums = np.bincount(self.words, np.where(self.special, 0.0, self.shares))
        best = np.argsort(-sums, kind="stable")[:many]
        return [(self.word(self.words.index(int(word))), float(sums[word])) for word in best if sums[word] > 0]

    def note(self) -> str:
        """Where it was read, and what counted most."""
        asked = f"{self.way}, read at {self.who}" if self.way == GRADIENT else self.way
        special = f"special tokens took {percent(self.of_special)}, hatched" if any(self.special) else ""
        best = ", ".join(f"{word} {percent(share)}" for word, share in self.strongest(3))
        lost = sum(many for _, many in self.seams)
        cut = f"too long: {lost:,} token{'s'[: lost > 1]} left out" if lost else ""
        return " · ".join(
            part for part in (asked, cut, special, f"most: {best}" if best else "no word counted") if part
        )

    def passages(self, most: int) -> list[tuple[int, int]]:
        """Stretches of at most `most` tokens in all: those that counted most, in the order of the text, and its beginning."""
        if len(self.pieces) <= most:
            return [(0, len(self.pieces))]
        starts = np.arange(0, len(self.pieces), CHUNK)
        sums = np.add.reduceat(np.where(self.special, 0.0, self.shares), starts)
        sums[0] = np.inf
        chosen = np.sort(np.argsort(-sums, kind="stable")[: max(most // CHUNK, 1)])
        found: list[tuple[int, int]] = []
        for begin in (starts[chosen]).tolist():
            end = min(begin + CHUNK, len(self.pieces))
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
                found.append((begin, end))
        return found

    def profile(self, most: int) -> NDArray[np.float64]:
        """The shares of stretches of equal size along the whole text, special tokens left out."""
        size = -(-len(self.pieces) // most)
        plain = np.where(self.special, 0.0, self.shares)
        return np.add.reduceat(plain, np.arange(0, len(plain), size))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.2g} %"


def told(names: Sequence[str]) -> str:
    """Some tokens in a few words."""
    return f"all {len(names):,} tokens" if len(names) > 3 else " and ".join(names)


@dataclass(frozen=True)
class Decided:
    """What was said, what else could have been, and what counted for it."""

    said: str
    chances: tuple[tuple[str, float], ...]
    counted: tuple[Counted, ...]
    asked: str = ASKED
