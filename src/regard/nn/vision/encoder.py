"""Image encoder for captioning models: features per position of an image.

Shape letters: B images, K positions, C channels, H and W pixels.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.vision.dense import FeatureTap
from regard.types import Batch, BodyOutput


class VisionEncoder(nn.Module):
    """`tap`: feature map of the body. `use_last_states`: use the final states, for which `tap` gives stride and class
    token; else use the tap and remove all later modules. `frozen`: no gradients, and always in evaluation mode."""

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
        """Number of class tokens before the patch tokens, 0 or 1."""
        return int(self.tap.is_sequence and self.tap.has_class_token)

    def pooled(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B C"]:
        """Pooled vector per image."""
        return self.body(Batch(pixels)).pooled

    def features(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """Class tokens and positions, row by row."""
        if self.uses_last_states:
            return self.body(Batch(pixels)).sequence
        states: BodyOutput = self.body(Batch(pixels), taps=(self.tap.index,))
        found = states.hidden_states[0]
        return found if self.tap.is_sequence else found.flatten(2).mT

    def patch_features(self, pixels: Float[Tensor, "B c H W"]) -> Float[Tensor, "B K C"]:
        """Positions only."""
        return self.features(pixels)[:, self.num_prefix_tokens :]

    def grid(self, pixels: Float[Tensor, "B c H W"]) -> tuple[int, int]:
        """Number of rows and columns of positions."""
        height, width = pixels.shape[-2:]
        return -(-height // self.tap.stride), -(-width // self.tap.stride)
