"""Tensor names and config keys shared by image systems, and names of timm, torchvision and the authors of Swin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import nn

from regard.errors import WeightsError
from regard.nn.blocks.block import Stack, transformer_blocks
from regard.nn.vision.convnet import bit_body, init_resnet_weights
from regard.nn.vision.dense import FeatureTap, NeckConfig, default_neck
from regard.nn.vision.patches import GridPosition, PatchEmbedding, VisionTransformer, init_vit_weights
from regard.systems.common.system import ModelConfig, Sizes, reject
from regard.weights.tables import NameEntry, Tensors, entry, layer


@dataclass(frozen=True)
class VisionConfig(ModelConfig):
    """Fields of image systems."""

    image_size: int = 224
    in_channels: int = 3
    head_dropout: float = 0.0

    modality = "image"

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        """Feature maps for dense heads, from fine to coarse."""
        raise NotImplementedError

    def neck(self) -> NeckConfig:
        """Fusion of the feature maps in dense heads."""
        return replace(default_neck(self.feature_maps()), head_dropout=self.head_dropout)

    def resolve_fusion_norm(self, classifies: bool) -> Self:
        """The config for a task with (`classifies`) or without classes, for systems with a setting that depends on it."""
        return self


# -- ViT


@dataclass(frozen=True)
class ViTConfig(VisionConfig, Sizes):
    """Fields of image systems with the blocks of ViT."""

    patch_size: int = 16
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    norm_eps: float = 1e-6


KEYS: dict[str, tuple[str, ...]] = {
    "image_size": ("image_size",), "patch_size": ("patch_size",), "in_channels": ("num_channels",), "width": ("hidden_size",),
    "depth": ("num_hidden_layers",), "heads": ("num_attention_heads",), "ffn_dim": ("intermediate_size",),
    "dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",),
    "activation": ("hidden_act",), "norm_eps": ("layer_norm_eps",),
}  # fmt: skip

_QKV = ("{attention}.query.", "{attention}.key.", "{attention}.value.")
BLOCK_NAMES = (
    # regard, timm, torchvision, transformers
    ("attend.norm", ("norm1.",), ("ln_1.",), ("layernorm_before.",)),
    ("attend.inner.qkv", ("attn.qkv.",), ("self_attention.in_proj_",), _QKV),
    ("attend.inner.out", ("attn.proj.",), ("self_attention.out_proj.",), ("attention.output.dense.",)),
    ("feed.norm", ("norm2.",), ("ln_2.",), ("layernorm_after.",)),
    ("feed.inner.up", ("mlp.fc1.",), ("mlp.0.",), ("intermediate.dense.",)),
    ("feed.inner.down", ("mlp.fc2.",), ("mlp.3.",), ("output.dense.",)),
)


def block_entries(ours: str, theirs: str, column: int, attention: str = "") -> tuple[NameEntry, ...]:
    """Entries of the blocks of ViT and Swin with the names in this column of BLOCK_NAMES; `attention`: prefix of query, key
    and value."""
    return tuple(
        entry(
            f"{ours}.{row[0]}.{{part}}",
            *(f"{theirs}.{name.format(attention=attention)}{{part}}" for name in row[column]),
        )
        for row in BLOCK_NAMES
    )


def vit_entries(prefix: str) -> tuple[NameEntry, ...]:
    """Entries of class token, positions, patches and blocks in Hugging Face format."""
    return (
        entry("first", f"{prefix}.embeddings.cls_token"),
        entry("position.table", f"{prefix}.embeddings.position_embeddings"),
        layer("patches", f"{prefix}.embeddings.patch_embeddings.projection"),
        *block_entries("encoder.blocks.{n}", f"{prefix}.encoder.layer.{{n}}", 3, "attention.attention"),
        layer("encoder.norm", f"{prefix}.layernorm"),
    )


TIMM_ENTRIES = (
    entry("first", "cls_token"),
    entry("position.table", "pos_embed"),
    layer("patches", "patch_embed.proj"),
    *block_entries("encoder.blocks.{n}", "blocks.{n}", 1),
    layer("encoder.norm", "norm"),
    layer("head.classes", "head"),
)

TORCHVISION_ENTRIES = (
    entry("first", "class_token"),
    entry("position.table", "encoder.pos_embedding"),
    layer("patches", "conv_proj"),
    *block_entries("encoder.blocks.{n}", "encoder.layers.encoder_layer_{n}", 2),
    layer("encoder.norm", "encoder.ln"),
    layer("head.classes", "heads.head"),
)

_SWIN_BLOCK = "layers.{stage}.blocks.{n}"
_SWIN_ENTRIES = (
    layer("patches", "patch_embed.proj"),
    layer("first", "patch_embed.norm"),
    *block_entries("stages.{stage}.blocks.{n}", _SWIN_BLOCK, 1),
    entry("stages.{stage}.position.{n}.table.weight", f"{_SWIN_BLOCK}.attn.relative_position_bias_table"),
    layer("norm", "norm"),
    layer("head.classes", "head"),
    layer("head.classes", "head.fc"),
)
SWIN_LAYOUTS = {
    sign: (
        *_SWIN_ENTRIES,
        *(layer(f"merges.{n}.norm", f"layers.{n + late}.downsample.norm") for n in range(3)),
        *(entry(f"merges.{n}.reduce.weight", f"layers.{n + late}.downsample.reduction.weight") for n in range(3)),
    )
    for sign, late in (("layers.3.downsample.norm.weight", 1), ("patch_embed.proj.weight", 0))
}
"""Files of timm, with patch merging in the next stage, and of the authors, with patch merging in the previous stage."""


def check_patch_size(config: Any) -> None:
    reject(
        config.image_size % config.patch_size,
        f"model.image_size={config.image_size} is not divisible by model.patch_size={config.patch_size}.",
    )


def build_vit(
    config: Any, patches: PatchEmbedding, position: GridPosition, backbone: bool = False, **settings: Any
) -> VisionTransformer:
    """Body of a ViT with the blocks of a config. `backbone`: on BiT convolutions, with norms after convolutions and
    padding as in TensorFlow; `settings`: further arguments of VisionTransformer."""
    blocks = transformer_blocks(config, config.depth, norm="pre", activation=config.activation, eps=config.norm_eps)
    encoder = Stack(blocks, norm=nn.LayerNorm(config.width, config.norm_eps))
    if backbone:
        sizes = config.in_channels, config.stem_channels, config.widths, config.backbone_depths
        stem = bit_body(*sizes, pre_norm=False, same_padding=True, pad_pool=True, groups=config.norm_groups)
        settings["stem"] = init_resnet_weights(stem)
    return init_vit_weights(VisionTransformer(patches, position, encoder, dropout=config.dropout, **settings))


def require_square(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with square sizes as one number instead of two."""
    found = dict(fields)
    for name in ("image_size", "patch_size"):
        if isinstance(fields[name], list | tuple):
            if len(set(fields[name])) != 1:
                raise WeightsError(f"config.json: {name}={fields[name]} is not supported; both sides must be equal.")
            found[name] = fields[name][0]
    return found


# -- BiT convolutions, alone or as the backbone of a ViT


def stage_maps(widths: Sequence[int], stride: int, max_stride: int | None = None) -> tuple[FeatureTap, ...]:
    """Feature maps for dense heads: one per stage, each with twice the stride of the stage before."""
    strides = [stride * 2**stage for stage in range(len(widths))]
    return tuple(
        FeatureTap(stage, width, min(strides[stage], max_stride or strides[stage]), is_sequence=False)
        for stage, width in enumerate(widths)
    )


@dataclass(frozen=True)
class ConvConfig(VisionConfig):
    """Fields of convolutional image systems, with the sizes of ResNet-50."""

    stem_channels: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)


CONV_KEYS: dict[str, tuple[str, ...]] = {
    "in_channels": ("num_channels",),
    "stem_channels": ("embedding_size",),
    "widths": ("hidden_sizes",),
    "depths": ("depths",),
}


def backbone_maps(config: Any) -> tuple[FeatureTap, ...]:
    """Feature maps of the first two stages of a hybrid backbone."""
    return tuple(
        FeatureTap(~stage, width, 4 * 2**stage, is_sequence=False) for stage, width in enumerate(config.widths[:2])
    )


def stage_widths(start: int, stages: Sequence[int]) -> tuple[int, ...]:
    """Channels after each stage of a hybrid backbone."""
    return tuple(start * 4 * 2**stage for stage in range(len(stages)))


@dataclass(frozen=True)
class BackboneConfig(ViTConfig):
    """Fields of a ViT on a convolutional backbone."""

    backbone_depths: tuple[int, ...] = (3, 4, 9)
    stem_channels: int = 64
    norm_groups: int = 32

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels after each stage of the backbone."""
        return stage_widths(self.stem_channels, self.backbone_depths)


def check_backbone(config: Any) -> None:
    reject(
        config.stem_channels % config.norm_groups,
        f"model.stem_channels={config.stem_channels} is not divisible by model.norm_groups={config.norm_groups}.",
    )


def stage_entries(prefix: str, stem: tuple[str, str], block: str) -> Iterator[NameEntry]:
    """Entries of the convolutions under a native `prefix`. `stem`: names of the first convolution and its norm;
    `block`: name pattern with the fields `{stage}` and `{n}`."""
    names = [(f"{prefix}stem", *stem)]
    units = [(f"units.{n}", f"conv{n + 1}", f"norm{n + 1}") for n in range(3)]
    for unit, conv, norm in (*units, ("shortcut", "downsample.conv", "downsample.norm")):
        names.append((f"{prefix}stages.{{stage}}.{{n}}.{unit}", f"{block}.{conv}", f"{block}.{norm}"))
    for ours, conv, norm in names:
        yield entry(f"{ours}.conv.weight", f"{conv}.weight")
        yield layer(f"{ours}.norm", norm)


def bit_entries(native_prefix: str, prefix: str) -> Iterator[NameEntry]:
    """Entries in Hugging Face format."""
    stem = f"{prefix}.embedder.convolution", f"{prefix}.embedder.norm"
    return stage_entries(native_prefix, stem, f"{prefix}.encoder.stages.{{stage}}.layers.{{n}}")


_BACKBONE: dict[str, Any] = {
    "model_type": "bit", "layer_type": "bottleneck", "global_padding": "SAME", "embedding_dynamic_padding": True,
    "hidden_act": "relu", "output_stride": 32, "width_factor": 1, "drop_path_rate": 0.0,
}  # fmt: skip


def backbone_config(
    channels: int, depths: Sequence[int], start: int, groups: int, taps: Sequence[int]
) -> dict[str, Any]:
    """`backbone_config` of a hybrid in Hugging Face format; `taps` are the output stages."""
    sizes = {"num_channels": channels, "depths": list(depths), "embedding_size": start, "num_groups": groups}
    hidden, features = list(stage_widths(start, depths)), [f"stage{tap}" for tap in taps]
    return {**_BACKBONE, **sizes, "hidden_sizes": hidden, "out_features": features}


BACKBONE_FIXED: dict[str, Any] = {"backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False}
"""Required keys of a hybrid in Hugging Face format: the backbone is in `backbone_config`."""

_BACKBONE_DEFAULTS: dict[str, Any] = _BACKBONE | {
    "layer_type": "preactivation",
    "global_padding": None,
    "embedding_dynamic_padding": False,
    "num_channels": 3,
    "depths": [3, 4, 6, 3],
    "embedding_size": 64,
    "num_groups": 32,
    "hidden_sizes": [256, 512, 1024, 2048],
}


def write_backbone(config: Any, taps: Sequence[int], side: int) -> dict[str, Any]:
    """Fields of a hybrid with the nested config of its backbone; `side` is the side of its last feature map."""
    nested = backbone_config(config.in_channels, config.backbone_depths, config.stem_channels, config.norm_groups, taps)
    return {"backbone_depths": nested, "map": [1, config.widths[-1], side, side]}


def read_backbone_config(config: dict[str, Any] | None, channels: int, all_stages: bool) -> dict[str, Any]:
    """Fields from a `backbone_config`; None: the convolutions of the paper. `all_stages`: all stages are outputs, not
    only the last. Unsupported values raise an error."""

    def supported(depths: Sequence[int], start: int, groups: int) -> dict[str, Any]:
        return backbone_config(
            channels, depths, start, groups, range(1 if all_stages else len(depths), len(depths) + 1)
        )

    published = {**_BACKBONE_DEFAULTS, **(config or supported((3, 4, 9), 64, 32))}
    depths, start, groups = (published[key] for key in ("depths", "embedding_size", "num_groups"))
    right = supported(depths, start, groups)
    published["global_padding"] = str(published["global_padding"]).upper()
    published["hidden_sizes"] = list(published["hidden_sizes"])[: len(depths)]
    published["out_features"] = published.get("out_features") or right["out_features"]
    for key, value in right.items():
        if published[key] != value:
            raise WeightsError(
                f"config.json: backbone_config.{key}={published[key]!r} is not supported. Supported: {value!r}."
            )
    return {"backbone_depths": tuple(depths), "stem_channels": start, "norm_groups": groups}


# -- dense heads

DPT_HEAD_ENTRIES = (
    layer("head.reassemble.{n}.read", "neck.reassemble_stage.readout_projects.{n}.0"),
    layer("head.reassemble.{n}.project", "neck.reassemble_stage.layers.{n}.projection"),
    layer("head.reassemble.{n}.resize", "neck.reassemble_stage.layers.{n}.resize"),
    layer("head.levels.{n}", "neck.convs.{n}"),
    *(
        layer(f"head.fusion.{{n}}.{ours}.{part}", f"neck.fusion_stage.layers.{{n}}.residual_layer{number}.{name}")
        for number, ours in ((1, "skip"), (2, "unit"))
        for part, name in (
            ("first", "convolution1"),
            ("second", "convolution2"),
            ("first_norm", "batch_norm1"),
            ("second_norm", "batch_norm2"),
        )
    ),
    layer("head.fusion.{n}.out", "neck.fusion_stage.layers.{n}.projection"),
    *(layer(f"head.{ours}", f"head.head.{n}") for ours, n in (("first", 0), ("second", 2), ("last", 4))),
    layer("head.before.dense", "head.head.0"),
    layer("head.before.norm", "head.head.1"),
    layer("head.classes", "head.head.4"),
    layer("head.beside_before.dense", "auxiliary_head.head.0"),
    layer("head.beside_before.norm", "auxiliary_head.head.1"),
    layer("head.beside", "auxiliary_head.head.4"),
)

# -- batch norms

BATCH_COUNT = ".num_batches_tracked"  # Batch counter of BatchNorm: stored in published files, not used.


def add_batch_counts(config: Any, tensors: Tensors) -> Tensors:
    """Tensors with batch counters, expected by PyTorch."""
    norms = [name.removesuffix(".running_var") for name in tensors if name.endswith(".running_var")]
    return {**tensors, **{norm + BATCH_COUNT: torch.zeros((), dtype=torch.long) for norm in norms}}
