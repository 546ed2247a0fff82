"""Rows of integers in memory-mapped files, so that training data can be larger than memory, and their cache.

A store is a folder. Each side (for example source and target) has `SIDE.values`, the concatenated rows, and `SIDE.starts`,
the row offsets; `store.json` contains the number of rows and the size and checksum of every file.

The cache between runs is keyed by content and safe for concurrent processes. Its folder is `$REGARD_CACHE` or
`~/.cache/regard`. A store is written to a temporary folder and renamed when complete; if another process was faster, the
temporary folder is deleted. Readers hold a shared lock on mapped stores. Above `$REGARD_CACHE_GB`, the least recently used
stores without a lock are removed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from regard.errors import DataError, SettingError
from regard.files import fsync, write_file

VERSION = 2
MANIFEST_NAME = "store.json"
MAX_INT = 2**31  # Number of possible values for sides with positions or counts, which are stored in four bytes.
_digest = partial(hashlib.blake2b, digest_size=16)
CHECKSUM_MAX_BYTES = 256 * 2**20
"""Stores below this size are verified by checksum when opened, larger stores only by file size."""


@dataclass(frozen=True, eq=False)
class RaggedRows:
    """Memory-mapped rows of different lengths: `rows[i]` reads only the pages of row i, `lengths` reads no values."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    owner: object = None  # object kept alive with the rows, for example a lock

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
    metadata: Mapping[str, Any]  # values returned by the function that filled the store


Rows = Mapping[str, Sequence[npt.NDArray[Any]]]  # Rows of each side, the same number for every side.
FillStore = Callable[[], Iterable[tuple[Rows, Mapping[str, Any]]]]
"""Yields chunks of rows, each with the metadata of all rows so far."""


def write_store(
    open_file: Callable[[str], BinaryIO], sides: Mapping[str, int], fill: FillStore
) -> tuple[dict[str, Any], dict[str, BinaryIO]]:
    """Write all rows to files opened by `open_file` and flush the files to disk. Returns the manifest and the files.

    `sides` maps each side to the number of possible values: up to 2**16 are stored in two bytes, more in four."""
    dtypes = {side: np.dtype("<u2" if many <= 2**16 else "<i4") for side, many in sides.items()}
    files = {name: open_file(name) for side in sides for name in (f"{side}.values", f"{side}.starts")}
    checksums = {name: _digest() for name in files}

    def write(name: str, values: npt.NDArray[Any]) -> None:
        content = values.tobytes()
        files[name].write(content)
        checksums[name].update(content)

    ends, num_rows, metadata = dict.fromkeys(sides, 0), 0, dict[str, Any]()
    for side in sides:
        write(f"{side}.starts", np.zeros(1, "<i8"))
    for parts, facts in fill():
        for side, rows in parts.items():
            if not rows:
                break
            values = np.concatenate(rows)
            kind = dtypes[side]
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(kind).max:
                raise ValueError(f"a value of {side} does not fit into {kind}")
            starts = ends[side] + np.cumsum([len(row) for row in rows], dtype="<i8")
            write(f"{side}.values", values.astype(kind))
            write(f"{side}.starts", starts)
            ends[side] = int(starts[-1])
        num_rows += len(rows)
        metadata.update(facts)
    entries = {}
    for name, file in files.items():
        file.flush()
        os.fsync(file.fileno())
        entries[name] = {"size": os.fstat(file.fileno()).st_size, "checksum": checksums[name].hexdigest()}
    kinds = {side: kind.str for side, kind in dtypes.items()}
    manifest = {"version": VERSION, "rows": num_rows, "kinds": kinds, "files": entries, "facts": metadata}
    return manifest, files


def map_store(manifest: Mapping[str, Any], files: Mapping[str, BinaryIO], owner: object = None) -> TokenStore:
    """Store described by the manifest, mapped from open files; raise `ValueError` if the files do not match."""
    sides = {}
    for side, kind in manifest["kinds"].items():
        values, starts = (
            # a plain array, because slicing np.memmap is slow; an empty file cannot be mapped
            np.asarray(np.memmap(file, dtype, "r")) if os.fstat(file.fileno()).st_size else np.empty(0, dtype)
            for file, dtype in ((files[f"{side}.values"], kind), (files[f"{side}.starts"], "<i8"))
        )
        rows = sides[side] = RaggedRows(values, starts, owner)
        if len(rows) != manifest["rows"] or starts[0] != 0 or starts[-1] != len(values):
            raise ValueError(f"{side}: row offsets do not match the number of values")
    return TokenStore(sides, manifest["facts"])


# -- cache

Log = Callable[[str], None]

_STALE_SECONDS = 3600.0
_MAX_NOTES = 100  # Maximum number of notes; the least recently used are deleted.


def cache_key(*parts: Any) -> str:
    """Hash of JSON-serializable values."""
    return _digest(json.dumps(parts).encode()).hexdigest()


def cache_folder(kind: str) -> Path:
    folder = os.environ.get("REGARD_CACHE")
    root = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
    try:
        return root.expanduser().absolute() / kind
    except RuntimeError as error:  # no home folder
        raise OSError(errno.ENOENT, str(error)) from error


def cached_store(key: str, sides: Mapping[str, int], fill: FillStore, log: Log, noun: str = "tokens") -> TokenStore:
    """Store of this key from the cache, or built and cached; in temporary files if the cache is not writable."""
    max_cache_bytes()  # raises for an invalid limit
    place = Path("~/.cache/regard")
    try:
        place = cache_folder("tokens")
        store = _open_locked(place / key)
        if store is not None:
            log(f"  Loaded {noun} from the cache ({place / key}).")
            return store
        place.mkdir(parents=True, exist_ok=True)
        remove_stale(place)
        return _build_store(place / key, sides, fill)
    except OSError as error:
        instead, is_full = "", error.errno in (errno.ENOSPC, errno.EDQUOT)
        with suppress(OSError):  # no temporary folder, or no folder of the cache
            folder = tempfile.gettempdir()
            instead = "" if is_full and os.stat(folder).st_dev == os.stat(place).st_dev else folder
        if not instead:
            raise disk_full_error(place, error) from error
        log(
            f"  warning: cannot write to {place} ({error.strerror or error}); the {noun} are kept in {instead} "
            "until this run ends. To use another cache folder, set REGARD_CACHE=FOLDER."
        )
    # in unnamed temporary files, which the operating system deletes when the process ends
    with ExitStack() as files:
        try:
            return map_store(
                *write_store(lambda _: files.enter_context(tempfile.TemporaryFile(dir=instead)), sides, fill)
            )
        except OSError as error:
            raise disk_full_error(instead, error) from error


def disk_full_error(place: str | Path, error: OSError) -> DataError:
    return DataError(
        f"Cannot write to the cache folder {place}: {error.strerror or error}.",
        advice="Free disk space, or set REGARD_CACHE to another folder.",
    )


def _build_store(final: Path, sides: Mapping[str, int], fill: FillStore) -> TokenStore:
    folder = temporary_path(final)
    folder.mkdir()
    try:
        with ExitStack() as files:
            manifest, _ = write_store(lambda name: files.enter_context((folder / name).open("wb")), sides, fill)
        (folder / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
        fsync(folder / MANIFEST_NAME)
        fsync(folder)
        for _ in range(3):
            try:
                folder.rename(final)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            if (theirs := _open_locked(final)) is not None:  # another process was first; damaged stores are removed
                return theirs
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    fsync(final.parent)
    evict(final, MANIFEST_NAME)
    if (store := _open_locked(final)) is None:
        raise OSError(errno.EIO, "the new cache entry cannot be read")
    return store


def try_lock(descriptor: int, path: Path, shared: bool) -> bool | None:
    """True if the open file is now locked, until it is closed, and still at `path`. False if another process holds a
    conflicting lock or removed the file. None without locks on this system or file system."""
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except (ImportError, OSError):
        return None


class FileLock:
    """Shared or exclusive lock of a file, held until the object is deleted. Raises `BlockingIOError` if another process
    holds a conflicting lock or removed the file before the lock."""

    def __init__(self, path: Path, shared: bool) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        locked = try_lock(descriptor, path, shared)
        if not (shared if locked is None else locked):  # without locks, stores can be read but never removed
            raise BlockingIOError(errno.EAGAIN, "the store is in use", str(path))


def _open_locked(folder: Path) -> TokenStore | None:
    """Store in `folder` with verified files, under a shared lock and marked as used; None if missing or damaged."""
    try:
        lock = FileLock(folder / MANIFEST_NAME, shared=True)
        manifest = json.loads((folder / MANIFEST_NAME).read_text("utf-8"))
        whole = sum(entry["size"] for entry in manifest["files"].values())
        with ExitStack() as stack:  # maps stay valid after the files are closed
            files = {name: stack.enter_context((folder / name).open("rb")) for name in manifest["files"]}
            for name, entry in manifest["files"].items():
                content, checked = files[name], whole < CHECKSUM_MAX_BYTES
                if os.fstat(content.fileno()).st_size != entry["size"]:
                    raise ValueError(f"{name}: size does not match the cache record")
                if checked and hashlib.file_digest(content, _digest).hexdigest() != entry["checksum"]:
                    raise ValueError(f"{name}: checksum does not match the cache record")
            store = map_store(manifest, files, lock)
    except BlockingIOError:  # another process is removing the store
        return None
    except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError, AttributeError):  # damaged
        if folder.is_dir():
            _remove(folder)
        return None
    with suppress(OSError):  # the cache may be read-only
        os.utime(folder / MANIFEST_NAME)
    return store


def max_cache_bytes() -> float:
    limit, max_bytes = os.environ.get("REGARD_CACHE_GB", "20"), -1.0
    with suppress(ValueError):
        max_bytes = float(limit) * 1e9
    if not max_bytes >= 0:  # also for NaN
        raise SettingError(f"REGARD_CACHE_GB must be a number of gigabytes, at least 0, got '{limit}'.")
    return max_bytes


def evict(new: Path, used: str) -> None:
    """Remove least recently used folders next to `new` until their size is at most `max_cache_bytes`; keep folders with a
    lock, and the new one. `used` is the name, or a pattern, of the file with the lock and the time of the last use."""
    sizes: dict[Path, int] = {}
    for folder in new.parent.glob("[!.]*"):
        with suppress(OSError):  # another process may remove the folder
            sizes[folder] = sum(path.stat().st_size for path in folder.iterdir())
    surplus = sum(sizes.values()) - max_cache_bytes()
    locks = {folder: next(folder.glob(used), folder / used) for folder in sizes}
    for folder in sorted(sizes, key=lambda folder: _mtime(locks[folder])):
        if surplus <= 0:
            return
        with suppress(OSError):
            if folder != new:
                lock = FileLock(locks[folder], shared=False)
                _remove(folder)
                surplus -= sizes[folder]
                del lock


def _mtime(path: Path) -> float:
    """Modification time; 0 if another process removed the file."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def temporary_path(final: Path) -> Path:
    return final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.writing")


def _remove(folder: Path) -> None:
    """Rename the folder, then delete it, so that no process opens a partly deleted store."""
    aside = temporary_path(folder)
    with suppress(OSError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def remove_stale(place: Path) -> None:
    """Delete temporary folders of dead processes after an hour without changes."""
    for folder in place.glob(".*.writing"):
        newest = max(map(_mtime, (folder, *folder.glob("*"))))
        try:
            os.kill(int(folder.name.split(".")[-3]), 0)
        except (ProcessLookupError, ValueError):
            if time.time() - newest > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # process of another user
            continue


# -- notes


def save_note(key: str, value: Any) -> None:
    """Save a JSON-serializable value in the cache. Write errors are ignored, because notes are optional."""
    text = json.dumps(value)
    with suppress(OSError):
        place = cache_folder("notes")
        place.mkdir(parents=True, exist_ok=True)
        write_file(place / key, f"{cache_key(text)}\n{text}".encode())
        for old in sorted(place.iterdir(), key=_mtime, reverse=True)[_MAX_NOTES:]:
            old.unlink(missing_ok=True)


def load_note(key: str) -> Any:
    """Saved value, or None if the note is missing or damaged."""
    try:
        note = cache_folder("notes") / key
        total, _, text = note.read_text("utf-8").partition("\n")
        if total != cache_key(text):
            return None
        os.utime(note)
        return json.loads(text)
    except (OSError, ValueError):
        return None


def delete_note(key: str) -> None:
    with suppress(OSError):
        (cache_folder("notes") / key).unlink()
