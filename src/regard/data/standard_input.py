"""Standard input in place of a file (`-`): its format, and its content as a saved file."""

from __future__ import annotations

import io
import json
import re
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from regard.data.memory_tables import save_stream
from regard.data.reader import Reader
from regard.data.text.files import STDIN_NAME, binary_kind
from regard.data.text.formats import ALL_TABLE_SUFFIXES
from regard.errors import DataError, SettingError, UnknownNameError

STDIN_ARGUMENT = "-"
PEEK_BYTES = 1 << 16  # bytes that are examined before the bytes are read
MIN_LONG_LINE = 1 << 12  # minimum bytes of an examined part without a line break

_JSON_START = re.compile(r'\{\s*"|\[\s*[{[]')


class _ArrivingBytes(io.RawIOBase):
    """Bytes of standard input as they arrive; a terminal gives one line at a time."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        source: Any = sys.stdin.buffer
        part = source.read1(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def open_stdin(hint: str = "Reading standard input; Ctrl-D ends.") -> io.BufferedReader:
    """Standard input as bytes. `hint` is printed in a terminal."""
    if sys.stdin.isatty():
        print(hint, file=sys.stderr)
    return io.BufferedReader(_ArrivingBytes(), PEEK_BYTES)


def peek_content(stream: io.BufferedReader) -> bytes:
    """First bytes of a stream, which is not changed; a gzipped stream is unpacked."""
    first = stream.peek(PEEK_BYTES)
    if first.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):  # reading the content reports the error
            return zlib.decompressobj(31).decompress(first, PEEK_BYTES)
    return first


def peek_text(stream: io.BufferedReader) -> str:
    """Start of a stream as text, without empty lines."""
    return peek_content(stream).decode("utf-8-sig", "replace").lstrip("\r\n")


def detect_json(start: str) -> Literal["", "object", "document"]:
    """Kind of JSON at the start of a text: an object on the first line, or a document of several lines or objects."""
    line, end, _ = start.partition("\n")
    if line.strip() in ("{", "["):
        return "document"
    if not end and len(line) >= MIN_LONG_LINE and _JSON_START.match(line):  # the line is not complete
        return "object"
    try:
        value = json.loads(line) if _JSON_START.match(line) else None
    except (ValueError, RecursionError):
        return ""
    return "object" if isinstance(value, dict) else "document" if isinstance(value, list) else ""


def detect_suffix(stream: io.BufferedReader, reader: Reader) -> str:
    """File extension of the format of training data, from its first line; raise `DataError` for an unknown format."""
    start = peek_text(stream)
    line, kind = start.partition("\n")[0].rstrip("\r"), detect_json(start)
    if start.startswith("PAR1"):
        return ".parquet"
    if not start:
        raise DataError("is empty.", STDIN_NAME)
    if kind == "object" or (kind and reader.plain_suffix != ".txt"):
        return ".json"
    if reader.plain_suffix == ".txt":  # documents, which may contain tabs and commas
        return ".txt"
    if "\0" in start or binary_kind(peek_content(stream)):
        return ".txt"  # the reader reports the encoding
    if "\t" in line:
        return ".tsv"
    if "," in line and not (reader.plain_suffix and " " in line):
        return ".csv"
    if reader.plain_suffix:
        return reader.plain_suffix
    advice = "Name the format, for example with --format csv."
    raise DataError(f"the format cannot be detected in the first line ('{line:.40}').", STDIN_NAME, advice=advice)


def named_suffix(form: str, reader: Reader) -> str:
    """File extension of a format of `--format`."""
    suffix, known = f".{form.lower().removeprefix('.')}", dict.fromkeys((*ALL_TABLE_SUFFIXES, *reader.table_suffixes))
    if suffix not in known:
        raise UnknownNameError("value of --format", form, [name[1:] for name in known])
    return suffix


def uses_stdin(form: str | None, *entries: str) -> bool:
    """True if one of the entries is standard input. Raise `SettingError` if several are, or for a format without it."""
    count = entries.count(STDIN_ARGUMENT)
    if count > 1:
        raise SettingError("Standard input (-) can be used only once. Pass a file in its place.")
    if form is not None and not count:
        raise SettingError("--format is only for standard input (-); the format of a file is its extension.")
    return count == 1


def save_stdin(reader: Reader, form: str | None, *groups: Sequence[str]) -> list[list[str]]:
    """Data entries with the saved file of standard input in place of `-`, for a reader of training data."""
    if not uses_stdin(form, *(entry for group in groups for entry in group)):
        return [list(group) for group in groups]
    suffix = named_suffix(form, reader) if form is not None else ""
    with open_stdin() as stream:
        path = save_stream(stream, suffix or detect_suffix(stream, reader))
    return [[path if entry == STDIN_ARGUMENT else entry for entry in group] for group in groups]
