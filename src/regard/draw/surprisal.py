"""What a model expected of a text, ready to be drawn: p(x) = ∏ p(x_t | x_<t), token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.errors import RegardError


@dataclass(frozen=True)
class Guess:
    """One token of the text, as it was expected from those before it."""

    piece: str
    log: float
    """the natural logarithm of its probability"""
    rank: int
    """1 where nothing was likelier"""
    likeliest: tuple[tuple[str, float], ...]
    """what was most likely here, with its probability, best first"""

    @property
    def chance(self) -> float:
        return math.exp(self.log)

    @property
    def surprise(self) -> float:
        """In bits."""
        return -self.log / math.log(2)


@dataclass(frozen=True)
class Reading:
    """A text as it was expected. Sums are over what comes after the first `given` tokens."""

    guesses: tuple[Guess, ...]
    vocabulary: int
    size: int
    """bytes of the text that is summed over"""
    given: int = 0
    row: int = 0
    """the row of the first token in the maps, which may begin later (then it is negative)"""

    def __post_init__(self) -> None:
        if not self.guesses[self.given :]:
            raise RegardError("there is nothing to explain: the text is empty.")
        if not all(math.isfinite(guess.log) for guess in self.guesses):
            raise RegardError(
                "the probabilities of the text are not numbers (NaN or infinite): the model has diverged, and there is "
                "nothing true to draw."
            )

    @property
    def evenly(self) -> float:
        """The surprise, in bits, of any token to one who knows nothing: what the colours end at."""
        return math.log2(max(self.vocabulary, 2))

    @property
    def log(self) -> float:
        """The natural logarithm of the probability of the whole."""
        return math.fsum(guess.log for guess in self.guesses[self.given :])

    @property
    def perplexity(self) -> float:
        mean = -self.log / len(self.guesses[self.given :])
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        return -self.log / math.log(2) / max(self.size, 1)

    def facts(self) -> dict[str, str]:
        many = len(self.guesses) - self.given
        return {
            "tokens": f"{many:,} after {self.given:,} that were given" if self.given else f"{many:,}",
            "log-probability": f"{self.log:,.2f}",
            "perplexity": f"{self.perplexity:,.2f}",
            "bits per byte": f"{self.bits_per_byte:.3f}",
        }
