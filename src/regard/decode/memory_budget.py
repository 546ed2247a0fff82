"""How many rows a search may follow at once, by the bytes that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.universal import Repeated
from regard.nn.recurrent.recurrent_state import Held
from regard.types import Batch

BYTES = 2 * 2**30
"""that a search holds at once beside the weights"""
SHARE = 8
"""of a GPU's memory a search may have this part where that is more: six recordings are kept"""
SCORED = 48
"""bytes for each token of the vocabulary while one is drawn: logits, their narrowing, probabilities and sums in float64"""


@dataclass(frozen=True)
class Sizes:
    """Of a body, as far as they say what a row takes."""

    depth: int
    width: int
    vocabulary: int
    element: int
    """bytes of a number"""

    @classmethod
    def of(cls, body: Any) -> Sizes | None:
        """None of bodies that are built in another way: nothing is known of what they keep."""
        tokens, decoder = getattr(body, "tokens", None), getattr(body, "decoder", None)
        if not isinstance(tokens, Tokens) or not isinstance(decoder, Stack | Repeated):
            return None
        table = tokens.table.weight
        return cls(decoder.depth, table.shape[1], table.shape[0], table.element_size())


def rows_for(body: Any, batch: Batch, said: int, beams: int) -> int | None:
    """Rows of such a batch that say so many tokens, each in so many beams; None: nothing is known of what the body keeps."""
    sizes, budget = Sizes.of(body), bytes_of(batch.x.device)
    if sizes is not None:
        return rows_at_once(sizes, batch.prompt.shape[1] + _places(body, batch), said, beams, budget)
    if hasattr(body, "held"):
        return rolling_at_once(body.held(batch), next(body.parameters()).element_size(), beams, budget)
    return None


def _places(body: Any, batch: Batch) -> int:
    """That a decoder regards: words of a source, or places of a picture."""
    if batch.target is None:
        return 0
    return batch.x.shape[1] if batch.x.ndim == 2 else math.prod(body.grid(batch)) if hasattr(body, "grid") else 0


def rolling_at_once(held: Held, element: int, beams: int = 1, budget: int = BYTES) -> int:
    """The same of bodies whose past has one size, of which every beam has a copy, and one more where beams change places."""
    return max(1, budget // (beams * (2 * held.numbers * element + held.vocabulary * SCORED)))


def rows_at_once(sizes: Sizes, read: int, said: int, beams: int = 1, budget: int = BYTES) -> int:
    """Rows that read and say so many tokens, each in so many beams; one at least, whatever it takes.

    Keys and values are counted twice: memories that grow have room to spare, recorded ones are filled from another."""
    columns = read + said * beams
    kept = 2 * 2 * sizes.depth * sizes.width * sizes.element * columns
    return max(1, budget // (kept + beams * sizes.vocabulary * SCORED))


def bytes_of(device: torch.device) -> int:
    """That a search may hold there."""
    if device.type != "cuda":
        return BYTES
    return max(BYTES, torch.cuda.get_device_properties(device).total_memory // SHARE)
