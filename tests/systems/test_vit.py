"""ViT: patches, positions, feature taps, pooling, sizes, initialization, checkpoints of timm and torchvision."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

import regard
from parity import SIZES, TIMM, assert_gradients, load_peer, make_peer, relabeled, weighted_sum
from regard.errors import WeightsError
from regard.nn.vision.patches import GridPosition, PatchEmbedding
from regard.systems import vit
from regard.types import Batch
from regard.weights.tables import write_safetensors
from tiny import near, noise, noisy

OURS = vit.Config(image_size=12, patch_size=4, in_channels=2, width=12, depth=3, heads=3, ffn_dim=20)
PIXELS = noise(2, 2, 12, 12, seed=3)


def theirs(name: str = "ViTForImageClassification", **changes: Any) -> Any:
    return make_peer("ViTConfig", name, **{**SIZES["ViT"], **changes})


# -- patches and positions


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 3, 12, 4), (3, 3, 4, 20)])
def test_patches_are_a_convolution_that_steps_as_far_as_it_is_wide(shape: tuple[int, ...]) -> None:
    patches = noisy(PatchEmbedding(7, 4, 3))
    x = noise(*shape, seed=2).requires_grad_()
    ours, grid = patches(x)
    right = F.conv2d(x, patches.weight, patches.bias, stride=4)
    assert grid == right.shape[2:]
    near(ours, right.flatten(2).mT)
    wanted = [x, patches.weight, patches.bias]
    weigh = noise(*ours.shape, seed=4)
    found = torch.autograd.grad((ours * weigh).sum(), wanted)
    for one, other in zip(found, torch.autograd.grad((right.flatten(2).mT * weigh).sum(), wanted), strict=True):
        near(one, other)
    near(patches(x.to(memory_format=torch.channels_last))[0], ours)


def test_an_image_that_cannot_be_divided_into_patches_is_refused() -> None:
    patches = PatchEmbedding(8, 4, 3)
    for shape in ((1, 3, 8, 10), (1, 3, 7, 8), (1, 3, 2, 2), (1, 3, 0, 4)):
        with pytest.raises(ValueError, match="patch"):
            patches(torch.zeros(shape))
    with pytest.raises(ValueError, match="channels"):
        patches(torch.zeros(1, 1, 8, 8))


def test_a_grid_of_the_trained_size_has_the_trained_positions() -> None:
    position = noisy(GridPosition(3, 6))
    assert position((3, 3)) is position.table
    near(position((4, 6))[:, :1], position.table[:, :1])
    bare = noisy(GridPosition(3, 6, num_prefix_tokens=0))
    assert bare((4, 6)).shape == (1, 24, 6)


# -- outputs of transformers


@pytest.mark.parametrize("sides", [(20, 20), (8, 24), (16, 4), (36, 4)])
def test_images_of_other_sizes_have_interpolated_positions(sides: tuple[int, int], tmp_path: Path) -> None:
    """(36, 4) has as many patches as there are positions, in another shape."""
    peer = theirs("ViTModel")
    model, pixels = load_peer(peer, tmp_path), noise(2, 2, *sides, seed=5)
    right, found = peer(pixels, interpolate_pos_encoding=True).last_hidden_state, model.states(pixels)
    near(found.sequence, right)
    near(found.pooled, right[:, 0])
    assert_gradients(model, peer, weighted_sum([found.sequence]), weighted_sum([right]), tmp_path / "gradients")


# -- feature taps and pooling


def test_taps_come_in_the_requested_order(tmp_path: Path) -> None:
    peer = theirs("ViTModel")
    body: Any = load_peer(peer, tmp_path).body
    right = peer(PIXELS, output_hidden_states=True).hidden_states[1:]
    for tap, index in zip(body(Batch(PIXELS), taps=(2, 0, 1, 2)).hidden_states, (2, 0, 1, 2), strict=True):
        near(tap, right[index])
    near(body.encoder.norm(right[2]), body(Batch(PIXELS)).sequence)
    assert not body(Batch(PIXELS)).hidden_states


@pytest.mark.parametrize("tap", [3, -1])
def test_a_tap_that_there_is_not_is_refused(tap: int) -> None:
    with pytest.raises(ValueError, match=f"{tap}"):
        vit.build(OURS)(Batch(PIXELS.float()), taps=(0, tap))


def test_a_mean_is_of_the_patches_alone() -> None:
    body = noisy(vit.build(replace(OURS, pool="mean")))
    found = body(Batch(PIXELS))
    near(found.pooled, found.sequence[:, 1:].mean(1))
    bare = noisy(vit.build(replace(OURS, pool="mean", class_token=False)))
    found = bare(Batch(PIXELS))
    assert found.sequence.shape == (2, 9, 12) and "first" not in dict(bare.named_parameters())
    near(found.pooled, found.sequence.mean(1))


# -- sizes, initialization, precision


def test_dropout_works_in_training_and_only_then() -> None:
    body = noisy(vit.build(replace(OURS, dropout=0.5)))
    assert torch.equal(body(Batch(PIXELS)).sequence, body(Batch(PIXELS)).sequence)
    body.train()
    blocks = copy.deepcopy(body)
    blocks.encoder.eval()
    for trained in (body, blocks):  # also on embeddings
        assert not torch.equal(trained(Batch(PIXELS)).sequence, trained(Batch(PIXELS)).sequence)


@pytest.mark.parametrize("sides", [(12, 12), (8, 20)])
def test_sixteen_bits_are_near_and_pixels_are_of_the_weights_kind(sides: tuple[int, int]) -> None:
    body = vit.build(OURS).eval()
    pixels = noise(2, 2, *sides, seed=5).float()
    with torch.no_grad():
        right = body(Batch(pixels)).sequence
        with torch.autocast("cpu", torch.bfloat16):
            mixed = body(Batch(pixels)).sequence
        found = body.to(torch.bfloat16)(Batch(pixels)).sequence
    assert found.dtype == torch.bfloat16
    for ours in (found, mixed):
        torch.testing.assert_close(ours.float(), right, rtol=0.05, atol=0.05)


# -- checkpoints


def test_a_bare_body_is_read_without_its_pooler(tmp_path: Path) -> None:
    model = load_peer(theirs("ViTModel"), tmp_path)
    assert any("vit.pooler.dense.weight" in note for note in model.notes) and model.head is None


def test_a_masked_autoencoder_is_read_without_its_decoder(tmp_path: Path) -> None:
    peer = theirs("ViTForMaskedImageModeling", encoder_stride=4)
    model = load_peer(peer, tmp_path)
    assert any("decoder.0.weight" in note and "vit.embeddings.mask_token" in note for note in model.notes)
    near(model.states(PIXELS).sequence, peer.vit(PIXELS).last_hidden_state)


def test_configs_without_a_hugging_face_format_are_saved_in_native_format(tmp_path: Path) -> None:
    model = load_peer(theirs(), tmp_path / "theirs")
    config = replace(OURS, pool="mean", class_token=False)
    other = regard.model.assemble(replace(model.spec, config=config))
    with pytest.raises(WeightsError, match="False"):
        regard.save(other, tmp_path / "ours")
    other.save(tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config == config


TORCHVISION = [
    ("vit.embeddings.cls_token", "class_token"), ("vit.embeddings.position_embeddings", "encoder.pos_embedding"),
    ("vit.embeddings.patch_embeddings.projection", "conv_proj"), ("vit.layernorm.", "encoder.ln."),
    ("vit.encoder.layer.", "encoder.layers.encoder_layer_"), ("attention.attention.query.", "self_attention.in_proj_"),
    ("attention.output.dense", "self_attention.out_proj"), ("intermediate.dense", "mlp.0"), ("output.dense", "mlp.3"),
    ("layernorm_before", "ln_1"), ("layernorm_after", "ln_2"), ("classifier", "heads.head"),
]  # fmt: skip


@pytest.mark.parametrize("table", [TIMM, TORCHVISION], ids=["timm", "torchvision"])
def test_files_of_timm_and_torchvision_are_read_too(table: list[tuple[str, str]], tmp_path: Path) -> None:
    peer = theirs(layer_norm_eps=1e-6)
    peer.save_pretrained(tmp_path)
    tensors = relabeled(load_file(tmp_path / "model.safetensors"), table)
    assert not any(name.startswith("vit.") for name in tensors)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    near(regard.load(tmp_path).logits(PIXELS), peer(PIXELS).logits)
    write_safetensors(tmp_path / "model.safetensors", {**tensors, "fc_norm.weight": torch.ones(12)})
    with pytest.raises(WeightsError, match="expected"):
        regard.load(tmp_path)


def test_a_file_without_a_class_token_is_a_mean_of_patches(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    tensors = relabeled(load_file(tmp_path / "model.safetensors"), TIMM)
    del tensors["cls_token"]
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    write_safetensors(tmp_path / "model.safetensors", tensors)
    body = regard.load(tmp_path).body
    assert not body.has_class_token and body.pool == "mean"


def test_sides_may_be_given_twice_and_few_keys_mean_the_published_defaults() -> None:
    read = vit.PUBLISHED.read({"model_type": "vit", "image_size": [12, 12], "patch_size": [4, 4]})
    assert read["image_size"] == 12 and read["patch_size"] == 4 and read["norm_eps"] == 1e-12
    assert vit.Config(**vit.PUBLISHED.read({"model_type": "vit"})) == replace(vit.Config(), norm_eps=1e-12)
