"""`probe`: what each layer of a body that reads pictures knows of classes, told by a linear classifier on its states."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.images.cache import READERS, free_memory
from regard.data.images.labeled import Picture
from regard.data.text.files import chunked
from regard.draw.figure import check_ending
from regard.draw.probe_accuracy import draw_layers
from regard.errors import RegardError, SettingError
from regard.folders import read_identity
from regard.model import Model, load
from regard.processors.image import Pixels
from regard.runs.devices import pick_device
from regard.runs.preprocess import Say
from regard.runs.scoring import rough
from regard.runs.spec import listed
from regard.runs.splits import TASK, Part, Parts, divide
from regard.runs.terminal import Pace
from regard.tasks.file_task import LOOKED_AT
from regard.tasks.image_task import Pictured, opened
from regard.tasks.linear_probe import Layer, features, layers_of
from regard.tasks.linear_probe import probe as classifiers
from regard.tasks.text_heads import numbered
from regard.types import Batch

MOST = 60_000
"""Pictures that classifiers learn from, unless another number is asked for."""
ROOM = 2**27
"""Numbers of states that are held at once."""
MEMORY = 0.5
"""The share of free memory that may be taken for what is kept of all pictures."""

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Known:
    """Of one layer: shares of 100."""

    layer: str
    accuracy: float
    """on the test part"""
    valid: float
    """on the part that the penalty was chosen on"""
    penalty: float


@dataclass(frozen=True)
class Probing:
    layers: list[Known]
    classes: tuple[str, ...]
    counts: dict[str, int]
    """pictures of the three parts"""
    picture: Path | None = None

    @property
    def best(self) -> Known:
        """Of equal ones the first."""
        return max(self.layers, key=lambda known: known.accuracy)

    def as_dict(self) -> dict[str, Any]:
        found = {"layers": [asdict(known) for known in self.layers], "best": asdict(self.best)}
        return {**found, "classes": list(self.classes), **self.counts, "picture": self.picture and str(self.picture)}


def probe(
    folder: str | os.PathLike[str], data: Paths = (), *, valid: Paths = (), test: Paths = (),
    columns: Mapping[str, str] | None = None, most: int = MOST, out: str | os.PathLike[str] | None = None,
    device: str = "auto", dtype: str | None = None, say: Say = lambda line: None,
) -> Probing:  # fmt: skip
    """How well a linear classifier tells classes of pictures apart by the states of each layer of a run or a published folder.

    It learns from at `most` so many pictures of `data`, or of what the run remembers; its accuracy is told on `test`, or on
    what is held out, and drawn into `out`, a .png or .svg file."""
    if most < 2:
        raise SettingError(f"a classifier cannot learn from {most} pictures: say --most 2 or more.")
    path = None if out is None else Path(out)
    if path is not None:
        check_ending(path, (".png", ".svg"))
    _, own = read_identity(Path(folder))
    model = load(Path(folder), device=pick_device(device), dtype=dtype)
    if model.precision:
        say(model.precision)
    if model.task.reads != "pictures":
        raise RegardError(
            f"{folder}: was made to {model.task.name}, and reads {model.task.reads}; a probe is for models that read pictures."
        )
    model.pixels_or_refuse()
    files = [listed(TASK, paths) for paths in (data, valid, test)]
    parts = _parts(str(folder), files, columns or {}, own, most, say)
    say(f"  {', '.join(f'{count:,} to {what}' for count, what in zip(parts.counts().values(), WHAT, strict=True))}")
    if few := rough(TASK, len(parts.test)):
        say(f"  {few}. Give more by --test")
    layers = layers_of(model.config)
    _check_room(layers, parts)
    looks = _Looks(model, layers, parts)
    train, valid_, test_ = (
        features(model.body, looks.batches(part), layers) for part in (parts.train, parts.valid, parts.test)
    )
    found = classifiers(train, valid_, test_, model.device, told=Pace("layers"))
    known = [
        Known(layer.name, round(one.accuracy, 2), round(one.valid, 2), one.strength)
        for layer, one in zip(layers, found, strict=True)
    ]
    made = Probing(known, parts.classes, parts.counts(), path)
    if path is not None:
        _draw(made, Path(folder).name, path)
    return made


WHAT = ("learn from", "choose the penalty by", "tell the accuracy of")


def _parts(
    folder: str,
    files: Sequence[tuple[str, ...]],
    columns: Mapping[str, str],
    own: Mapping[str, Any],
    most: int,
    say: Say,
) -> Parts:
    data, valid, test = files
    if data:
        return divide(data, valid, test, columns, own, most, say)
    if "sources" not in own:
        raise SettingError(f"{folder}: remembers no data, as it is no run of regard. Name pictures with --data.")
    kept = own["sources"]
    return divide(tuple(kept["data"]), valid, test or tuple(kept["valid"]), columns or kept["columns"], own, most, say)


def _check_room(layers: Sequence[Layer], parts: Parts) -> None:
    """Refuse before an hour is lost what would not fit into memory."""
    each, count = 4 * sum(layer.width for layer in layers), sum(parts.counts().values())
    room = int(MEMORY * free_memory())
    if each * count > room:
        fewer = max(room // each - len(parts.valid) - len(parts.test), 2)
        raise RegardError(
            f"what {len(layers)} layers make of {count:,} pictures takes {each * count / 2**30:,.1f} GiB, and "
            f"{room / 2**30:,.1f} are free for it. Learn from fewer: --most {fewer}."
        )


class _Looks:
    """Pictures as batches that a body reads, decoded ahead by threads."""

    def __init__(self, model: Model, layers: Sequence[Layer], parts: Parts) -> None:
        self.model, self.classes, self.pace = model, parts.classes, Pace(TASK.unit)
        self.pixels = model.pixels_or_refuse()
        self.total, self.done = sum(parts.counts().values()), 0
        height, width = self.pixels.size
        each = sum(height * width * layer.width // layer.stride**2 for layer in layers)
        self.rows = max(1, min(LOOKED_AT, ROOM // max(each, 1)))
        if isinstance(self.pixels, Pixels) and self.pixels.resize != "exact" and not self.pixels.crop:
            self.rows = 1  # each has a size of its own

    def batches(self, part: Part) -> Iterator[Batch]:
        with ThreadPoolExecutor(READERS) as pool:
            before: tuple[list[Picture], Iterator[NDArray[np.uint8]]] | None = None
            for some in chunked(part, self.rows):
                now = some, pool.map(self._read, some)
                if before is not None:
                    yield self._batch(*before)
                before = now
            if before is not None:
                yield self._batch(*before)

    def _read(self, sample: Picture) -> NDArray[np.uint8]:
        return self.pixels.prepare(opened(sample, self.pixels.least))

    def _batch(self, samples: list[Picture], read: Iterator[NDArray[np.uint8]]) -> Batch:
        x = torch.from_numpy(np.stack(list(read))).permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor(numbered(samples, [sample.label for sample in samples], self.classes))
        self.pace(self.done, self.total)
        self.done += len(samples)
        task = self.model.task
        assert isinstance(task, Pictured)
        return task.looked_at(self.model, Batch(x, labels=labels).to(self.model.device))


def _draw(made: Probing, name: str, path: Path) -> None:
    counts = made.counts
    about = (
        f"a linear classifier of {len(made.classes)} classes on the states of each, learnt from {counts['train']:,} "
    )
    about += f"pictures; its accuracy on {counts['test']:,} others"
    values = [known.accuracy for known in made.layers]
    draw_layers({"accuracy": values}, path, f"What the layers of {name} know", about, [x.layer for x in made.layers])
