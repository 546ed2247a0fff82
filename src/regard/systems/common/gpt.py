"""Head names and fine-tuning recipes of GPT-1, shared by all decoder-only text models."""

from __future__ import annotations

from typing import Any

import torch

from regard.weights.tables import Tensors, entry

TASKS = ("classify", "choose")

HEAD_ENTRIES = (
    entry("head.classes.weight", "score.weight"),
    entry("head.choice.{part}", "multiple_choice_head.summary.{part}"),
)

FIXED_HEAD_KEYS: dict[str, dict[str, Any]] = {
    "choose": {
        "summary_type": "cls_index", "summary_use_proj": True, "summary_activation": None, "summary_proj_to_labels": True,
    }
}  # fmt: skip
"""Required keys of a multiple-choice head in Hugging Face format: one linear layer on the hidden state of a token."""

PAPER_TRAIN: dict[str, Any] = {
    "epochs": 3,
    "batch_tokens": 1024,
    "lr": 6.25e-5,
    "warmup_steps": 0.002,
    "lr_schedule": "linear",
    "label_smoothing": 0.0,
    "lm_loss_weight": 0.5,
    "betas": "0.9,0.999",
    "eps": 1e-8,
    "weight_decay": 0.01,
    "grad_clip": 1.0,
    "grad_accum": 1,
    "eval_every": 500,
}
"""Three epochs at 6.25e-5, linear decay after 0.2 % warmup. A batch of 1024 tokens is 32 texts of 32 tokens."""

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "classify": {"train": PAPER_TRAIN, "data": {"max_length": 512}},
    "choose": {"train": {**PAPER_TRAIN, "batch_tokens": 4096}, "data": {"max_length": 512}},
}


FINETUNE_RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    **RECIPES,
    "lm": {
        "train": {
            "steps": 2000,
            "batch_tokens": 8192,
            "lr": 5e-5,
            "warmup_steps": 100,
            "lr_schedule": "cosine",
            "label_smoothing": 0.0,
            "betas": "0.9,0.95",
            "eps": 1e-8,
            "weight_decay": 0.1,
            "grad_clip": 1.0,
            "eval_every": 250,
        },
        "decode": {"do_sample": True, "top_k": 40},
    },
}
"""Recipes for pretrained weights. Low learning rates prevent catastrophic forgetting."""


def to_published(config: Any, tensors: Tensors) -> Tensors:
    """Add the bias of the multiple-choice head in Hugging Face format: 0, because a bias shifts all choices equally."""
    weight, bias = (f"multiple_choice_head.summary.{part}" for part in ("weight", "bias"))
    if weight not in tensors or bias in tensors:
        return tensors
    return {**tensors, bias: torch.zeros_like(tensors[weight][:, 0])}
