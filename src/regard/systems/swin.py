"""Swin: Hierarchical Vision Transformer using Shifted Windows (Liu et al. 2021): four stages, with cost linear in
pixels.

Differences from ViT: a patch attends to the patches of its window only; windows are shifted in every second block, to
connect neighboring windows; between stages, four neighboring patches are merged. Positions are a learned bias by offset
in the window: there are no position embeddings and no class token, and images may have any size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.nn.attention.attention import Attention
from regard.nn.attention.layouts import GridWindows
from regard.nn.blocks.block import FeedForward, Residual, Stack, TransformerBlock, init_normal_
from regard.nn.vision.dense import FeatureTap
from regard.nn.vision.patches import PatchEmbedding
from regard.nn.vision.swin import DropPath, PatchMerging, RelativePositionBias, SwinBody
from regard.systems.common import recipes, vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import System, check_stages, presets, reject
from regard.weights.tables import NameTable, PublishedLayout, Tensors, entry, layer

STAGES = 4


@dataclass(frozen=True)
class Config(vision.VisionConfig):
    patch_size: int = 4
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window_size: int = 7
    mlp_ratio: float = 4.0
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.2
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    norm_eps: float = 1e-5

    def check(self) -> None:
        check_stages(self, ("depths", "heads"), STAGES)
        for width, heads in zip(self.widths, self.heads, strict=True):
            reject(
                width % heads,
                f"model.width={self.width} gives a stage of width {width}, which is not divisible by its number of "
                f"heads ({heads}; model.heads={self.heads}).",
            )
        reject(
            int(self.mlp_ratio * self.width) < 1,
            f"model.mlp_ratio={self.mlp_ratio} is too small: the feed-forward size (model.mlp_ratio x model.width) must "
            "be at least 1.",
        )

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.width * 2**stage for stage in range(STAGES))

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        """Maps of the stages, before merging."""
        return vision.stage_maps(self.widths, self.patch_size)


SMALL: dict[str, Any] = {"depths": (2, 2, 18, 2), "drop_path": 0.3}
MINI: dict[str, Any] = {
    "image_size": 32, "patch_size": 2, "width": 48, "depths": (2, 2, 4, 2), "heads": (2, 4, 8, 16), "window_size": 4,
    "drop_path": 0.1,
}  # fmt: skip
MINI_RECIPE = recipes.get("swin", {"crop_scale": 0.5, "flip": True}, epochs=50, warmup_steps=0.1, grad_accum=1)
PAPER_RECIPE = recipes.get("swin", {"crop_scale": 0.08, "flip": True, "color_jitter": 0.4, "mixup": 0.8})
PRESETS = presets(
    Config(),
    ("swin-mini", 6_003_580, MINI_RECIPE, MINI),
    ("swin-tiny", 27_519_354, PAPER_RECIPE, {}),
    ("swin-small", 48_837_258, PAPER_RECIPE, SMALL),
    ("swin-base", 86_743_224, PAPER_RECIPE, SMALL | {"width": 128, "heads": (4, 8, 16, 32), "drop_path": 0.5}),
    ("swin-large", 194_995_476, PAPER_RECIPE, SMALL | {"width": 192, "heads": (6, 12, 24, 48), "drop_path": 0.2}),
)
"""Parameter counts without the classification matrix; with 1,000 classes, 28,288,354, 49,606,258, 87,768,224 and
196,532,476 (swin-tiny to swin-large)."""


def build(config: Config) -> SwinBody:
    blocks = sum(config.depths)
    shares = iter([config.drop_path * number / max(blocks - 1, 1) for number in range(blocks)])

    def residual(inner: nn.Module, width: int, share: float) -> Residual:
        branch: Any = Residual(inner, width, "pre", config.dropout, config.norm_eps)
        branch.dropout = nn.Sequential(branch.dropout, DropPath(share))
        return branch

    def block(width: int, heads: int, number: int, share: float) -> TransformerBlock:
        windows = GridWindows(config.window_size, config.window_size // 2 if number % 2 else 0)
        attention = Attention(width, heads, dropout=config.attention_dropout, layout=windows)
        feed = FeedForward(width, int(config.mlp_ratio * width), config.activation)
        return TransformerBlock(attend=residual(attention, width, share), feed=residual(feed, width, share))

    def stage(width: int, heads: int, depth: int) -> Stack:
        return Stack(
            [block(width, heads, number, share) for number, share in enumerate(itertools.islice(shares, depth))],
            position=[RelativePositionBias(heads, config.window_size) for _ in range(depth)],
        )

    body = SwinBody(
        PatchEmbedding(config.width, config.patch_size, config.in_channels),
        first=nn.LayerNorm(config.width),
        stages=[stage(*sizes) for sizes in zip(config.widths, config.heads, config.depths, strict=True)],
        merges=[PatchMerging(width) for width in config.widths[:-1]],
        norm=nn.LayerNorm(config.widths[-1], config.norm_eps),
        dropout=config.dropout,
    )
    # as the published models; patch embeddings keep their larger default, because a norm follows
    init_normal_(body, 0.02, truncated=True)
    return body


BLOCK = "swin.encoder.layers.{stage}.blocks.{n}"


def from_published(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Pad the bias tables of small grids to the window: the files of the authors contain only the center."""
    found = dict(tensors)
    for name in (name for name in tensors if name.endswith("bias_table") and tensors[name].ndim == 2):
        side, own = 2 * config.window_size - 1, round(len(tensors[name]) ** 0.5)
        if own < side and own % 2 and own**2 == len(tensors[name]):
            square = tensors[name].view(own, own, -1).permute(2, 0, 1)
            padded = nn.functional.pad(square, ((side - own) // 2,) * 4)
            found[name] = padded.permute(1, 2, 0).flatten(0, 1)
    return config, found


PUBLISHED = PublishedLayout(
    model_type="swin",
    architecture="SwinModel",
    keys={
        "image_size": ("image_size",), "patch_size": ("patch_size",), "in_channels": ("num_channels",), "width": ("embed_dim",),
        "depths": ("depths",), "heads": ("num_heads",), "window_size": ("window_size",), "mlp_ratio": ("mlp_ratio",),
        "dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",),
        "drop_path": ("drop_path_rate",), "activation": ("hidden_act",), "norm_eps": ("layer_norm_eps",),
    },
    config=Config,
    defaults={"drop_path_rate": 0.1},
    fixed={"qkv_bias": True, "use_absolute_embeddings": False},
    ignored_keys=(
        "initializer_range", "encoder_stride", "hidden_size", "num_layers", "path_norm", "stage_names", "out_features",
        "out_indices", "_out_features", "_out_indices",
    ),
    value_maps={"activation": ACTIVATIONS},
    after_read=vision.require_square,
    head_architectures={"classify": "SwinForImageClassification"},
    names=NameTable(
        entries=(
            layer("patches", "swin.embeddings.patch_embeddings.projection"),
            layer("first", "swin.embeddings.norm"),
            *vision.block_entries("stages.{stage}.blocks.{n}", BLOCK, 3, "attention.self"),
            entry("stages.{stage}.position.{n}.table.weight", f"{BLOCK}.attention.self.relative_position_bias_table"),
            layer("merges.{n}.norm", "swin.encoder.layers.{n}.downsample.norm"),
            entry("merges.{n}.reduce.weight", "swin.encoder.layers.{n}.downsample.reduction.weight"),
            layer("norm", "swin.layernorm"),
            layer("head.classes", "classifier"),
        ),
        drop=("*.relative_position_index", "*.attn_mask"),
        heads=("classifier.*", "decoder.*", "swin.embeddings.mask_token"),
        prefix="swin.",
    ),
    other_entries=vision.SWIN_LAYOUTS,
    adapt_checkpoint=from_published,
)  # fmt: skip


DESCRIPTION = "Swin Transformer (2021), shifted windows, four stages"
SYSTEM = System("swin", DESCRIPTION, Config, PRESETS, build, recipes.SWIN, PUBLISHED)
