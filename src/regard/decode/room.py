"""How many rows a search may follow at once, by the bytes that they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from regard.nn.block import Stack, Tokens

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
        if not isinstance(tokens, Tokens) or not isinstance(decoder, Stack):
            return None
        table = tokens.table.weight
        return cls(len(decoder.blocks), table.shape[1], table.shape[0], table.element_size())


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
