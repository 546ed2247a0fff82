"""Rows of integers in memory-mapped files, so that training data can be larger than memory.

A store is a folder. Each side (for example source and target) has `SIDE.values`, the concatenated rows, and `SIDE.starts`,
the row offsets; `store.json` contains the number of rows and the size and checksum of every file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

VERSION = 2
MANIFEST_NAME = "store.json"
MAX_INT = 2**31
"""Number of possible values for sides with positions or counts, which are stored in four bytes."""
CHECKSUM_MAX_BYTES = 256 * 2**20
"""Stores below this size are verified by checksum when opened, larger stores only by file size."""


class CorruptStore(Exception):
    """Store whose files do not match the manifest; the cache rebuilds the store."""


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Memory-mapped rows of different lengths: `rows[i]` reads only the pages of row i, `lengths` reads no values."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    owner: object = None
    """object kept alive with the rows, for example a lock"""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class TokenStore:
    sides: Mapping[str, RaggedRows]
    metadata: Mapping[str, Any]
    """values returned by the function that filled the store"""


class StoreWriter:
    """Write rows in chunks to files opened by `open_file`.

    `sides` maps each side to the number of possible values: up to 2**16 are stored in two bytes, more in four."""

    def __init__(self, open_file: Callable[[str], BinaryIO], sides: Mapping[str, int]) -> None:
        self.dtypes = {side: np.dtype("<u2" if many <= 2**16 else "<i4") for side, many in sides.items()}
        self.num_rows = 0
        self.files = {name: open_file(name) for side in sides for name in (f"{side}.values", f"{side}.starts")}
        self._checksums = {name: blake2b(digest_size=16) for name in self.files}
        self._ends = dict.fromkeys(sides, 0)
        for side in sides:
            self._write(f"{side}.starts", np.zeros(1, "<i8"))

    def add(self, **parts: Sequence[npt.NDArray[Any]]) -> None:
        """Append rows, the same number for every side."""
        for side, rows in parts.items():
            if not rows:
                return
            values = np.concatenate(rows)
            kind = self.dtypes[side]
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(kind).max:
                raise ValueError(f"a value of {side} does not fit into {kind}")
            ends = self._ends[side] + np.cumsum([len(row) for row in rows], dtype="<i8")
            self._write(f"{side}.values", values.astype(kind))
            self._write(f"{side}.starts", ends)
            self._ends[side] = int(ends[-1])
        self.num_rows += len(rows)

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        content = values.tobytes()
        self.files[name].write(content)
        self._checksums[name].update(content)

    def finish(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Flush all files to disk and return the manifest."""
        files = {}
        for name, file in self.files.items():
            file.flush()
            os.fsync(file.fileno())
            files[name] = {"size": os.fstat(file.fileno()).st_size, "checksum": self._checksums[name].hexdigest()}
        kinds = {side: kind.str for side, kind in self.dtypes.items()}
        manifest = {"version": VERSION, "rows": self.num_rows, "kinds": kinds}
        return {**manifest, "files": files, "facts": dict(metadata)}


def map_store(manifest: Mapping[str, Any], files: Mapping[str, BinaryIO], owner: object = None) -> TokenStore:
    """Store described by the manifest, mapped from open files."""
    sides = {}
    for side, kind in manifest["kinds"].items():
        values = _memory_map(files[f"{side}.values"], np.dtype(kind))
        starts = _memory_map(files[f"{side}.starts"], np.dtype("<i8"))
        if len(starts) != manifest["rows"] + 1 or starts[0] != 0 or starts[-1] != len(values):
            raise CorruptStore(f"{side}: row offsets do not match the number of values")
        sides[side] = RaggedRows(values, starts, owner)
    return TokenStore(sides, manifest["facts"])


def _memory_map(file: BinaryIO, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if not os.fstat(file.fileno()).st_size:
        return np.empty(0, kind)  # an empty file cannot be mapped
    # a plain array, because slicing np.memmap is slow
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    with (folder / MANIFEST_NAME).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def open_store(folder: Path, owner: object = None) -> TokenStore:
    """Open a store and verify all files; raise `CorruptStore` if a file is missing or damaged."""
    try:
        record = json.loads((folder / MANIFEST_NAME).read_text("utf-8"))
        whole = sum(entry["size"] for entry in record["files"].values())
        with ExitStack() as stack:  # maps stay valid after the files are closed
            files = {name: stack.enter_context((folder / name).open("rb")) for name in record["files"]}
            for name, entry in record["files"].items():
                if os.fstat(files[name].fileno()).st_size != entry["size"]:
                    raise CorruptStore(f"{name}: size does not match the cache record")
                if whole < CHECKSUM_MAX_BYTES:
                    checksum = blake2b(digest_size=16)
                    while part := files[name].read(2**20):
                        checksum.update(part)
                    if checksum.hexdigest() != entry["checksum"]:
                        raise CorruptStore(f"{name}: checksum does not match the cache record")
            return map_store(record, files, owner)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStore(str(error)) from error
