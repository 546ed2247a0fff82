"""Swin: grids of all sizes against transformers, windows against a dense implementation, stochastic depth, layouts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle import near, noise, noisy
from parity import load_peer, peer_of, relabeled
from regard.nn.attention.attention import Attention
from regard.nn.attention.layouts import GridPositionIds, GridWindows, cached_constant
from regard.nn.attention.positions import BoundPosition, PositionIds
from regard.nn.recording import record_attention
from regard.nn.vision.swin import DropPath, RelativePositionBias, relative_index
from regard.systems import swin

TINY = swin.Config(
    image_size=32,
    patch_size=2,
    width=8,
    depths=(2, 3, 2, 2),
    heads=(2, 1, 4, 8),
    window_size=3,
    mlp_ratio=1.5,
    drop_path=0.0,
)


def theirs(name: str = "SwinForImageClassification", **changes: Any) -> Any:
    """A new model for each image size: after a small grid, transformers no longer shifts."""
    return peer_of(name, **{"image_size": 32, "drop_path_rate": 0.0, **changes})


# -- against transformers


def test_a_masked_image_model_is_read_without_its_decoder(tmp_path: Path) -> None:
    (note, *_) = load_peer(theirs("SwinForMaskedImageModeling"), tmp_path).notes
    assert "decoder.0.weight" in note and "swin.embeddings.mask_token" in note


# -- other checkpoint formats


AUTHORS = [
    ("swin.encoder.", ""), ("swin.", ""), ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
    ("embeddings.norm", "patch_embed.norm"), ("attention.output.dense", "attn.proj"), ("intermediate.dense", "mlp.fc1"),
    ("output.dense", "mlp.fc2"), ("layernorm_before", "norm1"), ("layernorm_after", "norm2"), ("layernorm.", "norm."),
    ("attention.self.relative", "attn.relative"), ("attention.self.query", "attn.qkv"),
]  # fmt: skip


@pytest.mark.parametrize("timm", [False, True])
def test_the_layouts_of_the_authors_and_of_timm_are_read(timm: bool, tmp_path: Path) -> None:
    model = load_peer(theirs(), tmp_path)
    published = swin.NAMES.write(model.weights())
    tensors = relabeled(published, [*AUTHORS, ("classifier", "head.fc" if timm else "head")])
    if timm:  # a stage begins with its downsampling
        for stage in (3, 2, 1):
            last = [name for name in tensors if name.startswith(f"layers.{stage - 1}.downsample")]
            tensors |= {name.replace(f"s.{stage - 1}.", f"s.{stage}."): tensors.pop(name) for name in last}
    tensors["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(9, 9, dtype=torch.long)
    tensors["layers.0.blocks.1.attn_mask"] = torch.zeros(4, 9, 9)
    _, tensors = swin.PUBLISHED.from_published(model.config, tensors)
    back, foreign = swin.NAMES.read(tensors, model.weights())
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


# -- windows


def attention(shift: int, window: int = 3) -> tuple[Attention, RelativePositionBias]:
    part = Attention(8, 2, layout=GridWindows(window, shift))
    return noisy(part, 3).eval(), noisy(RelativePositionBias(2, window), 4)


def whole_grid(
    part: Attention, table: RelativePositionBias, x: Tensor, grid: tuple[int, int]
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Dense attention over all tokens of a grid that is divisible into windows."""
    (height, width), reach = grid, table.window
    q, k, v = part.project(x)
    bias = torch.full((2, height * width, height * width), -math.inf, dtype=x.dtype)
    home = lambda n: (n - part.layout.shift) // reach  # noqa: E731
    for a in range(height * width):
        for b in range(height * width):
            (r, c), (s, t) = divmod(a, width), divmod(b, width)
            if home(r) == home(s) and home(c) == home(t):
                bias[:, a, b] = table.table.weight[(r - s + reach - 1) * (2 * reach - 1) + c - t + reach - 1]
    weights = (q @ k.transpose(-2, -1) / 2 + bias).softmax(-1)
    return part.out((weights @ v).transpose(1, 2).flatten(2)), weights


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_window_attention_equals_dense_attention_with_a_mask(shift: int) -> None:
    part, table = attention(shift)
    x = noise(2, 54, 8)
    right, weights = whole_grid(part, table, x, (6, 9))
    inside = BoundPosition(table, GridPositionIds(6, 9))
    near(part(x, position=inside), right)
    with record_attention(part, gradients=True) as seen:
        near(part(x, position=inside), right)
    (look,) = seen.records
    assert look.key_index is not None and look.query_index is not None
    dense = torch.zeros(2, 2, 54, 54, dtype=torch.float64)
    for row in range(2):
        index = look.query_index[row][:, None], look.key_index[0, 0]
        dense[row].index_put_((torch.arange(2)[:, None, None], *index), look.weights[row].detach(), accumulate=True)
    near(dense, weights)


def test_padding_of_a_window_is_attended_to_and_is_not_a_key_of_the_image() -> None:
    part, table = attention(1)
    x = noise(2, 35, 8)
    with record_attention(part) as seen:
        watched = part(x, position=BoundPosition(table, GridPositionIds(5, 7)))
    (look,) = seen.records
    near(watched, part(x, position=BoundPosition(table, GridPositionIds(5, 7))))
    assert look.weights.shape == (2, 2, 54, 9) and look.key_index is not None and look.query_index is not None
    assert look.key_index.shape == (1, 1, 54, 9) and look.query_index.shape == (2, 54)
    near(look.weights.sum(-1), torch.ones(2, 2, 54, dtype=torch.float64))
    real = look.query_index[0][look.query_index[0] >= 0]
    assert sorted(real.tolist()) == list(range(35)) and bool((look.key_index == -1).any())
    assert float(look.weights[:, :, (look.key_index[0, 0] == -1).any(-1)].min()) >= 0


# -- constants


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


# -- training


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
        assert len(shares) == 9
        near(torch.tensor(shares), torch.linspace(0, 0.4, 9), 1e-6)


# -- presets and settings


def test_windows_need_a_grid_and_a_table() -> None:
    part, table = attention(1)
    with pytest.raises(ValueError, match="GridPositionIds"):
        part(noise(1, 9, 8))
    with pytest.raises(ValueError, match="GridPositionIds"):
        part(noise(1, 9, 8), position=BoundPosition(table, PositionIds()))
    with pytest.raises(ValueError, match="heads"):
        table.check(4, 2)
