"""A captioner that is small enough for tests: the mean colours of a few parts of a picture, read out by one GRU."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.captions import Captioned
from regard.data.settings import Data
from regard.model import Identity, Model, assemble
from regard.nn.recurrent.recurrent_state import Rolling
from regard.processors.tokenizer.tokenizer import Text
from regard.runs.catalog import catalog
from regard.systems import SYSTEMS
from regard.systems.captioners.common import beside
from regard.systems.common.system import Preset, System, unpublished
from regard.tasks import find_task
from regard.types import Batch, States


@dataclass(frozen=True)
class Config:
    vocabulary: int = 300
    length: int = 16
    width: int = 16
    size: int = 16
    channels: int = 3
    pad: int = 0
    start: int = 1
    end: int = 2
    penalty: float = 0.0


class Speaker(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.see = nn.Linear(4 * config.channels, config.width)
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.cell = nn.GRUCell(2 * config.width, config.width)
        self.out = nn.Linear(config.width, config.vocabulary)

    def look(self, batch: Batch) -> Tensor:
        x = batch.x.to(self.see.weight.dtype)
        return beside(self.see(F.adaptive_avg_pool2d(x, 2).flatten(1)).tanh(), batch)

    def move(self, token: Tensor, seen: Tensor, h: Tensor) -> Tensor:
        return self.cell(torch.cat([self.tokens(token), seen], -1), h)

    def forward(self, batch: Batch) -> States:
        assert batch.target is not None
        seen = self.look(batch)
        h, rows = seen, []
        for token in batch.target.unbind(1):
            h = self.move(token, seen, h)
            rows.append(h)
        side = {"penalty": self.config.penalty * seen.square().sum()} if self.config.penalty else {}
        return States(torch.stack(rows, 1), side=side)

    def read(self, states: Tensor) -> Tensor:
        return self.out(states)

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        seen = self.look(batch)
        state = Rolling.fresh({"h": seen.clone()}, {"seen": seen[:, None]})
        assert batch.target is not None
        for token in batch.target[:, :-1].unbind(1):
            self.step(token, state)
        return state

    def step(self, tokens: Tensor, state: Rolling) -> Tensor:
        state.put(h=self.move(tokens, state.context["seen"][:, 0], state.own["h"]))
        return self.out(state.own["h"])


RECIPE: dict[str, dict[str, Any]] = {
    "train": {"steps": 12, "every": 4, "log": 2, "images": 8, "rate": 5e-3, "warmup": 2, "precision": "float32"},
    "data": {"vocabulary": 300, "score": 4, "share": 0.2},
}
SYSTEM = System(
    "speaker", "a stand-in", Config, {"speaker-tiny": Preset(Config(), 8_028, RECIPE)}, Speaker, ("caption",), "pictures",
    unsayable=unpublished,
)  # fmt: skip


@functools.cache
def index_with_speaker() -> dict[str, Any]:
    made = catalog()
    made["settings"] += [{"setting": f"model.{field.name}", "system": "speaker"} for field in fields(Config)]
    return made


def offer(patch: pytest.MonkeyPatch) -> None:
    """Put the stand-in into the table of systems and into the index of names."""
    patch.setitem(SYSTEMS, "speaker", SYSTEM)
    made = index_with_speaker()  # before the patch, because captioners read the index when they are imported
    patch.setattr("regard.index.index", lambda: made)


# -- what it is tested on

TASK: Any = find_task("caption")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


def album_in(folder: Path) -> Path:
    """Thirty pictures of one colour with two or three captions."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(30):
        colour, name = COLOURS[number % len(COLOURS)], f"n {number}.png"
        Image.new("RGB", (20 + number, 18), colour).save(folder / "images" / name)
        captions = [f"a {colour} thing", f"this is {colour}", f"everything here is {colour} , really"][: 2 + number % 2]
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def samples(album: Path) -> list[Captioned]:
    return list(TASK.stream([str(album)]))


def model(album: Path, **changes: Any) -> Model:
    text = Text.train(TASK.phrases(samples(album)), 300)
    config = replace(Config(), **changes)
    reader = TASK.reading(text, config, Data())
    torch.manual_seed(3)
    return assemble(Identity(SYSTEM, TASK.fit(config, reader), TASK), reader).double().eval()


def encoded(album: Path, made: Model, longest: int = 99, data: Data | None = None) -> Any:
    return TASK.encode(samples(album), made.reader, made.config, longest, data or Data())
