"""Several labels of one text or picture, or none: each is told from its absence by itself: probabilities do not compete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.data.text.labeled import Labelled
from regard.errors import DataError, WeightsError
from regard.tasks.protocol import Asked
from regard.tasks.text_heads import numbered
from regard.types import IGNORE

SEVERAL = "several"
"""Among the words of `Identity.pair`: a sample may have several labels."""

HALF = 0.5
"""From this probability on a label is said, unless decode.threshold says otherwise."""

PUBLISHED = "multi_label_classification"


def tells_several(model: Asked) -> bool:
    return SEVERAL in str(model.identity.pair).split()


def pairing_of(pair: str) -> str:
    """How two texts are read together, of the words of `Identity.pair`."""
    return " ".join(word for word in pair.split() if word != SEVERAL)


def read_problem(published: Mapping[str, Any], labels: Sequence[str], advice: str = "") -> str:
    """What a published config says of its head; one that tells a number and no class is refused."""
    problem = published.get("problem_type")
    if problem == "regression" or len(labels) == 1:
        why = "problem_type is regression" if problem == "regression" else "its head has one output"
        raise WeightsError(f"config.json: {why}: it tells a number, and classify tells classes. {advice}".rstrip())
    return SEVERAL if problem == PUBLISHED else ""


def rows_of(samples: Sequence[Labelled], labels: Sequence[str]) -> list[list[int]]:
    """Of each sample the number of its class; where it may have several `[0, C, …]` with the numbers of all,
    which `heads.table_of` reads."""
    owners = [(sample, name) for sample in samples for name in sample.labels]
    numbers: Iterator[int] = iter(numbered([sample for sample, _ in owners], [name for _, name in owners], labels))
    return [
        [*([] if sample.several is None else (0, len(labels))), *(next(numbers) for _ in sample.labels)]
        for sample in samples
    ]


def likely(said: Mapping[str, float], least: float | None) -> list[str]:
    """Labels that are likelier than not, or as likely as `least`, the likeliest first."""
    return [
        label
        for label in sorted(said, key=lambda label: -said[label])
        if said[label] >= (HALF if least is None else least)
    ]


def as_learnt(model: Asked, labels: Tensor) -> Tensor:
    """The same in the form that a model has learnt: a single class is one of several labels, but not the other way."""
    if tells_several(model) == (labels.ndim == 2):
        return labels
    if labels.ndim == 2:
        raise DataError(
            "samples have several labels here, and this model tells one class of each.",
            advice="Evaluate it on a column label with one class a row, or train one on these.",
        )
    classes = F.one_hot(labels.clamp(min=0), len(model.identity.labels))
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
