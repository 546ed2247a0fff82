"""Table of all systems, one module each; a system is imported at its first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import index
from regard.errors import RegardError, UnknownNameError
from regard.index import describe_hub_name, resolve_preset_name
from regard.systems.common.system import LazyTable, Preset, System

SYSTEMS = LazyTable({
    "transformer": "regard.systems.transformer:SYSTEM",
    "decoder": "regard.systems.decoder:SYSTEM",
    "gpt1": "regard.systems.gpt1:SYSTEM",
    "gpt2": "regard.systems.gpt2:SYSTEM",
    "gpt3": "regard.systems.gpt3:SYSTEM",
    "bert": "regard.systems.bert:SYSTEM",
    "roformer": "regard.systems.roformer:SYSTEM",
    "longformer": "regard.systems.longformer:SYSTEM",
    "deberta": "regard.systems.deberta:SYSTEM",
    "modernbert": "regard.systems.modernbert:SYSTEM",
    "vit": "regard.systems.vit:SYSTEM",
    "hybrid": "regard.systems.hybrid:SYSTEM",
    "resnet": "regard.systems.resnet:SYSTEM",
    "bit": "regard.systems.bit:SYSTEM",
    "swin": "regard.systems.swin:SYSTEM",
    "imagegpt": "regard.systems.imagegpt:SYSTEM",
    "dpt": "regard.systems.dpt:SYSTEM",
    "rnn": "regard.systems.rnn:SYSTEM",
    "rnnsearch": "regard.systems.rnnsearch:SYSTEM",
    "convs2s": "regard.systems.convs2s:SYSTEM",
    "universal": "regard.systems.universal:SYSTEM",
    "universal-encoder": "regard.systems.universal_encoder:SYSTEM",
    "caption-fixed": "regard.systems.captioners.show_and_tell:SYSTEM",
    "caption-attend": "regard.systems.captioners.show_attend_tell:SYSTEM",
    "caption-transformer": "regard.systems.captioners.cnn_transformer:SYSTEM",
    "caption-vit": "regard.systems.captioners.vit_gpt2:SYSTEM",
    "point": "regard.systems.point:SYSTEM",
})  # fmt: skip


def find_preset(name: str) -> tuple[System, Preset]:
    """The preset of this name and its system; only the system that the index names is imported."""
    name = resolve_preset_name(name)
    owner = index.presets().get(name)
    for system in SYSTEMS.values() if owner is None else (SYSTEMS[owner],):
        if name in system.presets:
            return system, system.presets[name]
    if advice := describe_hub_name(name):
        raise RegardError(advice)
    known = [preset for system in SYSTEMS.values() for preset in system.presets]
    raise UnknownNameError("preset", name, known, index.PRESET_ADVICE)


def find_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, SYSTEMS)
    return SYSTEMS[name]


def find_by_model_type(model_type: str) -> System:
    """System for the `model_type` of a Hugging Face config.json."""
    owner = index.model_types().get(model_type)
    if owner is not None:
        return SYSTEMS[owner]
    types = {system.published.model_type: system for system in SYSTEMS.values() if system.published.model_type}
    if model_type not in types:
        raise UnknownNameError("model_type", model_type, types)
    return types[model_type]


def find_checkpoint_system(published: Mapping[str, Any], own: Mapping[str, Any]) -> System:
    """System of a model folder with these contents of config.json and regard.json."""
    return find_system(own["system"]) if own else find_by_model_type(str(published.get("model_type")))
