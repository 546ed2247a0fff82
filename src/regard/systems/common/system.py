"""Systems: model families with config, presets, builder, tasks and weight formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from regard.systems.common.recipes import Recipe, TaskRecipes
from regard.weights.tables import PublishedLayout

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
    recipe: Recipe = field(default_factory=dict)


def presets(base: Any, *rows: tuple[str, int, Recipe, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets by name. A row: name, parameter count, recipe, and the fields that differ from the config `base`."""
    return {name: Preset(replace(base, **changes), count, recipe) for name, count, recipe, changes in rows}


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
    task_recipes: TaskRecipes
    published: PublishedLayout = NO_LAYOUT
    part: PretrainedPart = field(default_factory=PretrainedPart)
    """Part that may come from another folder: the image encoder of captioning models."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.task_recipes.tasks

    @property
    def modality(self) -> str:
        """Input of the body: text, image or points."""
        modality: str = self.config.modality
        return modality

    def unsupported_by_layout(self, config: Any) -> str:
        """Reason why the config cannot be saved in Hugging Face format; empty if supported."""
        if self.published.model_type:
            return self.published.check_layout(config)
        return (
            "This system has no Hugging Face equivalent. Save the model in regard's native format with "
            "model.save(folder), as 'regard train' does; regard.load() reads that format."
        )

    def recipe(self, preset: Preset, task: str) -> Recipe:
        """Default settings of a preset for a task."""
        more = self.task_recipes.recipes.get(task, {})
        return {group: {**preset.recipe.get(group, {}), **more.get(group, {})} for group in (*preset.recipe, *more)}
