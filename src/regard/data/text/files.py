"""Text files as numbered lines or in blocks: plain or gzipped, strict UTF-8; errors report the first invalid byte.

Data arguments are a file, two parallel files 'SRC:TGT', or patterns, such as 'data/*.tsv'. An existing path is used
literally, even if the path contains wildcards; only other paths are expanded as patterns.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import io
import os
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from regard.errors import PLACES, DataError, suggest

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_GZIP_ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)

BLOCK_BYTES = 1 << 18  # bytes decoded at once
STDIN_NAME = "standard input"

_BINARY_MAGIC = {
    b"PK\x03\x04": "a zip archive (such as .xlsx, .docx or .npz)",
    b"PAR1\x15": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"%PDF-": "a PDF",
    b"\x89PNG": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"GIF8": "an image (GIF)",
    b"BZh91AY&SY": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    _GZIP: "gzipped twice",
}

_WILDCARD = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]")  # any folders, any characters, one character, one of a set
_PATTERN_HINT = (
    "Patterns support * ? [abc] and **/ (folders at any depth). Quote patterns so that the shell does not expand them."
)

_URL = re.compile(r"[A-Za-z][\w+.-]+://\S+")

WildcardMatch = tuple[str, ...]  # Text matched by each wildcard of a pattern, for one file

Columns = Mapping[str, str] | None  # column names of the user by column of the reader
ErrorHandler = Callable[[DataError], None]
"""Called with the error of an invalid line. If the handler does not raise, reading continues."""


def raise_error(error: DataError) -> None:
    """Default handler: stop at the first invalid line."""
    raise error


def read_lines(
    path: str | Path, on_error: ErrorHandler = raise_error, stream: io.BufferedReader | None = None
) -> Iterator[tuple[int, str]]:
    r"""Yield line numbers from 1 and lines without line breaks; with `stream` of this open stream, which may be empty.

    Only \n and \r\n are line breaks. `str.splitlines` also splits at U+2028, \x0b and others, which occur inside
    sentences and would shift the lines of two parallel files."""
    path = existing_file(path) if stream is None else Path(path)
    number = 0
    with _open_text(path, stream) as (text_stream, zipped, offset):
        try:
            for number, raw in enumerate(text_stream, start=1):
                text, _ = _decode_line(path, raw, number, offset, zipped, on_error)
                offset += len(raw)
                yield number, text.removesuffix("\r\n").removesuffix("\n")
        except _GZIP_ERRORS as error:
            raise _gzip_error(path, number + 1, error) from error
    if not number and stream is None:
        raise DataError("the file is empty.", path)


def read_blocks(
    path: str | Path, on_error: ErrorHandler = raise_error, stream: io.BufferedReader | None = None
) -> Iterator[tuple[int, str]]:
    r"""Yield the text of a file or `stream` in blocks, each with the number of its first line; an empty file has no blocks.

    Blocks end at line breaks, except in lines longer than a block, so that files and lines can have any size. \r\n becomes
    \n, and a byte order mark is removed. If `on_error` does not raise, an invalid line becomes an empty line."""
    path = existing_file(path) if stream is None else Path(path)
    with _open_text(path, stream) as (text_stream, zipped, offset):
        number, kept = 1, b""
        while True:
            try:
                read = text_stream.read(BLOCK_BYTES)
            except _GZIP_ERRORS as error:
                raise _gzip_error(path, number + kept.count(b"\n"), error) from error
            raw = kept + read
            # without a line break, the end of the last complete character except a final \r
            end = raw.rfind(b"\n") + 1 or codecs.utf_8_decode(raw.removesuffix(b"\r"), "replace")[1]
            end = end if read else len(raw)
            raw, kept = raw[:end], raw[end:]
            if raw:
                yield number, _decode_block(path, raw, number, offset, zipped, on_error)
            number, offset = number + raw.count(b"\n"), offset + len(raw)
            if not read:
                return


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last list may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def reject_url(text: str | Path, advice: str = "") -> None:
    """Raise `DataError` for a URL in place of a path."""
    if is_url(str(text)):
        raise DataError("URLs are not supported.", str(text), advice=f"Download the file and pass its path.{advice}")


def existing_file(path: str | Path) -> Path:
    """Path of an existing file; otherwise raise `DataError` with the most similar file name."""
    reject_url(path)
    path = Path(os.path.expanduser(path))
    # os.path, because Path.exists raises for too long names and for folders without permission.
    if os.path.isdir(path):
        names = [name for name in _list_folder(path) if os.path.isfile(path / name)]
        listed = f"Files in the folder: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}."
        advice = listed if names else "The folder contains no files."
        raise DataError("expected a file, got a folder.", path, advice=advice)
    if os.path.exists(path):
        return path
    if os.path.islink(path):
        raise DataError(f"broken link: '{os.readlink(path)}' does not exist.", path)
    if not os.path.isdir(path.parent):
        raise DataError(f"file not found; the folder '{path.parent}' does not exist.", path)
    names = _list_folder(path.parent)
    advice = suggest(path.name, names)
    if len(names) > 20 and not advice.startswith("Did"):  # without a similar name, `suggest` lists all files
        advice = f"No file in '{path.parent}' has a similar name."
    raise DataError("file not found.", path, advice=advice)


def _list_folder(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except PermissionError as error:
        raise DataError("cannot list the folder: permission denied.", folder) from error


@contextmanager
def _open_text(path: Path, source: io.BufferedReader | None) -> Iterator[tuple[BinaryIO, bool, int]]:
    """Stream of uncompressed bytes of a file, or of the open file `source`, after a byte order mark, True if the file is
    gzipped, and the length of the mark. Raise `DataError` for a binary format or UTF-16."""
    try:
        with open(path, "rb") if source is None else source as plain:
            zipped = plain.peek(2)[:2] == _GZIP
            stream = gzip.GzipFile(fileobj=plain) if zipped else plain
            try:
                first = stream.peek(16)
            except _GZIP_ERRORS as error:
                raise _gzip_error(path, 1, error) from error
            if kind := binary_kind(first):
                unpack = "Export or unpack the file as plain text or gzip."
                advice = "Rename the file to .parquet." if "Parquet" in kind else unpack
                raise DataError(f"not a text file: the content is {kind}.", path, advice=advice)
            if first.startswith(_UTF16):
                advice = f"Convert the file: {_iconv_command(path, zipped, 'UTF-16')}"
                raise DataError("expected UTF-8, got UTF-16.", path, 1, advice)
            mark = stream.read(len(_BOM)) if first.startswith(_BOM) else b""
            yield cast(BinaryIO, stream), zipped, len(mark)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path) from error


def binary_kind(first: bytes) -> str:
    """Binary format of a file by its first bytes; empty if unknown."""
    return next((kind for magic, kind in _BINARY_MAGIC.items() if first.startswith(magic)), "")


def _decode_line(
    path: Path, raw: bytes, number: int, offset: int, zipped: bool, on_error: ErrorHandler
) -> tuple[str, bool]:
    """Text of a line, and False after an error."""
    is_valid = b"\0" not in raw
    if not is_valid:
        advice = f"If the encoding is UTF-16 or UTF-32, convert the file: {_iconv_command(path, zipped, 'UTF-16')}"
        on_error(DataError("not a text file: contains NUL bytes.", path, number, advice, "encoding"))
    try:
        return raw.decode("utf-8"), is_valid
    except UnicodeDecodeError as error:
        place = f"byte offset {offset + error.start}{' after unzipping' if zipped else ''}"
        problem = f"invalid UTF-8: byte 0x{raw[error.start]:02x} at {place}."
        command = _iconv_command(path, zipped, "WINDOWS-1252")
        advice = f"Convert the file from its actual encoding, for example: {command}"
        on_error(DataError(problem, path, number, advice, "encoding"))
        return raw.decode("utf-8", "replace"), False


def _decode_block(path: Path, raw: bytes, number: int, offset: int, zipped: bool, on_error: ErrorHandler) -> str:
    if b"\0" not in raw:
        with suppress(UnicodeDecodeError):
            return raw.decode("utf-8").replace("\r\n", "\n")
    lines = []
    for count, line in enumerate(io.BytesIO(raw)):  # decode each line separately to find the invalid lines
        text, is_valid = _decode_line(path, line, number + count, offset, zipped, on_error)
        offset += len(line)
        lines.append(text.replace("\r\n", "\n") if is_valid else "\n" * text.endswith("\n"))
    return "".join(lines)


def _gzip_error(path: Path, line: int, error: Exception) -> DataError:
    advice = "Copy or download the file again. To test a gzip file, use gzip -t."
    return DataError(f"damaged gzip file ({error}).", path, line, advice)


def _iconv_command(path: Path, zipped: bool, encoding: str) -> str:
    if str(path) in (STDIN_NAME, *PLACES):
        return f"iconv -f {encoding} -t UTF-8"
    name = path.with_suffix("") if path.suffix == ".gz" else path
    new = shlex.quote(str(name.with_suffix(".utf8" + name.suffix)))
    old = shlex.quote(str(path))
    convert = f"iconv -f {encoding} -t UTF-8"
    return f"gzip -dc {old} | {convert} > {new}" if zipped else f"{convert} {old} > {new}"


# -- data arguments


def expand_patterns(entries: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """Entries with every pattern replaced by the matching files in sorted order; other entries are unchanged."""
    paths = [entries] if isinstance(entries, str | os.PathLike) else entries
    texts = [os.fspath(entry) for entry in paths]
    for text in texts:
        reject_url(text)
    return [name for text in texts for name in (_expand_entry(text) if _WILDCARD.search(text) else [text])]


def split_parallel(entry: str) -> tuple[str, str] | None:
    """The two paths of 'SRC:TGT', or None for a single file. Among several colons, existing files decide."""
    if ":" not in entry or _find_matches(entry):
        return None
    places = [place for place, letter in enumerate(entry) if letter == ":"]
    splits = [(entry[:place], entry[place + 1 :]) for place in places]
    source, target = max(splits, key=lambda sides: sum(bool(_find_matches(side)) for side in sides))
    if not source or not target:
        raise DataError("one side of the colon is empty.", entry, advice="Pass two parallel files as SRC:TGT.")
    return source, target


def _expand_entry(entry: str) -> list[str]:
    sides = split_parallel(entry)
    if sides is None:
        return sorted(_require_matches(entry))
    if not any(map(_is_pattern, sides)):
        return [entry]
    source, target = ({match: name for name, match in _require_matches(side).items()} for side in sides)
    if len(source) == len(target) == 1 and not all(map(_is_pattern, sides)):
        return [f"{next(iter(source.values()))}:{next(iter(target.values()))}"]
    for these, those, other in ((source, target, sides[1]), (target, source, sides[0])):
        for match, name in sorted(these.items()):
            if match not in those:
                matched = f" with {', '.join(map(repr, match))} for the wildcards" if match else ""
                raise DataError(
                    f"no matching file: '{other}' matches no file{matched}. "
                    f"Files left of the colon: {len(source)}, right of the colon: {len(target)}.",
                    name,
                    advice="Wildcards must match the same text on both sides of the colon.",
                )
    return [f"{name}:{target[match]}" for match, name in sorted(source.items(), key=lambda item: item[1])]


def _require_matches(side: str) -> dict[str, WildcardMatch]:
    """Files of a path or pattern, each with the text of the wildcards; raise `DataError` if a pattern matches no file."""
    if not _is_pattern(side):
        return {side: ()}
    matches = _find_matches(side)
    if not matches:
        raise DataError("no file matches this pattern.", side, advice=_PATTERN_HINT)
    return matches


def _is_pattern(side: str) -> bool:
    return bool(_WILDCARD.search(side)) and not os.path.lexists(os.path.expanduser(side))


def _find_matches(side: str) -> dict[str, WildcardMatch]:
    """Existing files of a path or pattern, possibly none. As in a shell, wildcards do not match hidden files."""
    side = os.path.expanduser(side)
    if not _is_pattern(side):
        return {side: ()} if os.path.lexists(side) else {}
    # the longest existing folder is literal: its name may contain brackets
    slashes = (place for place in range(len(side) - 1, -1, -1) if side[place] == "/")
    start = next((place + 1 for place in slashes if os.path.isdir(side[: place + 1])), 0)
    folder, pattern = side[:start], side[start:]
    parts, end = [], 0  # regular expression with one group per wildcard
    for sign in _WILDCARD.finditer(pattern):
        parts.append(re.escape(pattern[end : sign.start()]))
        text, end = sign.group(), sign.end()
        if text.startswith("["):
            inside = text[1:-1].replace("\\", r"\\").replace("[", r"\[")
            inside = f"^{inside[1:]}" if inside.startswith("!") else inside.replace("^", r"\^")
            parts.append(f"([{inside}])")
        else:
            parts.append({"**/": "((?:.*/)?)", "**": "(.*)", "?": "([^/])"}.get(text, "([^/]*)"))
    form = re.compile("".join(parts) + re.escape(pattern[end:]), re.DOTALL)
    matches: dict[str, WildcardMatch] = {}
    for name in glob.iglob(pattern, root_dir=folder or None, recursive=True):
        path, match = os.path.join(folder, name), form.fullmatch(name)
        if match is not None and not os.path.isdir(path):
            matches[path] = match.groups(default="")
    return matches
