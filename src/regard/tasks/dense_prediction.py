"""What segment and depth share: a picture in, a map of the same size out."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import Epochs
from regard.data.images.cache import Album, free_memory
from regard.data.images.labeled import Picture
from regard.data.settings import Data
from regard.data.text.files import chunked
from regard.errors import DataError, SettingError
from regard.processors.augmentation import apply_map
from regard.processors.image import Pixels
from regard.tasks.base import Encoded
from regard.tasks.file_task import numbers_of, row_of, source_of
from regard.tasks.image_task import BICUBIC, CHANGED, Pictured, Size, sized_of, together
from regard.tasks.protocol import Asked
from regard.types import Batch

FEW = 16
"""Pictures that are looked at together: each is a map."""
BYTES = 16
"""Of a pixel of such a map, while it is made, told and written."""


class Mapped(Pictured):
    sides: ClassVar[tuple[str, ...]] = ("picture", "beside")
    at_once = FEW
    heeds: ClassVar[tuple[str, ...]] = (*Pictured.heeds, *CHANGED, "data.shape")
    beside: ClassVar[str]
    """what belongs to a picture: mask or depth"""
    kind: ClassVar[type]
    """of the numbers of such a map"""
    unknown: ClassVar[float]
    """what stands where nothing is known"""
    apart: ClassVar[float] = 0.0
    """by which share the ratio of its sides may differ from the picture's, where it has another size; 0: it must not have"""
    nothing: ClassVar[str]
    """what is said of maps in which it stands everywhere"""

    def map_of(self, source: str | bytes, data: Any) -> np.ndarray:
        """(H, W) as it is learnt from."""
        raise NotImplementedError

    def unread(self, body: Any, config: Any) -> Sequence[nn.Module]:
        """The head reads maps on the way: what lies behind the last of them is in every file, and left alone."""
        return body.behind([tap.at for tap in config.maps()])

    def ready(self, config: Any, data: Data) -> Pixels:
        """The whole picture, at `data.shape` or as a square."""
        shape = data.shape or (config.size, config.size)
        return Pixels((shape[0], shape[1]), "exact", resample=BICUBIC)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        if data.mixup:
            raise SettingError(
                f"data.mixup mixes two pictures and their classes, and {self.name} has a map beside each: leave it out."
            )

    def suited(self, reader: Any, config: Any, data: Data) -> Pixels:
        """At `data.shape` where it is said."""
        pixels: Pixels = reader.at(data.shape[0], data.shape[1]) if data.shape else reader
        return pixels.steady(config.size)

    def texts(self, samples: Any) -> Iterator[str]:
        for sample in samples:
            (text,) = super().texts((sample,))
            yield f"{text}\0{os.path.basename(getattr(sample, self.beside))}"

    def encode(
        self, samples: Sequence[Picture], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        sides = {
            "picture": [row_of(sample) for sample in samples],
            "beside": [row_of(self._other(sample)) for sample in samples],
        }
        return Encoded(list(samples), sides, [], self.how(reader, config, longest, data, labels))

    def _other(self, sample: Picture) -> Picture:
        return Picture(getattr(sample, self.beside), content=sample.beside)

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        plan = super().plan(encoded, config, tokens, seed, packed)
        if ("beside", True) not in encoded.how.albums:
            encoded.how.albums["beside", True] = Album(len(encoded), encoded.how.wide.size, kind=self.kind)
        return plan

    def look_through(self, train: Encoded, valid: Encoded, config: Any, say: Callable[[str], None]) -> None:
        self._refuse_unknown(train, "training")
        self._refuse_unknown(valid, "validation")
        super().look_through(train, valid, config, say)

    def _refuse_unknown(self, encoded: Encoded, part: str) -> None:
        """Maps are opened until something is known in one of them, which it usually is in the first."""
        sources, broken = encoded.sides["beside"], None
        for number in range(len(encoded)):
            try:
                if (self.map_of(source_of(sources[number]), encoded.how) != self.unknown).any():
                    return
            except DataError as error:  # it is left out by its name where it is learnt from
                broken = error
        if broken is not None:
            raise broken
        first = source_of(sources[0])
        raise DataError(
            f"{self.nothing}, here and in all of the {len(encoded):,} {part} maps: nothing can be learnt from them.",
            first if isinstance(first, str) else None, advice=f"See what they hold with 'regard check {self.name}'.",
        )  # fmt: skip

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        x, changes = self.pictures(encoded, rows)
        learnt = rows.ndim == 2
        pixels: Pixels = encoded.how.wide if learnt else encoded.how.pixels

        def read(number: int) -> np.ndarray:
            found = self.map_of(source_of(encoded.sides["beside"][number]), encoded.how)
            return pixels.prepare_map(found, self.unknown).astype(self.kind)

        maps = self.decoded(encoded, "beside", numbers_of(rows), read, learnt, pixels.size, self.kind)
        labels = torch.from_numpy(np.stack(maps))
        return Batch(x, labels=labels, changes=changes, changed_by=encoded.how.augment)

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        yield from super().batches(encoded, config, min(tokens, FEW), data)

    def both(self, model: Asked, batch: Batch) -> Batch:
        """Pixels and what belongs to them, changed alike."""
        assert batch.labels is not None
        labels = batch.labels
        if batch.changes is not None:
            labels = apply_map(labels, batch.changes, model.pixels_or_refuse().size)
        return replace(self.looked_at(model, batch), labels=labels)

    def taken(self, model: Asked, batch: Batch) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        """The maps that the head asks the body for, and the size of the pixels."""
        height, width = batch.x.shape[-2:]
        return model.body(batch, taps=model.head.taps).taps, (height, width)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        batch = self.looked_at(model, batch)
        return model.head(*self.taken(model, batch))

    def painted(
        self, model: Asked, pictures: Iterable[tuple[np.ndarray, Size]]
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Each picture and what is said of it, at the size beside it. No more than a few are held."""
        pixels = model.pixels_or_refuse()
        for some in chunked(pictures, min(FEW, together(pixels))):
            made = np.stack([pixels.prepare(picture) for picture, _ in some])
            x = torch.from_numpy(made).permute(0, 3, 1, 2).contiguous().to(model.device)
            with torch.inference_mode():
                found = self.logits(model, Batch(x)).float()
            found = found if found.ndim == 4 else found[:, None]
            for one, (picture, size) in zip(found, some, strict=True):
                if size != picture.shape[:2]:
                    _check_room(size)
                yield picture, self.enlarged(one, size)

    def enlarged(self, said: Tensor, size: Size) -> np.ndarray:
        """What is said of a picture (C, h, w) as a map of this size (H, W)."""
        wide = F.interpolate(said[None], size, mode="bilinear", align_corners=False)
        return wide[0, 0].cpu().numpy()

    def compared(
        self, model: Asked, encoded: Encoded, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of the first samples: the picture, what is said of it, and what is right, at the size of the latter."""
        right: deque[np.ndarray] = deque()

        def asked() -> Iterator[tuple[np.ndarray, Size]]:
            for number in range(count):
                picture, size = sized_of(source_of(encoded.sides["picture"][number]))
                right.append(self.map_of(source_of(encoded.sides["beside"][number]), encoded.how))
                high, wide = right[-1].shape
                if (high, wide) != size and not abs(high * size[1] / (wide * size[0]) - 1) < self.apart:
                    raise DataError(
                        f"is {high} x {wide}, and its picture {size[0]} x {size[1]}.",
                        getattr(encoded.samples[number], self.beside) if encoded.samples else None,
                    )
                yield picture, (high, wide)

        for picture, said in self.painted(model, asked()):
            yield picture, said, right.popleft()


def _check_room(size: Size) -> None:
    """A file that is decoded at an eighth of its size has a map of 64 times as many numbers."""
    if BYTES * size[0] * size[1] > free_memory():
        raise DataError(
            f"a map of {size[0]:,} x {size[1]:,} pixels does not fit into the memory that is free.",
            advice="Make the picture smaller.",
        )
