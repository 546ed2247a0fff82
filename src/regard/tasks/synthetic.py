"""Base class of tasks with synthetic datasets, given by name instead of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from regard.data.sources import absolute_entry
from regard.errors import DataError
from regard.tasks.base import Task


class SyntheticTask(Task):
    def recipe(self, entry: str) -> Any:
        """Recipe of a synthetic dataset, or None if the entry is a file."""
        raise NotImplementedError

    def expand_entries(self, data: Sequence[str]) -> list[str]:
        made = [self.recipe(entry) for entry in data]
        for entry, recipe in zip(data, made, strict=True):
            if recipe and os.path.exists(entry):
                raise DataError(
                    f"'{entry}' is both a path and a generated dataset.", advice=f"For the path, use ./{entry}"
                )
        if any(made) and not all(made):
            raise DataError("names of synthetic datasets cannot be combined with files.", ", ".join(data))
        return [str(recipe) for recipe in made] if any(made) else super().expand_entries(data)

    def absolute_path(self, entry: str) -> str:
        return entry if self.recipe(entry) else absolute_entry(entry)

    def validation_entries(self, data: Sequence[str]) -> Sequence[str]:
        """Synthetic datasets have a validation split."""
        recipes = [self.recipe(entry) for entry in data]
        return [str(recipe.for_split("valid")) for recipe in recipes if recipe is not None]

    def paths(self, entry: str) -> Sequence[str]:
        return () if self.recipe(entry) else super().paths(entry)
