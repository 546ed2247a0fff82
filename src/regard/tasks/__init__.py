"""What can be asked of a model. Commands, evaluation and pages read this table: a task appears everywhere by being here."""

from __future__ import annotations

from regard.errors import UnknownName
from regard.tasks.translate import Translate

Task = Translate
"""The union of the tasks; they offer the same methods."""

TASKS: dict[str, Task] = {"translate": Translate()}


def find_task(name: str) -> Task:
    if name not in TASKS:
        raise UnknownName("task", name, TASKS, "See 'regard list tasks'.")
    return TASKS[name]
