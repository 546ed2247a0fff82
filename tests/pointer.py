"""A captioner that says what it was told to, and looks where it was told to: for what is made of captions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.demos.scenes import Scene, drawn, words
from regard.explain import explain
from regard.nn.attention.attention import Attention
from regard.nn.recurrent.score_attention import Align, Product
from regard.processors.image import Pixels
from regard.processors.tokenizer.tokenizer import Text
from regard.tasks.image_classification import Recognise
from regard.types import Answer, Batch, States


class Fixed(Align):
    """One head whose weights are given: (T, K)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(Product(4, 4, False))
        self.table, self.at = table.float(), 0

    def weights(self, query: Tensor, context: Any) -> Tensor:
        return self.table[self.at : self.at + query.shape[1]].expand(len(query), -1, -1)


class Crossing(Attention):
    """Heads whose weights are given: (H, T, K)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(2 * len(table), len(table), context=4)
        self.table = table

    def forward(self, x: Tensor, context: Tensor, *, seen: Any = None) -> Tensor:  # type: ignore[override]
        if seen is not None:
            seen(self.table[:, : x.shape[1]].expand(len(x), -1, -1, -1))
        return x


class Pointing(nn.Module):
    """After each token the next of `says` is likely, the more so the lighter the middle of the picture."""

    def __init__(self, says: Sequence[int], tables: Sequence[Tensor], grid: tuple[int, int], vocabulary: int) -> None:
        super().__init__()
        self.says, self.shape, self.vocabulary = list(says), grid, vocabulary
        self.first_place = (tables[0].shape[-1] - grid[0] * grid[1]) if tables else 0
        self.most = 64
        self.aside = Attention(4, 2)  # over the words themselves
        self.looks = nn.ModuleList(Fixed(t) if t.ndim == 2 else Crossing(t) for t in tables)

    def forward(self, batch: Batch) -> States:
        assert batch.target is not None
        rows, length = batch.target.shape
        assert length <= self.most
        self.aside(torch.zeros(rows, length, 4))
        for part in self.looks:
            if isinstance(part, Fixed):  # step by step, as a recurrent body does
                ready = part.ready(torch.zeros(rows, part.table.shape[-1], 4))
                for part.at in range(length):
                    part(torch.zeros(rows, 1, 4), ready)
            elif isinstance(part, Crossing):
                part(torch.zeros(rows, length, part.width), torch.zeros(rows, 1, 4))
        high, wide = batch.x.shape[-2:]
        sure = 3 + batch.x[:, :, high // 2, wide // 2].mean(1)
        logits = torch.zeros(rows, length, self.vocabulary)
        for at in range(length):
            logits[:, at, self.says[min(at, len(self.says) - 1)]] = sure
        return States(logits)

    def read(self, states: Tensor) -> Tensor:
        return states


class Looking(Pointing):
    def grid(self, batch: Batch) -> tuple[int, int]:
        return self.shape


class Captioner(nn.Module):
    """What an explanation asks of a model."""

    def __init__(
        self, caption: str, tables: Sequence[np.ndarray], grid: tuple[int, int], side: int, text: Text
    ) -> None:
        super().__init__()
        ids = text.encode([caption])[0]
        kind = Looking if len(tables) else Pointing
        self.body = kind([*ids, 2], [torch.from_numpy(table) for table in tables], grid, text.size)
        self.reader = SimpleNamespace(pixels=Pixels((side, side)), text=text)
        self.config = SimpleNamespace(start=1, end=2, length=64, size=side, channels=3)
        self.task, self.said = Spoken(), ids
        self.identity, self.head, self.device = None, None, torch.device("cpu")

    def text_or_refuse(self) -> Text:
        return self.reader.text

    def pixels_or_refuse(self) -> Pixels:
        return self.reader.pixels

    def answer(self, inputs: Any, **settings: Any) -> Answer:
        return Answer("", extra={"ids": self.said})

    def explain(self, source: Any, target: str | None = None, at: Any = None) -> Any:
        return explain(self, source, target, at)


class Spoken(Recognise):
    """Pictures are made ready as those of every task are."""

    name = "caption"


def spotted(scene: Scene, side: int, grid: tuple[int, int], heads: int = 1, seed: int = 0) -> np.ndarray:
    """(heads, words + 1, places): each word looks mostly at the objects that it names, each head a little elsewhere."""
    random = np.random.RandomState(seed)
    _, boxes = drawn(scene, side)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    found = []
    for word in [*words(scene.things), None]:
        map_ = np.full((heads, *grid), 0.02)
        for number in word.things if word else ():
            left, top, right, bottom = boxes[number]
            y, x = (top + bottom) / 2 / side * grid[0] - 0.5, (left + right) / 2 / side * grid[1] - 0.5
            shift = random.standard_normal((heads, 2, 1, 1)) * 0.4 * (heads > 1)
            map_ += np.exp(-((rows - y - shift[:, 0]) ** 2 + (columns - x - shift[:, 1]) ** 2) / 1.2)
        found.append(map_ / map_.sum((1, 2), keepdims=True))
    return np.stack(found, 1).reshape(heads, len(found), -1)
