"""Hybrid ViT against BiT and ViT of `transformers`, combined here, in float64 with random parameters."""

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
from parity import TIMM, assert_gradients, load_peer, relabeled, weighted_sum
from regard.config import as_dict
from regard.errors import WeightsError
from regard.systems import hybrid
from regard.types import Batch
from regard.weights.tables import write_safetensors
from tiny import near, noise, noisy

OURS = hybrid.Config(
    image_size=32, in_channels=2, backbone_depths=(2, 1, 2), stem_channels=8, norm_groups=4, width=12, depth=3, heads=3,
    ffn_dim=20, norm_eps=1e-12,
)  # fmt: skip
PIXELS = noise(2, 2, 32, 32, seed=3)
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
    config = replace(OURS, **changes)
    peer = noisy(Theirs(config))
    model: Any = load_peer(peer, tmp_path / "it")
    pixels, stages = noise(2, 2, *sides, seed=3), len(config.backbone_depths)
    right, maps = peer(pixels)
    found = model.body(Batch(pixels), taps=(*range(-stages, 0), 0, 1, 2))
    for ours, tap in zip(found.hidden_states, (*reversed(maps), *right.hidden_states[1:]), strict=True):
        near(ours, tap, 1e-11)
    logits = model.logits(pixels)
    near(logits, right.logits, 1e-11)
    # gradients of convolutions may be small, and gradients of key biases are 0
    totals = weighted_sum([logits]), weighted_sum([right.logits])
    assert_gradients(model, peer, *totals, tmp_path / "gradients", slack=1e-4)


def test_a_stage_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks"):
        hybrid.build(OURS)(Batch(PIXELS.float()), taps=(-4,))


# -- checkpoint formats


def test_a_config_with_few_keys_means_the_published_defaults() -> None:
    right = replace(hybrid.Config(), norm_eps=1e-12)
    assert hybrid.Config(**hybrid.PUBLISHED.read({"model_type": "vit-hybrid"})) == right
    told = {
        "global_padding": "same", "layer_type": "bottleneck", "depths": [3, 4, 9], "embedding_dynamic_padding": True,
    }  # fmt: skip
    for more in ({}, {"out_features": ["stage3"], "hidden_sizes": [256, 512, 1024, 2048], "out_indices": [3]}):
        config = {"model_type": "vit-hybrid", "backbone_config": {**told, **more}}
        assert hybrid.Config(**hybrid.PUBLISHED.read(config)) == right


def test_a_folder_is_read_and_written_with_its_classes(tmp_path: Path) -> None:
    peer = noisy(Theirs(OURS))
    model = load_peer(peer, tmp_path)
    assert model.spec.options.labels == tuple(f"no. {n}" for n in range(5)) and model.config == OURS and not model.notes
    regard.save(model, tmp_path / "ours")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "ours", tmp_path))
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    near(regard.load(model.save(tmp_path / "run")).logits(PIXELS), peer(PIXELS)[0].logits, 1e-11)


FRONT = [
    (f"{BACKBONE}bit.embedder.convolution", "patch_embed.backbone.stem.conv"),
    (f"{BACKBONE}bit.embedder.norm", "patch_embed.backbone.stem.norm"),
    (f"{BACKBONE}bit.encoder.stages", "patch_embed.backbone.stages"), ("layers.", "blocks."),
]  # fmt: skip


def test_files_of_timm_are_read_too(tmp_path: Path) -> None:
    peer = noisy(Theirs(replace(OURS, backbone_depths=(2, 1, 5))))
    peer.save_pretrained(tmp_path)
    made = relabeled(load_file(tmp_path / "model.safetensors"), [*FRONT, *TIMM])
    # names of timm
    assert {"patch_embed.backbone.stem.norm.bias", "patch_embed.backbone.stages.0.blocks.1.conv3.weight"} <= set(made)
    assert {"patch_embed.backbone.stages.2.blocks.0.downsample.norm.weight", "blocks.2.mlp.fc2.bias"} <= set(made)
    write_safetensors(tmp_path / "model.safetensors", made)
    near(regard.load(tmp_path).logits(PIXELS), peer(PIXELS)[0].logits, 1e-11)
    made["blocks.7.norm1.weight"] = made["blocks.2.norm1.weight"].clone()
    write_safetensors(tmp_path / "model.safetensors", made)
    with pytest.raises(WeightsError, match="expected"):
        regard.load(tmp_path)
