"""Generated datasets that `--data` names, and the syntax of the names: `copy#longest=40,samples=20`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from regard.config import override
from regard.errors import DataError, SettingError, UnknownNameError

SPLITS = ("train", "valid", "test")
Recipe = TypeVar("Recipe")
"""Dataclass of the settings of a dataset, with `kind` (the dataset) and `part` (the split)."""


def recipe_name(recipe: Any) -> str:
    """Data entry of a recipe, with all settings that differ from the defaults."""
    default = type(recipe)(recipe.kind)
    values = {item.name: getattr(recipe, item.name) for item in fields(recipe)}
    changed = [f"{name}={str(value).lower()}" for name, value in values.items() if value != getattr(default, name)]
    return recipe.kind + (f"#{','.join(changed)}" if changed else "")


def with_settings(recipe: Recipe, entry: str) -> Recipe:
    """Recipe with the settings after the # of a data entry."""
    kind, _, text = entry.partition("#")
    known = [item.name for item in fields(recipe) if item.name != "kind"]  # type: ignore[arg-type]
    settings: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        if name not in known:
            raise UnknownNameError(f"{kind} setting", name, known)
        if not equals:
            raise DataError(f"missing value for '{item}'.", entry, advice=f"Use {name}=VALUE.")
        settings[name] = value
    return override(recipe, settings, f"{kind}#")


def check_recipe(recipe: Any, minimums: Mapping[str, int]) -> None:
    """Raise SettingError for a setting below its minimum, or for an unknown split."""
    for name, minimum in minimums.items():
        if getattr(recipe, name) < minimum:
            raise SettingError(f"{recipe.kind}: {name} must be at least {minimum}, got {getattr(recipe, name)}.")
    if recipe.part not in SPLITS:
        raise SettingError(
            f"{recipe.kind}: part must be {', '.join(SPLITS[:-1])} or {SPLITS[-1]}, got '{recipe.part}'."
        )
