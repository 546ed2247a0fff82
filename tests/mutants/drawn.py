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
from hashlib import blake2b
from pathlib import Path

from mutants.mutant import SOURCE, Mutant, parsed, span

SEED, COUNT = 20250, 60
KEPT = Path(__file__).with_name("drawn.json")

OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.MatMult: ("@", "*"),
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}  # fmt: skip

Site = tuple[str, int, int, str, str]
"""Path, start and end byte, replacement, kind."""


def draw(count: int = COUNT, seed: int = SEED) -> list[Mutant]:
    """Mutants, determined by the seed and the source lines."""
    places: list[tuple[str, Site]] = []
    met: Counter[str] = Counter()
    for file in sorted(SOURCE.glob("regard/**/*.py")):
        text = file.read_bytes()
        for site in sites(str(file.relative_to(SOURCE))):
            _, start, end, replacement, kind = site
            first, last = text.rfind(b"\n", 0, start) + 1, text.find(b"\n", end)
            line = text[first:last].decode().strip()
            key = f"{seed}|{kind}|{start - first}|{replacement}|{line}"
            met[key] += 1  # repeated lines are distinguished by their number
            places.append((blake2b(f"{key}|{met[key]}".encode(), digest_size=6).hexdigest(), site))
    mutants = _kept()[:count] if (count, seed) == (COUNT, SEED) else []
    if len(mutants) == count:
        return mutants
    for digest, (path, start, end, replacement, kind) in sorted(places):
        old = (SOURCE / path).read_bytes()[start:end].decode()
        note = f"{kind}: {_short(old)} -> {_short(replacement)}"
        mutant = Mutant(f"drawn-{digest[:8]}", path, start, end, replacement, note)
        if _differs(mutant):
            mutants.append(mutant)
        if len(mutants) == count:
            return mutants
    raise ValueError(f"expected {count} places that can be changed, got {len(mutants)}")


def _kept() -> list[Mutant]:
    """Mutants of drawn.json whose lines still exist in the source."""
    texts = {str(path.relative_to(SOURCE)): path.read_bytes() for path in sorted(SOURCE.glob("regard/**/*.py"))}
    found = []
    for row in json.loads(KEPT.read_text("utf-8")):
        line = rb"(?m)^[ \t]*" + re.escape(row["line"].encode()) + rb"$"
        for path in (row["path"], *texts):
            places = [*re.finditer(line, texts.get(path, b""))]
            if not places:
                continue
            place = places[min(row["nth"], len(places) - 1)]
            start = place.end() - len(row["line"].encode()) + row["at"]
            end = start + len(row["old"].encode())
            note = f"{row['kind']}: {_short(row['old'])} -> {_short(row['new'])}"
            mutant = Mutant(row["id"], path, start, end, row["new"], note)
            if texts[path][start:end] == row["old"].encode() and _differs(mutant):
                found.append(mutant)
                break
    return found


def _short(text: str) -> str:
    line = re.sub(r"\s+", " ", text)
    return line if len(line) <= 60 else line[:57] + "..."


def _differs(mutant: Mutant) -> bool:
    """True if the changed file is valid Python with a different syntax tree."""
    try:
        return ast.dump(ast.parse(mutant.source())) != ast.dump(parsed(mutant.path))
    except SyntaxError:
        return False


def sites(path: str) -> list[Site]:
    """All mutable sites of a file, sorted."""
    text = (SOURCE / path).read_bytes()
    found = [site for node in _nodes(parsed(path), False) for site in _changes(path, text, node)]
    return sorted(set(found))


def _nodes(node: ast.AST, within: bool) -> Iterator[ast.AST]:
    """Nodes that may be changed; `within` is True inside a function body."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr) or _unrecorded(node):
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


def _unrecorded(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    decorators = getattr(node, "decorator_list", [])
    return any("triton" in ast.unparse(one) for one in decorators)


def _changes(path: str, text: bytes, node: ast.AST) -> Iterator[Site]:
    match node:
        case ast.Constant(value=bool(value)):
            yield (path, *span(path, node), str(not value), "constant")
        case ast.Constant(value=int(value)):
            yield (path, *span(path, node), str(value + 1), "constant")
        case ast.Constant(value=float(value)):
            yield (path, *span(path, node), repr(value * 2 or 1.0), "constant")
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield from _operator(path, text, left, right, *OPERATORS[type(op)], "operator")
        case ast.AugAssign(target, op, value) if type(op) in OPERATORS:
            old, new = OPERATORS[type(op)]
            yield from _operator(path, text, target, value, f"{old}=", f"{new}=", "operator")
        case ast.Compare(left, ops, comparators):
            for before, op, after in zip([left, *comparators], ops, comparators, strict=False):
                yield from _operator(path, text, before, after, *COMPARISONS[type(op)], "comparison")
        case ast.BoolOp(op, values):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            for before, after in itertools.pairwise(values):
                yield from _operator(path, text, before, after, old, new, "boolean operator")
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield (path, *span(path, node), _text(path, text, operand), "removed sign")
        case ast.Expr(value=ast.Call()):
            yield (path, *span(path, node), "pass", "removed call")
        case ast.If() | ast.While() | ast.IfExp():
            yield (path, *span(path, node.test), f"(not ({_text(path, text, node.test)}))", "negated condition")


def _text(path: str, text: bytes, node: ast.AST) -> str:
    start, end = span(path, node)
    return f"({text[start:end].decode()})"


def _operator(
    path: str, text: bytes, before: ast.AST, after: ast.AST, old: str, new: str, kind: str
) -> Iterator[Site]:  # fmt: skip
    """Site of the operator between two operands, after closing parentheses of the first."""
    start, end = span(path, before)[1], span(path, after)[0]
    found = re.fullmatch(rb"([\s)]*)" + re.escape(old.encode()).replace(rb"\ ", rb"\s+") + rb"[\s(]*", text[start:end])
    if found:
        start += len(found[1])
        yield path, start, start + len(old), new, kind
