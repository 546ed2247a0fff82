"""What kind of samples a command means: texts, pictures or clouds, by the model that is named, else by the data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from regard.data.file_discovery import PICTURES as ENDINGS
from regard.data.sources import parallel
from regard.data.text.tables import first_value, format_of, heading
from regard.errors import RegardError
from regard.folders import is_folder, read_identity
from regard.runs.folder import RunFolder
from regard.systems import find_preset, find_published, find_system
from regard.tasks import Task, find_task, forms


def task_for(
    name: str, model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None = None
) -> Task:
    """The task of this name in the form for what is to be read; `run`: one that goes on."""
    known = [reads for reads, table in forms().items() if name in table]
    if len(known) < 2:
        return find_task(name)
    reads = _reads(model, data, columns, run)
    return find_task(name, reads if reads in known else known[0])


def _reads(model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None) -> str:
    if run is not None and run.exists():
        return find_system(str(run.facts()["system"])).reads
    if model is not None:
        if not is_folder(model):
            return find_preset(model)[0].reads
        published, own = read_identity(Path(model))
        return (find_system(own["system"]) if own else find_published(str(published.get("model_type")))).reads
    from regard.data.points.labeled import is_clouds

    if any(is_clouds(entry, columns) for entry in data):
        return "points"
    return "pictures" if any(_pictured(entry, columns or {}) for entry in data) else "text"


def _pictured(entry: str, columns: Mapping[str, str]) -> bool:
    """A folder, two folders side by side, or a table that has a column of pictures."""
    if "image" in columns or any(os.path.isdir(os.path.expanduser(side)) for side in parallel(entry) or (entry,)):
        return True
    from regard.data.images.tables import CALLED

    # the first four names of a column mean pictures; the others may mean files of any kind
    return _has_column(entry, CALLED["image"][:4]) or _lists(entry, CALLED["image"][4:])


def _lists(entry: str, words: Sequence[str]) -> bool:
    """Whether a column that may mean files of any kind begins with a picture."""
    try:
        unsure = [name for name in heading(entry) if name.lower() in words]
    except (RegardError, OSError):
        return False
    return any(format_of(first_value(entry, name)) in ENDINGS for name in unsure)


def _has_column(entry: str, names: Sequence[str]) -> bool:
    try:
        return any(name.lower() in names for name in heading(entry))
    except (RegardError, OSError):  # what is wrong with it is said where it is read
        return False
