"""From the logits of a step to the next token: repetition penalty, filters, sampling, and the top k.

Samples use one random stream per row, keyed by (seed, request, sample, position) and independent of the batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.types import Batch

CHUNK_SIZE = 64
"""Tokens per chunk of `chunked_topk`."""


class RepetitionPenalty:
    """Tokens of prompt and output of each row. R rows, C columns.

    Token ids need less time than a mask over the vocabulary: a step gathers a few hundred columns, not 50,000. Unused
    columns repeat the first token of the prompt, without effect."""

    def __init__(self, batch: Batch, penalty: float, max_tokens: int) -> None:
        prompt, lengths = batch.prompt[:, :max_tokens], batch.prompt_lengths
        P = prompt.shape[1]
        self.penalty = penalty
        self.ids = prompt[:, :1].repeat(1, max_tokens)
        self.next_column = torch.full_like(prompt[:, 0], P) if lengths is None else lengths.clone()
        """(R,) column for the next token"""
        real = torch.arange(P, device=prompt.device) < self.next_column[:, None]
        self.ids[:, :P] = torch.where(real, prompt, prompt[:, :1])

    def apply(self, values: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Logits or log-probabilities, with values of past tokens divided by the penalty, or multiplied if negative."""
        past = values.gather(1, self.ids)
        return values.scatter(1, self.ids, torch.where(past < 0, past * self.penalty, past / self.penalty))

    def append(self, tokens: Int[Tensor, "R"]) -> None:
        """Append one token per row; finished rows overwrite the last column."""
        self.ids.scatter_(1, self.next_column[:, None], tokens[:, None])
        self.next_column.add_(1).clamp_(max=self.ids.shape[1] - 1)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the rows of beams, in place because a CUDA graph requires fixed addresses."""
        self.ids.copy_(self.ids.index_select(0, rows))

    def select_rows(self, rows: Tensor) -> None:
        self.ids, self.next_column = self.ids[rows], self.next_column[rows]

    def append_rows(self, other: RepetitionPenalty) -> None:
        columns = max(self.ids.shape[1], other.ids.shape[1])
        both = [torch.cat([ids, ids[:, :1].expand(-1, columns - ids.shape[1])], 1) for ids in (self.ids, other.ids)]
        self.ids = torch.cat(both)
        self.next_column = torch.cat([self.next_column, other.next_column])

    def tensors(self) -> list[Tensor]:
        return [self.ids, self.next_column]


def filter_logits(
    logits: Float[Tensor, "B V"], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Float[Tensor, "B V"]:
    """Logits after temperature, top-k, top-p and min-p; removed tokens have -inf.

    `top_k` keeps k tokens and ties with the last (0: all), `top_p` the smallest set with at least this probability (the
    first of equal tokens), `min_p` tokens with at least this fraction of the maximum probability."""
    # subtract the maximum first: a very small temperature must not overflow
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the most likely token is always kept: its sum is 0
        logits = logits.scatter(-1, order, ordered.masked_fill(before >= top_p, -torch.inf))
    if min_p > 0.0:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    return logits


def sample(logits: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Token at which the cumulative probability exceeds the uniform number in [0, 1) of each row."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # rounding may leave the last sum below 1: scale by this sum, so that a possible token is found
    tokens = torch.searchsorted(cumulated, (uniforms.double() * cumulated[:, -1])[:, None], right=True)
    return tokens[:, 0].clamp(max=logits.shape[-1] - 1)


def uniform_numbers(seed: int, *keys: np.ndarray) -> Tensor:
    """Uniform numbers in [0, 1) from the seed and the keys (request, sample, position), broadcast."""
    mixed = _splitmix64(np.full(keys[0].shape, seed % 2**64, dtype=np.uint64))
    for key in keys:
        mixed = _splitmix64(mixed ^ key.astype(np.uint64))
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """splitmix64: adjacent keys give independent numbers."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def chunked_topk(
    values: Float[Tensor, "R V"], k: int, sort_key: Float[Tensor, "R V"] | None = None
) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `k` highest values of each row, highest first, and their indices. `sort_key` has the order of the values.

    The k highest values are in the k chunks with the highest maxima: the vocabulary is not sorted."""
    rows, V = values.shape
    k, chunks = min(k, V), V // CHUNK_SIZE
    if chunks < 2 * k:
        highest, tokens = values.topk(k)
        return highest, tokens
    sort_key = values if sort_key is None else sort_key
    best = sort_key[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE).amax(-1).topk(k).indices[..., None]
    whole = values[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE)
    candidates = whole.gather(1, best.expand(-1, -1, CHUNK_SIZE)).flatten(1)
    tokens = (best * CHUNK_SIZE + torch.arange(CHUNK_SIZE, device=values.device)).flatten(1)
    rest = V - chunks * CHUNK_SIZE
    if rest:  # the incomplete last chunk is always included
        candidates = torch.cat([candidates, values[:, -rest:]], 1)
        tokens = torch.cat([tokens, torch.arange(V - rest, V, device=values.device).expand(rows, -1)], 1)
    highest, places = candidates.topk(k)
    return highest, tokens.gather(1, places)
