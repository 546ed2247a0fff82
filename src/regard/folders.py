"""Model folders (runs and Hugging Face checkpoints), recognized by their JSON files without torch."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import index
from regard.errors import RegardError, RunError, UnknownFolderError
from regard.index import resolve_preset_name

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
        check_format(folder, own)
        for key, kind in (("system", str), ("task", str), ("model", dict), ("decode", dict)):
            if not isinstance(own.get(key), kind):
                raise RunError(f"{folder}: {METADATA_FILE} has no valid '{key}' (expected {kind.__name__}).")
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


PREFIX = "hf:"

SHORT_NAMES = {
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "openai-gpt")},
    "distilgpt2": "distilbert/distilgpt2",
    **{
        name: f"google-bert/{name}"
        for name in (
            "bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-large-cased", "bert-base-chinese",
            "bert-base-german-cased", "bert-base-multilingual-cased", "bert-base-multilingual-uncased",
        )
    },
}  # fmt: skip
"""Well-known names without an organization, and their repositories."""

UNSUPPORTED = {
    "roberta": ("roberta-base", "roberta-large", "distilroberta-base"),
    "xlm-roberta": ("xlm-roberta-base", "xlm-roberta-large"),
    "distilbert": ("distilbert-base-uncased", "distilbert-base-cased", "distilbert-base-multilingual-cased"),
    "albert": ("albert-base-v2", "albert-large-v2"),
    "electra": ("electra-small-discriminator", "electra-base-discriminator"),
    "camembert": ("camembert-base",),
    "xlnet": ("xlnet-base-cased",),
    "t5": ("t5-small", "t5-base", "t5-large", "flan-t5-small", "flan-t5-base", "flan-t5-large"),
    "bart": ("bart-base", "bart-large", "bart-large-cnn", "bart-large-mnli"),
}
"""Unsupported architectures (`model_type`), and names of well-known models."""

LOCAL_FOLDERS = ("runs", "models", "checkpoints", "data", "out", "output", "outputs", "results")
"""First parts of local paths, not organizations on the Hub."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SNAPSHOT = re.compile(r"models--([^/\\]+)--([^/\\]+)[/\\]snapshots[/\\]\w+$")

CONFIG_FILES = (
    "config.json", "generation_config.json", "regard.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    "vocab.txt", "merges.txt", "special_tokens_map.json", "added_tokens.json", "preprocessor_config.json", "points.json",
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
            f"Supported: {', '.join(sorted(index.model_types()))}."
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
    if name not in index.presets() and (advice := describe_hub_name(name)):
        raise RegardError(advice)
    index.check_preset(name)


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
    _check_model_type(name, folder)
    _download(repository, revision, (*CONFIG_FILES, *SAFETENSORS_FILES))
    if not any(folder.glob("model*.safetensors")):
        _download(repository, revision, PICKLE_FILES)
    return folder


def _check_model_type(name: str, folder: Path) -> None:
    """Raise an error for an unsupported architecture before its weights are downloaded."""
    try:
        config: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RegardError(f"{name}: no readable config.json, so the model is not in Hugging Face format.") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    supported = sorted(index.model_types())
    if kind not in (*supported, "regard"):
        raise RegardError(f"{name}: model_type '{kind}' is not supported. Supported: {', '.join(supported)}.")


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
    except errors.GatedRepoError as error:
        problem = "access to this model is restricted. Request access on its page, then log in with 'hf auth login'."
        raise RegardError(f"{name}: {problem}") from error
    except errors.RevisionNotFoundError as error:
        raise RegardError(f"{name}: the repository has no revision '{revision}'.") from error
    except errors.RepositoryNotFoundError as error:
        problem = "no such repository on the Hub, or a private one. For a private one, log in with 'hf auth login'."
        raise RegardError(f"{name}: {problem}") from error
    except errors.LocalEntryNotFoundError as error:
        where = f"not in the cache ({constants.HF_HUB_CACHE}), or not complete"
        problem = f"{where}, and the Hub cannot be reached (no connection, or HF_HUB_OFFLINE=1). Download the "
        problem += f"model elsewhere with 'hf download {repository} --local-dir FOLDER' and pass FOLDER."
        raise RegardError(f"{name}: {problem}") from error
    except Exception as error:  # network, proxy and disk errors have classes of other libraries
        first = (str(error).strip().splitlines() or [""])[0]
        raise RegardError(f"{name}: the download failed ({type(error).__name__}: {first}).") from error
