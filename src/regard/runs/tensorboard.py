"""The training log as TensorBoard events, written synchronously, so that errors are raised at the failing write."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


class EventWriter:
    """One event file. TensorBoard ignores events of earlier files at `step` or later, which a resumed run writes again."""

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, which must be unique
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = (folder / name).open("wb")
        self.record_writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")
        if step:
            self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        made = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=made))

    def close(self) -> None:
        with suppress(OSError):  # all events are flushed, and failed writes are already reported
            self.file.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.record_writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self.file.flush()
