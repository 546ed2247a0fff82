"""Which columns are wanted of a file, and the words for choosing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regard.errors import UnknownName

SIDES = ("source", "target")


@dataclass(frozen=True)
class Wanted:
    """The columns that a task asks for, and what a person said they are called."""

    names: tuple[str, ...]
    """those that every row has"""
    chosen: Mapping[str, str] | None = None
    """what is called otherwise; None where nothing was said, and order may decide"""
    optional: tuple[str, ...] = ()
    """those that may be missing"""
    numbers: tuple[str, ...] = ()
    """those whose values may be numbers, which are given on as text"""

    def __post_init__(self) -> None:
        for name in self.chosen or ():
            if name not in self.all:
                raise UnknownName("column choice", name, self.all, f"{self.choose}.")

    @property
    def all(self) -> tuple[str, ...]:
        return self.names + self.optional

    @property
    def needed(self) -> dict[str, str]:
        """What is called how, of those that must be there: one that was chosen must be, even if it is optional."""
        return {name: self.called(name) for name in self.all if name in self.names or name in (self.chosen or ())}

    def called(self, name: str) -> str:
        return (self.chosen or {}).get(name, name)

    def present(self, names: Iterable[str]) -> dict[str, str]:
        """What is called how, of those that are there."""
        there = set(names)
        return {name: self.called(name) for name in self.all if self.called(name) in there}

    @property
    def choose(self) -> str:
        return "Say which to use: --columns " + " ".join(f"{name}=NAME" for name in self.names)

    @property
    def places(self) -> str:
        return " ".join(f"{name}={place}" for place, name in enumerate(self.names))

    @property
    def beside(self) -> str:
        """Advice that only pairs need."""
        return " Two parallel files are given as SRC:TGT." if self.names == SIDES else ""

    def count(self, found: int, what: str = "") -> str:
        some = "no column" if not found else "1 column" if found == 1 else f"{found} columns"
        wish = f"{len(self.names)} {'is' if len(self.names) == 1 else 'are'} wanted"
        return f"{some}{what} {'was' if found == 1 else 'were'} found, and {wish}."


def short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def listed(names: Iterable[str]) -> str:
    shown = [short(name) for name in names]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "") if shown else "nothing"
