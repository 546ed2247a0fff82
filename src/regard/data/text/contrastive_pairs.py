"""Pairs of texts that belong together: read as any pairs, whose columns may have more names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from regard.data.samples import everything
from regard.data.sources import parallel
from regard.data.text.columns import SIDES
from regard.data.text.files import Complain, refuse
from regard.data.text.pairs import Empty, Pair, iterate_entry
from regard.data.text.tables import heading
from regard.errors import DataError

NAMES = (SIDES, ("anchor", "positive"), ("question", "answer"), ("text", "pair"), ("a", "b"))
"""What the two columns may be called."""
LABELS = ("label", "score", "similarity")
"""A column of this name says that not all pairs belong together."""


def iterate_together(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | Empty]:
    """The pairs of all files one by one, and the places of rows with a blank side."""
    return everything(data, lambda entry: iterate_file(entry, columns), "pairs", "Each row needs two texts.")


def iterate_file(
    entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse
) -> Iterator[Pair | Empty]:
    """Those of one file or pair of files."""
    return iterate_entry(entry, columns or _named(entry), complain)


def _named(entry: str) -> dict[str, str] | None:
    """What the two columns of a file are called, where its header or keys are among `NAMES`."""
    if parallel(entry) is not None:
        return None
    found = {name.lower(): name for name in heading(entry)}
    sides = next((names for names in NAMES if set(names) <= found.keys()), None)
    if sides is None:
        return None
    chosen = {ours: found[theirs] for ours, theirs in zip(SIDES, sides, strict=True)}
    if label := next((name for name in LABELS if name in found), None):
        said = " ".join(f"{ours}={theirs}" for ours, theirs in chosen.items())
        raise DataError(
            f"has a column '{found[label]}': of pairs that do not belong together embed would learn that they do.",
            entry,
            advice=f"Keep the rows that belong together, and say --columns {said}.",
        )
    return None if sides == SIDES else chosen
