"""Limits that keep the source readable: sizes of files, functions and classes, formatter exceptions, no probed attributes."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from regard.data.reader import Reader
from regard.tasks import TASKS, Task
from regard.tasks.base import Encoded, Objective, OptionRules
from regard.tasks.modality.base import Modality

SOURCE = Path(__file__).parents[2] / "src/regard"

CORE = (
    "nn/attention/*.py", "nn/blocks/*.py", "decode/*.py", "training/*.py", "tasks/base.py", "tasks/translate.py",
    "tasks/lm.py", "model.py", "systems/transformer.py", "systems/gpt2.py", "systems/bert.py", "systems/vit.py",
)  # fmt: skip
"""The reading list of docs/architecture.md: files that explain the method. Everything else builds on them."""
MAX_CORE_LINES = 7_500
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_CONSTRUCTOR_PARAMETERS = 600, 80, 10
MAX_SYSTEM_LINES, MAX_MEDIAN_SYSTEM_LINES = 180, 140
MAX_FORMATTER_EXCEPTIONS = 60
MAX_PUBLIC_METHODS = 20
PROBED = re.compile(r"(^|[._])(config|body|task|traits)$")


def line_count(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def test_core_is_read_in_an_afternoon() -> None:
    files = {path for pattern in CORE for path in SOURCE.glob(pattern)}
    assert all(any(SOURCE.glob(pattern)) for pattern in CORE)
    assert sum(map(line_count, files)) <= MAX_CORE_LINES
    text = (SOURCE.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    assert [pattern for pattern in CORE if pattern.removesuffix("/*.py") not in text] == []


def test_no_file_function_or_constructor_is_too_long() -> None:
    assert {str(path) for path in SOURCE.rglob("*.py") if line_count(path) > MAX_FILE_LINES} == set()
    assert {name for name, node in functions() if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES} == set()
    constructors = {name: node.args for name, node in functions() if node.name == "__init__"}
    counts = {name: len(args.args) + len(args.kwonlyargs) - 1 for name, args in constructors.items()}
    assert {name for name, count in counts.items() if count > MAX_CONSTRUCTOR_PARAMETERS} == set()


def test_system_files_are_short() -> None:
    paths = [*SOURCE.glob("systems/*.py"), *SOURCE.glob("systems/captioners/*.py")]
    sizes = {path.name: line_count(path) for path in paths if path.stem != "__init__"}
    assert {name for name, size in sizes.items() if size > MAX_SYSTEM_LINES} == set()
    assert statistics.median(sizes.values()) <= MAX_MEDIAN_SYSTEM_LINES


def test_formatter_decides_the_form_of_all_but_literal_tables() -> None:
    """Literals are tuples, lists, dicts, sets, and calls with literal arguments."""
    found, literal = [], ast.Tuple | ast.List | ast.Dict | ast.Set | ast.Call
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        marks = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt) and node.end_lineno in marks and not isinstance(node, ast.ClassDef):
                table = isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, literal)
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", table))
                marks.discard(node.end_lineno)
    assert [place for place, table in found if not table] == []
    assert len(found) <= MAX_FORMATTER_EXCEPTIONS


def public_methods(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    """Public methods and properties of a class and of its base classes."""
    node = classes[name]
    own = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")}
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return own.union(*(public_methods(base, classes) for base in bases if base in classes))


def test_classes_of_the_tasks_are_small_and_a_task_of_several_modalities_has_one_objective() -> None:
    nodes = [node for path in (SOURCE / "tasks").rglob("*.py") for node in ast.walk(ast.parse(path.read_bytes()))]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    counts = {name: len(public_methods(name, classes)) for name in classes}
    assert {name: count for name, count in counts.items() if count > MAX_PUBLIC_METHODS} == {}
    for name in ("classify", "segment"):
        rows = [task for task in TASKS if task.name == name]
        assert len(rows) > 1 and len({task.objective_path for task in rows}) == 1
        assert len({task.input for task in rows}) == len(rows)


def test_nothing_of_the_former_task_class_is_left_outside_of_its_recorded_place() -> None:
    places = {
        "`Task` row": Task, "reader": Reader, "objective": Objective, "modality": Modality, "head options": OptionRules,
        "`Encoded`": Encoded,
    }  # fmt: skip
    record = (SOURCE.parents[1] / "docs/design/tasks.md").read_text(encoding="utf-8")
    members = re.findall(r"^\| (\w+) \| ([^|]+) \|", record, re.MULTILINE)[1:]
    assert len(members) == 97
    for member, recorded in members:
        found = {place for place, kind in places.items() if member in {*dir(kind), *kind.__annotations__}}
        assert member == "name" or [place for place in found if place not in recorded] == [], member


def probes(source: str) -> list[str]:
    """Calls of hasattr and getattr with a literal name on a config, a body or a task, which have typed attributes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    probing = [node for node in calls if ast.unparse(node.func) in ("hasattr", "getattr")]
    literal = [node for node in probing if isinstance(node.args[1], ast.Constant)]
    return [ast.unparse(node) for node in literal if PROBED.search(ast.unparse(node.args[0]))]


def test_configs_bodies_and_tasks_are_not_probed_for_attributes() -> None:
    code = 'getattr(model.config, "act", False); hasattr(body, "grid"); getattr(config, name); hasattr(item, "x")'
    assert probes(code) == ["getattr(model.config, 'act', False)", "hasattr(body, 'grid')"]
    assert {str(path): found for path in SOURCE.rglob("*.py") if (found := probes(path.read_text("utf-8")))} == {}
