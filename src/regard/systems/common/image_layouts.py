"""Tensor names of image checkpoints of timm, torchvision and the authors of Swin, and of the heads of DPT."""

from __future__ import annotations

from regard.systems.common.vision import BLOCK_NAMES, BLOCK_PREFIX
from regard.weights.tables import NameEntry, entry, layer

# -- ViT


def _block_entries(ours: str, theirs: str, column: int) -> tuple[NameEntry, ...]:
    """Entries of the blocks with the names in this column of BLOCK_NAMES: 1 for timm, 2 for torchvision."""
    return tuple(entry(f"{ours}.{row[0]}.{{part}}", f"{theirs}.{row[column]}{{part}}") for row in BLOCK_NAMES)


TIMM_ENTRIES = (
    entry("first", "cls_token"),
    entry("position.table", "pos_embed"),
    layer("patches", "patch_embed.proj"),
    *_block_entries(BLOCK_PREFIX, "blocks.{n}", 1),
    layer("encoder.norm", "norm"),
    layer("head.classes", "head"),
)

TORCHVISION_ENTRIES = (
    entry("first", "class_token"),
    entry("position.table", "encoder.pos_embedding"),
    layer("patches", "conv_proj"),
    *_block_entries(BLOCK_PREFIX, "encoder.layers.encoder_layer_{n}", 2),
    layer("encoder.norm", "encoder.ln"),
    layer("head.classes", "heads.head"),
)

# -- Swin

_SWIN_BLOCK = "layers.{stage}.blocks.{n}"
_SWIN_ENTRIES = (
    layer("patches", "patch_embed.proj"),
    layer("first", "patch_embed.norm"),
    *_block_entries("stages.{stage}.blocks.{n}", _SWIN_BLOCK, 1),
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


# -- DPT


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
