"""Likelihood of a text, ready to be drawn: p(x) = ∏ p(x_t | x_<t), token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.errors import RegardError


@dataclass(frozen=True)
class TokenLikelihood:
    """Likelihood of one token given all previous tokens."""

    piece: str
    log_prob: float
    """natural logarithm of the probability"""
    rank: int
    """1 for the most likely token"""
    top_k: tuple[tuple[str, float], ...]
    """most likely tokens with probabilities, best first"""

    @property
    def probability(self) -> float:
        return math.exp(self.log_prob)

    @property
    def surprisal(self) -> float:
        """Surprisal in bits."""
        return -self.log_prob / math.log(2)


@dataclass(frozen=True)
class TextLikelihood:
    """Log-likelihood of a text, per token and in total. Totals exclude the first `prompt_length` tokens."""

    tokens: tuple[TokenLikelihood, ...]
    vocab_size: int
    num_bytes: int
    """bytes of the text without the prompt"""
    prompt_length: int = 0
    first_row: int = 0
    """map row of the first token; negative if the map starts at a later token"""

    def __post_init__(self) -> None:
        if not self.tokens[self.prompt_length :]:
            raise RegardError("Nothing to explain: the text is empty.")
        if not all(math.isfinite(guess.log_prob) for guess in self.tokens):
            raise RegardError("Token probabilities are NaN or infinite: the model has diverged. No figure was drawn.")

    @property
    def uniform_surprisal(self) -> float:
        """Surprisal in bits of a uniform distribution over the vocabulary: upper end of the color scale."""
        return math.log2(max(self.vocab_size, 2))

    @property
    def log_prob(self) -> float:
        """Natural logarithm of the probability of the text without the prompt."""
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
