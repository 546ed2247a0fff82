"""Properties of every listed system that reads images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from parity import load_peer, peer_of
from regard.config import as_dict, from_dict
from regard.errors import RegardError, WeightsError
from regard.model import ModelSpec, assemble
from regard.systems import SYSTEMS, find_preset
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from regard.training.optimizer import make_optimizer
from regard.training.settings import TrainSettings
from regard.types import Batch
from tiny import near, noise
from tiny_vision_models import SIZES as VISION_SIZES
from tiny_vision_models import batch_for, fresh, made

NAMES = [name for name, system in SYSTEMS.items() if system.modality == "image"]
PRESETS = [preset for name in NAMES for preset in SYSTEMS[name].presets]
presets = pytest.mark.parametrize("preset", PRESETS)


COUNTS: list[tuple[str, str, int, dict[str, Any], int]] = [
    ("vit-base-16", "classify", 1000, {}, 86_567_656), ("vit-large-16", "classify", 1000, {}, 304_326_632),
    ("vit-huge-14", "classify", 1000, {}, 632_045_800), ("vit-base-32", "classify", 1000, {}, 88_224_232),
    ("vit-small", "classify", 1000, {}, 22_050_664), ("vit-tiny", "classify", 1000, {}, 4_216_360),
    ("vit-large-16", "classify", 1000, {"image_size": 384}, 304_715_752),
    ("hybrid-base", "classify", 1000, {}, 98_659_112), ("hybrid-base", "classify", 1000, {"image_size": 384}, 98_950_952),
    ("resnet-18", "classify", 1000, {}, 11_689_512), ("resnet-50", "classify", 1000, {}, 25_557_032),
    ("bit-50", "classify", 1000, {}, 25_549_352),
    ("swin-tiny", "classify", 1000, {}, 28_288_354), ("swin-small", "classify", 1000, {}, 49_606_258),
    ("swin-base", "classify", 1000, {}, 87_768_224), ("swin-large", "classify", 1000, {}, 196_532_476),
    ("swin-tiny", "classify", 1000, {"image_size": 384, "window_size": 12}, 28_338_034),
    ("swin-large", "classify", 1000, {"image_size": 384, "window_size": 12}, 196_735_516),
    ("imagegpt-large", "classify", 0, {}, 1_362_914_304 - 512 * 1536),
    ("dpt-small", "segment", 150, {}, 9_087_916), ("dpt-hybrid-small", "segment", 150, {}, 7_153_788),
    ("dpt-base", "segment", 150, {}, 111_807_980), ("dpt-large", "segment", 150, {}, 343_960_364),
    ("dpt-hybrid", "segment", 150, {}, 123_307_884),
]  # fmt: skip
"""Preset, task, number of classes, changes, and the published number of parameters."""


@pytest.mark.parametrize(("preset", "task", "classes", "changes", "count"), COUNTS)
def test_models_have_as_many_parameters_as_published(
    preset: str, task: str, classes: int, changes: dict[str, Any], count: int
) -> None:
    (system, found), chosen = find_preset(preset), find_task(task, "image")
    config = chosen.objective.adapt_config(replace(found.config, **changes))
    spec = ModelSpec(system, config, chosen, options=HeadOptions(tuple(map(str, range(classes)))))
    assert sum(part.numel() for part in assemble(spec, device="meta").parameters()) == count


@presets
def test_a_published_config_defines_a_whole_preset(preset: str) -> None:
    system, found = find_preset(preset)
    layout = system.published
    if (
        not preset.startswith("caption")
        and layout.model_type
        and all(getattr(found.config, name) == value for name, value in layout.required.items())
        and not layout.check_layout(found.config)
    ):
        config = found.config.resolve_fusion_norm(True) if system.name == "dpt" else found.config
        written = json.loads(json.dumps(system.published.write(as_dict(config))))
        assert from_dict(system.config, {**as_dict(config), **system.published.read(written)}, "model.") == config


DEFAULTS: dict[str, dict[str, Any]] = {
    "vit": {"norm_eps": 1e-12}, "hybrid": {"norm_eps": 1e-12}, "resnet": {}, "bit": {}, "swin": {"drop_path": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_published_config_without_keys_means_the_published_defaults(name: str) -> None:
    system = SYSTEMS[name]
    told = system.published.read({"model_type": system.published.model_type})
    assert from_dict(system.config, told, "model.") == replace(system.config(), **DEFAULTS[name])


MAPS: list[tuple[str, dict[str, Any]]] = [
    ("vit", {"depth": 9}), ("vit", {"class_token": False, "pool": "mean"}), ("dpt", {}), ("swin", {}), ("resnet", {}),
    ("resnet", {"stem_stride": 2, "downsample_first_stage": True}),
    *(("bit", {"output_stride": stride}) for stride in (4, 8, 16, 32)),
    ("hybrid", {}), ("hybrid", {"backbone_depths": (1,)}), ("hybrid", {"patch_size": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), MAPS)
def test_feature_maps_have_the_stated_width_and_stride(name: str, changes: dict[str, Any]) -> None:
    config = SYSTEMS[name].config(**{**VISION_SIZES[name], **changes})
    maps = config.feature_maps()
    with torch.device("meta"):
        body: Any = SYSTEMS[name].build(config).eval()
        found = body(Batch(torch.zeros(2, 3, 128, 64)), taps=[tap.index for tap in maps]).hidden_states
    for tap, states in zip(maps, found, strict=True):
        height, width = 128 // tap.stride, 64 // tap.stride
        flat = (2, tap.has_class_token + height * width, tap.channels)
        assert states.shape == (flat if tap.is_sequence else (2, tap.channels, height, width))


IMAGES = [
    ("resnet", (1, 1, 32, 32)),
    ("bit", (2, 32, 32)),
    ("swin", (1, 1, 8, 8)),
    ("swin", (3, 8, 8)),
    ("swin", (1, 3, 0, 8)),
]


@pytest.mark.parametrize(("name", "shape"), IMAGES)
def test_images_of_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(RegardError, match="channels"):
        SYSTEMS[name].build(SYSTEMS[name].config(**VISION_SIZES[name]))(Batch(torch.zeros(shape)))


@presets
def test_dense_heads_find_four_maps(preset: str) -> None:
    config = find_preset(preset)[1].config
    if "segment" not in find_preset(preset)[0].tasks:
        return
    maps = config.feature_maps()
    assert len(maps) == 4 and [tap.stride for tap in maps] == sorted(tap.stride for tap in maps)


def test_unused_last_layers_are_frozen(tmp_path: Path) -> None:
    """Includes a checkpoint of another task, and blocks after the last feature tap."""
    fresh("vit", "classify").save(tmp_path)
    model = regard.load(tmp_path, task="depth")
    assert [place for place, part in model.named_parameters() if not part.requires_grad] == [
        "body.encoder.norm.weight", "body.encoder.norm.bias"
    ]  # fmt: skip
    assert all(part.requires_grad for part in regard.load(tmp_path).parameters())
    model = fresh("dpt", "depth", depth=6)
    parts = model.body.encoder.blocks.named_parameters()
    frozen = {place.partition(".")[0] for place, part in parts if not part.requires_grad}
    assert frozen == {"4", "5"}


# -- checkpoints


@pytest.mark.parametrize(("system", "changes"), [("ViT", {"encoder_stride": 4}), ("Swin", {"image_size": 32})])
def test_a_masked_autoencoder_is_read_without_its_decoder(system: str, changes: dict[str, int], tmp_path: Path) -> None:
    peer = peer_of(f"{system}ForMaskedImageModeling", **changes)
    model, x = load_peer(peer, tmp_path), noise(2, peer.config.num_channels, 12, 12)
    name = f"{system.lower()}.embeddings.mask_token"
    assert any("decoder.0.weight" in note and name in note for note in model.notes)
    near(model.states(x).sequence, peer.base_model(x).last_hidden_state)


@pytest.mark.parametrize(
    ("name", "changes", "word"), [("vit", {"pool": "mean", "class_token": False}, "False"), ("resnet", {}, "kernel")]
)
def test_configs_without_a_hugging_face_format_are_saved_in_native_format(
    name: str, changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    model = made(name, "classify", **changes)
    with pytest.raises(WeightsError, match=word):
        regard.save(model, tmp_path / "not")
    again, batch = regard.load(model.save(tmp_path / "run")), batch_for(model)
    assert again.config == model.config
    near(again.body(batch).pooled, model.body(batch).pooled)


# -- training


@pytest.mark.parametrize(("name", "spared"), [
    ("vit", {"body.first", "body.position.table"}), ("dpt", {"body.first", "body.position.table"}), ("resnet", set()),
    ("swin", {f"body.stages.{s}.position.{b}.table.weight" for s, many in enumerate((2, 2, 1, 1)) for b in range(many)}),
])  # fmt: skip
def test_neither_positions_nor_class_tokens_have_weight_decay(name: str, spared: set[str]) -> None:
    model = fresh(name, SYSTEMS[name].tasks[0])
    names = {part: place for place, part in model.named_parameters()}
    groups = make_optimizer(model, TrainSettings(weight_decay=0.1)).param_groups
    decayed, left = (
        [names[part] for group in groups if bool(group["weight_decay"]) == decays for part in group["params"]]
        for decays in (True, False)
    )
    assert {place for place in left if model.get_parameter(place).ndim > 1} == spared
    assert all(model.get_parameter(place).ndim > 1 for place in decayed)


@pytest.mark.parametrize(
    ("name", "zero"), [("vit", True), ("hybrid", True), ("bit", True), ("swin", False), ("resnet", False)]
)
def test_a_new_classification_head_is_initialized_as_in_its_paper(name: str, zero: bool) -> None:
    """Zero initialization (ViT, BiT): all classes are equally likely before training."""
    model = fresh(name, "classify").requires_grad_(False).eval()
    weight = model.head.classes.weight
    assert bool(weight.any()) != zero and not bool(model.head.classes.bias.any())
    if zero:
        assert bool((model.task.objective.logits(model, batch_for(model)) == 0).all())
    else:
        assert 0.01 < float(weight.std()) < 0.03
