"""Sizes that keep the source readable: core, files, functions, constructors, system files, formatter exceptions."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def test_no_file_function_or_constructor_is_too_long() -> None:
    assert {str(path) for path in SOURCE.rglob("*.py") if line_count(path) > MAX_FILE_LINES} == set()
    assert {name for name, node in functions() if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES} == set()
    assert {
        name
        for name, node in functions()
        if node.name == "__init__" and len(node.args.args) + len(node.args.kwonlyargs) - 1 > MAX_CONSTRUCTOR_PARAMETERS
    } == set()


def test_system_files_are_short() -> None:
    folders = (SOURCE / "systems", SOURCE / "systems/captioners")
    sizes = {
        path.name: line_count(path) for folder in folders for path in folder.glob("*.py") if path.stem != "__init__"
    }
    assert {name for name, size in sizes.items() if size > MAX_SYSTEM_LINES} == set()
    assert statistics.median(sizes.values()) <= MAX_MEDIAN_SYSTEM_LINES


def literal_table(node: ast.stmt) -> bool:
    """Whether a statement assigns a literal: a tuple, list, dict or a call with literal arguments, on several lines."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Tuple | ast.List | ast.Dict | ast.Set | ast.Call)


def test_formatter_decides_the_form_of_all_but_literal_tables() -> None:
    found = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        marks = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt) and node.end_lineno in marks and not isinstance(node, ast.ClassDef):
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", literal_table(node)))
                marks.discard(node.end_lineno)
    assert [place for place, literal in found if not literal] == []
    assert len(found) <= MAX_FORMATTER_EXCEPTIONS


@pytest.mark.parametrize("pattern", CORE)
def test_reading_list_names_the_core(pattern: str) -> None:
    text = (SOURCE.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    assert pattern.removesuffix("/*.py") in text
