"""Base class of point cloud tasks: files, subsampling, augmentation and packed batches.

A batch is one packed row of points (1, N, 3 + F) with the starts of the point clouds (`Batch.offsets`). Augmentation is a
function of the random seed of a row, so batches are a deterministic function of their number."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchSampler, Uniform
from regard.data.file_discovery import FileFormatError
from regard.data.points.cloud import DEFAULT_POINTS, PointCloud, RawCloud, normalize_cloud
from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud
from regard.data.points.labeled import CloudCache, CloudSample, read_unlabeled_clouds
from regard.data.settings import DataSettings
from regard.data.synthetic.point_clouds import CloudRecipe, parse_cloud_recipe
from regard.data.text.files import ErrorHandler, existing_file
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError
from regard.processors.points import (
    FEATURES,
    FILE,
    NO_POINT_AUGMENT,
    PointAugment,
    PointProcessor,
    augment_points,
    sample_kept_points,
)
from regard.tasks.base import Encoded
from regard.tasks.file_task import (
    EVAL_BATCH_SIZE,
    LARGE_VALIDATION,
    FileSampleTask,
    decode_source,
    encode_source,
    reservoir_sample,
    sample_ids,
    warn_once,
)
from regard.tasks.synthetic import SyntheticTask
from regard.types import Batch, Offsets

MAX_INSPECTED = 32
"""Number of point clouds read to detect features and sizes."""
MAX_POINTS = 2**17
"""Maximum points per batch at inference."""
LENGTH_MULTIPLE = 128
"""Maximum lengths of batches are rounded up to this multiple if lengths differ, to limit recompilation."""
CRC_BYTES = 2**14
"""Number of leading bytes of a file in the split key."""
MIN_POINTS = 64
"""Minimum number of points for a reasonable prediction."""
COLUMNS_MARKER = 2**16 - 2
"""First value of a row with column names given by the user."""
POINT_AUGMENT_SETTINGS = (
    "data.rotate", "data.scale", "data.shift", "data.jitter", "data.point_dropout", "data.tilt", "data.flip", "data.stretch",
)  # fmt: skip
"""Settings of point cloud augmentation in training."""


@dataclass(frozen=True)
class PointBatchContext:
    """Preprocessing, augmentation and cache of point clouds: see `Task.batch_context`."""

    points: PointProcessor
    augment: PointAugment
    labels: tuple[str, ...] = ()
    cache: CloudCache = field(default_factory=CloudCache)


class PointCloudTask(SyntheticTask, FileSampleTask):
    modality = "points"
    batch_unit = "clouds"
    unit = "point clouds"
    sample_type = CloudSample
    usage = "cloud.ply"
    default_model = "point-tiny"
    suffixes = CLOUD_SUFFIXES
    fit_message = "Detecting the features of the points (colors, normals) …"
    processor_files: ClassVar[tuple[str, ...]] = (FILE,)
    settings_used: ClassVar[tuple[str, ...]] = (
        "train.batch_size",
        "data.num_points",
        "data.point_norm",
        "data.voxel_size",
        "data.block_size",
        "data.up_axis",
        "data.point_features",
        *POINT_AUGMENT_SETTINGS,
        "train.label_smoothing",
    )
    default_points: ClassVar[int]
    """default of `data.num_points`"""
    default_frame: ClassVar[str]
    """default of `data.point_norm`"""

    # -- samples

    def recipe(self, entry: str) -> CloudRecipe | None:
        return parse_cloud_recipe(entry)

    def iter_table(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[CloudSample | SkippedRow]:
        """Point clouds listed in a table; labels are ignored."""
        return read_unlabeled_clouds(entry, columns, complain)

    def split_key(self, sample: CloudSample) -> str:
        """With a checksum of the first bytes, because names and sizes may be equal (points.ply in several folders)."""
        return f"{super().split_key(sample)}\0{_head_crc(sample)}"

    def source_row(self, sample: CloudSample) -> np.ndarray:
        return encode_cloud_source(sample)

    # -- processor

    def load_processor(self, folder: Path) -> PointProcessor | None:
        return PointProcessor.load(folder) if PointProcessor.exists(folder) else None

    def save_processor(self, processor: PointProcessor, config: Any, folder: Path) -> None:
        processor.save(folder)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        self.augment(data)
        self.adapt_processor(PointProcessor(self.default_points, self.default_frame), config, data)  # type: ignore[arg-type]

    def fit_processor(self, samples: Iterable[CloudSample], config: Any, data: DataSettings) -> PointProcessor:
        """Features (colors, normals) present in all inspected point clouds, unless `data.point_features` is set."""
        found, broken = list(FEATURES), None
        if data.point_features == ("auto",):
            opened = 0
            for sample in reservoir_sample(samples, MAX_INSPECTED):
                try:
                    cloud = sample.read()
                except DataError as error:  # unreadable files are skipped with a warning during training
                    broken = error
                    continue
                opened += 1
                found = [name for name in found if getattr(cloud, name) is not None]
            if not opened and broken is not None:
                raise broken
        return self.adapt_processor(
            PointProcessor(self.default_points, self.default_frame, features=tuple(found)),  # type: ignore[arg-type]
            config,
            data,
        )

    def adapt_processor(self, processor: PointProcessor, config: Any, data: DataSettings) -> PointProcessor:
        """The processor with the settings of the user. Unset settings keep the values of the checkpoint."""
        said: dict[str, Any] = {"up": data.up_axis} if data.up_axis != "auto" else {}
        sizes = {"voxel": data.voxel_size, "block": data.block_size}
        said |= {name: value for name, value in sizes.items() if value >= 0}
        said |= {"count": data.num_points} if data.num_points >= 0 else {}
        said |= {"frame": data.point_norm} if data.point_norm != "auto" else {}
        if data.point_features != ("auto",):
            said["features"] = () if data.point_features == ("none",) else data.point_features
        return replace(processor, **said)

    def fit_config(self, config: Any, processor: PointProcessor) -> Any:
        return replace(config, feature_dim=processor.width - 3)

    def describe_processor(self, processor: PointProcessor) -> str:
        count = f"up to {processor.count:,} points" if processor.count else "all points"
        features = f" with {' and '.join(processor.features)}" if processor.features else ""
        return f"{count} per point cloud{features}"

    def batch_budget(self, train: Any) -> int:
        return train.batch_size if train.batch_size > 0 else 16

    # -- batches

    def batch_context(
        self,
        processor: PointProcessor,
        config: Any,
        max_length: int,
        data: DataSettings | None,
        labels: Sequence[str] = (),
    ) -> PointBatchContext:
        check_point_processor(processor, config)
        if data is None:
            return PointBatchContext(processor, NO_POINT_AUGMENT, tuple(labels))
        shelf = CloudCache(num_workers=data.num_workers if data.num_workers >= 0 else 2)  # auto: at most 2
        return PointBatchContext(processor, replace(self.augment(data), up=processor.up), tuple(labels), shelf)

    def augment(self, data: DataSettings) -> PointAugment:
        up = "z" if data.up_axis == "auto" else data.up_axis
        more = (data.tilt, data.flip, data.stretch)
        return PointAugment(data.rotate, data.scale, data.shift, data.jitter, data.point_dropout, up, *more)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Point clouds that fit into the cache are read here, before the data loader workers are forked, so that all workers
        share the memory. Micro-batches have a static shape if every point cloud has enough points."""
        plan = Uniform(len(encoded), tokens, seed, self.unit)
        plan.static_shape = self._has_fixed_shape(encoded)
        return plan

    def _has_fixed_shape(self, encoded: Encoded) -> bool:
        how: PointBatchContext = encoded.batch_context
        points, room = how.points, 0
        for number in range(len(encoded)):
            source = decode_cloud_source(encoded.fields["cloud"][number])
            room += len(source.content) or _file_size(source.source)
            if room > how.cache.max_bytes:
                return False
        if len(encoded) >= LARGE_VALIDATION:
            warn_once(f"  Reading {len(encoded):,} point clouds …")
        whole = points.count > 0 and not points.voxel and not points.block and not how.augment.point_dropout
        for number in range(len(encoded)):
            try:
                whole &= len(self.load_cloud(encoded, number)) >= points.count
            except DataError:  # unreadable files are replaced in batches
                continue
        return whole

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Also report the number of points after subsampling: wrong units of the voxel or block size remove most points."""
        super().validate_data(train, valid, config, log)
        points = train.batch_context.points
        if points.voxel or points.block:
            clouds = [self.load_cloud(valid, number) for number in range(min(MAX_INSPECTED, len(valid)))]
            left = int(np.median([len(points.without_limit().prepare(cloud)[0]) for cloud in clouds]))
            wide = float(np.median([np.ptp(cloud.coordinates, axis=0).max() for cloud in clouds]))
            points_left = "1 point" if left == 1 else f"{left:,} points"
            result = f"after voxel subsampling and blocking, a typical point cloud ({wide:.3g} units wide) has"
            if left < MIN_POINTS:
                log(
                    f"  warning: {result} only {points_left}. Are data.voxel_size and data.block_size in the right unit?"
                )
            else:
                log(f"  note: {result} {points_left}.")

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        for rows in Uniform(len(encoded), self.eval_batch_size(encoded.batch_context), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def eval_batch_size(self, context: PointBatchContext) -> int:
        """Point clouds per batch at inference."""
        return max(1, min(EVAL_BATCH_SIZE, MAX_POINTS // context.points.count)) if context.points.count else 1

    def load_cloud(self, encoded: Encoded, number: int) -> PointCloud:
        how: PointBatchContext = encoded.batch_context

        def read() -> PointCloud:
            file = decode_cloud_source(encoded.fields["cloud"][number])
            cloud = file.read(num_points=mesh_sample_count(how.points))
            warn_missing_features(cloud, how.points, file.source or "a cloud")
            return cloud

        return how.cache(number, read)

    def prepare_clouds(self, encoded: Encoded, rows: np.ndarray) -> Iterator[tuple[PointCloud, np.ndarray, np.ndarray]]:
        """Point cloud, model inputs (n, 3 + F) and indices of the chosen points (n,) for each row."""
        how: PointBatchContext = encoded.batch_context
        for number, chance in zip(sample_ids(rows), rows[:, 1] if rows.ndim == 2 else [None] * len(rows), strict=True):
            cloud = self.load_cloud(encoded, int(number))
            random = None if chance is None else np.random.default_rng(int(chance))
            x, chosen = how.points.prepare(cloud, random)
            if random is not None:
                stay = sample_kept_points(len(x), random, how.augment)
                x, chosen = augment_points(x[stay], random, how.augment, how.points.normals_column), chosen[stay]
            yield cloud, x, chosen

    # -- inference

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes | os.PathLike | np.ndarray | PointCloud | Tensor)

    def open_input(self, item: Any, points: PointProcessor) -> PointCloud:
        """Load a point cloud from a path, the bytes of a file, a `PointCloud`, or an array (N, 3 + F), with the features of
        the model in the columns after x, y, z."""
        if isinstance(item, PointCloud):
            cloud = item
        elif isinstance(item, Tensor):
            cloud = cloud_from_array(item.detach().to("cpu", torch.float64).numpy(), points)
        elif isinstance(item, np.ndarray):
            cloud = cloud_from_array(item, points)
        else:
            source = item if isinstance(item, bytes) else os.fspath(item)
            if isinstance(source, str) and parse_cloud_recipe(source) is None:
                existing_file(source)  # reports the most similar file name if the file is missing
            cloud = read_cloud(source, num_points=mesh_sample_count(points))
        where = os.fspath(item) if isinstance(item, str | os.PathLike) else "point cloud"
        if cloud.num_dropped:
            points_dropped = "1 point" if cloud.num_dropped == 1 else f"{cloud.num_dropped:,} points"
            warn_once(f"warning: {where}: ignored {points_dropped} with NaN or infinite coordinates.")
        warn_missing_features(cloud, points, where)
        return cloud


def warn_missing_features(cloud: PointCloud, points: PointProcessor, source: str) -> None:
    """Print a warning for features of the model that the point cloud lacks."""
    for name in points.features:
        if getattr(cloud, name) is None:
            warn_once(
                f"warning: {source}: the point cloud has no {name}, which this model uses; zeros are used instead."
            )


def mesh_sample_count(points: PointProcessor) -> int:
    """Number of points sampled from a mesh: several times `points.count`, so that subsets vary."""
    return max(DEFAULT_POINTS, 4 * points.count)


def encode_cloud_source(sample: CloudSample) -> np.ndarray:
    """Source and column names of a point cloud as integers for the token store."""
    row = encode_source(sample)
    if not sample.columns:
        return row
    told = np.frombuffer(json.dumps(sample.columns).encode(), dtype=np.uint8).astype(np.uint16)
    return np.concatenate([np.array([COLUMNS_MARKER, len(told)], dtype=np.uint16), told, row.astype(np.uint16)])


def decode_cloud_source(row: np.ndarray) -> CloudSample:
    """Point cloud source from a row of the token store."""
    columns: Any = ()
    if len(row) and row[0] == COLUMNS_MARKER:
        end = 2 + int(row[1])
        columns, row = json.loads(row[2:end].astype(np.uint8).tobytes()), row[end:]
    source = decode_source(row)
    inside = isinstance(source, bytes)
    return CloudSample("" if inside else source, content=source if inside else b"", columns=columns)  # type: ignore[arg-type]


def pack_clouds(clouds: Sequence[np.ndarray]) -> tuple[Tensor, Offsets]:
    """Point clouds concatenated to (1, N, 3 + F), with F features per point, and the index of the first point of each."""
    lengths = np.array([len(cloud) for cloud in clouds], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    longest = int(lengths.max(initial=0))
    if (lengths != longest).any():
        longest = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return torch.from_numpy(np.concatenate(clouds))[None], Offsets(torch.from_numpy(starts), longest)


def pack_slices(sizes: Iterable[int], max_points: int = MAX_POINTS) -> Iterator[slice]:
    """Slices of consecutive point clouds with at most `max_points` points in total."""
    first, room, last = 0, 0, 0
    for last, size in enumerate(sizes):
        if room and room + size > max_points:
            yield slice(first, last)
            first, room = last, 0
        room += size
    if room:
        yield slice(first, last + 1)


def cloud_from_array(rows: np.ndarray, points: PointProcessor) -> PointCloud:
    """Point cloud from an array (N, 3), or (N, 3 + F) with the features of the model."""
    if rows.ndim != 2 or rows.shape[1] not in (3, points.width):
        wanted = (
            "(N, 3)" if points.width == 3 else f"(N, 3), or (N, {points.width}) with {' and '.join(points.features)}"
        )
        raise RegardError(f"Expected an array of shape {wanted}, got {rows.dtype} {rows.shape}.")
    parts: dict[str, Any] = {}
    if rows.shape[1] > 3:
        parts = {name: rows[:, 3 + 3 * at : 6 + 3 * at] for at, name in enumerate(points.features)}
    try:
        return normalize_cloud(RawCloud(rows[:, :3], **parts))
    except FileFormatError as error:
        raise error.to_data_error("point cloud") from error


def check_point_processor(processor: PointProcessor, config: Any) -> None:
    """Raise an error if the processor does not match the model."""
    if processor.width - 3 != config.feature_dim:
        raise RegardError(
            f"The model has {config.feature_dim} extra features per point, but {FILE} defines {processor.width - 3}. "
            "Remove model.feature_dim and data.point_features: the checkpoint defines both."
        )


def _head_crc(sample: CloudSample) -> int:
    """Checksum of the first bytes of the file; 0 if the file cannot be read."""
    if sample.content:
        return zlib.crc32(sample.content[:CRC_BYTES])
    try:
        with open(sample.source, "rb") as file:
            return zlib.crc32(file.read(CRC_BYTES))
    except OSError:
        return 0


def _file_size(path: str) -> int:
    """File size as an estimate of the memory of a point cloud, or a small constant for synthetic point clouds."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 2**16
