"""What a model looked at when it answered, for a person to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from regard.explain.explanation import Explanation
from regard.explain.translation import explain_translation

if TYPE_CHECKING:
    from regard.model import Model

EXPLAINERS: dict[str, Callable[[Model, str, str | None], Explanation]] = {"translate": explain_translation}
"""By task."""


def explain(model: Model, source: str, target: str | None = None) -> Explanation:
    return EXPLAINERS[model.task.name](model, source, target)
