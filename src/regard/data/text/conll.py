"""Sentences in CoNLL format: one word per line with tags in further columns, and an empty line between sentences.

Columns are separated by tabs if the first line contains a tab, else by spaces. Lines `-DOCSTART- …` and comments `# …`
before the first word of a sentence are skipped, but not the word "#" with a known tag. In CoNLL-U, multiword tokens (1-2)
and empty nodes (1.1) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from regard.data.text.files import ErrorHandler, read_lines
from regard.data.text.formats import file_format
from regard.data.text.tables import count_columns, format_list, shorten
from regard.data.text.tag_schemes import OUTSIDE, parse_tag
from regard.errors import DataError, UnknownColumnError

WORD_COLUMNS = ("words", "tokens", "word", "token", "form", "sentence", "text")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "tag", "ner_tag", "ner", "label", "pos_tags", "pos", "upos")
"""Usual names of the word and tag columns, in order of preference."""

CONLLU_COLUMNS = (1, 3)
"""Positions of the word and the universal part of speech in CoNLL-U."""

_DOCSTART = "-DOCSTART-"
_SEPARATOR = re.compile(r"[ \t]+")
_MULTIWORD_ID = re.compile(r"\d+[-.]\d+")
_METADATA_COMMENT = re.compile(r"#\s*[\w.:]+\s*=")


class Word(NamedTuple):
    line: int
    text: str
    tag: str


class ConllLayout(NamedTuple):
    """Column layout, detected from the first line of a file."""

    tab_separated: bool
    num_columns: int
    """columns of every line; 0: only the chosen positions must exist"""
    word_column: int
    tag_column: int
    has_header: bool

    def split_line(self, text: str) -> list[str]:
        return split_columns(text, self.tab_separated)


def split_columns(text: str, tab_separated: bool) -> list[str]:
    """Columns of a line. No-break spaces such as U+00A0 are not separators."""
    return [cell.strip(" ") for cell in text.split("\t")] if tab_separated else _SEPARATOR.split(text.strip(" \t"))


def read_sentences(
    path: Path, columns: Mapping[str, str] | None, on_error: ErrorHandler, words_only: bool = False
) -> Iterator[list[Word]]:
    """Yield the words of each sentence; a sentence with an invalid line is skipped if `on_error` does not raise.

    With `words_only`, tags may be missing."""
    layout: ConllLayout | None = None
    words: list[Word] = []
    spoilt: list[str] = []
    tags: set[str] = {OUTSIDE}

    def hear(kind: str, error: DataError) -> None:
        spoilt.append(kind)
        on_error(kind, error)

    for line, text in read_lines(path, hear):
        if not text.strip() or text.split(maxsplit=1)[0] == _DOCSTART:
            if words and not spoilt:
                yield words
            words = []
            spoilt.clear()
            continue
        if not words and _is_comment(text, layout, tags):
            continue
        if layout is None and not spoilt:
            layout = _detect_layout(path, line, text, columns, words_only)
            if layout.has_header:
                continue
        try:
            word = None if layout is None else _parse_word(path, line, text, layout, words_only)
        except DataError as error:
            hear("format", error)
            continue
        if word is not None:
            words.append(word)
            tags.add(word.tag)
    if words and not spoilt:
        yield words


def _is_comment(text: str, layout: ConllLayout | None, tags: set[str]) -> bool:
    """True if this line, before the first word of a sentence, is a comment. The word "#" has a known tag."""
    if text != "#" and not text.startswith("# "):
        return False
    if _METADATA_COMMENT.match(text) and "\t" not in text:
        return True
    if layout is None:
        cells = split_columns(text, "\t" in text)
        return len(cells) < 2 or parse_tag(cells[-1]) is None
    cells = layout.split_line(text)
    odd = len(cells) <= layout.tag_column or (layout.num_columns > 0 and len(cells) != layout.num_columns)
    return odd or cells[layout.tag_column] not in tags


def _detect_layout(path: Path, line: int, text: str, columns: Mapping[str, str] | None, asked: bool) -> ConllLayout:
    tabs, chosen = "\t" in text, dict(columns or {})
    cells = split_columns(text, tabs)
    if len(cells) == 1 and asked:
        return ConllLayout(False, 1, 0, 0, cells[0].lower() in WORD_COLUMNS)
    if len(cells) < 2:
        advice = "Each line needs a word and a tag, separated by a tab or spaces; an empty line ends a sentence."
        raise DataError(count_columns(2, 1, at_least=True), path, line, advice)
    small = [cell.lower() for cell in cells]
    named = [name for name in chosen.values() if not (name.isascii() and name.isdigit())]
    usual = _find_column(small, WORD_COLUMNS), _find_column(small, TAG_COLUMNS)
    header = bool(named) or None not in usual
    for name in named:
        if name not in cells:
            found = f"Columns in {path}, line {line}: {format_list(cells)}."
            raise UnknownColumnError(name, map(shorten, cells), f"{found} Positions start at 0: words=0 tags=1.")
    word, tag = (
        CONLLU_COLUMNS if file_format(path) == ".conllu" and len(cells) > max(CONLLU_COLUMNS) else (0, len(cells) - 1)
    )
    if header:
        word, tag = usual[0] or 0, tag if usual[1] is None else usual[1]
    places = {
        name: (cells.index(where) if where in named else int(where)) if (where := chosen.get(name)) else place
        for name, place in (("words", word), ("tags", tag))
    }
    for place in places.values():
        if place >= len(cells):
            advice = f"Column positions range from 0 to {len(cells) - 1}."
            raise DataError(f"column {place} does not exist.", path, line, advice)
    return ConllLayout(tabs, 0 if "tags" in chosen else len(cells), places["words"], places["tags"], header)


def _find_column(cells: list[str], names: tuple[str, ...]) -> int | None:
    return next((cells.index(name) for name in names if name in cells), None)


def _parse_word(path: Path, line: int, text: str, layout: ConllLayout, asked: bool) -> Word | None:
    cells = layout.split_line(text)
    if layout.word_column and _MULTIWORD_ID.fullmatch(cells[0]):
        return None
    wanted = layout.num_columns or max(layout.word_column, layout.tag_column) + 1
    if len(cells) != wanted and (layout.num_columns or len(cells) < wanted):
        by = "tabs" if layout.tab_separated else "spaces"
        advice = f"In the first line, {by} separate the columns. Check for a missing or an extra separator."
        raise DataError(count_columns(wanted, len(cells), at_least=not layout.num_columns), path, line, advice)
    word, tag = cells[layout.word_column], cells[layout.tag_column]
    if not word.strip() or not (tag.strip() or asked):
        there, missing = ("word", "tag") if word.strip() else ("tag", "word")
        raise DataError(f"{there} '{(word.strip() or tag.strip())[:40]}' has no {missing}.", path, line)
    return Word(line, word, tag)
