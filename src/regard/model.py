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
from regard.data.settings import Data
from regard.decode.settings import Decode, told
from regard.errors import RegardError, RunError, UnknownName, WeightsError
from regard.explain import explain
from regard.files import write_json
from regard.folders import DTYPES, LAYOUTS, OWN_FILE, is_folder, read_identity
from regard.loading import fill, named_labels, on_meta, open_eyes, read_tensors, seen_through
from regard.nn.kernels.linear import recheck
from regard.processors.tokenizer.tokenizer import Text
from regard.systems import find_preset, find_published, find_system
from regard.systems.common.system import System
from regard.tasks import Task, find_task
from regard.tasks.special_tokens import filler, placed
from regard.tasks.text_heads import take_bias
from regard.types import Answer, Batch, States
from regard.weights.tables import read_folder, write_file

if TYPE_CHECKING:
    from regard.explain.explanation import Explanation
    from regard.processors.image import Pixels
    from regard.processors.palette import Palette
    from regard.processors.points import Points

__all__ = ["LAYOUTS", "Identity", "Model", "assemble", "build", "is_folder", "load", "save", "unsayable"]


@dataclass(frozen=True)
class Identity:
    """What a model is, apart from its weights."""

    system: System
    config: Any
    task: Task
    decode: Decode = field(default_factory=Decode)
    source: str = ""
    """the preset or folder it came from"""
    labels: tuple[str, ...] = ()
    """the classes that its head tells apart, where it has one"""
    pair: str = ""
    """in words: how its head reads two texts together (`data.pair`), whether it tells `several` labels, how it spells
    entities (`data.scheme`), or which numbers its classes have in masks; nothing where it does none of it"""
    padding: int | None = None
    """the id that published tools fill rows up with, where a folder names one"""


class Model(nn.Module):
    def __init__(self, body: nn.Module, identity: Identity, reader: Any = None) -> None:
        """`reader`: what turns samples into tensors, a tokenizer or what is to be done with pixels or points."""
        super().__init__()
        self.body: Any = body
        self.identity, self.reader = identity, reader
        self.head: Any = identity.task.head(identity.config, identity.labels)
        for part in identity.task.unread(body, identity.config):
            part.requires_grad_(False)
        self.notes: list[str] = []
        """what was left out or newly made when it was loaded"""
        self.precision = ""
        """why the model is computed in another dtype than that of its file; empty where it is not"""
        self.fresh = False
        """whether its head was newly made then, or is still to be made"""

    @property
    def config(self) -> Any:
        return self.identity.config

    @property
    def task(self) -> Task:
        return self.identity.task

    @property
    def text(self) -> Text | None:
        """The tokenizer, where there is one."""
        return _text_of(self.reader)

    @text.setter
    def text(self, text: Text | None) -> None:
        if text is None or self.task.reads != "pictures" or not self.task.worded:
            self.reader = text
            return
        from regard.processors.captions import Captions
        from regard.processors.image import Pixels

        pixels = self.reader.pixels if isinstance(self.reader, Captions) else self.reader
        self.reader = Captions(pixels, text) if isinstance(pixels, Pixels) else text

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def states(
        self, x: Tensor, target: Tensor | None = None, *, mask: Tensor | None = None, target_mask: Tensor | None = None,
        types: Tensor | None = None, where: Tensor | None = None, marked: Tensor | None = None,
    ) -> States:  # fmt: skip
        """What the body makes of ids, pixels or points; `mask` belongs to x, True = real."""
        recheck()
        states: States = self.body(Batch(x, mask, target, target_mask, types=types, where=where, marked=marked))
        return states

    def logits(
        self, x: Tensor, target: Tensor | None = None, *, mask: Tensor | None = None, target_mask: Tensor | None = None,
        types: Tensor | None = None, where: Tensor | None = None, marked: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """What the task reads: of every token, or of the head."""
        recheck()
        return self.task.logits(self, Batch(x, mask, target, target_mask, types=types, where=where, marked=marked))

    forward = logits

    @overload
    def answer(self, inputs: str | Mapping[str, Any], **settings: Any) -> Answer: ...
    @overload
    def answer(self, inputs: Sequence[Any], **settings: Any) -> list[Answer]: ...
    def answer(self, inputs: str | Mapping[str, Any] | Sequence[Any], **settings: Any) -> Answer | list[Answer]:
        """One input gives one Answer, a list a list, batched and in order. `settings` are those of decode: beam=5, …

        An input is a text, a picture or a cloud, whatever the model reads; of texts for classify also a pair (a, b), for choose
        {"context": …, "choices": […]}, for tag also a tuple of words, for span (question, context), for embed also
        {"query": …, "among": […], "best": 5}."""
        recheck()
        decode = told(self.identity.decode, settings)
        single = self.task.alone(inputs)
        training = self.training
        if training:
            self.eval()
        try:
            answers = self.task.answer(self, [inputs] if single else list(inputs), decode)
        finally:
            if training:
                self.train()
        return answers[0] if single else answers

    def stream(self, prompt: str, **settings: Any) -> Iterator[str]:
        """The answer as it is made, in parts that break no character; joined they are what `answer` would say."""
        if not isinstance(prompt, str):
            raise RegardError("one text is streamed at a time; give a list to answer().")
        # what is wrong with the prompt or the settings is told now, not when the first part is asked for
        return self._flowing(self.task.stream_answer(self, prompt, told(self.identity.decode, settings)))

    def _flowing(self, parts: Iterator[str]) -> Iterator[str]:
        training = self.training
        self.eval()
        try:
            yield from parts
        finally:
            self.train(training)

    def choose(self, prompt: str, choices: Sequence[str]) -> Answer:
        """Which of some texts follows best, and with what probability among them."""
        recheck()
        training = self.training
        self.eval()
        try:
            return self.task.choose(self, prompt, choices)
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

    def put(self, weights: Mapping[str, Tensor], assign: bool = False) -> None:
        """The same back; with `assign` these tensors themselves, not their values."""
        head = {name.removeprefix("head."): value for name, value in weights.items() if name.startswith("head.")}
        body = {name: value for name, value in weights.items() if not name.startswith("head.")}
        self.body.load_state_dict(body, strict=True, assign=assign)
        if self.head is not None:
            take_bias(self.head, head)
            self.head.load_state_dict(head, strict=True, assign=assign)

    def blocks(self) -> list[nn.Module]:
        """The repeated units, for checkpointing, sharding and regional compilation."""
        stacks = [getattr(part, "blocks", None) for part in self.body.modules()]
        listed = (block for stack in stacks if isinstance(stack, nn.ModuleList | list) for block in stack)
        return list(dict.fromkeys(listed))  # a stack may list those of its parts

    def pixels_or_refuse(self) -> Pixels | Palette:
        from regard.processors.captions import Captions
        from regard.processors.image import Pixels
        from regard.processors.palette import Palette

        found = self.reader.pixels if isinstance(self.reader, Captions) else self.reader
        if not isinstance(found, Pixels | Palette):
            raise RegardError(
                f"{self.identity.source or 'this model'} has no preprocessor_config.json, so it is not known how pictures are "
                "made ready for it; logits(pixels) and states(pixels) work without one."
            )
        return found

    def points_or_refuse(self) -> Points:
        from regard.processors.points import FILE, Points

        if not isinstance(self.reader, Points):
            raise RegardError(
                f"{self.identity.source or 'this model'} has no {FILE}, so it is not known how clouds are made ready "
                "for it; logits(points) and states(points) work without one."
            )
        return self.reader

    def reader_or_refuse(self) -> Any:
        """What its task reads by: pixels, points, a tokenizer, or pixels and a tokenizer."""
        if self.task.reads == "pictures":
            self.pixels_or_refuse()
        if self.task.reads == "points":
            self.points_or_refuse()
        if self.task.worded:
            self.text_or_refuse()
        return self.reader

    def text_or_refuse(self) -> Text:
        if self.text is None:
            raise RegardError(
                f"{self.identity.source or 'this model'} has no tokenizer.json, so it cannot read text; "
                "logits(ids) and states(ids) work without one. Put a tokenizer.json into its folder to ask it."
            )
        return self.text

    def save(self, folder: str | Path, facts: dict[str, Any] | None = None) -> Path:
        """A folder that `regard.load` reads, and that published tools read too where their layout can say it."""
        folder = Path(folder)
        if unsayable(self):  # such a variant is kept under our own names
            config = {"model_type": "regard", "system": self.identity.system.name}
            _write(self, folder, config, self.weights())
        else:
            save(self, folder, layout="huggingface")
        own: dict[str, Any] = {"system": self.identity.system.name, "task": self.task.name}
        own |= {"model": as_dict(self.config), "labels": list(self.identity.labels), "pair": self.identity.pair}
        write_json(folder / OWN_FILE, {**own, "decode": as_dict(self.identity.decode), **(facts or {})})
        return folder


def _text_of(reader: Any) -> Text | None:
    if reader is None or isinstance(reader, Text):
        return reader
    from regard.processors.captions import Captions  # only a reader of pictures or points gets here

    return reader.text if isinstance(reader, Captions) else None


def build(name: str, *, device: str | torch.device = "cpu", task: str | None = None, **changes: Any) -> Model:
    """A fresh model by preset; `changes` are fields of its config: build("transformer-tiny", depth=2)."""
    system, preset = find_preset(name)
    chosen = find_task(task or system.tasks[0], system.reads)
    config = chosen.bodied(override(preset.config, seen_through(preset.config, changes), "model."))
    decode = from_dict(Decode, system.recipe(preset, chosen.name).get("decode", {}), "decode.")
    model = assemble(Identity(system, config, chosen, decode, name), chosen.ready(config, Data()), device=device)
    if model.device.type != "meta":
        open_eyes(model)
    return model


def assemble(identity: Identity, reader: Any = None, device: str | torch.device = "cpu") -> Model:
    if identity.task.name not in identity.system.tasks:
        raise UnknownName(f"task for {identity.system.name}", identity.task.name, identity.system.tasks)
    with on_meta() if torch.device(device).type == "meta" else torch.device(device):
        return Model(identity.system.build(identity.config), identity, reader)


def load(
    folder: str | Path, *, task: str | None = None, dtype: torch.dtype | str | None = None,
    device: str | torch.device = "cpu",
) -> Model:  # fmt: skip
    """A run of ours or a published folder (config.json, model.safetensors, perhaps tokenizer.json), ready to be asked.

    `dtype` is a dtype, its name, or "stored" for the dtype of the file. Without one the dtype of the file is kept, except on
    CPUs that multiply half-precision matrices slowly: there float32 is used, with a note in `model.precision`."""
    folder = Path(folder)
    published, own = read_identity(folder)
    tensors = read_folder(folder)
    ours = published.get("model_type") == "regard"
    if ours and not own:
        raise RunError(f"{folder}: is a model in our own layout, but its {OWN_FILE} is missing.")
    system = find_system(own["system"]) if own else find_published(str(published.get("model_type")))
    if own:
        config = from_dict(system.config, own["model"], "model.")
    else:
        config = from_dict(system.config, system.published.read(published), "model.")
    if not ours:
        config, tensors = system.adapt(config, tensors)
    made_for = own.get("task") or system.published.task(published, system.tasks[0])
    chosen = find_task(task or made_for, system.reads).of(folder)
    reader = chosen.reader(folder)
    text = _text_of(reader)
    config = chosen.bodied(config if text is None or own else placed(config, text))
    usual = system.further.get(chosen.name, {}).get("decode", {})
    decode = from_dict(Decode, own.get("decode", usual), "decode.")
    identity = Identity(system, config, chosen, decode, str(folder))
    if same := made_for == chosen.name:
        system.published.check_head(published, chosen.name)
        labels, pair = tuple(own.get("labels", ())), str(own.get("pair", ""))
        if not own and chosen.labelled:
            labels = named_labels(system.names, published, tensors)
            pair = chosen.read_manner(published, labels)
        identity = replace(identity, labels=labels, pair=pair, padding=published.get("pad_token_id"))
    model = assemble(identity, reader, device="meta")
    model.notes += () if text is None else text.notes
    tensors = read_tensors(model, tensors, ours, same)
    fill(model, tensors, {name: tensor.shape for name, tensor in model.weights().items()}, folder)
    model.precision, chosen_dtype = choose_dtype(model, dtype, torch.device(device))
    return model.to(device=device, dtype=chosen_dtype).eval()


def choose_dtype(model: Model, dtype: torch.dtype | str | None, device: torch.device) -> tuple[str, torch.dtype]:
    """A note (or an empty string) and the dtype to compute in: the given one, or that of the weights where it is fast."""
    stored = next(model.parameters()).dtype
    if isinstance(dtype, torch.dtype):
        return "", dtype
    if dtype is not None and dtype not in ("stored", *DTYPES):
        raise UnknownName("dtype", dtype, DTYPES)
    if dtype is not None:
        return "", stored if dtype == "stored" else getattr(torch, dtype)
    if stored.itemsize != 2 or capabilities.fast_on(stored, device):
        return "", stored
    name, size = str(stored).removeprefix("torch."), 4 * sum(p.numel() for p in model.parameters()) / 2**20
    note = (
        f"computing in float32 ({size:,.0f} MiB of weights, twice the size of the file): this CPU has no fast {name}. "
        f"Pass --dtype {name} (in Python dtype='{name}') to use less memory and more time."
    )
    return note, torch.float32


def save(model: Model, folder: str | Path, layout: str = "huggingface") -> Path:
    """Write the published layout: config.json, model.safetensors and, where there is one, tokenizer.json."""
    if layout not in LAYOUTS:
        raise UnknownName("layout", layout, LAYOUTS)
    system, config = model.identity.system, model.config
    # others' are ours alone: that of span says that it may be silent
    labels = model.identity.labels if model.task.labelled else ()
    if reason := unsayable(model):
        raise WeightsError(reason)
    tensors = system.dress(config, system.names.write(model.weights()))
    written = system.published.write(as_dict(config), model.task.name)
    if labels and model.head is not None:
        named = {str(number): label for number, label in enumerate(labels)}
        written |= {"id2label": named, "label2id": {label: int(number) for number, label in named.items()}}
        written |= model.task.write_manner(model.identity.pair)
    if labels and model.head is not None and model.task.reads == "text":
        # there, the last token that is no padding is the one that is read
        padding = filler(config) if model.identity.padding is None else model.identity.padding
        written |= {"pad_token_id": padding}
    _write(model, Path(folder), written, tensors)
    return Path(folder)


def unsayable(model: Model) -> str:
    """What the published layout cannot say of a model; empty when it can say all."""
    system, task = model.identity.system, model.task.name
    if reason := system.unsayable(model.config) or model.task.unsayable(model.identity.labels):
        return reason
    if model.head is not None and task not in system.published.heads:
        return f"the published layout of {system.name} has no head to {task}."
    if "symmetric" in model.identity.pair.split():
        return "the published layout reads a pair in one order, and this model in both."
    return ""


def _write(model: Model, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    aside = folder / ".model.safetensors.writing"
    write_file(aside, tensors)
    os.replace(aside, folder / "model.safetensors")
    write_json(folder / "config.json", {**config, "dtype": dtype})
    for name, value in model.task.files(model.config).items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, value)
    if model.reader is not None:
        model.task.keep(model.task.dressed(model.reader, model.config), model.config, folder)
