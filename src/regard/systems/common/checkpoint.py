"""Config and weights of a checkpoint folder, without a task."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.config import from_dict
from regard.data.store import try_lock
from regard.errors import RunError
from regard.index import LOCK_FILE, METADATA_FILE, print_note, read_config_files
from regard.nn.blocks.block import SkipInit
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import find_checkpoint_system
from regard.systems.common.system import System
from regard.weights.tables import Tensors, read_checkpoint


def read_published_config(system: System, published: Mapping[str, Any], folder: Path) -> Any:
    """Model configuration of a Hugging Face checkpoint. An end token outside the vocabulary is replaced, with a note."""
    fields = system.published.read(published)
    end, size = fields.get("eos_id", 0), fields.get("vocab_size")
    if isinstance(size, int) and (end is None or (isinstance(end, int) and not 0 <= end < size)):
        text = TextTokenizer.find(folder)
        found = None if text is None else text.special_id("end")
        fields["eos_id"] = found if found is not None and found < size else size - 1
        problem = "missing" if end is None else f"{end} and outside the vocabulary of {size:,} tokens"
        print_note(f"note: {folder}: eos_token_id is {problem}; token {fields['eos_id']} is used as the end token.")
    return from_dict(system.config, fields, "model.")


class Checkpoint(NamedTuple):
    """Contents of a model folder. Tensors have the published names, or native names in a folder in regard's format."""

    system: System
    config: Any
    tensors: Tensors
    native: bool  # True for regard's format
    published: dict[str, Any]  # config.json
    own: dict[str, Any]  # regard.json; empty if there is none


def read_model_folder(folder: Path) -> Checkpoint:
    published, own = read_config_files(folder)
    native = published.get("model_type") == "regard"
    if native and not own:
        raise RunError(f"{folder}: {METADATA_FILE} is missing, which a model with model_type 'regard' requires.")
    system = find_checkpoint_system(published, own)
    config = (
        from_dict(system.config, own["model"], "model.") if own else read_published_config(system, published, folder)
    )
    tensors = read_checkpoint(folder)
    if not native:
        config, tensors = system.published.from_published(config, tensors)
    return Checkpoint(system, config, tensors, native, published, own)


@contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Context that writes a model into a new or empty folder, or replaces a saved model. A file, a run, and a folder with
    other content are refused."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file. Choose another folder.")
    if (
        path.is_dir()
        and any(path.iterdir())
        and not (path / "config.json").exists()
        and not (path / LOCK_FILE).exists()
    ):
        raise RunError(f"{path} is not empty and contains no model. Choose another folder.")
    with suppress(OSError), (path / LOCK_FILE).open("rb") as file:
        if try_lock(file.fileno(), path / LOCK_FILE, shared=True) is False:
            raise RunError(f"{path} is in use by a run. Wait until the run ends, or choose another folder.")
    with suppress(OSError, ValueError):
        if "sources" in json.loads((path / METADATA_FILE).read_text(encoding="utf-8")):
            raise RunError(f"{path} contains a run, which cannot be resumed without its files. Choose another folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise RunError(f"{path}: the model cannot be written ({error.strerror or error}).") from error


def read_body(folder: Path) -> tuple[System, Any, Tensors]:
    """System, config and native tensors of a model folder without its task; tensors of a head may be included."""
    system, config, tensors, native, *_ = read_model_folder(folder)
    if not native:
        with torch.device("meta"), SkipInit():  # shapes only, without memory and initial values
            wanted = list(system.build(config).state_dict())
        tensors = system.published.names.read(tensors, wanted)[0]
    return system, config, tensors
