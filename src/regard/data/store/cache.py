"""Cache of token stores between runs, keyed by content and safe for concurrent processes.

The folder is `$REGARD_CACHE` or `~/.cache/regard`. A store is written to a temporary folder and renamed when complete; if
another process was faster, the temporary folder is deleted. Readers hold a shared lock on mapped stores. Above
`$REGARD_CACHE_GB`, the least recently used stores without a lock are removed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from regard import capabilities
from regard.data.store.token_store import (
    MANIFEST_NAME,
    CorruptStore,
    StoreWriter,
    TokenStore,
    map_store,
    open_store,
    write_manifest,
)
from regard.errors import DataError, SettingError
from regard.files import fsync

FillStore = Callable[[StoreWriter], Mapping[str, Any]]
"""Writes the rows and returns the metadata of the store."""
Log = Callable[[str], None]

_STALE_SECONDS = 3600.0
_MAX_NOTES = 100
"""Maximum number of notes; the least recently used are deleted."""


def cache_key(*parts: Any) -> str:
    """Hash of JSON-serializable values."""
    return _checksum(json.dumps(parts))


def cache_folder(kind: str) -> Path:
    folder = os.environ.get("REGARD_CACHE")
    root = Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "regard"
    try:
        return root.expanduser().absolute() / kind
    except RuntimeError as error:  # no home folder
        raise OSError(errno.ENOENT, str(error)) from error


def cached_store(key: str, sides: Mapping[str, int], fill: FillStore, log: Log, noun: str = "tokens") -> TokenStore:
    """Store of this key from the cache, or built and cached; in temporary files if the cache is not writable."""
    limit, place = os.environ.get("REGARD_CACHE_GB", "20"), Path("~/.cache/regard")
    try:
        max_bytes = float(limit) * 1e9
    except ValueError:
        max_bytes = -1.0
    if not max_bytes >= 0:
        raise SettingError(f"REGARD_CACHE_GB must be a number of gigabytes, at least 0, got '{limit}'.")
    try:
        place = cache_folder("tokens")
        store = _open_locked(place / key)
        if store is not None:
            log(f"  Loaded {noun} from the cache ({place / key}).")
            return store
        place.mkdir(parents=True, exist_ok=True)
        _remove_stale(place)
        return _build_store(place / key, sides, fill, max_bytes)
    except OSError as error:
        instead = ""
        with suppress(OSError):  # no temporary folder, or no folder of the cache
            folder = tempfile.gettempdir()
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if not is_full or os.stat(folder).st_dev != os.stat(place).st_dev:
                instead = folder
        if not instead:
            raise _disk_full_error(place, error) from error
        log(
            f"  warning: cannot write to {place} ({error.strerror or error}); the {noun} are kept in {instead} "
            "until this run ends. To use another cache folder, set REGARD_CACHE=FOLDER."
        )
    # in unnamed temporary files, which the operating system deletes when the process ends
    with ExitStack() as files:
        try:
            writer = StoreWriter(lambda _: files.enter_context(tempfile.TemporaryFile(dir=instead)), sides)
            return map_store(writer.finish(fill(writer)), writer.files)
        except OSError as error:
            raise _disk_full_error(instead, error) from error


def _disk_full_error(place: str | Path, error: OSError) -> DataError:
    return DataError(
        f"Cannot write the token cache to {place}: {error.strerror or error}.",
        advice="Free disk space, or set REGARD_CACHE to another folder.",
    )


def _build_store(final: Path, sides: Mapping[str, int], fill: FillStore, max_bytes: float) -> TokenStore:
    folder = _temporary_path(final)
    folder.mkdir()
    try:
        with ExitStack() as files:
            writer = StoreWriter(lambda name: files.enter_context((folder / name).open("wb")), sides)
            write_manifest(folder, writer.finish(fill(writer)))
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
    _evict(final, max_bytes)
    store = _open_locked(final)
    if store is None:
        raise OSError(errno.EIO, "the new cache entry cannot be read")
    return store


class FileLock:
    """Shared or exclusive lock of a file, held until the object is deleted."""

    def __init__(self, path: Path) -> None:
        self.path, self.descriptor = path, os.open(path, os.O_RDONLY)

    def acquire(self, shared: bool) -> bool:
        """True if the file is locked and still at `path`: another process may remove the file before the lock."""
        if not capabilities.is_available("file_locks"):
            return shared  # without locks, stores can be read but never removed
        try:
            capabilities.lock_file(self.descriptor, shared)
        except BlockingIOError:
            return False
        except OSError:  # file system without locks
            return shared
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return False

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _open_locked(folder: Path) -> TokenStore | None:
    """Store in `folder` under a shared lock, marked as used; None if the store is missing or damaged."""
    try:
        lock = FileLock(folder / MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_dir():
            _remove(folder)
        return None
    if not lock.acquire(shared=True):
        return None  # another process is removing the store
    try:
        store = open_store(folder, owner=lock)
    except CorruptStore:
        _remove(folder)
        return None
    with suppress(OSError):  # the cache may be read-only
        os.utime(folder / MANIFEST_NAME)
    return store


def _evict(new: Path, max_bytes: float) -> None:
    """Remove least recently used stores until the cache has at most `max_bytes`; keep locked stores and the new store."""
    sizes = {folder: sum(size for size, _ in _file_stats(folder)) for folder in new.parent.glob("[!.]*")}
    surplus = sum(sizes.values()) - max_bytes
    for folder in sorted(sizes, key=lambda folder: _mtime(folder / MANIFEST_NAME)):
        if surplus <= 0:
            return
        with suppress(OSError):
            lock = FileLock(folder / MANIFEST_NAME)
            if folder != new and lock.acquire(shared=False):
                _remove(folder)
                surplus -= sizes[folder]


def _file_stats(folder: Path) -> list[tuple[int, float]]:
    """Size and modification time of each file; empty if another process removes the folder."""
    with suppress(OSError):
        return [(status.st_size, status.st_mtime) for status in (path.stat() for path in folder.iterdir())]
    return []


def _mtime(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _temporary_path(final: Path) -> Path:
    return final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.writing")


def _remove(folder: Path) -> None:
    """Rename the folder, then delete it, so that no process opens a partly deleted store."""
    aside = _temporary_path(folder)
    with suppress(OSError):
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _remove_stale(place: Path) -> None:
    """Delete temporary folders of dead processes after an hour without changes."""
    for folder in place.glob(".*.writing"):
        newest = max([_mtime(folder), *(changed for _, changed in _file_stats(folder))])
        try:
            os.kill(int(folder.name.split(".")[-3]), 0)
            is_alive = True
        except (ProcessLookupError, ValueError):
            is_alive = False
        except OSError:  # process of another user
            is_alive = True
        if not is_alive and time.time() - newest > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


# -- notes


def save_note(key: str, value: Any) -> None:
    """Save a JSON-serializable value in the cache. Write errors are ignored, because notes are optional."""
    text = json.dumps(value)
    with suppress(OSError):
        place = cache_folder("notes")
        place.mkdir(parents=True, exist_ok=True)
        aside = _temporary_path(place / key)
        try:
            aside.write_text(f"{_checksum(text)}\n{text}", encoding="utf-8")
            aside.replace(place / key)
        finally:
            aside.unlink(missing_ok=True)
        for old in sorted(place.iterdir(), key=_mtime, reverse=True)[_MAX_NOTES:]:
            old.unlink(missing_ok=True)


def load_note(key: str) -> Any:
    """Saved value, or None if the note is missing or damaged."""
    try:
        note = cache_folder("notes") / key
        total, _, text = note.read_text("utf-8").partition("\n")
        if total != _checksum(text):
            return None
        os.utime(note)
        return json.loads(text)
    except (OSError, ValueError):
        return None


def delete_note(key: str) -> None:
    with suppress(OSError):
        (cache_folder("notes") / key).unlink()


def _checksum(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
