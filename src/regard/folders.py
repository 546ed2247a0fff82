"""Model folders (runs and Hugging Face checkpoints), recognized by their JSON files without torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from regard import index
from regard.errors import RunError, UnknownFolderError

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Names of the dtypes that a model can be computed in."""

LAYOUTS = ("huggingface",)
"""Formats that a model can be exported to."""

METADATA_FILE = "regard.json"
"""File with the metadata of regard, beside config.json."""

FORMAT = 1
"""Version of the format of METADATA_FILE; folders with another version are refused."""


def read_config_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of config.json and regard.json of a folder; the second is empty for a Hugging Face checkpoint."""
    if not folder.exists():
        if str(folder) in index.presets():
            raise RunError(
                f"{folder} is a preset with random weights, not a model folder. Train it and use its run folder."
            )
        parent = folder.parent
        beside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        raise UnknownFolderError("folder", folder, beside, "Train a model with 'regard train', or run 'regard demo'.")
    if not (folder / "config.json").exists():
        if (folder / "checkpoints").is_dir():
            raise RunError(f"{folder}: the run was stopped before its first validation. Continue it with --resume.")
        raise RunError(f"{folder} is neither a run nor a Hugging Face checkpoint: no config.json found.")
    try:
        published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        own_file = folder / METADATA_FILE
        own = json.loads(own_file.read_text(encoding="utf-8")) if own_file.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: cannot read config.json or {METADATA_FILE} ({error}).") from error
    if not isinstance(published, dict) or not isinstance(own, dict):
        raise RunError(f"{folder}: config.json or {METADATA_FILE} is not a JSON object.")
    if own_file.exists():
        _check_metadata(folder, own)
    return published, own


def check_format(folder: Path, metadata: dict[str, Any]) -> None:
    """Refuse the metadata of another version of regard."""
    found = metadata.get("format")
    if found != FORMAT:
        raise RunError(
            f"{folder}: expected format {FORMAT} in {METADATA_FILE}, got {found}. Use the version of regard that wrote it."
        )


def _check_metadata(folder: Path, own: dict[str, Any]) -> None:
    check_format(folder, own)
    for key, kind in (("system", str), ("task", str), ("model", dict), ("decode", dict)):
        if not isinstance(own.get(key), kind):
            raise RunError(f"{folder}: {METADATA_FILE} has no valid '{key}' (expected {kind.__name__}).")


def is_folder_path(name: str) -> bool:
    """True if a name is an existing folder or contains a path separator; False for a preset."""
    return Path(name).is_dir() or os.sep in name


def find_system_name(folder: Path) -> str | None:
    """Name of the system of a model folder; None if it is unknown."""
    published, own = read_config_files(folder)
    name = own["system"] if own else index.model_types().get(str(published.get("model_type")))
    return name if name in index.load_index()["systems"] else None
