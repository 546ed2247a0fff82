"""Point clouds: reading, subsampling, augmentation and packed batches.

A batch is one packed row of points (1, N, 3 + F) with the starts of the point clouds (`Batch.packing`). Augmentation is a
function of the random seed of a row, so batches are a deterministic function of their number."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchSampler, BatchShape, Uniform
from regard.data.file_discovery import FileFormatError
from regard.data.points.cloud import DEFAULT_POINTS, PointCloud, RawCloud, normalize_cloud, sample_mesh
from regard.data.points.cloud_files import read_cloud
from regard.data.points.formats import is_trimesh, trimesh_to_cloud
from regard.data.points.labeled import CloudCache, CloudSample
from regard.data.settings import DataSettings
from regard.data.synthetic.point_clouds import parse_cloud_recipe
from regard.data.text.files import existing_file
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, InputError, InputTypeError, RegardError
from regard.index import print_note
from regard.nn.points.body import point_cloud_head
from regard.processors.points import FEATURES, FILE, PointAugment, PointProcessor, augment_points, sample_kept_points
from regard.tasks.base import (
    EVAL_BATCH_SIZE,
    LARGE_VALIDATION,
    Encoded,
    EncodingContext,
    Inputs,
    Model,
    describe,
    is_file,
)
from regard.tasks.modality import base as modality
from regard.tasks.modality.base import FILE_TYPES, file_content
from regard.types import Batch, Packing

MAX_INSPECTED = 32  # number of point clouds read to detect features and sizes
MAX_POINTS = 2**17  # maximum points per batch at inference
LENGTH_MULTIPLE = 128  # multiple for the maximum lengths of batches with different lengths, to limit recompilation
MIN_POINTS = 64  # minimum number of points for a reasonable prediction
MAX_VOTES = 8  # maximum number of votes for a large point cloud, unless `decode.num_votes` is larger
PROCESSOR_SETTINGS = ("num_points", "point_norm", "voxel_size", "block_size", "up_axis", "point_features")
AUGMENT_SETTINGS = ("rotate", "scale", "shift", "jitter", "point_dropout", "tilt", "flip", "stretch")
COLUMNS_MARKER = 2**16 - 2  # first value of a row with column names given by the user


class Points(modality.Modality):
    """Point clouds, converted to coordinates and features of a number of points."""

    name, batch_unit, input_field = "points", "clouds", "cloud"
    noun = "a point cloud (path, bytes, file, array, tensor or trimesh object)"
    reads_files = True
    processor_files = (FILE,)
    settings = (
        "train.batch_size",
        *(f"data.{name}" for name in (*PROCESSOR_SETTINGS, *AUGMENT_SETTINGS)),
        "train.label_smoothing",
    )
    default_batch_size = 16
    fit_message = "Detecting the features of the points (colors, normals) …"

    def __init__(self, count: int, frame: str, max_inputs: int = 512) -> None:
        """`count`, `frame`: defaults of `data.num_points` and `data.point_norm`."""
        self.initial_processor = PointProcessor(count, frame)  # type: ignore[arg-type]
        self.max_inputs = max_inputs

    def is_single(self, inputs: Any) -> bool:
        if isinstance(inputs, np.ndarray | Tensor):  # of rank 3: a batch
            return inputs.ndim < 3
        return isinstance(inputs, (*FILE_TYPES, PointCloud)) or is_file(inputs) or is_trimesh(inputs)

    # -- processor

    def fit_processor(self, samples: Iterable[CloudSample], config: Any, data: DataSettings) -> PointProcessor:
        """Features (colors, normals) present in all inspected point clouds, unless `data.point_features` is set."""
        found, broken = list(FEATURES), None
        if data.point_features == ("auto",):
            opened = 0
            for sample in modality.reservoir_sample(samples, MAX_INSPECTED):
                try:
                    cloud = sample.read()
                except DataError as error:  # unreadable files are skipped with a warning during training
                    broken = error
                    continue
                opened += 1
                found = [name for name in found if getattr(cloud, name) is not None]
            if not opened and broken is not None:
                raise broken
        return self.adapt_processor(replace(self.initial_processor, features=tuple(found)), config, data)

    def load_processor(self, folder: Path) -> PointProcessor | None:
        return PointProcessor.load(folder)

    def adapt_processor(self, processor: PointProcessor, config: Any, data: DataSettings) -> PointProcessor:
        """The processor with the settings of the user. Unset settings keep the values of the checkpoint."""
        point_augmentation(data, processor)  # raises an error for invalid settings
        changes: dict[str, Any] = {"up": data.up_axis} if data.up_axis != "auto" else {}
        sizes = {"voxel": data.voxel_size, "block": data.block_size, "count": data.num_points}
        changes |= {name: value for name, value in sizes.items() if value >= 0}
        changes |= {"frame": data.point_norm} if data.point_norm != "auto" else {}
        if data.point_features != ("auto",):
            changes["features"] = () if data.point_features == ("none",) else data.point_features
        return replace(processor, **changes)

    def fit_config(self, config: Any, processor: PointProcessor) -> Any:
        return replace(config, feature_dim=processor.width - 3)

    def describe_processor(self, processor: PointProcessor) -> str:
        count = f"up to {processor.count:,} points" if processor.count else "all points"
        features = f" with {' and '.join(processor.features)}" if processor.features else ""
        return f"{count} per point cloud{features}"

    # -- batches

    def encode(self, samples: Sequence[Any], config: Any, context: EncodingContext) -> modality.InputFields:
        if context.processor.width - 3 != config.feature_dim:
            raise RegardError(
                f"The model has {config.feature_dim} extra features per point, but {FILE} defines "
                f"{context.processor.width - 3}. Remove model.feature_dim and data.point_features: the checkpoint defines both."
            )
        return {"cloud": [encode_cloud_source(sample) for sample in samples]}, []

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Point clouds that fit into the cache are read here, before the data loader workers are forked, so that all workers
        share the memory. Micro-batches have a static shape if every point cloud has enough points."""
        plan = Uniform(len(encoded), tokens, seed, "point clouds")
        plan.static_shape = self._has_fixed_shape(encoded)
        return plan

    def _has_fixed_shape(self, encoded: Encoded) -> bool:
        points, room = encoded.context.processor, 0
        for number in range(len(encoded)):
            source = decode_cloud_source(encoded.fields["cloud"][number])
            try:
                room += len(source.content) or os.path.getsize(source.source)
            except OSError:  # a synthetic point cloud
                room += 2**16
            if room > _cache(encoded).max_bytes:
                return False
        if len(encoded) >= LARGE_VALIDATION:
            print_note(f"  Reading {len(encoded):,} point clouds …")
        dropout = point_augmentation(encoded.context.data, points).point_dropout
        whole = points.count > 0 and not points.voxel and not points.block and not dropout
        for number in range(len(encoded)):
            try:
                whole &= len(load_cloud(encoded, number)) >= points.count
            except DataError:  # unreadable files are replaced in batches
                continue
        return whole

    def validate_data(self, train: Encoded, valid: Encoded, log: Callable[[str], None]) -> None:
        """Report the number of points after subsampling: wrong units of the voxel or block size remove most points."""
        points = train.context.processor
        if not points.voxel and not points.block:
            return
        clouds = [load_cloud(valid, number) for number in range(min(MAX_INSPECTED, len(valid)))]
        left = int(np.median([len(replace(points, count=0).prepare(cloud)[0]) for cloud in clouds]))
        wide = float(np.median([np.ptp(cloud.coordinates, axis=0).max() for cloud in clouds]))
        points_left = "1 point" if left == 1 else f"{left:,} points"
        result = f"after voxel subsampling and blocking, a typical point cloud ({wide:.3g} units wide) has"
        if left < MIN_POINTS:
            log(f"  warning: {result} only {points_left}. Are data.voxel_size and data.block_size in the right unit?")
        else:
            log(f"  note: {result} {points_left}.")

    def eval_rows(self, encoded: Encoded, tokens: int) -> Iterator[np.ndarray]:
        return iter(Uniform(len(encoded), _eval_batch_size(encoded.context.processor), seed=0).sequential())

    def collate(
        self, encoded: Encoded, rows: np.ndarray, config: Any, labels: Tensor | None, shape: BatchShape | None = None
    ) -> Batch:
        x, offsets = pack_clouds([x for x, _ in prepare_clouds(encoded, rows)])
        return Batch(x, labels=labels, packing=offsets)

    # -- classification

    def class_head(self, config: Any, outputs: int) -> nn.Module:
        return point_cloud_head(config, outputs)

    def input_batches(self, model: Model, inputs: Inputs, count: int, decode: DecodeSettings) -> modality.InputBatches:
        """Several random subsets of the points of large point clouds, as rows of one input."""
        points = require_point_processor(model)
        size = _eval_batch_size(points) if isinstance(inputs, Encoded) else max(count, 1)
        for start in range(0, count, size):
            owners, rows = [], []
            for number in range(start, min(start + size, count)):
                cloud = (
                    load_cloud(inputs, number) if isinstance(inputs, Encoded) else open_cloud(inputs[number], points)
                )
                views = points.prepare_views(cloud, decode.num_votes, max(MAX_VOTES, decode.num_votes))
                owners += [number] * len(views)
                rows += views
            for part in pack_slices(map(len, rows)):
                x, offsets = pack_clouds(rows[part])
                yield np.array(owners[part]), Batch(x, packing=offsets)


def require_point_processor(model: Model) -> PointProcessor:
    """Processor of the model. A missing processor is an error."""
    if not isinstance(model.processor, PointProcessor):
        raise RegardError(
            f"{model.spec.source or 'this model'} has no {FILE}, which defines the preprocessing of point clouds. "
            "logits(points) and states(points) work without this file."
        )
    return model.processor


def _eval_batch_size(points: PointProcessor) -> int:
    return max(1, min(EVAL_BATCH_SIZE, MAX_POINTS // points.count)) if points.count else 1


def point_augmentation(data: DataSettings | None, points: PointProcessor) -> PointAugment:
    """Augmentation of training point clouds about the up axis of the processor; invalid settings are an error."""
    if data is None:
        return PointAugment()
    return PointAugment(up=points.up, **{name: getattr(data, name) for name in AUGMENT_SETTINGS})


# -- samples


def _cache(encoded: Encoded) -> CloudCache:
    caches, data = encoded.context.cache, encoded.context.data
    if "clouds" not in caches:
        workers = 1 if data is None else data.num_workers if data.num_workers >= 0 else 2  # auto: at most 2
        caches["clouds"] = CloudCache(num_workers=workers)
    found: CloudCache = caches["clouds"]
    return found


def load_cloud(encoded: Encoded, number: int) -> PointCloud:
    """Point cloud of a sample, from the cache or from its file."""
    points: PointProcessor = encoded.context.processor

    def read() -> PointCloud:
        file = decode_cloud_source(encoded.fields["cloud"][number])
        cloud = file.read(num_points=mesh_sample_count(points))
        warn_missing_features(cloud, points, file.source or "a cloud")
        return cloud

    return _cache(encoded)(number, read)


def prepare_clouds(encoded: Encoded, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Model inputs (n, 3 + F) and indices of the chosen points (n,) of each row."""
    points = encoded.context.processor
    augment = point_augmentation(encoded.context.data, points)
    seeds = rows[:, 1] if rows.ndim == 2 else [None] * len(rows)
    for number, seed in zip(modality.sample_ids(rows), seeds, strict=True):
        random = None if seed is None else np.random.default_rng(int(seed))
        x, chosen = points.prepare(load_cloud(encoded, int(number)), random)
        if random is not None:
            kept = sample_kept_points(len(x), random, augment)
            x, chosen = augment_points(x[kept], random, augment, points.normals_column), chosen[kept]
        yield x, chosen


def open_cloud(item: Any, points: PointProcessor) -> PointCloud:
    """Point cloud from a path, the bytes of a file, an open file, a `PointCloud`, an object of trimesh, or an array
    (N, 3 + F), with the features of the model in the columns after x, y, z."""
    source = file_content(item)
    if source is not None:
        if isinstance(source, str) and parse_cloud_recipe(source) is None:
            existing_file(source)  # reports the most similar file name if the file is missing
        cloud = read_cloud(source, num_points=mesh_sample_count(points))
    elif isinstance(item, PointCloud):
        cloud = item
    elif isinstance(item, Tensor | np.ndarray):
        rows = item.detach().to("cpu", torch.float64).numpy() if isinstance(item, Tensor) else item
        cloud = raw_cloud(lambda: rows_to_cloud(rows, points), points)
    elif is_trimesh(item):
        cloud = raw_cloud(lambda: trimesh_to_cloud(item), points)
    else:
        raise InputTypeError(f"Expected {Points.noun}, got {describe(item)}.")
    where = source if isinstance(source, str) else "point cloud"
    if cloud.num_dropped:
        points_dropped = "1 point" if cloud.num_dropped == 1 else f"{cloud.num_dropped:,} points"
        print_note(f"warning: {where}: ignored {points_dropped} with NaN or infinite coordinates.")
    warn_missing_features(cloud, points, where)
    return cloud


def warn_missing_features(cloud: PointCloud, points: PointProcessor, source: str) -> None:
    """Print a warning for features of the model that the point cloud lacks."""
    for name in points.features:
        if getattr(cloud, name) is None:
            print_note(
                f"warning: {source}: the point cloud has no {name}, which this model uses; zeros are used instead."
            )


def mesh_sample_count(points: PointProcessor) -> int:
    """Number of points sampled from a mesh: several times `points.count`, so that subsets vary."""
    return max(DEFAULT_POINTS, 4 * points.count)


def encode_cloud_source(sample: CloudSample) -> np.ndarray:
    """Source and column names of a point cloud as integers for the token store."""
    row = modality.encode_source(sample.source, sample.content)
    if not sample.columns:
        return row
    names = np.frombuffer(json.dumps(sample.columns).encode(), dtype=np.uint8).astype(np.uint16)
    return np.concatenate([np.array([COLUMNS_MARKER, len(names)], dtype=np.uint16), names, row.astype(np.uint16)])


def decode_cloud_source(row: np.ndarray) -> CloudSample:
    """Point cloud source from a row of the token store."""
    columns: Any = ()
    if len(row) and row[0] == COLUMNS_MARKER:
        end = 2 + int(row[1])
        columns, row = tuple(map(tuple, json.loads(row[2:end].astype(np.uint8).tobytes()))), row[end:]
    source = modality.decode_source(row)
    if isinstance(source, bytes):
        return CloudSample("", content=source, columns=columns)
    return CloudSample(source, columns=columns)


def pack_clouds(clouds: Sequence[np.ndarray]) -> tuple[Tensor, Packing]:
    """Point clouds concatenated to (1, N, 3 + F), with F features per point, and the index of the first point of each."""
    lengths = np.array([len(cloud) for cloud in clouds], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    longest = int(lengths.max(initial=0))
    if (lengths != longest).any():
        longest = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return torch.from_numpy(np.concatenate(clouds))[None], Packing(torch.from_numpy(starts), longest)


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


def raw_cloud(make: Callable[[], RawCloud], points: PointProcessor) -> PointCloud:
    """Point cloud of an object in memory."""
    try:
        raw = make()
        return normalize_cloud(raw if raw.faces is None else sample_mesh(raw, mesh_sample_count(points)))
    except FileFormatError as error:
        raise error.to_data_error("point cloud") from error


def rows_to_cloud(rows: np.ndarray, points: PointProcessor) -> RawCloud:
    """Point cloud from an array (N, 3), or (N, 3 + F) with the features of the model."""
    if rows.ndim != 2 or rows.shape[1] not in (3, points.width):
        wanted = (
            "(N, 3)" if points.width == 3 else f"(N, 3), or (N, {points.width}) with {' and '.join(points.features)}"
        )
        raise InputError(f"Expected an array of shape {wanted}, got {rows.dtype} {rows.shape}.")
    parts: dict[str, Any] = {}
    if rows.shape[1] > 3:
        parts = {name: rows[:, 3 + 3 * at : 6 + 3 * at] for at, name in enumerate(points.features)}
    return RawCloud(rows[:, :3], **parts)
