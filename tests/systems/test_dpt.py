"""DPT against `transformers` in float64 with random parameters: outputs, gradients, sizes, checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import as_dict, from_dict
from regard.errors import SettingError, WeightsError
from regard.nn.vision.dense import (
    DenseHead,
    DepthHead,
    SegmentationHead,
    depth_head,
    segmentation_head,
)
from regard.systems import SYSTEMS, dpt
from regard.training.settings import TrainSettings
from regard.types import Batch
from regard.weights.tables import Tensors, read_checkpoint, write_safetensors
from tiny import near, noise, noisy

SIZES: dict[str, Any] = {
    "hidden_size": 12, "num_hidden_layers": 5, "num_attention_heads": 3, "intermediate_size": 20, "image_size": 64,
    "num_channels": 2, "backbone_out_indices": [0, 1, 3, 4], "neck_hidden_sizes": [3, 5, 7, 6], "fusion_hidden_size": 10,
    "num_labels": 5, "semantic_classifier_dropout": 0.0,
}  # fmt: skip
BIT: dict[str, Any] = {
    "model_type": "bit", "layer_type": "bottleneck", "global_padding": "same", "embedding_dynamic_padding": True,
    "depths": [1, 2, 1], "embedding_size": 8, "hidden_sizes": [32, 64, 128], "num_groups": 4, "num_channels": 2,
    "out_features": ["stage1", "stage2", "stage3"],
}  # fmt: skip
HYBRID: dict[str, Any] = {"is_hybrid": True, "backbone_config": BIT, "backbone_featmap_shape": [1, 128, 4, 4]}
HYBRID["neck_hidden_sizes"] = [32, 64, 7, 6]
NAMED = {"depth": "DPTForDepthEstimation", "segment": "DPTForSemanticSegmentation"}
PIXELS = noise(2, 2, 64, 64, seed=3)
kinds = pytest.mark.parametrize("hybrid", [False, True], ids=["vit", "hybrid"])
tasks = pytest.mark.parametrize("task", NAMED)


def theirs(task: str, hybrid: bool = False, **changes: Any) -> Any:
    told = {**SIZES, **(HYBRID if hybrid else {}), "use_batch_norm_in_fusion_residual": task == "segment", **changes}
    peer = noisy(getattr(transformers, NAMED[task])(transformers.DPTConfig(**told)), scale=0.3)
    for number, (name, buffer) in enumerate(peer.named_buffers()):
        if "running" in name:  # running statistics are compared too
            buffer.copy_(noise(*buffer.shape, seed=number).abs() + 0.5)
    for module in peer.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return peer


class Ours(nn.Module):
    """Body and head of a Hugging Face checkpoint, loaded by the tables of the system alone."""

    def __init__(self, folder: Path, task: str) -> None:
        super().__init__()
        told = json.loads((folder / "config.json").read_text())
        config = from_dict(dpt.Config, dpt.PUBLISHED.read(told), "model.")
        self.config, tensors = dpt.from_published(config, read_checkpoint(folder))
        self.task = task
        self.body = dpt.build(self.config)
        self.head: DenseHead = depth_head(self.config) if task == "depth" else segmentation_head(self.config, 5)
        self.double().eval()
        found, self.foreign = dpt.NAMES.read(tensors, self.named())
        self.body.load_state_dict({name: found[name] for name in self.body.state_dict()})
        self.head.load_state_dict({name: found[f"head.{name}"] for name in self.head.state_dict()})
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def named(self) -> Tensors:
        return {**self.body.state_dict(), **{f"head.{name}": x for name, x in self.head.state_dict().items()}}

    def taps(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.body(Batch(x), taps=self.head.tap_indices).hidden_states

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.taps(x), tuple(x.shape[-2:]))

    def save(self, folder: Path) -> None:
        folder.mkdir()
        written = dpt.PUBLISHED.write(as_dict(self.config), self.task)
        written |= {"id2label": {str(n): str(n) for n in range(5)}, "label2id": {str(n): n for n in range(5)}}
        (folder / "config.json").write_text(json.dumps(written))
        write_safetensors(folder / "model.safetensors", dpt.to_published(self.config, dpt.NAMES.write(self.named())))


def loaded(peer: Any, folder: Path, task: str) -> Ours:
    peer.save_pretrained(folder)
    return Ours(folder, task)


def right(peer: Any, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Output and fused feature maps of transformers, part by part, since its forward accepts square images only."""
    hybrid = peer.config.is_hybrid
    found = peer.dpt.embeddings(x, interpolate_pos_encoding=True) if hybrid else peer.dpt.embeddings(x)
    states, early, after = found.last_hidden_states, list(found.intermediate_activations or ()), []
    for layer in peer.dpt.encoder.layer:
        states = layer(states)
        after.append(states)
    picked = [after[n] for n in peer.config.backbone_out_indices][len(early) :]
    fused = peer.neck([*early, *picked], x.shape[2] // 16, x.shape[3] // 16)
    return peer.head(fused), fused


def weighed(out: Tensor) -> Tensor:
    return (out * noise(*out.shape, seed=8)).sum()


def gradients_agree(model: Ours, peer: Any, ours: Tensor, expected: Tensor) -> None:
    """Compare the gradients of every parameter; exactly the parameters without a gradient are frozen."""
    model.zero_grad()
    peer.zero_grad()
    ours.backward()
    expected.backward()
    found = {name.removeprefix("body."): p.grad for name, p in model.named_parameters() if p.grad is not None}
    written = dpt.to_published(model.config, dpt.NAMES.write(found))
    wanted = {name: p.grad for name, p in peer.named_parameters() if p.grad is not None}
    assert set(written) == set(wanted)
    # differences are relative to the largest gradient of the same module, because magnitudes differ much
    for name, grad in wanted.items():
        part = name.rpartition(".")[0]
        largest = max(float(grad.abs().max()) for other, grad in wanted.items() if other.startswith(part))
        gap = float((written[name] - grad).abs().max())
        assert gap <= 1e-10 * largest, f"{name}: {gap:.3g} of {largest:.3g}"


# -- outputs


@kinds
@tasks
def test_outputs_and_gradients_equal_transformers(task: str, hybrid: bool, tmp_path: Path) -> None:
    peer = theirs(task, hybrid)
    model = loaded(peer, tmp_path, task)
    said = peer(PIXELS)
    expected = said.predicted_depth if task == "depth" else said.logits
    near(right(peer, PIXELS)[0], expected)
    ours = model(PIXELS)
    assert not model.foreign and ours.shape == ((2, 64, 64) if task == "depth" else (2, 5, 64, 64))
    near(ours, expected, 1e-10)
    gradients_agree(model, peer, weighed(ours), weighed(right(peer, PIXELS)[0]))


@kinds
@tasks
@pytest.mark.parametrize("shape", [(32, 96), (128, 64)])
def test_images_of_other_shapes_equal_transformers(
    task: str, hybrid: bool, shape: tuple[int, int], tmp_path: Path
) -> None:
    peer = theirs(task, hybrid)
    model, x = loaded(peer, tmp_path, task), noise(1, 2, *shape, seed=5)
    ours, (expected, _) = model(x), right(peer, x)
    assert ours.shape[-2:] == shape
    near(ours, expected, 1e-10)
    gradients_agree(model, peer, weighed(ours), weighed(expected))


@pytest.mark.parametrize("readout", ["add", "ignore"])
def test_the_class_token_is_added_or_ignored_as_by_the_peer(readout: str, tmp_path: Path) -> None:
    peer = theirs("depth", readout_type=readout)
    model, x = loaded(peer, tmp_path, "depth"), noise(2, 2, 32, 64, seed=6)
    near(model(x), right(peer, x)[0], 1e-10)
    gradients_agree(model, peer, weighed(model(x)), weighed(right(peer, x)[0]))


@pytest.mark.parametrize(
    "change", [{"use_bias_in_fusion_residual": True}, {"use_batch_norm_in_fusion_residual": False}]
)
def test_norms_and_biases_of_the_fusion_are_where_the_file_has_them(change: dict[str, Any], tmp_path: Path) -> None:
    peer = theirs("segment", **change)
    model = loaded(peer, tmp_path, "segment")
    near(model(PIXELS), peer(PIXELS).logits, 1e-10)


@kinds
def test_learning_classes_takes_statistics_and_the_auxiliary_loss_of_the_peer(hybrid: bool, tmp_path: Path) -> None:
    peer = theirs("segment", hybrid)
    model = loaded(peer, tmp_path, "segment").train()
    peer.train()
    labels = torch.randint(0, 5, (2, 64, 64), generator=torch.Generator().manual_seed(4))
    labels[:, :9] = 255
    expected = peer(PIXELS, labels=labels).loss
    assert isinstance(model.head, SegmentationHead)
    logits, beside = model.head.forward_with_auxiliary(model.taps(PIXELS), (64, 64))
    assert beside is not None
    losses = [F.cross_entropy(x, labels, ignore_index=255) for x in (logits, beside)]
    near(losses[0] + 0.4 * losses[1], expected, 1e-10)
    gradients_agree(model, peer, losses[0] + 0.4 * losses[1], expected)
    after = dpt.to_published(model.config, dpt.NAMES.write(model.named()))
    gathered = {name: buffer for name, buffer in peer.named_buffers() if "running" in name}
    assert len(gathered) == 2 * (16 + 2)  # four norms in each of four fusions, one in each head
    for name, buffer in gathered.items():
        near(after[name], buffer, 1e-10)


def test_without_an_auxiliary_head_there_is_none(tmp_path: Path) -> None:
    peer = theirs("segment", use_auxiliary_head=False)
    model = loaded(peer, tmp_path, "segment")
    assert not model.config.auxiliary_head and isinstance(model.head, SegmentationHead)
    logits, beside = model.head.forward_with_auxiliary(model.taps(PIXELS), (64, 64))
    near(logits, peer(PIXELS).logits, 1e-10)
    assert beside is None


# -- unused parameters


@kinds
def test_unused_parameters_are_frozen_and_counted(hybrid: bool, tmp_path: Path) -> None:
    peer = theirs("depth", hybrid)
    model = loaded(peer, tmp_path, "depth")
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    unit = {f"head.fusion.0.skip.{name}.{part}" for name in ("first", "second") for part in ("weight", "bias")}
    assert frozen == {"body.encoder.norm.weight", "body.encoder.norm.bias", *unit}
    before = model(PIXELS)
    with torch.no_grad():
        for name in frozen:
            model.get_parameter(name).fill_(float("nan"))
    assert torch.equal(model(PIXELS), before)
    weighed(model(PIXELS)).backward()
    assert {name for name, p in model.named_parameters() if p.grad is None} == frozen


# -- checkpoints and presets


@kinds
@tasks
def test_folders_are_written_as_they_were_read(task: str, hybrid: bool, tmp_path: Path) -> None:
    peer = theirs(task, hybrid)
    model = loaded(peer, tmp_path / "theirs", task)
    model.save(tmp_path / "ours")
    kind = getattr(transformers, NAMED[task])
    again, said = kind.from_pretrained(tmp_path / "ours", dtype=torch.float64, output_loading_info=True)
    assert not any(said[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours, before = again.state_dict(), peer.state_dict()
    assert set(ours) == set(before)
    assert all(torch.equal(ours[key], before[key]) for key in before if "num_batches" not in key)
    told, was = again.config.to_dict(), peer.config.to_dict()
    differ = {key for key in was if told.get(key) != was[key]} - {"id2label", "label2id", "_name_or_path", "dtype"}
    assert differ <= {"backbone_config", "architectures", "transformers_version"}
    near(again.eval()(PIXELS)[0], peer(PIXELS)[0])
    near(Ours(tmp_path / "ours", task)(PIXELS), model(PIXELS))


def test_a_file_of_the_bare_body_is_read_under_its_prefix() -> None:
    peer = noisy(transformers.DPTModel(transformers.DPTConfig(**SIZES)))
    config = from_dict(dpt.Config, dpt.PUBLISHED.read(peer.config.to_dict()), "model.")
    config, tensors = dpt.from_published(config, dict(peer.state_dict()))
    body = dpt.build(config).double()
    found, foreign = dpt.NAMES.read(tensors, body.state_dict())
    body.load_state_dict(found)
    near(body(Batch(PIXELS)).sequence, peer(PIXELS).last_hidden_state, 1e-10)
    assert foreign == ["dpt.pooler.dense.weight", "dpt.pooler.dense.bias"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"add_projection": True}, "add_projection"),
        ({"qkv_bias": False}, "qkv_bias"),
        ({"image_size": [64, 96]}, "equal"),
        ({"hidden_act": "silu"}, "hidden_act"),
        ({"head_in_index": 0}, "head_in_index"),
        ({"backbone_config": {"model_type": "dinov2"}}, "dinov2"),
        ({**HYBRID, "backbone_config": {**BIT, "layer_type": "preactivation"}}, "backbone_config.layer_type"),
        ({**HYBRID, "backbone_config": {**BIT, "output_stride": 8}}, "backbone_config.output_stride"),
        ({"a_new_key": 1}, "a_new_key"),
    ],
)
def test_unsupported_config_values_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    told = {**transformers.DPTConfig(**SIZES).to_dict(), **changes}
    with pytest.raises(WeightsError, match=named):
        dpt.PUBLISHED.read(told)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"out_layers": (2, 5, 8, 12)}, "11"),
        ({"out_layers": (2, 5, 5, 8)}, "increasing"),
        ({"out_layers": (2, 5, 8)}, "four values"),
        ({"reassemble_factors": (4, 2, 1, 0.7)}, "0.7"),
        ({"image_size": 100}, "not divisible"),
        ({"hybrid": True, "patch_size": 8}, "model.patch_size=16"),
        ({"hybrid": True, "backbone_depths": (3, 4)}, "backbone_depths"),
        ({"hybrid": True, "readout": "add"}, "model.readout=project"),
        ({"hybrid": True, "norm_groups": 48}, "norm_groups"),
        ({"heads": 7}, "heads"),
        ({"fusion_dim": 0}, "fusion"),
    ],
)
def test_invalid_configs_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        replace(dpt.BASE, **changes)


COUNTS = {
    "dpt-small": 9_087_916, "dpt-hybrid-small": 7_153_788, "dpt-base": 111_807_980, "dpt-large": 343_960_364,
    "dpt-hybrid": 123_307_884,
}  # fmt: skip
"""Parameter counts with 150 classes."""


@pytest.mark.parametrize("name", dpt.PRESETS)
def test_presets_have_exactly_the_stated_parameters(name: str) -> None:
    preset = dpt.PRESETS[name]
    with torch.device("meta"):
        body, depth, classes = (
            dpt.build(preset.config),
            depth_head(preset.config),
            segmentation_head(preset.config, 150),
        )
    count = sum(p.numel() for part in (body, depth) for p in part.parameters())
    assert count == preset.parameters and isinstance(depth, DepthHead)
    assert sum(p.numel() for part in (body, classes) for p in part.parameters()) == COUNTS[name]
    assert from_dict(TrainSettings, preset.recipe["train"]) and SYSTEMS["dpt"].presets[name] is preset


def test_batch_norms_are_chosen_by_the_task() -> None:
    assert (
        dpt.BASE.resolve_fusion_norm(classifies=True).fusion_batch_norm is True
        and dpt.BASE.resolve_fusion_norm(classifies=False).fusion_batch_norm is False
    )
    kept = replace(dpt.BASE, fusion_batch_norm=False)
    assert kept.resolve_fusion_norm(classifies=True) is kept


@pytest.mark.parametrize("name", dpt.PRESETS)
def test_a_published_config_defines_a_whole_preset(name: str) -> None:
    config = dpt.PRESETS[name].config.resolve_fusion_norm(classifies=True)
    written = json.loads(json.dumps(dpt.PUBLISHED.write(as_dict(config), "segment")))
    read = from_dict(dpt.Config, dpt.PUBLISHED.read(written), "model.")
    assert read == config and written["architectures"] == ["DPTForSemanticSegmentation"]
    made = transformers.DPTConfig(**written)
    with torch.device("meta"):
        peer = transformers.DPTForDepthEstimation(made)
        ours = [dpt.build(config), depth_head(config)]
    assert sum(p.numel() for part in ours for p in part.parameters()) == sum(p.numel() for p in peer.parameters())
