"""Sentences of CoNLL's form: a word a line, its tags in columns beside it, and a blank line between sentences.

Columns are separated by tabs where the first line has one, else by blanks. Lines `-DOCSTART- …` are left out, and so are
comments `# …` before the first word of a sentence, unless that line is a word "#" like others; of CoNLL-U also words that
are several (1-2) or none (1.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from regard.data.text.columns import listed, short
from regard.data.text.files import Complain, lines
from regard.data.text.tables import format_of
from regard.data.text.tag_schemes import OUTSIDE, parted
from regard.errors import DataError, UnknownColumn

WORDS = ("words", "tokens", "word", "token", "form", "sentence", "text")
TAGS = ("tags", "ner_tags", "labels", "tag", "ner_tag", "ner", "label", "pos_tags", "pos", "upos")
"""What the columns of words and of tags are usually called, the surest first."""

UNIVERSAL = (1, 3)
"""Where CoNLL-U has the word and its universal part of speech."""

_DOCUMENT = "-DOCSTART-"
_SPACE = re.compile(r"[ \t]+")
_NOT_ONE = re.compile(r"\d+[-.]\d+")
_SAYS = re.compile(r"#\s*[\w.:]+\s*=")


class Word(NamedTuple):
    line: int
    text: str
    tag: str


class Layout(NamedTuple):
    """Where the columns are, as the first line of a file shows."""

    tabs: bool
    width: int
    """of every line; 0 where only the places that were chosen must be there"""
    word: int
    tag: int
    header: bool

    def cells(self, text: str) -> list[str]:
        return split(text, self.tabs)


def split(text: str, tabs: bool) -> list[str]:
    """The columns of a line. Blanks that keep words together, such as U+00A0, separate nothing."""
    return [cell.strip(" ") for cell in text.split("\t")] if tabs else _SPACE.split(text.strip(" \t"))


def sentences(
    path: Path, columns: Mapping[str, str] | None, complain: Complain, asked: bool = False
) -> Iterator[list[Word]]:
    """Each as its words; a sentence with a line that is complained of is left out, where `complain` does not raise.

    Where tags are `asked` for, none need be there."""
    layout: Layout | None = None
    words: list[Word] = []
    spoilt: list[str] = []
    tags: set[str] = {OUTSIDE}

    def hear(kind: str, error: DataError) -> None:
        spoilt.append(kind)
        complain(kind, error)

    for line, text in lines(path, hear):
        if not text.strip() or text.split(maxsplit=1)[0] == _DOCUMENT:
            if words and not spoilt:
                yield words
            words = []
            spoilt.clear()
            continue
        if not words and _comment(text, layout, tags):
            continue
        if layout is None and not spoilt:
            layout = _layout(path, line, text, columns, asked)
            if layout.header:
                continue
        try:
            word = None if layout is None else _word(path, line, text, layout, asked)
        except DataError as error:
            hear("format", error)
            continue
        if word is not None:
            words.append(word)
            tags.add(word.tag)
    if words and not spoilt:
        yield words


def _comment(text: str, layout: Layout | None, tags: set[str]) -> bool:
    """Whether this line before the first word of a sentence is none. The word "#" stands beside a tag that is known."""
    if text != "#" and not text.startswith("# "):
        return False
    if _SAYS.match(text) and "\t" not in text:
        return True
    if layout is None:
        cells = split(text, "\t" in text)
        return len(cells) < 2 or parted(cells[-1]) is None
    cells = layout.cells(text)
    odd = len(cells) <= layout.tag or (layout.width > 0 and len(cells) != layout.width)
    return odd or cells[layout.tag] not in tags


def _layout(path: Path, line: int, text: str, columns: Mapping[str, str] | None, asked: bool) -> Layout:
    tabs, chosen = "\t" in text, dict(columns or {})
    cells = split(text, tabs)
    if len(cells) == 1 and asked:
        return Layout(False, 1, 0, 0, cells[0].lower() in WORDS)
    if len(cells) < 2:
        advice = "Each line holds a word and its tag, separated by a tab or blanks; a blank line ends a sentence."
        raise DataError("1 column was found, and 2 are wanted.", path, line, advice)
    small = [cell.lower() for cell in cells]
    named = [name for name in chosen.values() if not (name.isascii() and name.isdigit())]
    usual = _usual(small, WORDS), _usual(small, TAGS)
    header = bool(named) or None not in usual
    for name in named:
        if name not in cells:
            found = f"{path}, line {line}, has: {listed(cells)}"
            raise UnknownColumn(name, map(short, cells), f"{found}. Places count from 0: words=0 tags=1.")
    word, tag = UNIVERSAL if format_of(path) == ".conllu" and len(cells) > max(UNIVERSAL) else (0, len(cells) - 1)
    if header:
        word, tag = usual[0] or 0, tag if usual[1] is None else usual[1]
    places = {
        name: (cells.index(where) if where in named else int(where)) if (where := chosen.get(name)) else place
        for name, place in (("words", word), ("tags", tag))
    }
    for place in places.values():
        if place >= len(cells):
            raise DataError(f"there is no column {place}.", path, line, f"They count from 0, to {len(cells) - 1} here.")
    return Layout(tabs, 0 if "tags" in chosen else len(cells), places["words"], places["tags"], header)


def _usual(cells: list[str], names: tuple[str, ...]) -> int | None:
    return next((cells.index(name) for name in names if name in cells), None)


def _word(path: Path, line: int, text: str, layout: Layout, asked: bool) -> Word | None:
    cells = layout.cells(text)
    if layout.word and _NOT_ONE.fullmatch(cells[0]):
        return None
    wanted = layout.width or max(layout.word, layout.tag) + 1
    if len(cells) != wanted and (layout.width or len(cells) < wanted):
        found = "1 column was found" if len(cells) == 1 else f"{len(cells)} columns were found"
        by = "tabs" if layout.tabs else "blanks"
        advice = f"The first line separates its columns by {by}: look for a missing or an extra one."
        raise DataError(f"{found}, and {wanted} are wanted.", path, line, advice)
    word, tag = cells[layout.word], cells[layout.tag]
    if not word.strip() or not (tag.strip() or asked):
        missing = "tag is blank beside the word" if word.strip() else "word is blank beside the tag"
        raise DataError(f"the {missing} '{(word.strip() or tag.strip())[:40]}'.", path, line)
    return Word(line, word, tag)
