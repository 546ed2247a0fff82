"""Processors: samples -> tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from regard.errors import DataError


def read_processor_file(folder: str | os.PathLike[str], name: str, inputs: str) -> dict[str, Any]:
    """Settings of a processor from a JSON file; `inputs` names the inputs of the processor in the error for a missing file."""
    path = Path(folder) / name
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{name} not found, so {inputs} cannot be preprocessed.", Path(folder)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read ({error}).", path) from error
    if not isinstance(settings, dict):
        raise DataError("expected a JSON object.", path)
    return settings
