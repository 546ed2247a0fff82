"""A mutant: a change in a source file, and the changed lines for selecting the tests."""

from __future__ import annotations

import ast
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class File:
    """Text and syntax tree of a source file."""

    def __init__(self, path: str) -> None:
        self.text = (SOURCE / path).read_bytes()
        self.tree = ast.parse(self.text)
        self.starts = [0, *itertools.accumulate(map(len, self.text.splitlines(keepends=True)))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end byte of a node, with decorators."""
        column = node.col_offset if top(node) == node.lineno else 0
        return self.starts[top(node) - 1] + column, self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


@functools.cache
def opened(path: str) -> File:
    return File(path)


@dataclass(frozen=True, order=True)
class Mutant:
    path: str
    """Path of the file relative to `src`."""
    start: int
    end: int
    """Replaced bytes of the file."""
    replacement: str
    note: str
    """Description of the change."""
    id: str = ""

    def source(self) -> bytes:
        """Content of the whole file with the change."""
        text = opened(self.path).text
        return text[: self.start] + self.replacement.encode() + text[self.end :]

    def line(self, at: int) -> int:
        return opened(self.path).text[:at].count(b"\n") + 1

    def lines(self) -> tuple[set[int], bool]:
        """Lines of the changed statement (of its header if it has a body), and True if the lines run at import."""
        first, last = self.line(self.start), self.line(max(self.end - 1, self.start))
        statements = [node for node in ast.walk(opened(self.path).tree) if isinstance(node, ast.stmt)]
        *outer, node = (one for one in statements if top(one) <= first and (one.end_lineno or 0) >= last)
        inner = [top(one) for one in ast.walk(node) if isinstance(one, ast.stmt) and one is not node]
        if not inner:
            first, last = top(node), node.end_lineno or last
        elif last < min(inner):
            first, last = top(node), min(inner) - 1
        return set(range(first, last + 1)), not any(isinstance(one, Function) for one in outer)


def top(node: ast.expr | ast.stmt) -> int:
    """First line of a node including its decorators."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def deliberate(id: str, where: str, pattern: str, replacement: str, note: str) -> Mutant:
    """Mutant of one row of `faults.py`; raises if the function or the pattern does not occur exactly once."""
    module, _, qualified = where.partition(":")
    path = module.replace(".", "/") + ".py"
    if not (SOURCE / path).exists():
        path = module.replace(".", "/") + "/__init__.py"
    file = opened(path)
    nodes: list[ast.AST] = [file.tree]
    for name in qualified.split("."):
        held = ast.walk(nodes[0]) if isinstance(nodes[0], Function) else nodes[0].body  # type: ignore[attr-defined]
        named = [node for node in held if isinstance(node, ast.ClassDef | Function) and node.name == name]
        nodes = [node for node in named if "overload" not in map(ast.unparse, node.decorator_list)]
        if len(nodes) != 1:
            raise LookupError(f"fault '{id}': expected one function {where}, found {len(nodes)}. Move the fault along.")
    start, end = file.span(nodes[0])  # type: ignore[arg-type]
    found = file.text[start:end].count(pattern.encode())
    if found != 1:
        raise LookupError(f"fault '{id}': expected its pattern once in {where}, found {found} times: {pattern!r}")
    start = file.text.index(pattern.encode(), start)
    return Mutant(path, start, start + len(pattern.encode()), replacement, note, id)
