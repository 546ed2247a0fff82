"""What a model looked at when it answered, for a person to see."""

from __future__ import annotations

from collections.abc import Callable

from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.language import explain_language
from regard.explain.translation import explain_translation
from regard.tasks.asked import Asked

EXPLAINERS: dict[str, Callable[[Asked, str, str | None], Explanation]] = {
    "translate": explain_translation,
    "language": explain_language,
}
"""By task."""


def explain(model: Asked, source: str, target: str | None = None) -> Explanation:
    if model.task.name not in EXPLAINERS:
        raise RegardError(f"'{model.task.name}' cannot be explained yet; {' and '.join(EXPLAINERS)} can.")
    return EXPLAINERS[model.task.name](model, source, target)
