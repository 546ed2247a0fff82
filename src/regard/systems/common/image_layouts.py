"""Tensor names of image checkpoints of timm, torchvision and the authors of Swin, and of the heads of DPT."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from torch import Tensor, nn

from regard.systems.common.vision import BLOCK_NAMES, BLOCK_PREFIX
from regard.weights.tables import NameEntry, NameTable, Tensors, entry, layer

MAX_STAGES = 4

# -- ViT

TIMM_ENTRIES = (
    entry("first", "cls_token"),
    entry("position.table", "pos_embed"),
    layer("patches", "patch_embed.proj"),
    *(entry(f"{BLOCK_PREFIX}.{ours}.{{part}}", f"blocks.{{n}}.{theirs}{{part}}") for ours, theirs, _, _ in BLOCK_NAMES),
    layer("encoder.norm", "norm"),
    layer("head.classes", "head"),
)

TORCHVISION_ENTRIES = (
    entry("first", "class_token"),
    entry("position.table", "encoder.pos_embedding"),
    layer("patches", "conv_proj"),
    *(
        entry(f"{BLOCK_PREFIX}.{ours}.{{part}}", f"encoder.layers.encoder_layer_{{n}}.{theirs}{{part}}")
        for ours, _, theirs, _ in BLOCK_NAMES
    ),
    layer("encoder.norm", "encoder.ln"),
    layer("head.classes", "heads.head"),
)


def translate_names(table: NameTable, entries: Sequence[NameEntry], tensors: Tensors, max_blocks: int) -> Tensors:
    """Rename tensors of another layout to their Hugging Face names; unknown tensors keep their names, so that loading
    rejects them. `max_blocks`: highest number of blocks."""
    places = [
        {"stage": stage, "n": number, "part": part}
        for stage, number, part in itertools.product(range(MAX_STAGES), range(max_blocks), ("weight", "bias"))
    ]
    known = {item.published[0].format(**place): item.native.format(**place) for item in entries for place in places}
    ours = {known[name]: tensor for name, tensor in tensors.items() if name in known}
    return {**table.write(ours), **{name: tensor for name, tensor in tensors.items() if name not in known}}


# -- Swin

ORIGINAL_NAMES = {
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
"""Prefixes of names in the authors' files, and Hugging Face names."""


def convert_swin(tensors: Tensors) -> Tensors:
    """Split the joint q, k, v matrix, and rename. timm has patch merging in the next stage, the authors in the previous
    stage."""
    late = f"layers.{MAX_STAGES - 1}.downsample.norm.weight" in tensors
    found: Tensors = {}
    for name, tensor in tensors.items():
        if late and (merged := re.match(r"layers\.(\d+)\.downsample\.", name)):
            name = f"layers.{int(merged[1]) - 1}.downsample.{name[merged.end() :]}"
        pattern = next((pattern for pattern in ORIGINAL_NAMES if re.match(pattern, name)), "")
        name = re.sub(f"^{pattern}", ORIGINAL_NAMES.get(pattern, ""), name)
        parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True) if ".self.qkv." in name else [("", tensor)]
        found |= {name.replace("self.qkv", f"self.{part}"): piece for part, piece in parts}
    return found


def pad_bias_table(table: Tensor, window: int) -> Tensor:
    """Pad a bias table to the window: for grids smaller than the window, the authors' files contain only the center."""
    side, own = 2 * window - 1, round(len(table) ** 0.5)
    if table.ndim != 2 or own >= side or own % 2 == 0 or own**2 != len(table):
        return table
    edge, square = (side - own) // 2, table.view(own, own, -1).permute(2, 0, 1)
    return nn.functional.pad(square, (edge,) * 4).permute(1, 2, 0).flatten(0, 1)


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
