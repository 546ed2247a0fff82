"""What can be asked of a model. Commands, evaluation and pages read this table: a task appears everywhere by being here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import SettingError, UnknownName
from regard.tasks.caption import Caption
from regard.tasks.choose import Choose
from regard.tasks.classify import Classify
from regard.tasks.depth import Depth
from regard.tasks.discern import Discern
from regard.tasks.embed import Embed
from regard.tasks.language import Language
from regard.tasks.mask import Mask
from regard.tasks.painting import Painting
from regard.tasks.partition import Partition
from regard.tasks.recall import Recall
from regard.tasks.recognise import Recognise
from regard.tasks.segment import Segment
from regard.tasks.span import SpanTask
from regard.tasks.tag import Tag
from regard.tasks.task import Task
from regard.tasks.translate import Translate

__all__ = ["EVERY", "GATHERING", "SEEING", "TASKS", "Task", "find_task", "idle", "means"]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (Translate(), Language(), Mask(), Classify(), Tag(), SpanTask(), Choose(), Embed(), Recall())
}


SEEING: dict[str, Task] = {task.name: task for task in (Recognise(), Segment(), Depth(), Painting(), Caption())}
"""The same names where they are asked of bodies that read pictures."""


GATHERING: dict[str, Task] = {task.name: task for task in (Discern(), Partition())}
"""The same names where they are asked of bodies that read points."""


EVERY = (*TASKS.values(), *SEEING.values(), *GATHERING.values())

_SPECIAL = frozenset(name for task in EVERY for name in task.heeds)


def means(task: Task, setting: str) -> bool:
    """Whether a setting, as in `data.vocabulary`, means something to a task."""
    return setting in task.heeds or setting not in _SPECIAL


def idle(task: Task, said: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings that a person gave, by their groups, and that mean nothing to the task."""
    given = (f"{group}.{name}" for group, values in said.items() for name in values)
    return [setting for setting in given if not means(task, setting)]


def find_task(name: str, reads: str | None = None) -> Task:
    """The task of this name in the form for what is read; None: text, where it has that form."""
    forms = {"text": TASKS, "pictures": SEEING, "points": GATHERING}
    for kind in (reads,) if reads else forms:
        if name in forms[kind]:
            return forms[kind][name]
    known = dict.fromkeys(task.name for task in EVERY)
    if name in known:
        raise SettingError(f"the task '{name}' cannot be asked of a model that reads {reads}.")
    raise UnknownName("task", name, known, "See 'regard list tasks'.")
