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


def to_published(config: Any, tensors: Tensors) -> Tensors:
    """Add the bias of the multiple-choice head in Hugging Face format: 0, because a bias shifts all choices equally."""
    weight, bias = (f"multiple_choice_head.summary.{part}" for part in ("weight", "bias"))
    if weight not in tensors or bias in tensors:
        return tensors
    return {**tensors, bias: torch.zeros_like(tensors[weight][:, 0])}
