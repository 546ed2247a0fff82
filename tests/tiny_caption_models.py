"""Tiny captioning models of all systems with any image encoder, and random images and captions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.model import Model, ModelSpec, assemble
from regard.systems import SYSTEMS
from regard.systems.common.captions import CaptionConfig
from regard.tasks import find_task
from regard.types import IGNORE, Batch, DecoderInputs
from tiny import noise, noisy

EYES: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("resnet-tiny", {"stem_channels": 4, "widths": [4, 8, 8, 12], "depths": [1, 1, 1, 1], "stem_stride": 2}),
    "bit": (
        "bit-50",
        {"stem_channels": 8, "widths": [32, 32, 32, 32], "depths": [1, 1, 1, 1], "norm_groups": 4, "output_stride": 8},
    ),
    "vit": ("vit-tiny", {"patch_size": 8, "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20}),
    "hybrid": (
        "hybrid-tiny",
        {"backbone_depths": [1, 1], "stem_channels": 8, "norm_groups": 4, "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20},
    ),
    "swin": ("swin-mini", {"width": 8, "depths": [2, 1, 1, 1], "heads": [2, 1, 4, 8], "window_size": 3}),
}  # fmt: skip
"""Preset of each image encoder and its configuration overrides."""

SHARED: dict[str, Any] = {"image_size": 32, "vocab_size": 23, "max_length": 24}
SIZES: dict[str, dict[str, Any]] = {
    "caption-fixed": {"width": 10, "embedding_dim": 7},
    "caption-attend": {"width": 10, "embedding_dim": 7, "attention_dim": 9},
    "caption-transformer": {"width": 16, "depth": 2, "decoder_depth": 2, "heads": 4, "ffn_dim": 20},
    "caption-vit": {"width": 15, "depth": 2, "heads": 3, "ffn_dim": 20},
}
KINDS = [(name, eyes) for name in SIZES for eyes in (("vit",) if name == "caption-vit" else EYES)]
USUAL = [(name, "vit" if name == "caption-vit" else "resnet") for name in SIZES]


def config_of(name: str, eyes: str = "", **changes: Any) -> CaptionConfig:
    encoder, seeing = EYES[eyes or dict(USUAL)[name]]
    return SYSTEMS[name].config(**{**SHARED, **SIZES[name], "encoder": encoder, "encoder_config": seeing, **changes})


def fresh(name: str, eyes: str = "", **changes: Any) -> Any:
    return SYSTEMS[name].build(config_of(name, eyes, **changes))


def captioner(name: str, eyes: str = "", seed: int = 1, **changes: Any) -> Model:
    """A model in float64 and eval mode with random weights, without a tokenizer."""
    return noisy(assemble(ModelSpec(SYSTEMS[name], config_of(name, eyes, **changes), find_task("caption"))), 0.4, seed)


def made(name: str, eyes: str = "", seed: int = 1, **changes: Any) -> Any:
    return captioner(name, eyes, seed, **changes).body


def pictures(rows: int, height: int = 32, width: int = 32, seed: int = 3) -> Tensor:
    return noise(rows, 3, height, width, seed=seed)


def captions(lengths: tuple[int, ...] = (6, 3, 5), seed: int = 4) -> tuple[Tensor, Tensor]:
    """Padded decoder inputs and labels of random captions."""
    longest, random = max(lengths), torch.Generator().manual_seed(seed)
    words = torch.randint(3, 23, (len(lengths), longest), generator=random)
    target, labels = torch.zeros_like(words), torch.full_like(words, IGNORE)
    for row, length in enumerate(lengths):
        said = words[row, : length - 1]
        target[row, :length] = torch.cat([torch.tensor([1]), said])
        labels[row, :length] = torch.cat([said, torch.tensor([2])])
    return target, labels


def batch_of(lengths: tuple[int, ...] = (6, 3, 5), height: int = 32, width: int = 32) -> Batch:
    target, labels = captions(lengths)
    return Batch(pictures(len(lengths), height, width), labels=labels, decoder=DecoderInputs(target))
