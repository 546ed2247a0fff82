"""Attention between tokens and values of tokens, ready to be drawn."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from regard.draw.text import check_choice
from regard.errors import RegardError

MIN_UNIFORM_MULTIPLE: Final = 4
"""Scales of color and brightness end at this multiple of the uniform weight or higher: uniform attention looks uniform."""


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention on one example: `weights[layer, head, query, key]`; rows sum to 1 (0 if masked)."""

    name: str
    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: NDArray[np.floating]
    has_rest_column: bool = False  # True if the first key is the sum of all keys not shown, not used by the color scale
    boundaries: tuple[int, ...] = ()  # first token of each further text in the same sequence, marked by a line
    sqrt_scale: bool = False  # True for a square root color scale, for attention spread over thousands of tokens
    row_kind: Literal["tokens", "layers"] = "tokens"  # if rows are layers, the first dimension of `weights` is 1
    is_gradient: bool = False  # True if the weights are gradient norms, for models without attention
    description: str = "Rows: queries. Columns: keys."  # subtitle of the map

    def __post_init__(self) -> None:
        if not self.weights.size:
            raise RegardError(f"Attention map '{self.name}' is empty: no tokens, layers or heads to draw.")
        if not np.isfinite(self.weights).all():
            raise RegardError(
                f"Attention map '{self.name}' contains NaN or infinite values: the model has diverged. "
                "No figure was drawn."
            )

    @property
    def layers(self) -> int:
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        return int(self.weights.shape[1])

    @property
    def is_single(self) -> bool:
        """True for one layer with one head."""
        return self.layers == self.heads == 1

    def color_max(self, weights: NDArray[np.floating]) -> float:
        """Upper end of the color scale: the largest weight, at least `MIN_UNIFORM_MULTIPLE` times the uniform weight."""
        largest = float(weights[..., int(self.has_rest_column) :].max(initial=0))
        if self.has_rest_column or largest > 1:
            return largest or 1.0
        return min(max(largest, MIN_UNIFORM_MULTIPLE / weights.shape[-1]), 1.0)

    def view(self, layer: int | None, head: int | None) -> NDArray[np.float64]:
        """Matrix (queries, keys) of one layer and head, counted from 1 as in all figures; None: the average."""
        for what, number, many in (("Layer", layer, self.layers), ("Head", head, self.heads)):
            check_choice(f"{what} of attention map '{self.name}'", number, many)
        layers, heads = (slice(None) if at is None else slice(at - 1, at) for at in (layer, head))
        mean: NDArray[np.float64] = self.weights[layers, heads].mean(axis=(0, 1), dtype=np.float64)
        return mean


def sort_cross_first(maps: tuple[AttentionMap, ...]) -> tuple[AttentionMap, ...]:
    """The maps, cross-attention first."""
    return tuple(sorted(maps, key=lambda item: item.name != "cross"))


@dataclass(frozen=True)
class TokenLikelihood:
    """Likelihood of one token given all previous tokens."""

    piece: str
    log_prob: float  # natural logarithm of the probability
    rank: int  # 1 for the most likely token
    top_k: tuple[tuple[str, float], ...]  # most likely tokens with probabilities, best first

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
    num_bytes: int  # bytes of the text without the prompt
    prompt_length: int = 0
    first_row: int = 0  # map row of the first token; negative if the map starts at a later token

    def __post_init__(self) -> None:
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

    def facts(self) -> dict[str, str]:
        """Number of tokens, log-probability, perplexity and bits per byte."""
        many = len(self.tokens) - self.prompt_length
        mean = -self.log_prob / many
        return {
            "tokens": f"{many:,} after a prompt of {self.prompt_length:,}" if self.prompt_length else f"{many:,}",
            "log-probability": f"{self.log_prob:,.2f}",
            "perplexity": f"{math.exp(mean) if mean < 700 else math.inf:,.2f}",
            "bits per byte": f"{-self.log_prob / math.log(2) / max(self.num_bytes, 1):.3f}",
        }


GRADIENT: Final = "gradient × attention"
ROLLOUT: Final = "attention rollout"

PROBABILITIES_TITLE: Final = "Class probabilities"

CHUNK_TOKENS: Final = 24  # Size of the chunks in which long texts are shown or omitted.
PROFILE_BINS: Final = 160  # Maximum number of bars in the profile of a long text.


@dataclass(frozen=True)
class TokenAttribution:
    """Tokens of a text with attributions as fractions of 1; all 0 if no token contributes."""

    title: str  # name of the explained output
    method: str  # `GRADIENT` or `ROLLOUT`
    pieces: tuple[str, ...]
    fractions: NDArray[np.float64]
    special: tuple[bool, ...]  # part of the total, but not colored: large values would hide differences of words
    words: tuple[int, ...]  # word index of each token, increasing
    second_start: int = 0  # position of the second text; 0: there is no second text
    output_positions: tuple[int, ...] = ()  # tokens whose hidden states are the input of the head
    map_index: int = 0  # index of the attention map with the same tokens
    truncations: tuple[tuple[int, int], ...] = ()  # positions with the number of tokens removed before each
    target_kind: str = ""  # kind of the explained output, for example `class`

    def __post_init__(self) -> None:
        if not np.isfinite(self.fractions).all():
            raise RegardError(
                "Attribution contains NaN or infinite values: the model has diverged. No figure was drawn."
            )

    @cached_property
    def plain_fractions(self) -> NDArray[np.float64]:
        """Attribution of each token, 0 for special tokens."""
        return np.where(self.special, 0.0, self.fractions)

    @cached_property
    def word_fractions(self) -> NDArray[np.float64]:
        """Attribution of the whole word for each token, because colors show words. Special tokens have 0."""
        sums = np.bincount(self.words, self.plain_fractions)
        return np.where(self.special, 0.0, sums[np.array(self.words)])

    @cached_property
    def max_fraction(self) -> float:
        """Upper end of the color scale: the largest attribution of a word."""
        return float(self.word_fractions.max(initial=0)) or 1.0

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
        """Short description of the output positions."""
        words = [(self.word_at(at), self.special[at]) for at in self.output_positions]
        return describe_tokens([word if special else f"‘{word}’" for word, special in words])

    def word_at(self, position: int) -> str:
        """The whole word of the token at `position`, without leading space."""
        first, last = (side(self.words, self.words[position]) for side in (bisect_left, bisect_right))
        return "".join(self.pieces[first:last]).strip("␣⏎↵") or self.pieces[position]

    def top_words(self, count: int) -> list[tuple[str, float]]:
        """The words with the largest attribution, summed over tokens, without special tokens."""
        sums = np.bincount(self.words, self.plain_fractions)
        best = np.argsort(-sums, kind="stable")[:count]
        return [(self.word_at(self.words.index(int(word))), float(sums[word])) for word in best if sums[word] > 0]

    def note(self) -> str:
        """Output position, truncation, special tokens, and the words with the largest fractions."""
        output = f"output position: {self.output_names}" if self.method == GRADIENT and self.output_positions else ""
        hatched = float(self.fractions[np.array(self.special)].sum())
        special = f"special tokens: {percent(hatched)} (hatched)" if any(self.special) else ""
        best = ", ".join(f"{word} {percent(share)}" for word, share in self.top_words(3))
        lost = sum(many for _, many in self.truncations)
        cut = f"truncated: {lost:,} token{'s'[: lost > 1]} removed" if lost else ""
        return " · ".join(
            part for part in (output, cut, special, f"top tokens: {best}" if best else "no token contributed") if part
        )

    def top_passages(self, max_tokens: int) -> list[tuple[int, int]]:
        """The start of the text and the chunks with the largest attribution, (start, end), with at most `max_tokens` tokens."""
        if len(self.pieces) <= max_tokens:
            return [(0, len(self.pieces))]
        starts = np.arange(0, len(self.pieces), CHUNK_TOKENS)
        sums = np.add.reduceat(self.plain_fractions, starts)
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

    def layout(self, max_tokens: int) -> Iterator[tuple[Literal["token", "tokens", "removed", "second text"], int]]:
        """The shown passages in text order: "token" with the index of a token, "tokens" with the number of omitted tokens,
        "removed" with the number of tokens truncated by the model input, and "second text" before the second text."""
        last, removed = 0, dict(self.truncations)
        for begin, end in [*self.top_passages(max_tokens), (len(self.pieces), len(self.pieces))]:
            if begin > last:
                yield "tokens", begin - last
            for index in range(begin, end):
                if index and index == self.second_start:
                    yield "second text", index
                if index in removed:
                    yield "removed", removed[index]
                yield "token", index
            last = end

    def profile(self, max_bins: int) -> NDArray[np.float64]:
        """Sums over segments of equal size, without special tokens."""
        size = -(-len(self.pieces) // max_bins)
        return np.add.reduceat(self.plain_fractions, np.arange(0, len(self.pieces), size))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 or fraction == 0 else f"{100 * fraction:.2g} %"


def describe_tokens(names: Sequence[str]) -> str:
    """Names of up to three tokens, or the number of tokens."""
    return f"all {len(names):,} tokens" if len(names) > 3 else " and ".join(names)


@dataclass(frozen=True)
class DecisionAttribution:
    """A prediction with candidate probabilities and token attributions."""

    prediction: str
    probabilities: tuple[tuple[str, float], ...]
    attributions: tuple[TokenAttribution, ...]
    probabilities_title: str = PROBABILITIES_TITLE


@dataclass(frozen=True)
class ActSteps:
    """Computation steps of each token of one text, at most `max_steps`."""

    title: str
    pieces: tuple[str, ...]
    steps: tuple[int, ...]
    max_steps: int

    def note(self) -> str:
        mean = sum(self.steps) / len(self.steps)
        return f"{mean:.1f} of {self.max_steps} steps on average (min {min(self.steps)}, max {max(self.steps)})."
