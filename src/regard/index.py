"""Names and descriptions of all systems, presets, tasks and settings, read from a generated file without torch.

`python -m regard.runs.catalog` writes the file from the tables; `make check` and a test fail where the two differ.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.errors import SettingError, UnknownNameError, suggest
from regard.foreign_names import resolve_task_name

INDEX_PATH = Path(__file__).with_name("index.json")

PRESET_ADVICE = "See 'regard list presets'."
TASK_ADVICE = "See 'regard list tasks'."


@functools.cache
def load_index() -> dict[str, Any]:
    """The content of index.json: `systems`, `tasks` and `settings`; no entries where it has not been generated yet."""
    if not INDEX_PATH.exists():
        return {"systems": {}, "tasks": [], "settings": []}
    found: dict[str, Any] = json.loads(INDEX_PATH.read_text(encoding="utf-8"))
    return found


def presets() -> dict[str, str]:
    """The name of each preset, with the name of its system."""
    return {preset: name for name, system in load_index()["systems"].items() for preset in system["presets"]}


def model_types() -> dict[str, str]:
    """Each `model_type` of a published config.json, with the name of the system that reads it."""
    return {system["model_type"]: name for name, system in load_index()["systems"].items() if system["model_type"]}


def task_specific_settings() -> frozenset[str]:
    """Settings that have an effect for some tasks only."""
    return frozenset(name for task in load_index()["tasks"] for name in task["settings"])


def processor_files() -> frozenset[str]:
    """Names of the files that tokenizers and processors of all tasks are saved in."""
    return frozenset(name for task in load_index()["tasks"] for name in task["reader_files"])


def check_task(name: str) -> None:
    """Refuse the name of a task that does not exist."""
    known = [task["task"] for task in load_index()["tasks"]]
    if resolve_task_name(name) not in known:
        raise UnknownNameError("task", name, known, TASK_ADVICE)


def check_preset(name: str) -> None:
    """Refuse the name of a preset that does not exist."""
    if name not in presets():
        raise UnknownNameError("preset", name, presets(), PRESET_ADVICE)


def default_system(task: str) -> str | None:
    """The system that a task trains where no model is given; None where it depends on the data."""
    name = resolve_task_name(task)
    found = {presets().get(row["model"]) for row in load_index()["tasks"] if row["task"] == name}
    return found.pop() if len(found) == 1 else None


def check_model_settings(names: Iterable[str], system: str) -> None:
    """Refuse the name of a setting `model.*` that a system does not have."""
    known = [row["setting"].removeprefix("model.") for row in load_index()["settings"] if row["system"] == system]
    for name in names:
        if name not in known:
            raise SettingError(f"unknown setting 'model.{name}'. {suggest(name, known, 'model.')}")


def list_rows(kind: str) -> list[dict[str, Any]]:
    """The table of `regard list`."""
    found = load_index()
    systems = [{"system": name, **system} for name, system in found["systems"].items()]
    tables = {
        "tasks": [
            {"task": row["task"], "about": row["about"], "columns": ", ".join(row["columns"])} for row in found["tasks"]
        ],
        "systems": [
            {"system": one["system"], "about": one["about"], "tasks": ", ".join(one["tasks"])} for one in systems
        ],
        "presets": [
            {
                "preset": name, "system": one["system"], "parameters": f"{parameters:,}",
                "tasks": ", ".join(one["tasks"]),
            }
            for one in systems
            for name, parameters in one["presets"].items()
        ],
        "settings": found["settings"],
    }  # fmt: skip
    if kind not in tables:
        raise UnknownNameError("list", kind, tables)
    return tables[kind]
