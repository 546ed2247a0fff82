"""Public interface of the product as plain values: commands, settings, keys, signatures, finding ids, extensions and files.

`python tests/outside.py` writes tests/outside.json; test_outside.py compares the current values with the file."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

import regard
from golden import names
from regard import index
from regard.cli import EXPLANATION_FORMATS, app
from regard.data.file_discovery import DEPTH_SUFFIXES, IMAGE_SUFFIXES
from regard.data.points.cloud_files import CLOUD_SUFFIXES
from regard.data.text.documents import TEXT_SUFFIXES
from regard.data.text.formats import ALL_TABLE_SUFFIXES, TABLE_SUFFIXES
from regard.data.text.tagged import CONLL_SUFFIXES
from regard.index import SYNONYMS
from regard.tasks import MODALITIES, TASKS

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".json")


def commands() -> dict[str, dict[str, str]]:
    """Arguments and options of each command, with defaults."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return {
        name: {
            "/".join(sorted(parameter.opts)) if parameter.param_type_name == "option" else f"<{parameter.name}>": (
                "required" if parameter.required else repr(parameter.default)
            )
            for parameter in command.params
            if parameter.name != "help"
        }
        for name, command in sorted(group.commands.items())
    }


def settings() -> dict[str, Any]:
    """Default of each setting, and of each setting `model.*` by system."""
    return {
        f"{row['system']}:{row['setting']}" if row["system"] else row["setting"]: row["default"]
        for row in index.load_index()["settings"]
    }


def signatures() -> dict[str, str]:
    """Signatures of the public functions and of the public methods of public classes."""
    found: dict[str, str] = {}

    def signature(item: Any) -> str:
        return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.signature(item)))

    for name in regard.__all__:
        item = getattr(regard, name)
        if inspect.isclass(item):
            found[name] = signature(item) if not issubclass(item, Exception) else "exception"
            for method, value in vars(item).items():
                if inspect.isfunction(value) and not method.startswith("_"):
                    found[f"{name}.{method}"] = signature(value)
        elif callable(item):
            found[name] = signature(item)
    return found


def finding_ids() -> list[str]:
    """Ids of all findings: the keys of the tables of findings, without the variant after the colon."""
    found = set()
    for path in sorted((ROOT / "src/regard/data/check").rglob("*.py")):
        tables = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Dict)]
        for key, value in (pair for table in tables for pair in zip(table.keys, table.values, strict=True)):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and "Spec(" in ast.unparse(value):
                found.add(str(key.value).partition(":")[0])
    return sorted(found)


def extensions() -> dict[str, list[str]]:
    tables = {
        "text": TEXT_SUFFIXES, "tables": TABLE_SUFFIXES, "tags": CONLL_SUFFIXES, "images": IMAGE_SUFFIXES,
        "depth": DEPTH_SUFFIXES, "captions": ALL_TABLE_SUFFIXES, "point clouds": CLOUD_SUFFIXES,
        "explanations": EXPLANATION_FORMATS,
    }  # fmt: skip
    return {name: sorted(set(suffixes)) for name, suffixes in tables.items()}


def collect() -> dict[str, Any]:
    """All values that require no trained model."""
    tasks = {f"{row['task']} ({row['reads']})": row["settings"] for row in index.load_index()["tasks"]}
    return {
        "commands": commands(),
        "settings": settings(),
        "settings by task": {name: sorted(used) for name, used in tasks.items()},
        "presets": sorted(index.presets()),
        "foreign settings": dict(sorted(SYNONYMS.items())),
        "foreign tasks": {
            alias: row["task"] for row in index.load_index()["tasks"] for alias in row.get("aliases", ())
        },
        "checks": {kind: sorted(task.name for task in TASKS if task.input == kind) for kind in MODALITIES},
        "signatures": signatures(),
        "findings": finding_ids(),
        "extensions": extensions(),
        "metrics": sorted(names.METRICS.values()),
    }


def key_paths(value: Any, prefix: str = "", depth: int = 2) -> Iterator[str]:
    """Keys of nested objects as `a.b`; objects in a list count once."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        yield from key_paths(value[0], f"{prefix}[]", depth)
    elif isinstance(value, Mapping) and depth:
        for key, inner in value.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            yield name
            yield from key_paths(inner, name, depth - 1)


def update(found: Mapping[str, Any]) -> None:
    """Write the given sections into the file; other sections are kept."""
    kept = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps({**kept, **found}, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    update(collect())
    command = "REGARD_UPDATE_OUTSIDE=1 pytest -n0 tests/project/test_outside.py"
    sys.exit(f"The sections of trained models are written by: {command}")
