"""A tiny captioning system for tests: average colors of the image quadrants as input of one GRU."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.images.captions import CaptionedImage
from regard.data.settings import DataSettings
from regard.model import Model, ModelSpec, assemble
from regard.nn.kernels.losses import cross_entropy
from regard.nn.recurrent.rnn import RecurrentState
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.catalog import build_index
from regard.systems import SYSTEMS
from regard.systems.common.captions import expand_to_captions
from regard.systems.common.recipes import TaskRecipes
from regard.systems.common.system import Preset, System, TargetTokens
from regard.tasks import find_task
from regard.tasks.base import EncodingContext
from regard.types import Batch, Body, BodyOutput, StateSizes


@dataclass(frozen=True)
class Config(TargetTokens):
    vocab_size: int = 300
    max_length: int = 16
    width: int = 16
    image_size: int = 16
    in_channels: int = 3
    penalty: float = 0.0

    modality = "image"


class Speaker(Body):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.see = nn.Linear(4 * config.in_channels, config.width)
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.cell = nn.GRUCell(2 * config.width, config.width)
        self.out = nn.Linear(config.width, config.vocab_size)

    def look(self, batch: Batch) -> Tensor:
        x = batch.inputs.to(self.see.weight.dtype)
        return expand_to_captions(self.see(F.adaptive_avg_pool2d(x, 2).flatten(1)).tanh(), batch)

    def move(self, token: Tensor, seen: Tensor, h: Tensor) -> Tensor:
        return self.cell(torch.cat([self.tokens(token), seen], -1), h)

    def forward(self, batch: Batch) -> BodyOutput:
        assert batch.decoder is not None
        seen = self.look(batch)
        h, rows = seen, []
        for token in batch.decoder.inputs.unbind(1):
            h = self.move(token, seen, h)
            rows.append(h)
        side = {"penalty": self.config.penalty * seen.square().sum()} if self.config.penalty else {}
        return BodyOutput(torch.stack(rows, 1), aux_losses=side)

    def to_logits(self, states: Tensor) -> Tensor:
        return self.out(states)

    def cross_entropy(self, x: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return cross_entropy(self.out(x), labels, smoothing)

    def start(self, batch: Batch, room: int | None = None) -> RecurrentState:
        seen = self.look(batch)
        state = RecurrentState.from_tensors({"h": seen.clone()}, {"seen": seen[:, None]})
        assert batch.decoder is not None
        for token in batch.decoder.inputs[:, :-1].unbind(1):
            self.step(token, state)
        return state

    def state_sizes(self, batch: Batch) -> StateSizes:
        return StateSizes(self.config.vocab_size, per_beam=self.config.width)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        state.update(h=self.move(tokens, state.context["seen"][:, 0], state.state["h"]))
        return self.out(state.state["h"])


RECIPE: dict[str, dict[str, Any]] = {
    "train": {"steps": 12, "eval_every": 4, "log_every": 2, "batch_size": 8, "lr": 5e-3, "warmup_steps": 2,
              "precision": "float32"},
    "data": {"vocab_size": 300, "eval_samples": 4, "valid_fraction": 0.2},
}  # fmt: skip
PRESETS = {"speaker-tiny": Preset(Config(), 8_028, RECIPE)}
SYSTEM = System("speaker", "a stand-in", Config, PRESETS, Speaker, TaskRecipes(("caption",)))


@functools.cache
def index_with_speaker() -> dict[str, Any]:
    made = build_index()
    made["settings"] += [{"setting": f"model.{field.name}", "system": "speaker"} for field in fields(Config)]
    return made


def offer(patch: pytest.MonkeyPatch) -> None:
    """Register the system in the table of systems and in the index of names."""
    patch.setitem(SYSTEMS, "speaker", SYSTEM)
    made = index_with_speaker()  # before the patch, because captioning systems read the index on import
    patch.setattr("regard.index.load_index", lambda: made)


# -- data and models

TASK: Any = find_task("caption")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


def album_in(folder: Path) -> Path:
    """A folder with thirty single-color images, each with two or three captions."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(30):
        colour, name = COLOURS[number % len(COLOURS)], f"n {number}.png"
        Image.new("RGB", (20 + number, 18), colour).save(folder / "images" / name)
        captions = [f"a {colour} thing", f"this is {colour}", f"everything here is {colour} , really"][: 2 + number % 2]
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def captions(album: Any) -> Iterator[str]:
    return (caption for sample in album for caption in sample.captions)


def samples(album: Path) -> list[CaptionedImage]:
    return list(TASK.reader.samples([str(album)]))


def model(album: Path, **changes: Any) -> Model:
    text = TextTokenizer.train_sentence_bpe(captions(samples(album)), 300)
    config = replace(Config(), **changes)
    reader = TASK.modality.build_processor(text, config, DataSettings())
    torch.manual_seed(3)
    return assemble(ModelSpec(SYSTEM, TASK.modality.fit_config(config, reader), TASK), reader).double().eval()


def encoded(album: Path, made: Model, longest: int = 99, data: DataSettings | None = None) -> Any:
    return TASK.objective.encode(
        samples(album), made.config, EncodingContext(made.processor, longest, data or DataSettings())
    )
