"""Texts of Python, Markdown, HTML and JavaScript files, and names in Python and JavaScript code."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from prose.blocks import FIELD, TWO_WORDS, Block, join, paragraphs

PYTHON_TOKENS = re.compile(
    r'"""(?:[^\\]|\\.)*?"""' r"|'''(?:[^\\]|\\.)*?'''" r'|"(?:[^"\\\n]|\\.)*"' r"|'(?:[^'\\\n]|\\.)*'" r"|#[^\n]*", re.S
)
"""Strings and comments. A regular expression is ten times as fast as the module `tokenize`."""
SCRIPT_FIELD = re.compile(r"\$\{((?:[^{}`]|`[^`]*`|\{[^{}]*\})*)\}")
SCRIPT_TOKENS = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    rf"|`(?:{SCRIPT_FIELD.pattern}|[^`\\]|\\.)*`"
    r"|(?<!:)//[^\n]*(?:\n\s*//[^\n]*)*"
    r"|/\*.*?\*/",
    re.S,
)
DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma|ruff:|!)")
NAME = re.compile(r"[^\W\d]\w*")
WORD_VALUE = re.compile(r"[\w.:/+-]+")
FORMATTED_NAME = re.compile(rf"[A-Za-z]{{2,}}_{FIELD}|{FIELD}_[A-Za-z_]+")
FENCE = re.compile(r"\s*(```|~~~)")
SHELL_COMMENT = re.compile(r"(?:^|\s)#\s+(.*)")
COMMAND_LINE = re.compile(r"\s{2,}(?:python3?|regard|make|pip|git|torchrun|\$|>>>|\.\.\.)\s")
TABLE_RULE = re.compile(r"[|\s:-]+")
GLOSSARY = ("CONTRIBUTING.md", "Glossary", "Not")
"""File, section and column with words to avoid: these words are not checked."""


@dataclass
class Read:
    """Blocks of text of one file, and the names and single-word strings in the code."""

    blocks: list[Block] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    formatted: set[str] = field(default_factory=set)
    """Names with a field, for example `‹›_per_s`."""


# ---- Python


def read_python(path: str, source: str, help_fields: bool) -> Read:
    """Docstrings, messages and comments of a Python file. `help_fields`: docstrings of fields are help texts."""
    found = Read()
    _strings(found, path, ast.parse(source), help_fields)
    _comments(found, path, source)
    code = PYTHON_TOKENS.sub(" ", source)
    found.names.update(NAME.findall(code))
    return found


def _strings(found: Read, path: str, tree: ast.Module, help_fields: bool) -> None:
    """Collect docstrings, help texts and messages. `ast.walk` visits parents first, so roles are set before strings."""
    roles: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            roles.setdefault(id(node.value), "doc")
        elif isinstance(node, ast.ClassDef) and help_fields:
            for before, text in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.AnnAssign) and isinstance(text, ast.Expr):
                    roles[id(text.value)] = "help"
        elif isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
            if isinstance(node.body[0], ast.Expr):
                roles[id(node.body[0].value)] = "help"
        elif isinstance(node, ast.Call):
            roles.update({id(word.value): "help text" for word in node.keywords if word.arg == "help"})
        elif isinstance(node, ast.JoinedStr):
            roles.update({id(part): "part" for part in node.values if isinstance(part, ast.Constant)})
            _message(found, path, node, roles.get(id(node), "message"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and roles.get(id(node)) != "part":
            role = roles.get(id(node), "message")
            if role in ("doc", "help"):
                found.blocks.extend(_docstring(path, role, node))
            else:
                _message(found, path, node, role)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_command(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(target, ast.Attribute) and target.attr in ("command", "callback")


def _docstring(path: str, kind: str, node: ast.Constant) -> Iterator[Block]:
    """Paragraphs of a docstring. Indented commands are code, except for comments."""
    first, *rest = str(node.value).split("\n")
    indent = min((len(line) - len(line.lstrip()) for line in rest if line.strip()), default=0)
    lines = [(node.lineno, first.strip()), *enumerate((line[indent:] for line in rest), node.lineno + 1)]
    for number, line in lines:
        if COMMAND_LINE.match(line):
            yield from _code_line(path, kind, number, line)
    prose = ((number, "" if COMMAND_LINE.match(line) else line) for number, line in lines)
    yield from (join(path, kind, group) for group in paragraphs(prose))


def _code_line(path: str, kind: str, number: int, line: str, section: tuple[str, ...] = ()) -> Iterator[Block]:
    yield join(path, "code", [(number, line)], section)
    comment = SHELL_COMMENT.search(line)
    if comment and TWO_WORDS.search(comment[1]):
        yield join(path, kind, [(number, comment[1])], section)


def _message(found: Read, path: str, node: ast.Constant | ast.JoinedStr, role: str) -> None:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else FIELD for part in parts)
    if not TWO_WORDS.search(text):
        if isinstance(node, ast.Constant) and WORD_VALUE.fullmatch(text):
            found.values.add(text)
        elif FORMATTED_NAME.fullmatch(text):
            found.formatted.add(text)
        return
    kind = "help" if role == "help text" else "message"
    lines = text.split("\n")
    one_to_one = (node.end_lineno or node.lineno) - node.lineno == len(lines) - 1
    numbered = ((node.lineno + i * one_to_one, line) for i, line in enumerate(lines))
    found.blocks.extend(join(path, kind, group) for group in paragraphs(numbered))


def _comments(found: Read, path: str, source: str) -> None:
    """Comments. Consecutive comments in the same column form a paragraph."""
    breaks = [-1, *(match.start() for match in re.finditer("\n", source))]
    group: list[tuple[int, str]] = []
    last = (0, 0)
    for match in PYTHON_TOKENS.finditer(source):
        if not match[0].startswith("#") or DIRECTIVE.match(match[0]):
            continue
        line = bisect_right(breaks, match.start() - 1)
        start = breaks[line - 1] + 1
        alone = not source[start : match.start()].strip()
        column = match.start() - start if alone else -1
        if group and not (alone and (line - 1, column) == last):
            found.blocks.extend(join(path, "comment", lines) for lines in paragraphs(group))
            group = []
        group.append((line, match[0].lstrip("#").removeprefix(":")))
        last = (line, column)
    found.blocks.extend(join(path, "comment", lines) for lines in paragraphs(group))


# ---- TOML


def read_table(path: str, source: str) -> Read:
    """Help texts by name, one per line, and comments."""
    found = Read()
    for number, line in enumerate(source.split("\n"), 1):
        name, _, text = line.partition(" = ")
        kind = "help" if text else "comment"
        found.blocks.append(join(path, kind, [(number, text.strip('"') or line.lstrip("# "))]))
        found.values |= {name.strip('"'), *text.strip('"').split()} if text else set()
    return found


# ---- Markdown


def read_markdown(path: str, source: str) -> Read:
    """Paragraphs, list items and table cells. In fenced code, comments are prose and lines are code."""
    found = Read()
    fenced, section = False, ()
    pending: list[tuple[int, str]] = []
    header: list[str] = []  # column titles of the current table

    def flush() -> None:
        found.blocks.extend(join(path, "markdown", group, section) for group in paragraphs(pending))
        pending.clear()

    for number, line in enumerate(source.split("\n"), 1):
        if not line.lstrip().startswith("|"):
            header = []
        if FENCE.match(line):
            flush()
            fenced = not fenced
        elif fenced:
            found.blocks.extend(_code_line(path, "markdown", number, line, section))
        elif line.startswith("#"):
            flush()
            title = line.lstrip("#")
            level = len(line) - len(title)
            section = (*(*section, *[""] * level)[: level - 1], title.strip())
            found.blocks.append(join(path, "markdown", [(number, title.strip())], section))
        elif line.lstrip().startswith("|"):
            flush()
            cells = [] if TABLE_RULE.fullmatch(line) else re.split(r"(?<!\\)\|", line.strip().strip("|"))
            header = header or [cell.strip() for cell in cells]
            for column, cell in enumerate(cells):
                if (path, *section[-1:], *header[column : column + 1]) != GLOSSARY:
                    found.blocks.append(join(path, "markdown", [(number, cell.strip())], section))
        else:
            pending.append((number, line))
    flush()
    return found


# ---- pages


def read_script(path: str, source: str) -> Read:
    """Strings and comments of JavaScript."""
    found = Read(names=set(NAME.findall(SCRIPT_TOKENS.sub(" ", source))))
    _script(found, path, source, 1)
    return found


def _script(found: Read, path: str, source: str, first: int) -> None:
    """Add the texts of a script with the line number `first`; fields of template strings are scripts, too."""
    for match in SCRIPT_TOKENS.finditer(source):
        line = first + source.count("\n", 0, match.start())
        if match[0].startswith("/"):
            lines = enumerate((text.strip(" /*") for text in match[0].split("\n")), line)
            found.blocks.extend(join(path, "comment", group) for group in paragraphs(lines))
            continue
        body = match[0][1:-1]
        for inner in SCRIPT_FIELD.finditer(body) if match[0][0] == "`" else ():
            _script(found, path, inner[1], line + body.count("\n", 0, inner.start()))
        text = SCRIPT_FIELD.sub(FIELD, body)
        if TWO_WORDS.search(text):
            found.blocks.extend(join(path, "page", group) for group in paragraphs(enumerate(text.split("\n"), line)))


def read_page(path: str, source: str) -> Read:
    """Texts between tags of HTML, and texts in attributes."""
    found = Read()
    visible = re.sub(
        r"<(script|style)\b.*?</\1>|<!--.*?-->", lambda match: re.sub(r"[^\n]", " ", match[0]), source, flags=re.S
    )
    for match in re.finditer(r'>([^<>]+)<|\b(?:title|alt|placeholder|aria-label)="([^"]+)"', visible):
        text = match[1] or match[2]
        if TWO_WORDS.search(text):
            line = visible.count("\n", 0, match.start(1 if match[1] else 2)) + 1
            found.blocks.extend(join(path, "page", group) for group in paragraphs(enumerate(text.split("\n"), line)))
    return found
