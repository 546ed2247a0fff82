"""Generator of index.json, which `regard list` and the checks of names read instead of importing all systems.

`python tools/write_index.py` writes index.json; with `--check` the exit code is 1 if index.json is not up to date."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from regard.index import INDEX_PATH
from regard.runs.settings import GROUPS
from regard.systems import SYSTEMS, common
from regard.systems.common.system import System
from regard.tasks import TASKS

MAX_DEFAULT_CHARS = 40
"""Maximum length of a default value; longer values, such as the config of a captioner's encoder, are shortened."""


def build_index() -> dict[str, Any]:
    """Contents of index.json: all systems with presets, all tasks and all settings."""
    systems = {
        name: {
            "about": system.description,
            "reads": system.modality,
            "tasks": list(system.tasks),
            "model_type": system.published.model_type,
            "presets": {preset: one.parameters for preset, one in system.presets.items()},
        }
        for name, system in SYSTEMS.items()
    }
    tasks = [
        {
            "task": task.name,
            "reads": task.input,
            "about": task.description,
            "columns": list(task.reader.columns),
            "model": task.default_model,
            "settings": list(task.objective.settings_used),
            "reader_files": list(task.modality.processor_files),
            "aliases": list(task.aliases),
        }
        for task in TASKS
    ]
    groups = [*((name, kind, "all") for name, kind in GROUPS.items())]
    groups += [("model", system.config, system.name) for system in SYSTEMS.values()]
    settings = [
        {"setting": f"{group}.{name}", "system": system, "default": _shorten(getattr(kind(), name)), "about": about}
        for group, kind, system in groups
        for name, about in describe(kind).items()
    ]
    presets = {preset: _preset_settings(system, preset) for system in SYSTEMS.values() for preset in system.presets}
    return {"systems": systems, "tasks": tasks, "settings": settings, "presets": presets}


def _preset_settings(system: System, name: str) -> dict[str, str]:
    """Settings of a preset that differ from the defaults: model sizes, and the recipe of its first task."""
    preset, usual = system.presets[name], system.config()
    found = {
        f"model.{field}": _shorten(getattr(preset.config, field))
        for field in describe(system.config)
        if getattr(preset.config, field) != getattr(usual, field)
    }
    for group, values in system.recipe(preset, system.tasks[0]).items():
        found |= {f"{group}.{key}": _shorten(value) for key, value in values.items()}
    return found


def describe(cls: type[Any]) -> dict[str, str]:
    """Help text of each field: the string under the field, otherwise the text of fields.toml."""
    found = tomllib.loads(Path(common.__path__[0], "fields.toml").read_text(encoding="utf-8"))
    for parent in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        found |= _field_docs(parent)
    return {item.name: found[item.name] for item in dataclasses.fields(cls) if item.name in found}


@cache
def _field_docs(kind: type[Any]) -> dict[str, str]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                docs[field.target.id] = " ".join(text.value.value.split())
    return docs


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_DEFAULT_CHARS else f"{text[: MAX_DEFAULT_CHARS - 2]} …"


def main() -> int:
    text = json.dumps(build_index(), ensure_ascii=False, indent=1) + "\n"
    if "--check" not in sys.argv[1:]:
        INDEX_PATH.write_text(text, encoding="utf-8")
        return 0
    if INDEX_PATH.exists() and INDEX_PATH.read_text(encoding="utf-8") == text:
        return 0
    print(f"{INDEX_PATH}: differs from the tables. Run: python tools/write_index.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
