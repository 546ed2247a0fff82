"""Sampling with one random stream per row, keyed by (seed, request, position) and independent of the batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


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
    found = torch.searchsorted(cumulated, (uniforms.double() * cumulated[:, -1])[:, None], right=True)
    return found[:, 0].clamp(max=logits.shape[-1] - 1)


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
