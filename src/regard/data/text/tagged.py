"""Sentences with one tag per word: CoNLL format, or one sentence per row of tables, JSONL and Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from regard.data.text.conll import TAG_COLUMNS, WORD_COLUMNS, read_sentences, split_columns
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_lines
from regard.data.text.formats import (
    ALL_TABLE_SUFFIXES,
    TAB_SUFFIXES,
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
    drop_trailing_blanks,
    format_list,
    iterate_all,
    iterate_rows,
    match_columns,
    report_incomplete,
    uses_positions,
)
from regard.data.text.tag_schemes import TagScheme, parse_tag
from regard.errors import DataError

COLUMNS = ("words", "tags")
"""Column names accepted by --columns."""

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes")
_PROBE_LINES = 50
"""lines examined to distinguish a table from CoNLL format"""
_TAG_NAMES_HINT = "Write tags as names, such as B-PER."


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
    data: Sequence[str], columns: Mapping[str, str] | None = None, tags: TagOptions = TagOptions()  # noqa: B008
) -> Iterator[TaggedSentence | SkippedRow]:  # fmt: skip
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
    whole = _find_sentence_cell(path, columns) if kind in (*CONLL_SUFFIXES, *TAB_SUFFIXES) else None
    if kind in CONLL_SUFFIXES or (
        kind in TAB_SUFFIXES and not (_has_sentence_rows(path, columns) or (whole and tags is None))
    ):
        if whole is not None:
            raise DataError(
                f"not CoNLL format: expected one word per line, found '{whole[1][:60].strip()}'.",
                path,
                whole[0],
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
    return (_read_words if tags is None else _read_table)(entry, path, columns, on_error, tags or TagOptions())


def read_sentence_inputs(entry: str, columns: Mapping[str, str] | None, on_error: ErrorHandler) -> InputIterator:
    """Yield lists of words without tags."""
    for line, item in report_incomplete(read_tagged(entry, columns, on_error, tags=None), on_error):
        yield line, item and list(item.words)


def _find_sentence_cell(path: Path, columns: Mapping[str, str] | None) -> tuple[int, str] | None:
    """First cell with several words and its line number, if most lines of a TSV file have such a cell in the word column."""
    said = (columns or {}).get("words", "0")
    at = int(said) if said.isascii() and said.isdigit() else 0
    found = (
        (line, split_columns(text, tab_separated=True))
        for line, text in read_lines(path, ignore_error)
        if "\t" in text and text[0] != "#"
    )
    rows = [(line, cells[at]) for line, cells in islice(found, _PROBE_LINES) if at < len(cells)]
    long = [(line, text) for line, text in rows if " " in text]
    return long[0] if 2 * len(long) > len(rows) else None


def _has_sentence_rows(path: Path, columns: Mapping[str, str] | None) -> bool:
    """True if a TSV file has one sentence per line: a cell with several tags cannot belong to one word."""
    found = (
        split_columns(text, tab_separated=True)
        for _, text in read_lines(path, ignore_error)
        if "\t" in text and not text.startswith("# ")
    )
    rows = list(islice(found, _PROBE_LINES))
    said = (columns or {}).get("tags", "")
    names = [cell.lower() for cell in rows[0]] if rows else []
    at = next((names.index(name) for name in (said.lower(), *TAG_COLUMNS) if name in names), -1)
    at = int(said) if said.isascii() and said.isdigit() else at
    return any(" " in cells[at] for cells in rows if at < len(cells))


def _read_conll(
    entry: str, path: Path, columns: Mapping[str, str] | None, complain: ErrorHandler, tags: TagOptions | None
) -> Iterator[TaggedSentence]:
    if tags is None:
        for words in read_sentences(path, columns, complain, words_only=True):
            yield TaggedSentence(tuple(word.text for word in words), (), entry, words[0].line)
        return
    spelling = _TagValidator(entry, tags.scheme)
    for words in read_sentences(path, columns, complain):
        try:
            spelling.check([(word.line, word.tag) for word in words])
        except DataError as error:
            complain("format", error)
            continue
        yield TaggedSentence(
            tuple(word.text for word in words), tuple(word.tag for word in words), entry, words[0].line
        )


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
            spells = parse_tag(tag) is not None
            if spells and len(tag) == 1:
                continue  # O, or a single letter, which is valid in both cases
            if self.scheme != "auto" and not spells:
                advice = f"{self.scheme} tags are O, or a letter and an entity type such as B-PER."
                raise DataError(f"invalid {self.scheme} tag '{tag[:40]}'.", self.path, line, advice)
            if (opposite := not spells) in self.first_seen:
                where, other = self.first_seen[opposite]
                entity, single = (tag, other) if spells else (other, tag)
                raise DataError(
                    f"inconsistent tag schemes: '{tag[:40]}' here, '{other[:40]}' on line {where}.",
                    self.path,
                    line,
                    f"'{entity[:40]}' is an entity tag, '{single[:40]}' is not. "
                    "Entity tags are O, B-PER, I-PER (also E-, S-, L-, U-).",
                )
            self.first_seen.setdefault(spells, (line, tag))


# -- one sentence per row


def _read_table(
    entry: str, path: Path, columns: Mapping[str, str] | None, complain: ErrorHandler, tags: TagOptions
) -> Iterator[TaggedSentence | SkippedRow]:
    chosen = _resolve_columns(path, columns)
    names = tags.names or read_class_names(path, (chosen or {}).get("tags", "tags"))
    if not names:
        _reject_numeric_tags(path, (chosen or {}).get("tags", "tags"))
    spelling = _TagValidator(entry, tags.scheme)

    def read() -> Iterator[tuple[int, TaggedSentence | SkippedRow | None]]:
        for line, row in iterate_rows(entry, COLUMNS, chosen, complain, numeric=("tags",) if names else ()):
            try:
                item = _make_sentence(entry, line, row, names)
                if isinstance(item, TaggedSentence):
                    spelling.check((line, tag) for tag in item.tags)
            except DataError as error:
                complain("format", error)
                continue
            yield line, item

    return drop_trailing_blanks(entry, read())


def _read_words(
    entry: str, path: Path, columns: Mapping[str, str] | None, complain: ErrorHandler, tags: TagOptions
) -> Iterator[TaggedSentence | SkippedRow]:
    """Yield the sentences of a table without reading tags."""
    chosen = _resolve_columns(path, columns, ("words",))
    names = COLUMNS if chosen is None and len(read_header(entry)) == len(COLUMNS) else ("words",)
    if chosen is not None:
        chosen = {name: column for name, column in chosen.items() if name in names}

    def read() -> Iterator[tuple[int, TaggedSentence | None]]:
        for line, row in iterate_rows(entry, names, chosen, complain):
            words = tuple(word for word in _split_items(row["words"]) if word.strip())
            yield line, TaggedSentence(words, (), entry, line) if words else None

    return drop_trailing_blanks(entry, read())


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
        missing, there = ("words", tags) if tags else ("tags", words)
        return SkippedRow(path, line, f"missing {missing} for: {' '.join(there)[:60]}")
    if len(words) != len(tags):
        counts = f"{len(words)} word{'s'[: len(words) > 1]} and {len(tags)} tag{'s'[: len(tags) > 1]}"
        raise DataError(f"expected one tag per word, got {counts}: {' '.join(words)[:40]} …", path, line)
    for name, items in (("word", words), ("tag", tags)):
        blank = next((place for place, item in enumerate(items) if not item.strip()), None)
        if blank is not None:
            raise DataError(f"{name} {blank} is empty (counting from 0).", path, line)
    if names:
        tags = [_tag_name(path, line, tag, names) for tag in tags]
    return TaggedSentence(tuple(words), tuple(tags), path, line)


def _split_items(value: Any) -> list[str]:
    if isinstance(value, str):
        return split_columns(value, tab_separated=False) if value.strip() else []
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
        raise DataError(f"expected tag names in '{column}', got numbers ({number}).", path, line, _TAG_NAMES_HINT)
