"""Config and weights of a checkpoint folder, without a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.config import from_dict
from regard.index import print_note, read_config_files
from regard.nn.blocks.block import SkipInit
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import find_by_model_type, find_system
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


def read_body(folder: Path) -> tuple[System, Any, Tensors]:
    """System, config and native tensors of a model folder without its task; tensors of a head may be included."""
    published, own = read_config_files(folder)
    ours = published.get("model_type") == "regard"
    system = find_system(own["system"]) if own else find_by_model_type(str(published.get("model_type")))
    config = (
        from_dict(system.config, own["model"], "model.") if own else read_published_config(system, published, folder)
    )
    tensors = read_checkpoint(folder)
    if ours:
        return system, config, tensors
    config, tensors = system.published.from_published(config, tensors)
    with torch.device("meta"), SkipInit():  # shapes only, without memory and initial values
        wanted = list(system.build(config).state_dict())
    return system, config, system.published.names.read(tensors, wanted)[0]
