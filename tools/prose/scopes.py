"""Files of the repository, and scopes of blocks of text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from prose.blocks import Block
from prose.readers import Read, read_markdown, read_page, read_python, read_script, read_table

ROOT = Path(__file__).resolve().parents[2]

SCOPES = ("messages", "help", "docs", "code", "tests")

DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY.md", "benchmarks/RESULTS.md", "docs/*.md")
CODE = ("src", "benchmarks", "examples", "tools", "tests")
HELP_FIELDS = ("src/regard/*settings.py", "src/regard/systems/*")
"""Files with settings: the docstring below a field is the help text."""
WORD_LISTS = ("src/regard/demos/grammar.py", "src/regard/demos/lexicon.toml")
"""Strings in these files are training data of the demos, not messages."""


@dataclass
class Corpus:
    """Blocks of text of the repository by scope, and the names in the code."""

    blocks: dict[str, list[Block]] = field(default_factory=lambda: {scope: [] for scope in SCOPES})
    names: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    """Single words in string literals of src and tools."""
    formatted: set[str] = field(default_factory=set)
    """Formatted strings of src and tools with a single field and no space."""


def read_corpus(root: Path = ROOT) -> Corpus:
    corpus = Corpus()
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        read = _read(name, path.read_text(encoding="utf-8"))
        corpus.names |= read.names | {value for value in read.values if value.startswith("--")}
        if name.startswith(("src/", "tools/")) and name not in WORD_LISTS:
            corpus.values |= read.values
            corpus.formatted |= read.formatted
        for block in read.blocks:
            scope = scope_of(name, block.kind)
            if scope:
                corpus.blocks[scope].append(block)
    return corpus


def _files(root: Path) -> Iterator[Path]:
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".js", ".html", ".toml") and "__pycache__" not in path.parts:
                yield path
    for pattern in DOCS:
        yield from sorted(root.glob(pattern.replace("*.md", "**/*.md")))


def _read(name: str, source: str) -> Read:
    if name.endswith(".py"):
        return read_python(name, source, any(fnmatch(name, pattern) for pattern in HELP_FIELDS))
    if name.endswith(".toml"):
        return Read() if name in WORD_LISTS else read_table(name, source)
    if name.endswith(".js"):
        return read_script(name, source)
    return read_page(name, source) if name.endswith(".html") else read_markdown(name, source)


def scope_of(name: str, kind: str) -> str:
    """The scope of a block, or an empty string for unchecked texts, for example messages of tests."""
    if name.endswith(".md"):
        return "docs"
    if name.startswith("tests/"):
        return "tests" if kind in ("doc", "comment", "code") else ""
    if kind in ("doc", "comment", "code"):
        return "code"
    if not name.startswith("src/") or (kind == "message" and name in WORD_LISTS):
        return ""
    return "help" if kind == "help" else "messages"
