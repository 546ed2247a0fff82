"""Configurations that no model can have, and values of config.json that would compute something else, of all systems."""

from __future__ import annotations

import re
from typing import Any

import pytest

from parity import BIT, HYBRID_DPT
from regard.config import as_dict
from regard.errors import SettingError, WeightsError
from regard.systems import SYSTEMS

BASE: dict[str, dict[str, Any]] = {
    "rnn": {"width": 4, "embedding_dim": 3, "depth": 2, "vocab_size": 7},
    "rnnsearch": {
        "width": 4, "encoder_width": 3, "embedding_dim": 2, "attention_dim": 5, "maxout_dim": 3, "vocab_size": 7,
        "source_vocab_size": 0,
    },
    "vit": {"image_size": 12, "patch_size": 4, "width": 12, "heads": 3},
    "hybrid": {"image_size": 32, "stem_channels": 8, "norm_groups": 4, "width": 12, "heads": 3, "ffn_dim": 20},
    "resnet": {"stem_channels": 6, "widths": (12, 20, 16, 24)},
    "bit": {"stem_channels": 8, "widths": (16, 40, 64, 72), "norm_groups": 4},
    "swin": {"width": 8, "depths": (2, 3, 2, 2), "heads": (2, 1, 4, 8)},
    "imagegpt": {"image_size": 4, "num_colors": 11, "width": 12, "depth": 3, "heads": 3, "ffn_dim": 20},
}  # fmt: skip
"""Fields of valid configurations; other systems have their defaults."""
ODD_HEADS = {"width": 27, "heads": 3, "relative_position": "rotary"}
INVALID: dict[str, list[tuple[dict[str, Any], str]]] = {
    "transformer": [({"max_position_offset": -1}, "max_position_offset"), (ODD_HEADS, "model.relative")],
    "gpt2": [(ODD_HEADS, "model.relative")], "decoder": [(ODD_HEADS, "model.relative")],
    "gpt3": [({"local_window": -1}, "local_window"), (ODD_HEADS, "model.relative")],
    "universal": [
        ({"act_epsilon": 0.0}, "act_epsilon"), ({"act_max_steps": -1}, "act_max_steps"),
        ({"max_position_offset": -2}, "max_position_offset"), ({"num_steps": 0}, "num_steps"),
    ],
    "universal-encoder": [
        ({"act_epsilon": 1.0}, "act_epsilon"), ({"act_max_steps": -1}, "act_max_steps"),
        ({"ponder_cost": -0.1}, "ponder_cost"),
        ({"num_steps": 0}, "num_steps"), ({"type_vocab_size": 0}, "type_vocab_size"),
    ],
    "rnn": [
        ({"width": 5, "bidirectional": True}, "even model.width"),
        ({"tie_embeddings": "all"}, "model.tie_embeddings=source_target"),
        ({"tie_embeddings": "source_target", "source_vocab_size": 9}, "model.tie_embeddings=none"),
        ({"source_vocab_size": 6}, "tokenizer"), ({"depth": 0}, "least"), ({"init_range": -0.1}, "least"),
        ({"dropout": 1.0}, "in [0, 1)"), ({"eos_id": 7}, "model.eos_id"),
    ],
    "rnnsearch": [
        ({"attention_score": "dot"}, "model.attention_score=general"), ({"tie_embeddings": "all"}, "model.maxout"),
        ({"attention_dim": 0}, "least"),
    ],
    "convs2s": [
        ({"encoder_stages": ("512x3x9", "1024*3")}, "model.encoder_stages"),
        ({"encoder_stages": ("512x0x9",)}, "'512x0x9'"),
        ({"encoder_stages": ()}, "model.encoder_stages"), ({"decoder_stages": ("512",)}, "model.decoder_stages"),
        ({"tie_embeddings": "all"}, "model.embedding_dim"), ({"embedding_dim": 0}, "model.embedding_dim"),
        ({"dropout": 1.0}, "model.dropout"), ({"eos_id": 40_000}, "model.eos_id"),
    ],
    "vit": [
        ({"image_size": 13}, "model.patch"), ({"heads": 5}, "model.heads"), ({"patch_size": 0}, "model.patch"),
        ({"dropout": 1.0}, "model.dropout"), ({"class_token": False}, "model.pool"),
    ],
    "hybrid": [
        ({"backbone_depths": ()}, "model.backbone_depths"), ({"backbone_depths": (1, 0)}, "model.backbone_depths"),
        ({"norm_groups": 3}, "model.norm_groups"), ({"heads": 5}, "model.heads"),
        ({"patch_size": 3}, "model.patch_size"),
    ],
    "resnet": [
        ({"widths": (8, 8, 8)}, "model.widths"), ({"widths": (8, 8, 8, 3)}, "least"),
        ({"depths": (1, 1, 0, 1)}, "model.depths"),
        ({"stem_kernel": 4}, "must be odd"), ({"stem_stride": 0}, "model.stem_stride"),
        ({"head_dropout": 1.0}, "head_dropout"),
    ],
    "bit": [
        ({"widths": (16, 40, 64, 70)}, "multiples"), ({"stem_channels": 6}, "model.norm_groups"),
        ({"norm_groups": 16}, "model.norm_groups"), ({"output_stride": 12}, "16"),
        ({"depths": (1, 1, 1)}, "model.depths"),
        ({"image_size": 0}, "model.image_size"), ({"head_dropout": -0.1}, "head_dropout"),
    ],
    "swin": [
        ({"depths": (2, 2)}, "model.depths"), ({"heads": (2, 1, 0, 8)}, "model.heads"),
        ({"heads": (2, 1, 3, 8)}, "model.width"),
        ({"window_size": 0}, "model.window"), ({"drop_path": 1.0}, "model.drop_path"),
        ({"mlp_ratio": 0.1}, "model.mlp_ratio"),
    ],
    "dpt": [
        ({"out_layers": (2, 5, 8, 12)}, "11"), ({"out_layers": (2, 5, 5, 8)}, "increasing"),
        ({"out_layers": (2, 5, 8)}, "four values"),
        ({"reassemble_factors": (4, 2, 1, 0.7)}, "0.7"), ({"image_size": 100}, "not divisible"),
        ({"heads": 7}, "heads"),
        ({"fusion_dim": 0}, "fusion"), ({"hybrid": True, "patch_size": 8}, "model.patch_size=16"),
        ({"hybrid": True, "backbone_depths": (3, 4)}, "backbone_depths"),
        ({"hybrid": True, "norm_groups": 48}, "norm_groups"),
        ({"hybrid": True, "readout": "add"}, "model.readout=project"),
    ],
    "imagegpt": [
        ({"image_size": 0}, "image_size"), ({"num_colors": 0}, "num_colors"), ({"depth": 0}, "depth"),
        ({"heads": 5}, "not divisible"),
    ],
    "point": [
        ({"widths": (32, 64)}, "model.depths"), ({"downsample": (2, 4, 4, 4, 4)}, "model.downsample"),
        ({"downsample": (1, 4, 1, 4, 4)}, "later stages"), ({"num_neighbors": (0, 8, 8, 8, 8)}, "model.num_neighbors"),
        ({"share_planes": 3}, "model.share_planes"), ({"feature_dim": -1}, "model.feature_dim"),
        ({"dropout": 1.0}, "model.dropout"),
    ],
}  # fmt: skip
UNSUPPORTED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "gpt2": [
        ({"scale_attn_by_inverse_layer_idx": True}, ""), ({"reorder_and_upcast_attn": True}, ""),
        ({"add_cross_attention": True}, ""),
        ({"scale_attn_weights": False}, ""), ({"activation_function": "relu"}, ""),
        ({"tie_word_embeddings": False}, ""),
        ({"rotary_dim": 4}, ""),
    ],
    "imagegpt": [
        ({"activation_function": "gelu"}, ""), ({"scale_attn_weights": False}, ""),
        ({"scale_attn_by_inverse_layer_idx": True}, ""),
        ({"add_cross_attention": True}, ""), ({"tie_word_embeddings": True}, ""), ({"n_positions": 15}, ""),
        ({"surprise": 1}, ""),
    ],
    "vit": [
        ({"qkv_bias": False}, "qkv_bias=False"), ({"hidden_act": "silu"}, "hidden_act='silu'"), ({"registers": 4}, ""),
        ({"image_size": [12, 24]}, "equal"), ({"patch_size": [4, 2]}, "equal"),
    ],
    "hybrid": [
        ({"backbone_config": {key: value}}, f"backbone_config.{key}=")
        for key, value in (
            ("layer_type", "preactivation"), ("global_padding", None), ("embedding_dynamic_padding", False),
            ("hidden_sizes", [256, 512, 512]), ("out_features", ["stage2"]), ("num_channels", 1),
            ("model_type", "resnet"),
        )
    ],
    "resnet": [({"hidden_act": "gelu"}, "'gelu'"), ({"something": 1}, "something")],
    "bit": [
        ({"hidden_act": "gelu"}, "'gelu'"), ({"global_padding": "VALID"}, "'VALID'"),
        ({"width_factor": 3}, "supported"),
        ({"layer_type": "other"}, "'other'"), ({"drop_path_rate": 0.1}, "drop_path_rate"),
    ],
    "swin": [
        ({"qkv_bias": False}, ""), ({"use_absolute_embeddings": True}, ""), ({"image_size": [32, 64]}, "size"),
        ({"hidden_act": "selu"}, ""), ({"pretrained_window_sizes": [0, 0, 0, 0]}, ""),
    ],
    "dpt": [
        ({"add_projection": True}, ""), ({"qkv_bias": False}, ""), ({"image_size": [64, 96]}, "equal"),
        ({"hidden_act": "silu"}, ""),
        ({"head_in_index": 0}, ""), ({"backbone_config": {"model_type": "dinov2"}}, "dinov2"), ({"a_new_key": 1}, ""),
        ({**HYBRID_DPT, "backbone_config": {**BIT, "layer_type": "preactivation"}}, "backbone_config.layer_type"),
        ({**HYBRID_DPT, "backbone_config": {**BIT, "output_stride": 8}}, "backbone_config.output_stride"),
    ],
}  # fmt: skip
"""Values of config.json of transformers, and a word of the message; without one, the name of the key."""


def rows(table: dict[str, list[tuple[dict[str, Any], str]]]) -> Any:
    found = [(name, changes, word) for name, entries in table.items() for changes, word in entries]
    return pytest.mark.parametrize(("name", "changes", "word"), found, ids=lambda value: str(value)[:40])


@rows(INVALID)
def test_invalid_configs_are_refused_with_a_message(name: str, changes: dict[str, Any], word: str) -> None:
    config = SYSTEMS[name].config
    config(**BASE.get(name, {}))
    with pytest.raises(SettingError, match=re.escape(word)):
        config(**{**BASE.get(name, {}), **changes})


@rows(UNSUPPORTED)
def test_config_values_that_would_compute_something_else_are_refused(
    name: str, changes: dict[str, Any], word: str
) -> None:
    system = SYSTEMS[name]
    written = system.published.write(as_dict(system.config(**BASE.get(name, {}))))
    system.published.read(written)
    for key, value in changes.items():
        whole = isinstance(value, dict) and isinstance(written.get(key), dict) and name == "hybrid"
        written[key] = {**written[key], **value} if whole else value
    with pytest.raises(WeightsError, match=re.escape(word or next(iter(changes)))):
        system.published.read(written)
