"""Image encoder and bodies shared by captioning models.

`model.encoder` is a preset (randomly initialized and trained with the decoder) or the folder of a pretrained image
model. `model.encoder_config` contains the full config of the encoder, so that a saved captioning model loads without
this folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from regard import index
from regard.config import as_dict, from_dict, override
from regard.errors import RegardError, SettingError, UnknownNameError, WeightsError
from regard.nn.attention.masks import Causal, Padding, and_masks
from regard.nn.blocks.decoder import CrossDecoder, DecoderState
from regard.nn.blocks.encoder_decoder import require_prompt
from regard.nn.kernels.linear import Linear
from regard.nn.vision.dense import FeatureTap
from regard.nn.vision.encoder import VisionEncoder
from regard.processors.image import ImageProcessor
from regard.systems import SYSTEMS
from regard.systems.common.checkpoint import read_body
from regard.systems.common.recurrent import RecurrentBody
from regard.systems.common.system import System, TargetTokens, reject
from regard.types import Batch, BodyOutput
from regard.weights.tables import mismatch_error

ENCODER_SYSTEMS = ("resnet", "bit", "vit", "hybrid", "swin")


@dataclass(frozen=True)
class CaptionConfig(TargetTokens):
    """Config fields of all captioning models."""

    encoder: str = "resnet-18"
    encoder_config: dict[str, Any] = field(default_factory=dict)
    freeze_encoder: bool = False
    image_size: int = 224
    vocab_size: int = 10_000
    max_length: int = 64

    modality = "image"
    encoder_systems: ClassVar[tuple[str, ...]] = ENCODER_SYSTEMS
    feature_level: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if os.sep in self.encoder:
            object.__setattr__(self, "encoder", os.path.abspath(os.path.expanduser(self.encoder)))
        super().__post_init__()
        object.__setattr__(self, "encoder_config", self._resolve_encoder())
        self.encoder_tap()

    def _resolve_encoder(self) -> dict[str, Any]:
        """Name, system and full config of the image encoder. Values of another `encoder` are discarded."""
        name, known = self.encoder, self.encoder_config
        known = known if known.get("name", name) == name else {}
        if not {"name", "system", "config"} <= known.keys():
            reject(
                self.encoder_folder is not None,
                f"model.encoder={name} is a folder. Folders work with 'regard train' and regard.build(), not here.",
            )
            owner = index.presets().get(name)  # other systems are not imported
            searched = (owner,) if owner in ENCODER_SYSTEMS else ENCODER_SYSTEMS
            able = {preset: system for system in searched for preset in SYSTEMS[system].presets}
            if name not in able:
                advice = "Use one of these presets, or the folder of a pretrained image model."
                raise UnknownNameError("encoder", name, able, advice)
            preset, changes = SYSTEMS[able[name]].presets[name], {**known, "image_size": self.image_size}
            made = override(preset.config, changes, "model.encoder_config.")
            known = {"system": able[name], "config": as_dict(made)}
        system, config = known["system"], dict(known["config"])
        advice = f" For {system}, use caption-fixed, caption-attend and caption-transformer."
        reject(
            system not in self.encoder_systems,
            f"model.encoder={name} is a model of the system '{system}'; this captioner supports "
            f"{' or '.join(self.encoder_systems)}.{advice * (system in ENCODER_SYSTEMS)}",
        )
        if self.encoder_folder is None and name not in ENCODER_SYSTEMS:  # a preset is built for this image size
            config["image_size"] = self.image_size
        made = from_dict(SYSTEMS[system].config, config, "model.encoder_config.")
        return {"name": name, "system": system, "config": json.loads(json.dumps(as_dict(made)))}

    def encoder_system(self) -> tuple[System, Any]:
        """System and config of the image encoder."""
        system = SYSTEMS[self.encoder_config["system"]]
        return system, from_dict(system.config, self.encoder_config["config"], "model.encoder_config.")

    @property
    def in_channels(self) -> int:
        """Channels of an image."""
        return int(self.encoder_config["config"]["in_channels"])

    @property
    def encoder_folder(self) -> Path | None:
        """Folder of pretrained encoder weights; None for a preset."""
        return Path(self.encoder) if os.sep in self.encoder else None

    def encoder_tap(self) -> tuple[FeatureTap, bool]:
        """Feature map for the decoder, and True for the last hidden states of the encoder."""
        taps = self.encoder_system()[1].feature_maps()
        number = self.feature_level
        if number is None:
            return taps[-1], True
        if not 0 <= number < len(taps) or taps[number].index < 0:
            able = [str(n) for n, tap in enumerate(taps) if tap.index >= 0]
            raise SettingError(
                f"model.feature_level={number} is not available for model.encoder={self.encoder}. Available: "
                f"{', '.join(able)} (from fine to coarse), or none (the last states)."
            )
        return taps[number], False

    def build_encoder(self) -> VisionEncoder:
        """Image encoder with random weights."""
        system, config = self.encoder_system()
        return VisionEncoder(system.build(config), *self.encoder_tap(), frozen=self.freeze_encoder)

    def image_processor(self) -> ImageProcessor | None:
        """Image processor of the encoder folder, at the image size of this model; None if the folder has no processor."""
        processor = None if self.encoder_folder is None else ImageProcessor.load(self.encoder_folder)
        if processor is None:
            return None
        processor, size = processor.with_fixed_size(self.image_size), (self.image_size, self.image_size)
        return processor if processor.size == size else processor.with_size(*size)


class CaptionMixin:
    """Image encoder and grid, for bodies of captioning models."""

    eyes: VisionEncoder

    def grid(self, batch: Batch) -> tuple[int, int]:
        """Rows and columns of the image features, in row-major order."""
        return self.eyes.grid(batch.inputs)


def expand_to_captions(features: Tensor, batch: Batch) -> Tensor:
    """Image features repeated for each caption, so that each image is encoded once."""
    rows = batch.require_decoder().image_index
    return features if rows is None else features.index_select(0, rows)


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
        folder = Path(os.path.abspath(os.path.expanduser(index.local_folder(name))))
        if str(folder) == config.encoder:  # already resolved
            return {**resolved, "encoder": str(folder)}
        if not (folder.is_dir() or os.sep in name):
            return resolved  # not a folder: the config raises an error for an unknown preset
        reject(
            "encoder_config" in resolved,
            f"model.encoder_config cannot be set: {folder} contains its own config. Remove model.encoder_config.",
        )
        try:
            system, encoder, _ = read_body(folder)
        except RegardError as error:
            raise SettingError(f"model.encoder={name} is not a valid image encoder. {error}") from error
        if "image_size" not in resolved and system.name in ENCODER_SYSTEMS:
            pixels, size = ImageProcessor.load(folder), encoder.image_size
            resolved["image_size"] = size if pixels is None else min(pixels.with_fixed_size(size).size)
        return {
            **resolved,
            "encoder": str(folder),
            "encoder_config": {"name": str(folder), "system": system.name, "config": as_dict(encoder)},
        }

    def check(self, config: CaptionConfig, pretrained: CaptionConfig | None, name: str) -> None:
        """Raise an error for encoder settings that contradict the origin of the weights: the preset `name`, or the folder
        `name` with a model of the config `pretrained`."""
        reject(
            pretrained is None and config.freeze_encoder and config.encoder_folder is None,
            f"model.freeze_encoder=true would freeze the randomly initialized encoder '{config.encoder}' of {name}. "
            "Use pretrained weights (--set model.encoder=FOLDER) or train the encoder (--set model.freeze_encoder=false).",
        )
        reject(
            pretrained is not None and config.encoder != pretrained.encoder,
            f"model.encoder cannot be changed: {name} contains its own image encoder. Remove model.encoder.",
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
        name = overrides.get("encoder")
        note = f"The image encoder {name} has random weights; for pretrained weights set model.encoder=FOLDER."
        return [note] if name else []


ENCODER = EncoderPart()
