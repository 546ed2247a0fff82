"""What a model looked at when it answered, for a person to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.lazy import LazyTable

if TYPE_CHECKING:
    from regard.explain.decision import Decision
    from regard.explain.explanation import Explanation
    from regard.explain.images import Pixel
    from regard.tasks import Task
    from regard.tasks.protocol import Asked

EXPLAINERS: LazyTable[Callable[[Asked, str, str | None], Explanation]] = LazyTable({
    "translate": "regard.explain.translation:explain_translation",
    "recall": "regard.explain.translation:explain_translation",
    "language": "regard.explain.lm:explain_language",
})  # fmt: skip
"""By task."""

DECISIONS: LazyTable[Callable[[Asked, Any, str | None], Decision]] = LazyTable({
    "classify": "regard.explain.text_decisions:classified",
    "tag": "regard.explain.token_decisions:tagged",
    "span": "regard.explain.token_decisions:spanned",
    "choose": "regard.explain.text_decisions:chosen",
    "mask": "regard.explain.token_decisions:filled",
    "embed": "regard.explain.text_decisions:embedded",
})  # fmt: skip
"""Of the tasks that decide."""


SEEN: LazyTable[Callable[[Asked, Any, str | None, Pixel | None], Explanation]] = LazyTable({
    "classify": "regard.explain.images:explain_picture",
    "segment": "regard.explain.images:explain_picture",
    "depth": "regard.explain.images:explain_picture",
    "draw": "regard.explain.image_generation:explain_painting",
    "caption": "regard.explain.captioning:explain_caption",
})  # fmt: skip
"""Of the tasks that read pictures."""

GATHERED: LazyTable[Callable[[Asked, Any, str | None, Any], Explanation]] = LazyTable({
    "classify": "regard.explain.points:explain_cloud",
    "segment": "regard.explain.points:explain_cloud",
})  # fmt: skip
"""Of the tasks that read points."""


def explains(task: Task) -> bool:
    """Whether a model of this task can be asked what it looked at."""
    tables: dict[str, tuple[Mapping[str, Any], ...]] = {
        "text": (EXPLAINERS, DECISIONS), "pictures": (SEEN,), "points": (GATHERED,),
    }  # fmt: skip
    return any(task.name in table for table in tables[task.reads])


def explain(model: Asked, source: Any, target: str | None = None, at: Any = None) -> Explanation:
    """`at`: of whom it is asked what it looked at, a pixel (row, column) of a picture or a point of a cloud."""
    name, reads = model.task.name, model.task.reads
    if reads != "text" and explains(model.task):
        return (SEEN if reads == "pictures" else GATHERED)[name](model, source, target, at)
    if at is not None:
        raise RegardError("a place is asked of pictures and clouds only: texts show what every token looked at.")
    if model.task.reads == "text" and name in DECISIONS:
        from regard.explain.decision import explain_decision

        return explain_decision(model, lambda: DECISIONS[name](model, source, target))
    if name not in EXPLAINERS:
        raise RegardError(f"'{name}' cannot be explained yet; {', '.join([*EXPLAINERS, *DECISIONS])} can.")
    return EXPLAINERS[name](model, source, target)
