"""Model folders (runs and Hugging Face checkpoints), recognized by their JSON files without torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from regard import index
from regard.errors import RegardError, RunError, UnknownFolderError
from regard.foreign_names import resolve_preset_name
from regard.hub import PREFIX, describe_hub_name, local_folder

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Names of dtypes for computation."""

LAYOUTS = ("huggingface",)
"""Export formats."""

METADATA_FILE = "regard.json"
"""File with the metadata of regard, in the same folder as config.json."""

FORMAT = 1
"""Version of the format of METADATA_FILE; other versions are refused."""


def read_config_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and regard.json of a folder or a name `hf:ORG/NAME`; other folders raise an error."""
    folder = local_folder(folder)
    if not folder.exists():
        raise _missing_folder_error(folder)
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


def _missing_folder_error(folder: Path) -> RegardError:
    """Error for a name that is not a folder: a preset, a name of the Hub, or a typo."""
    name, parent = str(folder), folder.parent
    on_hub = describe_hub_name(name)
    if resolve_preset_name(name) in index.presets():
        trained = "Train the preset with 'regard train', and pass the run folder."
        return RunError(
            f"{name} is a preset (random weights), not a folder. {trained}"
            + (f" For pretrained weights: {on_hub}" if on_hub else "")
        )
    if on_hub and not parent.is_dir():
        return RunError(f"Unknown folder '{name}'. {on_hub}")
    if on_hub and parent == Path():
        return RunError(on_hub)
    beside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    return UnknownFolderError("folder", folder, beside, "Train a model with 'regard train', or run 'regard demo'.")


def check_format(folder: Path, metadata: dict[str, Any]) -> None:
    """Raise an error for metadata of another version of regard."""
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
    """True if a name is an existing folder, a path or `hf:ORG/NAME`; False for a preset."""
    return Path(name).is_dir() or os.sep in name or name.startswith(PREFIX)


def absolute_folder(name: str) -> str:
    """Absolute path of a model folder; for `hf:ORG/NAME`, of the snapshot in the cache."""
    return os.path.abspath(local_folder(name))


def find_system_name(folder: Path) -> str | None:
    """Name of the system of a model folder; None if it is unknown."""
    published, own = read_config_files(folder)
    name = own["system"] if own else index.model_types().get(str(published.get("model_type")))
    return name if name in index.load_index()["systems"] else None
