"""segment, asked of bodies that read points: a cloud in, the class of each of its points out.

A large scene is learnt from in columns about points that chance chooses (`data.block`), and answered in columns that overlap:
every point has the mean of what all columns said of it, and those that were thinned out (`data.voxel`) that of their cell.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.images.masks import Classes
from regard.data.points.cloud import Cloud
from regard.data.points.labeled import CloudFile, iterate_labelled_clouds
from regard.data.points.labels import classes_beside, classes_inside, find_cloud_classes, numbered, seen_cloud_classes
from regard.data.settings import Data
from regard.data.synthetic.point_clouds import cloud_recipe_of
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.errors import DataError
from regard.nn.blocks.losses import cross_entropy
from regard.nn.points.body import point_head
from regard.processors.point_blocks import Votes, parts
from regard.processors.points import Points
from regard.tasks.base import Encoded, Scored, Sums, Terms
from regard.tasks.file_task import numbers_of, place_of
from regard.tasks.metrics.segmentation_depth import Overlap, example_of, said_of, shares_of
from regard.tasks.point_task import Clouded, file_of, packed, packs
from regard.tasks.protocol import Asked
from regard.tasks.segment import HIGHEST, called_by_numbers, pairing_of, written_as
from regard.types import IGNORE, Answer, Batch, States

SHOWN = 3
"""Validation clouds that are drawn."""


class Partition(Clouded):
    name = "segment"
    about = "point clouds whose points have classes; answers with the class of each point"
    columns = ("cloud",)
    metric = "miou"
    labelled = True
    paints = True
    as_listed = True  # so that labels that are written have the numbers of those that were learnt from
    at_once = 1  # answers are as large as clouds
    sides = ("cloud",)
    many, framed = 4096, "floor"

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[CloudFile | Empty]:
        return iterate_labelled_clouds(data, columns)

    def labels(self, sample: CloudFile) -> Iterable[str]:
        """Those that a file beside the clouds names, or the cloud itself; else the numbers that stand in it."""
        known = beside(sample.source)
        if known is not None:
            return known.names
        cloud = sample.read()
        inside = classes_inside(cloud)
        return inside.names if inside else [str(value) for value in np.unique(_numbers(cloud, sample.source))]

    def told(self, data: Sequence[str]) -> str:
        return repr(find_cloud_classes(data))

    def head_labels(self, labels: Sequence[str], data: Data) -> tuple[str, ...]:
        numbers = all(label.lstrip("-").isdigit() for label in labels)  # as they occur, while names have an order
        return seen_cloud_classes(map(int, labels)).names if numbers else tuple(labels)

    def pairing(self, samples: Sequence[CloudFile], data: Data, train: Encoded) -> str:
        """What stands in the clouds for each class, where that is not its place among them: "7,8,11"."""
        return pairing_of(beside(samples[0].source) if samples else None, train.how.labels)

    def bodied(self, config: Any) -> Any:
        return replace(config, decodes=True)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return point_head(config, len(labels)) if labels else None

    def encode(
        self, samples: Sequence[CloudFile], reader: Points, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        if len(labels) < 2:
            raise DataError("there are fewer than two classes in the clouds: nothing can be told apart.")
        rows = [self.row(sample) for sample in samples]
        return Encoded(list(samples), {"cloud": rows}, [], self.how(reader, config, longest, data, labels))

    def look_through(self, train: Encoded, valid: Encoded, config: Any, say: Callable[[str], None]) -> None:
        for encoded, part in ((train, "training"), (valid, "validation")):
            self._refuse_unknown(encoded, part)
        super().look_through(train, valid, config, say)

    def _refuse_unknown(self, encoded: Encoded, part: str) -> None:
        """Clouds are opened until the class of a point is known in one of them, which it usually is in the first."""
        broken = None
        for number in range(len(encoded)):
            try:
                if (self.right(encoded, number, self.opened(encoded, number)) != IGNORE).any():
                    return
            except DataError as error:  # it is left out by its name where it is learnt from
                broken = error
        if broken is not None:
            raise broken
        raise DataError(
            f"no point has a class, here and in all of the {len(encoded):,} {part} clouds: nothing can be learnt from them.",
            file_of(encoded.sides["cloud"][0]).source or None, advice=f"See what they hold with 'regard check {self.name}'.",
        )  # fmt: skip

    # -- batches

    def right(self, encoded: Encoded, number: int, cloud: Cloud) -> np.ndarray:
        """(N,) the numbers of the classes of a cloud's points in the order of the labels, `IGNORE` where none is known."""
        return right_of(cloud, file_of(encoded.sides["cloud"][number]).source, encoded.how.labels)

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        found, labels = [], []
        for number, (cloud, rows_of, chosen) in zip(numbers_of(rows), self.gathered(encoded, rows), strict=True):
            found.append(rows_of)
            labels.append(self.right(encoded, int(number), cloud)[chosen])
        x, offsets = packed(found)
        return Batch(x, labels=torch.from_numpy(np.concatenate(labels)), offsets=offsets)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        """(B, N, classes), or (1, N, classes) of clouds that are packed."""
        self.headed(model)
        said = self.read(model, model.body(batch))
        return said if batch.offsets is not None else said.view(*batch.x.shape[:2], -1)

    def read(self, model: Asked, states: States) -> Tensor:
        return self.headed(model)(states.sequence)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return cross_entropy(self.logits(model, batch).flatten(0, 1), batch.labels, terms.smoothing)

    # -- answers

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each cloud the share of each class that is seen; `extra["classes"]` are those of all its points (N,), in the order
        of the file, `extra["sure"]` their probabilities."""
        points = model.points_or_refuse()
        return [self._said(model, self.asked(item, points), item) for item in inputs]

    def votes(self, model: Asked, cloud: Cloud) -> tuple[np.ndarray, np.ndarray]:
        """(N,) the class of every point of a cloud, and its probability: the mean of all pieces that it is in."""
        found = parts(cloud, model.points_or_refuse())
        votes = Votes(len(found.kept), len(model.identity.labels))
        for some in packs(map(len, found.rows)):
            x, offsets = packed(found.rows[some])
            with torch.inference_mode():
                said = self.logits(model, Batch(x, offsets=offsets).to(model.device))[0]
            chances = said.float().softmax(-1).cpu().numpy()
            for chosen, own in zip(found.chosen[some], np.split(chances, offsets.starts[1:-1].numpy()), strict=True):
                votes.add(chosen, own)
        return votes.said(found.cell), votes.chances(found.cell).max(1)

    def _said(self, model: Asked, cloud: Cloud, item: Any = None) -> Answer:
        labels = model.identity.labels
        said, sure = self.votes(model, cloud)
        found = shares_of(said, labels)
        known: dict[str, Any] = {"labels": labels, "numbers": written_as(labels, model.identity.pair)}
        known["up"] = model.points_or_refuse().up
        source = item if isinstance(item, str) else ""
        known["file"] = Path(source).name
        if cloud.labels is not None and (right := truth_of(cloud, source, labels)) is not None:
            known["right"] = right
        return Answer(found, tuple(found.values()), (), {"classes": said, "sure": sure, "cloud": cloud, **known})

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Shares of 100: how far classes overlap with what is right, in the mean, and points whose class was said."""
        labels = model.identity.labels
        count = len(encoded) if most is None else min(most, len(encoded))
        overlap = Overlap(len(labels), IGNORE)
        answers: list[Answer] = []
        for number in range(count):
            cloud = self.opened(encoded, number)
            answer = self._said(model, cloud)
            right = self.right(encoded, number, cloud)
            overlap.add(answer.extra["classes"], right)
            answers.append(replace(answer, extra={**answer.extra, "right": right} if number < SHOWN else {}))
        return overlap.told(labels, count, most is None, "point"), answers

    def draw(self, folder: Path, samples: Sequence[CloudFile], answers: Sequence[Answer]) -> list[str]:
        from regard.draw.point_cloud import draw_clouds

        shown = [
            _drawn(answer.extra, _short(sample.source))
            for sample, answer in zip(samples, answers, strict=False)
            if answer.extra
        ]
        return [draw_clouds(shown, folder / "clouds.png").name] if shown else []

    def leave(self, name: str, answer: Answer, folder: Path) -> dict[str, str]:
        """The cloud with a label and a colour for each point, and a page on which it turns."""
        from regard.data.points.ply import write_ply
        from regard.draw.class_colors import class_colours
        from regard.draw.point_cloud import cloud_page

        labels, numbers, said = (answer.extra[key] for key in ("labels", "numbers", "classes"))
        colours = np.array(class_colours(len(labels)), dtype=np.uint8)
        kept = folder / f"{name}.labelled.ply"
        plain = numbers.tolist() == list(range(len(labels)))
        write_ply(kept, answer.extra["cloud"], numbers[said], colours[said], labels if plain else ())
        facts, overlap = {}, Overlap(len(labels), IGNORE)
        if "right" in answer.extra:
            overlap.add(said, answer.extra["right"])
            facts = {
                "point accuracy": f"{100 * overlap.accuracy():.1f} %",
                "mean overlap": f"{100 * overlap.mean():.1f} %",
            }
        each = list(overlap.table(labels).values()) if facts else []
        page = cloud_page(
            _drawn(answer.extra, name), folder / f"{name}.html", answer.extra["file"] or name, NOTE, facts, each
        )
        return {"cloud": str(kept), "page": str(page)}

    def said(self, given: Any, answer: Answer) -> str:
        return said_of(given, answer)

    def example(self, sample: CloudFile, answer: Answer) -> dict[str, str]:
        return {"cloud": place_of(sample), "answer": example_of(answer)}


NOTE = "What each point of the cloud was taken for. Point at one to see how sure that is."


def _drawn(found: Mapping[str, Any], name: str) -> Any:
    from regard.draw.point_cloud import Classed

    cloud: Cloud = found["cloud"]
    return Classed(
        cloud.places, found["classes"], tuple(found["labels"]), found["sure"], found.get("right"), cloud.colours, name,
        found["up"], tuple(map(float, cloud.origin)),
    )  # fmt: skip


def _short(source: str) -> str:
    return source if "#" in source else Path(source).stem


def beside(source: str) -> Classes | None:
    """The classes that a file beside a cloud names, or that it is made of. The highest numbers are void."""
    if not source:
        return None
    return _beside(source if cloud_recipe_of(source) else os.path.dirname(os.path.abspath(os.path.expanduser(source))))


@functools.lru_cache(maxsize=4096)
def _beside(folder: str) -> Classes | None:
    """Looked for once in a folder, not for every cloud."""
    found = classes_beside(folder)
    return None if found is None else replace(found, void=tuple({*found.void, *HIGHEST} - set(found.values)))


def _numbers(cloud: Cloud, source: str) -> np.ndarray:
    if cloud.labels is None:
        raise DataError(
            "its points have no classes.", source or None,
            advice="A PLY has them in a property 'label', a table of points in a column: --columns label=NAME.",
        )  # fmt: skip
    return cloud.labels


def right_of(cloud: Cloud, source: str, labels: Sequence[str]) -> np.ndarray:
    """(N,) the classes of a cloud's points as numbers of these labels, `IGNORE` where none is known."""
    values = _numbers(cloud, source)
    known = beside(source) or classes_inside(cloud) or _called(labels)
    places = numbered(values, known, source)
    number = {label: place for place, label in enumerate(labels)}
    table = np.array([number.get(name, STRANGE) for name in known.names] + [IGNORE], dtype=np.int64)
    right = table[places]  # the last is what nobody knows
    if (right == STRANGE).any():
        name = known.names[int(places[(right == STRANGE).argmax()])]
        raise DataError(
            f"has points of the class '{name}', which the model does not know.", source or None,
            advice=f"It knows: {', '.join(labels)}. Name classes as in the training data, or call void what is not asked.",
        )  # fmt: skip
    return right


def _called(labels: Sequence[str]) -> Classes:
    """Of clouds that no file speaks of: classes are called by their numbers, or stand in the order of their names."""
    if all(label.isdigit() for label in labels):
        return called_by_numbers(labels)
    return Classes(tuple(labels), tuple(range(len(labels))), tuple(HIGHEST))


STRANGE = -2


def truth_of(cloud: Cloud, source: str, labels: Sequence[str]) -> np.ndarray | None:
    """The same where it is only good to know: None where the labels are others."""
    try:
        return right_of(cloud, source, labels)
    except DataError:
        return None
