"""Files that are whole and on the disk, or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


UMASK = _read_umask()
"""Read once, at import: reading it sets it for a moment, for all threads."""


def write_text(path: Path, text: str) -> None:
    """Whole or not at all."""
    # in text mode a line ends as it does in other files of the system
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
    """Down to the disk, a folder's entries too (where folders can be opened: not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
