"""Readers: samples of one kind from data arguments. The table of tasks names one reader per task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.text.files import Columns, expand_patterns, split_parallel
from regard.data.text.formats import TABLE_SUFFIXES, Row
from regard.data.text.own_columns import read_own_rows
from regard.data.text.tables import read_text_column
from regard.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Samples of one kind. Samples have the attributes `path` and `line`."""

    unit: str  # plural noun for samples
    columns: tuple[str, ...]  # columns that the user can rename
    sample_type: type[Any]
    samples: Callable[[Sequence[str], Columns], Iterator[Any]]  # with a `SkippedRow` for each skipped row
    inputs: Callable[[str, Columns], Iterator[Any]] = read_text_column
    """inputs of `predict` from a table without labels: line number and input, or samples for readers with `suffixes`; with
    the errors of invalid rows"""
    own_rows: Callable[[str, Columns], Iterator[Row] | None] = read_own_rows
    """rows of a table of inputs with all columns of the file; None for a file without columns"""
    split_key: Callable[[Any], str]  # samples with equal keys are in one split, to prevent leaks from training data
    contents: Callable[[Any], Iterable[str]]  # texts for the fingerprint of the data, with targets
    texts: Callable[[Any], Iterable[str]] = lambda sample: ()  # texts for the training of a tokenizer
    boundaries: Callable[[Any], Iterable[str]] = lambda sample: ()
    """document boundaries, also part of the fingerprint: equal passages may be one document or several"""
    mark_gap: Callable[[Any, Any], Any] = lambda sample, removed: sample
    """the sample, marked as following a gap; the second argument is the first of the samples removed before it"""
    labels: Callable[[Any], Iterable[str]] = lambda sample: ()  # classes of a sample
    keeps_label_order: bool = False  # True if classes keep the order of the data; otherwise classes are sorted
    label_source: Callable[[Sequence[str]], str] = lambda data: ""  # content of a file with class definitions
    min_valid_samples: int = 100  # minimum of held-out samples in large datasets: fewer give imprecise scores
    suffixes: tuple[str, ...] = ()  # extensions of files that are samples; empty: samples are texts
    table_suffixes: tuple[str, ...] = TABLE_SUFFIXES  # files with one input per row; others: per line
    plain_suffix: str = ""  # extension of plain text, if data of this kind can be plain text instead of a table
    files: Callable[[Sequence[str]], list[str]] = expand_patterns  # files of paths and glob patterns
    file_paths: Callable[[str], Sequence[str]] = lambda entry: split_parallel(entry) or (entry,)  # paths of an entry
    recipe: Callable[[str], Any] = lambda entry: None  # recipe of a synthetic dataset; None if the entry is a file

    def expand(self, data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
        """Absolute paths of the files for one or several paths or patterns; names of synthetic datasets are unchanged."""
        entries = [os.fspath(entry) for entry in ([data] if isinstance(data, str | os.PathLike) else data)]
        recipes = [self.recipe(entry) for entry in entries]
        for entry, recipe in zip(entries, recipes, strict=True):
            if recipe and os.path.exists(entry):
                raise DataError(
                    f"'{entry}' is both a path and a generated dataset.", advice=f"For the path, use ./{entry}"
                )
        if any(recipes):
            if not all(recipes):
                raise DataError("names of synthetic datasets cannot be combined with files.", ", ".join(entries))
            return tuple(map(str, recipes))
        paths = (split_parallel(entry) or (entry,) for entry in self.files(entries))
        return tuple(":".join(os.path.abspath(os.path.expanduser(side)) for side in sides) for sides in paths)

    def validation_entries(self, data: Sequence[str]) -> list[str]:
        """Entries of the validation splits of synthetic datasets. Empty: a fraction of the training data is held out."""
        recipes = [self.recipe(entry) for entry in data]
        return [str(recipe.for_split("valid")) for recipe in recipes if recipe is not None]

    def paths(self, entry: str) -> Sequence[str]:
        """Files or folders of a data entry."""
        return () if self.recipe(entry) else self.file_paths(entry)

    def format_count(self, count: int) -> str:
        """Number of samples with the unit."""
        return f"{count:,} {self.unit if count != 1 else self.unit.removesuffix('s')}"


def with_target(texts: Iterable[str], target: str) -> Iterator[str]:
    """Texts and target of a sample for the fingerprint of the data."""
    yield from texts
    yield f"\0{target}"


def num_bytes(sample: Any) -> int:
    """Size of the file of a sample; -1 if the file cannot be read."""
    if sample.content:
        return len(sample.content)
    try:
        return os.path.getsize(sample.source)
    except OSError:
        return -1


def file_key(sample: Any) -> str:
    """Label, file name (or row number of a table) and size of a file, independent of the folder."""
    return f"{sample.label}\0{os.path.basename(sample.source) or sample.line}\0{num_bytes(sample)}"


def file_contents(sample: Any) -> Iterator[str]:
    """Name, size and label of a file instead of its content."""
    yield f"{os.path.basename(sample.source)}\0{num_bytes(sample)}\0{sample.label}"
