"""What is to be trained: a preset, a folder to start from, or a run that goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.config import as_dict, from_dict, override
from regard.decode.settings import Decode
from regard.errors import RunError, SettingError
from regard.folders import is_folder
from regard.loading import seen_through
from regard.model import Identity, Model, load
from regard.runs.folder import RunFolder
from regard.runs.settings import Settings, check_model, differences, resolve
from regard.systems import SYSTEMS, find_preset, find_system
from regard.tasks import Task
from regard.tasks.text_heads import take_bias
from regard.weights.tables import matches


@dataclass(frozen=True)
class Sources:
    """Where a run's data lies."""

    data: tuple[str, ...]
    valid: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"data": list(self.data), "valid": list(self.valid), "columns": dict(self.columns)}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Sources:
        return cls(tuple(kept["data"]), tuple(kept["valid"]), tuple(sorted(kept["columns"].items())))


@dataclass(frozen=True)
class Asked:
    """What a person said."""

    task: Task
    model: str | None
    sources: Sources
    said: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Order:
    """What follows from it."""

    identity: Identity
    reader: Any
    """what turns samples into tensors, where a folder brings it; None: it is made"""
    settings: Settings
    sources: Sources
    preset: str
    start: Path | None = None
    """the folder whose weights training starts from"""

    @property
    def brought(self) -> Path | None:
        """The same, or that of a part of the model alone."""
        return self.start or getattr(self.identity.config, "folder", None)


def new_order(asked: Asked) -> Order:
    if not asked.sources.data:
        raise SettingError("there is no data. Name files with --data.")
    name = asked.model or asked.task.model
    if is_folder(name):
        name = os.path.abspath(name)
        loaded = load(name, task=asked.task.name)
        for key in ("tokenizer", "vocabulary", "kind"):
            if key in asked.said.get("data", {}):
                raise SettingError(f"data.{key} cannot be set here: {name} brings its own tokenizer.")
        recipe = loaded.identity.system.further.get(asked.task.name, {})
        settings = resolve({**recipe, "decode": as_dict(loaded.identity.decode)}, asked.said)
        reader, config = loaded.reader_or_refuse(), loaded.config
        if (
            loaded.fresh and loaded.text is not None
        ):  # a head that was published without our special tokens has learnt to do without
            reader = asked.task.grow(reader, config)
            config = replace(config, vocabulary=max(config.vocabulary, reader.size))
        return _order(replace(loaded.identity, config=config), reader, settings, asked.sources, name, Path(name))
    system, preset = find_preset(name)
    if asked.task.name not in system.tasks:
        able = [key for key, other in SYSTEMS.items() if asked.task.name in other.tasks]
        raise SettingError(
            f"{name} cannot do the task '{asked.task.name}'. Systems that can: {', '.join(able)}; try {asked.task.model}."
        )
    identity = Identity(system, asked.task.bodied(preset.config), asked.task, source=name)
    return _order(
        identity, None, resolve(system.recipe(preset, asked.task.name), asked.said), asked.sources, name, None
    )


def _order(
    identity: Identity, reader: Any, settings: Settings, sources: Sources, name: str, start: Path | None
) -> Order:
    check_model(settings.model, identity.task.worded)
    said = seen_through(identity.config, settings.model)
    config = identity.task.bodied(override(identity.config, said, "model."))
    if start is None and getattr(config, "frozen", False) and config.folder is None:
        raise SettingError(
            f"model.frozen=true: what {name} sees through would never learn, and {config.encoder} has learnt nothing yet. "
            "Name a folder of a model that has, --set model.encoder=FOLDER, or let it learn, --set model.frozen=false."
        )
    if start is not None and getattr(config, "encoder", "") != getattr(identity.config, "encoder", ""):
        raise SettingError(f"model.encoder cannot be set here: {name} brings what it sees through.")
    # as the config reads them: "32" on a command line and 32 in a file are the same
    settings = replace(settings, model={key: getattr(config, key) for key in settings.model})
    return Order(replace(identity, config=config, decode=settings.decode), reader, settings, sources, name, start)


def old_order(asked: Asked, folder: RunFolder) -> Order:
    """What the run was started with. Anything said now that differs from it is refused by name."""
    old = folder.facts()
    if not {"sources", "settings", "preset", "found"} <= old.keys():
        raise RunError(f"{folder.path}: is a saved model, not a run that can go on. Start from it with --model.")
    kept = Sources.from_dict(old["sources"])
    system = find_system(old["system"])
    settings = resolve(old["settings"], asked.said)
    config = from_dict(system.config, old["model"], "model.")
    changes = override(config, seen_through(config, settings.model), "model.")
    settings = replace(settings, model={key: getattr(changes, key) for key in settings.model})
    changed = differences(resolve(old["settings"], {}).as_dict(), settings.as_dict())
    # the one that changes no result, and that a machine with less memory may need otherwise
    changed = [change for change in changed if not change.startswith("data.workers:")]
    changed += [f"task: {old['task']} -> {asked.task.name}"] * (old["task"] != asked.task.name)
    named = os.path.abspath(asked.model) if asked.model and is_folder(asked.model) else asked.model
    changed += [f"model: {old['preset']} -> {named}"] * (named not in (None, old["preset"]))
    for name in ("data", "valid", "columns"):
        now, before = getattr(asked.sources, name), getattr(kept, name)
        changed += [f"{name}: {_words(before)} -> {_words(now)}"] * (bool(now) and now != before)
    if changed:
        longer = " To train longer, start a new run from it with --model." if "train.steps" in changed[0] else ""
        raise RunError(
            f"{folder.path}: the run was started otherwise ({'; '.join(changed)}). Leave that out, or choose another "
            f"--out.{longer}"
        )
    decode = from_dict(Decode, old["decode"], "decode.")
    start = Path(old["preset"]) if is_folder(old["preset"]) else None
    task = asked.task.of(start if start is not None and start.is_dir() else folder.path)
    identity = Identity(system, config, task, decode, str(old["preset"]))
    return Order(identity, task.reader(folder.path), settings, kept, str(old["preset"]), start)


def _words(values: Sequence[Any]) -> str:
    return " ".join("=".join(value) if isinstance(value, tuple) else str(value) for value in values) or "none"


def start_from(fresh: Model, folder: Path, changes: Mapping[str, Any]) -> list[str]:
    """Put the folder's weights into a fresh model of the same sizes, which may have tokens and a head beyond those.

    `changes` are the settings model.* that were said. Returns what was left out, and what stays as it was made."""
    loaded = load(folder, task=fresh.task.name)
    ours, spare = fresh.body.state_dict(), fresh.identity.system.names.optional
    theirs = {name: part for name, part in loaded.body.state_dict().items() if name in ours or not matches(spare, name)}
    before, now = (getattr(model.config, "vocabulary", 0) for model in (loaded, fresh))
    for name in ours:
        old, new = theirs.get(name), ours[name]
        if (
            old is not None
            and before < now
            and (len(old), len(new)) == (before, now)
            and old.shape[1:] == new.shape[1:]
        ):
            theirs[name] = torch.cat([old.to(new.dtype), new[before:]])
        if name not in theirs or theirs[name].shape != ours[name].shape:
            said = ", ".join(f"model.{key}={value}" for key, value in changes.items())
            raise SettingError(f"{folder} has other sizes than {said} asks for ({name}). Leave settings of size out.")
    fresh.body.load_state_dict(theirs)
    made = [f"{now - before} new tokens"] * (before < now)
    left = [note for note in loaded.notes if note.startswith("left out")]
    if fresh.head is not None:
        same = not loaded.fresh and loaded.identity.labels == fresh.identity.labels
        if same:
            take_bias(fresh.head, loaded.head.state_dict())
            wanted = fresh.head.state_dict()  # it may ask less than theirs
            fresh.head.load_state_dict(
                {name: part for name, part in loaded.head.state_dict().items() if name in wanted}
            )
        else:
            made += [_new_head(fresh)]
        if not same and not loaded.fresh:
            left += [f"left out, as it has other classes: the head for {', '.join(loaded.identity.labels)}"]
    return left + [", ".join(made)] * bool(made)


def _new_head(model: Model) -> str:
    many, size = len(model.identity.labels), sum(value.numel() for value in model.head.parameters())
    return f"a new head{f' for {many} classes' if many else ''} of {size:,} parameters"


def listed(task: Task, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """One path, pattern or several, as files that a run can find again from anywhere."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return tuple(task.lasting(entry) for entry in task.entries([os.fspath(path) for path in given]))
