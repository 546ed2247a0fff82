"""Tables in memory as data: lists of dicts, frames of pandas and polars, Arrow tables, and datasets of Hugging Face; and
standard input.

A table is saved in the cache as a JSONL file, in a folder named by its content, and then read as any file of rows: with the
same columns, checks, splits and fingerprints, by several processes, and again when a run is resumed or evaluated. Images,
arrays and bytes become files next to the rows. Libraries of tables are recognized by their methods and not imported.
Standard input is saved in the same way, with its own format."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, time, timedelta
from hashlib import blake2b
from itertools import chain
from numbers import Number
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Protocol, runtime_checkable
from uuid import UUID

import numpy as np

from regard.data import store
from regard.data.file_discovery import FileFormatError, library_errors
from regard.data.reader import Reader
from regard.data.text.files import STDIN_NAME, chunked
from regard.data.text.formats import parse_class_names, to_list
from regard.data.text.tables import SkippedRow
from regard.errors import PLACES, DataError, InputTypeError, SettingError

TABLE_NAME = "table"  # name of the saved file without its extension
STDIN = "stdin"  # name of the folder of standard input, in place of an argument
BATCH_ROWS = 1000  # rows of a frame converted at once
WRITE_ROWS = 32  # rows written at once
MISSING = ("<NA>", "NaT", "NaN", "nan")  # missing values of pandas, and of decimal numbers

_FOLDER = re.compile(r"(\w+?)(?:\.(\d+))?-(\d+)-([0-9a-f]{32})")  # argument, number of the table, rows, digest
_locks: dict[str, store.FileLock] = {}  # shared locks of the tables used by this process


@runtime_checkable
class HuggingFaceDataset(Protocol):
    def with_format(self, type: Any) -> Any: ...
    def iter(self, batch_size: int) -> Any: ...


@runtime_checkable
class PandasFrame(Protocol):
    @property
    def iloc(self) -> Any: ...
    @property
    def columns(self) -> Any: ...
    def __len__(self) -> int: ...


@runtime_checkable
class PolarsFrame(Protocol):
    def iter_rows(self, *, named: Any) -> Any: ...


@runtime_checkable
class ArrowTable(Protocol):
    @property
    def column_names(self) -> Any: ...
    def column(self, i: Any) -> Any: ...
    def slice(self, offset: Any = 0, length: Any = None) -> Any: ...
    def __len__(self) -> int: ...


Frame = HuggingFaceDataset | PandasFrame | PolarsFrame | ArrowTable
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Data = Paths | Frame | Iterable[Mapping[str, Any]] | Iterable[Frame]
"""Data arguments in Python: paths and patterns, or tables in memory."""


def data_entries(data: Data, argument: str = "data") -> list[str]:
    """Paths and patterns as texts; the entry of a table in memory is its saved file. `argument` is its name in messages."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, Frame):
        return [save_table(data, argument)]
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        found = f"with the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else repr(data)
        advice = "Pass one table, such as data['train'], or a list of dicts with one dict per row."
        raise InputTypeError(f"{argument}: expected paths or a table, got {type(data).__name__} {found:.80}. {advice}")
    items = iter(data)
    for first in items:
        if isinstance(first, Mapping):
            return [save_table(chain([first], items), argument)]
        several = enumerate(chain([first], items))
        return [entry for number, item in several for entry in data_entries(item, f"{argument}[{number}]")]
    return []


def is_saved_table(entry: str | os.PathLike[str]) -> bool:
    """True for the path of a saved table."""
    path = Path(entry)
    return path.stem == TABLE_NAME and _FOLDER.fullmatch(path.parent.name) is not None


def is_memory_table(entry: str | os.PathLike[str]) -> bool:
    """True for the path of a saved table that was in memory."""
    return is_saved_table(entry) and not Path(entry).parent.name.startswith(f"{STDIN}-")


def is_saved_file(source: str, entry: str) -> bool:
    """True for the path of an image or array in the folder of a saved table."""
    return os.path.dirname(source) == os.path.dirname(entry) and is_saved_table(entry)


def table_folders(entry: str) -> list[str]:
    """Folders of relative paths in a table: its own folder, and for a saved table also the working directory."""
    folder = os.path.dirname(os.path.expanduser(entry))
    return [folder, os.getcwd()] if is_saved_table(entry) else [folder]


def require_saved_table(entry: str) -> None:
    """Keep a saved table in the cache while this process runs, and name the table in messages. Raise `DataError` if the table
    was removed."""
    if not is_saved_table(entry):
        return
    name, number, rows, digest = _FOLDER.fullmatch(Path(entry).parent.name).groups()  # type: ignore[union-attr]
    try:
        lock = store.FileLock(Path(entry), shared=True)
    except OSError as error:
        source, again = (STDIN_NAME, "with --data -") if name == STDIN else ("the in-memory table", "in Python")
        advice = f"Pass the same data again, {again}."
        raise DataError(f"{source} of this run is no longer in the cache.", entry, advice=advice) from error
    with suppress(OSError):  # the cache may be read-only
        os.utime(entry)
    _locks[entry] = lock
    argument = name if number is None else f"{name}[{number}]"
    PLACES[entry] = argument, f"in-memory table {digest[:8]} ({int(rows):,} row{'s'[: rows != '1']})"
    if name == STDIN:
        PLACES[entry] = "", STDIN_NAME


# -- predictions


def input_rows(inputs: Any, columns: Mapping[str, str] | None, has_dict_inputs: bool) -> Any:
    """Rows of a table of inputs: a frame, a list of dicts or a dict; None for other inputs. With `has_dict_inputs`, a dict is
    an input itself, unless columns are chosen."""
    if isinstance(inputs, Frame):
        return inputs
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    if not isinstance(first, Mapping):
        if columns:
            raise SettingError("columns require a table: a frame or a list of dicts.")
        return None
    if has_dict_inputs and not columns:
        return None
    return [inputs] if first is inputs else inputs


@contextmanager
def table_inputs(reader: Reader, table: Any, columns: Mapping[str, str] | None) -> Iterator[list[Any]]:
    """Inputs of the rows of a table, which is saved in a temporary folder. Errors in the content of a file contain its row."""
    with temporary_entry(lambda folder: save_table(table, "inputs", folder)) as entry:
        inputs = list[Any]()
        try:
            inputs += _read_inputs(reader, entry, columns)
            yield inputs
        except DataError as error:
            if is_saved_file(str(error.path), entry) and str(error.path) in inputs:
                row = 1 + inputs.index(str(error.path))
                raise DataError(error.problem, entry, row, error.advice, error.kind) from error
            raise


@contextmanager
def temporary_entry(save: Callable[[Path], str]) -> Iterator[str]:
    """Path returned by `save`, which saves a table in the given temporary folder."""
    with TemporaryDirectory(prefix="regard-") as folder:
        entry = save(Path(folder))
        try:
            yield entry
        finally:
            del PLACES[entry], _locks[entry]


def _read_inputs(reader: Reader, entry: str, columns: Mapping[str, str] | None) -> list[Any]:
    """Inputs of the rows of a saved table. Raise `DataError` for an invalid row, or without an input."""
    inputs: dict[int, Any] = {}
    for item in reader.inputs(entry, columns):
        line, value = item if isinstance(item, tuple) else (item.line, item)
        if isinstance(value, SkippedRow):
            value = DataError(f"{value.reason}.", entry, line) if value.reason else None
        if isinstance(value, DataError):
            raise value
        if value is not None:
            inputs[line] = value.source if reader.suffixes else value
    rows = int(_FOLDER.fullmatch(Path(entry).parent.name)[3])  # type: ignore[index]
    if (empty := next((row for row in range(1, rows + 1) if row not in inputs), None)) is not None:
        raise DataError("the row has no input.", entry, empty, "Remove rows with missing values.")
    return [inputs[row] for row in range(1, rows + 1)]


# -- saving


def save_table(table: Any, argument: str, place: Path | None = None) -> str:
    """Path of the saved table, in the cache or in the folder `place`. The path depends on the content only."""
    name = argument.replace("[", ".").rstrip("]")
    return _save(name, ".jsonl", lambda file: _write_rows(_iter_rows(table, argument), file, argument), place)


def save_stream(stream: BinaryIO, suffix: str, place: Path | None = None) -> str:
    """Path of the saved bytes of standard input, as in `save_table`. `suffix`: file extension of the format."""

    def write(path: Path) -> tuple[int, str]:
        count, digest = 0, blake2b(suffix.encode(), digest_size=16)
        with _disk_errors(path.parent.parent), path.open("wb") as file:
            while part := stream.read(1 << 20):
                count += len(part)
                digest.update(part)
                file.write(part)
        if not count:
            raise DataError("is empty.", STDIN_NAME)
        return count, digest.hexdigest()

    return _save(STDIN, suffix, write, place)


def _save(name: str, suffix: str, write: Callable[[Path], tuple[int, str]], place: Path | None) -> str:
    """Path of the file with the extension `suffix` that `write` has written; `write` returns the size and a digest."""
    cache = place or store.cache_folder("tables")
    folder = store.temporary_path(cache / TABLE_NAME)
    try:
        with _disk_errors(cache):
            folder.mkdir(parents=True)
            store.remove_stale(cache)
        count, digest = write(folder / f"{TABLE_NAME}{suffix}")
        final = cache / f"{name}-{count}-{digest}"
        with suppress(OSError):  # the same table was saved before, or by another process
            folder.rename(final)
    finally:
        rmtree(folder, ignore_errors=True)
    require_saved_table(entry := str(final / f"{TABLE_NAME}{suffix}"))
    if place is None:
        store.evict(final, f"{TABLE_NAME}.*")
    return entry


@contextmanager
def _disk_errors(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store.disk_full_error(cache, error) from error


def _write_rows(rows: Iterable[Any], path: Path, argument: str) -> tuple[int, str]:
    """Write the rows to a JSONL file. Returns their number and the digest of the content."""
    count, digest, encode = 0, blake2b(digest_size=16), json.JSONEncoder(ensure_ascii=False).encode
    for part in chunked(
        enumerate(rows, start=1), WRITE_ROWS
    ):  # an error of the user's rows is not an error of the disk
        with _disk_errors(path.parent.parent), path.open("ab") as file:
            for count, row in part:
                # a lone surrogate becomes an escape, which the reader reports
                line = encode(_json_row(row, path.parent, f"row {count} of {argument}")).encode(
                    "utf-8", "backslashreplace"
                )
                digest.update(line + b"\n")
                file.write(line + b"\n")
    if not count:
        raise DataError("the table has no rows.", argument)
    return count, digest.hexdigest()


def _json_row(row: Any, folder: Path, place: str) -> dict[str, Any]:
    """Values for JSON by column; `place` is the row in messages."""
    if not isinstance(row, Mapping):
        raise DataError(f"expected a dict, got {type(row).__name__} {row!r:.40}.", place)
    cells = {}
    for name, value in row.items():
        try:
            cells[str(name)] = _to_json(value, folder)
        except FileFormatError as error:
            raise error.to_data_error(f"{place}, column '{name}'") from error
    return cells


def _iter_rows(table: Any, argument: str) -> Iterator[Mapping[str, Any]]:
    """Rows by column, converted in batches."""
    if isinstance(table, HuggingFaceDataset):
        for number, batch in enumerate(table.with_format("arrow").iter(BATCH_ROWS)):
            yield from _arrow_rows(batch, argument, number * BATCH_ROWS)
    elif isinstance(table, PandasFrame):
        _check_names(table.columns, argument)
        for start in range(0, len(table), BATCH_ROWS):
            yield from table.iloc[start : start + BATCH_ROWS].to_dict("records")
    elif isinstance(table, PolarsFrame):
        yield from table.iter_rows(named=True)
    elif isinstance(table, ArrowTable):
        for start in range(0, len(table), BATCH_ROWS):
            yield from _arrow_rows(table.slice(start, BATCH_ROWS), argument, start)
    else:
        yield from table


def _arrow_rows(batch: Any, argument: str, rows_before: int) -> Iterator[dict[str, Any]]:
    """Rows with class names in place of class numbers, if the table has the metadata of the `datasets` library."""
    _check_names(batch.column_names, argument)
    classes = {name: parse_class_names(batch.schema.metadata, name) for name in batch.column_names}
    lists = [to_list(argument, batch.column(name), name, rows_before) for name in batch.column_names]
    for values in zip(*lists, strict=True):
        row = zip(batch.column_names, values, strict=True)
        yield {name: _class_names(value, classes[name]) if classes[name] else value for name, value in row}


def _class_names(value: Any, classes: tuple[str, ...]) -> Any:
    """Class names of a number or a list of numbers; None for -1, which marks unlabeled rows."""
    if isinstance(value, list):
        return [_class_names(item, classes) for item in value]
    return None if value == -1 else classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value


def _check_names(names: Iterable[Any], argument: str) -> None:
    listed = [str(name) for name in names]
    if twice := next((name for name in listed if listed.count(name) > 1), None):
        raise DataError(f"duplicate column '{twice}'.", argument, advice="Rename one of the columns.")


# -- cells


def _to_json(value: Any, folder: Path) -> Any:
    """Value for JSON; missing values become None, and contents of files become files in the folder."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return None if value != value else value
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        if isinstance(value.get("bytes"), bytes):
            return _save_file(value["bytes"], os.path.splitext(value.get("path") or "")[1], folder)
        return {str(name): _to_json(item, folder) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, folder) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return _save_file(bytes(value), "", folder)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if (text := str(value)) in MISSING:
        return None
    if isinstance(value, Number | date | time | timedelta | UUID):
        return text
    return _convert_array(value, folder)


def _convert_array(value: Any, folder: Path) -> Any:
    """List of the values of an array of rank 1, or the file of an image or of another array."""
    from PIL import Image, ImageOps

    from regard.data.images.image_io import pixels_to_rgb

    if isinstance(value, Image.Image):
        with library_errors("the image cannot be read ({})."):
            return _save_image(ImageOps.exif_transpose(value), folder)
    if is_tensor := hasattr(value, "detach"):  # of PyTorch
        value = value.detach().cpu().numpy()
    if not hasattr(value, "__array__"):
        raise FileFormatError(
            f"unsupported value ({type(value).__name__}).", "Pass texts, numbers, lists, images or arrays."
        )
    array = np.asarray(value)
    if array.ndim < 2 or array.dtype.kind not in "fiub":
        return _to_json(array.tolist(), folder)
    if array.ndim == 2 and array.dtype.kind == "f":  # a depth map or a point cloud
        content = io.BytesIO()
        np.save(content, array)
        return _save_file(content.getvalue(), ".npy", folder)
    # masks, gray images and depth maps; depth maps of 16 bits keep their type
    if array.ndim == 2 and array.dtype != np.uint16 and array.min(initial=0) >= 0:
        array = array.astype(np.min_scalar_type(int(array.max(initial=0))))
    with library_errors("expected an image or a mask ({})."):
        return _save_image(Image.fromarray(array if array.ndim == 2 else pixels_to_rgb(array, is_tensor)), folder)


def _save_image(image: Any, folder: Path) -> dict[str, str]:
    """PNG file of a Pillow image without a loss, or TIFF for floats."""
    content, is_float = io.BytesIO(), image.mode == "F"
    if not is_float and image.mode not in ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA"):
        image = image.convert("RGB")
    image.save(content, "TIFF" if is_float else "PNG", compress_level=1)
    return _save_file(content.getvalue(), ".tiff" if is_float else ".png", folder)


def _save_file(content: bytes, suffix: str, folder: Path) -> dict[str, str]:
    """Cell with the name of a new file, as in image columns of Hugging Face."""
    path = folder / f"{blake2b(content, digest_size=16).hexdigest()}{suffix}"
    if not path.exists():
        path.write_bytes(content)
    return {"path": path.name}
