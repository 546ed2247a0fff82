"""Bodies of captioning models, and their pretrained image encoders."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard import index
from regard.config import as_dict
from regard.errors import RegardError, SettingError, WeightsError
from regard.index import local_folder
from regard.nn.attention.masks import Causal, Padding, and_masks
from regard.nn.blocks.decoder import CrossDecoder, DecoderState
from regard.nn.blocks.encoder_decoder import require_prompt
from regard.nn.kernels.linear import Linear
from regard.nn.vision.encoder import VisionEncoder
from regard.processors.image import ImageProcessor
from regard.systems.captioners.encoder import ENCODER_SYSTEMS, CaptionConfig
from regard.systems.common.checkpoint import read_body
from regard.systems.common.recurrent import RecurrentBody
from regard.types import Batch, BodyOutput
from regard.weights.tables import mismatch_error


class CaptionMixin:
    """Image encoder and grid, for bodies of captioning models."""

    eyes: VisionEncoder

    def grid(self, batch: Batch) -> tuple[int, int]:
        """Rows and columns of the image features, in row-major order."""
        return self.eyes.grid(batch.inputs)


def expand_to_captions(features: Tensor, batch: Batch) -> Tensor:
    """Image features repeated for each caption, so that each image is encoded once."""
    index = batch.require_decoder().image_index
    return features if index is None else features.index_select(0, index)


class CaptionDecoder(CaptionMixin, CrossDecoder):
    """Captioning body with a Transformer decoder: causal self-attention, and cross-attention to the image."""

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """Image features for cross-attention."""
        raise NotImplementedError

    def context_length(self, batch: Batch) -> int:
        return math.prod(self.grid(batch))

    def forward(self, batch: Batch) -> BodyOutput:
        context, target = self.encode(batch), batch.require_decoder()
        rule = and_masks(Causal(), None if target.mask is None else Padding(target.mask))
        return BodyOutput(self.decode(target.inputs, context, mask=rule), cross_states=context)

    def start(self, batch: Batch, max_positions: int | None = None) -> DecoderState:
        """Encode the image, and process all but the last token of the prompt. `max_positions`: length of a static KV
        cache."""
        return self.prefill(self.encode(batch), None, require_prompt(batch), max_positions)


class CaptionRNN(CaptionMixin, RecurrentBody):
    """Captioning body with a recurrent decoder and its own output layer."""

    words: Linear

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        return self.words.weight, self.words.bias


TINY_ENCODER: dict[str, Any] = {
    "encoder": "resnet-tiny",
    "encoder_config": {"stem_stride": 2},
    "image_size": 96,
    "vocab_size": 2000,
}


class EncoderPart:
    """The image encoder: a preset with random weights, or the folder of a pretrained image model."""

    def resolve(self, config: CaptionConfig, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Overrides of a config, completed from the encoder folder that they name; the default image size is the size in
        the folder."""
        resolved, name = dict(overrides), str(overrides.get("encoder", ""))
        if not name or index.presets().get(name) in ENCODER_SYSTEMS:
            return resolved
        folder = Path(os.path.abspath(os.path.expanduser(local_folder(name))))
        if str(folder) == config.encoder:  # already resolved
            return {**resolved, "encoder": str(folder)}
        if not (folder.is_dir() or os.sep in name):
            return resolved  # not a folder: the config raises an error for an unknown preset
        if "encoder_config" in resolved:
            raise SettingError(
                f"model.encoder_config cannot be set: {folder} contains its own config. Remove model.encoder_config."
            )
        try:
            system, encoder, _ = read_body(folder)
        except RegardError as error:
            raise SettingError(f"model.encoder={name} is not a valid image encoder. {error}") from error
        if "image_size" not in resolved and system.name in ENCODER_SYSTEMS:
            resolved["image_size"] = (
                min(ImageProcessor.load(folder).with_fixed_size(encoder.image_size).size)
                if ImageProcessor.exists(folder)
                else encoder.image_size
            )
        return {
            **resolved,
            "encoder": str(folder),
            "encoder_config": {"name": str(folder), "system": system.name, "config": as_dict(encoder)},
        }

    def check(self, config: CaptionConfig, pretrained: CaptionConfig | None, name: str) -> None:
        """Raise an error for encoder settings that contradict the origin of the weights: the preset `name`, or the folder
        `name` with a model of the config `pretrained`."""
        if pretrained is None and config.freeze_encoder and config.encoder_folder is None:
            raise SettingError(
                f"model.freeze_encoder=true would freeze the randomly initialized encoder '{config.encoder}' of {name}. "
                "Use pretrained weights (--set model.encoder=FOLDER) or train the encoder "
                "(--set model.freeze_encoder=false)."
            )
        if pretrained is not None and config.encoder != pretrained.encoder:
            raise SettingError(
                f"model.encoder cannot be changed: {name} contains its own image encoder. Remove model.encoder."
            )

    def load(self, body: Any, config: CaptionConfig) -> list[str]:
        """Load the weights of the encoder folder into a new model; returns messages for the log."""
        folder = config.encoder_folder
        if folder is None:
            return []
        _, _, tensors = read_body(folder)
        wanted = body.eyes.body.state_dict()
        unfit = [name for name, old in wanted.items() if name not in tensors or tensors[name].shape != old.shape]
        if unfit:
            raise WeightsError(f"{folder}: the weights do not match config.json; {mismatch_error(unfit, [])}")
        body.eyes.body.load_state_dict({name: tensors[name] for name in wanted})
        return [f"Image encoder: {folder}, {'frozen' if config.freeze_encoder else 'trained'}."]

    def describe_random(self, overrides: Mapping[str, Any]) -> list[str]:
        """Note about an encoder with random weights for which the user may expect pretrained weights."""
        if not overrides.get("encoder"):
            return []
        return [
            f"The image encoder {overrides['encoder']} has random weights; for pretrained weights set "
            "model.encoder=FOLDER."
        ]


ENCODER = EncoderPart()
