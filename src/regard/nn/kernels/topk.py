"""The highest values of rows over a vocabulary, without sorting the vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK_SIZE = 64  # Tokens per chunk.


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
