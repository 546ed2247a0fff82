"""Attention maps with labels, ready to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import RegardError

MIN_UNIFORM_MULTIPLE = 4
"""The color scale ends at this multiple of the uniform attention weight or higher."""


@dataclass(frozen=True)
class AttentionMap:
    """One kind of attention on one example: `weights[layer, head, query, key]`; rows sum to 1 (0 if masked)."""

    name: str
    title: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    weights: NDArray[np.floating]
    has_rest_column: bool = False
    """True if the first key is the sum of all keys not shown; this column does not affect the color scale"""
    boundaries: tuple[int, ...] = ()
    """first token of each further text in the same sequence; a line is drawn before the token"""
    sqrt_scale: bool = False
    """True for a square root color scale, so that attention spread over thousands of tokens is visible"""
    row_kind: Literal["tokens", "layers"] = "tokens"
    """meaning of the rows; if rows are layers, the first dimension of `weights` is 1"""
    is_gradient: bool = False
    """True if the weights are gradient norms, for models without attention"""
    description: str = "Rows: queries. Columns: keys."
    """subtitle of the map"""

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if len(shape) != 4 or shape[2:] != (len(self.queries), len(self.keys)):
            wanted = f"(layers, heads, {len(self.queries)}, {len(self.keys)})"
            raise ValueError(f"attention map '{self.name}': expected weights of shape {wanted}, got {shape}")
        if 0 in shape:
            raise RegardError(f"Attention map '{self.name}' is empty: no tokens, layers or heads to draw.")
        if not np.isfinite(self.weights).all():
            raise RegardError(
                f"Attention map '{self.name}' contains NaN or infinite values: the model has diverged. "
                "No figure was drawn."
            )

    @property
    def layers(self) -> int:
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        return int(self.weights.shape[1])

    @property
    def is_single(self) -> bool:
        """True for one layer with one head."""
        return self.layers == self.heads == 1

    def color_max(self, weights: NDArray[np.floating]) -> float:
        """Upper end of the color scale: the largest weight of a single key, or `MIN_UNIFORM_MULTIPLE` times the uniform weight
        if larger, so that uniform attention looks uniform."""
        largest = float(weights[..., int(self.has_rest_column) :].max(initial=0))
        if self.has_rest_column or largest > 1:
            return largest or 1.0
        return min(max(largest, MIN_UNIFORM_MULTIPLE / weights.shape[-1]), 1.0)

    def view(self, layer: int | None, head: int | None) -> NDArray[np.float64]:
        """Matrix (queries, keys) of one layer and head, counted from 1 as in all figures; None: the average."""
        for what, number, many in (("Layer", layer, self.layers), ("Head", head, self.heads)):
            if number is not None and not 1 <= number <= many:
                raise RegardError(f"{what} of attention map '{self.name}' must be between 1 and {many}, got {number}.")
        layers = slice(None) if layer is None else slice(layer - 1, layer)
        heads = slice(None) if head is None else slice(head - 1, head)
        mean: NDArray[np.float64] = self.weights[layers, heads].mean(axis=(0, 1), dtype=np.float64)
        return mean


def sort_cross_first(maps: tuple[AttentionMap, ...]) -> tuple[AttentionMap, ...]:
    """The maps, cross-attention first."""
    if not maps:
        raise RegardError("No attention map to draw.")
    return tuple(sorted(maps, key=lambda item: item.name != "cross"))
