"""Number of rows in one search, limited by memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.nn.blocks.incremental import IncrementalDecoder
from regard.nn.recurrent.recurrent_state import RecurrentSizes
from regard.types import Batch

DEFAULT_BUDGET = 2 * 2**30
"""Bytes for the tensors of a search, without the weights."""
MEMORY_DIVISOR = 8
"""A search may use 1/8 of the GPU memory if this exceeds DEFAULT_BUDGET, because up to six graphs are cached."""
BYTES_PER_LOGIT = 48
"""Bytes per row and vocabulary entry during sampling: logits, filtered logits, float64 probabilities and sums."""


@dataclass(frozen=True)
class BodySizes:
    """Sizes of a body, for the memory of a row."""

    depth: int
    width: int
    vocab_size: int
    element_size: int
    """bytes per weight"""

    @classmethod
    def from_body(cls, body: Any) -> BodySizes | None:
        """Sizes of a body with a KV cache; None for other bodies."""
        if not isinstance(body, IncrementalDecoder):
            return None
        table = body.tokens.table.weight
        return cls(body.decoder.depth, table.shape[1], table.shape[0], table.element_size())


def max_rows(body: Any, batch: Batch, new_tokens: int, beams: int) -> int | None:
    """Maximum number of rows for this batch, number of new tokens and of beams; None if the body has no known sizes."""
    sizes, budget = BodySizes.from_body(body), search_budget(batch.inputs.device)
    if sizes is not None:
        return max_cached_rows(sizes, batch.prompt.shape[1] + _context_length(body, batch), new_tokens, beams, budget)
    recurrent = body.recurrent_sizes(batch)
    if recurrent is not None:
        return max_recurrent_rows(recurrent, next(body.parameters()).element_size(), beams, budget)
    return None


def _context_length(body: Any, batch: Batch) -> int:
    """Number of cross-attention keys: source tokens, or cells of the image grid. 0 for decoder-only models."""
    if batch.decoder_inputs is None:
        return 0
    if batch.inputs.ndim == 2:
        return batch.inputs.shape[1]
    grid = body.grid(batch)
    return 0 if grid is None else math.prod(grid)


def max_recurrent_rows(
    state_size: RecurrentSizes, element_size: int, beams: int = 1, budget: int = DEFAULT_BUDGET
) -> int:
    """Maximum number of rows for recurrent states of fixed size, counted twice: reordering beams makes a copy."""
    return max(
        1, budget // (beams * (2 * state_size.state_size * element_size + state_size.vocab_size * BYTES_PER_LOGIT))
    )


def max_cached_rows(
    sizes: BodySizes, prompt_tokens: int, new_tokens: int, beams: int = 1, budget: int = DEFAULT_BUDGET
) -> int:
    """Maximum number of rows with a KV cache, at least 1.

    Keys and values are counted twice: growing caches have spare capacity, and static caches are copied from another
    cache."""
    columns = prompt_tokens + new_tokens * beams
    kept = 2 * 2 * sizes.depth * sizes.width * sizes.element_size * columns
    return max(1, budget // (kept + beams * sizes.vocab_size * BYTES_PER_LOGIT))


def search_budget(device: torch.device) -> int:
    """Bytes for the tensors of a search on this device."""
    if device.type != "cuda":
        return DEFAULT_BUDGET
    return max(DEFAULT_BUDGET, torch.cuda.get_device_properties(device).total_memory // MEMORY_DIVISOR)
