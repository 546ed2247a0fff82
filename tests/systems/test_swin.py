"""Swin: checkpoints of other libraries, constants, stochastic depth; test_parity.py compares grids of all sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from data_files import refused
from parity import load_peer, peer_of, relabeled
from regard.nn.attention.attention import Attention
from regard.nn.attention.layouts import GridWindows, cached_constant
from regard.nn.attention.positions import BoundPosition, PositionIds
from regard.nn.vision.swin import DropPath, RelativePositionBias, relative_index
from regard.systems import swin
from tiny import near, noise
from tiny_vision_models import SIZES

TINY = swin.Config(**SIZES["swin"])


AUTHORS = [
    ("swin.encoder.", ""), ("swin.", ""), ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("embeddings.norm", "patch_embed.norm"), ("attention.output.dense", "attn.proj"), ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"), ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("layernorm.", "norm."),
    ("attention.self.relative", "attn.relative"), ("attention.self.query", "attn.qkv"),
]  # fmt: skip


@pytest.mark.parametrize("timm", [False, True])
def test_the_layouts_of_the_authors_and_of_timm_are_read(timm: bool, tmp_path: Path) -> None:
    model = load_peer(peer_of("SwinForImageClassification", image_size=32), tmp_path)
    published = swin.PUBLISHED.names.write(model.weights())
    tensors = relabeled(published, [*AUTHORS, ("classifier", "head.fc" if timm else "head")])
    if timm:  # a stage begins with its downsampling
        for stage in (3, 2, 1):
            last = [name for name in tensors if name.startswith(f"layers.{stage - 1}.downsample")]
            tensors |= {name.replace(f"s.{stage - 1}.", f"s.{stage}."): tensors.pop(name) for name in last}
    tensors["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(9, 9, dtype=torch.long)
    tensors["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 9, 9)
    _, tensors = swin.PUBLISHED.from_published(model.config, tensors)
    back, foreign = swin.PUBLISHED.names.read(tensors, model.weights())
    assert not foreign and all(torch.equal(back[name], tensor) for name, tensor in model.weights().items())


def test_a_table_of_a_small_grid_is_the_middle_of_a_whole_one() -> None:
    whole = noise(25, 2)
    middle = whole.view(5, 5, 2)[1:4, 1:4].reshape(9, 2)
    _, found = swin.from_published(TINY, {"swin.a.relative_position_bias_table": middle})
    wide = found["swin.a.relative_position_bias_table"].view(5, 5, 2)
    assert torch.equal(wide[1:4, 1:4].reshape(9, 2), middle) and int((wide != 0).sum()) == 18
    for side in (1, 2):  # the part that a grid of this size reads
        rows, own = relative_index(side, 3, torch.device("cpu")), relative_index(side, 2, torch.device("cpu"))
        assert torch.equal(wide.view(25, 2)[rows], middle[own])


def test_constants_are_computed_once_per_size_and_support_gradients() -> None:
    made = []

    def make(size: int, device: torch.device) -> Tensor:
        made.append(size)
        return torch.arange(size, device=device)

    with torch.inference_mode():
        first = cached_constant(make, 7, device=torch.device("cpu"))
    again = cached_constant(make, 7, device=torch.device("cpu"))
    assert again is first and made == [7] and not first.is_inference()
    assert cached_constant(make, 7, device=torch.device("meta")).is_meta and made == [7, 7]


def test_stochastic_depth_drops_a_branch_for_a_fraction_of_the_images() -> None:
    torch.manual_seed(0)
    part, x = DropPath(0.25), torch.ones(4000, 2, 3)
    out = part(x)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1.0).div(0.75).item()}
    assert bool((out == out[:, :1, :1]).all()) and abs(float((out[:, 0, 0] == 0).float().mean()) - 0.25) < 0.03
    assert part.eval()(x) is x and DropPath(0.0)(x) is x


def test_stochastic_depth_rises_from_block_to_block_on_both_branches() -> None:
    body: Any = swin.build(replace(TINY, drop_path=0.4))
    for branch in ("attend", "feed"):
        shares = [getattr(block, branch).dropout[1].drop_prob for stage in body.stages for block in stage.blocks]
        assert len(shares) == 6
        near(torch.tensor(shares), torch.linspace(0, 0.4, 6), 1e-6)


def test_windows_need_a_grid_and_a_table() -> None:
    part, table = Attention(8, 2, layout=GridWindows(3, 1)).double(), RelativePositionBias(2, 3)
    refused("GridPositionIds", part, noise(1, 9, 8), error=ValueError)
    refused("GridPositionIds", part, noise(1, 9, 8), position=BoundPosition(table, PositionIds()), error=ValueError)
    refused("heads", table.check, 4, 2, error=ValueError)
