"""A mutant: a change in a source file, and the changed lines for selecting the tests."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    id: str
    path: str
    """Path of the file relative to `src`."""
    start: int
    end: int
    """Replaced bytes of the file."""
    replacement: str
    note: str
    """Description of the change."""

    def source(self) -> bytes:
        """Content of the whole file with the change."""
        text = (SOURCE / self.path).read_bytes()
        return text[: self.start] + self.replacement.encode() + text[self.end :]

    @property
    def first(self) -> int:
        """Line number of the change."""
        return (SOURCE / self.path).read_bytes()[: self.start].count(b"\n") + 1

    def lines(self) -> tuple[set[int], bool]:
        """Lines of the changed statement (of its header if it has a body), and True if the lines run at import."""
        text = (SOURCE / self.path).read_bytes()
        first, last = self.first, text[: max(self.end - 1, self.start)].count(b"\n") + 1
        low, high, inside = first, last, False
        level: list[ast.stmt] = parsed(self.path).body
        while (node := next((n for n in level if top(n) <= first and (n.end_lineno or 0) >= last), None)) is not None:
            blocks = bodies(node)
            if not blocks:
                low, high = top(node), node.end_lineno or last
                break
            if last < top(blocks[0][0]):
                low, high = top(node), top(blocks[0][0]) - 1
                break
            inside = inside or isinstance(node, Function)
            level = [statement for block in blocks for statement in block]
        return set(range(low, high + 1)), not inside


def top(node: ast.stmt) -> int:
    """First line of a statement including its decorators."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def bodies(node: ast.AST) -> list[list[ast.stmt]]:
    """Blocks of a compound statement in order; empty for a simple statement."""
    found = [getattr(node, name) for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        found.append(handler.body)
    blocks = [block for block in found if isinstance(block, list)]
    return sorted(blocks, key=lambda block: block[0].lineno)


@functools.cache
def parsed(path: str) -> ast.Module:
    return ast.parse((SOURCE / path).read_bytes())


def span(path: str, node: ast.AST) -> tuple[int, int]:
    """Start and end byte of a node in its file."""
    starts = line_starts(path)
    first, last = top(node) if isinstance(node, ast.stmt) else node.lineno, node.end_lineno  # type: ignore[attr-defined]
    column = 0 if isinstance(node, ast.stmt) and first != node.lineno else node.col_offset  # type: ignore[attr-defined]
    return starts[first - 1] + column, starts[last - 1] + node.end_col_offset  # type: ignore[attr-defined]


@functools.cache
def line_starts(path: str) -> list[int]:
    starts = [0]
    for line in (SOURCE / path).read_bytes().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _overload(node: ast.AST) -> bool:
    """True for a signature for type checkers without a body."""
    return any("overload" in ast.unparse(one) for one in getattr(node, "decorator_list", []))


def deliberate(id: str, where: str, pattern: str, replacement: str, note: str) -> Mutant:
    """Mutant of one row of `faults.py`; raises if the function or the pattern does not occur exactly once."""
    module, _, qualified = where.partition(":")
    path = module.replace(".", "/") + ".py"
    if not (SOURCE / path).exists():
        path = module.replace(".", "/") + "/__init__.py"
    nodes: list[ast.AST] = [parsed(path)]
    for name in qualified.split("."):
        held = ast.walk(nodes[0]) if isinstance(nodes[0], Function) else nodes[0].body  # type: ignore[attr-defined]
        nodes = [n for n in held if isinstance(n, ast.ClassDef | Function) and n.name == name and not _overload(n)]
        if len(nodes) != 1:
            raise LookupError(f"fault '{id}': expected one function {where}, found {len(nodes)}. Move the fault along.")
    start, end = span(path, nodes[0])
    text = (SOURCE / path).read_bytes()[start:end]
    found = text.count(pattern.encode())
    if found != 1:
        raise LookupError(f"fault '{id}': expected its pattern once in {where}, found {found} times: {pattern!r}")
    start += text.index(pattern.encode())
    return Mutant(id, path, start, start + len(pattern.encode()), replacement, note)
