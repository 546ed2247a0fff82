"""Names and descriptions of all systems, presets, tasks and settings, read from a generated file without torch.

`python -m regard.runs.catalog` writes the file; `make check` and a test fail if the file is out of date."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard.errors import SettingError, UnknownNameError, suggest
from regard.foreign_names import resolve_preset_name

INDEX_PATH = Path(__file__).with_name("index.json")

PRESET_ADVICE = "See 'regard list presets'."
TASK_ADVICE = "See 'regard list tasks'."


@functools.cache
def load_index() -> dict[str, Any]:
    """Content of index.json: `systems`, `tasks` and `settings`; empty if the file is not generated yet."""
    if not INDEX_PATH.exists():
        return {"systems": {}, "tasks": [], "settings": []}
    found: dict[str, Any] = json.loads(INDEX_PATH.read_text(encoding="utf-8"))
    return found


def presets() -> dict[str, str]:
    """System name of each preset."""
    return {preset: name for name, system in load_index()["systems"].items() for preset in system["presets"]}


def model_types() -> dict[str, str]:
    """System name for each `model_type` in a Hugging Face config.json."""
    return {system["model_type"]: name for name, system in load_index()["systems"].items() if system["model_type"]}


def task_specific_settings() -> frozenset[str]:
    """Settings with an effect on some tasks only."""
    return frozenset(name for task in load_index()["tasks"] for name in task["settings"])


def processor_files() -> frozenset[str]:
    """File names of the tokenizers and processors of all tasks."""
    return frozenset(name for task in load_index()["tasks"] for name in task["reader_files"])


@functools.cache
def task_aliases() -> dict[str, str]:
    """Task of regard for pipeline names of Hugging Face and other common names."""
    return {alias: task["task"] for task in load_index()["tasks"] for alias in task.get("aliases", ())}


def resolve_task_name(name: str) -> str:
    """Task of regard for a pipeline name such as `token-classification`; other names are returned unchanged."""
    return task_aliases().get(name, name)


def check_task(name: str) -> None:
    """Raise an error for an unknown task."""
    known = [task["task"] for task in load_index()["tasks"]]
    if resolve_task_name(name) not in known:
        raise UnknownNameError("task", name, known, TASK_ADVICE)


def check_preset(name: str) -> None:
    """Refuse the name of a preset that does not exist."""
    if resolve_preset_name(name) not in presets():
        raise UnknownNameError("preset", name, presets(), PRESET_ADVICE)


def default_system(task: str) -> str | None:
    """Default system of a task; None if the default depends on the data."""
    name = resolve_task_name(task)
    found = {presets().get(row["model"]) for row in load_index()["tasks"] if row["task"] == name}
    return found.pop() if len(found) == 1 else None


def check_model_settings(names: Iterable[str], system: str) -> None:
    """Raise an error for an unknown setting `model.*` of a system."""
    known = [row["setting"].removeprefix("model.") for row in load_index()["settings"] if row["system"] == system]
    for name in names:
        if name not in known:
            raise SettingError(f"Unknown setting 'model.{name}'. {suggest(name, known, 'model.')}")


def list_rows(
    kind: str, group: str | None = None, model: str | None = None, task: str | None = None, search: str | None = None
) -> list[dict[str, Any]]:
    """Rows of `regard list`: models, presets, tasks or settings, filtered by group, preset, task and search word."""
    tables = {"models": _model_rows, "presets": _preset_rows, "tasks": _task_rows, "settings": _setting_rows}
    if kind not in tables:
        raise UnknownNameError("list", kind, tables)
    if group is not None and (kind != "settings" or group not in SETTING_GROUPS):
        raise UnknownNameError("group of settings", group, SETTING_GROUPS)
    if model is not None:
        check_preset(model)
    if task is not None:
        check_task(task)
        task = resolve_task_name(task)
    rows = tables[kind](group, model, task)
    word = (search or "").lower()
    return [row for row in rows if word in " ".join(map(str, row.values())).lower()]


SETTING_GROUPS = ("data", "train", "decode", "model")


def _models(model: str | None, task: str | None) -> list[dict[str, Any]]:
    systems = [{"system": name, **system} for name, system in load_index()["systems"].items()]
    chosen = None if model is None else presets()[resolve_preset_name(model)]
    return [one for one in systems if chosen in (None, one["system"]) and (task is None or task in one["tasks"])]


def _model_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    return [
        {"model": one["system"], "tasks": ", ".join(one["tasks"]), "description": one["about"]}
        for one in _models(model, task)
    ]


def _preset_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    return [
        {"preset": name, "model": one["system"], "parameters": f"{parameters:,}", "tasks": ", ".join(one["tasks"])}
        for one in _models(model, task)
        for name, parameters in one["presets"].items()
        if model in (None, name)
    ]


def _task_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    able = {(name, one["reads"]) for one in _models(model, None) for name in one["tasks"]}
    return [
        {
            "task": row["task"], "input": row["reads"], "columns": ", ".join(row["columns"]), "model": row["model"],
            "description": row["about"],
        }
        for row in load_index()["tasks"]
        if (row["task"], row["reads"]) in able and task in (None, row["task"])
    ]  # fmt: skip


def _setting_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    """Settings with their defaults. Settings of models appear with a preset, or once per name with the group model."""
    system: str | None = None
    changed: dict[str, Any] = {}
    if model is not None:
        model = resolve_preset_name(model)
        system, changed = presets()[model], load_index()["presets"][model]
    used = {name for row in load_index()["tasks"] if task in (None, row["task"]) for name in row["settings"]}
    rows: dict[str, dict[str, Any]] = {}
    for row in load_index()["settings"]:
        name, of_model = row["setting"], row["system"] != "all"
        if group is not None and not name.startswith(f"{group}."):
            continue
        if of_model and (row["system"] != system if system else group != "model"):
            continue
        if task is not None and name in task_specific_settings() and name not in used:
            continue
        default = changed.get(name, row["default"])
        rows.setdefault(name, {"setting": name, "default": default, "description": row["about"]})
    return list(rows.values())
