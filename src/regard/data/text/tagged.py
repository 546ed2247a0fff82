"""Sentences with one tag per word: CoNLL format, or one sentence per row of tables, JSONL and Parquet.

In CoNLL format, columns are separated by tabs if the first line contains a tab, else by spaces. Lines `-DOCSTART- …` and
comments `# …` before the first word of a sentence are skipped, but not the word "#" with a known tag. In CoNLL-U, multiword
tokens (1-2) and empty nodes (1.1) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard.data.reader import Reader, with_target
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_lines
from regard.data.text.formats import (
    ALL_TABLE_SUFFIXES,
    TAB_SUFFIXES,
    TABLE_SUFFIXES,
    file_format,
    find_format,
    has_column_names,
    ignore_error,
    read_class_names,
    read_header,
    read_schema,
)
from regard.data.text.tables import (
    ColumnSpec,
    InputIterator,
    SkippedRow,
    count_columns,
    format_list,
    iterate_all,
    iterate_rows,
    make_samples,
    match_columns,
    report_incomplete,
    shorten,
    uses_positions,
)
from regard.data.text.tag_schemes import OUTSIDE, TagScheme, parse_tag
from regard.errors import DataError, UnknownColumnError

COLUMNS = ("words", "tags")
"""Column names accepted by --columns."""

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes")
_PROBE_LINES = 50
"""lines examined to distinguish a table from CoNLL format"""
WORD_COLUMNS = ("words", "tokens", "word", "token", "form", "sentence", "text")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "tag", "ner_tag", "ner", "label", "pos_tags", "pos", "upos")
"""Usual names of the word and tag columns, in order of preference."""

CONLLU_COLUMNS = (1, 3)
"""Positions of the word and the universal part of speech in CoNLL-U."""

_DOCSTART = "-DOCSTART-"
_SEPARATOR = re.compile(r"[ \t]+")
_MULTIWORD_ID = re.compile(r"\d+[-.]\d+")
_METADATA_COMMENT = re.compile(r"#\s*[\w.:]+\s*=")


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words and tags of a sentence, with file and line."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    """empty for unlabeled inputs"""
    path: str = ""
    line: int = 0
    """line of the first word"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))  # lists if loaded from JSON
        object.__setattr__(self, "tags", tuple(self.tags))


@dataclass(frozen=True)
class TagOptions:
    """User settings for reading tags."""

    scheme: TagScheme | Literal["auto"] = "auto"
    """scheme of the tags; `plain` accepts any tag"""
    names: tuple[str, ...] = ()
    """names of tags stored as numbers from 0"""


def iterate_tagged(
    data: Sequence[str],
    columns: Mapping[str, str] | None = None,
    tags: TagOptions = TagOptions(),  # noqa: B008
) -> Iterator[TaggedSentence | SkippedRow]:
    """Yield the sentences of all files and patterns in input order."""
    advice = "Each sentence needs words, and one tag per word."
    return iterate_all(data, lambda entry: read_tagged(entry, columns, tags=tags), "sentences", advice)


def read_tagged(
    entry: str,
    columns: Mapping[str, str] | None = None,
    on_error: ErrorHandler = raise_error,
    tags: TagOptions | None = TagOptions(),  # noqa: B008
) -> Iterator[TaggedSentence | SkippedRow]:
    """Yield the sentences of one file.

    In CoNLL format the word is the first column and the tag the last, unless `columns` gives other positions. Tables, JSON
    and Parquet have columns `words` (or `tokens`) and `tags` (or `ner_tags`, `labels`): lists, or texts split at spaces.
    With `tags=None`, tags are not read and may be missing."""
    ColumnSpec(COLUMNS, columns)  # raises for an unknown column choice
    path = existing_file(entry)
    kind = file_format(path)
    sentence_cell = _find_sentence_cell(path, columns) if kind in (*CONLL_SUFFIXES, *TAB_SUFFIXES) else None
    if kind in CONLL_SUFFIXES or (
        kind in TAB_SUFFIXES and not (_has_sentence_rows(path, columns) or (sentence_cell and tags is None))
    ):
        if sentence_cell is not None:
            raise DataError(
                f"not CoNLL format: expected one word per line, found '{sentence_cell[1][:60].strip()}'.",
                path,
                sentence_cell[0],
                "CoNLL files have one word and its tag per line, and an empty line between sentences. "
                "Tables with one sentence per row need the columns words and tags, with one tag per word.",
            )
        return _read_conll(entry, path, columns, on_error, tags)
    if kind not in ALL_TABLE_SUFFIXES:
        raise DataError(
            f"unsupported file type '{kind}'." if kind else "the file name has no extension.",
            path,
            advice=f"Supported: {' '.join(CONLL_SUFFIXES)} .txt .tsv (one word per line), .csv .tsv .jsonl "
            "(one sentence per line), .parquet; text files also with .gz.",
        )
    if tags is None:
        return _read_words(entry, path, columns, on_error)
    return _read_table(entry, path, columns, on_error, tags)


def read_sentence_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield lists of words without tags."""
    for line, item in report_incomplete(read_tagged(entry, columns, on_error, tags=None), on_error):
        yield line, item and list(item.words)


def _find_sentence_cell(path: Path, columns: Mapping[str, str] | None) -> tuple[int, str] | None:
    """First cell with several words and its line number, if most lines of a TSV file have such a cell in the word column."""
    choice = (columns or {}).get("words", "0")
    position = int(choice) if choice.isascii() and choice.isdigit() else 0
    lines = (
        (line, _split_columns(text, tab_separated=True))
        for line, text in read_lines(path, ignore_error)
        if "\t" in text and text[0] != "#"
    )
    rows = [(line, cells[position]) for line, cells in islice(lines, _PROBE_LINES) if position < len(cells)]
    sentences = [(line, text) for line, text in rows if " " in text]
    return sentences[0] if 2 * len(sentences) > len(rows) else None


def _has_sentence_rows(path: Path, columns: Mapping[str, str] | None) -> bool:
    """True if a TSV file has one sentence per line: a cell with several tags cannot belong to one word."""
    lines = (
        _split_columns(text, tab_separated=True)
        for _, text in read_lines(path, ignore_error)
        if "\t" in text and not text.startswith("# ")
    )
    rows = list(islice(lines, _PROBE_LINES))
    choice = (columns or {}).get("tags", "")
    names = [cell.lower() for cell in rows[0]] if rows else []
    position = next((names.index(name) for name in (choice.lower(), *TAG_COLUMNS) if name in names), -1)
    position = int(choice) if choice.isascii() and choice.isdigit() else position
    return any(" " in cells[position] for cells in rows if position < len(cells))


def _read_conll(
    entry: str, path: Path, columns: Mapping[str, str] | None, on_error: ErrorHandler, tags: TagOptions | None
) -> Iterator[TaggedSentence]:
    validator = _TagValidator(entry, "plain" if tags is None else tags.scheme)
    for words in _read_sentences(path, columns, on_error, words_only=tags is None):
        try:
            validator.check((word.line, word.tag) for word in words)
        except DataError as error:
            on_error("format", error)
            continue
        names = () if tags is None else tuple(word.tag for word in words)
        yield TaggedSentence(tuple(word.text for word in words), names, entry, words[0].line)


class _TagValidator:
    """Check that all tags of a file are entity tags, or none is: a mixture is an error in the data."""

    def __init__(self, path: str, scheme: str) -> None:
        self.path, self.scheme = path, scheme
        self.first_seen: dict[bool, tuple[int, str]] = {}
        """first entity tag (True) and first other tag (False), with lines"""

    def check(self, tags: Iterable[tuple[int, str]]) -> None:
        """Raise `DataError` at the first inconsistent tag; `tags` has (line, tag)."""
        if self.scheme == "plain":
            return
        for line, tag in tags:
            is_entity = parse_tag(tag) is not None
            if is_entity and len(tag) == 1:
                continue  # O, or a single letter, which is valid in both cases
            if self.scheme != "auto" and not is_entity:
                advice = f"{self.scheme} tags are O, or a letter and an entity type such as B-PER."
                raise DataError(f"invalid {self.scheme} tag '{tag[:40]}'.", self.path, line, advice)
            if (opposite := not is_entity) in self.first_seen:
                first_line, other = self.first_seen[opposite]
                entity, single = (tag, other) if is_entity else (other, tag)
                raise DataError(
                    f"inconsistent tag schemes: '{tag[:40]}' here, '{other[:40]}' on line {first_line}.",
                    self.path,
                    line,
                    f"'{entity[:40]}' is an entity tag, '{single[:40]}' is not. "
                    "Entity tags are O, B-PER, I-PER (also E-, S-, L-, U-).",
                )
            self.first_seen.setdefault(is_entity, (line, tag))


# -- one sentence per row


def _read_table(
    entry: str, path: Path, columns: Mapping[str, str] | None, on_error: ErrorHandler, tags: TagOptions
) -> Iterator[TaggedSentence | SkippedRow]:
    chosen = _resolve_columns(path, columns)
    tag_column = (chosen or {}).get("tags", "tags")
    names = tags.names or read_class_names(path, tag_column)
    if not names:
        _reject_numeric_tags(path, tag_column)
    validator = _TagValidator(entry, tags.scheme)

    def make_sentence(line: int, row: dict[str, Any]) -> TaggedSentence | SkippedRow | None:
        item = _make_sentence(entry, line, row, names)
        if isinstance(item, TaggedSentence):
            validator.check((line, tag) for tag in item.tags)
        return item

    rows = iterate_rows(entry, COLUMNS, chosen, on_error, numeric=("tags",) if names else ())
    return make_samples(entry, rows, make_sentence, on_error)


def _read_words(
    entry: str, path: Path, columns: Mapping[str, str] | None, on_error: ErrorHandler
) -> Iterator[TaggedSentence | SkippedRow]:
    """Yield the sentences of a table without reading tags."""
    chosen = _resolve_columns(path, columns, ("words",))
    names = COLUMNS if chosen is None and len(read_header(entry)) == len(COLUMNS) else ("words",)
    if chosen is not None:
        chosen = {name: column for name, column in chosen.items() if name in names}

    def make_sentence(line: int, row: dict[str, Any]) -> TaggedSentence | None:
        words = tuple(word for word in _split_items(row["words"]) if word.strip())
        return TaggedSentence(words, (), entry, line) if words else None

    return make_samples(entry, iterate_rows(entry, names, chosen, on_error), make_sentence, on_error)


def _resolve_columns(
    path: Path, columns: Mapping[str, str] | None, needed: tuple[str, ...] = COLUMNS
) -> Mapping[str, str] | None:
    """Column names in the file: as chosen by the user, else the usual names; None: by column order."""
    names = read_header(path)
    chosen = match_columns(names, {"words": WORD_COLUMNS, "tags": TAG_COLUMNS}, columns)
    missing = next((name for name in needed if name not in chosen), None)
    if missing is None or uses_positions(chosen, names):
        return chosen
    if not chosen and not has_column_names(path):
        return None  # no header: by column order
    advice = f"Pass --columns words=NAME tags=NAME (available: {format_list(names)})."
    raise DataError(f"no column is named '{missing}'.", path, 1, advice)


def _make_sentence(
    path: str, line: int, row: Mapping[str, Any], names: Sequence[str]
) -> TaggedSentence | SkippedRow | None:
    words, tags = _split_items(row["words"]), _split_items(row["tags"])
    if not words and not tags:
        return None
    if not words or not tags:
        missing, present = ("words", tags) if tags else ("tags", words)
        return SkippedRow(path, line, f"missing {missing} for: {' '.join(present)[:60]}")
    if len(words) != len(tags):
        counts = f"{len(words)} word{'s'[: len(words) > 1]} and {len(tags)} tag{'s'[: len(tags) > 1]}"
        raise DataError(f"expected one tag per word, got {counts}: {' '.join(words)[:40]} …", path, line)
    for name, items in (("word", words), ("tag", tags)):
        empty = next((place for place, item in enumerate(items) if not item.strip()), None)
        if empty is not None:
            raise DataError(f"{name} {empty} is empty (counting from 0).", path, line)
    if names:
        tags = [_tag_name(path, line, tag, names) for tag in tags]
    return TaggedSentence(tuple(words), tuple(tags), path, line)


def _split_items(value: Any) -> list[str]:
    if isinstance(value, str):
        return _split_columns(value, tab_separated=False) if value.strip() else []
    return [item.strip(" \t") for item in value]


def _tag_name(path: str, line: int, tag: str, names: Sequence[str]) -> str:
    if not tag.isdigit():
        return tag
    if int(tag) >= len(names):
        advice = f"Tag names: {format_list(names)}."
        raise DataError(f"tag number must be between 0 and {len(names) - 1}, got {tag}.", path, line, advice)
    return names[int(tag)]


def _reject_numeric_tags(path: Path, column: str) -> None:
    """Raise `DataError` if tags are numbers without names."""
    if not has_column_names(path):
        return
    number: str | int | None
    schema = read_schema(path)
    if schema is not None:
        kinds = {field.name: str(getattr(field.type, "value_type", field.type)) for field in schema}
        number, line = kinds[column] if "int" in kinds.get(column, "") else None, None
    else:
        records = find_format(path).read(path, ignore_error, ())
        line, tags = next(((line, record.get(column)) for line, record in records if record is not None), (0, None))
        number = next((tag for tag in tags if isinstance(tag, int)), None) if isinstance(tags, list) else None
    if number is not None:
        raise DataError(
            f"expected tag names in '{column}', got numbers ({number}).",
            path,
            line,
            "Write tags as names, such as B-PER.",
        )


# -- CoNLL format


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
        return _split_columns(text, self.tab_separated)


def _split_columns(text: str, tab_separated: bool) -> list[str]:
    """Columns of a line. No-break spaces such as U+00A0 are not separators."""
    return [cell.strip(" ") for cell in text.split("\t")] if tab_separated else _SEPARATOR.split(text.strip(" \t"))


def _read_sentences(
    path: Path, columns: Mapping[str, str] | None, on_error: ErrorHandler, words_only: bool = False
) -> Iterator[list[Word]]:
    """Yield the words of each sentence; a sentence with an invalid line is skipped if `on_error` does not raise.

    With `words_only`, tags may be missing."""
    layout: ConllLayout | None = None
    words: list[Word] = []
    errors: list[str] = []
    tags: set[str] = {OUTSIDE}

    def report(kind: str, error: DataError) -> None:
        errors.append(kind)
        on_error(kind, error)

    for line, text in read_lines(path, report):
        if not text.strip() or text.split(maxsplit=1)[0] == _DOCSTART:
            if words and not errors:
                yield words
            words = []
            errors.clear()
            continue
        if not words and _is_comment(text, layout, tags):
            continue
        if layout is None and not errors:
            layout = _detect_layout(path, line, text, columns, words_only)
            if layout.has_header:
                continue
        try:
            word = None if layout is None else _parse_word(path, line, text, layout, words_only)
        except DataError as error:
            report("format", error)
            continue
        if word is not None:
            words.append(word)
            tags.add(word.tag)
    if words and not errors:
        yield words


def _is_comment(text: str, layout: ConllLayout | None, tags: set[str]) -> bool:
    """True if this line, before the first word of a sentence, is a comment. The word "#" has a known tag."""
    if text != "#" and not text.startswith("# "):
        return False
    if _METADATA_COMMENT.match(text) and "\t" not in text:
        return True
    if layout is None:
        cells = _split_columns(text, "\t" in text)
        return len(cells) < 2 or parse_tag(cells[-1]) is None
    cells = layout.split_line(text)
    is_irregular = len(cells) <= layout.tag_column or (layout.num_columns > 0 and len(cells) != layout.num_columns)
    return is_irregular or cells[layout.tag_column] not in tags


def _detect_layout(
    path: Path, line: int, text: str, columns: Mapping[str, str] | None, words_only: bool
) -> ConllLayout:
    tabs, chosen = "\t" in text, dict(columns or {})
    cells = _split_columns(text, tabs)
    if len(cells) == 1 and words_only:
        return ConllLayout(False, 1, 0, 0, cells[0].lower() in WORD_COLUMNS)
    if len(cells) < 2:
        advice = "Each line needs a word and a tag, separated by a tab or spaces; an empty line ends a sentence."
        raise DataError(count_columns(2, 1, at_least=True), path, line, advice)
    lowered = [cell.lower() for cell in cells]
    chosen_names = [name for name in chosen.values() if not (name.isascii() and name.isdigit())]
    usual = _find_column(lowered, WORD_COLUMNS), _find_column(lowered, TAG_COLUMNS)
    header = bool(chosen_names) or None not in usual
    for name in chosen_names:
        if name not in cells:
            header_hint = f"Columns in {path}, line {line}: {format_list(cells)}."
            raise UnknownColumnError(name, map(shorten, cells), f"{header_hint} Positions start at 0: words=0 tags=1.")
    word, tag = (
        CONLLU_COLUMNS if file_format(path) == ".conllu" and len(cells) > max(CONLLU_COLUMNS) else (0, len(cells) - 1)
    )
    if header:
        word, tag = usual[0] or 0, tag if usual[1] is None else usual[1]
    places = {
        name: (cells.index(choice) if choice in chosen_names else int(choice))
        if (choice := chosen.get(name))
        else place
        for name, place in (("words", word), ("tags", tag))
    }
    for place in places.values():
        if place >= len(cells):
            advice = f"Column positions range from 0 to {len(cells) - 1}."
            raise DataError(f"column {place} does not exist.", path, line, advice)
    return ConllLayout(tabs, 0 if "tags" in chosen else len(cells), places["words"], places["tags"], header)


def _find_column(cells: list[str], names: tuple[str, ...]) -> int | None:
    return next((cells.index(name) for name in names if name in cells), None)


def _parse_word(path: Path, line: int, text: str, layout: ConllLayout, words_only: bool) -> Word | None:
    cells = layout.split_line(text)
    if layout.word_column and _MULTIWORD_ID.fullmatch(cells[0]):
        return None
    expected = layout.num_columns or max(layout.word_column, layout.tag_column) + 1
    if len(cells) != expected and (layout.num_columns or len(cells) < expected):
        separator = "tabs" if layout.tab_separated else "spaces"
        advice = f"In the first line, {separator} separate the columns. Check for a missing or an extra separator."
        raise DataError(count_columns(expected, len(cells), at_least=not layout.num_columns), path, line, advice)
    word, tag = cells[layout.word_column], cells[layout.tag_column]
    if not word.strip() or not (tag.strip() or words_only):
        present, missing = ("word", "tag") if word.strip() else ("tag", "word")
        raise DataError(f"{present} '{(word.strip() or tag.strip())[:40]}' has no {missing}.", path, line)
    return Word(line, word, tag)


TAGGED = Reader(
    unit="sentences",
    columns=COLUMNS,
    sample_type=TaggedSentence,
    samples=iterate_tagged,
    inputs=read_sentence_inputs,
    split_key=lambda sentence: "\0".join(sentence.words),
    contents=lambda sentence: with_target((" ".join(sentence.words),), " ".join(sentence.tags)),
    texts=lambda sentence: (" ".join(sentence.words),),
    labels=lambda sentence: sentence.tags,
    table_suffixes=(*CONLL_SUFFIXES, *TABLE_SUFFIXES),
)
