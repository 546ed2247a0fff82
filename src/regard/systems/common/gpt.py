"""How GPT-1 was fine-tuned, and what its heads are called where they are published: the same for all systems of its kind."""

from __future__ import annotations

from typing import Any

import torch

from regard.weights.tables import Tensors, entry

TASKS = ("classify", "choose")

HEADS = (
    entry("head.classes.weight", "score.weight"),
    entry("head.choice.{part}", "multiple_choice_head.summary.{part}"),
)

ONLY: dict[str, dict[str, Any]] = {
    "choose": {
        "summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None, "summary_proj_to_labels": True,
    }
}  # fmt: skip
"""What a published head of choices must be: one matrix on the state of a token."""

PAPER: dict[str, Any] = {
    "passes": 3, "tokens": 1024, "rate": 6.25e-5, "warmup": 0.002, "schedule": "linear", "smoothing": 0.0,
    "auxiliary": 0.5, "betas": "0.9,0.999", "eps": 1e-8, "decay": 0.01, "clip": 1.0, "accumulate": 1, "every": 500,
}  # fmt: skip
"""Three epochs at 6.25e-5, linear after a warm-up of 0.2 %. A batch of 32 texts is 1024 tokens where they have 32 each."""

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "classify": {"train": PAPER, "data": {"longest": 512}},
    "choose": {"train": {**PAPER, "tokens": 4096}, "data": {"longest": 512}},
}


FURTHER: dict[str, dict[str, dict[str, Any]]] = {
    **RECIPES,
    "language": {
        "train": {
            "steps": 2000, "tokens": 8192, "rate": 5e-5, "warmup": 100, "schedule": "cosine", "smoothing": 0.0,
            "betas": "0.9,0.95", "eps": 1e-8, "decay": 0.1, "clip": 1.0, "every": 250,
        },
        "decode": {"sample": True, "top_k": 40},
    },
}  # fmt: skip
"""Text of another kind is learnt slowly by weights that know much: a high rate would make them forget it."""


def dress(config: Any, tensors: Tensors) -> Tensors:
    """The published head of choices has a bias. It moves all choices alike and changes none; ours is 0."""
    weight, bias = (f"multiple_choice_head.summary.{part}" for part in ("weight", "bias"))
    if weight not in tensors or bias in tensors:
        return tensors
    return {**tensors, bias: torch.zeros_like(tensors[weight][:, 0])}
