"""Mutants drawn from the syntax tree: a seeded uniform sample of all mutable sites.

drawn.json contains the sample of the table of the untrimmed suite, as source lines: a mutant is found again as long as its line
exists, in its own or another file. Missing sites are replaced by others, chosen by a digest of the seed, the change and the
text of the line, so unrelated edits do not change the sample.

Excluded are messages of `raise`, asserts, annotations, f-strings, blocks for type checkers, and functions compiled by Triton,
because coverage does not record their lines.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from mutants.mutant import SOURCE, File, Mutant, opened

SEED, COUNT = 20250, 60
KEPT = Path(__file__).with_name("drawn.json")

OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.MatMult: ("@", "*"),
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip


def draw(count: int = COUNT, seed: int = SEED) -> list[Mutant]:
    """Mutants, determined by the seed and the source lines."""
    paths = [str(path.relative_to(SOURCE)) for path in sorted(SOURCE.glob("regard/**/*.py"))]
    mutants = _kept(paths)[:count] if (count, seed) == (COUNT, SEED) else []
    places: list[tuple[str, Mutant]] = []
    met: Counter[str] = Counter()
    for site in itertools.chain.from_iterable(map(sites, paths)):
        text = opened(site.path).text
        first, last = text.rfind(b"\n", 0, site.start) + 1, text.find(b"\n", site.end)
        line = text[first:last].decode().strip()
        key = f"{seed}|{site.note}|{site.start - first}|{site.replacement}|{line}"
        met[key] += 1  # repeated lines are distinguished by their number
        places.append((blake2b(f"{key}|{met[key]}".encode(), digest_size=6).hexdigest(), site))
    found = (replace(_described(site), id=f"drawn-{digest[:8]}") for digest, site in sorted(places) if _differs(site))
    mutants += itertools.islice(found, count - len(mutants))
    if len(mutants) < count:
        raise ValueError(f"expected {count} places that can be changed, got {len(mutants)}")
    return mutants


def _kept(paths: list[str]) -> list[Mutant]:
    """Mutants of drawn.json whose lines still exist in the source."""
    found = []
    for row in json.loads(KEPT.read_text("utf-8")):
        line = rb"(?m)^[ \t]*" + re.escape(row["line"].encode()) + rb"$"
        for path in sorted(paths, key=lambda path: path != row["path"]):
            places = [*re.finditer(line, opened(path).text)]
            if not places:
                continue
            place = places[min(row["nth"], len(places) - 1)]
            start = place.end() - len(row["line"].encode()) + row["at"]
            mutant = Mutant(path, start, start + len(row["old"].encode()), row["new"], row["kind"], row["id"])
            if opened(path).text[start : mutant.end] == row["old"].encode() and _differs(mutant):
                found.append(_described(mutant))
                break
    return found


def _described(mutant: Mutant) -> Mutant:
    """The mutant with old and new source in its note."""
    old = opened(mutant.path).text[mutant.start : mutant.end].decode()
    lines = [re.sub(r"\s+", " ", text) for text in (old, mutant.replacement)]
    before, after = (line if len(line) <= 60 else line[:57] + "..." for line in lines)
    return replace(mutant, note=f"{mutant.note}: {before} -> {after}")


def _differs(mutant: Mutant) -> bool:
    """True if the changed file is valid Python with a different syntax tree."""
    try:
        return ast.dump(ast.parse(mutant.source())) != ast.dump(opened(mutant.path).tree)
    except SyntaxError:
        return False


def sites(path: str) -> list[Mutant]:
    """All mutable sites of a file, sorted."""
    file = opened(path)
    return sorted({Mutant(path, *change) for node in _nodes(file.tree, False) for change in _changes(file, node)})


def _nodes(node: ast.AST, within: bool) -> Iterator[ast.AST]:
    """Nodes that may be changed; `within` is True inside a function body."""
    unrecorded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    unrecorded |= any("triton" in ast.unparse(one) for one in getattr(node, "decorator_list", []))
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or unrecorded:
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and not within:
        return  # union of types
    yield node
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, within or (function and name == "body"))


Change = tuple[int, int, str, str]
"""Start and end byte, replacement, kind."""


def _changes(file: File, node: ast.AST) -> Iterator[Change]:
    def source(node: ast.expr) -> str:
        start, end = file.span(node)
        return f"({file.text[start:end].decode()})"

    match node:
        case ast.Constant(value=bool(value)):
            yield (*file.span(node), str(not value), "constant")
        case ast.Constant(value=int(value)):
            yield (*file.span(node), str(value + 1), "constant")
        case ast.Constant(value=float(value)):
            yield (*file.span(node), repr(value * 2 or 1.0), "constant")
        case ast.BinOp(left, op, right):
            yield from _operator(file, left, right, op, "operator")
        case ast.AugAssign(target, op, value):
            yield from _operator(file, target, value, op, "operator", "=")
        case ast.Compare(left, ops, comparators):
            for before, op, after in zip([left, *comparators], ops, comparators, strict=False):
                yield from _operator(file, before, after, op, "comparison")
        case ast.BoolOp(op, values):
            for before, after in itertools.pairwise(values):
                yield from _operator(file, before, after, op, "boolean operator")
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield (*file.span(node), source(operand), "removed sign")
        case ast.Expr(value=ast.Call()):
            yield (*file.span(node), "pass", "removed call")
        case ast.If() | ast.While() | ast.IfExp():
            yield (*file.span(node.test), f"(not ({source(node.test)}))", "negated condition")


def _operator(
    file: File, before: ast.expr, after: ast.expr, op: ast.AST, kind: str, suffix: str = ""
) -> Iterator[Change]:
    """Change of the operator between two operands, after closing parentheses of the first."""
    if type(op) in OPERATORS:
        old, new = (word + suffix for word in OPERATORS[type(op)])
        start, end = file.span(before)[1], file.span(after)[0]
        sign = re.escape(old.encode()).replace(rb"\ ", rb"\s+")
        if found := re.fullmatch(rb"([\s)]*)" + sign + rb"[\s(]*", file.text[start:end]):
            start += len(found[1])
            yield start, start + len(old), new, kind
