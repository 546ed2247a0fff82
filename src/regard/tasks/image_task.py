"""What all tasks share whose samples are pictures: how they are found, decoded, cut out and mixed, and put into batches.

A batch holds bytes (B, 3, H, W) and, in training, a table of what chance does to each picture (`Batch.changes`). Cutting,
mirroring and colouring are done with it on the device, so that batches are a pure function of their number, and small.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import Epochs, Even
from regard.data.file_discovery import PICTURES
from regard.data.images.cache import READERS, Album
from regard.data.images.image_io import LIMIT, look, picture_from, read_picture
from regard.data.images.labeled import Picture, plain_of
from regard.data.settings import Data
from regard.data.text.files import Complain
from regard.data.text.tables import Empty
from regard.errors import RegardError
from regard.processors.augmentation import NOTHING, Augment, apply, draw_changes
from regard.processors.image import Pixels
from regard.processors.palette import FILE, Palette
from regard.tasks.base import Encoded
from regard.tasks.file_task import LOOKED_AT, Opened, numbers_of, some, source_of, tell
from regard.tasks.protocol import Asked
from regard.types import Batch

WIDER = 8 / 7
"""Pictures that are cut out at random are kept so much larger: 256 pixels for 224."""

LARGE = 128
"""From this side on a border of a picture is cut off, as is usual with photographs."""

BICUBIC = 3
"""Pillow's number of that filter."""

LEARNT_FROM = 2048
"""Pictures that a palette is learnt from, chosen by chance among all."""


Size = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Seeing:
    """How pictures become batches: see `Task.how`."""

    pixels: Pixels | Palette
    augment: Augment
    albums: dict[tuple[str, bool], Album] = field(default_factory=dict)
    """of each side that is decoded, for what is learnt from and for what is not"""

    @property
    def wide(self) -> Pixels | Palette:
        """As pictures lie in batches that are learnt from: larger where a part is cut out."""
        if self.augment.crop == 1 or min(self.pixels.size) < LARGE:  # small ones would only be blurred
            return self.pixels
        return self.pixels.wider(WIDER)


CHANGED = ("data.crop", "data.shift", "data.flip", "data.colour", "data.erase")
"""Settings of how pictures are changed while they are learnt from."""


class Pictured(Opened):
    reads = "pictures"
    counted = "images"
    unit = "pictures"
    sample = Picture
    usage = "picture.jpg"
    suffixes = PICTURES
    reader_files: ClassVar[tuple[str, ...]] = ("preprocessor_config.json",)
    sides: ClassVar[tuple[str, ...]] = ("picture",)
    heeds: ClassVar[tuple[str, ...]] = ("train.images",)

    # -- samples

    def listed(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[Picture | Empty]:
        """Pictures that a table names or holds; what it says of them is not read."""
        return plain_of(entry, columns, complain)

    # -- the reader

    def reader(self, folder: Path) -> Pixels | Palette | None:
        return Palette.load(folder) or (Pixels.load(folder) if Pixels.exists(folder) else None)

    def keep(self, reader: Pixels | Palette, config: Any, folder: Path) -> None:
        reader.save(folder)

    def ready(self, config: Any, data: Data) -> Pixels | None:
        """The whole of a small picture, the middle of a larger one; what reads colours of a palette learns those first."""
        if hasattr(config, "colours"):
            return None
        edge = round(WIDER * config.size) if config.size >= LARGE else 0
        return Pixels((config.size, config.size), "shortest", edge, crop=True, resample=BICUBIC)

    def suited(self, reader: Pixels | Palette, config: Any, data: Data) -> Pixels | Palette:
        return reader.steady(config.size) if isinstance(reader, Pixels) else reader

    def learnt(self, samples: Iterable[Picture], config: Any, data: Data) -> Palette:
        """As many colours as the model has, or as the pictures have. Only some of them are opened."""
        pictures = (opened(sample, least=config.size) for sample in some(samples, LEARNT_FROM))
        return Palette.learn(pictures, config.colours, config.size)

    def fit(self, config: Any, reader: Any) -> Any:
        return replace(config, colours=len(reader)) if isinstance(reader, Palette) else config

    def about_reader(self, reader: Pixels | Palette) -> str:
        height, width = reader.size
        colours = f", {len(reader):,} colours in the palette" if isinstance(reader, Palette) else ""
        return f"looked at in {height} x {width} pixels{colours}"

    def budget(self, train: Any) -> int:
        return int(train.images)

    # -- batches

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Seeing:
        check_reader(reader, config)
        return Seeing(reader, NOTHING if data is None else self.augment(data))

    def augment(self, data: Data) -> Augment:
        apart = 4 / 3 if data.crop < 1 else 1.0
        return Augment(data.crop, apart, data.flip, data.colour, data.mixup, shift=data.shift, erase=data.erase)

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        """The album is opened here, before workers are made: so they share it."""
        if ("picture", True) not in encoded.how.albums:
            height, width = encoded.how.wide.size
            encoded.how.albums["picture", True] = Album(len(encoded), (height, width, 3))
        return Even(len(encoded), tokens, seed)

    def at_a_time(self, how: Any) -> int:
        return together(how.pixels)

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        for rows in Even(len(encoded), min(tokens, self.at_a_time(encoded.how)), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def pictures(self, encoded: Encoded, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """(B, 3, H, W) bytes, and what chance does to them; rows (B, 2) are learnt from, (B,) are not."""
        how: Seeing = encoded.how
        learnt = rows.ndim == 2
        pixels = how.wide if learnt else how.pixels
        numbers, side = numbers_of(rows), encoded.sides["picture"]

        def read(number: int) -> np.ndarray:
            # what is scored is decoded as what is asked; to learn from, a file may be decoded smaller, which is other pixels
            return pixels.prepare(read_picture(source_of(side[number]), pixels.least if learnt else 0))

        found = self.decoded(encoded, "picture", numbers, read, learnt, (*pixels.size, 3))
        x = torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).contiguous()
        if not learnt or how.augment.nothing:
            return x, None
        random = np.random.default_rng(rows[:, 1].tolist())
        return x, torch.from_numpy(draw_changes(random, len(rows), how.augment))

    def decoded(
        self, encoded: Encoded, side: str, numbers: np.ndarray, read: Callable[[int], np.ndarray], learnt: bool,
        shape: tuple[int, ...], kind: Any = np.uint8,
    ) -> list[np.ndarray]:  # fmt: skip
        """Each is decoded once, where all fit into memory. What is learnt from, workers decode; else threads do."""
        albums = encoded.how.albums
        if (side, learnt) not in albums:
            albums[side, learnt] = Album(0 if learnt else len(encoded), shape, kind=kind)
        return albums[side, learnt].several(numbers.tolist(), read, 1 if learnt else READERS)

    def looked_at(self, model: Asked, batch: Batch) -> Batch:
        """The batch with pixels, or colours of a palette, as the body reads them; those that are so already are left alone."""
        if batch.x.dtype != torch.uint8:
            return batch
        pixels = model.pixels_or_refuse()
        check_reader(pixels, model.config)
        x = batch.x
        if batch.changes is not None:
            x = apply(x, batch.changes, pixels.size, batch.changed_by)
        return replace(batch, x=pixels.normalise(x), changes=None)

    # -- what is asked

    def alone(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes | os.PathLike | np.ndarray) or hasattr(inputs, "convert")

    def asked(self, inputs: Sequence[Any], pixels: Pixels | Palette) -> Tensor:
        """Pictures as bytes (B, 3, H, W), made ready; one at a time, as they may be large."""
        made = np.stack([pixels.prepare(picture_of(item)) for item in inputs])
        return torch.from_numpy(made).permute(0, 3, 1, 2).contiguous()


def together(pixels: Pixels | Palette) -> int:
    """How many pictures are looked at together: more of small ones, and each alone where each has a size of its own."""
    height, width = pixels.size
    fits = LOOKED_AT * 224**2 // (height * width) if isinstance(pixels, Pixels) else 0
    return 1 if pixels.varies else min(max(fits, LOOKED_AT), 16 * LOOKED_AT)


def picture_of(item: Any) -> np.ndarray:
    """A path, the bytes of a file, an array (H, W, 3) of bytes, or a picture of Pillow's."""
    return sized_of(item)[0]


def sized_of(item: Any) -> tuple[np.ndarray, Size]:
    """The same, and the height and width that it has itself: a file that is too large is decoded smaller, which is told."""
    picture = _held(item)
    if picture is not None:
        return picture, (picture.shape[0], picture.shape[1])
    picture, facts = look(item if isinstance(item, bytes) else os.fspath(item), curious=False)
    if facts.reduced:
        tell(
            f"{'a picture' if isinstance(item, bytes) else os.fspath(item)}: has {facts.height:,} x {facts.width:,} pixels, "
            f"and more than {LIMIT // 10**6} million are not decoded: it is looked at in {picture.shape[0]:,} x "
            f"{picture.shape[1]:,}"
        )
    return picture, (facts.height, facts.width)


def _held(item: Any) -> np.ndarray | None:
    """What is in memory already."""
    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8 or item.ndim != 3 or item.shape[2] != 3:
            raise RegardError(f"an array of bytes (H, W, 3) is wanted, not {item.dtype} {item.shape}.")
        return item
    return picture_from(item) if hasattr(item, "convert") else None


def opened(sample: Picture, least: int) -> np.ndarray:
    """Its pixels; a large file is decoded no larger than is needed for so many on the shorter side."""
    return read_picture(sample.content or sample.source, least, sample.place)


def check_reader(reader: Any, config: Any) -> None:
    """Refuse pictures that are made ready for a model of another kind."""
    if isinstance(reader, Palette) != hasattr(config, "colours"):
        kinds = ("colours of a palette", "pixels")
        reads, made = kinds if hasattr(config, "colours") else kinds[::-1]
        raise RegardError(
            f"the model reads {reads}, and by its {FILE} pictures become {made}: they do not belong together."
        )
    if isinstance(reader, Palette) and (len(reader), reader.side) != (config.colours, config.size):
        raise RegardError(
            f"the palette is of {len(reader)} colours for pictures of side {reader.side}, the model of {config.colours} for "
            f"side {config.size}: they do not belong together. A folder brings both; leave model.colours and model.size out."
        )
