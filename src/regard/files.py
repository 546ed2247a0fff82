"""Atomic writing of files, flushed to disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

UMASK = os.umask(0)
os.umask(UMASK)
"""Umask of the process, read once at import, because reading the umask changes it for a moment in all threads."""


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    # line separators of the system, as in text mode
    write_bytes(path, text.replace("\n", os.linesep).encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.writing")
    try:
        aside.write_bytes(content)
        fsync(aside)
        os.replace(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def fsync(path: Path) -> None:
    """Flush a file or the entries of a folder to disk. No effect on Windows, where folders cannot be opened."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
