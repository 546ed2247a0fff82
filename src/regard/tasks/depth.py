"""depth: a picture in, how far each of its pixels is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard.data.images.labeled import Picture, iterate_depths
from regard.data.settings import Data
from regard.data.text.tables import Empty
from regard.decode.settings import Decode
from regard.nn.vision.dense import depth_head, settled
from regard.nn.vision.depth_loss import inverse, metric_loss, relative_loss
from regard.processors.image import read_depth
from regard.tasks.base import Encoded, Scored, Sums, Terms
from regard.tasks.dense_prediction import Mapped
from regard.tasks.file_task import source_of
from regard.tasks.image_task import Seeing, sized_of
from regard.tasks.metrics.segmentation_depth import Distances, as_depth
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch

METRIC = "metres"
"""Stands among the labels of a model that tells distances; others tell nearness, up to a scale and a shift."""
TYPICAL = 2.0
"""Metres that an untaught head says."""
SHOWN = 6
"""Validation pictures that are drawn."""


@dataclass(frozen=True)
class Gauged(Seeing):
    """How pictures and depths become batches."""

    unit: float = 0.0


class Depth(Mapped):
    name = "depth"
    about = "pictures with maps of depth (two folders, or a table); answers with the distance of each pixel"
    columns = ("image", "depth")
    metric = "abs_rel"
    lowest = True
    paints = True
    model = "dpt-small"
    beside, kind, unknown = "depth", np.float32, 0.0
    apart = 0.02
    nothing = "every depth is 0, which means that it is not known"
    heeds = (*Mapped.heeds, "data.metric", "data.unit")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Picture | Empty]:
        return iterate_depths(data, columns)

    def head_labels(self, labels: Sequence[str], data: Data) -> tuple[str, ...]:
        return (METRIC,) if data.metric else ()

    def unsayable(self, labels: Sequence[str]) -> str:
        if METRIC not in labels:
            return ""
        return (
            "the published layout tells how near pixels are, and this model metres. One that is trained with "
            "--set data.metric=false can be written."
        )

    def bodied(self, config: Any) -> Any:
        return settled(config, classes=False)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return depth_head(config, TYPICAL if METRIC in labels else None)

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Gauged:
        seeing = super().how(reader, config, longest, data)
        return Gauged(seeing.pixels, seeing.augment, unit=0.0 if data is None else data.unit)

    def map_of(self, source: str | bytes, data: Any) -> np.ndarray:
        return read_depth(source, data.unit or None)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        batch = self.both(model, batch)
        assert batch.labels is not None
        known, said = batch.labels > 0, model.head(*self.taken(model, batch))
        if METRIC in model.identity.labels:
            return metric_loss(said, batch.labels, known)
        nearness, known = inverse(batch.labels, known)
        return relative_loss(said, nearness, known)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each picture the nearest, the middle and the farthest; `extra["depth"]` is the map itself, at the size of the
        file; `extra["picture"]` is smaller where not all of that is decoded."""
        return [self._said(model, picture, said) for picture, said in self.painted(model, map(sized_of, inputs))]

    def _said(self, model: Asked, picture: np.ndarray, said: np.ndarray) -> Answer:
        unit = "metres" if METRIC in model.identity.labels else "nearness"
        low, middle, high = (round(float(value), 4) for value in np.percentile(said, (1, 50, 99)))
        value = {"unit": unit, "low": low, "median": middle, "high": high}
        return Answer(value, (), (), {"depth": said.astype(np.float32), "picture": picture, "unit": unit})

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Errors, and shares of pixels within a factor; what tells nearness only is fitted to each picture first, and nothing
        said farther than the farthest depth of all these pictures, as MiDaS is scored."""
        distances = Distances()
        answers: list[Answer] = []
        count = len(encoded) if most is None else min(most, len(encoded))
        metric = METRIC in model.identity.labels
        farthest = 0.0 if metric else self._farthest(encoded, count)
        for picture, said, right in self.compared(model, encoded, count):
            metres = said if metric else as_depth(said, right, farthest)
            distances.add(metres, right)
            answer = self._said(model, picture, said)
            more = {**answer.extra, "metres": metres, "right": right} if len(answers) < SHOWN else {}
            answers.append(replace(answer, extra=more))
        scores: dict[str, float | str] = {name: round(value, 4) for name, value in distances.scores().items()}
        return {**scores, "samples": count}, answers

    def _farthest(self, encoded: Encoded, count: int) -> float:
        maps = (self.map_of(source_of(encoded.sides["beside"][number]), encoded.how) for number in range(count))
        return max((float(depth.max()) for depth in maps), default=0.0)

    def draw(self, folder: Path, samples: Sequence[Picture], answers: Sequence[Answer]) -> list[str]:
        from regard.draw.overlay import Measured, draw_depths

        rows = [
            Measured(answer.extra["picture"], answer.extra["metres"], answer.extra["right"], Path(sample.source).name)
            for sample, answer in zip(samples, answers, strict=False)
            if "right" in answer.extra
        ]
        return [draw_depths(rows, folder / "depths.png").name] if rows else []

    def leave(self, name: str, answer: Answer, folder: Path) -> dict[str, str]:
        """The map in colours with a scale, and as numbers: an array, and of metres millimetres as a PNG of 16 bits too."""
        from PIL import Image

        from regard.draw.figure import write_whole
        from regard.draw.overlay import Measured, draw_depths

        depth, relative = answer.extra["depth"], answer.extra["unit"] != METRIC
        sample = Measured(answer.extra["picture"], depth, name=name)
        found = {"picture": str(draw_depths([sample], folder / f"{name}.seen.png", relative=relative))}
        array = write_whole(folder / f"{name}.npy", lambda to: _save(to, depth))
        found["array"] = str(array)
        if not relative:
            image = Image.fromarray(np.clip(np.rint(1000 * depth), 0, 65535).astype(np.uint16))
            found["millimetres"] = str(
                write_whole(folder / f"{name}.depth.png", lambda to: image.save(to, format="PNG"))
            )
        return found

    def said(self, given: Any, answer: Answer) -> str:
        value = answer.value
        return f"{given}\t{value['low']} to {value['high']} {value['unit']}, median {value['median']}"

    def example(self, sample: Picture, answer: Answer) -> dict[str, str]:
        value = answer.value
        return {"picture": sample.source, "answer": f"{value['low']} to {value['high']} {value['unit']}"}


def _save(path: Path, values: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, values)
