"""Generated datasets that `--data` names, and the syntax of the names: `copy#longest=40,samples=20`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from regard.config import check_settings, override
from regard.errors import DataError, UnknownNameError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Recipe:
    """Base of the settings of generated datasets; subclasses have the fields `part` (the split) and `samples`."""

    kind: str

    def __str__(self) -> str:
        """Data entry of the recipe, with all settings that differ from the defaults."""
        default, own = vars(type(self)(self.kind)), vars(self)
        changed = [f"{name}={str(value).lower()}" for name, value in own.items() if value != default[name]]
        return self.kind + (f"#{','.join(changed)}" if changed else "")

    def for_split(self, split: str) -> Self:
        """Recipe of the validation or test split of this dataset."""
        changes: dict[str, Any] = {"part": split, "samples": 0}
        return replace(self, **changes)

    def with_settings(self, entry: str) -> Self:
        """Recipe with the settings after the # of a data entry."""
        kind, _, text = entry.partition("#")
        known = [item.name for item in fields(self) if item.name != "kind"]
        settings: dict[str, Any] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = item.partition("=")
            if name not in known:
                raise UnknownNameError(f"{kind} setting", name, known)
            if not equals:
                raise DataError(f"missing value for '{item}'.", entry, advice=f"Use {name}=VALUE.")
            settings[name] = value
        return override(self, settings, f"{kind}#")

    def check(self, minimums: Mapping[str, int], *rules: tuple[bool, str, str, object]) -> None:
        """Raise SettingError for a setting below its minimum, an unknown split, or an invalid rule of `check_settings`."""
        own = vars(self)
        lowest = [(own[name] >= least, name, f"at least {least}", own[name]) for name, least in minimums.items()]
        split = (own["part"] in SPLITS, "part", f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}", f"'{own['part']}'")
        checks = (*lowest, split, *rules)
        check_settings(*((valid, f"{self.kind}: {name}", *message) for valid, name, *message in checks))
