"""Looking at clouds for a check: every file is read, and what is kept of it is a few numbers and hashes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.check.file_survey import FileSurvey
from regard.data.check.labeled_survey import Read
from regard.data.images.masks import Classes
from regard.data.points.cloud import Cloud
from regard.data.points.labeled import CloudFile
from regard.data.points.labels import classes_inside, counted

FEWEST = 64
"""points, below which there is little to see"""
HUGE = 5_000_000
"""points, from which on reading takes seconds"""
THIN = 1e-4
"""of its length, below which a cloud is flat, or a line"""
LOOKED_AT = 20_000
"""points of a cloud that its form is told by"""
OUTSIDE = 10.0
"""times as far from the middle as all but 5 % of the points, from which on a point lies outside the rest"""


@dataclass(frozen=True)
class Seen:
    """What is kept of one cloud."""

    points: int
    dropped: int
    extent: float
    """the longest side of its box"""
    form: str
    """plane, line or place, where it is no more than that"""
    outside: int
    beside: tuple[str, ...]
    """colours, normals, where it has them"""
    content: bytes
    labels: dict[int, int] | None
    answer: bytes
    classes: Classes | None


class CloudSurvey(FileSurvey[CloudFile, Seen]):
    """Of each usable cloud also its points and its size; how many have colours and normals; and where points have classes, how
    many of each number there are."""

    skipped = ("hidden: ", "no cloud: ")

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Read, labelled: bool,
        known: Classes | None = None,
    ) -> None:  # fmt: skip
        super().__init__(entries, columns, read)
        self.labelled, self.known = labelled, known
        self.inside: Classes | None = None
        """as the first file that names classes does"""
        self.points: Counter[int] = Counter()
        """of each number"""
        self.beside: Counter[str] = Counter()
        """clouds that have colours, and those that have normals"""
        self._sizes, self._extents = array("Q"), array("d")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(N,) points."""
        return np.array(self._sizes, dtype=np.int64)

    @property
    def extents(self) -> NDArray[np.float64]:
        """(N,) the longest side of each, in the unit of its file."""
        return np.array(self._extents, dtype=np.float64)

    def _decoded(self, sample: CloudFile) -> Seen:
        cloud = sample.read()
        labels = cloud.labels if self.labelled else None
        answer = sample.label.encode("utf-8", "surrogatepass") if labels is None else _unordered(cloud, labels)
        size = float(np.ptp(cloud.places, axis=0).max())
        there = {"colours": cloud.colours is not None, "normals": cloud.normals is not None and not cloud.sampled}
        return Seen(
            len(cloud), cloud.dropped, size, form_of(cloud.places), outside(cloud.places),
            tuple(name for name, so in there.items() if so), _unordered(cloud), None if labels is None else counted(labels),
            answer, classes_inside(cloud),
        )  # fmt: skip

    def _look(self, number: int, sample: CloudFile, seen: Seen) -> None:
        said = f"{seen.points:,} points"
        odd = {
            "sparse": seen.points < FEWEST,
            "huge": seen.points > HUGE,
            seen.form: bool(seen.form) and seen.points > 3,
            "unlabelled": self.labelled and seen.labels is None,
        }
        for kind in (kind for kind, so in odd.items() if so):
            self._note(kind, sample, said)
        if seen.dropped:
            self._note("nowhere", sample, f"{seen.dropped:,} of {seen.points + seen.dropped:,} points")
        if seen.outside:
            self._note("outside", sample, f"{seen.outside:,} of {said}")
        self._look_at_labels(sample, seen)
        self.beside.update(seen.beside)
        self._sizes.append(seen.points)
        self._extents.append(seen.extent)
        self._count(number, sample, seen.content, seen.answer)

    def _look_at_labels(self, sample: CloudFile, seen: Seen) -> None:
        if seen.labels is None:
            return
        self.inside = self.inside or seen.classes
        self.points.update(seen.labels)
        known = self.known or self.inside
        strange = known.strange(value for value in seen.labels if value >= 0) if known is not None else []
        if strange:
            shown = ", ".join(map(str, strange[:8]))
            self._note("unknown_values", sample, f"{shown}{', …' if len(strange) > 8 else ''}")
        if max(seen.labels) < 0:
            self._note("unlabelled", sample, "every label is below 0")


def form_of(places: NDArray[np.float32]) -> str:
    """place, line or plane where a cloud is no more than that; else nothing."""
    some = places[:: max(len(places) // LOOKED_AT, 1)].astype(np.float64)
    some = some - some.mean(axis=0)
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh(some.T @ some / len(some)), 0))[::-1]
    # float32 leaves a little in every direction
    if spread[0] <= 1e-7 * float(np.abs(places).max(initial=0)):
        return "place"
    return "line" if spread[1] < THIN * spread[0] else "plane" if spread[2] < THIN * spread[0] else ""


def outside(places: NDArray[np.float32]) -> int:
    """How many points lie far outside the rest."""
    with np.errstate(over="ignore"):
        away = np.sqrt(((places.astype(np.float64) - np.median(places, axis=0)) ** 2).sum(axis=1))
    usual = float(np.quantile(away, 0.95)) if len(away) else 0.0
    return int((away > OUTSIDE * usual).sum()) if usual > 0 else 0


def _unordered(cloud: Cloud, labels: NDArray[np.int64] | None = None) -> bytes:
    """A hash of the points whatever their order, and of their labels where they are given: the sum of a hash of each."""
    numbers = cloud.places.view(np.uint32).astype(np.uint64)
    mixed = np.full(len(cloud), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in (*numbers.T, *(() if labels is None else (labels.view(np.uint64),))):
        mixed = (mixed ^ column) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    total = int(mixed.sum(dtype=np.uint64))
    return total.to_bytes(8, "little") + len(cloud).to_bytes(8, "little") + cloud.origin.tobytes()
