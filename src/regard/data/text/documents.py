r"""Documents of text: a plain file is one, and so is each object of JSON lines, each row of Parquet or of a table.

Text is kept exactly as it is written, blanks and line ends too, but for two things: \r\n becomes \n, and a byte order mark
at the start of a file is left out. Long documents come as several passages, so that no file is ever in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from regard.data.sources import expand_patterns
from regard.data.text.columns import ColumnSpec
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_blocks
from regard.data.text.tables import JSON_SUFFIXES, PARQUET_SUFFIXES, SkippedRow, file_format, iterate_rows
from regard.errors import DataError

PASSAGE_CHARS = 8192
"""characters beyond which a document is divided"""
MAX_LINE_SEARCH = 65_536
"""characters in which a line end is looked for before a blank will do; fewer where passages are shorter"""
MIN_PASSAGE_CHARS, TARGET_PASSAGES = 512, 100
"""Passages of small texts are shorter, down to this, so that there are so many of them: a few are held out, by the passage."""

TEXT_COLUMNS = ("text",)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex")
"""Suffixes of plain text that are read in a folder; a file that is named by itself may have any other as well."""
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", *JSON_SUFFIXES, *PARQUET_SUFFIXES)
"""Suffixes of files with columns, of which one is the text."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A document or a part of one, and where it was read."""

    text: str
    path: str
    line: int
    """where it begins; the row, in Parquet"""
    starts_document: bool
    """whether a document begins here; else the text goes on where the passage before it ended"""
    after_gap: bool = False
    """what stood before it was taken out (held out for validation, say); where a document begins here, the end of the one
    before"""
    document: int = field(default=0, compare=False)
    """the number of its document among all that were read, from 1: it is known even where the beginning was taken out"""


def iterate_texts(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Passage | SkippedRow]:
    """The documents of every file, pattern of files, or folder, in the order given; those that are blank are `Empty`.

    `columns` may say which column or key holds the text, as {"text": "body"}.
    """
    files = text_files(data)
    if not files:
        raise DataError("No data given.", advice="Pass at least one file or folder.")
    check_columns(files, columns)
    found = empty = number = 0
    size = passage_size(files)
    for path in files:
        for item in iterate_passages(path, columns, size=size):
            if isinstance(item, Passage):
                found, number = found + 1, number + item.starts_document
                yield replace(item, document=number)
            else:
                empty += 1
                yield item
    if not found:
        reason = "the data contains no rows"
        if empty:
            reason = f"all {empty} documents are empty" if empty > 1 else "the document is empty"
        raise DataError(f"no text found: {reason}.", ", ".join(files))


def text_files(data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Patterns replaced by the files that they match, and folders by the files of text below them, in sorted order."""
    found: list[str] = []
    for entry in expand_patterns(data):
        folder = os.path.expanduser(entry)
        found += _text_files_below(folder) if os.path.isdir(folder) else [entry]
    return found


def passage_size(files: Sequence[str]) -> int:
    """The characters of a passage, by the size of the files; a power of two, so that most of what is added changes nothing."""
    total = 0
    for path in map(os.path.expanduser, files):
        if not os.path.isfile(path):  # a pipe has no size, and what is not there is complained of when it is read
            return PASSAGE_CHARS
        zipped = path.endswith((".gz", *PARQUET_SUFFIXES))
        total += os.path.getsize(path) * (3 if zipped else 1)
    size = PASSAGE_CHARS
    while size > MIN_PASSAGE_CHARS and size * TARGET_PASSAGES > total:
        size //= 2
    return size


def check_columns(files: Sequence[str], columns: Mapping[str, str] | None) -> None:
    """Refuse a choice of columns where no file has any, or of another than the text."""
    ColumnSpec(TEXT_COLUMNS, columns)
    if columns and not any(file_format(path) in TABLE_SUFFIXES for path in files):
        raise DataError("plain text has no columns.", files[0], advice="Remove --columns.")


def iterate_passages(
    path: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error, size: int | None = None
) -> Iterator[Passage | SkippedRow]:
    """Those of one file. Rows and lines that are complained of are left out, where `complain` does not raise."""
    if file_format(path) in TABLE_SUFFIXES:
        rows = iterate_rows(path, TEXT_COLUMNS, columns, on_error)
        return _passages_from_rows(path, ((line, row["text"].replace("\r\n", "\n")) for line, row in rows), size)
    existing_file(path)
    return split_document(path, 1, (text for _, text in read_blocks(path, on_error)), count_lines=True, size=size)


def _passages_from_rows(path: str, rows: Iterable[tuple[int, str]], size: int | None) -> Iterator[Passage | SkippedRow]:
    blank: list[SkippedRow] = []  # held back: blank lines at the end of a file are no lost documents
    for line, text in rows:
        if not text.strip():
            blank.append(SkippedRow(path, line))
            continue
        yield from blank
        blank.clear()
        yield from split_document(path, line, (text,), count_lines=False, size=size)


def split_document(
    path: str, line: int, pieces: Iterable[str], count_lines: bool, size: int | None = None
) -> Iterator[Passage | SkippedRow]:
    """One document, given in pieces, as passages of about `size` characters. How it comes in pieces changes nothing.

    `counted`: a line end in the text is one of the file, so that passages have lines of their own.
    """
    size = size or PASSAGE_CHARS
    reach = MAX_LINE_SEARCH * size // PASSAGE_CHARS
    rest, opens = "", True
    for piece in pieces:
        rest += piece
        if opens and not rest.strip():
            continue
        start = 0
        while len(rest) - start > reach + size // 4 + 2:  # the longest text that `_find_cut` examines
            end = _passage_end(rest, start, size, reach)
            yield Passage(rest[start:end], path, line, opens)
            line, start, opens = line + count_lines * rest.count("\n", start, end), end, False
        rest = rest[start:]
    if opens and not rest.strip():
        yield SkippedRow(path, line)
        return
    start = 0
    while start < len(rest):
        end = _passage_end(rest, start, size, reach)
        yield Passage(rest[start:end], path, line, opens)
        line, start, opens = line + count_lines * rest.count("\n", start, end), end, False


def _passage_end(text: str, start: int, size: int, reach: int) -> int:
    """Where the passage that begins here ends. Less than a quarter of one is never left over: it belongs to the last."""
    end = _find_cut(text, start, size, reach)
    return len(text) if len(text) - end < size // 4 else end


def _find_cut(text: str, start: int, size: int, reach: int) -> int:
    """Where `text` can be cut.

    At a line end if there is one, and where no token of GPT-2 reaches over the cut, so that its tokens are those of the
    whole; else before a blank, where the same holds; else anywhere.
    """
    near, far = start + size, start + reach
    if len(text) <= near:
        return len(text)
    at = near
    while (at := text.rfind("\n", start, at)) >= 0:
        if _is_token_boundary(text, start, at + 1):
            return at + 1
    at = near - 1
    while 0 <= (at := text.find("\n", at + 1, far)) < len(text) - 1:
        if _is_token_boundary(text, start, at + 1):
            return at + 1
    if len(text) <= far:
        return len(text)
    at = near + 1
    while (at := text.rfind(" ", start + 1, at)) >= 0:
        if not _is_space(text[at - 1]):
            return at
    at = near
    while (at := text.find(" ", at + 1, far)) >= 0:
        if not _is_space(text[at - 1]):
            return at
    return near


def _is_token_boundary(text: str, start: int, at: int) -> bool:
    r"""Whether the tokens before and behind a line end are those of the whole text.

    The expression by which GPT-2 divides text takes the last blank before a word by itself (or with the word, if it is a
    space), and all blanks before that as one. So a cut may stand before the last of several blanks, as in "a\n|\nb" and
    "a \n| b", or behind a single one, as in "a\n|b"; not behind several, as in "a\n\n|b", which would be one token then.
    """
    if _is_space(text[at]):
        return at + 1 < len(text) and not _is_space(text[at + 1])
    return at - 2 >= start and not _is_space(text[at - 2])


def _is_space(letter: str) -> bool:
    """Whether Unicode has it as white space: Python also counts four separators that are control characters."""
    return letter.isspace() and not "\x1c" <= letter <= "\x1f"


def _text_files_below(folder: str) -> list[str]:
    """The files of text in a folder and the folders inside it, without those that are hidden."""

    def fail(error: OSError) -> None:
        raise DataError(f"cannot be read: {error.strerror or error}.", error.filename) from error

    found: list[str] = []
    others: list[str] = []
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                known = file_format(name) in (*TEXT_SUFFIXES, *TABLE_SUFFIXES)
                (found if known else others).append(os.path.join(place, name))
    if not found:
        some = ", ".join(os.path.relpath(path, folder) for path in sorted(others)[:8])
        held = f"no text file in this folder; found: {some}{', …' if len(others) > 8 else ''}."
        suffixes = " ".join((*TEXT_SUFFIXES, *TABLE_SUFFIXES))
        advice = f"Supported in folders: {suffixes}. Select other files with a pattern, for example '{folder}/*.py'."
        raise DataError(held if others else "the folder is empty.", folder, advice=advice)
    return sorted(found)
