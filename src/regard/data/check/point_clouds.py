"""Checks of point clouds with classes or with a label for each point. Every file is read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from regard.data.check import findings as tables
from regard.data.check.files import FileStats, FileSurvey, PartSurvey
from regard.data.check.findings import MAX_SCALE_RATIO
from regard.data.check.report import Finding
from regard.data.file_discovery import Paths
from regard.data.images.labeled import ClassMap
from regard.data.points import labeled
from regard.data.points.cloud import PointCloud
from regard.data.text.files import Columns

MIN_POINTS = 64
MAX_POINTS = 5_000_000  # points above which reading takes seconds
MIN_THICKNESS = 1e-4  # fraction of the length below which a point cloud counts as flat or as a line
MAX_SHAPE_POINTS = 20_000  # maximum number of points for the shape
OUTLIER_RATIO = 10.0  # distance of an outlier from the median, relative to the 95th percentile of the distances


class CloudSurvey(FileSurvey):
    """Survey of point clouds: also their sizes, and how many have colors and normals."""

    task, unit, sides = "classify", "point clouds", ("point cloud",)
    reader, findings = labeled.read_clouds, tables.CLOUDS
    measured, size_title = ("points", "longest_side"), "point clouds"

    @classmethod
    def find_entries(cls, data: Paths, valid: Paths, columns: Columns) -> tuple[list[str], list[str]]:
        """Entries of both splits; generated datasets define a validation split."""
        train_entries, valid_entries = super().find_entries(data, valid, columns)
        return train_entries, valid_entries or labeled.CLOUDS.validation_entries(train_entries)

    def _inspect(self, sample: labeled.CloudSample, cloud: PointCloud | None = None) -> FileStats:
        cloud = sample.read() if cloud is None else cloud
        num_points, shape = len(cloud), degenerate_shape(cloud.coordinates)
        size = f"{num_points:,} points"
        found = {
            "few_points": num_points < MIN_POINTS,
            "many_points": num_points > MAX_POINTS,
            shape: bool(shape) and num_points > 3,
        }
        issues = {key: size for key, holds in found.items() if holds}
        if cloud.num_dropped:
            issues["non_finite"] = f"{cloud.num_dropped:,} of {num_points + cloud.num_dropped:,} points"
        if num_outliers := count_outliers(cloud.coordinates):
            issues["outliers"] = f"{num_outliers:,} of {size}"
        available = {"colors": cloud.colors is not None, "normals": cloud.normals is not None and not cloud.from_mesh}
        return FileStats(
            _point_set_hash(cloud),
            sample.label.encode("utf-8", "surrogatepass"),
            issues,
            {"points": num_points, "longest_side": float(np.ptp(cloud.coordinates, axis=0).max())},
            [name for name, is_available in available.items() if is_available],
        )

    def own_findings(self) -> Iterable[Finding]:
        """Point clouds with a size far from the median of the training data, probably in another unit; partial features."""
        extents, train_extents = self.values("longest_side"), self.base.values("longest_side")
        train_extents = train_extents[train_extents > 0]
        if len(train_extents):
            median = float(np.median(train_extents))
            is_small = (extents < median / MAX_SCALE_RATIO) & (extents > 0)
            outliers = np.flatnonzero((extents > MAX_SCALE_RATIO * median) | is_small)
            yield from self.sample_findings(
                "scale_outliers", outliers, lambda n, _: f"longest side {extents[n]:.4g}", median=median
            )
        for name in ("colors", "normals"):
            count = self.counters["properties"][name]
            if 0 < count < len(self):
                yield self.finding(f"partial_{name}", count, count / max(self.rows, 1))


class LabeledCloudSurvey(PartSurvey, CloudSurvey):
    """Survey of point clouds with a label for each point: also the number of points with each label."""

    task, reader = "segment", labeled.read_labeled_clouds
    findings = tables.POINT_LABELS
    parts, counted, find_classes = ("points", "point cloud"), "points_by_class", labeled.find_cloud_classes

    def _inspect(self, sample: labeled.CloudSample, cloud: PointCloud | None = None) -> FileStats:
        cloud = sample.read()
        stats = super()._inspect(sample, cloud)
        if cloud.labels is None:
            stats.issues["unlabeled"] = f"{len(cloud):,} points"
            return stats
        values, counts = np.unique(cloud.labels, return_counts=True)
        stats.target_hash, stats.classes = _point_set_hash(cloud, cloud.labels), labeled.classes_from_cloud(cloud)
        stats.part_counts = dict(zip(values.tolist(), counts.tolist(), strict=True))
        if not (values >= 0).any():
            stats.issues["unlabeled"] = "all labels are negative"
        return stats

    def count_void(self, classes: ClassMap) -> tuple[str, int] | None:
        num_void = sum(count for value, count in self.part_counts.items() if value < 0 or value in classes.void)
        return ("points without a class", num_void) if num_void else None


def degenerate_shape(coordinates: NDArray[np.float32]) -> str:
    """Finding id of a point cloud without volume: single_location, collinear or coplanar; else an empty string."""
    points = coordinates[:: max(len(coordinates) // MAX_SHAPE_POINTS, 1)].astype(np.float64)
    points = points - points.mean(axis=0)
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh(points.T @ points / len(points)), 0))[::-1]
    # rounding to float32 gives every direction a small extent
    if spread[0] <= 1e-7 * float(np.abs(coordinates).max(initial=0)):
        return "single_location"
    is_thin = spread < MIN_THICKNESS * spread[0]
    return "collinear" if is_thin[1] else "coplanar" if is_thin[2] else ""


def count_outliers(coordinates: NDArray[np.float32]) -> int:
    """Number of points far from all others."""
    with np.errstate(over="ignore"):
        distances = np.sqrt(((coordinates.astype(np.float64) - np.median(coordinates, axis=0)) ** 2).sum(axis=1))
    usual = float(np.quantile(distances, 0.95)) if len(distances) else 0.0
    return int((distances > OUTLIER_RATIO * usual).sum()) if usual > 0 else 0


def _point_set_hash(cloud: PointCloud, labels: NDArray[np.int64] | None = None) -> bytes:
    """Hash of the points and, if given, the labels: a sum of one hash per point, so the order has no effect."""
    columns = [*cloud.coordinates.view(np.uint32).astype(np.uint64).T]
    if labels is not None:
        columns.append(labels.view(np.uint64))
    hashes = np.full(len(cloud), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for column in columns:
        hashes = (hashes ^ column) * np.uint64(0xFF51AFD7ED558CCD)
        hashes ^= hashes >> np.uint64(33)
    total = int(hashes.sum(dtype=np.uint64))
    return total.to_bytes(8, "little") + len(cloud).to_bytes(8, "little") + cloud.origin.tobytes()
