"""Models: processor, body, head and task, with loading, prediction, explanation and saving."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn

from regard.capabilities import is_fast_on
from regard.config import as_dict, checked, from_dict, override
from regard.data.memory_tables import Frame, input_rows, table_inputs
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings, apply_overrides, generation_keys, translate_generation_config
from regard.errors import RegardError, RunError, SettingError, UnknownNameError, WeightsError
from regard.explain import explain
from regard.files import write_json
from regard.index import DTYPES, FORMAT, LAYOUTS, METADATA_FILE, local_folder, print_note, read_config_files
from regard.nn.blocks.block import SkipInit
from regard.nn.kernels.linear import recheck_packed
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.processors.tokenizer.vocabulary import unread_files
from regard.systems import find_checkpoint_system, find_preset
from regard.systems.common.checkpoint import read_model_folder, writing
from regard.systems.common.system import System
from regard.tasks import Task, find_task
from regard.tasks.base import NO_OPTIONS, HeadOptions, require_text, require_tokenizer, split_inputs
from regard.tasks.modality.base import Export
from regard.threads import EvalMode
from regard.training.distributed import check_device
from regard.types import Batch, BodyOutput, Prediction
from regard.weights.convert import add_bias, convert_tensors
from regard.weights.tables import mismatch_error, read_checkpoint, write_safetensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from regard.explain import Explanation
    from regard.processors.image import ImageProcessor
    from regard.processors.palette import Palette
    from regard.processors.points import PointProcessor
    from regard.types import SingleInput

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
    """A model with a processor (tokenizer, image or point preprocessing) and a task, from `load`, `build` or `train`.

    Texts, images and point clouds in, predictions out: `predict`, `stream`, `rank`, `explain`. Tensors in, tensors out:
    `logits` (also the forward pass), `states`."""

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
        self._eval_mode = EvalMode()

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer, or None."""
        return self.processor if self.task.input == "text" else getattr(self.processor, "text", None)

    @tokenizer.setter
    def tokenizer(self, text: TextTokenizer | None) -> None:
        if text is None or self.task.input != "image" or not self.objective.modality.has_text:
            self.processor = text
            return
        from regard.processors.image import CaptionProcessor, ImageProcessor

        pixels = self.processor.pixels if isinstance(self.processor, CaptionProcessor) else self.processor
        self.processor = CaptionProcessor(pixels, text) if isinstance(pixels, ImageProcessor) else text

    def extra_repr(self) -> str:
        count, parameter = sum(one.numel() for one in self.parameters()), next(self.parameters())
        kind = str(parameter.dtype).removeprefix("torch.")
        task = f"{self.task.name} ({self.task.input})"
        return f"{self.spec.system.name}, task {task}, {count:,} parameters, {kind}, {parameter.device}"

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
        layers: Literal["all"] | None = None,
        attentions: bool = False,
    ) -> BodyOutput:
        """Output of the body for ids, pixels or points; `mask` is True for real positions of `inputs`.

        `layers="all"`: with `hidden_states` of all layers, the embeddings first, as `output_hidden_states` of transformers;
        encoder–decoders also have `encoder_hidden_states`. `attentions`: with the attention weights of all layers."""
        function = self.body
        if layers is not None or attentions:
            from regard.tasks.tensor_inputs import run_recorded

            function = functools.partial(run_recorded, self, layers, attentions)
        return self._run(function, inputs, decoder_inputs, mask, decoder_mask, token_types, positions, global_tokens)

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
        function = functools.partial(self.objective.logits, self)
        return self._run(function, inputs, decoder_inputs, mask, decoder_mask, token_types, positions, global_tokens)

    forward = logits

    def _run(self, function: Callable[[Batch], Any], *tensors: Tensor | None) -> Any:
        from regard.tasks.tensor_inputs import run

        recheck_packed()
        return run(self, function, *tensors)

    @overload
    def predict(
        self, inputs: SingleInput, *, columns: Mapping[str, str] | None = None, **settings: Any
    ) -> Prediction: ...
    @overload  # one input or several, depending on the task and on the rank of an array
    def predict(
        self,
        inputs: tuple[Any, ...] | NDArray[Any] | Tensor,
        *,
        columns: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Any: ...
    @overload
    def predict(
        self, inputs: Iterable[Any] | Frame, *, columns: Mapping[str, str] | None = None, **settings: Any
    ) -> list[Prediction]: ...
    def predict(
        self,
        inputs: SingleInput | Iterable[Any] | Frame,
        *,
        columns: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Prediction | list[Prediction]:
        """One prediction for one input, a list for a list, iterator or batch, in input order. `settings` are decode
        settings: num_beams=5, …

        An input is a text, an image or a point cloud. classify also accepts a pair (a, b), choose {"context": …,
        "choices": […]}, tag a tuple of words, qa (question, context), embed {"query": …, "corpus": […], "top_k": 5}.
        An image is a path, the bytes of a file, an open file, an array or tensor of gray, RGB or RGBA pixels (H, W),
        (H, W, C) or (C, H, W), or a Pillow image; an array of rank 4 is a batch. A point cloud is a path, the bytes of
        a file, an open file, an array or tensor (N, 3 + features), or an object of trimesh; rank 3 is a batch.

        A table gives a list with one prediction per row: a frame of pandas or polars, an Arrow table, a dataset of Hugging
        Face, or a list of dicts if a dict is not an input of the task. `columns` renames columns: {"text": "review"}.

        Raises InputTypeError or InputError for other inputs, DataError for unreadable files, SettingError for settings."""
        recheck_packed()
        decode = apply_overrides(self.spec.decode, settings)
        rows = input_rows(inputs, columns, Mapping in self.objective.single_types)
        if rows is not None:
            with table_inputs(self.task.reader, rows, columns) as items, self._eval_mode(self):
                answers = self.objective.predict(self, items, decode)
            return answers[0] if isinstance(inputs, Mapping) else answers
        several = split_inputs(self.objective, inputs)
        with self._eval_mode(self):
            answers = self.objective.predict(self, [inputs] if several is None else several, decode)
        return answers[0] if several is None else answers

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """Yield the output of `predict` in parts during generation; a part never splits a character."""
        require_text(prompt, "one text; for a list use predict()")
        if not self.objective.streams:
            raise RegardError(f"Task '{self.task.name}' does not support streaming.")
        objective: Any = self.objective
        # errors of the prompt or the settings are raised here, not at the first part
        parts = objective.stream(self, prompt, apply_overrides(self.spec.decode, settings))

        def in_eval_mode() -> Iterator[str]:
            with self._eval_mode(self):
                yield from parts

        return in_eval_mode()

    def rank(self, prompt: str, choices: Sequence[str]) -> Prediction:
        """The most likely of several continuations, with probabilities."""
        recheck_packed()
        objective: Any = self.objective
        if not objective.ranks:
            raise RegardError(f"Task '{self.task.name}' cannot rank choices. {objective.rank_advice}")
        with self._eval_mode(self):
            return objective.rank(self, prompt, choices)

    def explain(
        self, source: Any, target: str | None = None, *, at: Any = None, class_name: str | None = None
    ) -> Explanation:
        """Attention of each layer and head for the prediction, or for `target`. `at` selects one query: a pixel (row,
        column) of the image, or a point by index or as (x, y, z). `class_name` is explained in place of the predicted
        class."""
        split_inputs(self.objective, source, single=True)
        with self._eval_mode(self):
            return explain(self, source, target, at, class_name)

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
        if self.objective.modality.has_text:
            require_tokenizer(self)
        return self.processor

    @checked
    def save(self, folder: str | os.PathLike[str], metadata: dict[str, Any] | None = None) -> Path:
        """Save a folder for `regard.load`, in Hugging Face format if supported. A run passes its `metadata`."""
        with writing(folder) if metadata is None else nullcontext(Path(folder)) as path:
            _write_folder(self, path, native=True)
            write_json(path / METADATA_FILE, model_metadata(self.spec) | (metadata or {}))
        return path


def model_metadata(spec: ModelSpec) -> dict[str, Any]:
    """Contents of regard.json that describe a model."""
    # labels have a separate key, and the pooling has files
    hidden, options = ("labels", "pooling"), as_dict(spec.options)
    changed = {n: value for n, value in options.items() if n not in hidden and value != getattr(NO_OPTIONS, n)}
    return {
        "format": FORMAT,
        "system": spec.system.name,
        "task": spec.task.name,
        "model": as_dict(spec.config),
        "labels": list(spec.options.labels),
        "head_options": changed,
        "decode": as_dict(spec.decode),
    }


@checked
def build(name: str, *, device: str | torch.device = "cpu", task: str | None = None, **overrides: Any) -> Model:
    """A model with random weights from a preset.

    name       preset, see `regard list presets`
    device     auto, cpu, cuda, mps, or meta for shapes without memory
    task       task of the head; default: first task of the system
    overrides  fields of the config: build("transformer-tiny", depth=2)

    Raises UnknownNameError, SettingError or InputTypeError, subclasses of `regard.RegardError`."""
    device = check_device(device)
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
    if spec.task.name not in (tasks := spec.system.task_recipes.tasks):
        raise UnknownNameError(f"task for {spec.system.name}", spec.task.name, tasks)
    with torch.device(device), SkipInit() if torch.device(device).type == "meta" else nullcontext():
        return Model(spec.system.build(spec.config), spec, processor)


@checked
def load(
    folder: str | os.PathLike[str],
    *,
    task: str | None = None,
    dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
) -> Model:
    """Load a run folder or a Hugging Face checkpoint (config.json, model.safetensors, optional tokenizer.json), in
    evaluation mode.

    folder  path, or hf:ORG/NAME for a model of the Hugging Face Hub
    task    task, if another one than the task of the folder; its head is new
    dtype   a dtype, its name, or "stored" for the dtype of the file. Default: the dtype of the file, except on CPUs with
            slow half-precision matrix products, where float32 is used, with a note in `model.dtype_note`
    device  auto, cpu, cuda or mps

    Raises RunError, WeightsError, DataError, SettingError or InputTypeError, subclasses of `regard.RegardError`."""
    device = check_device(device)
    if isinstance(dtype, str) and dtype not in ("stored", *DTYPES):
        raise UnknownNameError("dtype", dtype, DTYPES)
    if isinstance(dtype, torch.dtype) and not dtype.is_floating_point:
        raise SettingError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}.")
    model = _load_stored(local_folder(folder), task)
    stored = next(model.parameters()).dtype
    if dtype is None and stored.itemsize == 2 and not is_fast_on(stored, device):
        dtype, name = torch.float32, str(stored).removeprefix("torch.")
        size = 4 * sum(p.numel() for p in model.parameters()) / 2**20
        model.dtype_note = (
            f"note: computing in float32 ({size:,.0f} MiB of weights, twice the file size): this CPU has no fast {name}. "
            f"--dtype {name} (Python: dtype='{name}') needs less memory and more time."
        )
    named = stored if dtype in (None, "stored") else dtype
    return model.to(device=device, dtype=getattr(torch, named) if isinstance(named, str) else named).eval()


def stored_task(folder: str | os.PathLike[str]) -> Task:
    """Task of a model folder, without loading the model."""
    published, own = read_config_files(Path(folder))
    system = find_checkpoint_system(published, own)
    name = own.get("task") or system.published.infer_task(published, system.tasks[0])
    return find_task(name, system.config.modality)


def _load_stored(folder: Path, task: str | None) -> Model:
    """Model with the dtype of the file."""
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
        saved = {**own.get("head_options", {}), "labels": own.get("labels", ())}
        options = from_dict(HeadOptions, saved, "head_options.")
        if not own and objective.has_labels:
            names = map(system.published.names.published_names, ("head.classes.weight", "head.tags.weight"))
            head = next((tensors[name] for several in names for name in several if name in tensors), ())
            known = {int(number): str(name) for number, name in (published.get("id2label") or {}).items()}
            labels = tuple(known.get(number, f"LABEL_{number}") for number in range(len(head)))
            options = objective.options.load(HeadOptions(labels), folder, published)
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
    tensors = convert_tensors(model, [*model.weights()], tensors, ours, same)
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
    return model


def reload_weights(model: Model, folder: Path) -> None:
    """Load the weights of a folder that the model was saved to, into the existing tensors."""
    tensors, native = read_checkpoint(folder), bool(unsupported_by_layout(model))
    if not native:
        _, tensors = model.spec.system.published.from_published(model.config, tensors)
    model.load_weights(convert_tensors(model, [*model.weights()], tensors, native, same_task=True))
    model.spec = replace(model.spec, source=str(folder))


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


# -- saving


@checked
def save(model: Model, folder: str | os.PathLike[str], layout: str = "huggingface") -> Path:
    """Save `model` in Hugging Face format: config.json, model.safetensors and, if available, tokenizer.json.

    folder  new folder, or folder of a saved model, which is replaced
    layout  format: huggingface

    Raises WeightsError if the format does not support the model, and RunError if the folder has other content."""
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    with writing(folder) as path:
        return _write_folder(model, path, native=False)


def unsupported_by_layout(model: Model) -> str:
    """Reason why the Hugging Face format does not support the model; empty if supported."""
    system, task, rules = model.spec.system, model.task.name, model.objective.options
    layout = system.published
    if not layout.model_type:
        return (
            "This system has no Hugging Face equivalent. Save the model in regard's native format with "
            "model.save(folder), as 'regard train' does; regard.load() reads that format."
        )
    found = {name: getattr(model.config, name) for name in layout.required}
    if reason := layout.check_layout(model.config):
        return reason
    if found != layout.required:
        *others, last = (f"model.{name}={value}" for name, value in found.items())
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"Hugging Face format for {layout.requirement}; this model has {listed}."
    if reason := rules.export(model.spec.options, model.config).unsupported:
        return reason
    if model.head is not None and task not in layout.head_architectures:
        return f"The Hugging Face format of {system.name} has no head for task '{task}'."
    return ""


def _write_folder(model: Model, folder: Path, native: bool) -> Path:
    """Write weights, config and processor in Hugging Face format. For models that the format does not support, use the
    names of regard if `native`, otherwise raise an error."""
    spec, tensors = model.spec, model.weights()
    published, reason = spec.system.published, unsupported_by_layout(model)
    exported = model.objective.options.export(spec.options, spec.config)
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
            config |= exported.keys
            if model.task.input == "text":
                from regard.tasks.modality.text import pad_token_id

                # Hugging Face reads the last token before the padding
                config["pad_token_id"] = pad_token_id(model.tokenizer, spec.config, spec.pad_id)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / ".model.safetensors.writing"
    write_safetensors(aside, tensors)
    os.replace(aside, folder / "model.safetensors")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    write_json(folder / "config.json", {**config, "dtype": dtype})
    for name, value in exported.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, value)
    if model.tokenizer is None and model.objective.modality.has_text and (others := unread_files(spec.source)):
        print_note(f"note: {spec.source}: these tokenizer files are not supported and were not saved: {others}.")
    if model.processor is not None:
        limited = not reason and model.objective.modality.has_text
        export = Export(exported.max_length or spec.config.max_length if limited else 0, spec.pad_id)
        model.objective.modality.save_processor(model.processor, spec.config, folder, export)
    return folder
