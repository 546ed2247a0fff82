"""Initial weights of all systems as in their papers or in the code of the authors."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.systems import SYSTEMS
from tiny_caption_models import config_of

GPT = {"width": 96, "depth": 8, "heads": 4, "ffn_dim": 384, "vocab_size": 300, "max_length": 64, "eos_id": 0}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"width": 96, "depth": 1, "decoder_depth": 1, "heads": 4, "ffn_dim": 384, "vocab_size": 300},
    "universal": {"width": 12, "heads": 3, "ffn_dim": 20, "vocab_size": 23}, "gpt1": GPT, "gpt2": GPT,
    "vit": {"image_size": 64, "patch_size": 8, "width": 96, "depth": 2, "heads": 3, "ffn_dim": 384},
    "hybrid": {
        "image_size": 32, "stem_channels": 32, "norm_groups": 4, "width": 12, "depth": 3, "heads": 3, "ffn_dim": 20,
    },
    "imagegpt": {"width": 96, "depth": 8, "heads": 4, "ffn_dim": 384, "num_colors": 300, "image_size": 16},
    "swin": {
        "image_size": 32, "patch_size": 2, "width": 48, "depths": (2, 2, 4, 2), "heads": (2, 4, 8, 16), "window_size": 4,
    },
    "rnn": {"width": 60, "embedding_dim": 90, "depth": 2, "vocab_size": 500},
    "rnnsearch": {
        "width": 60, "encoder_width": 50, "embedding_dim": 70, "attention_dim": 80, "maxout_dim": 40, "vocab_size": 900,
    },
    "convs2s": {
        "encoder_stages": ("64x3x2", "96x3"), "embedding_dim": 80, "output_dim": 72, "vocab_size": 500, "dropout": 0.2,
        "max_length": 400,
    },
    "caption-attend": {"width": 40, "embedding_dim": 30, "attention_dim": 14, "vocab_size": 400},
}  # fmt: skip
ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", {}, {
        "*bias": 0, "*norm.weight": 1, "tokens*": 96**-0.5, "*.up.weight": 240**-0.5, "*.down.weight": 240**-0.5, "*": 96**-0.5,
    }),
    ("universal", {"act": True}, {"*.gate.bias": 1, "*": None}),
    ("gpt1", {}, {"*bias": 0, "*norm.weight": 1, "*": 0.02}),
    ("gpt2", {}, {
        "*bias": 0, "*norm.weight": 1, "position*": 0.01, "*.out.weight": 0.02 / 4, "*.down.weight": 0.02 / 4, "*": 0.02,
    }),
    ("vit", {}, {
        "first": 0, "position.table": 0.02, "patches.weight": 192**-0.5, "*norm.weight": 1, "*.up.bias": 1e-6,
        "*.down.bias": 1e-6, "*bias": 0, "*.qkv.weight": 96**-0.5, "*.out.weight": 96**-0.5, "*": (2 / 480) ** 0.5,
    }),
    ("hybrid", {}, {
        "front.stem.conv.weight": (2 / (32 * 49)) ** 0.5, "*.up.bias": 1e-6, "*.down.bias": 1e-6, "first": 0, "*": None,
    }),
    ("imagegpt", {}, {
        "colours.weight": 0, "*bias": 0, "*norm.weight": 1, "tokens*": 0.02, "position*": 0.01, "*.qkv.weight": "fan_in",
        "*.out.weight": (96 * 8) ** -0.5, "*": 0.02,
    }),
    ("swin", {}, {"patches*": None, "*bias": 0, "*norm.weight": 1, "first.weight": 1, "*": 0.02}),
    ("rnn", {}, {"*": 0.16 / 12**0.5}),
    ("rnn", {"init_range": 0.0}, {"tables.target*": 0.3, "tables.source*": 0.3, "*": "fan_in"}),
    ("rnnsearch", {}, {
        "*score.v.weight": 0, "*bias": 0, "*.gates": "orthogonal", "*.new": "orthogonal", "*.score.*": 0.001, "*": 0.01,
    }),
    ("convs2s", {}, {
        "tables.output.weight": math.sqrt(0.8 / 72), "tables*.weight": 0.1, "*position*": 0.1, "*.bias": 0, "*.gain": None,
        "*.into.weight": math.sqrt(0.8 / 80), "*.blocks.[01].conv.weight": math.sqrt(4 * 0.8 / (3 * 64)),
        "*.blocks.2.conv.weight": math.sqrt(4 * 0.8 / (3 * 64)), "*": "fan_in",
    }),
    ("caption-attend", {}, {
        "eyes*": None, "*bias": 0, "cell.h.weight": "orthogonal", "begin.first.weight": "orthogonal",
        "deeper.weight": "orthogonal", "*": 0.01,
    }),
    ("caption-attend", {"init_std": 0.0}, {"eyes*": None, "*bias": 0, "tokens*": 0.1, "*": "fan_in"}),
]  # fmt: skip
"""System, changes of its config, and for the first matching name pattern 0, 1, a standard deviation, fan_in or orthogonal."""


def check(name: str, weight: Tensor, expected: Any) -> None:
    if expected == "orthogonal":
        for square in weight.split(weight.shape[1]):
            torch.testing.assert_close(square @ square.T, torch.eye(len(square)), atol=1e-5, rtol=0)
    elif expected in (0, 1):
        assert bool((weight == expected).all()), name
    elif expected is not None:
        std = weight.shape[1] ** -0.5 if expected == "fan_in" else expected
        assert float(weight.std()) == pytest.approx(std, rel=0.02 + 3 * (2 * weight.numel()) ** -0.5), name


@pytest.mark.parametrize(("system", "config", "expected"), ROWS)
def test_weights_are_initialized_as_published(system: str, config: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.manual_seed(3)
    make = partial(config_of, system) if system.startswith("caption") else SYSTEMS[system].config
    for name, weight in SYSTEMS[system].build(make(**SIZES[system], **config)).named_parameters():
        check(name, weight.detach(), next(kind for pattern, kind in expected.items() if fnmatch(name, pattern)))
