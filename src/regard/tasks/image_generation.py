"""draw: pictures are learnt pixel by pixel; answers are whole pictures, or what belongs below the upper half of one.

A picture is a row of colours of a palette, line by line. The body reads a sign that begins it and all colours but the last,
and at each place says the colour that follows, so that nothing is shifted a second time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import Epochs, Even, Shape
from regard.data.images.cache import READERS
from regard.data.images.labeled import Picture, iterate_plain
from regard.data.settings import Data
from regard.data.store.token_store import Rows
from regard.data.text.tables import Empty
from regard.decode.search import Found, search
from regard.decode.settings import Decode
from regard.draw.contact_sheet import Line, Shown, contact_sheet, grid, hidden
from regard.draw.overlay import save_picture
from regard.errors import RegardError, SettingError
from regard.processors.padding import pad
from regard.processors.palette import FILE, Palette
from regard.tasks.base import SEARCH, Encoded, Scored, Sums, Terms
from regard.tasks.file_task import place_of
from regard.tasks.image_task import Pictured, check_reader, opened, picture_of
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch

TOGETHER = 64
"""Pictures whose colours are found together."""

SHOWN = 8
"""Samples that are gone on with when a model is scored."""


@dataclass(frozen=True)
class Begun:
    """What is asked for: a picture of which the first rows are given, none where it is drawn from nothing."""

    picture: np.ndarray | None = None
    """bytes (H, W, 3) at the side of the model"""
    rows: int = 0


class Painting(Pictured):
    name = "draw"
    about = "pictures; draws others like them, or goes on with the upper half of one"
    columns = ("image",)
    metric = "bits_per_pixel"
    lowest = True
    sides = ("colours",)
    model = "imagegpt-mini"
    generates = True
    paints = True
    unprompted = True
    heeds = (*Pictured.heeds, "train.smoothing", *SEARCH)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Picture | Empty]:
        return iterate_plain(data, columns)

    # -- the palette

    def reader(self, folder: Path) -> Any:
        return Palette.load(folder)

    def rows_by(self, reader: Any) -> tuple[int, str]:
        return len(reader), reader.fingerprint()

    def bodied(self, config: Any) -> Any:
        return replace(config, draws=True)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        usual = Data()
        for name in ("crop", "shift", "flip", "colour", "erase", "mixup"):
            if getattr(data, name) != getattr(usual, name):
                raise SettingError(f"data.{name} means nothing to draw: pictures are learnt as they are. Leave it out.")

    # -- pictures as rows of colours

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Any:
        return None

    def encode(
        self, samples: Sequence[Picture], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        check_reader(reader, config)
        kind = np.uint16 if len(reader) <= 2**16 else np.int32
        values = np.zeros(config.length * len(samples), kind)

        def made(sample: Picture) -> np.ndarray:
            return reader.prepare(opened(sample, reader.least))

        with ThreadPoolExecutor(READERS) as pool:
            for first in range(0, len(samples), TOGETHER):
                some = np.stack(list(pool.map(made, samples[first : first + TOGETHER])))
                ids = reader.normalise(torch.from_numpy(some).permute(0, 3, 1, 2))
                values[config.length * first :][: ids.numel()] = ids.flatten().numpy()
        starts = config.length * np.arange(len(samples) + 1, dtype=np.int64)
        return Encoded(list(samples), {"colours": Rows(values, starts)}, [])

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        return Even(len(encoded), tokens, seed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: Shape | None = None) -> Batch:
        """`rows` are numbers of samples, each alone or beside a number of chance."""
        numbers = np.asarray(rows).reshape(len(rows), -1)[:, 0]
        side = encoded.sides["colours"]
        colours = np.stack([np.asarray(side[int(i)], dtype=np.int64) for i in numbers])
        return shifted(torch.from_numpy(colours), config)

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        for rows in Even(len(encoded), max(tokens // config.length, 1), 0).sequential():
            yield self.collate(encoded, rows, config)

    def looked_at(self, model: Asked, batch: Batch) -> Batch:
        """Bytes as they are read in learning: the sign that begins a picture first, and all colours but the last."""
        if batch.x.dtype != torch.uint8:
            return batch
        return replace(batch, x=shifted(super().looked_at(model, batch).x, model.config).x)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return model.body.cross_entropy(model.body(batch).sequence, batch.labels, terms.smoothing)

    # -- answers

    def alone(self, inputs: Any) -> bool:
        return inputs is None or isinstance(inputs, Mapping) or super().alone(inputs)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """An input is a picture (an array, Pillow's, or the path of a file), of which the upper half is given;
        {"picture": …, "rows": 20} says how much of it; None asks for a picture from nothing.

        `extra["pictures"]` are arrays (size, size, 3), the likeliest first."""
        _check_decode(decode)
        palette, config = palette_of(model), model.config
        begun = [_begun(item, palette) for item in inputs]
        if not begun:
            return []
        prompts = [[config.start, *_given(item, palette)] for item in begun]
        x, mask = pad(prompts, config.start)
        limits = torch.tensor([config.length + 1 - len(prompt) for prompt in prompts])
        # what is read as the beginning is never said, so that a picture ends where it is full and nowhere else
        found = search(
            model.body, Batch(x, mask).to(model.device), config.start, limits, decode,
            requests=first + np.arange(len(begun)),
        )  # fmt: skip
        return [
            self._say(palette, config, item, prompt[1:], options)
            for item, prompt, options in zip(begun, prompts, found, strict=True)
        ]

    def _say(
        self, palette: Palette, config: Any, begun: Begun, given: Sequence[int], options: Sequence[Found]
    ) -> Answer:
        size = config.size
        pictures = [palette.picture([*given, *option.tokens]) for option in options]
        said = max(config.length - len(given), 1)
        bits = [-option.score / math.log(2) / said for option in options]
        value = f"a picture of {size} x {size} pixels"
        if begun.picture is not None:
            value = f"the lower {size - begun.rows} of {size} rows of a picture"
        extra = {"pictures": pictures, "given": begun.picture, "rows": begun.rows, "bits_per_pixel": bits}
        return Answer(value, tuple(option.score for option in options), (), extra)

    def quick(self, decode: Decode) -> Decode:
        return replace(decode, beam=1, best=1)

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Bits that the colour of a pixel takes, and some pictures: halves that are gone on with and, when all is scored, as
        many from nothing (`extra["whole"]`)."""
        palette, colours = palette_of(model), encoded.sides["colours"]
        # from all over the data: those of a folder stand class by class
        count = min(SHOWN, len(encoded))
        chosen = [number * len(encoded) // count for number in range(count)]
        shown = [palette.picture(colours[number]) for number in chosen]
        answers = self.answer(model, shown, decode)
        for answer, number in zip(answers, chosen, strict=True):
            answer.extra["of"] = place_of(encoded.samples[number]) if encoded.samples else ""
        if most is None:
            whole = self.answer(model, [None] * len(shown), replace(decode, best=1), first=len(shown))
            for answer, drawn in zip(answers, whole, strict=True):
                answer.extra["whole"] = drawn.extra["pictures"][0]
        return {"bits_per_pixel": round(sums.mean / math.log(2), 4)}, answers

    def line(self, scores: Mapping[str, Any]) -> str:
        return f"bits a pixel {scores['bits_per_pixel']:6.3f}"

    def draw(self, folder: Path, samples: Sequence[Picture], answers: Sequence[Answer]) -> list[str]:
        made = []
        halves = [answer for answer in answers if answer.extra["given"] is not None]
        if halves:
            made.append(draw_completions(halves, folder / "completions.png").name)
        whole = [answer.extra["whole"] for answer in answers if "whole" in answer.extra]
        if whole:
            title = "Drawn from nothing"
            made.append(contact_sheet(grid([*map(Shown, whole)]), folder / "drawn.png", title).name)
        return made

    def leave(self, name: str, answer: Answer, folder: Path) -> dict[str, str]:
        """Each picture pixel by pixel, and of a completion the sheet with what was given."""
        many = len(answer.extra["pictures"])
        names = [f"{name}.drawn.png" if many == 1 else f"{name}.drawn-{n}.png" for n in range(1, many + 1)]
        found = {
            f"picture {n}" if many > 1 else "picture": str(save_picture(picture, folder / file))
            for n, (picture, file) in enumerate(zip(answer.extra["pictures"], names, strict=True), 1)
        }
        if answer.extra["given"] is not None:
            found["sheet"] = str(draw_completions([answer], folder / f"{name}.completed.png"))
        return found

    def said(self, given: Any, answer: Answer) -> str:
        bits = ", ".join(f"{value:.3f}" for value in answer.extra["bits_per_pixel"])
        return f"{given or 'from nothing'}\t{answer.value}, {bits} bits a pixel"

    def example(self, sample: Picture, answer: Answer) -> dict[str, str]:
        bits = answer.extra["bits_per_pixel"][0]
        where = answer.extra.get("of") or place_of(sample)
        return {"picture": where, "drawn": str(answer.value), "bits a pixel": f"{bits:.3f}"}


def draw_completions(answers: Sequence[Answer], path: Path, title: str = "The lower part is drawn") -> Path:
    """A row for each answer: what was given, what was drawn, and the picture as it was."""
    most = max(len(answer.extra["pictures"]) for answer in answers)
    lines = []
    for answer in answers:
        truth, rows, drawn = answer.extra["given"], answer.extra["rows"], answer.extra["pictures"]
        blank = [np.full_like(truth, 255)] * (most - len(drawn))
        lines.append(Line([Shown(picture) for picture in (hidden(truth, rows), *drawn, *blank, truth)]))
    heads = ["given", *(["drawn"] if most == 1 else [f"drawn {i + 1}" for i in range(most)]), "as it was"]
    return contact_sheet(lines, path, title, heads=heads)


def shifted(colours: Tensor, config: Any) -> Batch:
    """(B, L) colours -> what is read, the sign that begins a picture first, and what is to be said at each place."""
    x = torch.cat([torch.full_like(colours[:, :1], config.start), colours[:, :-1]], 1)
    return Batch(x, labels=colours)


def palette_of(model: Any) -> Palette:
    """What a model's pictures are painted with."""
    if not isinstance(model.reader, Palette):
        raise RegardError(
            f"{model.identity.source or 'this model'} has no palette, so its colours are only numbers; logits(ids) and "
            f"states(ids) work without one. Put a {FILE} with clusters into its folder to ask it."
        )
    check_reader(model.reader, model.config)
    return model.reader


def _begun(item: Any, palette: Palette) -> Begun:
    if item is None or (isinstance(item, str) and not item):
        return Begun()
    size = palette.side
    rows = size // 2
    if isinstance(item, Mapping):
        if strange := set(item) - {"picture", "rows"}:
            raise RegardError(f"'{strange.pop()}' is not known of a picture: there is picture, rows.")
        rows, item = item.get("rows", rows), item.get("picture")
        if item is None or not isinstance(rows, int) or not 0 <= rows <= size:
            raise RegardError(f"of a picture 0 to {size} rows are given: {{'picture': …, 'rows': {size // 2}}}.")
    return Begun(palette.prepare(picture_of(item)), rows)


def _given(begun: Begun, palette: Palette) -> list[int]:
    if begun.picture is None:
        return []
    return palette.ids(begun.picture)[: begun.rows * palette.side].tolist()


def _check_decode(decode: Decode) -> None:
    usual = Decode()
    for name in ("repetition", "length", "until"):
        if getattr(decode, name) != getattr(usual, name):
            raise SettingError(f"decode.{name} means nothing to draw: a picture has all its pixels. Leave it out.")
