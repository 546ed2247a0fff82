"""A body that sees, as captioners look through it: what there is to regard, one place of the picture after another.

Shape letters: B pictures, K places, C channels, H and W pixels.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.vision.dense import Tap
from regard.types import Batch, States


class Eyes(nn.Module):
    """`tap` says what is looked at. `last`: the body's last states, and the tap tells how these lie in the picture; else what
    lies behind the tap is left out. `frozen`: nothing of it learns, its norms gather nothing and it drops nothing."""

    def __init__(self, body: Any, tap: Tap, last: bool = True, frozen: bool = False) -> None:
        super().__init__()
        self.tap, self.last, self.frozen = tap, last, frozen
        self.body = body
        if not last:
            self.body.shorten(tap.at)
        if frozen:
            self.body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Eyes:
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    @property
    def before(self) -> int:
        """Tokens that stand before the places and have none in the picture: a class token, or nothing."""
        return int(self.tap.flat and self.tap.token)

    def summary(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B C"]:
        """One vector for the whole picture."""
        return self.body(Batch(pixels)).summary

    def look(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """All that stands before the places, and the places row by row."""
        if self.last:
            return self.body(Batch(pixels)).sequence
        states: States = self.body(Batch(pixels), taps=(self.tap.at,))
        found = states.taps[0]
        return found if self.tap.flat else found.flatten(2).mT

    def places(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """The places alone."""
        return self.look(pixels)[:, self.before :]

    def grid(self, pixels: Float[Tensor, "B c H W"]) -> tuple[int, int]:
        """How many places there are, down and across."""
        height, width = pixels.shape[-2:]
        return -(-height // self.tap.stride), -(-width // self.tap.stride)
