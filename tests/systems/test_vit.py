"""ViT: patches, positions, taps, pooling, checkpoints; hybrid ViT against BiT and ViT of transformers, combined here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import regard
from data_files import refused
from parity import TIMM, assert_gradients, load_peer, peer_of, relabeled, weighted_sum
from regard.config import as_dict
from regard.errors import WeightsError
from regard.nn.vision.patches import GridPosition, PatchEmbedding
from regard.systems import hybrid, vit
from regard.types import Batch
from regard.weights.tables import write_safetensors
from tiny import near, noise, noisy
from tiny_vision_models import fresh

OURS = vit.Config(image_size=12, patch_size=4, in_channels=2, width=12, depth=3, heads=3, ffn_dim=20)
PIXELS = noise(2, 2, 12, 12, seed=3)


def test_an_image_that_cannot_be_divided_into_patches_is_refused() -> None:
    patches = PatchEmbedding(8, 4, 3)
    for shape in ((1, 3, 8, 10), (1, 3, 7, 8), (1, 3, 2, 2), (1, 3, 0, 4)):
        refused("patch", patches, torch.zeros(shape), error=ValueError)
    refused("channels", patches, torch.zeros(1, 1, 8, 8), error=ValueError)


def test_a_grid_of_the_trained_size_has_the_trained_positions() -> None:
    position = noisy(GridPosition(3, 6))
    assert position((3, 3)) is position.table
    near(position((4, 6))[:, :1], position.table[:, :1])
    bare = noisy(GridPosition(3, 6, num_prefix_tokens=0))
    assert bare((4, 6)).shape == (1, 24, 6)


@pytest.mark.parametrize(("name", "tap"), [("vit", 3), ("vit", -1), ("hybrid", -4)])
def test_a_tap_that_there_is_not_is_refused(name: str, tap: int) -> None:
    refused(f"{tap}", fresh(name, "classify").body, Batch(torch.zeros(1, 3, 16, 16)), taps=(0, tap), error=ValueError)


def test_a_mean_is_of_the_patches_alone() -> None:
    body = noisy(vit.build(replace(OURS, pool="mean")))
    found = body(Batch(PIXELS))
    near(found.pooled, found.sequence[:, 1:].mean(1))
    bare = noisy(vit.build(replace(OURS, pool="mean", class_token=False)))
    found = bare(Batch(PIXELS))
    assert found.sequence.shape == (2, 9, 12) and "first" not in dict(bare.named_parameters())
    near(found.pooled, found.sequence.mean(1))


def test_a_file_without_a_class_token_is_a_mean_of_patches(tmp_path: Path) -> None:
    peer_of("ViTForImageClassification").save_pretrained(tmp_path)
    tensors = relabeled(load_file(tmp_path / "model.safetensors"), TIMM)
    del tensors["cls_token"]
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    write_safetensors(tmp_path / "model.safetensors", tensors)
    body = regard.load(tmp_path).body
    assert not body.has_class_token and body.pool == "mean"


def test_sides_may_be_given_twice() -> None:
    read = vit.PUBLISHED.read({"model_type": "vit", "image_size": [12, 12], "patch_size": [4, 4]})
    assert read["image_size"] == 12 and read["patch_size"] == 4


HYBRID = hybrid.Config(
    image_size=32, in_channels=2, backbone_depths=(2, 1, 2), stem_channels=8, norm_groups=4, width=12, depth=3, heads=3,
    ffn_dim=20, norm_eps=1e-12,
)  # fmt: skip
WIDE_PIXELS = noise(2, 2, 32, 32, seed=3)
BACKBONE = "vit.embeddings.patch_embeddings.backbone."


class Theirs(nn.Module):
    """ViT with patch size 1 on the last feature map of BiT, saved in the format of `transformers` 4."""

    base_model_prefix = "vit"

    def __init__(self, config: hybrid.Config) -> None:
        super().__init__()
        self.told = hybrid.PUBLISHED.write(as_dict(config), "classify")
        last = [f"stage{number + 1}" for number in range(len(config.backbone_depths))]
        self.bit = transformers.BitBackbone(
            transformers.BitConfig(**{**self.told["backbone_config"], "out_features": last})
        )
        side = self.bit(torch.zeros(1, config.in_channels, *[config.image_size] * 2)).feature_maps[-1].shape[-1]
        self.vit = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads,
                intermediate_size=config.ffn_dim, image_size=side, patch_size=config.patch_size,
                num_channels=config.widths[-1], layer_norm_eps=config.norm_eps, num_labels=5,
            )
        )  # fmt: skip

    def forward(self, pixels: Tensor) -> tuple[Any, list[Tensor]]:
        maps = self.bit(pixels).feature_maps
        return self.vit(maps[-1], interpolate_pos_encoding=True, output_hidden_states=True), maps

    def save_pretrained(self, folder: Path) -> None:
        self.vit.save_pretrained(folder)
        backbone = {BACKBONE + name: tensor for name, tensor in self.bit.state_dict().items()}
        write_safetensors(folder / "model.safetensors", {**load_file(folder / "model.safetensors"), **backbone})
        labels = {str(number): f"no. {number}" for number in range(5)}
        (folder / "config.json").write_text(json.dumps({**self.told, "id2label": labels}))


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        ({}, (32, 32)), ({}, (48, 48)), ({}, (16, 80)), ({}, (37, 50)), ({"image_size": 36}, (36, 36)),
        ({"backbone_depths": (1, 1)}, (32, 24)),
        ({"backbone_depths": (1, 1, 1, 2), "image_size": 64}, (64, 64)),
        ({"backbone_depths": (1,), "image_size": 28, "stem_channels": 12}, (28, 28)),
        ({"backbone_depths": (1, 1), "patch_size": 2}, (32, 48)),
    ],
)  # fmt: skip
def test_states_maps_classes_and_gradients_are_those_of_bit_and_vit(
    changes: dict[str, Any], sides: tuple[int, int], tmp_path: Path
) -> None:
    config = replace(HYBRID, **changes)
    peer = noisy(Theirs(config))
    model: Any = load_peer(peer, tmp_path / "it")
    pixels, stages = noise(2, 2, *sides, seed=3), len(config.backbone_depths)
    right, maps = peer(pixels)
    found, states = model.body(Batch(pixels), taps=(2, 0, *range(-stages, 0), 1)), right.hidden_states
    for ours, tap in zip(found.hidden_states, (states[3], states[1], *reversed(maps), states[2]), strict=True):
        near(ours, tap, 1e-11)
    logits = model.logits(pixels)
    near(logits, right.logits, 1e-11)
    # gradients of convolutions may be small, and gradients of key biases are 0
    totals = weighted_sum([logits]), weighted_sum([right.logits])
    assert_gradients(model, peer, *totals, tmp_path / "gradients", slack=1e-4)


def test_a_config_with_few_keys_means_the_published_defaults() -> None:
    right = replace(hybrid.Config(), norm_eps=1e-12)
    told = {
        "global_padding": "same", "layer_type": "bottleneck", "depths": [3, 4, 9], "embedding_dynamic_padding": True,
    }  # fmt: skip
    for more in ({}, {"out_features": ["stage3"], "hidden_sizes": [256, 512, 1024, 2048], "out_indices": [3]}):
        config = {"model_type": "vit-hybrid", "backbone_config": {**told, **more}}
        assert hybrid.Config(**hybrid.PUBLISHED.read(config)) == right


def test_a_folder_is_read_and_written_with_its_classes(tmp_path: Path) -> None:
    peer = noisy(Theirs(HYBRID))
    model = load_peer(peer, tmp_path)
    assert (
        model.spec.options.labels == tuple(f"no. {n}" for n in range(5)) and model.config == HYBRID and not model.notes
    )
    regard.save(model, tmp_path / "ours")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "ours", tmp_path))
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    near(regard.load(model.save(tmp_path / "run")).logits(WIDE_PIXELS), peer(WIDE_PIXELS)[0].logits, 1e-11)


TORCHVISION = [
    ("vit.embeddings.cls_token", "class_token"), ("vit.embeddings.position_embeddings", "encoder.pos_embedding"),
    ("vit.embeddings.patch_embeddings.projection", "conv_proj"), ("vit.layernorm.", "encoder.ln."),
    ("vit.encoder.layer.", "encoder.layers.encoder_layer_"), ("attention.attention.query.", "self_attention.in_proj_"),
    ("attention.output.dense", "self_attention.out_proj"), ("intermediate.dense", "mlp.0"), ("output.dense", "mlp.3"),
    ("layernorm_before", "ln_1"), ("layernorm_after", "ln_2"), ("classifier", "heads.head"),
]  # fmt: skip
FRONT = [
    (f"{BACKBONE}bit.embedder.convolution", "patch_embed.backbone.stem.conv"),
    (f"{BACKBONE}bit.embedder.norm", "patch_embed.backbone.stem.norm"),
    (f"{BACKBONE}bit.encoder.stages", "patch_embed.backbone.stages"), ("layers.", "blocks."), *TIMM,
]  # fmt: skip
NAMES = {"patch_embed.backbone.stem.norm.bias", "patch_embed.backbone.stages.2.blocks.0.downsample.norm.weight"}


@pytest.mark.parametrize(
    ("table", "names"),
    [(TIMM, {"blocks.2.mlp.fc2.bias"}), (TORCHVISION, {"encoder.ln.bias"}), (FRONT, NAMES)],
    ids=["timm", "torchvision", "hybrid of timm"],
)
def test_files_of_timm_and_torchvision_are_read_too(
    table: list[tuple[str, str]], names: set[str], tmp_path: Path
) -> None:
    hybrid, x = table is FRONT, WIDE_PIXELS if table is FRONT else PIXELS
    vit = peer_of("ViTForImageClassification", layer_norm_eps=1e-6)
    peer = noisy(Theirs(replace(HYBRID, backbone_depths=(2, 1, 5)))) if hybrid else vit
    peer.save_pretrained(tmp_path)
    tensors = relabeled(load_file(tmp_path / "model.safetensors"), table)
    assert names <= set(tensors) and not any(name.startswith("vit.") for name in tensors)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    near(regard.load(tmp_path).logits(x), peer(x)[0].logits if hybrid else peer(x).logits, 1e-11)
    write_safetensors(tmp_path / "model.safetensors", {**tensors, "fc_norm.weight": torch.ones(12)})
    refused("expected", regard.load, tmp_path, error=WeightsError)
