"""Looking at clouds for a check: every file is read, and what is kept of it is a few numbers and hashes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.data.check.file_survey import FileSurvey
from regard.data.check.labeled_survey import EntryReader
from regard.data.images.masks import ClassMap
from regard.data.points.cloud import PointCloud
from regard.data.points.columns import classes_from_cloud, count_labels
from regard.data.points.labeled import CloudSample

MIN_POINTS = 64
"""points, below which there is little to see"""
MAX_POINTS = 5_000_000
"""number of points above which reading a file takes seconds"""
MIN_THICKNESS = 1e-4
"""of its length, below which a cloud is flat, or a line"""
MAX_SHAPE_POINTS = 20_000
"""points of a cloud that its form is told by"""
OUTLIER_RATIO = 10.0
"""times as far from the middle as all but 5 % of the points, from which on a point lies outside the rest"""


@dataclass(frozen=True)
class CloudStats:
    """What is kept of one cloud."""

    num_points: int
    num_dropped: int
    extent: float
    """the longest side of its box"""
    degenerate_shape: str
    """finding id (single_location, collinear or coplanar), or an empty string"""
    num_outliers: int
    attributes: tuple[str, ...]
    """of colors and normals, the available ones"""
    content_hash: bytes
    label_counts: dict[int, int] | None
    target_hash: bytes
    classes: ClassMap | None


class CloudSurvey(FileSurvey[CloudSample, CloudStats]):
    """Of each usable cloud also its points and its size; how many have colours and normals; and where points have classes, how
    many of each number there are."""

    skip_prefixes = ("hidden: ", "not a point cloud: ")

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None, read: EntryReader, is_labeled: bool,
        known_classes: ClassMap | None = None,
    ) -> None:  # fmt: skip
        super().__init__(entries, columns, read)
        self.is_labeled, self.known_classes = is_labeled, known_classes
        self.file_classes: ClassMap | None = None
        """as the first file that names classes does"""
        self.label_counts: Counter[int] = Counter()
        """of each number"""
        self.attribute_counts: Counter[str] = Counter()
        """clouds that have colours, and those that have normals"""
        self._point_totals, self._extents = array("Q"), array("d")

    @property
    def point_totals(self) -> NDArray[np.int64]:
        """(N,) points."""
        return np.array(self._point_totals, dtype=np.int64)

    @property
    def extents(self) -> NDArray[np.float64]:
        """(N,) the longest side of each, in the unit of its file."""
        return np.array(self._extents, dtype=np.float64)

    def _inspect(self, sample: CloudSample) -> CloudStats:
        cloud = sample.read()
        labels = cloud.labels if self.is_labeled else None
        answer = sample.label.encode("utf-8", "surrogatepass") if labels is None else _point_set_hash(cloud, labels)
        size = float(np.ptp(cloud.coordinates, axis=0).max())
        there = {"colors": cloud.colors is not None, "normals": cloud.normals is not None and not cloud.from_mesh}
        return CloudStats(
            len(cloud),
            cloud.num_dropped,
            size,
            degenerate_shape(cloud.coordinates),
            count_outliers(cloud.coordinates),
            tuple(name for name, so in there.items() if so),
            _point_set_hash(cloud),
            None if labels is None else count_labels(labels),
            answer,
            classes_from_cloud(cloud),
        )

    def _add_sample(self, number: int, sample: CloudSample, seen: CloudStats) -> None:
        said = f"{seen.num_points:,} points"
        odd = {
            "few_points": seen.num_points < MIN_POINTS,
            "many_points": seen.num_points > MAX_POINTS,
            seen.degenerate_shape: bool(seen.degenerate_shape) and seen.num_points > 3,
            "unlabeled": self.is_labeled and seen.label_counts is None,
        }
        for kind in (kind for kind, so in odd.items() if so):
            self._tally_sample(kind, sample, said)
        if seen.num_dropped:
            self._tally_sample(
                "non_finite", sample, f"{seen.num_dropped:,} of {seen.num_points + seen.num_dropped:,} points"
            )
        if seen.num_outliers:
            self._tally_sample("outliers", sample, f"{seen.num_outliers:,} of {said}")
        self._add_labels(sample, seen)
        self.attribute_counts.update(seen.attributes)
        self._point_totals.append(seen.num_points)
        self._extents.append(seen.extent)
        self._add_class_and_hashes(number, sample, seen.content_hash, seen.target_hash)

    def _add_labels(self, sample: CloudSample, seen: CloudStats) -> None:
        if seen.label_counts is None:
            return
        self.file_classes = self.file_classes or seen.classes
        self.label_counts.update(seen.label_counts)
        known = self.known_classes or self.file_classes
        strange = known.unknown_values(value for value in seen.label_counts if value >= 0) if known is not None else []
        if strange:
            shown = ", ".join(map(str, strange[:8]))
            self._tally_sample("unknown_values", sample, f"{shown}{', …' if len(strange) > 8 else ''}")
        if max(seen.label_counts) < 0:
            self._tally_sample("unlabeled", sample, "all labels are negative")


def degenerate_shape(coordinates: NDArray[np.float32]) -> str:
    """Finding id of a point cloud without volume: single_location, collinear or coplanar; else an empty string."""
    some = coordinates[:: max(len(coordinates) // MAX_SHAPE_POINTS, 1)].astype(np.float64)
    some = some - some.mean(axis=0)
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh(some.T @ some / len(some)), 0))[::-1]
    # float32 leaves a little in every direction
    if spread[0] <= 1e-7 * float(np.abs(coordinates).max(initial=0)):
        return "single_location"
    return (
        "collinear"
        if spread[1] < MIN_THICKNESS * spread[0]
        else "coplanar"
        if spread[2] < MIN_THICKNESS * spread[0]
        else ""
    )


def count_outliers(coordinates: NDArray[np.float32]) -> int:
    """How many points lie far outside the rest."""
    with np.errstate(over="ignore"):
        away = np.sqrt(((coordinates.astype(np.float64) - np.median(coordinates, axis=0)) ** 2).sum(axis=1))
    usual = float(np.quantile(away, 0.95)) if len(away) else 0.0
    return int((away > OUTLIER_RATIO * usual).sum()) if usual > 0 else 0


def _point_set_hash(cloud: PointCloud, labels: NDArray[np.int64] | None = None) -> bytes:
    """A hash of the points whatever their order, and of their labels where they are given: the sum of a hash of each."""
    numbers = cloud.coordinates.view(np.uint32).astype(np.uint64)
    mixed = np.full(len(cloud), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in (*numbers.T, *(() if labels is None else (labels.view(np.uint64),))):
        mixed = (mixed ^ column) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
    total = int(mixed.sum(dtype=np.uint64))
    return total.to_bytes(8, "little") + len(cloud).to_bytes(8, "little") + cloud.origin.tobytes()
