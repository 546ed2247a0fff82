"""Names of systems, presets, tasks, settings, model folders and modules, all resolved without torch.

`python tools/write_index.py` writes index.json; `make check` and a test fail if the file is out of date."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import RegardError, RunError, SettingError, UnknownFolderError, UnknownNameError

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


def check_task(name: str) -> str:
    """Task of this name, or of a pipeline name such as `token-classification`; raise an error for other names."""
    rows = load_index()["tasks"]
    for row in rows:
        if name == row["task"] or name in row["aliases"]:
            return str(row["task"])
    raise UnknownNameError("task", name, (row["task"] for row in rows), TASK_ADVICE)


def list_rows(
    kind: str, group: str | None = None, model: str | None = None, task: str | None = None, search: str | None = None
) -> list[dict[str, Any]]:
    """Rows of `regard list`: models, presets, tasks or settings, filtered by group, preset, task and search word."""
    kinds, groups = ("models", "presets", "tasks", "settings"), ("data", "train", "decode", "model")
    if kind not in kinds:
        raise UnknownNameError("list", kind, kinds)
    if group is not None and (kind != "settings" or group not in groups):
        raise UnknownNameError("group of settings", group, groups)
    system: str | None = None
    if model is not None:
        if PRESET_ALIASES.get(model, model) not in presets():
            raise UnknownNameError("preset", model, presets(), PRESET_ADVICE)
        model = PRESET_ALIASES.get(model, model)
        system = presets()[model]
    if task is not None:
        task = check_task(task)
    systems = [(name, one) for name, one in load_index()["systems"].items() if system in (None, name)]
    able = [(name, one) for name, one in systems if task is None or task in one["tasks"]]
    if kind == "models":
        rows = [{"model": name, "tasks": ", ".join(one["tasks"]), "description": one["about"]} for name, one in able]
    elif kind == "presets":
        rows = [
            {"preset": preset, "model": name, "parameters": f"{size:,}", "tasks": ", ".join(one["tasks"])}
            for name, one in able
            for preset, size in one["presets"].items()
            if model in (None, preset)
        ]
    elif kind == "tasks":
        supported = {(name, one["reads"]) for _, one in systems for name in one["tasks"]}
        rows = [
            {
                "task": row["task"],
                "input": row["reads"],
                "columns": ", ".join(row["columns"]),
                "model": row["model"],
                "description": row["about"],
            }
            for row in load_index()["tasks"]
            if (row["task"], row["reads"]) in supported and task in (None, row["task"])
        ]
    else:
        rows = _setting_rows(group, model, system, task)
    word = (search or "").lower()
    return [row for row in rows if word in " ".join(map(str, row.values())).lower()]


def _setting_rows(group: str | None, model: str | None, system: str | None, task: str | None) -> list[dict[str, Any]]:
    """Settings with their defaults. Settings of models appear with a preset, or once per name with the group model."""
    changed = {} if model is None else load_index()["presets"][model]
    tasks = load_index()["tasks"]
    without_effect = {name for row in tasks for name in row["settings"]}
    without_effect -= {name for row in tasks if task in (None, row["task"]) for name in row["settings"]}
    rows: dict[str, dict[str, Any]] = {}
    for row in load_index()["settings"]:
        name, of_model = row["setting"], row["system"] != "all"
        if group is not None and not name.startswith(f"{group}."):
            continue
        if of_model and (row["system"] != system if system else group != "model"):
            continue
        if name in without_effect:
            continue
        default = changed.get(name, row["default"])
        rows.setdefault(name, {"setting": name, "default": default, "description": row["about"]})
    return list(rows.values())


def help_text() -> str:
    """Tasks with their columns, and settings with their defaults, for `help(regard.train)`."""
    lines = ["Tasks, with the input and the columns of tables:"]
    for row in load_index()["tasks"]:
        lines.append(f"    {row['task']} ({row['reads']}: {', '.join(row['columns'])}): {row['about']}")
    lines += ["", "Settings with general defaults, which presets change; fields of a model are settings model.NAME:"]
    for row in load_index()["settings"]:
        if row["system"] == "all":
            lines.append(f"    {row['setting']}={row['default']}: {row['about']}")
    return "\n".join(f"    {line}".rstrip() for line in lines)


# -- names of other tools: a name in SYNONYMS is accepted; for a name in RELATED, the error names the setting to use

_NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
SYNONYMS = {
    f"{'data' if setting == 'model.image_size' else setting.partition('.')[0]}.{name}": setting
    for setting, names in _NAMES["synonyms"].items()
    for name in names.split()
}
"""Name in Hugging Face, fairseq, Lightning, timm, nanoGPT and others: setting of regard."""

RELATED: dict[str, list[str]] = _NAMES["related"]  # Name elsewhere: the related setting of regard, and the difference.

VALUES = {"decode.early_stopping": {"true": "always", "false": "heuristic"}}
"""Setting -> value in Hugging Face -> value in regard."""

HINTS = {"train.warmup_ratio": "a value below 1 is a fraction of train.steps"}
"""Difference to mention when a synonym is accepted."""


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


def resolve_setting(name: str, value: Any) -> tuple[str, Any]:
    """Setting and value of regard for those of another tool, such as `train.learning_rate`, with a printed note.

    Other settings are returned unchanged. A name without an exact counterpart raises `SettingError`."""
    if name in RELATED and name != "data.block_size":  # also a setting of point clouds
        setting, difference = RELATED[name]
        raise SettingError(f"Unknown setting '{name}'. Use {setting} instead ({difference}).")
    if name in SYNONYMS:
        hint = f" ({HINTS[name]})" if name in HINTS else ""
        print_note(f"note: {name} is called {SYNONYMS[name]}{hint}.")
        name = SYNONYMS[name]
    return name, VALUES.get(name, {}).get(str(value).lower(), value)


# -- model folders: runs and Hugging Face checkpoints, recognized by their JSON files

DTYPES = ("float32", "bfloat16", "float16", "float64")  # Names of dtypes for computation.

LAYOUTS = ("huggingface",)  # Export formats.

LOCK_FILE = ".lock"  # File that a run in progress has locked.

METADATA_FILE = "regard.json"  # File with the metadata of regard, in the same folder as config.json.

FORMAT = 1  # Version of the format of METADATA_FILE; other versions are refused.


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
        check_format(folder, own)
        for key, kind in (("system", str), ("task", str), ("model", dict), ("decode", dict)):
            if not isinstance(own.get(key), kind):
                raise RunError(f"{folder}: {METADATA_FILE} has no valid '{key}' (expected {kind.__name__}).")
    return published, own


def check_model(folder: Path, dtype: str | None) -> None:
    """Raise an error for an unknown dtype or an invalid model folder."""
    if dtype is not None and dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    read_config_files(folder)


def _missing_folder_error(folder: Path) -> RegardError:
    """Error for a name that is not a folder: a preset, a name of the Hub, or a typo."""
    name, parent = str(folder), folder.parent
    on_hub = describe_hub_name(name)
    if PRESET_ALIASES.get(name, name) in presets():
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


def is_folder_path(name: str) -> bool:
    """True if a name is an existing folder, a path or `hf:ORG/NAME`; False for a preset."""
    return Path(name).is_dir() or os.sep in name or name.startswith(PREFIX)


def absolute_folder(name: str) -> str:
    """Absolute path of a model folder; for `hf:ORG/NAME`, of the snapshot in the cache."""
    return os.path.abspath(local_folder(name))


PREFIX = "hf:"

SHORT_NAMES = {name: f"{owner}/{name}" for owner, names in _NAMES["repositories"].items() for name in names.split()}
"""Well-known names without an organization, and their repositories."""

UNSUPPORTED = {kind: names.split() for kind, names in _NAMES["unsupported"].items()}
"""Unsupported architectures (`model_type`), and names of well-known models."""

LOCAL_FOLDERS = ("runs", "models", "checkpoints", "data", "out", "output", "outputs", "results")
"""First parts of local paths, not organizations on the Hub."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SNAPSHOT = re.compile(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]\w+$")

CONFIG_FILES = (
    "config.json", "generation_config.json", "regard.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    "vocab.txt", "merges.txt", "special_tokens_map.json", "added_tokens.json", "preprocessor_config.json", "points.json",
    "source.spm", "target.spm", "spm.model", "sentencepiece.bpe.model",
    "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json",
)  # fmt: skip
SAFETENSORS_FILES = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
PICKLE_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def describe_hub_name(name: str) -> str:
    """Advice for a name of the Hub without a local folder; empty for other names."""
    short = name.rpartition("/")[2]
    if kind := next((kind for kind, names in UNSUPPORTED.items() if short in names), ""):
        return (
            f"'{name}' is a model on the Hugging Face Hub with the architecture '{kind}', which is not supported. "
            f"Supported: {', '.join(sorted(model_types()))}."
        )
    repository = SHORT_NAMES.get(name, name)
    if not REPOSITORY.fullmatch(repository) or name.partition("/")[0] in LOCAL_FOLDERS:
        return ""
    known = f"'{name}' is a model on the Hugging Face Hub, and nothing was downloaded."
    maybe = f"If '{name}' is a model on the Hugging Face Hub: nothing was downloaded."
    return (
        f"{known if name in SHORT_NAMES else maybe} Get the folder with 'hf download {repository} --local-dir {short}' "
        f"(package huggingface_hub) and pass ./{short}, or pass {PREFIX}{repository} (extra regard[hub])."
    )


def check_preset(name: str) -> None:
    """Raise an error for an unknown preset, with advice for a name of the Hub."""
    if PRESET_ALIASES.get(name, name) in presets():
        return
    if advice := describe_hub_name(name):
        raise RegardError(advice)
    raise UnknownNameError("preset", name, presets(), PRESET_ADVICE)


def display_name(folder: str | Path) -> str:
    """ORG/NAME for a snapshot in the cache of the Hub, otherwise the last part of the path."""
    found = SNAPSHOT.search(str(folder))
    return f"{found[1]}/{found[2]}" if found else Path(folder).name


def local_folder(name: str | os.PathLike[str]) -> Path:
    """Folder of a model: the snapshot in the cache for `hf:ORG/NAME`, downloaded if necessary, otherwise the path."""
    text = os.fspath(name)
    return _snapshot(text) if text.startswith(PREFIX) else Path(text)


@functools.cache
def _snapshot(name: str) -> Path:
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    repository = SHORT_NAMES.get(repository, repository)
    if not REPOSITORY.fullmatch(repository):
        raise RegardError(f"'{name}' is not a name on the Hub. Write hf:ORG/NAME or hf:ORG/NAME@REVISION.")
    folder = _download(repository, revision, CONFIG_FILES)
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RegardError(f"{name}: no readable config.json, so the model is not in Hugging Face format.") from error
    kind, supported = config.get("model_type") if isinstance(config, dict) else None, sorted(model_types())
    if kind not in (*supported, "regard"):  # before the weights are downloaded
        raise RegardError(f"{name}: model_type '{kind}' is not supported. Supported: {', '.join(supported)}.")
    _download(repository, revision, (*CONFIG_FILES, *SAFETENSORS_FILES))
    if not any(folder.glob("model*.safetensors")):
        _download(repository, revision, PICKLE_FILES)
    return folder


def _download(repository: str, revision: str, patterns: Sequence[str]) -> Path:
    """Folder of the snapshot, after the download of matching files missing in the cache."""
    try:
        import huggingface_hub
        from huggingface_hub import constants, errors
    except ImportError as error:
        raise RegardError(
            f"{PREFIX}{repository}: names of the Hub need the package huggingface_hub, which is the extra regard[hub]. "
            "Install it with: pip install huggingface_hub"
        ) from error
    name = f"{PREFIX}{repository}" + (f"@{revision}" if revision else "")
    try:
        return Path(
            huggingface_hub.snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns))
        )
    except Exception as error:  # network, proxy and disk errors have classes of other libraries
        problems = {
            errors.GatedRepoError: "access to this model is restricted. Request access on its page, then log in with "
            "'hf auth login'.",
            errors.RevisionNotFoundError: f"the repository has no revision '{revision}'.",
            errors.RepositoryNotFoundError: "no such repository on the Hub, or a private one. For a private one, log in "
            "with 'hf auth login'.",
            errors.LocalEntryNotFoundError: f"not in the cache ({constants.HF_HUB_CACHE}), or not complete, and the Hub "
            "cannot be reached (no connection, or HF_HUB_OFFLINE=1). Download the model elsewhere with "
            f"'hf download {repository} --local-dir FOLDER' and pass FOLDER.",
        }
        first = (str(error).strip().splitlines() or [""])[0]
        failure = f"the download failed ({type(error).__name__}: {first})."
        problem = next((text for kind, text in problems.items() if isinstance(error, kind)), failure)
        raise RegardError(f"{name}: {problem}") from error
