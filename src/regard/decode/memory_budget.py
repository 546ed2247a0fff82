"""How many rows a search may follow at once, by the bytes that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.nn.blocks.block import Stack, TokenEmbedding
from regard.nn.blocks.universal import UniversalStack
from regard.nn.recurrent.recurrent_state import RecurrentSizes
from regard.types import Batch

DEFAULT_BUDGET = 2 * 2**30
"""that a search holds at once beside the weights"""
MEMORY_DIVISOR = 8
"""of a GPU's memory a search may have this part where that is more: six recordings are kept"""
BYTES_PER_LOGIT = 48
"""bytes for each token of the vocabulary while one is drawn: logits, their narrowing, probabilities and sums in float64"""


@dataclass(frozen=True)
class BodySizes:
    """Of a body, as far as they say what a row takes."""

    depth: int
    width: int
    vocab_size: int
    element_size: int
    """bytes of a number"""

    @classmethod
    def from_body(cls, body: Any) -> BodySizes | None:
        """None of bodies that are built in another way: nothing is known of what they keep."""
        tokens, decoder = getattr(body, "tokens", None), getattr(body, "decoder", None)
        if not isinstance(tokens, TokenEmbedding) or not isinstance(decoder, Stack | UniversalStack):
            return None
        table = tokens.table.weight
        return cls(decoder.depth, table.shape[1], table.shape[0], table.element_size())


def max_rows(body: Any, batch: Batch, new_tokens: int, beams: int) -> int | None:
    """Rows of such a batch that say so many tokens, each in so many beams; None: nothing is known of what the body keeps."""
    sizes, budget = BodySizes.from_body(body), search_budget(batch.inputs.device)
    if sizes is not None:
        return max_cached_rows(sizes, batch.prompt.shape[1] + _context_length(body, batch), new_tokens, beams, budget)
    if hasattr(body, "recurrent_sizes"):
        return max_recurrent_rows(body.recurrent_sizes(batch), next(body.parameters()).element_size(), beams, budget)
    return None


def _context_length(body: Any, batch: Batch) -> int:
    """That a decoder regards: words of a source, or places of a picture."""
    if batch.decoder_inputs is None:
        return 0
    return (
        batch.inputs.shape[1] if batch.inputs.ndim == 2 else math.prod(body.grid(batch)) if hasattr(body, "grid") else 0
    )


def max_recurrent_rows(
    state_size: RecurrentSizes, element_size: int, beams: int = 1, budget: int = DEFAULT_BUDGET
) -> int:
    """The same of bodies whose past has one size, of which every beam has a copy, and one more where beams change places."""
    return max(
        1, budget // (beams * (2 * state_size.state_size * element_size + state_size.vocab_size * BYTES_PER_LOGIT))
    )


def max_cached_rows(
    sizes: BodySizes, prompt_tokens: int, new_tokens: int, beams: int = 1, budget: int = DEFAULT_BUDGET
) -> int:
    """Rows that read and say so many tokens, each in so many beams; one at least, whatever it takes.

    Keys and values are counted twice: memories that grow have room to spare, recorded ones are filled from another."""
    columns = prompt_tokens + new_tokens * beams
    kept = 2 * 2 * sizes.depth * sizes.width * sizes.element_size * columns
    return max(1, budget // (kept + beams * sizes.vocab_size * BYTES_PER_LOGIT))


def search_budget(device: torch.device) -> int:
    """That a search may hold there."""
    if device.type != "cuda":
        return DEFAULT_BUDGET
    return max(DEFAULT_BUDGET, torch.cuda.get_device_properties(device).total_memory // MEMORY_DIVISOR)
