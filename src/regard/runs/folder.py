"""The run folder: a published-style checkpoint plus what is ours: regard.json, log.jsonl, events, curves, samples."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

from regard.draw.curves import curves
from regard.errors import RunError
from regard.model import OWN_FILE

LOCK = ".lock"


class RunFolder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.log_file = self.path / "log.jsonl"
        self.samples = self.path / "samples.txt"
        self._events: Any = None

    def exists(self) -> bool:
        return (self.path / OWN_FILE).exists()

    def refuse_if_taken(self) -> None:
        """A run is never overwritten, nor is a folder that holds something else."""
        if self.exists():
            raise RunError(f"{self.path}: there is a run already. Go on with it by --resume, or choose another --out.")
        if self.path.is_file():
            raise RunError(f"{self.path}: is a file. Choose another --out.")
        if self.path.exists() and any(inside.name != LOCK for inside in self.path.iterdir()):
            raise RunError(f"{self.path}: is not empty and is no run. Choose another --out.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """No other process trains into this folder meanwhile. The lock ends with the process, however that ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = (self.path / LOCK).open("a+", encoding="utf-8")
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror}). Choose another --out.") from error
        with file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.stat(self.path / LOCK)  # not gone meanwhile, with the run that held it
                except OSError as error:
                    file.seek(0)
                    owner = file.read().strip() or "unknown"
                    raise RunError(
                        f"{self.path}: another run is training into it (process {owner}). Wait for it, or choose another --out."
                    ) from error
            file.truncate(0)
            file.write(f"{os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                yield
            finally:
                (self.path / LOCK).unlink(missing_ok=True)

    def facts(self) -> dict[str, Any]:
        """What regard.json says."""
        if not self.exists():
            raise RunError(f"{self.path}: is no run: it has no {OWN_FILE}.")
        try:
            found = json.loads((self.path / OWN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path}: its {OWN_FILE} cannot be read ({error}).") from error
        if not isinstance(found, dict):
            raise RunError(f"{self.path}: its {OWN_FILE} is not a JSON object.")
        return found

    def log(self, row: dict[str, Any]) -> None:
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        writer = self._writer(int(row["step"]))
        for key, value in row.items():
            if key != "step" and isinstance(value, int | float):
                writer.add_scalar(f"{row['kind']}/{key}", value, row["step"])

    def rows(self) -> list[dict[str, Any]]:
        """The log so far; a last line that a kill cut in two is left out."""
        rows = []
        if self.log_file.exists():
            for line in self.log_file.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return rows

    def cut_back(self, step: int) -> None:
        """Forget what the log says after `step`: it will be said again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        aside = self.log_file.with_suffix(".writing")
        aside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        aside.replace(self.log_file)
        if self.samples.exists():
            parts = re.split(r"^(?=step \d+$)", self.samples.read_text(encoding="utf-8"), flags=re.MULTILINE)
            kept_parts = [part for part in parts if part and int(part.split()[1]) <= step]
            self.samples.write_text("".join(kept_parts), encoding="utf-8")
        self._writer(step + 1)

    def _writer(self, step: int) -> Any:
        if self._events is None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._events = SummaryWriter(str(self.path / "events"), purge_step=step)
        return self._events

    def draw(self, title: str) -> None:
        curves(self.rows(), self.path / "curves.png", title)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
