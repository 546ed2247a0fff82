"""The run folder: a model folder with regard.json, log.jsonl, TensorBoard events, curves and samples."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from regard.data.store import try_lock
from regard.errors import RegardError, RunError
from regard.files import write_file
from regard.index import LOCK_FILE, METADATA_FILE, check_format, load_index
from regard.training.checkpoint import latest_checkpoint

_WRITTEN = {METADATA_FILE, *(name for task in load_index()["tasks"] for name in task["reader_files"])}
INITIAL_FILES = {LOCK_FILE, *_WRITTEN, *(f".{name}.writing" for name in _WRITTEN)}
"""Files of a run that was killed before its first step; the lock file identifies the run."""

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # Errors of a full or read-only disk.


class RunFolder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.log_file = self.path / "log.jsonl"
        self.samples_file = self.path / "samples.txt"
        self._events: IO[bytes] | None = None
        self._owns_lock = False

    def exists(self) -> bool:
        return (self.path / METADATA_FILE).exists()

    def check_available(self) -> None:
        """Refuse a folder that contains a run or other files."""
        if self.exists():
            if not self._owns_lock:
                with suppress(FileNotFoundError), (self.path / LOCK_FILE).open("rb") as file:
                    if try_lock(file.fileno(), self.path / LOCK_FILE, shared=True) is False:
                        raise self._lock_error(file)
            raise RunError(f"{self.path} already contains a run. Continue it with --resume, or choose another --out.")
        if self.path.is_file():
            raise RunError(f"{self.path} is a file. Choose another --out.")
        above = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            raise RunError(f"{self.path} cannot be created: {above} is not writable. Choose another --out.")
        inside = {path.name for path in self.path.iterdir()} if self.path.exists() else set()
        if inside - (INITIAL_FILES if LOCK_FILE in inside else set()):
            raise RunError(f"{self.path} is not empty and contains no run. Choose another --out.")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive lock of the folder, released by the operating system if the process is killed."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK_FILE).open("a+b", buffering=0)
        except OSError as error:
            raise RunError(f"{self.path} is not writable ({error.strerror}). Choose another --out.") from error
        with file:
            if try_lock(file.fileno(), self.path / LOCK_FILE, shared=False) is False:
                raise self._lock_error(file)
            with suppress(OSError):  # on a full disk the lock works, only its owner is unknown
                file.truncate(0)
                file.write(f"{os.getpid()} on {socket.gethostname()}".encode())
            self._owns_lock = True
            try:
                yield
            finally:
                self._owns_lock = False
                with suppress(PermissionError):  # Windows cannot delete an open file; a later run locks it again
                    (self.path / LOCK_FILE).unlink(missing_ok=True)

    def _lock_error(self, file: IO[bytes]) -> RunError:
        file.seek(0)
        owner = file.read().decode(errors="replace").strip() or "unknown"
        return RunError(
            f"{self.path} is in use by another run (process {owner}). Wait until that run ends, or choose another --out."
        )

    @contextmanager
    def report_disk_errors(self, checkpoint_bytes: int, resume_command: Callable[[], str]) -> Iterator[None]:
        """Context that turns errors of a full or read-only disk into one RunError with the needed space."""
        try:
            yield
        except (OSError, RegardError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in DISK_ERRORS:
                raise
            saved, _ = latest_checkpoint(self.checkpoints)
            last = f"Last complete checkpoint: {saved.path.name}." if saved else "No checkpoint was written yet."
            free = shutil.disk_usage(self.path).free
            resume = f"resume with:\n  {resume_command()}" if self.exists() else "start again."
            raise RunError(
                f"{self.path}: {cause.strerror or cause}. A checkpoint of this run needs {checkpoint_bytes / 2**20:.1f} MiB; "
                f"{free / 2**20:.1f} MiB are free. {last} Free disk space and {resume}"
            ) from error

    def read_metadata(self) -> dict[str, Any]:
        """Contents of regard.json."""
        if not self.exists():
            raise RunError(f"{self.path} is not a run folder: no {METADATA_FILE} found.")
        try:
            found = json.loads((self.path / METADATA_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path}: cannot read {METADATA_FILE} ({error}).") from error
        if not isinstance(found, dict):
            raise RunError(f"{self.path}: {METADATA_FILE} is not a JSON object.")
        check_format(self.path, found)
        return found

    def log(self, row: dict[str, Any]) -> None:
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        numbers = {key: value for key, value in row.items() if key != "step" and isinstance(value, int | float)}
        named = [Summary.Value(tag=f"{row['kind']}/{key}", simple_value=float(x)) for key, x in numbers.items()]
        self._write_event(int(row["step"]), {"summary": Summary(value=named)})

    def read_log(self) -> list[dict[str, Any]]:
        """Rows of the log; an incomplete last line is left out."""
        rows = []
        if self.log_file.exists():
            for line in self.log_file.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return rows

    def truncate_log(self, step: int) -> None:
        """Remove log rows and samples after `step`: the resumed run writes them again."""
        kept = [row for row in self.read_log() if row["step"] <= step]
        write_file(self.log_file, "".join(json.dumps(row) + "\n" for row in kept))
        if self.samples_file.exists():
            # a kill may have cut a UTF-8 character
            text = self.samples_file.read_text(encoding="utf-8", errors="replace")
            text = text[: text.rfind("\n\n") + 2]
            parts = [re.match(r"step (\d+)\n", part) for part in re.split(r"^(?=step \d+\n)", text, flags=re.MULTILINE)]
            write_file(self.samples_file, "".join(part.string for part in parts if part and int(part[1]) <= step))
        for left in self.path.glob(".curves.png.*.part"):
            left.unlink(missing_ok=True)
        self._write_event(step + 1, {})

    def _write_event(self, step: int, fields: Mapping[str, Any]) -> None:
        """Append to the event file, which is created if necessary.

        TensorBoard ignores events of earlier files at the first `step` or later, which a resumed run writes again."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        events: list[dict[str, Any]] = [{"step": step, **fields}] if fields else []
        if self._events is None:
            (self.path / "events").mkdir(parents=True, exist_ok=True)
            # TensorBoard reads files in the order of their names, which must be unique
            name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
            self._events = (self.path / "events" / name).open("wb")
            start = [{"step": step, "session_log": SessionLog(status=SessionLog.START)}] if step else []
            events = [{"file_version": "brain.Event:2"}, *start, *events]
        for event in events:
            RecordWriter(self._events).write(Event(wall_time=time.time(), **event).SerializeToString())
        self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            with suppress(OSError):  # all events are flushed, and failed writes are already reported
                self._events.close()
            self._events = None
