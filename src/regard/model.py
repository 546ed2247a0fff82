"""Model = inputs + body + head + task: load it, ask it, watch it, save it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from regard.config import as_dict, from_dict, override
from regard.decode.settings import Decode, told
from regard.disk import write_text
from regard.errors import RegardError, RunError, UnknownName, WeightsError
from regard.explain import explain
from regard.explain.explanation import Explanation
from regard.inputs.text import Text
from regard.nn.linear import recheck
from regard.systems import SYSTEMS, find_preset, find_published, find_system
from regard.systems.preset import System
from regard.tasks import Task, find_task
from regard.tasks.heads import bias_names, take_bias
from regard.waists import Answer, Batch, States
from regard.weights import misfit, read_folder, write_file

OWN_FILE = "regard.json"
"""What a folder of ours says beside the published layout."""


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
    """how its head reads two texts together (`data.pair`); nothing where it reads one"""
    padding: int | None = None
    """the id that published tools fill rows up with, where a folder names one"""


class Model(nn.Module):
    def __init__(self, body: nn.Module, identity: Identity, text: Text | None = None) -> None:
        super().__init__()
        self.body: Any = body
        self.identity, self.text = identity, text
        self.head: Any = identity.task.head(identity.config, identity.labels)
        self.notes: list[str] = []
        """what was left out or newly made when it was loaded"""
        self.fresh = False
        """whether its head was newly made then, or is still to be made"""

    @property
    def config(self) -> Any:
        return self.identity.config

    @property
    def task(self) -> Task:
        return self.identity.task

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def states(
        self, x: Tensor, target: Tensor | None = None, *, mask: Tensor | None = None, target_mask: Tensor | None = None,
        types: Tensor | None = None, where: Tensor | None = None,
    ) -> States:  # fmt: skip
        """What the body makes of ids, pixels or points; `mask` belongs to x, True = real."""
        recheck()
        states: States = self.body(Batch(x, mask, target, target_mask, types=types, where=where))
        return states

    def logits(
        self, x: Tensor, target: Tensor | None = None, *, mask: Tensor | None = None, target_mask: Tensor | None = None,
        types: Tensor | None = None, where: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """What the task reads: of every token, or of the head."""
        recheck()
        return self.task.logits(self, Batch(x, mask, target, target_mask, types=types, where=where))

    forward = logits

    @overload
    def answer(self, inputs: str | Mapping[str, Any], **settings: Any) -> Answer: ...
    @overload
    def answer(self, inputs: Sequence[Any], **settings: Any) -> list[Answer]: ...
    def answer(self, inputs: str | Mapping[str, Any] | Sequence[Any], **settings: Any) -> Answer | list[Answer]:
        """One input gives one Answer, a list a list, batched and in order. `settings` are those of decode: beam=5, …

        An input is a text; for classify also a pair (a, b), for choose {"context": …, "choices": […]}."""
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

    def explain(self, source: str, target: str | None = None) -> Explanation:
        """What each layer and head looked at when it answered `source` (or was given `target`)."""
        return explain(self, source, target)

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
        return [block for stack in self.body.children() for block in getattr(stack, "blocks", [])]

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


def is_folder(name: str) -> bool:
    """Whether a name means a folder rather than a preset: it is there, or is written as a path."""
    return Path(name).is_dir() or os.sep in name


def build(name: str, *, device: str | torch.device = "cpu", task: str | None = None, **changes: Any) -> Model:
    """A fresh model by preset; `changes` are fields of its config: build("transformer-tiny", depth=2)."""
    system, preset = find_preset(name)
    config = override(preset.config, changes, "model.")
    chosen = find_task(task or system.tasks[0])
    decode = from_dict(Decode, system.recipe(preset, chosen.name).get("decode", {}), "decode.")
    return assemble(Identity(system, config, chosen, decode, name), device=device)


def assemble(identity: Identity, text: Text | None = None, device: str | torch.device = "cpu") -> Model:
    if identity.task.name not in identity.system.tasks:
        raise UnknownName(f"task for {identity.system.name}", identity.task.name, identity.system.tasks)
    with torch.device(device):
        return Model(identity.system.build(identity.config), identity, text)


def load(
    folder: str | Path, *, task: str | None = None, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> Model:
    """A run of ours or a published folder (config.json, model.safetensors, perhaps tokenizer.json), ready to be asked.

    The file's dtype is kept unless `dtype` is given."""
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
    chosen = find_task(task or made_for)
    usual = system.further.get(chosen.name, {}).get("decode", {})
    decode = from_dict(Decode, own.get("decode", usual), "decode.")
    identity = Identity(system, config, chosen, decode, str(folder))
    if same := made_for == chosen.name:
        system.published.check_head(published, chosen.name)
        labels = tuple(own.get("labels", ())) if own else _labels(published, tensors)
        identity = replace(
            identity, labels=labels, pair=str(own.get("pair", "")), padding=published.get("pad_token_id")
        )
    text = Text.load(folder) if Text.exists(folder) else None
    model = assemble(identity, text, device="meta")
    tensors = _read(model, tensors, ours, same)
    _fill(model, tensors, {name: tensor.shape for name, tensor in model.weights().items()}, folder)
    return model.to(device=device, dtype=dtype).eval()


def _labels(published: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The classes by their published names; where those were left out, by the names that are meant then."""
    if "score.weight" not in tensors:
        return ()
    named = {int(number): str(name) for number, name in (published.get("id2label") or {}).items()}
    return tuple(named.get(number, f"LABEL_{number}") for number in range(len(tensors["score.weight"])))


def _read(model: Model, tensors: dict[str, Tensor], ours: bool, same: bool) -> dict[str, Tensor]:
    """Tensors by our names. The body must be there wholly; where the folder is not of the `same` task, its head is left
    out and another made, and both are noted."""
    names, tensors = model.identity.system.names, dict(tensors)
    own_name = (lambda name: [name]) if ours else names.theirs_of
    if model.head is not None:
        (bias,) = (f"head.{name}" for name in bias_names(model.head))
        found = [name for name in own_name(bias) if name in tensors]
        if found and not any(bool(tensors[name].any()) for name in found):
            tensors = {name: tensor for name, tensor in tensors.items() if name not in found}  # a bias of 0 is none
        elif found:
            take_bias(model.head, {bias.removeprefix("head."): tensors[found[0]]})
    wanted = list(model.weights())
    new = [name for name in wanted if name.startswith("head.") and not set(own_name(name)) <= tensors.keys()]
    wanted = wanted if same else [name for name in wanted if name not in new]
    if ours:
        foreign = [name for name in tensors if name.startswith("head.") and name not in wanted and not same]
        read = {name: tensor for name, tensor in tensors.items() if name not in foreign}
    else:
        read, foreign = names.read(tensors, wanted)
    if foreign:
        model.notes.append(f"left out, as it belongs to another task: {', '.join(foreign)}")
    if model.head is None and model.task.name == "classify":
        model.notes.append("it has no classes yet, and no head for them")
        model.fresh = True
    if new and not same:
        widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in read.values()})
        fresh, model.fresh = model.task.head(model.config, model.identity.labels), True
        assert fresh is not None
        for name, tensor in fresh.state_dict().items():
            read[f"head.{name}"] = tensor.to(widest)
            model.notes.append(f"new, and has learnt nothing yet: a matrix of {' x '.join(map(str, tensor.shape))}")
    return read


def _fill(model: Model, tensors: dict[str, Tensor], wanted: dict[str, torch.Size], folder: Path) -> None:
    missing, strange = [n for n in wanted if n not in tensors], [n for n in tensors if n not in wanted]
    if missing or strange:
        raise misfit(missing, strange)
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise WeightsError(
                f"{folder}: {name} is {tuple(tensors[name].shape)} in the file and {tuple(shape)} by config.json."
            )
        if not tensors[name].is_floating_point():
            raise WeightsError(f"{folder}: {name} holds {tensors[name].dtype}, not numbers to compute with.")
    widest = functools.reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()})
    model.put({name: tensor.to(widest) for name, tensor in tensors.items()}, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def read_identity(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and regard.json of a folder; a clear refusal when it is none of ours or theirs."""
    if not folder.exists():
        if any(str(folder) in system.presets for system in SYSTEMS.values()):
            raise RunError(
                f"{folder} is a preset, which has learnt nothing yet: train it, and name the folder of its run."
            )
        parent = folder.parent
        near = [str(p) for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
        raise UnknownName("folder", str(folder), near, "Train one with 'regard train', or see 'regard demo'.")
    if not (folder / "config.json").exists():
        raise RunError(f"{folder}: is no run and no published model: it has no config.json and model.safetensors.")
    try:
        published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        own_file = folder / OWN_FILE
        own = json.loads(own_file.read_text(encoding="utf-8")) if own_file.exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: its config.json or {OWN_FILE} cannot be read ({error}).") from error
    if not isinstance(published, dict) or not isinstance(own, dict):
        raise RunError(f"{folder}: its config.json or {OWN_FILE} is not a JSON object.")
    if own_file.exists():
        _check_own(folder, own)
    return published, own


def _check_own(folder: Path, own: dict[str, Any]) -> None:
    for key, kind in (("system", str), ("task", str), ("model", dict), ("decode", dict)):
        if not isinstance(own.get(key), kind):
            raise RunError(f"{folder}: its {OWN_FILE} does not say '{key}' as it should.")


LAYOUTS = ("huggingface",)


def save(model: Model, folder: str | Path, layout: str = "huggingface") -> Path:
    """Write the published layout: config.json, model.safetensors and, where there is one, tokenizer.json."""
    if layout not in LAYOUTS:
        raise UnknownName("layout", layout, LAYOUTS)
    system, config, labels = model.identity.system, model.config, model.identity.labels
    if reason := unsayable(model):
        raise WeightsError(reason)
    tensors = system.dress(config, system.names.write(model.weights()))
    written = system.published.write(as_dict(config), model.task.name)
    if labels and model.head is not None:  # there, the last token that is no padding is the one that is read
        named = {str(number): label for number, label in enumerate(labels)}
        written |= {"id2label": named, "label2id": {label: int(number) for number, label in named.items()}}
        written |= {"pad_token_id": config.end if model.identity.padding is None else model.identity.padding}
    _write(model, Path(folder), written, tensors)
    return Path(folder)


def unsayable(model: Model) -> str:
    """What the published layout cannot say of a model; empty when it can say all."""
    system, task = model.identity.system, model.task.name
    if reason := system.unsayable(model.config):
        return reason
    if model.head is not None and task not in system.published.heads:
        return f"the published layout of {system.name} has no head to {task}."
    if model.identity.pair == "symmetric":
        return "the published layout reads a pair in one order, and this model in both."
    return ""


def _write(model: Model, folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    aside = folder / ".model.safetensors.writing"
    write_file(aside, tensors)
    os.replace(aside, folder / "model.safetensors")
    write_json(folder / "config.json", {**config, "dtype": dtype})
    if model.text is not None:
        text = model.task.dressed(model.text)
        text.save(folder / "tokenizer.json")
        # else the model's type would decide for others how its text is read, and not every tokenizer of a GPT-2 is GPT-2's
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **text.names()})


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
