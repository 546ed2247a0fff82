"""What all tasks share whose samples are point clouds: how they are found, read, thinned, shaken and packed into batches.

A batch is one row of points (1, N, 3 + F), cloud after cloud, and where each begins (`Batch.offsets`). What chance does to a
cloud is a pure function of its number of chance, so that batches are a pure function of theirs.
"""

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

from regard.data.batching.samplers import Epochs, Even
from regard.data.points.cache import Shelf
from regard.data.points.cloud import Cloud, Raw, Wrong, settled
from regard.data.points.cloud_files import ENDINGS, read_cloud
from regard.data.points.labeled import CloudFile, asked_clouds_of
from regard.data.points.mesh_sampling import LEAST
from regard.data.settings import Data
from regard.data.synthetic.point_clouds import CloudRecipe, cloud_recipe_of
from regard.data.text.files import Complain, existing
from regard.data.text.tables import Empty
from regard.errors import DataError, RegardError
from regard.processors.point_augmentation import STILL, Shaking, kept, shake
from regard.processors.points import FEATURES, FILE, Points
from regard.tasks.base import Encoded
from regard.tasks.file_task import LOOKED_AT, MANY, Opened, numbers_of, row_of, some, source_of, tell
from regard.tasks.synthetic import Made
from regard.types import Batch, Offsets

LOOKED_INTO = 32
"""Clouds that are opened to see what is known of their points beside where they are."""
ROOM = 2**17
"""Points that are looked at together where nothing learns from them."""
ROUND = 128
"""The longest cloud of a batch is told as a multiple of this where they differ, so that compiled code sees few."""
BEGUN = 2**14
"""Bytes of a file that it is known again by."""
FEW = 64
"""Points in which hardly anything is to be seen."""
COLUMNS = 2**16 - 2
"""Stands before what is called how in a file, where a person said it."""
SHAKEN = (
    "data.turn", "data.scale", "data.shift", "data.jitter", "data.drop", "data.tilt", "data.flip", "data.stretch",
)  # fmt: skip
"""Settings of how clouds are changed while they are learnt from."""

Rows = np.ndarray


@dataclass(frozen=True)
class Gathering:
    """How clouds become batches: see `Task.how`."""

    points: Points
    shaking: Shaking
    labels: tuple[str, ...] = ()
    shelf: Shelf = field(default_factory=Shelf)


class Clouded(Made, Opened):
    reads = "points"
    counted = "clouds"
    unit = "clouds"
    sample = CloudFile
    usage = "cloud.ply"
    model = "point-tiny"
    suffixes = ENDINGS
    learning = "looking at what is known of the points"
    reader_files: ClassVar[tuple[str, ...]] = (FILE,)
    heeds: ClassVar[tuple[str, ...]] = (
        "train.clouds", "data.points", "data.frame", "data.voxel", "data.block", "data.up", "data.features", *SHAKEN,
        "train.smoothing",
    )  # fmt: skip
    many: ClassVar[int]
    """points that are drawn of a cloud where a person says nothing"""
    framed: ClassVar[str]
    """how clouds are laid where a person says nothing"""

    # -- samples

    def recipe(self, entry: str) -> CloudRecipe | None:
        return cloud_recipe_of(entry)

    def listed(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[CloudFile | Empty]:
        """Clouds that a table names; what it says of them is not read."""
        return asked_clouds_of(entry, columns, complain)

    def key(self, sample: CloudFile) -> str:
        """Clouds of as many points are as many bytes, and each may lie as points.ply in a folder of its own: so what they
        begin with tells them apart too."""
        return f"{super().key(sample)}\0{_begun(sample)}"

    def row(self, sample: CloudFile) -> np.ndarray:
        return row_of_cloud(sample)

    # -- the reader

    def reader(self, folder: Path) -> Points | None:
        return Points.load(folder) if Points.exists(folder) else None

    def keep(self, reader: Points, config: Any, folder: Path) -> None:
        reader.save(folder)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        self.shaken(data)
        self.suited(Points(self.many, self.framed), config, data)  # type: ignore[arg-type]

    def learnt(self, samples: Iterable[CloudFile], config: Any, data: Data) -> Points:
        """What is known of the points of every cloud that is opened is read beside their places, unless a person chooses."""
        found, broken = list(FEATURES), None
        if data.features == ("auto",):
            opened = 0
            for sample in some(samples, LOOKED_INTO):
                try:
                    cloud = sample.read()
                except DataError as error:  # it is left out by its name where it is learnt from
                    broken = error
                    continue
                opened += 1
                found = [name for name in found if getattr(cloud, name) is not None]
            if not opened and broken is not None:
                raise broken
        return self.suited(Points(self.many, self.framed, features=tuple(found)), config, data)  # type: ignore[arg-type]

    def suited(self, reader: Points, config: Any, data: Data) -> Points:
        """As a person says it; what a folder brings stays where nobody says anything else."""
        said: dict[str, Any] = {"up": data.up} if data.up != "auto" else {}
        said |= {name: value for name in ("voxel", "block") if (value := getattr(data, name)) >= 0}
        said |= {"count": data.points} if data.points >= 0 else {}
        said |= {"frame": data.frame} if data.frame != "auto" else {}
        if data.features != ("auto",):
            said["features"] = () if data.features == ("none",) else data.features
        return replace(reader, **said)

    def fit(self, config: Any, reader: Points) -> Any:
        return replace(config, inputs=reader.width - 3)

    def about_reader(self, reader: Points) -> str:
        many = f"up to {reader.count:,} points" if reader.count else "all points"
        beside = f" with {' and '.join(reader.features)}" if reader.features else ""
        return f"{many} of each are read{beside}"

    def budget(self, train: Any) -> int:
        return int(train.clouds)

    # -- batches

    def how(
        self, reader: Points, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()
    ) -> Gathering:
        check_reader(reader, config)
        if data is None:
            return Gathering(reader, STILL, tuple(labels))
        shelf = Shelf(workers=data.workers if data.workers >= 0 else 2)  # as many as there may be
        return Gathering(reader, replace(self.shaken(data), up=reader.up), tuple(labels), shelf)

    def shaken(self, data: Data) -> Shaking:
        up = "z" if data.up == "auto" else data.up
        more = (data.tilt, data.flip, data.stretch)
        return Shaking(data.turn, data.scale, data.shift, data.jitter, data.drop, up, *more)

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        """Clouds that all fit on the shelf are read here, before workers are made: so they share them. Grains have one shape
        where each has as many points as are drawn."""
        plan = Even(len(encoded), tokens, seed, self.unit)
        plan.steady = self._alike(encoded)
        return plan

    def _alike(self, encoded: Encoded) -> bool:
        how: Gathering = encoded.how
        points, room = how.points, 0
        for number in range(len(encoded)):
            source = file_of(encoded.sides["cloud"][number])
            room += len(source.content) or _size(source.source)
            if room > how.shelf.most:
                return False
        if len(encoded) >= MANY:
            tell(f"  reading {len(encoded):,} clouds")
        whole = points.count > 0 and not points.voxel and not points.block and not how.shaking.drop
        for number in range(len(encoded)):
            try:
                whole &= len(self.opened(encoded, number)) >= points.count
            except DataError:  # another stands for it
                continue
        return whole

    def look_through(self, train: Encoded, valid: Encoded, config: Any, say: Callable[[str], None]) -> None:
        """Also how many points are left, where some are left out: cells and columns are measured in the unit of the files, and
        one that was mistaken leaves nothing to learn from."""
        super().look_through(train, valid, config, say)
        points = train.how.points
        if points.voxel or points.block:
            clouds = [self.opened(valid, number) for number in range(min(LOOKED_INTO, len(valid)))]
            left = int(np.median([len(points.without_limit().prepare(cloud)[0]) for cloud in clouds]))
            wide = float(np.median([np.ptp(cloud.places, axis=0).max() for cloud in clouds]))
            few = ": too few to see a shape. Is the unit another one?" if left < FEW else ""
            points_left = "1 point" if left == 1 else f"{left:,} points"
            say(f"  clouds are {wide:.3g} wide, and data.voxel and data.block leave {points_left} of one{few}")

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        for rows in Even(len(encoded), self.at_a_time(encoded.how), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def at_a_time(self, how: Gathering) -> int:
        """How many clouds are looked at together when they are answered."""
        return max(1, min(LOOKED_AT, ROOM // how.points.count)) if how.points.count else 1

    def opened(self, encoded: Encoded, number: int) -> Cloud:
        how: Gathering = encoded.how

        def read() -> Cloud:
            file = file_of(encoded.sides["cloud"][number])
            cloud = file.read(points=of_mesh(how.points))
            tell_of_lacks(cloud, how.points, file.source or "a cloud")
            return cloud

        return how.shelf(number, read)

    def gathered(self, encoded: Encoded, rows: np.ndarray) -> Iterator[tuple[Cloud, np.ndarray, np.ndarray]]:
        """Of each row the cloud, what is read of it (n, 3 + F), and which of its points these are (n,)."""
        how: Gathering = encoded.how
        for number, chance in zip(numbers_of(rows), rows[:, 1] if rows.ndim == 2 else [None] * len(rows), strict=True):
            cloud = self.opened(encoded, int(number))
            random = None if chance is None else np.random.default_rng(int(chance))
            x, chosen = how.points.prepare(cloud, random)
            if random is not None:
                stay = kept(len(x), random, how.shaking)
                x, chosen = shake(x[stay], random, how.shaking, how.points.normals), chosen[stay]
            yield cloud, x, chosen

    # -- what is asked

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes | os.PathLike | np.ndarray | Cloud | Tensor)

    def asked(self, item: Any, points: Points) -> Cloud:
        """The cloud of an input: a path, the bytes of a file, a `Cloud`, or an array (N, 3 + F) whose columns behind the places
        are what the model reads."""
        if isinstance(item, Cloud):
            cloud = item
        elif isinstance(item, Tensor):
            cloud = cloud_from(item.detach().to("cpu", torch.float64).numpy(), points)
        elif isinstance(item, np.ndarray):
            cloud = cloud_from(item, points)
        else:
            source = item if isinstance(item, bytes) else os.fspath(item)
            if isinstance(source, str) and cloud_recipe_of(source) is None:
                existing(source)  # else the nearest name is told
            cloud = read_cloud(source, points=of_mesh(points))
        where = os.fspath(item) if isinstance(item, str | os.PathLike) else "a cloud"
        if cloud.dropped:
            tell(f"{where}: {cloud.dropped:,} points are nowhere (NaN or infinite): the answer is without them")
        tell_of_lacks(cloud, points, where)
        return cloud


def tell_of_lacks(cloud: Cloud, points: Points, where: str) -> None:
    """What a model reads and a cloud has not."""
    for name in points.features:
        if getattr(cloud, name) is None:
            tell(f"{where}: has no {name}, which this model reads: it is given zeros for them")


def of_mesh(points: Points) -> int:
    """Points that a mesh becomes: several times those that are looked at, so that others can be drawn each time."""
    return max(LEAST, 4 * points.count)


def row_of_cloud(sample: CloudFile) -> np.ndarray:
    """Where a cloud is to be found, and what is called how in it, as numbers that a store can hold."""
    row = row_of(sample)
    if not sample.columns:
        return row
    told = np.frombuffer(json.dumps(sample.columns).encode(), dtype=np.uint8).astype(np.uint16)
    return np.concatenate([np.array([COLUMNS, len(told)], dtype=np.uint16), told, row.astype(np.uint16)])


def file_of(row: np.ndarray) -> CloudFile:
    """The reverse."""
    columns: Any = ()
    if len(row) and row[0] == COLUMNS:
        end = 2 + int(row[1])
        columns, row = json.loads(row[2:end].astype(np.uint8).tobytes()), row[end:]
    source = source_of(row)
    inside = isinstance(source, bytes)
    return CloudFile("" if inside else source, content=source if inside else b"", columns=columns)  # type: ignore[arg-type]


def packed(clouds: Sequence[np.ndarray]) -> tuple[Tensor, Offsets]:
    """(1, N, 3 + F): all points one after another, and where each cloud begins."""
    lengths = np.array([len(cloud) for cloud in clouds], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    longest = int(lengths.max(initial=0))
    if (lengths != longest).any():
        longest = -(-longest // ROUND) * ROUND
    return torch.from_numpy(np.concatenate(clouds))[None], Offsets(torch.from_numpy(starts), longest)


def packs(sizes: Iterable[int], most: int = ROOM) -> Iterator[slice]:
    """Neighbours that are looked at together: as many as have no more points than fit."""
    first, room, last = 0, 0, 0
    for last, size in enumerate(sizes):
        if room and room + size > most:
            yield slice(first, last)
            first, room = last, 0
        room += size
    if room:
        yield slice(first, last + 1)


def cloud_from(rows: np.ndarray, points: Points) -> Cloud:
    """An array as a cloud; one with places alone has nothing else."""
    if rows.ndim != 2 or rows.shape[1] not in (3, points.width):
        wanted = (
            "(N, 3)" if points.width == 3 else f"(N, 3), or (N, {points.width}) with {' and '.join(points.features)}"
        )
        raise RegardError(f"an array {wanted} is wanted, not {rows.dtype} {rows.shape}.")
    parts: dict[str, Any] = {}
    if rows.shape[1] > 3:
        parts = {name: rows[:, 3 + 3 * at : 6 + 3 * at] for at, name in enumerate(points.features)}
    try:
        return settled(Raw(rows[:, :3], **parts))
    except Wrong as error:
        raise error.named("a cloud") from error


def check_reader(reader: Points, config: Any) -> None:
    """Refuse clouds that are made ready for a model of another kind."""
    if reader.width - 3 != config.inputs:
        raise RegardError(
            f"the model reads {config.inputs} numbers beside the places of points, and by its {FILE} there are "
            f"{reader.width - 3}: they do not belong together. A folder brings both; leave model.inputs and data.features out."
        )


def _begun(sample: CloudFile) -> int:
    """A sum of the first bytes of its file; 0 where there is none."""
    if sample.content:
        return zlib.crc32(sample.content[:BEGUN])
    try:
        with open(sample.source, "rb") as file:
            return zlib.crc32(file.read(BEGUN))
    except OSError:
        return 0


def _size(path: str) -> int:
    """Bytes of a file, which are about those of its cloud; of what is made by its name few."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 2**16
