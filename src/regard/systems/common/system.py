"""Systems: model families with config, presets, builder, tasks and weight formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from regard.weights.tables import NameTable, PublishedLayout, Tensors

EMPTY_NAMES = NameTable(())
NO_LAYOUT = PublishedLayout(model_type="", architecture="", keys={})
"""For systems without Hugging Face equivalent, saved in the native format."""


def layout_requires(sentence: str, **required: Any) -> Callable[[Any], str]:
    """Check of a config: the reason why the Hugging Face format does not support it, empty if the config has these
    values. `sentence` follows "Hugging Face format for"."""

    def check(config: Any) -> str:
        found = {name: getattr(config, name) for name in required}
        if found == required:
            return ""
        *others, last = (f"model.{name}={value}" for name, value in found.items())
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"Hugging Face format for {sentence}; this model has {listed}."

    return check


@dataclass(frozen=True)
class Preset:
    """A model size of a system, with its exact parameter count and the recipe of the paper as default settings."""

    config: Any
    parameters: int
    recipe: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`{"train": {...}, "data": {...}, "decode": {...}}`"""


class PretrainedPart:
    """Part of a model whose config and weights may come from another folder. This base class: there is no such part."""

    name: ClassVar[str] = ""

    def folder(self, config: Any) -> Path | None:
        """Folder with the weights of the part; None: random weights."""
        return None

    def resolve(self, config: Any, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Overrides of a config, completed from the folder of the part that they name."""
        return dict(overrides)

    def check(self, config: Any, pretrained: Any | None, name: str) -> None:
        """Raise an error for settings of the part that contradict the origin of the weights: the preset `name`, or the
        folder `name` with a model of the config `pretrained`."""

    def load(self, body: Any, config: Any) -> list[str]:
        """Load the weights of the folder into a new model; returns messages for the log."""
        return []

    def describe_random(self, overrides: Mapping[str, Any]) -> list[str]:
        """Notes about parts with random weights for which the user may expect pretrained weights."""
        return []


@dataclass(frozen=True)
class System:
    name: str
    description: str
    config: type[Any]
    presets: dict[str, Preset]
    build: Callable[[Any], nn.Module]
    tasks: tuple[str, ...]
    modality: str = "text"
    """Input of the body: text, image or points."""
    names: NameTable = EMPTY_NAMES
    published: PublishedLayout = NO_LAYOUT
    adapt_checkpoint: Callable[[Any, Tensors], tuple[Any, Tensors]] | None = None
    """Adapts the config and the tensors of a Hugging Face checkpoint before loading."""
    to_published: Callable[[Any, Tensors], Tensors] = lambda config, tensors: tensors
    """Adds constant tensors that Hugging Face checkpoints contain."""
    check_layout: Callable[[Any], str] = lambda config: ""
    """Reason why Hugging Face format does not support this config; empty if supported."""
    part: PretrainedPart = field(default_factory=PretrainedPart)
    """Part that may come from another folder: the image encoder of captioning models."""
    recipes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Settings by task; they override the recipe of the preset."""
    finetune_recipes: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """Settings by task for pretrained weights without a preset."""

    def from_published(self, config: Any, tensors: Tensors) -> tuple[Any, Tensors]:
        """Config and tensors of a Hugging Face checkpoint, complete for `names.read`."""
        if self.adapt_checkpoint is None:
            return config, self.names.complete(tensors)
        return self.adapt_checkpoint(config, tensors)

    def unsupported_by_layout(self, config: Any) -> str:
        """Reason why the config cannot be saved in Hugging Face format; empty if supported."""
        if self.published.model_type:
            return self.check_layout(config)
        return (
            "This system has no Hugging Face equivalent. Save the model in regard's native format with "
            "model.save(folder), as 'regard train' does; regard.load() reads that format."
        )

    def recipe(self, preset: Preset, task: str) -> dict[str, dict[str, Any]]:
        """Default settings of a preset for a task."""
        more = self.recipes.get(task, {})
        return {group: {**preset.recipe.get(group, {}), **more.get(group, {})} for group in (*preset.recipe, *more)}
