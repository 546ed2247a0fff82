"""A captioning model with given captions and given attention weights, for tests of code that processes captions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.demos.scenes import ShapeScene, caption_words, render_scene
from regard.explain import explain
from regard.nn.attention.attention import Attention
from regard.nn.recording import recorded
from regard.nn.recurrent.score_attention import MultiplicativeScore, ScoreAttention
from regard.processors.image import ImageProcessor
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks import find_task
from regard.types import Batch, Body, BodyOutput, Prediction


class Fixed(ScoreAttention):
    """One head with given weights, (T, K)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(MultiplicativeScore(4, 4, False))
        self.table, self.at = table.float(), 0

    def weights(self, query: Tensor, context: Any) -> Tensor:
        return self.table[self.at : self.at + query.shape[1]].expand(len(query), -1, -1)


class Crossing(Attention):
    """Heads with given weights, (H, T, K)."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(2 * len(table), len(table), context_width=4)
        self.table = table

    @recorded
    def forward(self, x: Tensor, context: Tensor, *, record: Any = None) -> Tensor:  # type: ignore[override]
        if record is not None:
            record(self.table[:, : x.shape[1]].expand(len(x), -1, -1, -1))
        return x


class Pointing(Body):
    """Predicts the next token of `says` at each position, with a higher logit for a brighter center pixel."""

    def __init__(self, says: Sequence[int], tables: Sequence[Tensor], grid: tuple[int, int], vocabulary: int) -> None:
        super().__init__()
        self.says, self.shape, self.vocabulary = list(says), grid, vocabulary
        self.first_image_position = (tables[0].shape[-1] - grid[0] * grid[1]) if tables else 0
        self.most = 64
        self.aside = Attention(4, 2)  # self-attention over the words
        self.looks = nn.ModuleList(Fixed(t) if t.ndim == 2 else Crossing(t) for t in tables)

    def forward(self, batch: Batch) -> BodyOutput:
        assert batch.decoder is not None
        rows, length = batch.decoder.inputs.shape
        assert length <= self.most
        self.aside(torch.zeros(rows, length, 4))
        for part in self.looks:
            if isinstance(part, Fixed):  # step by step, as in a recurrent model
                ready = part.prepare(torch.zeros(rows, part.table.shape[-1], 4))
                for part.at in range(length):
                    part(torch.zeros(rows, 1, 4), ready)
            elif isinstance(part, Crossing):
                part(torch.zeros(rows, length, part.width), torch.zeros(rows, 1, 4))
        high, wide = batch.inputs.shape[-2:]
        sure = 3 + batch.inputs[:, :, high // 2, wide // 2].mean(1)
        logits = torch.zeros(rows, length, self.vocabulary)
        for at in range(length):
            logits[:, at, self.says[min(at, len(self.says) - 1)]] = sure
        return BodyOutput(logits)

    def to_logits(self, states: Tensor) -> Tensor:
        return states

    def grid(self, batch: Batch) -> tuple[int, int] | None:
        return None


class Looking(Pointing):
    def grid(self, batch: Batch) -> tuple[int, int]:
        return self.shape


class Captioner(nn.Module):
    """The part of the model interface that explanations use."""

    def __init__(
        self, caption: str, tables: Sequence[np.ndarray], grid: tuple[int, int], side: int, text: TextTokenizer
    ) -> None:
        super().__init__()
        ids = text.encode([caption])[0]
        kind = Looking if len(tables) else Pointing
        self.body = kind([*ids, 2], [torch.from_numpy(table) for table in tables], grid, text.size)
        self.processor = SimpleNamespace(pixels=ImageProcessor((side, side)), text=text)
        self.config = SimpleNamespace(bos_id=1, eos_id=2, max_length=64, image_size=side, in_channels=3)
        self.config.traits = SimpleNamespace(palette=False)
        self.task, self.said = find_task("caption"), ids
        self.objective = self.task.objective
        self.spec, self.head, self.device = None, None, torch.device("cpu")

    def require_tokenizer(self) -> TextTokenizer:
        return self.processor.text

    def require_image_processor(self) -> ImageProcessor:
        return self.processor.pixels

    def predict(self, inputs: Any, **settings: Any) -> Prediction:
        return Prediction("", extra={"token_ids": self.said})

    def explain(self, source: Any, target: str | None = None, at: Any = None) -> Any:
        return explain(self, source, target, at)


def spotted(scene: ShapeScene, side: int, grid: tuple[int, int], heads: int = 1, seed: int = 0) -> np.ndarray:
    """Attention weights, (heads, words + 1, positions): each word attends to its objects, with a random shift per head."""
    random = np.random.RandomState(seed)
    _, boxes = render_scene(scene, side)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    found = []
    for word in [*caption_words(scene.objects), None]:
        map_ = np.full((heads, *grid), 0.02)
        for number in word.objects if word else ():
            left, top, right, bottom = boxes[number]
            y, x = (top + bottom) / 2 / side * grid[0] - 0.5, (left + right) / 2 / side * grid[1] - 0.5
            shift = random.standard_normal((heads, 2, 1, 1)) * 0.4 * (heads > 1)
            map_ += np.exp(-((rows - y - shift[:, 0]) ** 2 + (columns - x - shift[:, 1]) ** 2) / 1.2)
        found.append(map_ / map_.sum((1, 2), keepdims=True))
    return np.stack(found, 1).reshape(heads, len(found), -1)
