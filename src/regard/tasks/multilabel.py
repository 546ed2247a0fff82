"""Several labels of one text or picture, or none: each is told from its absence by itself: probabilities do not compete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.data.text.labeled import LabeledText
from regard.errors import DataError, WeightsError
from regard.tasks.protocol import ModelProtocol
from regard.tasks.text_heads import label_ids
from regard.types import IGNORE

MULTILABEL = "several"
"""Among the words of `Identity.pair`: a sample may have several labels."""

DEFAULT_THRESHOLD = 0.5
"""From this probability on a label is said, unless decode.threshold says otherwise."""

PUBLISHED_PROBLEM_TYPE = "multi_label_classification"


def is_multilabel(model: ModelProtocol) -> bool:
    return MULTILABEL in str(model.spec.head_options).split()


def pair_order(pair: str) -> str:
    """How two texts are read together, of the words of `Identity.pair`."""
    return " ".join(word for word in pair.split() if word != MULTILABEL)


def parse_problem_type(published: Mapping[str, Any], labels: Sequence[str], advice: str = "") -> str:
    """What a published config says of its head; one that tells a number and no class is refused."""
    problem = published.get("problem_type")
    if problem == "regression" or len(labels) == 1:
        why = "problem_type=regression" if problem == "regression" else "a head with one output"
        raise WeightsError(
            f"config.json: {why} is not supported by task 'classify', which predicts classes, not numbers. {advice}".rstrip()
        )
    return MULTILABEL if problem == PUBLISHED_PROBLEM_TYPE else ""


def label_rows(samples: Sequence[LabeledText], labels: Sequence[str]) -> list[list[int]]:
    """Of each sample the number of its class; where it may have several `[0, C, …]` with the numbers of all,
    which `label_tensor` reads."""
    owners = [(sample, name) for sample in samples for name in sample.labels]
    numbers: Iterator[int] = iter(label_ids([sample for sample, _ in owners], [name for _, name in owners], labels))
    return [
        [*([] if sample.label_set is None else (0, len(labels))), *(next(numbers) for _ in sample.labels)]
        for sample in samples
    ]


def labels_above_threshold(probabilities: Mapping[str, float], threshold: float | None) -> list[str]:
    """Labels that are likelier than not, or as likely as `least`, the likeliest first."""
    return [
        label
        for label in sorted(probabilities, key=lambda label: -probabilities[label])
        if probabilities[label] >= (DEFAULT_THRESHOLD if threshold is None else threshold)
    ]


def match_label_format(model: ModelProtocol, labels: Tensor) -> Tensor:
    """The same in the form that a model has learnt: a single class is one of several labels, but not the other way."""
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
    """The mean over the labels of each sample, summed over samples, and how many there are.

    Of smoothing each label and each absence of one gives half to the other."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    asked = labels[:, 0] != IGNORE
    wanted = labels.clamp(min=0).to(logits.dtype) * (1 - smoothing) + smoothing / 2
    losses = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(-1)
    return torch.where(asked, losses, 0.0).sum(), asked.sum()
