"""The likeliest tokens of each row, without ordering a whole vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 64
"""Tokens of which only the highest is looked at first."""


def likeliest(logits: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `count` highest log-probabilities of each row, highest first, and their tokens."""
    logs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
    # the logits themselves have the same order, in half the bytes where they are of 16 bits
    return highest(logs, count, logits)


def highest(
    values: Float[Tensor, "R V"], count: int, order: Float[Tensor, "R V"] | None = None
) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"]]:
    """The `count` highest values of each row, highest first, and where they stand; `order` is anything of the same order.

    The k highest lie in the k chunks with the highest maxima: those are found first, then the places within them."""
    rows, V = values.shape
    count = min(count, V)
    chunks = V // CHUNK
    if chunks < 2 * count:
        found, places = values.topk(count)
        return found, places
    order = values if order is None else order
    which = order[:, : chunks * CHUNK].view(rows, chunks, CHUNK).amax(-1).topk(count).indices
    body = values[:, : chunks * CHUNK].view(rows, chunks, CHUNK)
    near = body.gather(1, which[..., None].expand(-1, -1, CHUNK)).flatten(1)
    names = (which[..., None] * CHUNK + torch.arange(CHUNK, device=values.device)).flatten(1)
    rest = V - chunks * CHUNK
    if rest:  # what no whole chunk holds is always looked at
        near = torch.cat([near, values[:, -rest:]], 1)
        names = torch.cat([names, torch.arange(V - rest, V, device=values.device).expand(rows, -1)], 1)
    found, places = near.topk(count)
    return found, names.gather(1, places)
