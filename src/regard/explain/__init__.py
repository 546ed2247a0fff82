"""What a model looked at when it answered, for a person to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from regard.errors import RegardError
from regard.explain.caption import explain_caption
from regard.explain.deciding import chosen, classified, embedded
from regard.explain.decision import Decision, explain_decision
from regard.explain.explanation import Explanation
from regard.explain.language import explain_language
from regard.explain.painted import explain_painting
from regard.explain.pictures import Pixel, explain_picture
from regard.explain.points import explain_cloud
from regard.explain.translation import explain_translation
from regard.explain.words import filled, spanned, tagged
from regard.tasks import Task
from regard.tasks.asked import Asked

EXPLAINERS: dict[str, Callable[[Asked, str, str | None], Explanation]] = {
    "translate": explain_translation,
    "recall": explain_translation,
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


SEEN: dict[str, Callable[[Asked, Any, str | None, Pixel | None], Explanation]] = {
    "classify": explain_picture,
    "segment": explain_picture,
    "depth": explain_picture,
    "draw": explain_painting,
    "caption": explain_caption,
}
"""Of the tasks that read pictures."""

GATHERED: dict[str, Callable[[Asked, Any, str | None, Any], Explanation]] = {
    "classify": explain_cloud,
    "segment": explain_cloud,
}
"""Of the tasks that read points."""

FORMS: dict[str, Mapping[str, Any]] = {"text": {**EXPLAINERS, **DECISIONS}, "pictures": SEEN, "points": GATHERED}


def explains(task: Task) -> bool:
    """Whether a model of this task can be asked what it looked at."""
    return task.name in FORMS[task.reads]


def explain(model: Asked, source: Any, target: str | None = None, at: Any = None) -> Explanation:
    """`at`: of whom it is asked what it looked at, a pixel (row, column) of a picture or a point of a cloud."""
    name, reads = model.task.name, model.task.reads
    if reads != "text" and name in FORMS[reads]:
        explained: Explanation = FORMS[reads][name](model, source, target, at)
        return explained
    if at is not None:
        raise RegardError("a place is asked of pictures and clouds only: texts show what every token looked at.")
    if model.task.reads == "text" and name in DECISIONS:
        return explain_decision(model, lambda: DECISIONS[name](model, source, target))
    if name not in EXPLAINERS:
        raise RegardError(f"'{name}' cannot be explained yet; {', '.join([*EXPLAINERS, *DECISIONS])} can.")
    return EXPLAINERS[name](model, source, target)
