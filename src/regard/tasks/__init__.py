"""Tables of tasks by input modality, used by the command line, evaluation and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import index
from regard.errors import SettingError, UnknownNameError
from regard.foreign_names import resolve_task_name
from regard.lazy import LazyTable
from regard.tasks.base import Task

__all__ = [
    "IMAGE_TASKS",
    "POINT_TASKS",
    "TEXT_TASKS",
    "Task",
    "all_tasks",
    "find_task",
    "tasks_by_modality",
    "unused_settings",
    "uses_setting",
]

TEXT_TASKS: LazyTable[Task] = LazyTable({
    "translate": "regard.tasks.translate:Translate",
    "lm": "regard.tasks.lm:LanguageModeling",
    "mlm": "regard.tasks.mlm:MaskedLM",
    "classify": "regard.tasks.classify:Classify",
    "tag": "regard.tasks.tag:Tag",
    "qa": "regard.tasks.qa:QuestionAnswering",
    "choose": "regard.tasks.choose:Choose",
    "embed": "regard.tasks.embed:Embed",
    "algorithmic": "regard.tasks.algorithmic:Algorithmic",
}, instantiate=True)  # fmt: skip


IMAGE_TASKS: LazyTable[Task] = LazyTable({
    "classify": "regard.tasks.image_classification:ImageClassification",
    "segment": "regard.tasks.segment:Segment",
    "depth": "regard.tasks.depth:Depth",
    "draw": "regard.tasks.image_generation:ImageGeneration",
    "caption": "regard.tasks.caption:Caption",
}, instantiate=True)  # fmt: skip
"""Tasks for image models. Some names also occur in `TEXT_TASKS`."""


POINT_TASKS: LazyTable[Task] = LazyTable({
    "classify": "regard.tasks.point_classification:PointClassification",
    "segment": "regard.tasks.point_segmentation:PointSegmentation",
}, instantiate=True)  # fmt: skip
"""Tasks for point cloud models."""


def tasks_by_modality() -> dict[str, Mapping[str, Task]]:
    """Task tables by input modality."""
    return {"text": TEXT_TASKS, "image": IMAGE_TASKS, "points": POINT_TASKS}


def all_tasks() -> tuple[Task, ...]:
    """All tasks of all modalities. Every task module is imported."""
    return tuple(task for table in tasks_by_modality().values() for task in table.values())


def uses_setting(task: Task, setting: str) -> bool:
    """True if the setting, for example `data.vocab_size`, has an effect in the task."""
    return setting in task.settings_used or setting not in index.task_specific_settings()


def unused_settings(task: Task, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """User settings by group without an effect in the task, as `group.name`."""
    given = (f"{group}.{name}" for group, values in settings.items() for name in values)
    return [setting for setting in given if not uses_setting(task, setting)]


def find_task(name: str, modality: str | None = None) -> Task:
    """Task by name and modality. None: the first modality with such a task, in the order text, image, points."""
    tables, name = tasks_by_modality(), resolve_task_name(name)
    for kind in (modality,) if modality else tables:
        if name in tables[kind]:
            return tables[kind][name]
    known = dict.fromkeys(name for table in tables.values() for name in table)
    if name in known:
        raise SettingError(f"Task '{name}' does not support models with input type '{modality}'.")
    raise UnknownNameError("task", name, known, index.TASK_ADVICE)
