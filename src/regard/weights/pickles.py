"""Tensors of a PyTorch pickle (`pytorch_model.bin`), read without executing code."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.index import print_note

PICKLE_ADVICE = "Convert the model to safetensors on a machine where you trust the file."


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors by name. `weights_only` restricts the reader to tensors and containers: other content, for example of a
    malicious file, is refused before any code of the file is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old files contain storages of a deprecated class
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"GLOBAL (\S+)", str(error))
        needed = f" ({name[1]})" if name else ""
        raise WeightsError(
            f"{path}: refused, because reading the pickle would execute code{needed}. {PICKLE_ADVICE}"
        ) from error
    except Exception as error:  # damaged files raise errors of many classes
        first = (str(error).strip().splitlines() or [""])[0]
        raise WeightsError(f"{path}: not a valid PyTorch file ({type(error).__name__}: {first}).") from error
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) and isinstance(n, str) for n, x in found.items()):
        raise WeightsError(f"{path}: expected a dictionary of tensors, got other content. {PICKLE_ADVICE}")
    return {name: tensor.detach() for name, tensor in found.items()}


def read_pickled_checkpoint(folder: Path, names: list[str]) -> dict[str, Tensor]:
    """Tensors of one file or of several shards, with a printed note."""
    tensors: dict[str, Tensor] = {}
    for name in names:
        tensors |= read_pickle(folder / name)
    shown = names[0] if len(names) == 1 else f"{len(names)} shards of pytorch_model.bin"
    print_note(f"note: {folder}: weights read from {shown} (pickle) as tensors only; code in the file is not executed.")
    return tensors
