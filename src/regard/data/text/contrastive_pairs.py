"""Positive text pairs for contrastive training: files as in `pairs.py`, with more column names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from regard.data.samples import iterate_all
from regard.data.sources import split_parallel
from regard.data.text.columns import SIDES
from regard.data.text.files import ErrorHandler, raise_error
from regard.data.text.pairs import Pair, iterate_entry_pairs
from regard.data.text.tables import SkippedRow, read_header
from regard.errors import DataError

PAIR_COLUMNS = (SIDES, ("anchor", "positive"), ("question", "answer"), ("text", "pair"), ("a", "b"))
"""Supported names of the two columns."""
LABEL_COLUMNS = ("label", "score", "similarity")
"""A column of this name indicates that some pairs are negative."""


def iterate_positive_pairs(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of all files, and rows skipped because one text is empty."""
    return iterate_all(data, lambda entry: read_positive_pairs(entry, columns), "pairs", "Each row needs two texts.")


def read_positive_pairs(
    entry: str, columns: Mapping[str, str] | None = None, on_error: ErrorHandler = raise_error
) -> Iterator[Pair | SkippedRow]:
    """Yield the pairs of one file or of two parallel files."""
    return iterate_entry_pairs(entry, columns or _find_pair_columns(entry), on_error)


def _find_pair_columns(entry: str) -> dict[str, str] | None:
    """Names of the two columns of a file if they are listed in `PAIR_COLUMNS`, else None."""
    if split_parallel(entry) is not None:
        return None
    found = {name.lower(): name for name in read_header(entry)}
    sides = next((names for names in PAIR_COLUMNS if set(names) <= found.keys()), None)
    if sides is None:
        return None
    chosen = {ours: found[theirs] for ours, theirs in zip(SIDES, sides, strict=True)}
    if label := next((name for name in LABEL_COLUMNS if name in found), None):
        said = " ".join(f"{ours}={theirs}" for ours, theirs in chosen.items())
        raise DataError(
            f"column '{found[label]}' looks like a similarity label, but embed treats every row as a positive pair.",
            entry,
            advice=f"Keep only the positive rows and pass --columns {said}.",
        )
    return None if sides == SIDES else chosen
