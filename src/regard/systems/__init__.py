"""Table of all systems, one module each; a system is imported at its first use."""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from typing import Any

from regard import index
from regard.errors import UnknownNameError
from regard.index import PRESET_ALIASES
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
    name = PRESET_ALIASES.get(name, name)
    index.check_preset(name)
    system = SYSTEMS[index.presets()[name]]
    return system, system.presets[name]


def find_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownNameError("system", name, SYSTEMS)
    return SYSTEMS[name]


def _reduce(system: System) -> Any:
    """A system of the table is pickled and copied by name: its functions are part of the code, not of a model."""
    if system.name in SYSTEMS and SYSTEMS[system.name] is system:
        return find_system, (system.name,)
    return object.__reduce_ex__(system, 4)


copyreg.pickle(System, _reduce)


def find_checkpoint_system(published: Mapping[str, Any], own: Mapping[str, Any]) -> System:
    """System of a model folder with these contents of config.json and regard.json."""
    kind, names = ("system", {name: name for name in SYSTEMS}) if own else ("model_type", index.model_types())
    name = own["system"] if own else str(published.get("model_type"))
    if name not in names:
        raise UnknownNameError(kind, name, names)
    return SYSTEMS[names[name]]
