"""Systems: model families with config, presets, builder, tasks and weight formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from regard.systems.common.recipes import Recipe, TaskRecipes
from regard.weights.tables import PublishedLayout

if TYPE_CHECKING:
    from regard.systems.captioners.common import EncoderPart

NO_LAYOUT = PublishedLayout(model_type="", architecture="", keys={})
"""For systems without Hugging Face equivalent, saved in the native format."""


@dataclass(frozen=True)
class Preset:
    """A model size of a system, with its exact parameter count and the recipe of the paper as default settings."""

    config: Any
    parameters: int
    recipe: Recipe = field(default_factory=dict)


def presets(base: Any, *rows: tuple[str, int, Recipe, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets by name. A row: name, parameter count, recipe, and the fields that differ from the config `base`."""
    return {name: Preset(replace(base, **changes), count, recipe) for name, count, recipe, changes in rows}


@dataclass(frozen=True)
class System:
    name: str
    description: str
    config: type[Any]
    presets: dict[str, Preset]
    build: Callable[[Any], nn.Module]
    task_recipes: TaskRecipes
    published: PublishedLayout = NO_LAYOUT
    part: EncoderPart | None = None
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
        layout = self.published
        if layout.model_type:
            found = {name: getattr(config, name) for name in layout.required}
            if (reason := layout.check_layout(config)) or found == layout.required:
                return reason
            *others, last = (f"model.{name}={value}" for name, value in found.items())
            listed = f"{', '.join(others)} and {last}" if others else last
            return f"Hugging Face format for {layout.requirement}; this model has {listed}."
        return (
            "This system has no Hugging Face equivalent. Save the model in regard's native format with "
            "model.save(folder), as 'regard train' does; regard.load() reads that format."
        )

    def recipe(self, preset: Preset, task: str) -> Recipe:
        """Default settings of a preset for a task."""
        more = self.task_recipes.recipes.get(task, {})
        return {group: {**preset.recipe.get(group, {}), **more.get(group, {})} for group in (*preset.recipe, *more)}
