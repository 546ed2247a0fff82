"""Requested columns of a file, and texts for messages about columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regard.errors import UnknownNameError

SIDES = ("source", "target")


@dataclass(frozen=True)
class ColumnSpec:
    """Columns required by a task, and the column names chosen by the user (--columns)."""

    required: tuple[str, ...]
    """columns of every row"""
    overrides: Mapping[str, str] | None = None
    """column name in the file for each renamed column; None: no choice was made, column order may be used"""
    optional: tuple[str, ...] = ()
    """columns that may be missing"""
    numeric: tuple[str, ...] = ()
    """columns that may contain numbers, which are returned as text"""

    def __post_init__(self) -> None:
        for name in self.overrides or ():
            if name not in self.all_names:
                raise UnknownNameError("column choice", name, self.all_names, f"{self.choose_hint}.")

    @property
    def all_names(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def required_columns(self) -> dict[str, str]:
        """Names in the file of required columns; an optional column chosen by the user is required too."""
        return {
            name: self.column_for(name)
            for name in self.all_names
            if name in self.required or name in (self.overrides or ())
        }

    def column_for(self, name: str) -> str:
        return (self.overrides or {}).get(name, name)

    def present_columns(self, names: Iterable[str]) -> dict[str, str]:
        """Names in the file of the columns that exist in `names`."""
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
        """Advice for text pairs, else empty."""
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
