"""Image encoder of captioning models.

`model.encoder` is a preset (randomly initialized and trained with the decoder) or the folder of a pretrained image
model. `model.encoder_config` contains the full config of the encoder, so that a saved captioning model loads without
this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from regard import index
from regard.config import as_dict, from_dict, override
from regard.errors import SettingError, UnknownNameError
from regard.nn.vision.dense import FeatureTap
from regard.nn.vision.encoder import VisionEncoder
from regard.processors.image import ImageProcessor
from regard.systems import SYSTEMS
from regard.systems.common.system import LazyTable, System, TargetTokens

ENCODER_SYSTEMS = LazyTable({name: SYSTEMS.data[name] for name in ("resnet", "bit", "vit", "hybrid", "swin")})


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
    encoder_systems: ClassVar[tuple[str, ...]] = tuple(ENCODER_SYSTEMS)
    feature_level: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        if os.sep in self.encoder:
            object.__setattr__(self, "encoder", os.path.abspath(os.path.expanduser(self.encoder)))
        super().__post_init__()
        object.__setattr__(self, "encoder_config", self._resolve_encoder())
        self.encoder_tap()

    def _resolve_encoder(self) -> dict[str, Any]:
        """Name, system and full config of the image encoder. Values of another `encoder` are discarded."""
        known = (
            self.encoder_config
            if self.encoder_config.get("name") == self.encoder or "name" not in self.encoder_config
            else {}
        )
        if not {"name", "system", "config"} <= known.keys():
            known = _preset_encoder(self.encoder, {**known, "image_size": self.image_size})
        system = known.get("system")
        if system not in self.encoder_systems:
            able = f" For {system}, use caption-fixed, caption-attend and caption-transformer."
            raise SettingError(
                f"model.encoder={self.encoder} is a model of the system '{system}'; this captioner supports "
                f"{' or '.join(self.encoder_systems)}.{able * (system in ENCODER_SYSTEMS)}"
            )
        config = dict(known["config"])
        if os.sep not in self.encoder and self.encoder not in ENCODER_SYSTEMS:  # a preset is built for this image size
            config["image_size"] = self.image_size
        made = from_dict(ENCODER_SYSTEMS[system].config, config, "model.encoder_config.")
        return {"name": self.encoder, "system": system, "config": json.loads(json.dumps(as_dict(made)))}

    def encoder_system(self) -> tuple[System, Any]:
        """System and config of the image encoder."""
        system = ENCODER_SYSTEMS[self.encoder_config["system"]]
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
        if self.encoder_folder is None or not ImageProcessor.exists(self.encoder_folder):
            return None
        processor, size = (
            ImageProcessor.load(self.encoder_folder).with_fixed_size(self.image_size),
            (self.image_size,) * 2,
        )
        return processor if processor.size == size else processor.with_size(*size)


@dataclass(frozen=True)
class FeatureLevelConfig(CaptionConfig):
    """Fields of captioning models that attend to a feature map of choice."""

    feature_level: int | None = None  # type: ignore[misc]


def _preset_encoder(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    if os.sep in name:
        raise SettingError(
            f"model.encoder={name} is a folder. Folders work with 'regard train' and regard.build(), not here."
        )
    owner = index.presets().get(name, "")
    for system in (ENCODER_SYSTEMS[owner],) if owner in ENCODER_SYSTEMS else ENCODER_SYSTEMS.values():
        if name in system.presets:
            config = override(system.presets[name].config, changes, "model.encoder_config.")
            return {"name": name, "system": system.name, "config": as_dict(config)}
    known = [preset for system in ENCODER_SYSTEMS.values() for preset in system.presets]
    raise UnknownNameError(
        "encoder", name, known, "Use one of these presets, or the folder of a pretrained image model."
    )
