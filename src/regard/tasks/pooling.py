"""Pooling of hidden states to a sentence embedding, and the configuration files of sentence-transformers.

Without such files the embedding is the L2-normalized mean of all hidden states including special tokens. `modules.json`
lists the modules, `1_Pooling/config.json` has the pooling mode and `sentence_bert_config.json` the maximum length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.errors import WeightsError
from regard.nn.attention.masks import valid_mask
from regard.types import Batch

Mode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens"]

MODULES, READS, SAID = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"

MODE_FLAGS: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Older keys for the values of `pooling_mode`."""


@dataclass(frozen=True)
class Pooling:
    mode: Mode = "mean"
    """mean, hidden state of the first token, maximum per dimension, or sum / √length"""
    normalize: bool = True
    """True for L2 normalization"""
    max_length: int | None = None
    """maximum tokens per text including special tokens; None: limit of the model"""
    lowercase: bool = False
    """True if texts are lowercased"""

    def __call__(self, states: Float[Tensor, "B L D"], batch: Batch) -> Float[Tensor, "S D"]:
        """Embedding of each row, or of each document in a packed row, in float32 or float64."""
        states = states if states.dtype == torch.float64 else states.float()
        vectors = self._pool_rows(states, batch) if batch.packing is None else self._pool_documents(states[0], batch)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def _pool_rows(self, states: Tensor, batch: Batch) -> Tensor:
        if self.mode == "cls":
            return states[:, 0]
        if batch.mask is None:
            return states.amax(1) if self.mode == "max" else states.sum(1) / self._divisor(states.shape[1])
        real = valid_mask(batch.mask, states.shape[1])[..., None]
        if self.mode == "max":
            return states.masked_fill(~real, -torch.inf).amax(1)
        return (states * real).sum(1) / self._divisor(real.sum(1).clamp(min=1).to(states.dtype))

    def _pool_documents(self, states: Tensor, batch: Batch) -> Tensor:
        """Embeddings of all documents. The values for empty documents are not used."""
        assert batch.packing is not None
        starts, (L, D) = batch.packing.starts, states.shape
        if self.mode == "cls":
            return states[starts[:-1].clamp(max=L - 1)]
        document = batch.packing.document_ids(torch.arange(L, device=states.device)[None])[0]
        vectors = states.new_zeros(len(starts) - 1, D)
        if self.mode == "max":
            return vectors.scatter_reduce(0, document[:, None].expand(L, D), states, "amax", include_self=False)
        lengths = starts.diff().clamp(min=1).to(states.dtype)[:, None]
        return vectors.index_add(0, document, states) / self._divisor(lengths)

    def _divisor(self, length: Any) -> Any:
        return length if self.mode == "mean" else length**0.5


# -- configuration files


def read_pooling(folder: Path) -> Pooling:
    """Pooling from the files of a checkpoint, or the default. Unsupported modules are an error."""
    if not (folder / MODULES).exists():
        return Pooling()
    modules = _read_json(folder / MODULES, list)
    kinds = [str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise WeightsError(
            f"{folder / MODULES}: the modules {', '.join(kinds)} are not supported. Supported: Transformer, Pooling and an "
            "optional Normalize. Remove the file to use mean pooling with L2 normalization."
        )
    path = folder / str(modules[1].get("path") or POOLING) / "config.json"
    reads = _read_json(folder / READS, dict) if (folder / READS).exists() else {}
    said = _read_json(folder / SAID, dict) if (folder / SAID).exists() else {}
    if said.get("default_prompt_name"):
        raise WeightsError(
            f"{folder / SAID}: default_prompt_name='{said['default_prompt_name']}' is not supported. Remove "
            "default_prompt_name and add the prompt to the texts."
        )
    longest = reads.get("max_seq_length")
    if longest is not None and (not isinstance(longest, int) or longest < 3):
        raise WeightsError(f"{folder / READS}: max_seq_length must be an integer of at least 3, got {longest!r}.")
    return Pooling(_read_mode(path), len(kinds) > 2, longest, bool(reads.get("do_lower_case")))


def pooling_files(pooling: Pooling, width: int) -> dict[str, Any]:
    """JSON files that `read_pooling` restores the pooling from, {file name: content}."""
    kinds = [("Transformer", ""), ("Pooling", POOLING), ("Normalize", NORMALIZE)][: 3 if pooling.normalize else 2]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(kinds)
    ]
    flags = {name: mode == pooling.mode for name, mode in MODE_FLAGS.items()}
    return {
        MODULES: modules,
        f"{POOLING}/config.json": {"word_embedding_dimension": width, **flags},
        READS: {"max_seq_length": pooling.max_length, "do_lower_case": pooling.lowercase},
    }


def _read_mode(path: Path) -> Mode:
    said = _read_json(path, dict)
    named = said.get("pooling_mode", [mode for flag, mode in MODE_FLAGS.items() if said.get(flag)] or ["mean"])
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in get_args(Mode):
        raise WeightsError(
            f"{path}: pooling by {' and '.join(map(str, modes))} is not supported. Supported: {', '.join(get_args(Mode))}."
        )
    return cast(Mode, modes[0])


def _read_json(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}).") from error
    if not isinstance(found, kind):
        raise WeightsError(f"{path}: expected a JSON {'list' if kind is list else 'object'}.")
    return found
