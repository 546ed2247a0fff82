"""Model = inputs + body + head + task: load it, ask it, watch it, save it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from regard import capabilities
from regard.config import as_dict, from_dict, override
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings, apply_overrides
from regard.errors import RegardError, RunError, UnknownNameError, WeightsError
from regard.explain import explain
from regard.files import write_json
from regard.folders import DTYPES, FORMAT, LAYOUTS, METADATA_FILE, read_config_files
from regard.hub import local_folder
from regard.loading import (
    assign_weights,
    convert_tensors,
    load_encoder_weights,
    meta_device,
    published_decode,
    published_labels,
    read_published_config,
    resolve_encoder,
)
from regard.nn.kernels.linear import recheck_packed
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.systems import find_by_model_type, find_preset, find_system
from regard.systems.common.system import System
from regard.tasks import Task, find_task
from regard.tasks.special_tokens import pad_id, with_special_ids
from regard.tasks.text_heads import add_bias
from regard.types import Batch, BodyOutput, Prediction
from regard.weights.tables import read_checkpoint, write_safetensors

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation
    from regard.processors.image import ImageProcessor
    from regard.processors.palette import Palette
    from regard.processors.points import PointProcessor

__all__ = ["LAYOUTS", "Model", "ModelSpec", "assemble", "build", "load", "save", "unsupported_by_layout"]


@dataclass(frozen=True)
class ModelSpec:
    """What a model is, apart from its weights."""

    system: System
    config: Any
    task: Task
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    source: str = ""
    """the preset or folder it came from"""
    labels: tuple[str, ...] = ()
    """the classes that its head tells apart, where it has one"""
    head_options: str = ""
    """in words: how its head reads two texts together (`data.pair_order`), whether it tells `several` labels, how it spells
    entities (`data.tag_scheme`), or which numbers its classes have in masks; nothing where it does none of it"""
    pad_id: int | None = None
    """the id that published tools fill rows up with, where a folder names one"""


class Model(nn.Module):
    def __init__(self, body: nn.Module, spec: ModelSpec, processor: Any = None) -> None:
        """`reader`: what turns samples into tensors, a tokenizer or what is to be done with pixels or points."""
        super().__init__()
        self.body: Any = body
        self.spec, self.processor = spec, processor
        self.head: Any = spec.task.head(spec.config, spec.labels)
        for part in spec.task.unused_modules(body, spec.config):
            part.requires_grad_(False)
        self.notes: list[str] = []
        """what was left out or newly made when it was loaded"""
        self.dtype_note = ""
        """why the model is computed in another dtype than that of its file; empty where it is not"""
        self.has_new_head = False
        """whether its head was newly made then, or is still to be made"""

    @property
    def config(self) -> Any:
        return self.spec.config

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer, where there is one."""
        return _tokenizer_of(self.processor)

    @tokenizer.setter
    def tokenizer(self, text: TextTokenizer | None) -> None:
        if text is None or self.task.modality != "image" or not self.task.has_text:
            self.processor = text
            return
        from regard.processors.captions import CaptionProcessor
        from regard.processors.image import ImageProcessor

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
        """What the body makes of ids, pixels or points; `mask` belongs to x, True = real."""
        recheck_packed()
        states: BodyOutput = self.body(
            Batch(
                inputs,
                mask,
                decoder_inputs,
                decoder_mask,
                token_types=token_types,
                positions=positions,
                global_tokens=global_tokens,
            )
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
        """What the task reads: of every token, or of the head."""
        recheck_packed()
        return self.task.logits(
            self,
            Batch(
                inputs,
                mask,
                decoder_inputs,
                decoder_mask,
                token_types=token_types,
                positions=positions,
                global_tokens=global_tokens,
            ),
        )

    forward = logits

    @overload
    def predict(self, inputs: str | Mapping[str, Any], **settings: Any) -> Prediction: ...
    @overload
    def predict(self, inputs: Sequence[Any], **settings: Any) -> list[Prediction]: ...
    def predict(
        self, inputs: str | Mapping[str, Any] | Sequence[Any], **settings: Any
    ) -> Prediction | list[Prediction]:
        """One input gives one Answer, a list a list, batched and in order. `settings` are those of decode: num_beams=5, …

        An input is a text, a picture or a cloud, whatever the model reads; of texts for classify also a pair (a, b), for choose
        {"context": …, "choices": […]}, for tag also a tuple of words, for span (question, context), for embed also
        {"query": …, "corpus": […], "top_k": 5}."""
        recheck_packed()
        decode = apply_overrides(self.spec.decode, settings)
        single = self.task.is_single(inputs)
        training = self.training
        if training:
            self.eval()
        try:
            answers = self.task.predict(self, [inputs] if single else list(inputs), decode)
        finally:
            if training:
                self.train()
        return answers[0] if single else answers

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The answer as it is made, in parts that break no character; joined they are what `answer` would say."""
        if not isinstance(prompt, str):
            raise RegardError("stream() takes one text. For a list use predict().")
        # what is wrong with the prompt or the settings is told now, not when the first part is asked for
        return self._stream_in_eval(
            self.task.stream_prediction(self, prompt, apply_overrides(self.spec.decode, settings))
        )

    def _stream_in_eval(self, parts: Iterator[str]) -> Iterator[str]:
        training = self.training
        self.eval()
        try:
            yield from parts
        finally:
            self.train(training)

    def rank(self, prompt: str, choices: Sequence[str]) -> Prediction:
        """Which of some texts follows best, and with what probability among them."""
        recheck_packed()
        training = self.training
        self.eval()
        try:
            return self.task.rank(self, prompt, choices)
        finally:
            self.train(training)

    def explain(self, source: Any, target: str | None = None, *, at: Any = None) -> Explanation:
        """What each layer and head looked at when it answered `source` (or was given `target`). `at`: what one place looked at,
        a pixel (row, column) of a picture as the model reads it, or a point of a cloud, by its number or as (x, y, z)."""
        return explain(self, source, target, at)

    def weights(self) -> dict[str, Tensor]:
        """All that is learnt, by the names of the body's parts, and `head.` before those of the head."""
        head = {} if self.head is None else {f"head.{name}": value for name, value in self.head.state_dict().items()}
        return {**self.body.state_dict(), **head}

    def load_weights(self, weights: Mapping[str, Tensor], assign: bool = False) -> None:
        """The same back; with `assign` these tensors themselves, not their values."""
        head = {name.removeprefix("head."): value for name, value in weights.items() if name.startswith("head.")}
        body = {name: value for name, value in weights.items() if not name.startswith("head.")}
        self.body.load_state_dict(body, strict=True, assign=assign)
        if self.head is not None:
            add_bias(self.head, head)
            self.head.load_state_dict(head, strict=True, assign=assign)

    def require_image_processor(self) -> ImageProcessor | Palette:
        from regard.processors.captions import CaptionProcessor
        from regard.processors.image import ImageProcessor
        from regard.processors.palette import Palette

        found = self.processor.pixels if isinstance(self.processor, CaptionProcessor) else self.processor
        if not isinstance(found, ImageProcessor | Palette):
            raise RegardError(
                f"{self.spec.source or 'this model'} has no preprocessor_config.json, which defines the image preprocessing. "
                "logits(pixels) and states(pixels) work without this file."
            )
        return found

    def require_point_processor(self) -> PointProcessor:
        from regard.processors.points import FILE, PointProcessor

        if not isinstance(self.processor, PointProcessor):
            raise RegardError(
                f"{self.spec.source or 'this model'} has no {FILE}, which defines the preprocessing of point clouds. "
                "logits(points) and states(points) work without this file."
            )
        return self.processor

    def require_processor(self) -> Any:
        """What its task reads by: pixels, points, a tokenizer, or pixels and a tokenizer."""
        if self.task.modality == "image":
            self.require_image_processor()
        if self.task.modality == "points":
            self.require_point_processor()
        if self.task.has_text:
            self.require_tokenizer()
        return self.processor

    def require_tokenizer(self) -> TextTokenizer:
        if self.tokenizer is None:
            raise RegardError(
                f"{self.spec.source or 'this model'} has no tokenizer.json. Add the file to the model folder; "
                "logits(ids) and states(ids) work without a tokenizer."
            )
        return self.tokenizer

    def save(self, folder: str | Path, metadata: dict[str, Any] | None = None) -> Path:
        """A folder that `regard.load` reads, and that published tools read too where their layout can say it."""
        folder = Path(folder)
        if unsupported_by_layout(self):  # such a variant is kept under our own names
            config = {"model_type": "regard", "system": self.spec.system.name}
            _write_folder(self, folder, config, self.weights())
        else:
            save(self, folder, layout="huggingface")
        own: dict[str, Any] = {"format": FORMAT, "system": self.spec.system.name, "task": self.task.name}
        own |= {"model": as_dict(self.config), "labels": list(self.spec.labels), "head_options": self.spec.head_options}
        write_json(folder / METADATA_FILE, {**own, "decode": as_dict(self.spec.decode), **(metadata or {})})
        return folder


def _tokenizer_of(reader: Any) -> TextTokenizer | None:
    if reader is None or isinstance(reader, TextTokenizer):
        return reader
    from regard.processors.captions import CaptionProcessor  # only a reader of pictures or points gets here

    return reader.text if isinstance(reader, CaptionProcessor) else None


def build(name: str, *, device: str | torch.device = "cpu", task: str | None = None, **overrides: Any) -> Model:
    """A fresh model by preset; `changes` are fields of its config: build("transformer-tiny", depth=2)."""
    system, preset = find_preset(name)
    chosen = find_task(task or system.tasks[0], system.modality)
    config = chosen.adapt_config(override(preset.config, resolve_encoder(preset.config, overrides), "model."))
    decode = from_dict(DecodeSettings, system.recipe(preset, chosen.name).get("decode", {}), "decode.")
    model = assemble(
        ModelSpec(system, config, chosen, decode, name), chosen.default_processor(config, DataSettings()), device=device
    )
    if model.device.type != "meta":
        load_encoder_weights(model)
    return model


def assemble(spec: ModelSpec, processor: Any = None, device: str | torch.device = "cpu") -> Model:
    if spec.task.name not in spec.system.tasks:
        raise UnknownNameError(f"task for {spec.system.name}", spec.task.name, spec.system.tasks)
    with meta_device() if torch.device(device).type == "meta" else torch.device(device):
        return Model(spec.system.build(spec.config), spec, processor)


def load(
    folder: str | Path, *, task: str | None = None, dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
) -> Model:  # fmt: skip
    """A run of ours or a published folder (config.json, model.safetensors, perhaps tokenizer.json), ready to be asked.

    `dtype` is a dtype, its name, or "stored" for the dtype of the file. Without one the dtype of the file is kept, except on
    CPUs that multiply half-precision matrices slowly: there float32 is used, with a note in `model.precision`."""
    folder = local_folder(folder)
    published, own = read_config_files(folder)
    tensors = read_checkpoint(folder)
    ours = published.get("model_type") == "regard"
    if ours and not own:
        raise RunError(f"{folder}: {METADATA_FILE} is missing, which a model with model_type 'regard' requires.")
    system = find_system(own["system"]) if own else find_by_model_type(str(published.get("model_type")))
    config = (
        from_dict(system.config, own["model"], "model.") if own else read_published_config(system, published, folder)
    )
    if not ours:
        config, tensors = system.from_published(config, tensors)
    made_for = own.get("task") or system.published.infer_task(published, system.tasks[0])
    chosen = find_task(task or made_for, system.modality).from_folder(folder)
    reader = chosen.load_processor(folder)
    text = _tokenizer_of(reader)
    config = chosen.adapt_config(config if text is None or own else with_special_ids(config, text))
    usual = system.finetune_recipes.get(chosen.name, {}).get("decode", {})
    decode = None if own else published_decode(folder, published, config, chosen)
    decode = decode or from_dict(DecodeSettings, own.get("decode", usual), "decode.")
    identity = ModelSpec(system, config, chosen, decode, str(folder))
    if same := made_for == chosen.name:
        system.published.check_head(published, chosen.name)
        labels, pair = tuple(own.get("labels", ())), str(own.get("head_options", ""))
        if not own and chosen.has_labels:
            labels = published_labels(system.names, published, tensors)
            pair = chosen.parse_head_options(published, labels)
        identity = replace(identity, labels=labels, head_options=pair, pad_id=published.get("pad_token_id"))
    model = assemble(identity, reader, device="meta")
    model.notes += () if text is None else text.notes
    tensors = convert_tensors(model, tensors, ours, same)
    assign_weights(model, tensors, {name: tensor.shape for name, tensor in model.weights().items()}, folder)
    model.dtype_note, chosen_dtype = choose_dtype(model, dtype, torch.device(device))
    return model.to(device=device, dtype=chosen_dtype).eval()


def choose_dtype(model: Model, dtype: torch.dtype | str | None, device: torch.device) -> tuple[str, torch.dtype]:
    """A note (or an empty string) and the dtype to compute in: the given one, or that of the weights where it is fast."""
    stored = next(model.parameters()).dtype
    if isinstance(dtype, torch.dtype):
        return "", dtype
    if dtype is not None and dtype not in ("stored", *DTYPES):
        raise UnknownNameError("dtype", dtype, DTYPES)
    if dtype is not None:
        return "", stored if dtype == "stored" else getattr(torch, dtype)
    if stored.itemsize != 2 or capabilities.is_fast_on(stored, device):
        return "", stored
    name, size = str(stored).removeprefix("torch."), 4 * sum(p.numel() for p in model.parameters()) / 2**20
    note = (
        f"note: computing in float32 ({size:,.0f} MiB of weights, twice the file size): this CPU has no fast {name}. "
        f"--dtype {name} (Python: dtype='{name}') needs less memory and more time."
    )
    return note, torch.float32


def save(model: Model, folder: str | Path, layout: str = "huggingface") -> Path:
    """Write the published layout: config.json, model.safetensors and, where there is one, tokenizer.json."""
    if layout not in LAYOUTS:
        raise UnknownNameError("layout", layout, LAYOUTS)
    system, config = model.spec.system, model.config
    # others' are ours alone: that of span says that it may be silent
    labels = model.spec.labels if model.task.has_labels else ()
    if reason := unsupported_by_layout(model):
        raise WeightsError(reason)
    tensors = system.to_published(config, system.names.write(model.weights()))
    written = system.published.write(as_dict(config), model.task.name)
    if labels and model.head is not None:
        named = {str(number): label for number, label in enumerate(labels)}
        written |= {"id2label": named, "label2id": {label: int(number) for number, label in named.items()}}
        written |= model.task.export_head_options(model.spec.head_options)
    if labels and model.head is not None and model.task.modality == "text":
        # there, the last token that is no padding is the one that is read
        padding = pad_id(config) if model.spec.pad_id is None else model.spec.pad_id
        written |= {"pad_token_id": padding}
    _write_folder(model, Path(folder), written, tensors)
    return Path(folder)


def unsupported_by_layout(model: Model) -> str:
    """What the published layout cannot say of a model; empty when it can say all."""
    system, task = model.spec.system, model.task.name
    if reason := system.unsupported_by_layout(model.config) or model.task.unsupported_by_layout(model.spec.labels):
        return reason
    if model.head is not None and task not in system.published.head_architectures:
        return f"The Hugging Face format of {system.name} has no head for task '{task}'."
    if "symmetric" in model.spec.head_options.split():
        return "The Hugging Face format does not support a head that reads a pair in both orders (data.pair_order=symmetric)."
    return ""


def _write_folder(model: Model, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    aside = folder / ".model.safetensors.writing"
    write_safetensors(aside, tensors)
    os.replace(aside, folder / "model.safetensors")
    write_json(folder / "config.json", {**config, "dtype": dtype})
    for name, value in model.task.extra_files(model.config).items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, value)
    if model.processor is not None:
        model.task.save_processor(model.task.export_tokenizer(model.processor, model.config), model.config, folder)
