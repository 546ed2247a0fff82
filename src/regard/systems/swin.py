"""Swin: Hierarchical Vision Transformer using Shifted Windows (Liu et al. 2021): maps of four sizes, cost linear in pixels.

What is new against ViT: a patch looks at the patches of its window only, and windows are shifted in every second block, so
that what lies on both sides of a border meets; between stages four neighbours are merged into one token. Positions are a
learned bias by offset within the window: nothing is added, there is no class token, and pictures may have any size.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from regard.errors import SettingError, WeightsError
from regard.nn.blocks.block import Block, Feed, Residual, Stack
from regard.nn.blocks.norm import Norm
from regard.nn.vision.dense import Tap
from regard.nn.vision.patches import Patches
from regard.nn.vision.swin import Merge, Pyramid, RelativeTable, Windowed, skipped, swin_weights
from regard.systems.common import vision
from regard.systems.common.bert import ACTIVATIONS
from regard.systems.common.system import Preset, System
from regard.weights.tables import Entry, Names, Published, Tensors, entry, under

STAGES = 4


@dataclass(frozen=True)
class Config:
    size: int = 224
    """side in pixels of the pictures it is made for; it reads others too"""
    patch: int = 4
    """side in pixels of a patch"""
    channels: int = 3
    """colours of a pixel"""
    width: int = 96
    """width of the states of the first stage; each following one has twice as much"""
    depths: tuple[int, ...] = (2, 2, 6, 2)
    """blocks of each of the four stages"""
    heads: tuple[int, ...] = (3, 6, 12, 24)
    """attention heads of each of the four stages"""
    window: int = 7
    """side of a window, in patches of its stage"""
    ratio: float = 4.0
    """inner width of the feed-forward layers, as a multiple of that of the states"""
    dropout: float = 0.0
    """share dropped of each sub-layer's output and of the patches"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    drop_path: float = 0.2
    """share of the pictures that go without a sub-layer of the last block; it rises linearly from 0 at the first"""
    head_dropout: float = 0.0
    """share dropped of what a task's head reads"""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """non-linearity of the feed-forward layers"""
    eps: float = 1e-5
    """small number in the layer norms of the blocks and in the last"""

    def __post_init__(self) -> None:
        for name in ("size", "patch", "channels", "width", "window"):
            if getattr(self, name) < 1:
                raise SettingError(f"model.{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("depths", "heads"):
            found = getattr(self, name)
            if len(found) != STAGES or min(found) < 1:
                raise SettingError(f"model.{name} are {STAGES} numbers of at least 1, one for each stage, not {found}.")
        for width, heads in zip(self.widths, self.heads, strict=True):
            if width % heads:
                raise SettingError(
                    f"model.width {self.width} makes a stage of width {width}, which model.heads {self.heads} do not divide."
                )
        for name in ("dropout", "attention_dropout", "drop_path", "head_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"model.{name} must be in [0, 1), not {getattr(self, name)}.")
        if int(self.ratio * self.width) < 1:
            raise SettingError(f"model.ratio {self.ratio} leaves no inner width to the feed-forward layers.")

    @property
    def widths(self) -> tuple[int, ...]:
        """Of each stage."""
        return tuple(self.width * 2**stage for stage in range(STAGES))

    @property
    def features(self) -> int:
        """Width of the summary."""
        return self.widths[-1]

    def maps(self) -> tuple[Tap, ...]:
        """What dense heads read: each stage, before it is merged."""
        return tuple(Tap(stage, width, self.patch * 2**stage, flat=False) for stage, width in enumerate(self.widths))


TINY = Config()
SMALL = replace(TINY, depths=(2, 2, 18, 2), drop_path=0.3)
BASE = replace(SMALL, width=128, heads=(4, 8, 16, 32), drop_path=0.5)
LARGE = replace(SMALL, width=192, heads=(6, 12, 24, 48), drop_path=0.2)
MINI = replace(
    TINY, size=32, patch=2, width=48, depths=(2, 2, 4, 2), heads=(2, 4, 8, 16), window=4, drop_path=0.1
)  # fmt: skip

_ADAM: dict[str, Any] = {"betas": "0.9,0.999", "eps": 1e-8, "decay": 0.05, "schedule": "cosine", "smoothing": 0.1}
PAPER: dict[str, dict[str, Any]] = {
    "train": {**_ADAM, "passes": 300, "warmup": 20 / 300, "images": 128, "accumulate": 8, "rate": 1e-3, "clip": 5.0},
    "data": {"crop": 0.08, "flip": True, "colour": 0.4, "mixup": 0.8},
}
"""300 epochs of ImageNet in batches of 1024, 20 of them to warm up."""
QUICK: dict[str, dict[str, Any]] = {
    "train": {**_ADAM, "passes": 50, "warmup": 0.1, "images": 128, "accumulate": 1, "rate": 1e-3, "clip": 5.0},
    "data": {"crop": 0.5, "flip": True},
}

DENSE = {
    "segment": {**vision.DENSE["segment"], "data": {"crop": 0.5, "flip": True, "colour": 0.4, "mixup": 0.0}},
    "depth": {**vision.DENSE["depth"], "data": {"crop": 1.0, "flip": True, "colour": 0.4, "mixup": 0.0}},
}
"""Maps are not mixed, and a part of a picture that is enlarged is no nearer."""

PRESETS = {
    "swin-mini": Preset(MINI, 6_003_580, QUICK),
    "swin-tiny": Preset(TINY, 27_519_354, PAPER),
    "swin-small": Preset(SMALL, 48_837_258, PAPER),
    "swin-base": Preset(BASE, 86_743_224, PAPER),
    "swin-large": Preset(LARGE, 194_995_476, PAPER),
}
"""Counted without the matrix for classes, which comes with the data: with a thousand of them 28,288,354, 49,606,258, 87,768,224
and 196,532,476."""


def build(config: Config) -> Pyramid:
    """The whole machine."""
    blocks = sum(config.depths)
    shares = iter([config.drop_path * number / max(blocks - 1, 1) for number in range(blocks)])

    def residual(inner: nn.Module, width: int, share: float) -> Residual:
        return skipped(Residual(inner, width, "pre", config.dropout, config.eps), share)

    def block(width: int, heads: int, share: float) -> Block:
        attention = Windowed(width, heads, dropout=config.attention_dropout)
        feed = Feed(width, int(config.ratio * width), config.activation)
        return Block(attend=residual(attention, width, share), feed=residual(feed, width, share))

    def stage(width: int, heads: int, depth: int) -> Stack:
        shifts = [0 if number % 2 == 0 else config.window // 2 for number in range(depth)]
        return Stack(
            [block(width, heads, share) for share in itertools.islice(shares, depth)],
            position=[RelativeTable(heads, config.window, shift) for shift in shifts],
        )

    body = Pyramid(
        Patches(config.width, config.patch, config.channels),
        first=Norm(config.width),
        stages=[stage(*sizes) for sizes in zip(config.widths, config.heads, config.depths, strict=True)],
        merges=[Merge(width) for width in config.widths[:-1]],
        norm=Norm(config.widths[-1], config.eps),
        dropout=config.dropout,
    )
    return swin_weights(body)


def _stage_names(stage: int) -> tuple[Entry, ...]:
    ours, theirs = f"stages.{stage}.blocks.{{n}}", f"swin.encoder.layers.{stage}.blocks.{{n}}"
    look = (f"{theirs}.attention.self.{name}.{{part}}" for name in ("query", "key", "value"))
    return (
        entry(f"{ours}.attend.norm.{{part}}", f"{theirs}.layernorm_before.{{part}}"),
        entry(f"{ours}.attend.inner.qkv.{{part}}", *look),
        entry(f"{ours}.attend.inner.out.{{part}}", f"{theirs}.attention.output.dense.{{part}}"),
        entry(f"stages.{stage}.position.{{n}}.table.weight", f"{theirs}.attention.self.relative_position_bias_table"),
        entry(f"{ours}.feed.norm.{{part}}", f"{theirs}.layernorm_after.{{part}}"),
        entry(f"{ours}.feed.inner.up.{{part}}", f"{theirs}.intermediate.dense.{{part}}"),
        entry(f"{ours}.feed.inner.down.{{part}}", f"{theirs}.output.dense.{{part}}"),
    )


NAMES = Names(
    entries=(
        entry("patches.{part}", "swin.embeddings.patch_embeddings.projection.{part}"),
        entry("first.{part}", "swin.embeddings.norm.{part}"),
        *itertools.chain.from_iterable(map(_stage_names, range(STAGES))),
        entry("merges.{n}.norm.{part}", "swin.encoder.layers.{n}.downsample.norm.{part}"),
        entry("merges.{n}.reduce.weight", "swin.encoder.layers.{n}.downsample.reduction.weight"),
        entry("norm.{part}", "swin.layernorm.{part}"),
        entry("head.classes.{part}", "classifier.{part}"),
    ),
    drop=("*.relative_position_index", "*.attn_mask"),
    heads=("classifier.*", "decoder.*", "swin.embeddings.mask_token"),
)

PUBLISHED = Published(
    model_type="swin",
    architecture="SwinModel",
    keys={
        "size": ("image_size",), "patch": ("patch_size",), "channels": ("num_channels",), "width": ("embed_dim",),
        "depths": ("depths",), "heads": ("num_heads",), "window": ("window_size",), "ratio": ("mlp_ratio",),
        "dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",),
        "drop_path": ("drop_path_rate",), "activation": ("hidden_act",), "eps": ("layer_norm_eps",),
    },
    defaults={
        "image_size": 224, "patch_size": 4, "num_channels": 3, "embed_dim": 96, "depths": (2, 2, 6, 2),
        "num_heads": (3, 6, 12, 24), "window_size": 7, "mlp_ratio": 4.0, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.1, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
    },
    fixed={"qkv_bias": True, "use_absolute_embeddings": False},
    harmless=(
        "initializer_range", "encoder_stride", "hidden_size", "num_layers", "path_norm", "stage_names", "out_features",
        "out_indices", "_out_features", "_out_indices",
    ),
    values={"activation": ACTIVATIONS},
    filled=lambda fields: {**fields, **{name: _side(name, fields[name]) for name in ("size", "patch")}},
    heads={"classify": "SwinForImageClassification"},
)  # fmt: skip


def _side(name: str, found: Any) -> Any:
    """Of squares, which may be written as two numbers."""
    if not isinstance(found, list | tuple):
        return found
    if len(set(found)) != 1:
        raise WeightsError(f"config.json: the {name} {found} is not supported; only squares are.")
    return found[0]


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; those of the authors and of timm have other names."""
    if "patch_embed.proj.weight" in tensors:
        tensors = _authors(tensors)
    tensors = under(tensors, "swin.", ("classifier.*", "decoder.*"))
    return config, {
        name: _widened(tensor, config.window) if name.endswith("bias_table") else tensor for name, tensor in tensors.items()
    }  # fmt: skip


AUTHORS = {
    r"patch_embed\.proj": "embeddings.patch_embeddings.projection",
    r"patch_embed\.norm": "embeddings.norm",
    r"(layers\.\d+\.blocks\.\d+)\.norm1": r"encoder.\1.layernorm_before",
    r"(layers\.\d+\.blocks\.\d+)\.norm2": r"encoder.\1.layernorm_after",
    r"(layers\.\d+\.blocks\.\d+)\.attn\.proj": r"encoder.\1.attention.output.dense",
    r"(layers\.\d+\.blocks\.\d+)\.attn\.(relative|qkv)": r"encoder.\1.attention.self.\2",
    r"(layers\.\d+\.blocks\.\d+)\.mlp\.fc1": r"encoder.\1.intermediate.dense",
    r"(layers\.\d+\.blocks\.\d+)\.mlp\.fc2": r"encoder.\1.output.dense",
    r"(layers\.\d+\.downsample)": r"encoder.\1",
    r"norm\.": "layernorm.",
    r"head\.(fc\.)?": "classifier.",
}
"""How the names of the authors' files begin, and those that they stand for."""


def _authors(tensors: Tensors) -> Tensors:
    """q, k and v are one matrix there; timm merges at the beginning of a stage, and the authors at the end of that before."""
    late = f"layers.{STAGES - 1}.downsample.norm.weight" in tensors
    found: Tensors = {}
    for name, tensor in tensors.items():
        if late and (merged := re.match(r"layers\.(\d+)\.downsample\.", name)):
            name = f"layers.{int(merged[1]) - 1}.downsample.{name[merged.end() :]}"
        pattern = next((pattern for pattern in AUTHORS if re.match(pattern, name)), "")
        name = re.sub(f"^{pattern}", AUTHORS.get(pattern, ""), name)
        parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True) if ".self.qkv." in name else [("", tensor)]
        found |= {name.replace("self.qkv", f"self.{part}"): piece for part, piece in parts}
    return found


def _widened(table: Tensor, window: int) -> Tensor:
    """Of a grid that was smaller than a window the authors' files have the middle of a table only; no other offset occurs."""
    side, own = 2 * window - 1, round(len(table) ** 0.5)
    if table.ndim != 2 or own >= side or own % 2 == 0 or own**2 != len(table):
        return table
    edge, square = (side - own) // 2, table.view(own, own, -1).permute(2, 0, 1)
    return nn.functional.pad(square, (edge,) * 4).permute(1, 2, 0).flatten(0, 1)


SYSTEM = System(
    name="swin", about="vision of 2021: shifted windows, maps of four sizes", config=Config, presets=PRESETS, build=build,
    names=NAMES, published=PUBLISHED, tasks=("classify", "segment", "depth"), reads="pictures", adapt=adapt,
    recipes=DENSE, further=DENSE,
)  # fmt: skip
