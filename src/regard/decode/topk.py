"""Top-k tokens of each row, without sorting the vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_SIZE = 64
"""Tokens per chunk; only the maximum of each chunk is compared first."""


def top_log_probs(logits: Float[Tensor, "R V"], k: int) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `k` highest log-probabilities of each row, highest first, and their tokens."""
    logs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    # logits have the same order, and 16-bit logits half the bytes
    return chunked_topk(logs, k, logits)


def chunked_topk(
    values: Float[Tensor, "R V"], k: int, sort_key: Float[Tensor, "R V"] | None = None
) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `k` highest values of each row, highest first, and their indices. `sort_key` has the order of the values.

    The k highest values are in the k chunks with the highest maxima."""
    rows, V = values.shape
    k = min(k, V)
    chunks = V // CHUNK_SIZE
    if chunks < 2 * k:
        found, places = values.topk(k)
        return found, places
    sort_key = values if sort_key is None else sort_key
    which = sort_key[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE).amax(-1).topk(k).indices
    body = values[:, : chunks * CHUNK_SIZE].view(rows, chunks, CHUNK_SIZE)
    near = body.gather(1, which[..., None].expand(-1, -1, CHUNK_SIZE)).flatten(1)
    names = (which[..., None] * CHUNK_SIZE + torch.arange(CHUNK_SIZE, device=values.device)).flatten(1)
    rest = V - chunks * CHUNK_SIZE
    if rest:  # the incomplete last chunk is always included
        near = torch.cat([near, values[:, -rest:]], 1)
        names = torch.cat([names, torch.arange(V - rest, V, device=values.device).expand(rows, -1)], 1)
    found, places = near.topk(k)
    return found, names.gather(1, places)
