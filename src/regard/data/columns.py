"""Which columns are the source and the target, and the words for choosing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from regard.errors import UnknownName

SIDES = ("source", "target")
CHOOSE = "Say which to use: --columns source=NAME target=NAME"


def wanted_columns(columns: Mapping[str, str]) -> tuple[str, str]:
    """The names of the source and the target column; a side that is not named is called by its own name."""
    for side in columns:
        if side not in SIDES:
            raise UnknownName("column choice", side, SIDES, f"{CHOOSE}.")
    return columns.get("source", "source"), columns.get("target", "target")


def short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def listed(names: Iterable[str]) -> str:
    shown = [short(name) for name in names]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "") if shown else "nothing"
