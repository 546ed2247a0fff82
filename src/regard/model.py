"""Models: processor, body, head and task, with loading, prediction, explanation and saving."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from regard.capabilities import is_fast_on
from regard.config import as_dict, from_dict, override
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings, apply_overrides, generation_keys, translate_generation_config
from regard.errors import RegardError, RunError, SettingError, UnknownNameError, WeightsError
from regard.explain import explain
from regard.files import write_json
from regard.index import DTYPES, FORMAT, LAYOUTS, METADATA_FILE, local_folder, print_note
from regard.nn.blocks.block import SkipInit
from regard.nn.kernels.linear import recheck_packed
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import find_preset
from regard.systems.common.checkpoint import read_model_folder
from regard.systems.common.system import System
from regard.tasks import Task, find_task
from regard.tasks.base import NO_OPTIONS, HeadOptions, require_tokenizer
from regard.types import Batch, BodyOutput, DecoderInputs, Prediction, TextFields
from regard.weights.tables import NameTable, matches, mismatch_error, read_checkpoint, write_safetensors

if TYPE_CHECKING:
    from regard.explain import Explanation
    from regard.processors.image import ImageProcessor
    from regard.processors.palette import Palette
    from regard.processors.points import PointProcessor

__all__ = ["LAYOUTS", "Model", "ModelSpec", "assemble", "build", "load", "save", "unsupported_by_layout"]


@dataclass(frozen=True)
class ModelSpec:
    """Description of a model without its weights."""

    system: System
    config: Any
    task: Task
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    source: str = ""  # preset or folder of origin
    options: HeadOptions = NO_OPTIONS  # classes and other options of the head
    pad_id: int | None = None  # id of the padding token in a Hugging Face config.json


class Model(nn.Module):
    def __init__(self, body: nn.Module, spec: ModelSpec, processor: Any = None) -> None:
        """`processor`: converts samples into tensors; a tokenizer, or the preprocessing of images or points."""
        super().__init__()
        self.body: Any = body
        self.spec, self.processor = spec, processor
        self.config, self.task, self.objective = spec.config, spec.task, spec.task.objective
        build_head = self.objective.head
        self.head: Any = None if build_head is None else build_head(spec.config, spec.options)
        if self.objective.uses_feature_maps:  # modules after the last map are kept for the checkpoint format
            network: Any = body
            for part in network.unused_modules([tap.index for tap in spec.config.feature_maps()]):
                part.requires_grad_(False)
        self.notes: list[str] = []  # messages about ignored and newly initialized weights
        self.dtype_note = ""  # reason for a dtype other than the dtype of the file; empty if equal
        self.has_new_head = False  # True if the head was newly initialized, or is not built yet

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer, or None."""
        return self.processor if self.task.input == "text" else getattr(self.processor, "text", None)

    @tokenizer.setter
    def tokenizer(self, text: TextTokenizer | None) -> None:
        if text is None or self.task.input != "image" or not self.task.has_text:
            self.processor = text
            return
        from regard.processors.image import CaptionProcessor, ImageProcessor

        pixels = self.processor.pixels if isinstance(self.processor, CaptionProcessor) else self.processor
        self.processor = CaptionProcessor(pixels, text) if isinstance(pixels, ImageProcessor) else text

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def states(
        self,
        inputs: Tensor,
        decoder_inputs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        decoder_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> BodyOutput:
        """Output of the body for ids, pixels or points; `mask` is True for real positions of `inputs`."""
        states: BodyOutput = self.body(
            _batch(inputs, decoder_inputs, mask, decoder_mask, token_types, positions, global_tokens)
        )
        return states

    def logits(
        self,
        inputs: Tensor,
        decoder_inputs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        decoder_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        positions: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> Tensor:
        """Logits of the task: for every token, or of the head."""
        batch = _batch(inputs, decoder_inputs, mask, decoder_mask, token_types, positions, global_tokens)
        return self.objective.logits(self, batch)

    forward = logits

    @overload
    def predict(self, inputs: str | Mapping[str, Any], **settings: Any) -> Prediction: ...
    @overload
    def predict(self, inputs: Sequence[Any], **settings: Any) -> list[Prediction]: ...
    def predict(
        self, inputs: str | Mapping[str, Any] | Sequence[Any], **settings: Any
    ) -> Prediction | list[Prediction]:
        """One prediction for one input, a list for a list, in input order. `settings` are decode settings: num_beams=5,
        …

        An input is a text, an image or a point cloud. classify also accepts a pair (a, b), choose {"context": …,
        "choices": […]}, tag a tuple of words, qa (question, context), embed {"query": …, "corpus": […], "top_k": 5}."""
        recheck_packed()
        decode = apply_overrides(self.spec.decode, settings)
        objective = self.objective
        single = objective.modality.is_single(inputs) or isinstance(inputs, objective.single_types)
        with self._eval_mode():
            answers = objective.predict(self, [inputs] if single else list(inputs), decode)
        return answers[0] if single else answers

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Yield the output of `predict` in parts during generation; a part never splits a character."""
        if not isinstance(prompt, str):
            raise RegardError("stream() takes one text. For a list use predict().")
        if not self.objective.streams:
            raise RegardError(f"Task '{self.task.name}' does not support streaming.")
        objective: Any = self.objective
        # errors of the prompt or the settings are raised here, not at the first part
        parts = objective.stream(self, prompt, apply_overrides(self.spec.decode, settings))

        def in_eval_mode() -> Iterator[str]:
            with self._eval_mode():
                yield from parts

        return in_eval_mode()

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        training = self.training
        if training:
            self.eval()
        try:
            yield
        finally:
            if training:
                self.train()

    def rank(self, prompt: str, choices: Sequence[str]) -> Prediction:
        """The most likely of several continuations, with probabilities."""
        recheck_packed()
        objective: Any = self.objective
        if not objective.ranks:
            raise RegardError(f"Task '{self.task.name}' cannot rank choices. {objective.rank_advice}")
        with self._eval_mode():
            return objective.rank(self, prompt, choices)

    def explain(self, source: Any, target: str | None = None, *, at: Any = None) -> Explanation:
        """Attention of each layer and head for the prediction, or for `target`. `at` selects one query: a pixel (row,
        column) of the preprocessed image, or a point by index or as (x, y, z)."""
        return explain(self, source, target, at)

    def weights(self) -> dict[str, Tensor]:
        """Weights by native names, with the prefix `head.` for the head."""
        head = {} if self.head is None else {f"head.{name}": value for name, value in self.head.state_dict().items()}
        return {**self.body.state_dict(), **head}

    def load_weights(self, weights: Mapping[str, Tensor], assign: bool = False) -> None:
        """Load weights by native names; `assign` uses the given tensors instead of copying values."""
        head = {name.removeprefix("head."): value for name, value in weights.items() if name.startswith("head.")}
        body = {name: value for name, value in weights.items() if not name.startswith("head.")}
        self.body.load_state_dict(body, strict=True, assign=assign)
        if self.head is not None:
            add_bias(self.head, head)
            self.head.load_state_dict(head, strict=True, assign=assign)

    def require_tokenizer(self) -> TextTokenizer:
        """The tokenizer. A missing tokenizer is an error."""
        return require_tokenizer(self)

    def require_image_processor(self) -> ImageProcessor | Palette:
        """The image processor or palette. A missing processor is an error."""
        return resolve_name("regard.tasks.modality.image:require_image_processor")(self)

    def require_point_processor(self) -> PointProcessor:
        """The point processor. A missing processor is an error."""
        return resolve_name("regard.tasks.modality.points:require_point_processor")(self)

    def require_processor(self) -> Any:
        """The processor of the task; raises an error if a part is missing."""
        if self.task.input == "image":
            self.require_image_processor()
        if self.task.input == "points":
            self.require_point_processor()
        if self.task.has_text:
            require_tokenizer(self)
        return self.processor

    def save(self, folder: str | Path, metadata: dict[str, Any] | None = None) -> Path:
        """Save a folder for `regard.load`, in Hugging Face format if supported."""
        folder = Path(folder)
        _write_folder(self, folder, native=True)
        own: dict[str, Any] = {"format": FORMAT, "system": self.spec.system.name, "task": self.task.name}
        options = self.spec.options
        own |= {"model": as_dict(self.config), "labels": list(options.labels), "head_options": options.as_dict()}
        write_json(folder / METADATA_FILE, {**own, "decode": as_dict(self.spec.decode), **(metadata or {})})
        return folder


def _batch(
    inputs: Tensor, decoder_inputs: Tensor | None, mask: Any, decoder_mask: Any, types: Any, positions: Any, marked: Any
) -> Batch:
    """Batch of the arguments of `Model.states`."""
    recheck_packed()
    decoder = None if decoder_inputs is None else DecoderInputs(decoder_inputs, decoder_mask)
    return Batch(inputs, mask, positions, decoder=decoder, text=TextFields(types, marked))


def build(name: str, *, device: str | torch.device = "cpu", task: str | None = None, **overrides: Any) -> Model:
    """A model with random weights from a preset; `overrides` are config fields: build("transformer-tiny", depth=2)."""
    system, preset = find_preset(name)
    chosen = find_task(task or system.tasks[0], system.modality)
    overrides = system.part.resolve(preset.config, overrides) if system.part else overrides
    config = override(preset.config, overrides, "model.")
    config = chosen.objective.adapt_config(config)
    decode = from_dict(DecodeSettings, system.recipe(preset, chosen.name).get("decode", {}), "decode.")
    processor = chosen.modality.default_processor(config, DataSettings())
    model = assemble(ModelSpec(system, config, chosen, decode, name), processor, device=device)
    if system.part and model.device.type != "meta":
        system.part.load(model.body, config)
    return model


def assemble(spec: ModelSpec, processor: Any = None, device: str | torch.device = "cpu") -> Model:
    if spec.task.name not in spec.system.tasks:
        raise UnknownNameError(f"task for {spec.system.name}", spec.task.name, spec.system.tasks)
    with torch.device(device), SkipInit() if torch.device(device).type == "meta" else nullcontext():
        return Model(spec.system.build(spec.config), spec, processor)


def load(
    folder: str | Path,
    *,
    task: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """Load a run folder or a Hugging Face checkpoint (config.json, model.safetensors, optional tokenizer.json).

    `dtype` is a dtype, its name, or "stored" for the dtype of the file. Default: the dtype of the file, except on CPUs
    with slow half-precision matrix products, where float32 is used, with a note in `model.dtype_note`."""
    folder = local_folder(folder)
    system, config, tensors, ours, published, own = read_model_folder(folder)
    made_for = own.get("task") or system.published.infer_task(published, system.tasks[0])
    chosen = find_task(task or made_for, system.config.modality)
    objective = chosen.objective
    config = objective.adapt_config(config)
    options, pad_id = NO_OPTIONS, None
    if same := made_for == chosen.name:
        for key, value in system.published.fixed_head_keys.get(chosen.name, {}).items():
            if published.get(key, value) != value:
                raise WeightsError(f"config.json: {key}={published[key]!r} is not supported. Supported: {value!r}.")
        options = HeadOptions.from_dict(own.get("head_options", {}), own.get("labels", ()))
        if not own and objective.has_labels:
            options = objective.options.load(
                HeadOptions(_published_labels(system.published.names, published, tensors)), folder, published
            )
        pad_id = published.get("pad_token_id")
    if not objective.has_labels:
        options = objective.options.load(options, folder)
    processor = objective.modality.load_processor(folder)
    text = processor if chosen.input == "text" else getattr(processor, "text", None)
    if text is not None and not own:
        from regard.tasks.modality.text import special_token_ids

        config = replace(config, **special_token_ids(text)) if config.traits.is_encoder else config
    usual = system.task_recipes.finetuning.get(chosen.name, {}).get("decode", {})
    decode = None if own else _published_decode(folder, published, config, chosen)
    decode = decode or from_dict(DecodeSettings, own.get("decode", usual), "decode.")
    model = assemble(ModelSpec(system, config, chosen, decode, str(folder), options, pad_id), processor, device="meta")
    model.notes += () if text is None else text.notes
    tensors = convert_tensors(model, tensors, ours, same)
    expected = {name: tensor.shape for name, tensor in model.weights().items()}
    missing, strange = [n for n in expected if n not in tensors], [n for n in tensors if n not in expected]
    if missing or strange:
        raise mismatch_error(missing, strange)
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsError(
                f"{folder}: {name} is {tuple(tensors[name].shape)} in the file, expected {tuple(shape)} from config.json."
            )
        if not tensors[name].is_floating_point():
            raise WeightsError(f"{folder}: {name} expected floating-point numbers, got {tensors[name].dtype}.")
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()})
    model.load_weights({name: tensor.to(widest) for name, tensor in tensors.items()}, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    model.dtype_note, chosen_dtype = choose_dtype(model, dtype, torch.device(device))
    return model.to(device=device, dtype=chosen_dtype).eval()


def reload_weights(model: Model, folder: Path) -> None:
    """Load the weights of a folder that the model was saved to, into the existing tensors."""
    tensors, native = read_checkpoint(folder), bool(unsupported_by_layout(model))
    if not native:
        _, tensors = model.spec.system.published.from_published(model.config, tensors)
    model.load_weights(convert_tensors(model, tensors, native, same_task=True))
    model.spec = replace(model.spec, source=str(folder))


def choose_dtype(model: Model, dtype: torch.dtype | str | None, device: torch.device) -> tuple[str, torch.dtype]:
    """A note (or an empty string) and the dtype for computation: the given dtype, or the dtype of the weights if fast."""
    stored = next(model.parameters()).dtype
    if isinstance(dtype, torch.dtype):
        return "", dtype
    if dtype is not None and dtype not in ("stored", *DTYPES):
        raise UnknownNameError("dtype", dtype, DTYPES)
    if dtype is not None:
        return "", stored if dtype == "stored" else getattr(torch, dtype)
    if stored.itemsize != 2 or is_fast_on(stored, device):
        return "", stored
    name, size = str(stored).removeprefix("torch."), 4 * sum(p.numel() for p in model.parameters()) / 2**20
    note = (
        f"note: computing in float32 ({size:,.0f} MiB of weights, twice the file size): this CPU has no fast {name}. "
        f"--dtype {name} (Python: dtype='{name}') needs less memory and more time."
    )
    return note, torch.float32


# -- tensors and settings of a checkpoint

UNUSED_WEIGHTS = "Not used:"  # Start of a note about weights in the file without a counterpart in the model.

HEAD_DESCRIPTIONS = {
    "seq_relationship": "next-sentence prediction", "follows": "next-sentence prediction", "predictions": "masked tokens",
    "words": "masked tokens", "lm_head": "language modeling", "classifier": "classes", "score": "classes", "classes": "classes",
    "tags": "tags", "choice": "choices", "qa_outputs": "answers", "ends": "answers", "pooler": "pooling",
}  # fmt: skip
"""Purpose of head tensors, by a component of the tensor name."""


def _published_labels(names: NameTable, published: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Class names from `id2label`, or LABEL_0, LABEL_1, … if missing; empty without a classification head."""
    heads = [name for ours in ("head.classes.weight", "head.tags.weight") for name in names.published_names(ours)]
    found = next((tensors[name] for name in heads if name in tensors), None)
    if found is None:
        return ()
    named = {int(number): str(name) for number, name in (published.get("id2label") or {}).items()}
    return tuple(named.get(number, f"LABEL_{number}") for number in range(len(found)))


def _published_decode(folder: Path, published: Mapping[str, Any], config: Any, task: Task) -> DecodeSettings | None:
    """Decode settings of a Hugging Face checkpoint; None if the task does not generate text or the folder has no
    settings.

    Unsupported values are printed in one note."""
    path = folder / "generation_config.json"
    used = task.objective.settings_used
    if "decode.max_length" not in used:  # the task generates no text
        return None
    try:
        given = json.loads(path.read_text(encoding="utf-8")) if path.exists() else generation_keys(published)
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot read the file ({error}).") from error
    if not isinstance(given, dict):
        raise RunError(f"{path}: expected a JSON object.")
    if not given:
        return None
    padding = {config.traits.pad_id} - {config.eos_id, None}
    found, unsupported = translate_generation_config(given, config, padding)
    if unsupported:
        name = path.name if path.exists() else "config.json"
        print_note(f"note: {folder}: {name} has unsupported settings, which are ignored: {', '.join(unsupported)}.")
    try:
        return from_dict(
            DecodeSettings, {key: value for key, value in found.items() if f"decode.{key}" in used}, "decode."
        )
    except SettingError as error:
        raise RunError(f"{path}: {error}") from error


def convert_tensors(model: Model, tensors: dict[str, Tensor], native: bool, same_task: bool) -> dict[str, Tensor]:
    """Tensors by native names. All tensors of the body are required. If the checkpoint is for another task, its head is
    ignored and a new head is initialized, both with a note."""
    names, tensors = model.spec.system.published.names, dict(tensors)
    own_name = (lambda name: [name]) if native else names.published_names
    for name, part in () if model.head is None else model.head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None:  # decoder heads have no bias by default
            found = [file_name for file_name in own_name(f"head.{name}.bias") if file_name in tensors]
            if any(bool(tensors[file_name].any()) for file_name in found):
                part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))
            else:  # a bias of zeros has no effect
                tensors = {file_name: tensor for file_name, tensor in tensors.items() if file_name not in found}
    wanted = list(model.weights())
    new = [
        name
        for name in wanted
        # heads of two tasks may have the same name: never load the head of another task
        if (name.startswith("head.") and not same_task)
        or (matches(names.optional, name) and not set(own_name(name)) <= tensors.keys())
    ]
    wanted = [name for name in wanted if name not in new]
    if native:
        foreign = [
            name
            for name in tensors
            if name not in wanted and ((name.startswith("head.") and not same_task) or matches(names.optional, name))
        ]
        read = {name: tensor for name, tensor in tensors.items() if name not in foreign}
    else:
        read, foreign = names.read(tensors, wanted)
    if foreign:
        model.notes.append(f"{UNUSED_WEIGHTS} {_describe_heads(foreign)} (of another task).")
    if model.head is None and model.objective.has_labels:
        model.notes.append("The model has no classification head yet: no classes are defined.")
        model.has_new_head = True
    return read | _init_missing(model, new, read) if new else read


def _describe_heads(names: Sequence[str]) -> str:
    """Names of up to two tensors, or the purpose of more tensors."""
    if len(names) < 3:
        return ", ".join(names)
    kinds = {
        next((kind for word, kind in HEAD_DESCRIPTIONS.items() if word in name.split(".")), name) for name in names
    }
    return f"the head for {' and '.join(sorted(kinds))} ({len(names)} tensors)"


def _init_missing(model: Model, new: Sequence[str], read: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Initial values of missing tensors: the initialization of the task for heads, otherwise N(0, 0.02), or 0 for
    vectors."""
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in read.values()})
    fresh = None if model.head is None else model.objective.head(model.config, model.spec.options)
    heads = {} if fresh is None else {f"head.{name}": tensor for name, tensor in fresh.state_dict().items()}
    made = {}
    for name in new:
        shape = model.weights()[name].shape
        tensor = heads.get(name)
        if tensor is None:
            tensor = torch.zeros(shape) if len(shape) == 1 else torch.normal(0.0, 0.02, tuple(shape))
        made[name] = tensor.to(widest)
        if len(shape) > 1:
            sizes = " x ".join(map(str, shape))
            model.notes.append(f"Random weights: {name} ({sizes}), missing in the file.")
    model.has_new_head = model.has_new_head or any(name in heads for name in new)
    return made


def add_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Create the absent biases that occur in the tensors of a checkpoint."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


# -- saving


def save(model: Model, folder: str | Path, layout: str = "huggingface") -> Path:
    """Save in Hugging Face format: config.json, model.safetensors and, if available, tokenizer.json."""
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    _write_folder(model, Path(folder), native=False)
    return Path(folder)


def unsupported_by_layout(model: Model) -> str:
    """Reason why the Hugging Face format does not support the model; empty if supported."""
    system, task = model.spec.system, model.task.name
    if reason := system.unsupported_by_layout(model.config) or model.objective.options.unsupported(model.spec.options):
        return reason
    if model.head is not None and task not in system.published.head_architectures:
        return f"The Hugging Face format of {system.name} has no head for task '{task}'."
    return ""


def _write_folder(model: Model, folder: Path, native: bool) -> None:
    """Write weights, config and processor in Hugging Face format. For models that the format does not support, use the
    names of regard if `native`, otherwise raise an error."""
    spec, options = model.spec, model.objective.options
    published, tensors = spec.system.published, model.weights()
    reason = unsupported_by_layout(model)
    if reason and not native:
        raise WeightsError(reason)
    config: dict[str, Any] = {"model_type": "regard", "system": spec.system.name}
    if not reason:
        tensors = published.to_published(spec.config, published.names.write(tensors))
        config = published.write(as_dict(spec.config), model.task.name)
        # labels of tasks without classes have no meaning in Hugging Face, for example of qa
        if spec.options.labels and model.objective.has_labels and model.head is not None:
            named = {str(number): label for number, label in enumerate(spec.options.labels)}
            config |= {"id2label": named, "label2id": {label: int(number) for number, label in named.items()}}
            config |= options.export(spec.options)
            if model.task.input == "text":
                from regard.tasks.modality.text import pad_id

                # Hugging Face reads the last token before the padding
                config["pad_token_id"] = pad_id(spec.config) if spec.pad_id is None else spec.pad_id
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / ".model.safetensors.writing"
    write_safetensors(aside, tensors)
    os.replace(aside, folder / "model.safetensors")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    write_json(folder / "config.json", {**config, "dtype": dtype})
    for name, value in options.export_files(spec.options, spec.config).items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, value)
    if model.processor is not None:
        model.objective.modality.save_processor(model.processor, spec.config, folder, export=True)
