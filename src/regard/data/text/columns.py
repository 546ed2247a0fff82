"""Which columns are wanted of a file, and the words for choosing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regard.errors import UnknownNameError

SIDES = ("source", "target")


@dataclass(frozen=True)
class ColumnSpec:
    """The columns that a task asks for, and what a person said they are called."""

    required: tuple[str, ...]
    """those that every row has"""
    overrides: Mapping[str, str] | None = None
    """what is called otherwise; None where nothing was said, and order may decide"""
    optional: tuple[str, ...] = ()
    """those that may be missing"""
    numeric: tuple[str, ...] = ()
    """those whose values may be numbers, which are given on as text"""

    def __post_init__(self) -> None:
        for name in self.overrides or ():
            if name not in self.all_names:
                raise UnknownNameError("column choice", name, self.all_names, f"{self.choose_hint}.")

    @property
    def all_names(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def required_columns(self) -> dict[str, str]:
        """What is called how, of those that must be there: one that was chosen must be, even if it is optional."""
        return {
            name: self.column_for(name)
            for name in self.all_names
            if name in self.required or name in (self.overrides or ())
        }

    def column_for(self, name: str) -> str:
        return (self.overrides or {}).get(name, name)

    def present_columns(self, names: Iterable[str]) -> dict[str, str]:
        """What is called how, of those that are there."""
        there = set(names)
        return {name: self.column_for(name) for name in self.all_names if self.column_for(name) in there}

    @property
    def choose_hint(self) -> str:
        return "Pass --columns " + " ".join(f"{name}=NAME" for name in self.required)

    @property
    def position_hint(self) -> str:
        return " ".join(f"{name}={place}" for place, name in enumerate(self.required))

    @property
    def parallel_hint(self) -> str:
        """Advice that only pairs need."""
        return " Pass two parallel files as SRC:TGT." if self.required == SIDES else ""

    def count_message(self, found: int, kind: str = "") -> str:
        return count_columns(len(self.required), found, kind)


def count_columns(expected: int, found: int, kind: str = "", at_least: bool = False) -> str:
    """Message about a wrong number of columns; `kind` qualifies the columns, as in "text "."""
    minimum = "at least " if at_least else ""
    return f"expected {minimum}{expected} {kind}column{'s'[: expected != 1]}, got {found}."


def shorten(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def format_list(names: Iterable[str]) -> str:
    shown = [shorten(name) for name in names]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "") if shown else "none"
