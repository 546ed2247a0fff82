"""Input modality of a command: text, image or points, from the model or else from the data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.data.file_discovery import IMAGE_SUFFIXES as ENDINGS
from regard.data.sources import split_parallel
from regard.data.text.formats import file_format, read_header
from regard.data.text.tables import first_value
from regard.errors import RegardError
from regard.folders import is_folder_path, read_config_files
from regard.index import resolve_task_name
from regard.runs.folder import RunFolder
from regard.systems import find_by_model_type, find_preset, find_system
from regard.tasks import TASKS, Task, find_task


def resolve_task(
    name: str, model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None = None
) -> Task:
    """Task of this name for the modality of the model or data; `run`: the run to resume."""
    name = resolve_task_name(name)
    inputs = [task.input for task in TASKS if task.name == name]
    if len(inputs) < 2:
        return find_task(name)
    detected = _detect_modality(model, data, columns, run)
    return find_task(name, detected if detected in inputs else inputs[0])


def _detect_modality(
    model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None
) -> str:
    if run is not None and run.exists():
        return find_system(str(run.read_metadata()["system"])).modality
    if model is not None:
        if not is_folder_path(model):
            return find_preset(model)[0].modality
        published, own = read_config_files(Path(model))
        return (find_system(own["system"]) if own else find_by_model_type(str(published.get("model_type")))).modality
    from regard.data.points.labeled import is_cloud_data

    if any(is_cloud_data(entry, columns) for entry in data):
        return "points"
    return "image" if any(_is_image_data(entry, columns or {}) for entry in data) else "text"


def _is_image_data(entry: str, columns: Mapping[str, str]) -> bool:
    """True for a folder, two parallel folders, or a table with an image column."""
    if "image" in columns or any(os.path.isdir(os.path.expanduser(side)) for side in split_parallel(entry) or (entry,)):
        return True
    from regard.data.file_samples import COLUMN_ALIASES

    # The first four column names are specific to images; the others may be files of any kind.
    return _has_column(entry, COLUMN_ALIASES["image"][:4]) or _lists_images(entry, COLUMN_ALIASES["image"][4:])


def _lists_images(entry: str, words: Sequence[str]) -> bool:
    """True if the first value of an ambiguous file column is an image."""
    try:
        unsure = [name for name in read_header(entry) if name.lower() in words]
    except (RegardError, OSError):
        return False
    return any(file_format(first_value(entry, name)) in ENDINGS for name in unsure)


def _has_column(entry: str, names: Sequence[str]) -> bool:
    try:
        return any(name.lower() in names for name in read_header(entry))
    except (RegardError, OSError):  # the reader reports the error
        return False
