"""Read and write weights. Two-way tables map tensor names of regard to tensor names of Hugging Face.

The same table is used in both directions; unknown and missing tensors raise an error with their names. Weights are read
from safetensors, or from pytorch_model.bin as tensors only."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickle
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import WeightsError
from regard.files import UMASK, fsync
from regard.index import print_note
from regard.threads import suppress_warnings

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class NameEntry:
    """Tensor `native` of regard, and the `published` tensors, concatenated by rows. `{part}` is weight or bias, or running
    statistics of a batch norm, `{side}` encoder or decoder; other names, such as `{n}`, are any number.

    `transposed` tensors are stored as (in, out) in the Hugging Face format and as (out, in) in regard."""

    native: str
    published: tuple[str, ...]
    transposed: bool = False


def entry(native: str, *published: str, transposed: bool = False) -> NameEntry:
    return NameEntry(native, published, transposed)


def layer(native: str, *published: str) -> NameEntry:
    """Weight and bias of a layer."""
    return entry(f"{native}.{{part}}", *(f"{name}.{{part}}" for name in published))


def transposed_linear(native: str, published: str) -> tuple[NameEntry, NameEntry]:
    """Weight and bias of a linear layer with a matrix stored as (in, out)."""
    weight = entry(f"{native}.weight", f"{published}.weight", transposed=True)
    return weight, entry(f"{native}.bias", f"{published}.bias")


@dataclass(frozen=True)
class NameTable:
    entries: tuple[NameEntry, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    """copies of tied tensors in some files -> the tensor they must be equal to"""
    drop: tuple[str, ...] = ()  # constants in published files, computed in regard
    heads: tuple[str, ...] = ()  # tensors of heads for other tasks
    optional: tuple[str, ...] = ()  # tensors required by some tasks only; randomly initialized if missing in a file
    prefix: str = ""  # start of the published names of the body, omitted in files of bare models

    def complete(self, published: Mapping[str, Tensor]) -> Tensors:
        """Published tensors with the prefix, and with tied tensors under the name of their original."""
        outside = (*self.tied, *self.heads)
        tensors = {
            name if name.startswith(self.prefix) or matches(outside, name) else self.prefix + name: tensor
            for name, tensor in published.items()
        }
        for original in dict.fromkeys(self.tied.values()):
            copies = [copy for copy, source in self.tied.items() if source == original]
            found = {name: tensors[name] for name in (original, *copies) if name in tensors}
            for name, tensor in found.items():
                tensors[original] = next(iter(found.values()))
                if not torch.equal(tensor, tensors[original]):
                    raise WeightsError(f"{name} differs from {original}: untied embeddings are not supported.")
        return tensors

    def read(self, published: Mapping[str, Tensor], expected: Iterable[str]) -> tuple[Tensors, list[str]]:
        """Tensors by native names, and names of ignored tensors of other heads."""
        found: Tensors = {}
        used: set[str] = set()
        missing: list[str] = []
        for name in expected:
            item, sources = self.find(name)
            absent = [s for s in sources if s not in published]
            if item is None or absent:
                missing.append(f"{name} ({', '.join(absent) or 'not in the name table'})")
                continue
            parts = [published[s].T.contiguous() if item.transposed else published[s] for s in sources]
            if any(part.shape != parts[0].shape for part in parts):
                shapes = ", ".join(f"{s} {tuple(part.shape)}" for s, part in zip(sources, parts, strict=True))
                raise WeightsError(f"The parts of {name} have incompatible shapes: {shapes}.")
            found[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
            used.update(sources)
        left = [name for name in published if name not in used and not matches(self.drop, name)]
        foreign = [name for name in left if matches(self.heads, name)]
        strange = [name for name in left if not matches((*self.heads, *self.tied), name)]
        if missing or strange:
            raise mismatch_error(missing, strange)
        return found, foreign

    def write(self, native: Mapping[str, Tensor]) -> Tensors:
        written: Tensors = {}
        for name, tensor in native.items():
            item, targets = self.find(name)
            if item is None:
                raise WeightsError(f"The Hugging Face format has no tensor for '{name}'.")
            for target, part in zip(targets, tensor.chunk(len(targets)), strict=True):
                written[target] = (part.T if item.transposed else part).contiguous()
        return written

    def translate(self, tensors: Mapping[str, Tensor], entries: Sequence[NameEntry]) -> Tensors:
        """Tensors of another library, with these `entries`, under their published names. Tensors without an entry keep
        their names, so that loading rejects them."""
        back = NameTable(tuple(entry(*item.published, item.native) for item in entries))
        found = {name: back.published_names(name) for name in tensors}
        ours = {found[name][0]: tensor for name, tensor in tensors.items() if found[name]}
        return {**self.write(ours), **{name: tensor for name, tensor in tensors.items() if not found[name]}}

    def published_names(self, name: str) -> list[str]:
        """Published tensors of a native tensor; empty without an entry."""
        return self.find(name)[1]

    def find(self, name: str) -> tuple[NameEntry | None, list[str]]:
        """Entry of a native tensor, and the names of its published tensors."""
        for item in self.entries:
            if match := _compile_pattern(item.native).fullmatch(name):
                return item, [published.format(**match.groupdict()) for published in item.published]
        return None, []


@functools.cache
def _compile_pattern(text: str) -> re.Pattern[str]:
    kinds = {"part": "weight|bias|running_mean|running_var", "side": "encoder|decoder"}
    pieces = re.split(r"\{(\w+)\}", text)
    groups = [f"(?P<{name}>{kinds.get(name, '[0-9]+')})" for name in pieces[1::2]]
    return re.compile("".join(itertools.chain(*zip(map(re.escape, pieces[::2]), [*groups, ""], strict=True))))


def matches(patterns: Sequence[str], name: str) -> bool:
    """True if a pattern matches the name, with `{n}` for any number and `*` for any text."""
    return any(re.fullmatch(re.escape(p).replace(r"\{n\}", r"\d+").replace(r"\*", ".*"), name) for p in patterns)


def mismatch_error(missing: list[str], unexpected: list[str]) -> WeightsError:
    def some(names: list[str]) -> str:
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    parts = [f"missing: {some(missing)}"] * bool(missing) + [f"not expected: {some(unexpected)}"] * bool(unexpected)
    return WeightsError(f"The weights do not match the model: {'; '.join(parts)}.")


@dataclass(frozen=True)
class PublishedLayout:
    """Map between a Hugging Face config.json and a model configuration of regard."""

    model_type: str
    architecture: str
    keys: dict[str, tuple[str, ...]]  # field of regard -> published keys, which must be equal
    config: type[Any] | None = None  # config class; a missing key has the value that the default config is written with
    defaults: dict[str, Any] = field(default_factory=dict)  # values of missing keys that differ from the default config
    fixed: dict[str, Any] = field(default_factory=dict)
    """keys with an effect on the computation, and the only supported values"""
    ignored_keys: tuple[str, ...] = ()
    extra_keys: dict[str, Any] = field(default_factory=dict)
    """keys without effect in regard, written because the default of Hugging Face differs"""
    value_maps: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """field -> published value -> value in regard, if they differ"""
    copied_fields: dict[str, str] = field(default_factory=dict)  # key without effect in regard -> field to write
    before_read: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: config
    """converts a config.json of another version into the keys of this layout"""
    after_read: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    """completes the fields after reading, if the file omits some"""

    before_write: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    """inverse of `after_read`, before writing"""

    head_architectures: dict[str, str] = field(default_factory=dict)  # task -> architecture with a head for the task
    other_architectures: dict[str, str] = field(default_factory=dict)  # other architectures -> task
    select_architecture: Callable[[Mapping[str, Any], str], str] = lambda fields, task: ""
    """architecture for these fields and this task; empty: the default"""
    fixed_head_keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    """task -> keys with an effect on the head, and the only supported values"""
    names: NameTable = field(default_factory=lambda: NameTable(()))
    other_entries: Mapping[str, tuple[NameEntry, ...]] = field(default_factory=dict)
    """a tensor that only files of another library contain -> entries of the library"""
    adapt_checkpoint: Callable[[Any, Tensors], tuple[Any, Tensors]] = lambda config, tensors: (config, tensors)
    """adapts the config and the published tensors of a checkpoint before loading"""
    to_published: Callable[[Any, Tensors], Tensors] = lambda config, tensors: tensors
    """adds constant tensors that checkpoints contain"""
    required: dict[str, Any] = field(default_factory=dict)
    """fields of regard, and the only values that the format supports"""
    requirement: str = ""  # message for other values, after "Hugging Face format for"
    check_layout: Callable[[Any], str] = lambda config: ""
    """reason why the format does not support this config; empty if supported"""

    def from_published(self, config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
        """Config and tensors of a checkpoint, complete for `names.read`."""
        for sign, entries in self.other_entries.items():
            tensors = self.names.translate(tensors, entries) if sign in tensors else tensors
        return self.adapt_checkpoint(config, self.names.complete(tensors))

    @functools.cached_property
    def missing_values(self) -> dict[str, Any]:
        """Values of missing keys."""
        return {**(self.write(asdict(self.config())) if self.config else {}), **self.defaults}

    def infer_task(self, config: Mapping[str, Any], default: str) -> str:
        """Task of a Hugging Face checkpoint, by its architecture."""
        named = {architecture: task for task, architecture in self.head_architectures.items()}
        found = config.get("architectures") or [""]
        return {**self.other_architectures, **named}.get(found[0], default)

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        config = self.before_read(dict(config))
        known = {key for keys in self.keys.values() for key in keys} | set(self.fixed) | {"model_type"}
        strange = [
            key for key in config if key not in known and not matches((*self.ignored_keys, *COMMON_IGNORED_KEYS), key)
        ]
        if strange:
            raise WeightsError(
                f"config.json has unknown keys for '{self.model_type}': {', '.join(sorted(strange))}. "
                "Unknown keys may change the computation, so the model is not loaded."
            )
        for key, value in self.fixed.items():
            if config.get(key, value) != value:
                raise WeightsError(f"config.json: {key}={config[key]!r} is not supported. Supported: {value!r}.")
        fields: dict[str, Any] = {}
        for ours, theirs in self.keys.items():
            found = [config.get(key, self.missing_values.get(key)) for key in theirs]
            found = [value for value in found if value is not None] or [None]  # a second key may be missing
            if any(value != found[0] for value in found):
                raise WeightsError(f"config.json: {' and '.join(theirs)} must be equal, got {found}.")
            table, value = self.value_maps.get(ours), found[0]
            if table is not None and value not in list(table):
                raise WeightsError(f"config.json: {theirs[0]}={value!r} is not supported. Supported: {sorted(table)}.")
            fields[ours] = value if table is None else table[value]
        return self.after_read(fields)

    def write(self, fields: Mapping[str, Any], task: str = "") -> dict[str, Any]:
        architecture = self.select_architecture(fields, task) or self.head_architectures.get(task, self.architecture)
        fields = self.before_write(dict(fields))
        config: dict[str, Any] = {"model_type": self.model_type, "architectures": [architecture], **self.fixed}
        config |= {**self.extra_keys, **{key: fields[ours] for key, ours in self.copied_fields.items()}}
        for ours, theirs in self.keys.items():
            table = self.value_maps.get(ours)
            back = {} if table is None else {mine: published for published, mine in table.items()}
            for key in theirs:
                config[key] = back[fields[ours]] if back else fields[ours]
        return config


COMMON_IGNORED_KEYS = (
    "architectures", "transformers_version", "_num_labels", "num_labels", "torch_dtype", "dtype", "_name_or_path",
    "use_cache", "gradient_checkpointing",
    "id2label", "label2id", "output_attentions", "output_hidden_states", "return_dict", "torchscript", "init_std",
    "bos_token_id", "forced_*_token_id", "bad_words_ids", "num_beams", "max_length", "min_length", "length_penalty",
    "early_stopping", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "task_specific_params",
    "problem_type", "prefix", "finetuning_task", "chunk_size_feed_forward", "attn_implementation", "tokenizer_class",
)  # fmt: skip
"""Keys without effect on the body. Keys of heads are read by `OptionRules.load`."""


PICKLE_MAGIC = (b"PK\x03\x04", *(bytes([0x80, protocol]) for protocol in range(2, 6)))
"""First bytes of files by torch.save, as ZIP archive or as plain pickle."""

PICKLE_ADVICE = "Convert the model to safetensors on a machine where you trust the file."


def read_checkpoint(folder: Path) -> Tensors:
    """All tensors of a checkpoint folder: one file, or shards with an index; safetensors before pytorch_model.bin."""
    for file, read in (("model.safetensors", read_safetensors), ("pytorch_model.bin", read_pickle)):
        index = folder / f"{file}.index.json"
        if not (folder / file).exists() and not index.exists():
            continue
        names = [file] if (folder / file).exists() else _shard_names(index)
        tensors = {name: tensor for shard in names for name, tensor in read(folder / shard).items()}
        if read is read_pickle:
            shown = file if len(names) == 1 else f"{len(names)} shards of {file}"
            print_note(
                f"note: {folder}: weights read from {shown} (pickle) as tensors only; code in the file is not executed."
            )
        return tensors
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"))
    beside = f" {others[0]} is not read: only pytorch_model.bin is, as tensors. {PICKLE_ADVICE}" if others else ""
    raise WeightsError(f"{folder}: no model.safetensors and no pytorch_model.bin found.{beside}")


def _shard_names(index: Path) -> list[str]:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index}: invalid shard index ({error}).") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise WeightsError(f"{index}: the shard '{name}' is outside of the folder.")
    return sorted(names)


def read_safetensors(path: Path) -> Tensors:
    try:
        with path.open("rb") as opened:
            start = opened.read(9)
        # the header length of a safetensors file may start with the same bytes, but a JSON object follows
        if start.startswith(PICKLE_MAGIC) and start[8:] != b"{":
            raise WeightsError(f"{path}: expected safetensors, got a pickle. {PICKLE_ADVICE}")
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: not a valid safetensors file ({error}).") from error


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write and flush the file; a partial file is removed."""
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        save_file(plain, path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:
        path.unlink(missing_ok=True)
        number = re.search(r"\(os error (\d+)\)", str(error))  # a full disk is reported as text only
        cause = OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error
        raise WeightsError(f"{path}: cannot write the file ({error}).") from cause
    path.chmod(0o666 & ~UMASK)  # the library makes the file readable by its owner only
    fsync(path)


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Tensors by name. `weights_only` restricts the reader to tensors and containers: other content, for example of a
    malicious file, is refused before any code of the file is executed."""
    try:
        with suppress_warnings():  # old files contain storages of a deprecated class
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
