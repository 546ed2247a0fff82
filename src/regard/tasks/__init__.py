"""What can be asked of a model. Commands, evaluation and pages read this table: a task appears everywhere by being here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard import index
from regard.errors import SettingError, UnknownName
from regard.lazy import LazyTable
from regard.tasks.base import Task

__all__ = ["GATHERING", "SEEING", "TASKS", "Task", "every", "find_task", "forms", "idle", "means"]

TASKS: LazyTable[Task] = LazyTable({
    "translate": "regard.tasks.translate:Translate",
    "language": "regard.tasks.lm:Language",
    "mask": "regard.tasks.mlm:Mask",
    "classify": "regard.tasks.classify:Classify",
    "tag": "regard.tasks.tag:Tag",
    "span": "regard.tasks.qa:SpanTask",
    "choose": "regard.tasks.choose:Choose",
    "embed": "regard.tasks.embed:Embed",
    "recall": "regard.tasks.algorithmic:Recall",
}, instances=True)  # fmt: skip


SEEING: LazyTable[Task] = LazyTable({
    "classify": "regard.tasks.image_classification:Recognise",
    "segment": "regard.tasks.segment:Segment",
    "depth": "regard.tasks.depth:Depth",
    "draw": "regard.tasks.image_generation:Painting",
    "caption": "regard.tasks.caption:Caption",
}, instances=True)  # fmt: skip
"""The same names where they are asked of bodies that read pictures."""


GATHERING: LazyTable[Task] = LazyTable({
    "classify": "regard.tasks.point_classification:Discern",
    "segment": "regard.tasks.point_segmentation:Partition",
}, instances=True)  # fmt: skip
"""The same names where they are asked of bodies that read points."""


def forms() -> dict[str, Mapping[str, Task]]:
    """The tables of tasks by the kind of input: text, pictures or points."""
    return {"text": TASKS, "pictures": SEEING, "points": GATHERING}


def every() -> tuple[Task, ...]:
    """All tasks of all tables; all of them are imported."""
    return tuple(task for table in forms().values() for task in table.values())


def means(task: Task, setting: str) -> bool:
    """Whether a setting, as in `data.vocabulary`, means something to a task."""
    return setting in task.heeds or setting not in index.special_settings()


def idle(task: Task, said: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings that a person gave, by their groups, and that mean nothing to the task."""
    given = (f"{group}.{name}" for group, values in said.items() for name in values)
    return [setting for setting in given if not means(task, setting)]


def find_task(name: str, reads: str | None = None) -> Task:
    """The task of this name in the form for what is read; None: text, where it has that form."""
    tables = forms()
    for kind in (reads,) if reads else tables:
        if name in tables[kind]:
            return tables[kind][name]
    known = dict.fromkeys(name for table in tables.values() for name in table)
    if name in known:
        raise SettingError(f"the task '{name}' cannot be asked of a model that reads {reads}.")
    raise UnknownName("task", name, known, index.TASK_ADVICE)
