"""ViT against `transformers` in float64 with random parameters: outputs, gradients, sizes, checkpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.data.settings import DataSettings
from regard.errors import SettingError, WeightsError
from regard.nn.blocks.heads import ClassifierHead
from regard.nn.vision.patches import GridPosition, PatchEmbedding, VisionTransformer, quarter_blocks
from regard.systems import vit
from regard.training.settings import TrainSettings
from regard.types import Batch
from regard.weights.tables import read_checkpoint, write_safetensors
from tiny import near, noise, noisy

SIZES: dict[str, Any] = {
    "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20, "image_size": 12,
    "patch_size": 4, "num_channels": 2,
}  # fmt: skip
OURS = vit.Config(image_size=12, patch_size=4, in_channels=2, width=12, depth=3, heads=3, ffn_dim=20)
PIXELS = noise(2, 2, 12, 12, seed=3)


def theirs(name: str = "ViTForImageClassification", **changes: Any) -> Any:
    return noisy(getattr(transformers, name)(transformers.ViTConfig(**{**SIZES, "num_labels": 5, **changes})))


def opened(folder: Path) -> tuple[VisionTransformer, nn.Linear | None]:
    """Body and head of a Hugging Face checkpoint, loaded by the tables of the system alone."""
    told = json.loads((folder / "config.json").read_text())
    config, tensors = vit.from_published(vit.Config(**vit.PUBLISHED.read(told)), read_checkpoint(folder))
    body = vit.build(config).double().eval()
    classes = [len(tensors[name]) for name in ("classifier.weight",) if name in tensors]
    head = nn.Linear(config.width, classes[0]).double() if classes else None
    named = {} if head is None else {f"head.classes.{name}": tensor for name, tensor in head.state_dict().items()}
    found, _ = vit.NAMES.read(tensors, [*body.state_dict(), *named])
    body.load_state_dict({name: tensor for name, tensor in found.items() if name not in named})
    if head is not None:
        head.load_state_dict({name.removeprefix("head.classes."): found[name] for name in named})
    return body, head


def saved(peer: Any, folder: Path) -> Path:
    peer.save_pretrained(folder)
    return folder


def by_name(body: nn.Module, head: nn.Module | None = None) -> dict[str, Tensor]:
    """Gradients under Hugging Face names."""
    found = {name: p.grad for name, p in body.named_parameters() if p.grad is not None}
    if head is not None:
        found |= {f"head.classes.{name}": p.grad for name, p in head.named_parameters() if p.grad is not None}
    return vit.NAMES.write(found)


def gradients_agree(ours: Mapping[str, Tensor], peer: Any, folder: Path) -> None:
    """Compare gradients; transformers saves its gradients as a model, to get the names of files."""
    held = copy.deepcopy(peer)
    named = dict(peer.named_parameters())
    with torch.no_grad():
        for name, parameter in held.named_parameters():
            grad = named[name].grad
            parameter.copy_(torch.zeros_like(parameter) if grad is None else grad)
    right = read_checkpoint(saved(held, folder))
    assert set(ours) <= set(right) and all(not right[name].any() for name in set(right) - set(ours))
    largest = max(float(grad.abs().max()) for grad in right.values())
    for name, grad in ours.items():
        assert float((grad - right[name]).abs().max()) <= 1e-12 * largest, name


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


@pytest.mark.parametrize("grid", [(5, 5), (2, 7), (3, 3)])
def test_positions_of_other_grids_are_those_of_dpt_too(grid: tuple[int, int]) -> None:
    from transformers.models.dpt.modeling_dpt import DPTViTEmbeddings

    position = noisy(GridPosition(3, 6, interpolation="bilinear"))
    right = DPTViTEmbeddings._resize_pos_embed(None, position.table, *grid)
    near(position(grid), right)


def test_a_grid_of_the_trained_size_has_the_trained_positions() -> None:
    position = noisy(GridPosition(3, 6))
    assert position((3, 3)) is position.table
    near(position((4, 6))[:, :1], position.table[:, :1])
    bare = noisy(GridPosition(3, 6, num_prefix_tokens=0))
    assert bare((4, 6)).shape == (1, 24, 6)


# -- outputs of transformers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_norm_eps": 1e-2},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu", "num_channels": 3, "patch_size": 2},
    ],
)
def test_states_classes_and_gradients_are_those_of_image_classification(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    peer = theirs(**changes)
    body, head = opened(saved(peer, tmp_path / "it"))
    pixels = noise(2, changes.get("num_channels", 2), 12, 12, seed=3)
    right = peer(pixels, output_hidden_states=True)
    found = body(Batch(pixels), taps=(0, 1, 2))
    assert head is not None and found.pooled is not None
    logits = head(found.pooled)
    near(logits, right.logits)
    assert len(found.hidden_states) == 3
    for ours, tap in zip(found.hidden_states, right.hidden_states[1:], strict=True):
        near(ours, tap)
    weigh = noise(*right.logits.shape, seed=8)
    (logits * weigh).sum().backward()
    (right.logits * weigh).sum().backward()
    gradients_agree(by_name(body, head), peer, tmp_path / "gradients")


@pytest.mark.parametrize("sides", [(20, 20), (8, 24), (16, 4), (36, 4)])
def test_images_of_other_sizes_have_interpolated_positions(sides: tuple[int, int], tmp_path: Path) -> None:
    """(36, 4) has as many patches as there are positions, in another shape."""
    peer = theirs("ViTModel")
    body, _ = opened(saved(peer, tmp_path / "it"))
    pixels = noise(2, 2, *sides, seed=5)
    right = peer(pixels, interpolate_pos_encoding=True)
    found = body(Batch(pixels))
    near(found.sequence, right.last_hidden_state)
    near(found.pooled, right.last_hidden_state[:, 0])
    weigh = noise(*found.sequence.shape, seed=8)
    (found.sequence * weigh).sum().backward()
    (right.last_hidden_state * weigh).sum().backward()
    ours = {name.removeprefix("vit."): grad for name, grad in by_name(body).items()}
    gradients_agree(ours, peer, tmp_path / "gradients")


# -- feature taps and pooling


def test_taps_come_in_the_requested_order() -> None:
    body = noisy(vit.build(OURS))
    all_of_them = body(Batch(PIXELS), taps=(0, 1, 2)).hidden_states
    found = body(Batch(PIXELS), taps=(2, 0, 2)).hidden_states
    assert len(found) == 3 and found[0].shape == (2, 10, 12)
    for tap, right in zip(found, (all_of_them[2], all_of_them[0], all_of_them[2]), strict=True):
        assert torch.equal(tap, right)
    near(body.encoder.norm(all_of_them[2]), body(Batch(PIXELS)).sequence)
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


@pytest.mark.parametrize("token", [True, False])
def test_feature_maps_match_the_taps(token: bool) -> None:
    config = replace(OURS, depth=9, class_token=token, pool="mean")
    maps = config.feature_maps()
    assert (
        [tap.index for tap in maps] == [1, 3, 5, 8]
        and quarter_blocks(12) == [2, 5, 8, 11]
        and quarter_blocks(24) == [5, 11, 17, 23]
    )
    assert quarter_blocks(1) == [0, 0, 0, 0]
    with torch.device("meta"):
        found = vit.build(config)(Batch(torch.zeros(2, 2, 8, 16)), taps=[tap.index for tap in maps]).hidden_states
    for tap, states in zip(maps, found, strict=True):
        assert tap.is_sequence and states.shape == (
            2,
            tap.has_class_token + 8 // tap.stride * (16 // tap.stride),
            tap.channels,
        )


# -- sizes, initialization, precision


@pytest.mark.parametrize(
    ("preset", "total"),
    [
        ("vit-base-16", 86_567_656), ("vit-large-16", 304_326_632), ("vit-huge-14", 632_045_800),
        ("vit-base-32", 88_224_232), ("vit-small", 22_050_664), ("vit-tiny", 4_216_360),
    ],
)  # fmt: skip
def test_with_a_thousand_classes_there_are_as_many_parameters_as_published(preset: str, total: int) -> None:
    found = vit.PRESETS[preset]
    with torch.device("meta"):
        body, head = vit.build(found.config), ClassifierHead("classes", found.config.width, 1000, 0.0)
    count = sum(p.numel() for p in body.parameters())
    assert count == found.parameters and count + sum(p.numel() for p in head.parameters()) == total
    assert not list(body.buffers())


def test_larger_images_have_more_positions() -> None:
    large = replace(vit.PRESETS["vit-large-16"].config, image_size=384)
    with torch.device("meta"):
        count = sum(p.numel() for p in vit.build(large).parameters())
    assert count + 1_025_000 == 304_715_752


@pytest.mark.parametrize("preset", vit.PRESETS)
def test_recipes_name_settings_that_exist(preset: str) -> None:
    known = {field.name for field in fields(TrainSettings)}
    of_data = {field.name for field in fields(DataSettings)}
    for task in (*vit.SYSTEM.tasks, "nothing"):
        recipe = vit.SYSTEM.recipe(vit.PRESETS[preset], task)
        assert set(recipe) <= {"train", "data"} and set(recipe["train"]) <= known
        assert set(recipe.get("data", {})) <= of_data
    for further in vit.SYSTEM.finetune_recipes.values():
        assert set(further) == {"train"} and set(further["train"]) <= known


def test_it_begins_as_in_the_paper() -> None:
    torch.manual_seed(0)
    body = vit.build(vit.Config(image_size=64, patch_size=8, width=96, depth=2, heads=3, ffn_dim=384))
    named = {name: p.detach() for name, p in body.named_parameters()}
    assert not named["first"].any() and not named["patches.bias"].any()
    assert float(named["position.table"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(named["patches.weight"].std()) == pytest.approx((3 * 64) ** -0.5, rel=0.15)
    for block in range(2):
        inner = f"encoder.blocks.{block}.feed.inner"
        assert float(named[f"{inner}.up.bias"].std()) == pytest.approx(1e-6, rel=0.2)
        assert float(named[f"{inner}.down.bias"].std()) == pytest.approx(1e-6, rel=0.3)
        up, q = named[f"{inner}.up.weight"], named[f"encoder.blocks.{block}.attend.inner.qkv.weight"][:96]
        assert float(up.abs().max()) <= (6 / (96 + 384)) ** 0.5 < float(up.abs().max()) * 1.01
        assert float(q.abs().max()) <= (6 / (96 + 96)) ** 0.5 < float(q.abs().max()) * 1.01


def test_every_parameter_learns() -> None:
    body = noisy(vit.build(OURS))
    (body(Batch(PIXELS)).pooled * noise(2, 12)).sum().backward()
    assert all(bool(p.grad is not None and p.grad.isfinite().all() and p.grad.any()) for p in body.parameters())


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


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"image_size": 13}, r"model\.patch"), ({"heads": 5}, r"model\.heads"),
        ({"patch_size": 0}, r"model\.patch"), ({"dropout": 1.0}, r"model\.dropout"),
        ({"class_token": False}, r"model\.pool"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        replace(OURS, **changes)


# -- checkpoints


ANIMALS = {0: "ape", 1: "bee", 2: "cat", 3: "dog", 4: "eel"}


def test_folders_of_classifiers_are_read_and_written_with_their_classes(tmp_path: Path) -> None:
    peer = theirs(id2label=ANIMALS, label2id={name: number for number, name in ANIMALS.items()}, layer_norm_eps=1e-5)
    model = regard.load(saved(peer, tmp_path / "theirs"))
    assert model.task.name == "classify" and model.spec.labels == tuple(ANIMALS.values()) and not model.notes
    assert model.config == replace(OURS, norm_eps=1e-5) and not model.has_new_head
    near(model.logits(PIXELS), peer(PIXELS).logits)
    regard.save(model, tmp_path / "ours", layout="huggingface")
    again, told = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "ours", dtype=torch.float64, output_loading_info=True
    )
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    right = peer.state_dict()
    assert set(again.state_dict()) == set(right)
    assert all(torch.equal(tensor, right[name]) for name, tensor in again.state_dict().items())
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert again.config.id2label == ANIMALS and written["architectures"] == ["ViTForImageClassification"]
    for key in (*SIZES, "layer_norm_eps", "hidden_act", "label2id"):
        assert getattr(again.config, key) == getattr(peer.config, key)
    near(regard.load(tmp_path / "ours").logits(PIXELS), peer(PIXELS).logits)
    model.save(tmp_path / "run")
    near(regard.load(tmp_path / "run").logits(PIXELS), peer(PIXELS).logits)


def test_a_bare_body_is_read_without_its_pooler(tmp_path: Path) -> None:
    peer = theirs("ViTModel")
    model = regard.load(saved(peer, tmp_path))
    assert any("vit.pooler.dense.weight" in note for note in model.notes) and model.head is None
    near(model.states(PIXELS).sequence, peer(PIXELS).last_hidden_state)


def test_a_masked_autoencoder_is_read_without_its_decoder(tmp_path: Path) -> None:
    peer = theirs("ViTForMaskedImageModeling", encoder_stride=4)
    model = regard.load(saved(peer, tmp_path))
    assert any("decoder.0.weight" in note and "vit.embeddings.mask_token" in note for note in model.notes)
    near(model.states(PIXELS).sequence, peer.vit(PIXELS).last_hidden_state)


def test_configs_without_a_hugging_face_format_are_saved_in_native_format(tmp_path: Path) -> None:
    model = regard.load(saved(theirs(), tmp_path / "theirs"))
    config = replace(OURS, pool="mean", class_token=False)
    other = regard.model.assemble(replace(model.spec, config=config))
    with pytest.raises(WeightsError, match="False"):
        regard.save(other, tmp_path / "ours")
    other.save(tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config == config


def relaid(folder: Path, table: Sequence[tuple[str, str]], joined: tuple[str, str]) -> None:
    """Rename the tensors of a checkpoint as in another library; `joined`: q, k and v in one matrix."""
    tensors = load_file(folder / "model.safetensors")
    made: dict[str, Tensor] = {}
    for block in range(3):
        for part in ("weight", "bias"):
            look = f"vit.encoder.layer.{block}.attention.attention"
            rows = [tensors.pop(f"{look}.{name}.{part}") for name in ("query", "key", "value")]
            made[joined[0].format(block) + joined[1] + part] = torch.cat(rows)
    for name, tensor in tensors.items():
        for old, new in table:
            name = name.replace(old, new)
        made[name] = tensor
    save_file(made, folder / "model.safetensors", {"format": "pt"})


TIMM = [
    ("vit.embeddings.cls_token", "cls_token"), ("vit.embeddings.position_embeddings", "pos_embed"),
    ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"), ("vit.layernorm.", "norm."),
    ("vit.encoder.layer.", "blocks."), ("attention.output.dense", "attn.proj"), ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"), ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("classifier", "head"),
]  # fmt: skip
TORCHVISION = [
    ("vit.embeddings.cls_token", "class_token"), ("vit.embeddings.position_embeddings", "encoder.pos_embedding"),
    ("vit.embeddings.patch_embeddings.projection", "conv_proj"), ("vit.layernorm.", "encoder.ln."),
    ("vit.encoder.layer.", "encoder.layers.encoder_layer_"), ("attention.output.dense", "self_attention.out_proj"),
    ("intermediate.dense", "mlp.0"), ("output.dense", "mlp.3"), ("layernorm_before", "ln_1"),
    ("layernorm_after", "ln_2"), ("classifier", "heads.head"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "joined"),
    [
        (TIMM, ("blocks.{}.attn.qkv", ".")),
        (TORCHVISION, ("encoder.layers.encoder_layer_{}.self_attention.in_proj", "_")),
    ],
    ids=["timm", "torchvision"],
)
def test_files_of_timm_and_torchvision_are_read_too(
    table: list[tuple[str, str]], joined: tuple[str, str], tmp_path: Path
) -> None:
    peer = theirs(layer_norm_eps=1e-6)
    relaid(saved(peer, tmp_path), table, joined)
    assert not any(name.startswith("vit.") for name in load_file(tmp_path / "model.safetensors"))
    body, head = opened(tmp_path)
    assert head is not None
    near(head(body(Batch(PIXELS)).pooled), peer(PIXELS).logits)
    tensors = load_file(tmp_path / "model.safetensors")
    write_safetensors(tmp_path / "model.safetensors", {**tensors, "fc_norm.weight": torch.ones(12)})
    with pytest.raises(WeightsError, match="expected"):
        opened(tmp_path)


def test_a_file_without_a_class_token_is_a_mean_of_patches(tmp_path: Path) -> None:
    relaid(saved(theirs(), tmp_path), TIMM, ("blocks.{}.attn.qkv", "."))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["cls_token"]
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    body, _ = opened(tmp_path)
    assert not body.has_class_token and body.pool == "mean"


def told(**changes: Any) -> dict[str, Any]:
    return {**transformers.ViTConfig(**SIZES).to_diff_dict(), **changes}


def test_sides_may_be_given_twice() -> None:
    read = vit.PUBLISHED.read(told(image_size=[12, 12], patch_size=[4, 4]))
    assert read["image_size"] == 12 and read["patch_size"] == 4 and read["norm_eps"] == 1e-12
    for changes in ({"image_size": [12, 24]}, {"patch_size": [4, 2]}):
        with pytest.raises(WeightsError, match="equal"):
            vit.PUBLISHED.read(told(**changes))


def test_a_config_with_few_keys_means_the_published_defaults() -> None:
    config = vit.Config(**vit.PUBLISHED.read({"model_type": "vit"}))
    assert config == replace(vit.BASE, norm_eps=1e-12)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"qkv_bias": False}, "qkv_bias=False"),
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"registers": 4}, "registers"),
    ],
)
def test_unsupported_config_values_are_refused(changes: dict[str, Any], refused: str) -> None:
    with pytest.raises(WeightsError, match=refused):
        vit.PUBLISHED.read(told(**changes))
