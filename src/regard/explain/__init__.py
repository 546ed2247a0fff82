"""What a model looked at when it answered, for a person to see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.errors import RegardError
from regard.explain.deciding import chosen, classified, embedded
from regard.explain.decision import Decision, explain_decision
from regard.explain.explanation import Explanation
from regard.explain.language import explain_language
from regard.explain.pictures import explain_picture
from regard.explain.translation import explain_translation
from regard.explain.words import filled, spanned, tagged
from regard.tasks.asked import Asked

EXPLAINERS: dict[str, Callable[[Asked, str, str | None], Explanation]] = {
    "translate": explain_translation,
    "language": explain_language,
}
"""By task."""

DECISIONS: dict[str, Callable[[Asked, Any, str | None], Decision]] = {
    "classify": classified,
    "tag": tagged,
    "span": spanned,
    "choose": chosen,
    "mask": filled,
    "embed": embedded,
}
"""Of the tasks that decide."""


SEEN = ("classify", "segment", "depth")
"""Tasks whose pictures are explained."""


def explain(model: Asked, source: Any, target: str | None = None) -> Explanation:
    name = model.task.name
    if model.task.reads == "pictures" and name in SEEN:
        return explain_picture(model, source, target)
    if model.task.reads == "text" and name in DECISIONS:
        return explain_decision(model, lambda: DECISIONS[name](model, source, target))
    if name not in EXPLAINERS:
        raise RegardError(f"'{name}' cannot be explained yet; {', '.join([*EXPLAINERS, *DECISIONS])} can.")
    return EXPLAINERS[name](model, source, target)
