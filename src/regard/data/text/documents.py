r"""Text documents: a plain file is one document, and so is each JSONL object and each row of Parquet files and tables.

Text is unchanged, including spaces and line breaks, with two exceptions: \r\n becomes \n, and a byte order mark at the
start of a file is removed. Long documents are split into passages, so that no file is loaded as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from regard.data.reader import Reader
from regard.data.text.files import Columns, existing_file, expand_patterns, read_blocks
from regard.data.text.formats import BINARY_SUFFIXES, TABLE_SUFFIXES, file_format
from regard.data.text.tables import ColumnSpec, Samples, SkippedRow, drop_trailing_blanks, iterate_all, iterate_rows
from regard.errors import DataError

PASSAGE_CHARS = 8192  # characters of a passage; longer documents are split
MAX_LINE_SEARCH = 65_536
"""characters to search for a line break before splitting at a space; scaled down for shorter passages"""
MIN_PASSAGE_CHARS, TARGET_PASSAGES = 512, 100
"""Small texts are split into about `TARGET_PASSAGES` shorter passages, because whole passages are held out."""

TEXT_COLUMNS = ("text",)
TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".org", ".tex")  # of plain text in folders


@dataclass(frozen=True, slots=True)
class Passage:
    """A document or a part of a document, with its file and line."""

    text: str
    path: str
    line: int  # first line of the passage; row number in Parquet
    starts_document: bool  # True for the first passage of a document; False: the text continues the previous passage
    after_gap: bool = False
    """True if the text before the passage was removed, for example held out for validation; for the first passage of a
    document, True if the end of the previous document was removed"""
    document: int = field(default=0, compare=False)  # number of the document, from 1


def iterate_texts(data: Sequence[str], columns: Columns = None) -> Iterator[Passage | SkippedRow]:
    """Yield the passages of all files, patterns and folders in input order, and `SkippedRow` for empty documents.

    `columns` may name the text column or key, for example {"text": "body"}."""
    files = text_files(data)
    check_columns(files, columns)
    number = 0
    for item in iterate_all(partial(iterate_passages, size=passage_size(files)), "text", "", files, columns):
        if isinstance(item, Passage):
            number += item.starts_document
            item = replace(item, document=number)
        yield item


def text_files(data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Files of all entries; patterns are replaced by matching files and folders by the text files in them and in all
    subfolders, in sorted order. Hidden files and folders are ignored."""

    def fail(error: OSError) -> None:
        raise DataError(f"cannot be read: {error.strerror or error}.", error.filename) from error

    files: list[str] = []
    for entry in expand_patterns(data):
        folder = os.path.expanduser(entry)
        if not os.path.isdir(folder):
            files.append(entry)
            continue
        found: list[str] = []
        others: list[str] = []
        for parent, folders, names in os.walk(folder, onerror=fail):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if not name.startswith("."):
                    is_text = file_format(name) in (*TEXT_SUFFIXES, *TABLE_SUFFIXES)
                    (found if is_text else others).append(os.path.join(parent, name))
        if not found:
            examples = ", ".join(os.path.relpath(path, folder) for path in sorted(others)[:8])
            problem = f"no text file in this folder; found: {examples}{', …' if len(others) > 8 else ''}."
            suffixes = " ".join((*TEXT_SUFFIXES, *TABLE_SUFFIXES))
            advice = (
                f"Supported in folders: {suffixes}. Select other files with a pattern, for example '{folder}/*.py'."
            )
            raise DataError(problem if others else "the folder is empty.", folder, advice=advice)
        files += sorted(found)
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


def check_columns(files: Sequence[str], columns: Columns) -> None:
    """Raise if `columns` is given for files without columns, or names a column other than text."""
    ColumnSpec(TEXT_COLUMNS, columns)
    if columns and files and not any(file_format(path) in TABLE_SUFFIXES for path in files):
        raise DataError("plain text has no columns.", files[0], advice="Remove --columns.")


def iterate_passages(path: str, columns: Columns = None, size: int | None = None) -> Samples[Passage]:
    """Yield the passages of one file, and the errors of invalid rows and lines."""
    if file_format(path) not in TABLE_SUFFIXES:
        existing_file(path)
        return _split_file(path, size)
    passages = (
        (row,)
        if isinstance(row, DataError)
        else split_document(path, line, (row["text"].replace("\r\n", "\n"),), count_lines=False, size=size)
        for line, row in iterate_rows(path, TEXT_COLUMNS, columns)
    )
    return drop_trailing_blanks(chain.from_iterable(passages))


def _split_file(path: str, size: int | None) -> Samples[Passage]:
    errors: list[DataError] = []
    texts = (text for _, text in read_blocks(path, errors.append))
    for passage in split_document(path, 1, texts, count_lines=True, size=size):
        yield from errors
        errors.clear()
        yield passage
    yield from errors


def split_document(
    path: str, line: int, pieces: Iterable[str], count_lines: bool, size: int | None = None
) -> Iterator[Passage | SkippedRow]:
    """Yield passages of about `size` characters of one document; the result does not depend on the pieces.

    With `count_lines`, line breaks of the text are line breaks of the file, so that passages have different lines."""
    size = size or PASSAGE_CHARS
    reach = MAX_LINE_SEARCH * size // PASSAGE_CHARS
    rest, opens = "", True
    for piece in chain(pieces, (None,)):
        rest += piece or ""
        start = 0
        lookahead = 0 if piece is None else reach + size // 4 + 2  # `_find_cut` examines at most this many characters
        while len(rest) - start > lookahead and (not opens or rest.strip()):
            end = _find_cut(rest, start, size, reach)
            if len(rest) - end < size // 4:
                end = len(rest)
            yield Passage(rest[start:end], path, line, opens)
            line, start, opens = line + count_lines * rest.count("\n", start, end), end, False
        rest = rest[start:]
    if opens:
        yield SkippedRow(path, line)


def _find_cut(text: str, start: int, size: int, reach: int) -> int:
    """Position to split `text`: at a line break, else before a space, else anywhere.

    No pre-token of the GPT-2 tokenizer crosses a split at a line break or a space, so that the tokens are the same as
    without the split."""
    near, far = start + size, start + reach
    if len(text) <= near:
        return len(text)
    for at in _positions(text, "\n", start, near, far):
        if at + 1 < len(text) and _is_token_boundary(text, start, at + 1):
            return at + 1
    if len(text) <= far:
        return len(text)
    return next((at for at in _positions(text, " ", start + 1, near + 1, far) if not _is_space(text[at - 1])), near)


def _positions(text: str, sign: str, start: int, near: int, far: int) -> Iterator[int]:
    """Positions of a sign: from `near` back to `start`, then from `near` on to `far`."""
    at = near
    while (at := text.rfind(sign, start, at)) >= 0:
        yield at
    at = near - 1
    while (at := text.find(sign, at + 1, far)) >= 0:
        yield at


def _is_token_boundary(text: str, start: int, at: int) -> bool:
    r"""True if a split after a line break does not change the GPT-2 tokens.

    The GPT-2 regular expression separates the last whitespace character before a word (a space joins the word) from all
    earlier whitespace, which is one pre-token. A split is safe before the last of several whitespace characters ("a\n|\nb",
    "a \n| b") or after a single one ("a\n|b"), but not after several ("a\n\n|b"), which would become one pre-token."""
    if _is_space(text[at]):
        return at + 1 < len(text) and not _is_space(text[at + 1])
    return at - 2 >= start and not _is_space(text[at - 2])


def _is_space(letter: str) -> bool:
    """True for Unicode whitespace; `str.isspace` also accepts four control characters, which are excluded."""
    return letter.isspace() and not "\x1c" <= letter <= "\x1f"


DOCUMENTS = Reader(
    unit="passages",
    columns=TEXT_COLUMNS,
    sample_type=Passage,
    samples=iterate_texts,
    files=text_files,
    plain_suffix=".txt",
    split_key=lambda passage: passage.text,
    contents=lambda passage: (passage.text,),
    texts=lambda passage: (passage.text,),
    boundaries=lambda passage: (f"{passage.starts_document} {passage.after_gap}",),
    # without a mark if the removed passages begin at a document boundary: the previous document is complete
    mark_gap=lambda passage, removed: replace(
        passage, after_gap=passage.after_gap or not (passage.starts_document and removed.starts_document)
    ),
    min_valid_samples=1,  # a passage has many tokens
)
NUMBERED_DOCUMENTS = replace(
    DOCUMENTS,
    boundaries=lambda passage: (f"{passage.starts_document} {passage.after_gap}", str(passage.document)),
    mark_gap=lambda passage, removed: replace(passage, after_gap=True),
)
"""Documents of masked language modeling, where rows join parts of one document."""


# -- detokenization of public datasets, which contain spaces around punctuation and special markers such as "@-@"
#
# A model trained on natural text expects "the well-known castle (built in 1,200)", not "the well @-@ known castle ( built in
# 1 @,@ 200 )". GPT-2 was evaluated with invertible detokenizers too: the likelihood of the detokenized text is also a
# likelihood of the original. Only spaces and markers are removed, and Penn Treebank quotes become plain quotes. Lines are
# independent, so a text can be detokenized in chunks that end at line breaks.

SpacedToken = tuple[str, bool, bool]  # A token, and two flags: no space before the token, no space after the token

CLOSING = frozenset(",.;:!?)]}%”'″′") | {"..", "....", "?!", "!!"}
OPENING = frozenset("([{“‘„¡¿£€¥₹₤$")
JOINERS = {"@-@": "-", "@,@": ",", "@.@": ".", "—": "—", "/": "/"}  # tokens written without spaces
BETWEEN_NUMBERS = ("–", ":", "×", "⁄")
DOLLAR_PREFIXES = ("US", "C", "CA", "AU", "NZ", "HK", "GB")
CONTRACTIONS = ("s", "t", "re", "ve", "ll", "d", "m")  # Contracted endings after an apostrophe


def count_words(text: str) -> int:
    """Number of words as in WikiText: tokens separated by whitespace, plus one per line break.

    The counts of chunks add up to the count of the text if no word is split."""
    return len(text.split()) + text.count("\n")


def _detokenize_lines(space_tokens: Callable[[list[str]], Iterable[SpacedToken]], text: str) -> str:
    lines = []
    for line in text.split("\n"):
        joined, is_attached = "", True
        for token, no_space_before, no_space_after in space_tokens(line.strip(" ").split(" ")):
            joined += token if no_space_before or is_attached else f" {token}"
            is_attached = no_space_after
        lines.append(joined)
    return "\n".join(lines)


def _wikitext_pieces(tokens: list[str]) -> Iterable[SpacedToken]:
    level = next((place for place, token in enumerate(tokens) if token != "="), len(tokens))
    end = len(tokens) - level
    is_title = end > level and tokens[end:] == ["="] * level and tokens[end - 1] != "="
    marks = level if is_title else 0  # "=" tokens on each side of a section title
    is_open, remaining = {'"': False, "'": False}, {'"': tokens.count('"'), "'": tokens.count("'")}

    def attach_quote(mark: str, before: str, after: str) -> tuple[bool, bool]:
        """Flags of a quote: opening and closing quotes are the same character, so they are distinguished by counting.

        A single quote can also be an apostrophe ("the sisters ' house"): after a letter or digit, if no quotation is open
        and the number of later single quotes is even."""
        remaining[mark] -= 1
        if is_open[mark] and before not in OPENING:
            is_open[mark] = False
            return True, False
        if mark == "'" and remaining[mark] % 2 == 0 and before[-1:].isalnum():
            return (False, True) if after[:1].isdigit() else (True, False)  # the '80s, the sisters'
        is_open[mark] = True
        return False, True

    for at, (before, token, after) in enumerate(zip(["", *tokens], tokens, [*tokens[1:], ""], strict=False)):
        if at < marks or at >= len(tokens) - marks:
            edge = at in (0, len(tokens) - marks)
            yield token, not edge, False
        elif token in JOINERS:
            yield JOINERS[token], True, True
        elif token in ('"', "'"):
            yield token, *attach_quote(token, before, after)
        elif token == "’":
            yield token, True, after in CONTRACTIONS
        elif token in BETWEEN_NUMBERS and before[-1:].isdigit() and after[:1].isdigit():
            yield token, True, True
        elif token == "°":
            yield token, after not in ("C", "F"), after in ("C", "F")
        elif token in ("#", "−"):
            yield token, False, after[:1].isdigit() and not before[-1:].isdigit()
        elif token in OPENING:
            yield token, token == "$" and before in DOLLAR_PREFIXES, True
        else:
            # "O 'Brien" and "it 's": an apostrophe followed by letters never opens a quotation in WikiText
            yield token, token in CLOSING or (token[0:1] == "'" and len(token) > 1), False


def _ptb_pieces(tokens: list[str]) -> Iterable[SpacedToken]:
    """Penn Treebank: the original, or the lowercased version with N for numbers."""
    written = {"``": '"', "''": '"', "-lrb-": "(", "-rrb-": ")", "-lcb-": "{", "-rcb-": "}"}
    for token in tokens:
        name = token.lower()
        text = written.get(name, token)
        opens = name == "``" or text in OPENING or text == "#" or text.endswith("$")
        closes = name in ("''", "n't") or text in CLOSING or (text[0:1] == "'" and len(text) > 1)
        yield text, closes, opens


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": str,
    "wikitext": partial(_detokenize_lines, _wikitext_pieces),
    "ptb": partial(_detokenize_lines, _ptb_pieces),
}
