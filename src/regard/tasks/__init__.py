"""What can be asked of a model. Commands, evaluation and pages read this table: a task appears everywhere by being here."""

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
"""The same names where they are asked of bodies that read pictures."""


POINT_TASKS: LazyTable[Task] = LazyTable({
    "classify": "regard.tasks.point_classification:PointClassification",
    "segment": "regard.tasks.point_segmentation:PointSegmentation",
}, instantiate=True)  # fmt: skip
"""The same names where they are asked of bodies that read points."""


def tasks_by_modality() -> dict[str, Mapping[str, Task]]:
    """The tables of tasks by the kind of input: text, pictures or points."""
    return {"text": TEXT_TASKS, "image": IMAGE_TASKS, "points": POINT_TASKS}


def all_tasks() -> tuple[Task, ...]:
    """All tasks of all tables; all of them are imported."""
    return tuple(task for table in tasks_by_modality().values() for task in table.values())


def uses_setting(task: Task, setting: str) -> bool:
    """Whether a setting, as in `data.vocab_size`, means something to a task."""
    return setting in task.settings_used or setting not in index.task_specific_settings()


def unused_settings(task: Task, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings that a person gave, by their groups, and that mean nothing to the task."""
    given = (f"{group}.{name}" for group, values in settings.items() for name in values)
    return [setting for setting in given if not uses_setting(task, setting)]


def find_task(name: str, modality: str | None = None) -> Task:
    """The task of this name in the form for what is read; None: text, where it has that form."""
    tables, name = tasks_by_modality(), resolve_task_name(name)
    for kind in (modality,) if modality else tables:
        if name in tables[kind]:
            return tables[kind][name]
    known = dict.fromkeys(name for table in tables.values() for name in table)
    if name in known:
        raise SettingError(f"Task '{name}' does not support models with input type '{modality}'.")
    raise UnknownNameError("task", name, known, index.TASK_ADVICE)
