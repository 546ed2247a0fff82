"""Names and descriptions of all systems, presets, tasks and settings, read from a generated file without torch, and
setting names of other tools, accepted or explained.

`python -m regard.runs.catalog` writes the file; `make check` and a test fail if the file is out of date."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from regard.errors import SettingError, UnknownNameError, suggest

INDEX_PATH = Path(__file__).with_name("index.json")

PRESET_ADVICE = "See 'regard list presets'."
TASK_ADVICE = "See 'regard list tasks'."


@functools.cache
def load_index() -> dict[str, Any]:
    """Content of index.json: `systems`, `tasks` and `settings`; empty if the file is not generated yet."""
    if not INDEX_PATH.exists():
        return {"systems": {}, "tasks": [], "settings": []}
    found: dict[str, Any] = json.loads(INDEX_PATH.read_text(encoding="utf-8"))
    return found


def presets() -> dict[str, str]:
    """System name of each preset."""
    return {preset: name for name, system in load_index()["systems"].items() for preset in system["presets"]}


def model_types() -> dict[str, str]:
    """System name for each `model_type` in a Hugging Face config.json."""
    return {system["model_type"]: name for name, system in load_index()["systems"].items() if system["model_type"]}


def task_specific_settings() -> frozenset[str]:
    """Settings with an effect on some tasks only."""
    return frozenset(name for task in load_index()["tasks"] for name in task["settings"])


def processor_files() -> frozenset[str]:
    """File names of the tokenizers and processors of all tasks."""
    return frozenset(name for task in load_index()["tasks"] for name in task["reader_files"])


@functools.cache
def task_aliases() -> dict[str, str]:
    """Task of regard for pipeline names of Hugging Face and other common names."""
    return {alias: task["task"] for task in load_index()["tasks"] for alias in task.get("aliases", ())}


def resolve_task_name(name: str) -> str:
    """Task of regard for a pipeline name such as `token-classification`; other names are returned unchanged."""
    return task_aliases().get(name, name)


def check_task(name: str) -> None:
    """Raise an error for an unknown task."""
    known = [task["task"] for task in load_index()["tasks"]]
    if resolve_task_name(name) not in known:
        raise UnknownNameError("task", name, known, TASK_ADVICE)


def check_preset(name: str) -> None:
    """Refuse the name of a preset that does not exist."""
    if resolve_preset_name(name) not in presets():
        raise UnknownNameError("preset", name, presets(), PRESET_ADVICE)


def default_system(task: str) -> str | None:
    """Default system of a task; None if the default depends on the data."""
    name = resolve_task_name(task)
    found = {presets().get(row["model"]) for row in load_index()["tasks"] if row["task"] == name}
    return found.pop() if len(found) == 1 else None


def check_model_settings(names: Iterable[str], system: str) -> None:
    """Raise an error for an unknown setting `model.*` of a system."""
    known = [row["setting"].removeprefix("model.") for row in load_index()["settings"] if row["system"] == system]
    for name in names:
        if name not in known:
            raise SettingError(f"Unknown setting 'model.{name}'. {suggest(name, known, 'model.')}")


def list_rows(
    kind: str, group: str | None = None, model: str | None = None, task: str | None = None, search: str | None = None
) -> list[dict[str, Any]]:
    """Rows of `regard list`: models, presets, tasks or settings, filtered by group, preset, task and search word."""
    tables = {"models": _model_rows, "presets": _preset_rows, "tasks": _task_rows, "settings": _setting_rows}
    if kind not in tables:
        raise UnknownNameError("list", kind, tables)
    if group is not None and (kind != "settings" or group not in SETTING_GROUPS):
        raise UnknownNameError("group of settings", group, SETTING_GROUPS)
    if model is not None:
        check_preset(model)
    if task is not None:
        check_task(task)
        task = resolve_task_name(task)
    rows = tables[kind](group, model, task)
    word = (search or "").lower()
    return [row for row in rows if word in " ".join(map(str, row.values())).lower()]


SETTING_GROUPS = ("data", "train", "decode", "model")


def _models(model: str | None, task: str | None) -> list[dict[str, Any]]:
    systems = [{"system": name, **system} for name, system in load_index()["systems"].items()]
    chosen = None if model is None else presets()[resolve_preset_name(model)]
    return [one for one in systems if chosen in (None, one["system"]) and (task is None or task in one["tasks"])]


def _model_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    return [
        {"model": one["system"], "tasks": ", ".join(one["tasks"]), "description": one["about"]}
        for one in _models(model, task)
    ]


def _preset_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    return [
        {"preset": name, "model": one["system"], "parameters": f"{parameters:,}", "tasks": ", ".join(one["tasks"])}
        for one in _models(model, task)
        for name, parameters in one["presets"].items()
        if model in (None, name)
    ]


def _task_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    able = {(name, one["reads"]) for one in _models(model, None) for name in one["tasks"]}
    return [
        {
            "task": row["task"],
            "input": row["reads"],
            "columns": ", ".join(row["columns"]),
            "model": row["model"],
            "description": row["about"],
        }
        for row in load_index()["tasks"]
        if (row["task"], row["reads"]) in able and task in (None, row["task"])
    ]


def _setting_rows(group: str | None, model: str | None, task: str | None) -> list[dict[str, Any]]:
    """Settings with their defaults. Settings of models appear with a preset, or once per name with the group model."""
    system: str | None = None
    changed: dict[str, Any] = {}
    if model is not None:
        model = resolve_preset_name(model)
        system, changed = presets()[model], load_index()["presets"][model]
    used = {name for row in load_index()["tasks"] if task in (None, row["task"]) for name in row["settings"]}
    rows: dict[str, dict[str, Any]] = {}
    for row in load_index()["settings"]:
        name, of_model = row["setting"], row["system"] != "all"
        if group is not None and not name.startswith(f"{group}."):
            continue
        if of_model and (row["system"] != system if system else group != "model"):
            continue
        if task is not None and name in task_specific_settings() and name not in used:
            continue
        default = changed.get(name, row["default"])
        rows.setdefault(name, {"setting": name, "default": default, "description": row["about"]})
    return list(rows.values())


# -- names of other tools: a name in SYNONYMS is accepted; for a name in RELATED, the error names the setting to use

_NAMES_ELSEWHERE = {
    "train.lr": "learning_rate max_lr peak_lr base_lr",
    "train.epochs": "num_train_epochs num_epochs max_epochs max_epoch",
    "train.steps": "max_steps max_iters max_update num_steps train_steps total_steps",
    "train.grad_accum": "gradient_accumulation_steps accumulate_grad_batches update_freq grad_accum_steps",
    "train.grad_clip": "max_grad_norm gradient_clip_val clip_norm clip_grad",
    "train.warmup_steps": "warmup warmup_ratio warmup_iters warmup_updates",
    "train.lr_schedule": "lr_scheduler_type lr_scheduler scheduler sched",
    "train.label_smoothing": "label_smoothing_factor smoothing",
    "train.betas": "adam_betas",
    "train.eps": "adam_epsilon adam_eps",
    "train.weight_decay": "wd",
    "train.ema_decay": "model_ema_decay",
    "train.average_checkpoints": "average_last",
    "train.patience": "early_stopping_patience",
    "train.eval_every": "eval_steps eval_interval val_check_interval validate_interval_updates",
    "train.log_every": "logging_steps log_interval",
    "train.keep_checkpoints": "save_total_limit save_top_k keep_last_epochs",
    "train.precision": "dtype",
    "train.batch_tokens": "max_tokens",
    "train.compile": "torch_compile",
    "train.deterministic": "use_deterministic_algorithms",
    "train.seed": "random_seed",
    "train.packing": "pack",
    "data.max_length": "max_len max_seq_length max_source_length",
    "data.vocab_size": "vocabulary_size",
    "data.tokenizer_type": "bpe",
    "data.valid_fraction": "val_split valid_split test_size",
    "data.mask_prob": "mlm_probability",
    "data.num_workers": "workers dataloader_num_workers",
    "model.image_size": "imgsz img_size",
    "data.color_jitter": "jitter_color",
    "data.random_erasing": "reprob",
    "data.mixup": "mixup_alpha",
    "data.stride": "doc_stride",
    "decode.num_beams": "beam_size beam",
    "decode.num_return_sequences": "nbest n",
    "decode.length_penalty": "lenpen",
    "decode.max_new_tokens": "max_tokens",
    "decode.stop_strings": "stop",
    "decode.repetition_penalty": "rep_pen",
}
SYNONYMS = {
    f"{'data' if setting == 'model.image_size' else setting.partition('.')[0]}.{name}": setting
    for setting, names in _NAMES_ELSEWHERE.items()
    for name in names.split()
}
"""Name in Hugging Face, fairseq, Lightning, timm, nanoGPT and others: setting of regard."""

VALUES = {"decode.early_stopping": {"true": "always", "false": "heuristic"}}
"""Setting -> value in Hugging Face -> value in regard."""

HINTS = {
    "train.warmup_ratio": "a value below 1 is a fraction of train.steps",
}
"""Difference to mention when a synonym is accepted."""

RELATED = {
    "train.warmup_epochs": ("train.warmup_steps", "counted in steps"),
    "train.adam_beta1": ("train.betas", "two values, 0.9,0.98"),
    "train.beta2": ("train.betas", "two values, 0.9,0.98"),
    "train.ema": ("train.ema_decay", "a decay such as 0.999"),
    "train.early_stopping": ("train.patience", "a number of evaluations"),
    "train.save_steps": ("train.eval_every", "each evaluation saves"),
    "train.bf16": ("train.precision", "train.precision=bfloat16"),
    "train.fp16": ("train.precision", "bfloat16 or float32"),
    "train.amp": ("train.precision", "train.precision=bfloat16"),
    "train.per_device_train_batch_size": ("train.batch_size", "images and point clouds; for text train.batch_tokens"),
    "train.batch": ("train.batch_size", "images and point clouds; for text train.batch_tokens"),
    "train.layer_decay": ("train.lr_overrides", "one rate per pattern"),
    "data.block_size": ("model.max_length", "the context belongs to the model"),
    "data.hflip": ("data.flip", "true or false"),
    "data.random_crop": ("data.crop_scale", "minimum area fraction"),
    "decode.greedy": ("decode.temperature", "decode.temperature=0"),
}
"""Name elsewhere: the related setting of regard, and the difference."""


@functools.cache
def print_note(line: str) -> None:
    """Print a line to standard error, once per process."""
    print(line, file=sys.stderr)


PRESET_ALIASES = {
    "show-and-tell": "caption-fixed-base",
    "show-attend-tell": "caption-attend-base",
    "seq2seq-lstm": "rnn-sutskever",
}
"""Presets by the name of their paper."""


def resolve_preset_name(name: str) -> str:
    """Preset of regard for the name of a paper; other names are returned unchanged."""
    return PRESET_ALIASES.get(name, name)


def resolve_value(setting: str, value: Any) -> Any:
    """Value of regard for a value such as early_stopping=True; other values are returned unchanged."""
    return VALUES.get(setting, {}).get(str(value).lower(), value)


def resolve_name(name: str, note: Callable[[str], None]) -> str:
    """Setting of regard for a name such as `train.learning_rate`; other names are returned unchanged.

    `note` receives one line if the name was translated. A name without an exact counterpart raises `SettingError`."""
    if name in RELATED and name != "data.block_size":  # also a setting of point clouds
        setting, difference = RELATED[name]
        raise SettingError(f"Unknown setting '{name}'. Use {setting} instead ({difference}).")
    if name not in SYNONYMS:
        return name
    hint = f" ({HINTS[name]})" if name in HINTS else ""
    note(f"note: {name} is called {SYNONYMS[name]}{hint}.")
    return SYNONYMS[name]
