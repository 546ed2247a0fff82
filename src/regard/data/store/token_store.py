"""Rows of numbers in files that are mapped, not read: what is trained on may be larger than memory.

A store is a folder. Each side (source and target, say) has `SIDE.values`, its rows one after another, and `SIDE.starts`,
where each begins and the last ends; `store.json` says how many there are, and size and checksum of every file.
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
RECORD = "store.json"
ANY = 2**31
"""How many numbers there are on a side that holds places or counts: as many as four bytes can say."""
SUMMED = 256 * 2**20
"""Stores of fewer bytes are read through and summed when they are opened; of larger ones the sizes are checked."""


class Damaged(Exception):
    """A store that is not what its record says. It is made again, never used."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that lie in a file: `rows[i]` touches the pages of that row alone, lengths touch none of them."""

    values: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    owner: object = None
    """kept while the rows are: a lock, say"""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        return self.values[self.starts[row] : self.starts[row + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)


@dataclass(frozen=True)
class Store:
    sides: Mapping[str, Rows]
    facts: Mapping[str, Any]
    """what its maker wrote down"""


class Writer:
    """Takes rows part by part; `make` opens the file of a name for writing.

    `sides` says how many numbers there are on each: where two bytes can say them they take two, else four."""

    def __init__(self, make: Callable[[str], BinaryIO], sides: Mapping[str, int]) -> None:
        self.kinds = {side: np.dtype("<u2" if many <= 2**16 else "<i4") for side, many in sides.items()}
        self.rows = 0
        self.files = {name: make(name) for side in sides for name in (f"{side}.values", f"{side}.starts")}
        self._sums = {name: blake2b(digest_size=16) for name in self.files}
        self._ends = dict.fromkeys(sides, 0)
        for side in sides:
            self._write(f"{side}.starts", np.zeros(1, "<i8"))

    def add(self, **parts: Sequence[npt.NDArray[Any]]) -> None:
        """The same number of rows for every side."""
        for side, rows in parts.items():
            if not rows:
                return
            values = np.concatenate(rows)
            kind = self.kinds[side]
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(kind).max:
                raise ValueError(f"a number of {side} does not fit into {kind}")
            ends = self._ends[side] + np.cumsum([len(row) for row in rows], dtype="<i8")
            self._write(f"{side}.values", values.astype(kind))
            self._write(f"{side}.starts", ends)
            self._ends[side] = int(ends[-1])
        self.rows += len(rows)

    def _write(self, name: str, values: npt.NDArray[Any]) -> None:
        content = values.tobytes()
        self.files[name].write(content)
        self._sums[name].update(content)

    def finish(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Everything to the disk, and the record of it."""
        files = {}
        for name, file in self.files.items():
            file.flush()
            os.fsync(file.fileno())
            files[name] = {"size": os.fstat(file.fileno()).st_size, "checksum": self._sums[name].hexdigest()}
        return {
            "version": VERSION, "rows": self.rows, "kinds": {side: kind.str for side, kind in self.kinds.items()},
            "files": files, "facts": dict(facts),
        }  # fmt: skip


def mapped(record: Mapping[str, Any], files: Mapping[str, BinaryIO], owner: object = None) -> Store:
    """The store that this record describes, in files that are open."""
    sides = {}
    for side, kind in record["kinds"].items():
        values = _map(files[f"{side}.values"], np.dtype(kind))
        starts = _map(files[f"{side}.starts"], np.dtype("<i8"))
        if len(starts) != record["rows"] + 1 or starts[0] != 0 or starts[-1] != len(values):
            raise Damaged(f"the rows of {side} do not end where its values do")
        sides[side] = Rows(values, starts, owner)
    return Store(sides, record["facts"])


def _map(file: BinaryIO, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    if not os.fstat(file.fileno()).st_size:
        return np.empty(0, kind)  # nothing cannot be mapped
    # as a plain array, because slices of a np.memmap are slow to make
    return np.asarray(np.memmap(file, dtype=kind, mode="r"))


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    with (folder / RECORD).open("w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def open_store(folder: Path, owner: object = None) -> Store:
    """A store whose files are whole; `Damaged` otherwise."""
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
        whole = sum(entry["size"] for entry in record["files"].values())
        with ExitStack() as stack:  # what is mapped stays when its files are closed
            files = {name: stack.enter_context((folder / name).open("rb")) for name in record["files"]}
            for name, entry in record["files"].items():
                _check(name, files[name], entry, summed=whole < SUMMED)
            return mapped(record, files, owner)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(str(error)) from error


def _check(name: str, file: BinaryIO, entry: Mapping[str, Any], summed: bool) -> None:
    if os.fstat(file.fileno()).st_size != entry["size"]:
        raise Damaged(f"{name} has not the size that it was written with")
    if summed:
        total = blake2b(digest_size=16)
        while part := file.read(2**20):
            total.update(part)
        if total.hexdigest() != entry["checksum"]:
            raise Damaged(f"{name} has not the content that it was written with")
