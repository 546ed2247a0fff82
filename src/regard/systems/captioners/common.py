"""Bodies of captioning models."""

from __future__ import annotations

import math
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.nn.attention.masks import Causal, Padding, and_masks
from regard.nn.blocks.decoder import CrossDecoder
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.vision.encoder import VisionEncoder
from regard.systems.common.seq2seq import require_decoder_inputs, require_prompt
from regard.types import Batch, BodyOutput


class CaptionMixin:
    """Image encoder and grid, for bodies of captioning models."""

    eyes: VisionEncoder

    def grid(self, batch: Batch) -> tuple[int, int]:
        """Rows and columns of the image features, in row-major order."""
        return self.eyes.grid(batch.inputs)


def expand_to_captions(features: Tensor, batch: Batch) -> Tensor:
    """Image features repeated for each caption, so that each image is encoded once."""
    return features if batch.image_index is None else features.index_select(0, batch.image_index)


class CaptionDecoder(CaptionMixin, CrossDecoder):
    """Captioning body with a Transformer decoder: causal self-attention, and cross-attention to the image."""

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """Image features for cross-attention."""
        raise NotImplementedError

    def context_length(self, batch: Batch) -> int:
        return math.prod(self.grid(batch))

    def forward(self, batch: Batch) -> BodyOutput:
        context, target = self.encode(batch), require_decoder_inputs(batch)
        rule = and_masks(Causal(), None if batch.decoder_mask is None else Padding(batch.decoder_mask))
        return BodyOutput(self.decode(target, context, mask=rule), cross_states=context)

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Encode the image, and process all but the last token of the prompt. `max_positions`: length of a static KV
        cache."""
        return self.prefill(self.encode(batch), None, require_prompt(batch), max_positions)


TINY_ENCODER: dict[str, Any] = {
    "encoder": "resnet-tiny",
    "encoder_config": {"stem_stride": 2},
    "image_size": 96,
    "vocab_size": 2000,
}
"""Image encoder and vocabulary of the tiny presets."""
