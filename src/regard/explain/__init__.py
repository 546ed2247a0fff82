"""Explanations of predictions by task: attention maps, attention rollout and gradient attribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard.lazy import LazyTable

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation
    from regard.explain.images import Pixel
    from regard.explain.text_decisions import Decision
    from regard.tasks import Task
    from regard.tasks.protocol import ModelProtocol

TEXT_EXPLAINERS: LazyTable[Callable[[ModelProtocol, str, str | None], Explanation]] = LazyTable({
    "translate": "regard.explain.text_generation:explain_translation",
    "algorithmic": "regard.explain.text_generation:explain_translation",
    "lm": "regard.explain.text_generation:explain_lm",
})  # fmt: skip
"""Explainers of the tasks with text output, by task name."""

TEXT_DECISIONS: LazyTable[Callable[[ModelProtocol, Any, str | None], Decision]] = LazyTable({
    "classify": "regard.explain.text_decisions:decide_classify",
    "tag": "regard.explain.text_decisions:decide_tag",
    "qa": "regard.explain.text_decisions:decide_qa",
    "choose": "regard.explain.text_decisions:decide_choice",
    "mlm": "regard.explain.text_decisions:decide_mlm",
    "embed": "regard.explain.text_decisions:decide_embed",
})  # fmt: skip
"""Functions that return the prediction to explain, for the other text tasks; `explain_decision` computes the attribution."""


IMAGE_EXPLAINERS: LazyTable[Callable[[ModelProtocol, Any, str | None, Pixel | None], Explanation]] = LazyTable({
    "classify": "regard.explain.images:explain_image",
    "segment": "regard.explain.images:explain_image",
    "depth": "regard.explain.images:explain_image",
    "draw": "regard.explain.images:explain_generation",
    "caption": "regard.explain.captioning:explain_caption",
})  # fmt: skip
"""Explainers of the image tasks, by task name."""

CLOUD_EXPLAINERS: LazyTable[Callable[[ModelProtocol, Any, str | None, Any], Explanation]] = LazyTable({
    "classify": "regard.explain.points:explain_cloud",
    "segment": "regard.explain.points:explain_cloud",
})  # fmt: skip
"""Explainers of the point-cloud tasks, by task name."""


def is_explainable(task: Task) -> bool:
    """True if `explain` supports the task."""
    tables: dict[str, tuple[Mapping[str, Any], ...]] = {
        "text": (TEXT_EXPLAINERS, TEXT_DECISIONS), "image": (IMAGE_EXPLAINERS,), "points": (CLOUD_EXPLAINERS,),
    }  # fmt: skip
    return any(task.name in table for table in tables[task.modality])


def explain(model: ModelProtocol, source: Any, target: str | None = None, at: Any = None) -> Explanation:
    """Explain one input in evaluation mode. `at`: the query, a pixel (row, column) of an image or a point of a point cloud."""
    training = model.training
    model.eval()
    try:
        return _explain(model, source, target, at)
    finally:
        model.train(training)


def _explain(model: ModelProtocol, source: Any, target: str | None, at: Any) -> Explanation:
    name, modality = model.task.name, model.task.modality
    if modality != "text" and is_explainable(model.task):
        return (IMAGE_EXPLAINERS if modality == "image" else CLOUD_EXPLAINERS)[name](model, source, target, at)
    if at is not None:
        raise RegardError(
            "A position (--at) is supported only for images and point clouds. Text explanations show every token."
        )
    if modality == "text" and name in TEXT_DECISIONS:
        from regard.explain.text_decisions import explain_decision

        return explain_decision(model, TEXT_DECISIONS[name](model, source, target))
    if name not in TEXT_EXPLAINERS:
        raise RegardError(
            f"Task '{name}' does not support explanations. Supported: {', '.join([*TEXT_EXPLAINERS, *TEXT_DECISIONS])}."
        )
    return TEXT_EXPLAINERS[name](model, source, target)
