"""Files of images and point clouds: recursive listing in sorted order, matching of two folders by name, and reading."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from regard.data.text.files import reject_url
from regard.errors import DataError

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".avif", ".jp2", ".tga",
)  # fmt: skip
DEPTH_SUFFIXES = (".png", ".npy", ".tif", ".tiff", ".pfm", ".pgm")
CLASS_FILES = ("classes.json", "classes.txt")  # Files that list class names; they are never samples.
README_FILES = ("readme.txt", "license.txt", "licence.txt")
"""Files that are never samples, although .txt can also be a point cloud."""
SYSTEM_FILES = ("__MACOSX", "@eaDir", "Thumbs.db", "desktop.ini")
"""Files and folders that operating systems create; treated as hidden."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    parts: tuple[str, ...]  # path relative to the walked folder, split into names
    reason: str = ""  # reason to skip the file; empty if its name has one of the requested extensions

    @property
    def name(self) -> str:
        return "/".join(self.parts)

    @property
    def stem(self) -> str:
        """`name` without the file extension."""
        return os.path.splitext(self.name)[0]


def walk_files(
    folder: str,
    suffixes: Sequence[str],
    what: str = "image",
    parts: tuple[str, ...] = (),
    above: tuple[tuple[int, int], ...] = (),
) -> Iterator[FoundFile]:
    """Yield every file, also files that do not match. A hidden folder is one entry. Links to a parent folder are skipped.

    `parts` and `above` are the relative path and the parent folders of a subfolder."""
    try:
        own = os.stat(folder)
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"cannot read the folder: {error.strerror or error}.", folder) from error
    here = (own.st_dev, own.st_ino)
    if here in above:
        return
    for name in names:
        path, way = os.path.join(folder, name), (*parts, name)
        if name.startswith(".") or name in SYSTEM_FILES:
            yield FoundFile(path, way, f"hidden: {'/'.join(way)}")
        elif os.path.isdir(path):
            yield from walk_files(path, suffixes, what, way, (*above, here))
        elif name in CLASS_FILES:
            continue
        elif name.lower().endswith(tuple(suffixes)) and name.lower() not in README_FILES:
            yield FoundFile(path, way)
        else:
            yield FoundFile(path, way, f"not {with_article(what)}: {'/'.join(way)}")


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def find_subfolder(folder: str, names: Sequence[str]) -> str | None:
    """Path of the subfolder with the first of `names` that exists, ignoring case; None if no name exists."""
    there = {name.lower(): name for name in sorted(os.listdir(folder)) if os.path.isdir(os.path.join(folder, name))}
    return next((os.path.join(folder, there[name]) for name in names if name in there), None)


def match_files(images: str, targets: str, suffixes: Sequence[str]) -> tuple[list[tuple[FoundFile, str]], list[str]]:
    """Pairs of an image and the path of the target with the same stem (empty if there is none), and unused targets.

    If no stem is equal, all targets may have the same suffix, for example 0001_mask.png for 0001.jpg."""
    files = list(walk_files(images, IMAGE_SUFFIXES))
    there: dict[str, str] = {}
    for file in walk_files(targets, suffixes):
        if not file.reason and there.setdefault(file.stem, file.path) != file.path:
            problem = f"same file name as '{there[file.stem]}' except for the extension."
            raise DataError(problem, file.path, advice="Remove one of the two files.")
    stems, more = [file.stem for file in files if not file.reason], ""
    if stems and not any(stem in there for stem in stems):
        words = [name[len(stems[0]) :] for name in there if name.startswith(stems[0])]
        more = words[0] if len(words) == 1 and all(name.endswith(words[0]) for name in there) else ""
    pairs = [(file, "" if file.reason else there.pop(file.stem + more, "")) for file in files]
    return pairs, sorted(there.values())


# -- reading

OTHER_FORMATS = {
    b"%PDF-": "a PDF", b"<svg": "an SVG drawing", b"<?xml": "XML (an SVG drawing?)", b"<!DOC": "an HTML page",
    b"<html": "an HTML page", b"%!PS": "PostScript", b"PK\x03\x04": "a zip archive", b"\x93NUMPY": "a NumPy array",
    b"\x1f\x8b": "a gzip file (decompress the file first)", b"\x89HDF": "an HDF5 file",
    b"version https://git-lfs": "a Git LFS pointer (run: git lfs pull)", b"\x89PNG": "an image", b"\xff\xd8\xff": "an image",
    b"LASF": "a LAS or LAZ file (convert the file to PLY)", b"# .PCD": "a PCD file (convert the file to PLY)",
}  # fmt: skip
"""First bytes of formats, to describe files with the wrong content."""


def sniff_format(content: bytes) -> str:
    """Format of a file by its first bytes; empty if unknown."""
    first = content[:64].lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    return next((kind for magic, kind in OTHER_FORMATS.items() if first.startswith(magic.lower())), "")


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Location = tuple[str, int]  # Table and row of a file embedded in a table.
COPY_AGAIN = "Copy or download the file again, or remove it."


class FileFormatError(Exception):
    """Problem of a file, advice and line; `open_source` adds the path."""

    def __init__(self, problem: str, advice: str = "", line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.advice, self.line = problem, advice, line

    def to_data_error(self, path: str, line: int | None = None) -> DataError:
        return DataError(self.problem, path, self.line if line is None else line, self.advice)


@contextmanager
def open_source(source: str | bytes, noun: str, location: Location | None = None) -> Iterator[BinaryIO]:
    """Stream of a regular file, because opening a pipe could block forever, or of the content of an embedded file. Errors in
    the content become `DataError` with the path, or with the table and row of an embedded file."""
    path, line = location or (source if isinstance(source, str) else noun, None)
    reject_url(path)
    name = os.path.expanduser(source) if isinstance(source, str) else ""
    if isinstance(source, str) and not os.path.isfile(name):
        other = f"expected {with_article(noun)} file, got a folder." if os.path.isdir(name) else "not a regular file."
        raise DataError(other if os.path.exists(name) else "file not found.", path, line)
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(name, "rb") as stream:
            yield stream
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}.", path, line) from error
    except FileFormatError as error:
        raise error.to_data_error(path, line) from error
    except MemoryError as error:
        raise DataError(f"the {noun} does not fit into free memory.", path, line) from error


@contextmanager
def library_errors(problem: str, advice: str = COPY_AGAIN, truncated: str = "") -> Iterator[None]:
    """Errors of a decoder become `FileFormatError`, with the first line of the message in place of {}. `truncated` is the
    problem for incomplete files."""
    try:
        yield
    except (FileFormatError, MemoryError):
        raise
    except Exception as error:  # decoders raise many types of exceptions
        if truncated and (isinstance(error, EOFError) or "truncated" in str(error).lower()):
            problem = truncated
        first_line = str(error).partition("\n")[0].rstrip(".")[:120] or type(error).__name__
        raise FileFormatError(problem.format(first_line), advice) from error
