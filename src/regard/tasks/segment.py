"""segment: a picture in, the class of each of its pixels out."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.labeled import Picture, iterate_masked
from regard.data.images.masks import VOID, Classes, classes_in, find_classes, seen_classes
from regard.data.settings import Data
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.errors import DataError
from regard.nn.vision.dense import segment_head, settled
from regard.processors.image import read_mask
from regard.tasks.base import Encoded, Scored, Sums, Terms
from regard.tasks.dense_prediction import Mapped
from regard.tasks.image_task import Seeing, sized_of
from regard.tasks.metrics.segmentation_depth import Overlap, example_of, said_of, shares_of
from regard.tasks.protocol import Asked
from regard.types import IGNORE, Answer, Batch

BESIDE = 0.4
"""Weight of the auxiliary head's loss, as DPT was published with."""


@dataclass(frozen=True)
class Told(Seeing):
    """How pictures and masks become batches, for these classes."""

    labels: tuple[str, ...] = ()


class Segment(Mapped):
    name = "segment"
    about = "pictures with masks of classes (two folders, or a table); answers with the class of each pixel"
    columns = ("image", "mask")
    metric = "miou"
    model = "dpt-small"
    labelled = True
    paints = True
    as_listed = True  # so that masks that are written have the numbers of those that were learnt from
    beside, kind, unknown = "mask", np.uint8, float(VOID)
    nothing = "every pixel is void"

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Picture | Empty]:
        return iterate_masked(data, columns)

    def labels(self, sample: Picture) -> Iterable[str]:
        """Those that a file beside the masks names, or the numbers in the mask."""
        known = classes_beside(sample.mask)
        if known is not None:
            return known.names
        return [str(value) for value in np.unique(read_mask(sample.beside or sample.mask))]

    def told(self, data: Sequence[str]) -> str:
        """Classes are named by a file that may lie above the folder of the masks."""
        return repr(find_classes(data))

    def head_labels(self, labels: Sequence[str], data: Data) -> tuple[str, ...]:
        numbers = all(label.isdigit() for label in labels)  # as they occur, while names are in the order of their file
        return seen_classes(map(int, labels)).names if numbers else tuple(labels)

    def pairing(self, samples: Sequence[Picture], data: Data, train: Encoded) -> str:
        """What stands in the masks for each class, where that is not its place among them: "7,8,11"."""
        return pairing_of(classes_beside(samples[0].mask) if samples else None, train.how.labels)

    def bodied(self, config: Any) -> Any:
        return settled(config, classes=True)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return segment_head(config, len(labels)) if labels else None

    def encode(
        self, samples: Sequence[Picture], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            raise DataError("there are fewer than two classes in the masks: nothing can be told apart.")
        for known, mask in {classes_beside(sample.mask): sample.mask for sample in samples if sample.mask}.items():
            # their pixels would count as void, and nobody would notice
            if known is not None and (strange := [name for name in known.names if name not in labels]):
                raise DataError(
                    f"by the file of classes beside it '{strange[0]}' is a class, which the model does not know.", mask,
                    advice="Name classes as in the training data, or call void what is not to be learnt.",
                )  # fmt: skip
        return super().encode(samples, reader, config, longest, data, labels)

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Told:
        seeing = super().how(reader, config, longest, data)
        return Told(seeing.pixels, seeing.augment, labels=tuple(labels))

    def map_of(self, source: str | bytes, data: Any) -> np.ndarray:
        """(H, W) the numbers of the classes in the order of the labels, and `VOID`."""
        path = source if isinstance(source, str) else ""
        known = classes_beside(path) or called_by_numbers(data.labels)
        number = {label: place for place, label in enumerate(data.labels)}
        table = np.full(VOID + 1, VOID, dtype=np.uint8)
        table[: len(known.names)] = [number.get(name, VOID) for name in known.names]
        return table[known.numbered(read_mask(source, known.colours), path)]

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """Cross-entropy of the pixels whose class is known, and of the auxiliary head beside it while learning."""
        batch = self.both(model, batch)
        assert batch.labels is not None
        labels = batch.labels.long()
        labels = labels.masked_fill(labels == VOID, IGNORE)
        taps, shape = self.taken(model, batch)
        said, beside = model.head.both(taps, shape) if model.training else (model.head(taps, shape), None)
        total = F.cross_entropy(said.float(), labels, ignore_index=IGNORE, reduction="sum")
        if beside is not None:
            total = total + BESIDE * F.cross_entropy(beside.float(), labels, ignore_index=IGNORE, reduction="sum")
        return total, (labels != IGNORE).sum()

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each picture the share of each class that is seen; `extra["mask"]` is the map itself, as bytes, at the size of the
        file; `extra["picture"]` is smaller where not all of that is decoded."""
        return [self._said(model, picture, said) for picture, said in self.painted(model, map(sized_of, inputs))]

    def enlarged(self, said: Tensor, size: tuple[int, int]) -> np.ndarray:
        """The class of each pixel, some rows at a time: numbers for all classes of a photograph would fill the memory."""
        (classes, high, _), (rows, columns) = said.shape, size
        places = ((torch.arange(rows, device=said.device) + 0.5) * (high / rows) - 0.5).clamp(0, high - 1)
        mask = np.empty(size, np.uint8)
        for start in range(0, rows, step := max(ROOM // (classes * columns), 1)):
            at = places[start : start + step]
            top = at.long()
            part = torch.lerp(said[:, top], said[:, (top + 1).clamp(max=high - 1)], (at - top)[:, None])
            wide = F.interpolate(part[None], (len(at), columns), mode="bilinear", align_corners=False)
            mask[start : start + step] = wide[0].argmax(0).cpu().numpy()
        return mask

    def _said(self, model: Asked, picture: np.ndarray, mask: np.ndarray) -> Answer:
        labels = model.identity.labels
        found = shares_of(mask, labels)
        known = {"labels": labels, "numbers": written_as(labels, model.identity.pair)}
        return Answer(found, tuple(found.values()), (), {"mask": mask, "picture": picture, **known})

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: how far classes overlap with what is right, in the mean, and pixels whose class was said."""
        labels = model.identity.labels
        count = len(encoded) if most is None else min(most, len(encoded))
        overlap = Overlap(len(labels), VOID)
        answers: list[Answer] = []
        for picture, said, right in self.compared(model, encoded, count):
            answer = self._said(model, picture, said)
            overlap.add(answer.extra["mask"], right)
            answers.append(replace(answer, extra={**answer.extra, "right": right} if len(answers) < SHOWN else {}))
        return overlap.told(labels, count, most is None), answers

    def draw(self, folder: Path, samples: Sequence[Picture], answers: Sequence[Answer]) -> list[str]:
        from regard.draw.overlay import Segmented, draw_classes

        shown = [
            (sample, answer.extra) for sample, answer in zip(samples, answers, strict=False) if "right" in answer.extra
        ]
        if not shown:
            return []
        rows = [Segmented(one["picture"], one["mask"], one["right"], Path(of.source).name) for of, one in shown]
        return [draw_classes(rows, shown[0][1]["labels"], folder / "masks.png", void=VOID).name]

    def leave(self, name: str, answer: Answer, folder: Path) -> dict[str, str]:
        """The classes over the picture, and the mask as a PNG of their numbers, painted in the same colours."""
        from PIL import Image

        from regard.draw.class_colors import class_colours
        from regard.draw.figure import write_whole
        from regard.draw.overlay import Segmented, draw_classes

        mask, labels = answer.extra["mask"], answer.extra["labels"]
        seen = draw_classes(
            [Segmented(answer.extra["picture"], mask, name=name)], labels, folder / f"{name}.classes.png"
        )
        numbers = answer.extra["numbers"]
        image = Image.fromarray(numbers[mask])
        if numbers.dtype == np.uint8:  # a palette gives numbers their colours
            colours = np.zeros((int(numbers.max()) + 1, 3), np.uint8)
            colours[numbers] = class_colours(len(labels))
            image.putpalette(colours.ravel().tolist())
        kept = write_whole(folder / f"{name}.mask.png", lambda to: image.save(to, format="PNG"))
        return {"picture": str(seen), "mask": str(kept)}

    def said(self, given: Any, answer: Answer) -> str:
        return said_of(given, answer)

    def example(self, sample: Picture, answer: Answer) -> dict[str, str]:
        return {"picture": sample.source, "answer": example_of(answer)}


HIGHEST = frozenset((255, 65535))
"""What stands for no class in masks of 8 and 16 bits."""
ROOM = 2**25
"""Numbers of classes of pixels that are held at once."""
SHOWN = 6
"""Validation pictures that are drawn."""


def classes_beside(mask: str) -> Classes | None:
    return _classes_in(os.path.dirname(os.path.abspath(mask))) if mask else None


@functools.lru_cache(maxsize=1024)
def _classes_in(folder: str) -> Classes | None:
    """Looked for once, not for every mask. The highest numbers are void too, whether the file says so or not."""
    found = classes_in(folder)
    return None if found is None else replace(found, void=tuple({*found.void, *HIGHEST} - set(found.values)))


def pairing_of(known: Classes | None, labels: Sequence[str]) -> str:
    """The numbers by which a file names these classes; nothing where those are their places, or there is no file."""
    value = {} if known is None else dict(zip(known.names, known.values, strict=True))
    numbers = [value.get(label, -1) for label in labels]
    plain = numbers == list(range(len(numbers))) or min(numbers, default=-1) < 0
    return "" if plain else ",".join(map(str, numbers))


def written_as(labels: Sequence[str], told: str) -> np.ndarray:
    """What stands in a mask for each class: what a file said of those that were learnt from (`pairing`), or the number that it
    is called by where none did; else its place."""
    words = told.split(",") if told else labels
    if not all(word.isdigit() and int(word) < 2**16 for word in words):
        return np.arange(len(labels), dtype=np.uint8)
    numbers = np.array([int(word) for word in words])
    return numbers.astype(np.uint8 if numbers.max() < 256 else np.uint16)


def called_by_numbers(labels: Sequence[str]) -> Classes:
    """Of masks or clouds that no file speaks of: classes are called by their numbers."""
    values = tuple(map(int, labels))
    return Classes(tuple(labels), values, tuple(HIGHEST - set(values)))
