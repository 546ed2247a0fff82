"""DPT against transformers: shapes, readouts, fusions, training with an auxiliary head, frozen parameters, presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from parity import HYBRID_DPT, assert_gradients, load_peer, peer_of, weighted_sum
from regard.config import from_dict
from regard.systems import dpt
from regard.types import Batch
from tiny import near, noise

NAMED = {"depth": "DPTForDepthEstimation", "segment": "DPTForSemanticSegmentation"}
PIXELS = noise(2, 2, 64, 64, seed=3)
kinds = pytest.mark.parametrize("hybrid", [False, True], ids=["vit", "hybrid"])
tasks = pytest.mark.parametrize("task", NAMED)


def theirs(task: str, hybrid: bool = False, **changes: Any) -> Any:
    given = {**(HYBRID_DPT if hybrid else {}), "use_batch_norm_in_fusion_residual": task == "segment", **changes}
    return peer_of(NAMED[task], 0.3, **given)


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


@kinds
@tasks
@pytest.mark.parametrize("shape", [(32, 96), (128, 64)])
def test_images_of_other_shapes_equal_transformers(
    task: str, hybrid: bool, shape: tuple[int, int], tmp_path: Path
) -> None:
    peer = theirs(task, hybrid)
    model, x = load_peer(peer, tmp_path), noise(1, 2, *shape, seed=5)
    ours, (expected, _) = model.logits(x), right(peer, x)
    assert ours.shape[-2:] == shape
    near(ours, expected, 1e-10)
    assert_gradients(model, peer, weighted_sum([ours]), weighted_sum([expected]), tmp_path / "gradients")


def test_segmentation_may_have_no_auxiliary_head(tmp_path: Path) -> None:
    model = load_peer(theirs("segment", use_auxiliary_head=False), tmp_path)
    assert model.head.forward_with_auxiliary(taps(model), (64, 64))[1] is None


def taps(model: regard.Model) -> tuple[Tensor, ...]:
    return model.body(Batch(PIXELS), taps=model.head.tap_indices).hidden_states


@kinds
def test_training_uses_the_statistics_and_the_auxiliary_loss_of_transformers(hybrid: bool, tmp_path: Path) -> None:
    peer = theirs("segment", hybrid)
    model: Any = load_peer(peer, tmp_path)
    for module in (*peer.train().modules(), *model.train().modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    labels = torch.randint(0, 5, (2, 64, 64), generator=torch.Generator().manual_seed(4))
    labels[:, :9] = 255
    expected = peer(PIXELS, labels=labels).loss
    both = model.head.forward_with_auxiliary(taps(model), (64, 64))
    losses = [F.cross_entropy(logits, labels, ignore_index=255) for logits in both]
    near(losses[0] + 0.4 * losses[1], expected, 1e-10)
    assert_gradients(model, peer, losses[0] + 0.4 * losses[1], expected, tmp_path / "gradients")  # and statistics
    gathered = [name for name, _ in peer.named_buffers() if "running" in name]
    assert len(gathered) == 2 * (16 + 2)  # four norms in each of four fusions, one in each head


@kinds
def test_unused_parameters_are_frozen_and_counted(hybrid: bool, tmp_path: Path) -> None:
    model = load_peer(theirs("depth", hybrid), tmp_path)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    unit = {f"head.fusion.0.skip.{name}.{part}" for name in ("first", "second") for part in ("weight", "bias")}
    assert frozen == {"body.encoder.norm.weight", "body.encoder.norm.bias", *unit}
    before = model.logits(PIXELS)
    with torch.no_grad():
        for name in frozen:
            model.get_parameter(name).fill_(float("nan"))
    assert torch.equal(model.logits(PIXELS), before)
    weighted_sum([model.logits(PIXELS)]).backward()
    assert {name for name, p in model.named_parameters() if p.grad is None} == frozen


def test_a_file_of_the_bare_body_is_read_under_its_prefix() -> None:
    peer = peer_of("DPTModel")
    config = from_dict(dpt.Config, dpt.PUBLISHED.read(peer.config.to_dict()), "model.")
    config, tensors = dpt.PUBLISHED.from_published(config, dict(peer.state_dict()))
    body = dpt.build(config).double()
    found, foreign = dpt.PUBLISHED.names.read(tensors, body.state_dict())
    body.load_state_dict(found)
    near(body(Batch(PIXELS)).sequence, peer(PIXELS).last_hidden_state, 1e-10)
    assert foreign == ["dpt.pooler.dense.weight", "dpt.pooler.dense.bias"]
