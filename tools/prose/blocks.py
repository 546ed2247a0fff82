"""Paragraphs of text with line numbers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

INLINE_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
NO_PROSE = re.compile(
    r"\]\([^()\s]*\)|https?://[^\s)>]+"
    r"|[\w./-]*\w\.(?:csv|html|js|json|jsonl|md|npz|parquet|ply|png|pt|py|safetensors|toml|tsv|txt|ya?ml)\b"
)
"""Link targets and names of files."""
LIST_ITEM = re.compile(r"(?:[-*+•]|\d+[.)])\s+")
TWO_WORDS = re.compile(r"[A-Za-z’']{2,}\s+\S*[A-Za-z]{2,}")

FIELD = "‹›"
"""Replacement for the fields of formatted strings, without letters, because fields are not words."""


@dataclass(frozen=True)
class Block:
    """One paragraph, list item, table cell or message on a single line."""

    path: str
    """Path relative to the repository."""
    kind: str
    """doc, help, message, comment, markdown, page, or code for a line of a fenced code block."""
    text: str
    starts: tuple[int, ...]
    """Offsets of line starts in the text."""
    lines: tuple[int, ...]
    """Line numbers of the offsets."""
    section: tuple[str, ...] = ()
    """Headings above the block, in Markdown."""

    @cached_property
    def prose(self) -> str:
        """The text without inline code, links and file names, at equal length."""
        if self.kind == "code":
            return ""
        text = self.text if self.kind == "page" else INLINE_CODE.sub(_filler, self.text)
        return NO_PROSE.sub(_filler, text)

    @property
    def code_spans(self) -> list[tuple[int, str]]:
        """Offset and content of all inline code; empty for pages, because JavaScript uses backticks for strings."""
        if self.kind in ("page", "code"):
            return []
        return [(match.start(2), match[2]) for match in INLINE_CODE.finditer(self.text)]

    def line_at(self, offset: int) -> int:
        return self.lines[bisect_right(self.starts, offset) - 1]


def _filler(match: re.Match[str]) -> str:
    return "‹" + "·" * (len(match[0]) - 2) + "›" if len(match[0]) > 1 else "·"


def join(path: str, kind: str, lines: Iterable[tuple[int, str]], section: tuple[str, ...] = ()) -> Block:
    """Join the lines of a paragraph with spaces."""
    starts, numbers, parts, offset = [], [], [], 0
    for number, line in lines:
        starts.append(offset)
        numbers.append(number)
        parts.append(line)
        offset += len(line) + 1
    return Block(path, kind, " ".join(parts), tuple(starts), tuple(numbers), section)


def paragraphs(lines: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Split lines into paragraphs: at blank lines, at list items, and at lines indented by four or more spaces."""
    current: list[tuple[int, str]] = []
    indent = 0
    for number, line in lines:
        text = line.strip()
        here = len(line) - len(line.lstrip())
        item = LIST_ITEM.match(text)
        if current and (not text or item or here >= indent + 4):
            yield current
            current = []
        if text:
            if not current:
                indent = here
            current.append((number, text[item.end() :] if item else text))
    if current:
        yield current
