"""Pictures with classes, in three parts: to learn from, to choose by, and to be judged by. None is in two of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.batching.split import Held
from regard.data.images.labeled import Picture
from regard.data.text.tables import Empty
from regard.errors import DataError
from regard.runs.preprocess import Say
from regard.runs.scan import Files, empties, in_order, paced
from regard.runs.settings import resolve
from regard.runs.spec import Sources
from regard.tasks import Task, find_task
from regard.tasks.file_task import some

TASK = find_task("classify", "pictures")
"""As whose samples pictures are read."""
SHARE, MOST = 0.2, 5_000
"""How many pictures are held out for a part that has no files of its own, and how many at most."""

Marks = NDArray[np.bool_]
Columns = Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """Pictures of some files: those that are marked, in their order."""

    files: tuple[str, ...]
    columns: Columns
    marks: Marks

    def __len__(self) -> int:
        return int(self.marks.sum())

    def __iter__(self) -> Iterator[Picture]:
        found = (item for item in TASK.stream(self.files, self.columns or None) if not isinstance(item, Empty))
        return compress(found, self.marks)


@dataclass(frozen=True)
class Parts:
    train: Part
    valid: Part
    test: Part
    classes: tuple[str, ...]

    def counts(self) -> dict[str, int]:
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


@dataclass
class _Listed:
    """What is known of pictures before any of them is opened."""

    files: tuple[str, ...]
    columns: Columns
    keys: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)
    """by which a picture is known again, whatever its class is said to be"""

    def part(self, marks: Marks | None = None) -> Part:
        return Part(self.files, self.columns, np.ones(len(self.keys), bool) if marks is None else marks)

    def among(self, homes: set[str]) -> Marks:
        return np.fromiter((home in homes for home in self.homes), bool, len(self.homes))

    def held(self, left: Marks, name: str) -> Marks:
        """A share of those that are left, chosen by their content."""
        held = Held(compress(self.keys, left), SHARE, MOST, salt=f"probe {name}")
        return left & np.fromiter((key in held for key in self.keys), bool, len(self.keys))


def divide(
    data: tuple[str, ...], valid: tuple[str, ...], test: tuple[str, ...], columns: Columns, own: Mapping[str, Any],
    most: int, say: Say,
) -> Parts:  # fmt: skip
    """`own`: what a run says of itself. Pictures that it held out in its own training are the test part, where they are among
    the data and no other is given; at `most` so many are learnt from."""
    every = _listed(data, columns, say)
    classes = in_order(set(every.labels))
    if len(classes) < 2:
        raise DataError(f"there is one class only ('{classes[0]}'): nothing can be told apart.", ", ".join(data))
    others = {name: _listed(files, columns, say) for name, files in (("valid", valid), ("test", test)) if files}
    left = np.ones(len(every.keys), bool)
    for name, other in others.items():
        _check_labels(other, classes)
        shared = left & every.among(set(other.homes))
        left &= ~shared
        if shared.any():
            say(f"  left out of --data, as it is in --{name} too: {TASK.some(int(shared.sum()))}")
    found = {name: other.part() for name, other in others.items()}
    if "test" not in found:
        marks = left & every.among(_unlearnt(own, data, say))
        if marks.any():
            say(f"  accuracy is told of {TASK.some(int(marks.sum()))} that the run itself held out in its training")
        else:
            marks = every.held(left, "test")
            say(f"  no --test given: {TASK.some(int(marks.sum()))} held out, chosen by their content")
            if _shares(own, data):
                say("  the run has learnt from these files: what it knows of pictures that it never saw may be less")
        found["test"], left = every.part(marks), left & ~marks
    if "valid" not in found:
        marks = every.held(left, "valid")
        found["valid"], left = every.part(marks), left & ~marks
    if left.sum() > most:
        say(f"  {TASK.some(int(left.sum()))} to learn from, of which {most:,} are taken by chance (--most)")
        kept = np.zeros_like(left)
        kept[some(np.flatnonzero(left), most)] = True
        left = kept
    if not left.any():
        raise DataError(
            "no picture is left to learn from.", ", ".join(data), advice="Give others by --valid or --test."
        )
    return Parts(every.part(left), found["valid"], found["test"], classes)


def _listed(files: tuple[str, ...], columns: Columns, say: Say) -> _Listed:
    found, empty = _Listed(files, columns), list[Empty]()
    for item in paced(TASK.stream(files, columns or None), f"{TASK.unit} found", say):
        if isinstance(item, Empty):
            empty.append(item)
            continue
        found.keys.append(TASK.key(item))
        found.labels.append(item.label)
        found.homes.append(_home(item))
    if empty:
        say(empties(TASK, len(empty), empty[0].path, empty[0].line))
    return found


def _check_labels(other: _Listed, classes: Sequence[str]) -> None:
    strange = [n for n, label in enumerate(other.labels) if label not in classes]
    if strange:
        named = ", ".join(f"'{label}'" for label in sorted({other.labels[n] for n in strange})[:5])
        raise DataError(
            f"holds {TASK.some(len(strange))} of the class {named}, which --data does not have.", ", ".join(other.files),
            advice="Add pictures of it to --data, or leave them out here.",
        )  # fmt: skip


def _home(sample: Picture) -> str:
    return f"{os.path.abspath(sample.path)}\0{sample.line}" if sample.content else os.path.abspath(sample.source)


def _shares(own: Mapping[str, Any], data: tuple[str, ...]) -> bool:
    """Whether a run has learnt from some of these files."""
    return bool(set(own.get("sources", {}).get("data", ())) & set(data))


def _unlearnt(own: Mapping[str, Any], data: tuple[str, ...], say: Say) -> set[str]:
    """The pictures of these files that a run held out when it learnt from them."""
    if not _shares(own, data):
        return set()
    sources, task = Sources.from_dict(own["sources"]), _task(own)
    if sources.valid:
        return set()
    held = Files(task, sources, resolve(own["settings"], {}).data.share, say).read().held
    return {_home(sample) for sample in held}


def _task(own: Mapping[str, Any]) -> Task:
    return find_task(str(own["task"]), "pictures")
