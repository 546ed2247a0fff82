"""What can be asked of a model. Commands, evaluation and pages read this table: a task appears everywhere by being here."""

from __future__ import annotations

from regard.errors import UnknownName
from regard.tasks.choose import Choose
from regard.tasks.classify import Classify
from regard.tasks.embed import Embed
from regard.tasks.language import Language
from regard.tasks.mask import Mask
from regard.tasks.span import SpanTask
from regard.tasks.tag import Tag
from regard.tasks.task import Task
from regard.tasks.translate import Translate

__all__ = ["TASKS", "Task", "find_task"]

TASKS: dict[str, Task] = {
    task.name: task for task in (Translate(), Language(), Mask(), Classify(), Tag(), SpanTask(), Choose(), Embed())
}


def find_task(name: str) -> Task:
    if name not in TASKS:
        raise UnknownName("task", name, TASKS, "See 'regard list tasks'.")
    return TASKS[name]
