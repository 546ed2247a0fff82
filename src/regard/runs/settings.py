"""Settings of a run: recipe of the preset, overridden by a settings file, overridden by the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.config import check_values, override
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings, apply_overrides
from regard.errors import SettingError, suggest
from regard.index import (
    PRESET_ALIASES,
    RELATED,
    SYNONYMS,
    check_preset,
    check_task,
    is_folder_path,
    load_index,
    model_types,
    presets,
    read_config_files,
    resolve_setting,
)
from regard.training.settings import TrainSettings

GROUPS = {"data": DataSettings, "train": TrainSettings, "decode": DecodeSettings}


@dataclass(frozen=True)
class Settings:
    data: DataSettings
    train: TrainSettings
    decode: DecodeSettings
    model: dict[str, Any]  # overrides of the preset's config


def collect_overrides(
    assignments: Iterable[str] | Mapping[str, Any] = (), file: str | os.PathLike[str] | None = None
) -> dict[str, dict[str, Any]]:
    """User settings by group: a settings file, then `group.name=value` or a mapping of names, which override the file.
    Raise an error for unknown names and values of wrong types in the groups data, train and decode.

    Setting names of other tools are translated; one line on standard error names the setting of regard. Limits of values
    and conflicts between settings depend on the preset and are checked by `resolve`."""
    found: dict[str, dict[str, Any]] = {} if file is None else read_settings(os.fspath(file))
    named = assignments if isinstance(assignments, Mapping) else {}
    for text in [f"{name}={value}" for name, value in named.items()] if named else assignments:
        name, sign, value = text.partition("=")
        group, dot, key = name.strip().partition(".")
        if not (sign and dot and group and key):
            known = {*(row["setting"] for row in load_index()["settings"]), *SYNONYMS, *RELATED}
            whole = sorted(setting for setting in known if setting.partition(".")[2] == name.strip())
            if whole:  # a name without its group, such as `lr` or `learning_rate`
                raise SettingError(f"Unknown setting '{name.strip()}'. Did you mean {' or '.join(map(repr, whole))}?")
            raise SettingError(f"'{text}' is not a setting. Use group.name=value, for example train.steps=1000.")
        found.setdefault(group, {})[key] = value.strip()
    for name, value in named.items():
        if isinstance(value, Mapping | list | tuple):  # unchanged: the command line has another notation
            group, _, key = name.partition(".")
            found[group][key] = value
    said: dict[str, dict[str, Any]] = {}
    for group, values in found.items():
        for key, value in values.items():
            setting, changed = resolve_setting(f"{group}.{key}", value)
            to, _, name = setting.partition(".")
            said.setdefault(to, {})[name] = changed
        said.setdefault(group, {})
    for group, values in said.items():
        if group in GROUPS:
            check_values(GROUPS[group], values, f"{group}.")
        elif group != "model":
            raise SettingError(f"Unknown settings group '{group}'. {suggest(str(group), (*GROUPS, 'model'))}")
    return said


def read_settings(path: str | Path) -> dict[str, dict[str, Any]]:
    """Settings by group from a YAML or JSON file: `train: {steps: 100}`."""
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: cannot read the settings file ({error}).") from error
    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise SettingError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'YAML'} ({error}).") from error
    grouped: dict[Any, Any] = {}
    for key, value in values.items() if isinstance(values, dict) else [("", None)]:
        group, dot, name = str(key).partition(".")
        if dot:  # a top-level key such as `train.steps: 100`
            key, value = group, {name: value}
        if not isinstance(value, dict):
            raise SettingError(f"{path}: expected groups of settings, for example 'train:' with 'steps: 1000' below.")
        grouped.setdefault(key, {}).update(value)
    return grouped


def check_names(
    task: str,
    model: str | None,
    assignments: Iterable[str] = (),
    file: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> None:
    """Raise an error for an unknown task, preset or setting of a training run, before torch is imported.

    With `resume` the run folder defines the system, and `resume_spec` checks the settings `model.*`."""
    overrides = collect_overrides(assignments, file)
    task = check_task(task)
    rows = [row for row in load_index()["tasks"] if row["task"] == task]
    systems = set[str | None]()
    # the default model may depend on the data
    for name in () if resume else [row["model"] for row in rows] if model is None else [model]:
        if is_folder_path(name):
            published, own = read_config_files(Path(name))
            systems.add(own["system"] if own else model_types().get(str(published.get("model_type"))))
        else:
            check_preset(name)
            systems.add(presets()[PRESET_ALIASES.get(name, name)])
    system = systems.pop() if len(systems) == 1 else None
    known = [row["setting"].removeprefix("model.") for row in load_index()["settings"] if row["system"] == system]
    for name in overrides.get("model", ()) if known else ():
        if name not in known:
            raise SettingError(f"Unknown setting 'model.{name}'. {suggest(name, known, 'model.')}")


def resolve(recipe: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Mapping[str, Any]]) -> Settings:
    made: dict[str, Any] = {}
    for name, kind in GROUPS.items():
        usual, asked = override(kind(), recipe.get(name, {}), f"{name}."), overrides.get(name)
        if asked:
            usual = apply_overrides(usual, asked) if name == "decode" else override(usual, asked, f"{name}.")
        made[name] = usual
    if {"steps", "epochs"} <= overrides.get("train", {}).keys() and made["train"].epochs:
        raise SettingError("train.steps and train.epochs exclude each other. Set one of them.")
    if "steps" in overrides.get("train", {}):  # overrides the epochs of the recipe
        made["train"] = replace(made["train"], epochs=0.0)
    return Settings(**made, model={**recipe.get("model", {}), **overrides.get("model", {})})


def diff_settings(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Differences such as `train.lr: 0.001 -> 0.002`."""
    found = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += diff_settings(a, b, f"{prefix}{key}.")
        elif a != b and not (isinstance(a, list | tuple) and isinstance(b, list | tuple) and [*a] == [*b]):
            found.append(f"{prefix}{key}: {a} -> {b}")
    return found
