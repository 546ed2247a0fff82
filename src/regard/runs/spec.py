"""Specification of a training run: from a preset, from a checkpoint folder, or resumed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.config import as_dict, from_dict, override
from regard.data.file_discovery import IMAGE_SUFFIXES
from regard.data.text.files import split_parallel
from regard.data.text.formats import file_format, read_header
from regard.data.text.tables import first_value
from regard.data.training_files import DataSources
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, RunError, SettingError
from regard.index import PRESET_ALIASES, absolute_folder, is_folder_path, read_config_files
from regard.model import Model, ModelSpec, load
from regard.runs.folder import RunFolder
from regard.runs.settings import Settings, diff_settings, resolve
from regard.systems import SYSTEMS, find_checkpoint_system, find_preset, find_system
from regard.tasks import TASKS, Task, find_task
from regard.tasks.base import HeadOptions
from regard.weights.convert import UNUSED_WEIGHTS, add_bias
from regard.weights.tables import matches


@dataclass(frozen=True)
class TrainSpec:
    """Complete specification of a run."""

    identity: ModelSpec
    processor: Any  # processor of a checkpoint folder; None: a new processor is created
    settings: Settings
    sources: DataSources

    @property
    def init_folder(self) -> Path | None:
        """The folder whose weights training starts from; None for a preset."""
        return Path(self.identity.source) if os.path.isabs(self.identity.source) else None

    @property
    def weights_folder(self) -> Path | None:
        """`init_folder`, or the folder with the weights of a part of the model."""
        part = self.identity.config.encoder_folder if self.identity.system.part else None
        return self.init_folder or part


def new_spec(
    task: Task, model: str | None, sources: DataSources, overrides: Mapping[str, Mapping[str, Any]]
) -> TrainSpec:
    """Specification of a new run, from a preset or a checkpoint folder."""
    if not sources.data:
        raise SettingError("No training data given. Add --data FILES.")
    name = model or task.default_model
    name = PRESET_ALIASES.get(name, name)
    if is_folder_path(name):
        name = absolute_folder(name)
        loaded = load(name, task=task.name)
        for key in ("tokenizer", "vocab_size", "tokenizer_type"):
            if key in overrides.get("data", {}):
                raise SettingError(f"data.{key} cannot be set here: {name} brings its own tokenizer.")
        identity, processor = loaded.spec, loaded.require_processor()
        recipe = {**identity.system.task_recipes.finetuning.get(task.name, {}), "decode": as_dict(identity.decode)}
        settings = resolve(recipe, overrides)
        # an existing head was trained without these special tokens
        if loaded.has_new_head and loaded.tokenizer is not None:
            processor = task.modality.build_processor(processor, loaded.config)
            size = max(loaded.config.vocab_size, processor.size)
            identity = replace(identity, config=replace(loaded.config, vocab_size=size))
        start_config = identity.config
    else:
        system, preset = find_preset(name)
        if task.name not in system.tasks:
            able = [key for key, other in SYSTEMS.items() if task.name in other.tasks]
            raise SettingError(
                f"Model '{name}' does not support task '{task.name}'. Supported: {', '.join(able)}. "
                f"Try --model {task.default_model}."
            )
        settings, processor, start_config = resolve(system.recipe(preset, task.name), overrides), None, None
        identity = ModelSpec(system, preset.config, task, settings.decode, name)
    advice = {"vocab_size": " Set data.vocab_size.", "pad_id": "", "bos_id": "", "eos_id": "", "mask_id": ""}
    for key in settings.model:
        if key in advice and task.modality.has_text:
            raise SettingError(f"model.{key} follows from the tokenizer and cannot be set.{advice[key]}")
    part = identity.system.part
    overrides = part.resolve(identity.config, settings.model) if part else settings.model
    config = task.objective.adapt_config(override(identity.config, overrides, "model."))
    if part:
        part.check(config, start_config, name)
    # values parsed by the config: "32" on the command line equals 32 in a file
    settings = replace(settings, model={key: getattr(config, key) for key in settings.model})
    identity = replace(identity, config=config, decode=settings.decode)
    return TrainSpec(identity, processor, settings, sources)


def resume_spec(
    task: Task, model: str | None, sources: DataSources, overrides: Mapping[str, Mapping[str, Any]], folder: RunFolder
) -> TrainSpec:
    """Specification of the existing run. Arguments that differ from the run are an error."""
    old = folder.read_metadata()
    if not {"sources", "settings", "preset", "data_stats"} <= old.keys():
        raise RunError(
            f"{folder.path} is a saved model without training state and cannot be resumed. Use it as --model."
        )
    kept = DataSources.from_dict(old["sources"])
    system = find_system(old["system"])
    settings = resolve(old["settings"], overrides)
    config = from_dict(system.config, old["model"], "model.")
    changes = override(config, system.part.resolve(config, settings.model) if system.part else settings.model, "model.")
    settings = replace(settings, model={key: getattr(changes, key) for key in settings.model})
    changed = diff_settings(as_dict(resolve(old["settings"], {})), as_dict(settings))
    # num_workers changes no result, and another machine may need another value
    changed = [change for change in changed if not change.startswith("data.num_workers:")]
    changed += [f"task: {old['task']} -> {task.name}"] * (old["task"] != task.name)
    if model is not None:
        name = absolute_folder(model) if is_folder_path(model) else PRESET_ALIASES.get(model, model)
        changed += [f"model: {old['preset']} -> {name}"] * (name != old["preset"])
    for name in ("data", "valid", "columns"):
        now, before = getattr(sources, name), getattr(kept, name)
        changed += [f"{name}: {_format_values(before)} -> {_format_values(now)}"] * (bool(now) and now != before)
    if changed:
        longer = f" To train longer, start a new run: --model {folder.path} --out NEW."
        raise RunError(
            f"{folder.path}: a resumed run cannot change these settings ({'; '.join(changed)}). Remove them, or choose "
            f"another --out.{longer if 'train.steps' in changed[0] else ''}"
        )
    decode = from_dict(DecodeSettings, old["decode"], "decode.")
    source = str(old["preset"])
    origin = Path(source) if os.path.isabs(source) and os.path.isdir(source) else folder.path
    options = task.objective.options.load(HeadOptions(), origin)
    identity = ModelSpec(system, config, task, decode, source, options)
    return TrainSpec(identity, task.modality.load_processor(folder.path), settings, kept)


def _format_values(values: Sequence[str] | Mapping[str, str]) -> str:
    return " ".join(map("=".join, sorted(values.items())) if isinstance(values, Mapping) else values) or "none"


def load_initial_weights(new_model: Model, folder: Path, overrides: Mapping[str, Any]) -> list[str]:
    """Load the weights of a folder into a new model of the same sizes, which may have additional tokens and a new head.

    `overrides` are the settings model.* of the user. Returns notes about unused weights and randomly initialized parts."""
    loaded = load(folder, task=new_model.task.name)
    ours, spare = new_model.body.state_dict(), new_model.spec.system.published.names.optional
    theirs = {name: part for name, part in loaded.body.state_dict().items() if name in ours or not matches(spare, name)}
    before, now = (model.config.traits.vocab_size for model in (loaded, new_model))
    for name in ours:
        old, new = theirs.get(name), ours[name]
        if before < now and old is not None and len(new) == now and old.shape == (before, *new.shape[1:]):
            theirs[name] = torch.cat([old.to(new.dtype), new[before:]])
        if name not in theirs or theirs[name].shape != ours[name].shape:
            said = ", ".join(f"model.{key}={value}" for key, value in overrides.items())
            raise SettingError(
                f"{folder}: {name} does not have the size set by {said}. Remove these settings: the folder defines the sizes."
            )
    new_model.body.load_state_dict(theirs)
    made = [f"{now - before} new tokens"] * (before < now)
    left = [note for note in loaded.notes if note.startswith(UNUSED_WEIGHTS)]
    if new_model.head is not None:
        same = not loaded.has_new_head and loaded.spec.options.labels == new_model.spec.options.labels
        if same:
            head = loaded.head.state_dict()
            add_bias(new_model.head, head)
            wanted = new_model.head.state_dict()  # the new head may have fewer tensors
            new_model.head.load_state_dict({name: part for name, part in head.items() if name in wanted})
        else:
            many, size = len(new_model.spec.options.labels), sum(part.numel() for part in new_model.head.parameters())
            made += [f"new head{f' for {many} classes' if many else ''} ({size:,} parameters)"]
        if not same and not loaded.has_new_head:
            left += [
                f"{UNUSED_WEIGHTS} the head of {folder} for other classes ({', '.join(loaded.spec.options.labels)})."
            ]
    return left + [f"Newly initialized: {', '.join(made)}."] * bool(made)


# -- input modality of a command: text, image or points, from the model or else from the data


def resolve_task(
    name: str, model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None = None
) -> Task:
    """Task of this name for the modality of the model or data; `run`: the run to resume."""
    first = find_task(name)
    inputs = [task.input for task in TASKS if task.name == first.name]
    if len(inputs) < 2:
        return first
    detected = _detect_modality(model, data, columns, run)
    return find_task(name, detected) if detected in inputs else first


def _detect_modality(
    model: str | None, data: Sequence[str], columns: Mapping[str, str] | None, run: RunFolder | None
) -> str:
    if run is not None and run.exists():
        return find_system(str(run.read_metadata()["system"])).modality
    if model is not None:
        if not is_folder_path(model):
            return find_preset(model)[0].modality
        published, own = read_config_files(Path(model))
        return find_checkpoint_system(published, own).modality
    from regard.data.points.labeled import is_cloud_data

    if any(is_cloud_data(entry, columns) for entry in data):
        return "points"
    return "image" if any(_is_image_data(entry, columns or {}) for entry in data) else "text"


def _is_image_data(entry: str, columns: Mapping[str, str]) -> bool:
    """True for a folder, two parallel folders, or a table with an image column."""
    if "image" in columns or any(os.path.isdir(os.path.expanduser(side)) for side in split_parallel(entry) or (entry,)):
        return True
    from regard.data.file_samples import COLUMN_ALIASES

    try:
        header = read_header(entry)
    except (RegardError, OSError):  # the reader reports the error
        return False
    # The first four column names are specific to images; the others may be files of any kind.
    certain, unsure = COLUMN_ALIASES["image"][:4], COLUMN_ALIASES["image"][4:]
    return any(name.lower() in certain for name in header) or any(
        file_format(first_value(entry, name)) in IMAGE_SUFFIXES for name in header if name.lower() in unsure
    )
