"""What a model expected of a text, ready to be drawn: p(x) = ∏ p(x_t | x_<t), token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.errors import RegardError


@dataclass(frozen=True)
class TokenLikelihood:
    """One token of the text, as it was expected from those before it."""

    piece: str
    log_prob: float
    """the natural logarithm of its probability"""
    rank: int
    """1 where nothing was likelier"""
    top_k: tuple[tuple[str, float], ...]
    """what was most likely here, with its probability, best first"""

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)

    @property
    def surprisal(self) -> float:
        """In bits."""
        return -self.log_prob / math.log(2)


@dataclass(frozen=True)
class TextLikelihood:
    """A text as it was expected. Sums are over what comes after the first `given` tokens."""

    tokens: tuple[TokenLikelihood, ...]
    vocab_size: int
    num_bytes: int
    """bytes of the text that is summed over"""
    prompt_length: int = 0
    first_row: int = 0
    """the row of the first token in the maps, which may begin later (then it is negative)"""

    def __post_init__(self) -> None:
        if not self.tokens[self.prompt_length :]:
            raise RegardError("Nothing to explain: the text is empty.")
        if not all(math.isfinite(guess.log_prob) for guess in self.tokens):
            raise RegardError("Token probabilities are NaN or infinite: the model has diverged. No figure was drawn.")

    @property
    def uniform_surprisal(self) -> float:
        """The surprise, in bits, of any token to one who knows nothing: what the colours end at."""
        return math.log2(max(self.vocab_size, 2))

    @property
    def log_prob(self) -> float:
        """The natural logarithm of the probability of the whole."""
        return math.fsum(guess.log_prob for guess in self.tokens[self.prompt_length :])

    @property
    def perplexity(self) -> float:
        mean = -self.log_prob / len(self.tokens[self.prompt_length :])
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        return -self.log_prob / math.log(2) / max(self.num_bytes, 1)

    def facts(self) -> dict[str, str]:
        many = len(self.tokens) - self.prompt_length
        return {
            "tokens": f"{many:,} after a prompt of {self.prompt_length:,}" if self.prompt_length else f"{many:,}",
            "log-probability": f"{self.log_prob:,.2f}",
            "perplexity": f"{self.perplexity:,.2f}",
            "bits per byte": f"{self.bits_per_byte:.3f}",
        }
