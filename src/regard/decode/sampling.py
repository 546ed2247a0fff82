"""Drawing a token. Each row has its own random stream keyed by (seed, request, position): its neighbours change nothing."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


def filter_logits(
    logits: Float[Tensor, "B V"], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Float[Tensor, "B V"]:
    """The logits that are drawn from: divided by the temperature, all but the likeliest set to -inf, in this order.

    `top_k` keeps k tokens and what equals the last of them (0: all), `top_p` the fewest tokens that together have at
    least that probability (of equal ones the first), `min_p` those with at least this share of the likeliest's."""
    # the likeliest becomes 0 first, so that a tiny temperature leaves it finite
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the likeliest token always stays: nothing is before it
        logits = logits.scatter(-1, order, ordered.masked_fill(before >= top_p, -torch.inf))
    if min_p > 0.0:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    return logits


def sample(logits: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The token at which the cumulated probability passes the row's chance in [0, 1)."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # the last sum may be 1 - 1e-16: scale the chance so that it is always passed, and by a possible token
    found = torch.searchsorted(cumulated, (uniforms.double() * cumulated[:, -1])[:, None], right=True)
    return found[:, 0].clamp(max=logits.shape[-1] - 1)


def uniform_numbers(seed: int, *keys: np.ndarray) -> Tensor:
    """One number in [0, 1) for each of the keys (request, copy, position), from the seed alone; keys may be broadcast."""
    mixed = _splitmix64(np.full(keys[0].shape, seed % 2**64, dtype=np.uint64))
    for key in keys:
        mixed = _splitmix64(mixed ^ key.astype(np.uint64))
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """splitmix64: neighbouring keys give unrelated numbers."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
