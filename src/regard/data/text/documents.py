r"""Text documents: a plain file is one document, and so is each JSONL object and each row of Parquet files and tables.

Text is unchanged, including spaces and line breaks, with two exceptions: \r\n becomes \n, and a byte order mark at the
start of a file is removed. Long documents are split into passages, so that no file is loaded as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from regard.data.reader import Reader
from regard.data.sources import expand_patterns
from regard.data.text.files import ErrorHandler, existing_file, raise_error, read_blocks
from regard.data.text.formats import BINARY_SUFFIXES, TABLE_SUFFIXES, Row, file_format
from regard.data.text.tables import ColumnSpec, SkippedRow, drop_trailing_blanks, iterate_rows
from regard.errors import DataError

PASSAGE_CHARS = 8192
"""characters of a passage; longer documents are split"""
MAX_LINE_SEARCH = 65_536
"""characters to search for a line break before splitting at a space; scaled down for shorter passages"""
MIN_PASSAGE_CHARS, TARGET_PASSAGES = 512, 100
"""Small texts are split into about `TARGET_PASSAGES` shorter passages, because whole passages are held out."""

TEXT_COLUMNS = ("text",)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex")
"""Extensions of plain text files in folders; a file passed by name may have any extension."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A document or a part of a document, with its file and line."""

    text: str
    path: str
    line: int
    """first line of the passage; row number in Parquet"""
    starts_document: bool
    """True for the first passage of a document; False: the text continues the previous passage"""
    after_gap: bool = False
    """True if the text before the passage was removed, for example held out for validation; for the first passage of a
    document, True if the end of the previous document was removed"""
    document: int = field(default=0, compare=False)
    """number of the document, from 1, valid even if the beginning of the document was removed"""


def iterate_texts(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Passage | SkippedRow]:
    """Yield the passages of all files, patterns and folders in input order, and `SkippedRow` for empty documents.

    `columns` may name the text column or key, for example {"text": "body"}.
    """
    files = text_files(data)
    if not files:
        raise DataError("No data given.", advice="Pass at least one file or folder.")
    check_columns(files, columns)
    passages = empty = number = 0
    size = passage_size(files)
    for path in files:
        for item in iterate_passages(path, columns, size=size):
            if isinstance(item, Passage):
                passages, number = passages + 1, number + item.starts_document
                yield replace(item, document=number)
            else:
                empty += 1
                yield item
    if not passages:
        reason = "the data contains no rows"
        if empty:
            reason = f"all {empty} documents are empty" if empty > 1 else "the document is empty"
        raise DataError(f"no text found: {reason}.", ", ".join(files))


def text_files(data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Files of all entries; patterns are replaced by matching files and folders by their text files, in sorted order."""
    files: list[str] = []
    for entry in expand_patterns(data):
        folder = os.path.expanduser(entry)
        files += _text_files_below(folder) if os.path.isdir(folder) else [entry]
    return files


def passage_size(files: Sequence[str]) -> int:
    """Characters per passage for these files; a power of two, so that adding some data rarely changes the passages."""
    total = 0
    for path in map(os.path.expanduser, files):
        if not os.path.isfile(path):  # a pipe has no size; missing files raise later
            return PASSAGE_CHARS
        zipped = path.endswith((".gz", *BINARY_SUFFIXES))
        total += os.path.getsize(path) * (3 if zipped else 1)
    size = PASSAGE_CHARS
    while size > MIN_PASSAGE_CHARS and size * TARGET_PASSAGES > total:
        size //= 2
    return size


def check_columns(files: Sequence[str], columns: Mapping[str, str] | None) -> None:
    """Raise if `columns` is given for files without columns, or names a column other than text."""
    ColumnSpec(TEXT_COLUMNS, columns)
    if columns and not any(file_format(path) in TABLE_SUFFIXES for path in files):
        raise DataError("plain text has no columns.", files[0], advice="Remove --columns.")


def iterate_passages(
    path: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error, size: int | None = None
) -> Iterator[Passage | SkippedRow]:
    """Yield the passages of one file. Invalid rows and lines are skipped if `on_error` does not raise."""
    if file_format(path) in TABLE_SUFFIXES:
        rows = iterate_rows(path, TEXT_COLUMNS, columns, on_error)
        return drop_trailing_blanks(path, _passages_from_rows(path, rows, size))
    existing_file(path)
    return split_document(path, 1, (text for _, text in read_blocks(path, on_error)), count_lines=True, size=size)


def _passages_from_rows(
    path: str, rows: Iterable[Row], size: int | None
) -> Iterator[tuple[int, Passage | SkippedRow | None]]:
    for line, row in rows:
        text = row["text"].replace("\r\n", "\n")
        if text.strip():
            yield from ((line, item) for item in split_document(path, line, (text,), count_lines=False, size=size))
        else:
            yield line, None


def split_document(
    path: str, line: int, pieces: Iterable[str], count_lines: bool, size: int | None = None
) -> Iterator[Passage | SkippedRow]:
    """Yield passages of about `size` characters of one document; the result does not depend on the pieces.

    With `count_lines`, line breaks of the text are line breaks of the file, so that passages have different lines.
    """
    size = size or PASSAGE_CHARS
    reach = MAX_LINE_SEARCH * size // PASSAGE_CHARS
    rest, opens = "", True
    for piece in pieces:
        rest += piece
        if opens and not rest.strip():
            continue
        start = 0
        while len(rest) - start > reach + size // 4 + 2:  # `_find_cut` examines at most this many characters
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
    """End of the passage that begins at `start`. A rest shorter than a quarter of `size` is added to the passage."""
    end = _find_cut(text, start, size, reach)
    return len(text) if len(text) - end < size // 4 else end


def _find_cut(text: str, start: int, size: int, reach: int) -> int:
    """Position to split `text`: at a line break, else before a space, else anywhere.

    No pre-token of the GPT-2 tokenizer crosses a split at a line break or a space, so that the tokens are the same as
    without the split.
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
    r"""True if a split after a line break does not change the GPT-2 tokens.

    The GPT-2 regular expression separates the last whitespace character before a word (a space joins the word) from all
    earlier whitespace, which is one pre-token. A split is safe before the last of several whitespace characters ("a\n|\nb",
    "a \n| b") or after a single one ("a\n|b"), but not after several ("a\n\n|b"), which would become one pre-token.
    """
    if _is_space(text[at]):
        return at + 1 < len(text) and not _is_space(text[at + 1])
    return at - 2 >= start and not _is_space(text[at - 2])


def _is_space(letter: str) -> bool:
    """True for Unicode whitespace; `str.isspace` also accepts four control characters, which are excluded."""
    return letter.isspace() and not "\x1c" <= letter <= "\x1f"


def _text_files_below(folder: str) -> list[str]:
    """Text files in a folder and all subfolders, except hidden files and folders."""

    def fail(error: OSError) -> None:
        raise DataError(f"cannot be read: {error.strerror or error}.", error.filename) from error

    files: list[str] = []
    others: list[str] = []
    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                is_text = file_format(name) in (*TEXT_SUFFIXES, *TABLE_SUFFIXES)
                (files if is_text else others).append(os.path.join(parent, name))
    if not files:
        examples = ", ".join(os.path.relpath(path, folder) for path in sorted(others)[:8])
        problem = f"no text file in this folder; found: {examples}{', …' if len(others) > 8 else ''}."
        suffixes = " ".join((*TEXT_SUFFIXES, *TABLE_SUFFIXES))
        advice = f"Supported in folders: {suffixes}. Select other files with a pattern, for example '{folder}/*.py'."
        raise DataError(problem if others else "the folder is empty.", folder, advice=advice)
    return sorted(files)


def _mark_gap(passage: Passage, removed: Passage) -> Passage:
    """Without a mark if the removed passages begin at a document boundary: the previous document is complete."""
    complete = passage.starts_document and removed.starts_document
    return passage if complete else replace(passage, after_gap=True)


DOCUMENTS = Reader(
    unit="passages",
    columns=TEXT_COLUMNS,
    sample_type=Passage,
    samples=iterate_texts,
    files=text_files,
    split_key=lambda passage: passage.text,
    contents=lambda passage: (passage.text,),
    texts=lambda passage: (passage.text,),
    boundaries=lambda passage: (f"{passage.starts_document} {passage.after_gap}",),
    mark_gap=_mark_gap,
    min_valid_samples=1,  # a passage has many tokens
)
NUMBERED_DOCUMENTS = replace(
    DOCUMENTS,
    boundaries=lambda passage: (f"{passage.starts_document} {passage.after_gap}", str(passage.document)),
    mark_gap=lambda passage, removed: replace(passage, after_gap=True),
)
"""Documents of masked language modeling, where rows join parts of one document."""
