"""Multi-label classification of texts and images: independent binary decisions per label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.data.text.samples import LabeledText
from regard.errors import DataError, WeightsError
from regard.tasks.protocol import ModelProtocol
from regard.tasks.text_heads import label_ids
from regard.types import IGNORE

MULTILABEL = "several"
"""Word in `head_options` for multi-label models."""

DEFAULT_THRESHOLD = 0.5
"""Probability threshold if `decode.threshold` is not set."""

PUBLISHED_PROBLEM_TYPE = "multi_label_classification"


def is_multilabel(model: ModelProtocol) -> bool:
    return MULTILABEL in str(model.spec.head_options).split()


def pair_order(pair: str) -> str:
    """Order of text pairs from the words of `head_options`."""
    return " ".join(word for word in pair.split() if word != MULTILABEL)


def parse_problem_type(published: Mapping[str, Any], labels: Sequence[str], advice: str = "") -> str:
    """Head options from `problem_type` of a Hugging Face config. Regression is an error."""
    problem = published.get("problem_type")
    if problem == "regression" or len(labels) == 1:
        why = "problem_type=regression" if problem == "regression" else "a head with one output"
        raise WeightsError(
            f"config.json: {why} is not supported by task 'classify', which predicts classes, not numbers. {advice}".rstrip()
        )
    return MULTILABEL if problem == PUBLISHED_PROBLEM_TYPE else ""


def label_rows(samples: Sequence[LabeledText], labels: Sequence[str]) -> list[list[int]]:
    """Class index of each sample; for multi-label samples `[0, C, …]` with all indices, decoded by `label_tensor`."""
    owners = [(sample, name) for sample in samples for name in sample.labels]
    numbers: Iterator[int] = iter(label_ids([sample for sample, _ in owners], [name for _, name in owners], labels))
    return [
        [*([] if sample.label_set is None else (0, len(labels))), *(next(numbers) for _ in sample.labels)]
        for sample in samples
    ]


def labels_above_threshold(probabilities: Mapping[str, float], threshold: float | None) -> list[str]:
    """Labels with at least the threshold probability, most likely first."""
    return [
        label
        for label in sorted(probabilities, key=lambda label: -probabilities[label])
        if probabilities[label] >= (DEFAULT_THRESHOLD if threshold is None else threshold)
    ]


def match_label_format(model: ModelProtocol, labels: Tensor) -> Tensor:
    """Labels in the format of the model: class indices become multi-hot for a multi-label model. The reverse is an error."""
    if is_multilabel(model) == (labels.ndim == 2):
        return labels
    if labels.ndim == 2:
        raise DataError(
            "The samples have several labels each, but this model predicts a single class.",
            advice="Evaluate on data with one label per row, or train a multi-label model on this data.",
        )
    classes = F.one_hot(labels.clamp(min=0), len(model.spec.labels))
    return torch.where((labels == IGNORE)[:, None], IGNORE, classes)


def binary_cross_entropy(
    logits: Float[Tensor, "S C"], labels: Int[Tensor, "S C"], smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """(sum, count) over samples of the binary cross-entropy, averaged over labels.

    Label smoothing moves targets toward 0.5."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    asked = labels[:, 0] != IGNORE
    wanted = labels.clamp(min=0).to(logits.dtype) * (1 - smoothing) + smoothing / 2
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(-1)
    return torch.where(asked, losses, 0.0).sum(), asked.sum()
