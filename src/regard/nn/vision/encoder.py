"""A body that sees, as captioners look through it: what there is to regard, one place of the picture after another.

Shape letters: B pictures, K places, C channels, H and W pixels.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.vision.dense import FeatureTap
from regard.types import Batch, BodyOutput


class VisionEncoder(nn.Module):
    """`tap` says what is looked at. `last`: the body's last states, and the tap tells how these lie in the picture; else what
    lies behind the tap is left out. `frozen`: nothing of it learns, its norms gather nothing and it drops nothing."""

    def __init__(self, body: Any, tap: FeatureTap, use_last_states: bool = True, frozen: bool = False) -> None:
        super().__init__()
        self.tap, self.uses_last_states, self.frozen = tap, use_last_states, frozen
        self.body = body
        if not use_last_states:
            self.body.truncate(tap.index)
        if frozen:
            self.body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> VisionEncoder:
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens that stand before the places and have none in the picture: a class token, or nothing."""
        return int(self.tap.is_sequence and self.tap.has_class_token)

    def pooled(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B C"]:
        """One vector for the whole picture."""
        return self.body(Batch(pixels)).pooled

    def features(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """All that stands before the places, and the places row by row."""
        if self.uses_last_states:
            return self.body(Batch(pixels)).sequence
        states: BodyOutput = self.body(Batch(pixels), taps=(self.tap.index,))
        found = states.hidden_states[0]
        return found if self.tap.is_sequence else found.flatten(2).mT

    def patch_features(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """The places alone."""
        return self.features(pixels)[:, self.num_prefix_tokens :]

    def grid(self, pixels: Float[Tensor, "B c H W"]) -> tuple[int, int]:
        """How many places there are, down and across."""
        height, width = pixels.shape[-2:]
        return -(-height // self.tap.stride), -(-width // self.tap.stride)
