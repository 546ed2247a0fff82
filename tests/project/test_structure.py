"""Limits of the structure: small classes in `regard.tasks`, one objective per task, no probed attributes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from regard.tasks import TASKS

ROOT = Path(__file__).parents[2] / "src/regard"
MAX_PUBLIC_METHODS = 20
PROBED = re.compile(r"(^|[._])(config|body|task|traits)$")


def class_nodes() -> dict[str, ast.ClassDef]:
    paths = sorted((ROOT / "tasks").rglob("*.py"))
    return {n.name: n for p in paths for n in ast.walk(ast.parse(p.read_text("utf-8"))) if isinstance(n, ast.ClassDef)}


def public_methods(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Public methods and properties of a class and of its base classes."""
    node = classes[name]
    own = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")}
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return own.union(*(public_methods(base, classes) for base in bases if base in classes))


def test_no_class_of_the_tasks_has_more_than_twenty_public_methods() -> None:
    classes = class_nodes()
    counts = {name: len(public_methods(name, classes)) for name in classes}
    assert {name: count for name, count in counts.items() if count > MAX_PUBLIC_METHODS} == {}


@pytest.mark.parametrize("name", ["classify", "segment"])
def test_a_task_of_several_modalities_is_one_objective(name: str) -> None:
    rows = [task for task in TASKS if task.name == name]
    assert len(rows) > 1 and len({task.objective_path for task in rows}) == 1
    assert len({task.input for task in rows}) == len(rows)


def probes(source: str) -> list[str]:
    """Calls of hasattr and getattr with a literal name on a config, a body or a task, which have typed attributes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    probing = [node for node in calls if ast.unparse(node.func) in ("hasattr", "getattr")]
    literal = [node for node in probing if isinstance(node.args[1], ast.Constant)]
    return [ast.unparse(node) for node in literal if PROBED.search(ast.unparse(node.args[0]))]


def test_configs_bodies_and_tasks_are_not_probed_for_attributes() -> None:
    code = 'getattr(model.config, "act", False); hasattr(body, "grid"); getattr(config, name); hasattr(item, "x")'
    assert probes(code) == ["getattr(model.config, 'act', False)", "hasattr(body, 'grid')"]
    assert {str(path): found for path in ROOT.rglob("*.py") if (found := probes(path.read_text("utf-8")))} == {}
