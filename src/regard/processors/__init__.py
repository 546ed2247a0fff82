"""Processors: samples -> tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import DataError


def read_processor_file(path: Path) -> dict[str, Any] | None:
    """Settings of a processor from a JSON file; None if the file does not exist."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error}).", path) from error
    if not isinstance(settings, dict):
        raise DataError("expected a JSON object.", path)
    return settings
