"""Atomic writing of files, flushed to disk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

UMASK = os.umask(0)
os.umask(UMASK)
"""Umask of the process, read once at import, because reading the umask changes it for a moment in all threads."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Temporary path next to `path`, which replaces `path` after the block, flushed to disk; after an error it is removed."""
    aside = path.with_name(f".{path.name}.writing")
    try:
        yield aside
        fsync(aside)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically; text has the line separators of the system."""
    if isinstance(content, str):
        content = content.replace("\n", os.linesep).encode("utf-8")
    with replacing(path) as aside:
        aside.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def fsync(path: Path) -> None:
    """Flush a file or the entries of a folder to disk. No effect on Windows, where folders cannot be opened."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
