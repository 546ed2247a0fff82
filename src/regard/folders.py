"""Folders of trained or published models, recognized and identified by their JSON files without torch."""

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
"""Published layouts that a model can be written in."""

METADATA_FILE = "regard.json"
"""What a folder of ours says beside the published layout."""


def read_config_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and regard.json of a folder; a clear refusal when it is none of ours or theirs."""
    if not folder.exists():
        if str(folder) in index.presets():
            raise RunError(
                f"{folder} is a preset, which has learnt nothing yet: train it, and name the folder of its run."
            )
        parent = folder.parent
        beside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        raise UnknownFolderError("folder", folder, beside, "Train one with 'regard train', or see 'regard demo'.")
    if not (folder / "config.json").exists():
        if (folder / "checkpoints").is_dir():
            advice = "it was stopped before its first validation, or has not come to it. Go on with it by --resume"
            raise RunError(f"{folder}: the run has no model yet: {advice}.")
        raise RunError(f"{folder}: is no run and no published model: it has no config.json and model.safetensors.")
    try:
        published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        own_file = folder / METADATA_FILE
        own = json.loads(own_file.read_text(encoding="utf-8")) if own_file.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: its config.json or {METADATA_FILE} cannot be read ({error}).") from error
    if not isinstance(published, dict) or not isinstance(own, dict):
        raise RunError(f"{folder}: its config.json or {METADATA_FILE} is not a JSON object.")
    if own_file.exists():
        _check_metadata(folder, own)
    return published, own


def _check_metadata(folder: Path, own: dict[str, Any]) -> None:
    for key, kind in (("system", str), ("task", str), ("model", dict), ("decode", dict)):
        if not isinstance(own.get(key), kind):
            raise RunError(f"{folder}: its {METADATA_FILE} does not say '{key}' as it should.")


def is_folder_path(name: str) -> bool:
    """Whether a name means a folder rather than a preset: it is there, or is written as a path."""
    return Path(name).is_dir() or os.sep in name


def find_system_name(folder: Path) -> str | None:
    """The name of the system that a folder's files give; None where no system of that name or `model_type` exists."""
    published, own = read_config_files(folder)
    name = own["system"] if own else index.model_types().get(str(published.get("model_type")))
    return name if name in index.load_index()["systems"] else None
