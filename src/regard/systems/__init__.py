"""The systems, one file each, listed here and nowhere else."""

from __future__ import annotations

from regard.errors import UnknownName
from regard.systems import (
    bert,
    bit,
    caption_attend,
    caption_fixed,
    caption_transformer,
    caption_vit,
    convs2s,
    decoder,
    dpt,
    gpt1,
    gpt2,
    gpt3,
    hybrid,
    imagegpt,
    longformer,
    point,
    resnet,
    rnn,
    rnnsearch,
    roformer,
    swin,
    transformer,
    universal,
    universal_encoder,
    vit,
)  # fmt: skip
from regard.systems.preset import Preset, System

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        transformer.SYSTEM, decoder.SYSTEM, gpt1.SYSTEM, gpt2.SYSTEM, gpt3.SYSTEM, bert.SYSTEM, roformer.SYSTEM,
        longformer.SYSTEM, vit.SYSTEM, hybrid.SYSTEM, resnet.SYSTEM, bit.SYSTEM, swin.SYSTEM, imagegpt.SYSTEM, dpt.SYSTEM,
        rnn.SYSTEM, rnnsearch.SYSTEM, convs2s.SYSTEM, universal.SYSTEM, universal_encoder.SYSTEM,
        caption_fixed.SYSTEM, caption_attend.SYSTEM, caption_transformer.SYSTEM, caption_vit.SYSTEM,
        point.SYSTEM,
    )
}  # fmt: skip


def find_preset(name: str) -> tuple[System, Preset]:
    for system in SYSTEMS.values():
        if name in system.presets:
            return system, system.presets[name]
    known = [preset for system in SYSTEMS.values() for preset in system.presets]
    raise UnknownName("preset", name, known, "See 'regard list presets'.")


def find_system(name: str) -> System:
    if name not in SYSTEMS:
        raise UnknownName("system", name, SYSTEMS)
    return SYSTEMS[name]


def find_published(model_type: str) -> System:
    types = {system.published.model_type: system for system in SYSTEMS.values() if system.published.model_type}
    if model_type not in types:
        raise UnknownName("published model type", model_type, types)
    return types[model_type]
