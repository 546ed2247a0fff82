"""Sizes that keep the source readable: core, files, functions, constructors, system files, formatter exceptions."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

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
