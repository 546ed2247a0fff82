"""What classify and choose share: one new matrix on the state of the last token, as GPT-1 was fine-tuned.

A sample is read in one or more ways, each a row of tokens by itself: `[start] text [extract]`, `[start] A [delimiter] B
[extract]`, a pair in both orders, or a context with each of its choices. What is learnt of a way is the body's state at
`[extract]`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.plan import Epochs, Packs, Plan, Shape
from regard.data.settings import Data
from regard.errors import DataError, RegardError
from regard.inputs.rows import pack, pad
from regard.inputs.text import END_OF_TEXT, Text
from regard.nn.linear import Linear
from regard.tasks.asked import Asked
from regard.tasks.task import Encoded, Side, Task, Terms, lengths_of
from regard.waists import IGNORE, Batch

MARKS = START, DELIMITER, EXTRACT = ("_start_", "_delimiter_", "_classify_")
"""The special tokens of GPT-1's fine-tuning, as its authors call them."""

NO_TEXT = "\0"
"""Stands before a class among the texts of a sample: data is known again by it, and no tokenizer is made of it."""

BUDGET = 16_384
"""Tokens that are looked at together when samples are answered."""


@dataclass(frozen=True)
class Marks:
    """The ids of the special tokens; nothing for one that a published tokenizer does not have."""

    start: tuple[int, ...]
    delimiter: tuple[int, ...]
    extract: tuple[int, ...]

    @classmethod
    def of(cls, text: Text) -> Marks:
        ids = (text.id_of(mark) for mark in MARKS)
        return cls(*(() if number is None else (number,) for number in ids))

    def second(self, text: str) -> str:
        """The second of two texts; where no delimiter stands between them, a blank does."""
        return text if self.delimiter else f" {text}"

    def way(self, parts: Sequence[Sequence[int]], longest: int) -> tuple[list[int], bool]:
        """One row of tokens, and whether something of the texts had to be left out. The marks never are."""
        between = self.delimiter if len(parts) > 1 else ()
        room = max(longest - len(self.start) - len(self.extract) - len(between), 1)
        kept = shortened(parts, room)
        inside = [*kept[0], *between, *kept[1]] if len(kept) > 1 else kept[0]
        return [*self.start, *inside, *self.extract], sum(map(len, parts)) > room


def shortened(parts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """The same within a room: of two texts the longer loses first, and each in its middle, for beginnings and ends say
    most."""
    if sum(map(len, parts)) <= room:
        return [list(part) for part in parts]
    sizes = [room]
    if len(parts) > 1:
        small = min(min(map(len, parts)), room // 2)
        sizes = [small, room - small] if len(parts[0]) <= len(parts[1]) else [room - small, small]
    return [
        [*part[: size - size // 2], *part[len(part) - size // 2 :]] for part, size in zip(parts, sizes, strict=True)
    ]


@dataclass(frozen=True)
class Read:
    """What the body made of a batch: S samples in up to K ways each."""

    rows: Batch
    """the ways as rows (S·K, L), or one packed row"""
    sequence: Tensor
    """(S·K, L, D) all states"""
    lengths: Int[Tensor, "S K"]
    """of the ways; 0 where a sample has fewer"""
    states: Float[Tensor, "S K D"]
    """at the last token of each way"""


def read(body: Any, batch: Batch) -> Read:
    """`batch.x` is (S, K, L) with lengths (S, K) as its mask, (B, L) of single ways, or one packed row of S·K ways."""
    if batch.offsets is not None:
        assert batch.labels is not None
        starts, rows = batch.offsets.starts, replace(batch, labels=None)
        sequence = body(rows).sequence
        lengths = starts.diff().view(len(batch.labels), -1)
        last = sequence[0, (starts[1:] - 1).clamp(min=0)]
        return Read(rows, sequence, lengths, last.view(*lengths.shape, -1))
    x = batch.x if batch.x.ndim == 3 else batch.x[:, None]
    S, K, L = x.shape
    if batch.mask is None:
        lengths = x.new_full((S, K), L)
    else:
        lengths = (batch.mask.sum(-1) if batch.mask.dtype == torch.bool else batch.mask).view(S, K)
    rows = Batch(x.flatten(0, 1), lengths.flatten())
    sequence = body(rows).sequence
    last = (lengths.flatten() - 1).clamp(min=0)
    at = last[:, None, None].expand(-1, 1, sequence.shape[-1])
    return Read(rows, sequence, lengths, sequence.gather(1, at).view(S, K, -1))


def spoken(body: Any, found: Read, asked: Tensor) -> Tensor:
    """The language-model loss of the samples that are `asked` (S,), summed over them: of each the mean over its ways, of a
    way the mean over its own tokens but the first. So a long text weighs as much as a short one."""
    x, K = found.rows.x, found.lengths.shape[1]
    ways = (found.lengths > 0).sum(1, keepdim=True).clamp(min=1)
    wide = torch.float64 if found.states.dtype == torch.float64 else torch.float32
    shares = asked[:, None].to(wide) / (ways * (found.lengths - 1).clamp(min=1))  # of each token of a way
    shares = torch.where(found.lengths > 1, shares, 0.0).flatten()
    at = torch.arange(x.shape[1], device=x.device)
    if found.rows.offsets is None:
        weights = torch.where(at < found.lengths.view(-1, 1) - 1, shares[:, None], 0.0)
    else:
        way = found.rows.offsets.document(at[None])[0].clamp(0, K * len(asked) - 1)
        inside = at + 1 < found.rows.offsets.starts[way + 1]  # the last token of a way says nothing of the next way
        weights = torch.where(inside, shares[way], 0.0)[None]
    logits = body.read(found.sequence).to(wide)
    losses = F.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten(), reduction="none")
    return (losses * weights.flatten()).sum()


def new_head(name: str, config: Any, outputs: int) -> nn.Module:
    """One matrix without a bias, drawn from N(0, 0.02); in training behind dropout, as the authors have it."""
    matrix = Linear(config.width, outputs, bias=False)
    nn.init.normal_(matrix.weight, std=0.02)
    return nn.Sequential(OrderedDict([("dropout", nn.Dropout(config.dropout)), (name, matrix)]))


def bias_names(head: nn.Module) -> list[str]:
    """Where the bias of a head would be. Ours have none, and some that were published do."""
    return [f"{name}.bias" for name, part in head.named_modules() if isinstance(part, nn.Linear)]


def take_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make room for the bias that these tensors of a head have."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


class Headed(Task):
    """A task with a head. Its rows of ids: all ways of a sample one after another, their lengths, and the right class."""

    sides = ("text", "ways", "label")
    metric = "accuracy"
    model = "gpt2-mini"
    generates, cuts = False, True

    def classes(self, sample: Any) -> str:
        """The right answer, as a text by which data is known again."""
        raise NotImplementedError

    def words(self, sample: Any) -> Iterable[str]:
        raise NotImplementedError

    def texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from self.words(sample)
            yield f"{NO_TEXT}{self.classes(sample)}"

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        texts = (text for text in texts if not text.startswith(NO_TEXT))
        return Text.characters(texts) if data.kind == "characters" else Text.language(texts, data.vocabulary)

    def dressed(self, text: Text) -> Text:
        """Others find the marks around a text by themselves: it would be classified otherwise without them."""
        if any(text.id_of(mark) is None for mark in MARKS):
            return text
        return text.between(f"{START} $A {EXTRACT}", f"{START} $A {DELIMITER} $B {EXTRACT}", MARKS)

    def grow(self, text: Text) -> Text:
        return text.add(MARKS)

    def fit(self, config: Any, text: Text) -> Any:
        end = text.id_of(END_OF_TEXT)
        return replace(config, vocabulary=text.size, **({} if end is None else {"end": end}))

    def encoded(self, samples: Sequence[Any], ways: Sequence[list[tuple[list[int], bool]]], right: Any) -> Encoded:
        """`ways` of each sample with whether they were cut; `right` is the number of its class."""
        sides: dict[str, Side] = {
            "text": [np.concatenate([np.array(way, dtype=np.int32) for way, _ in item]) for item in ways],
            "ways": [np.array([len(way) for way, _ in item], dtype=np.int32) for item in ways],
            "label": [np.array([number], dtype=np.int32) for number in right],
        }
        cut = [sample for sample, item in zip(samples, ways, strict=True) if any(short for _, short in item)]
        return Encoded(list(samples), sides, cut)

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, 1): the ways of a sample are padded to the longest of them."""
        text, ways = encoded.sides["text"], encoded.sides["ways"]
        most = lengths_of(text) if most_ways(encoded) == 1 else np.array([len(way) * int(way.max()) for way in ways])
        return most[:, None]

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        lengths, most = self.lengths(encoded), most_ways(encoded)
        if not packed:
            return Plan(lengths, max(tokens, int(lengths.max())), seed)
        sums = lengths_of(encoded.sides["text"])
        made = Packs(sums, max(tokens, int(sums.max())), seed)
        documents = made.shape.documents + (most - 1) * made.most
        made.shape = replace(made.shape, documents=-(-documents // most) * most)
        return made

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: Shape | None = None) -> Batch:
        rows = list(rows)
        text, ways = encoded.sides["text"], encoded.sides["ways"]
        parts = [np.split(text[i], np.cumsum(ways[i])[:-1].astype(np.int64)) for i in rows]
        labels = torch.tensor([int(encoded.sides["label"][i][0]) for i in rows])
        most = most_ways(encoded) if shape is not None else max(map(len, parts))
        none = np.zeros(0, dtype=np.int32)
        flat = [way for item in parts for way in (*item, *[none] * (most - len(item)))]
        if shape is not None:
            x, offsets = pack(flat, shape.rooms[0], shape.longest[0], shape.documents, config.end)
            labels = F.pad(labels, (0, shape.documents // most - len(labels)), value=IGNORE)
            return Batch(x, labels=labels, offsets=offsets)
        x, lengths = pad(flat, config.end)
        lengths = torch.full((len(flat),), x.shape[1]) if lengths is None else lengths
        return Batch(x.view(len(rows), most, -1), lengths.view(len(rows), most), labels=labels)

    def judge(self, model: Asked, found: Read) -> Tensor:
        """The logits of each sample, (S, classes)."""
        raise NotImplementedError

    def compare(self, logits: Tensor, found: Read, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        return self.judge(model, read(model.body, batch))

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """The sum over samples of cross-entropy + auxiliary x language-model loss, and how many samples there are."""
        assert batch.labels is not None
        found = read(model.body, batch)
        total, count = self.compare(self.judge(model, found), found, batch.labels, terms.smoothing)
        if terms.auxiliary:
            total = total + terms.auxiliary * spoken(model.body, found, batch.labels != IGNORE).to(total.dtype)
        return total, count

    def weighed(self, model: Asked, encoded: Encoded) -> list[np.ndarray]:
        """The probability of each class, for each sample."""
        found: list[np.ndarray] = [np.zeros(0)] * len(encoded)
        if not len(encoded):
            return found
        lengths = self.lengths(encoded)
        plan = Plan(lengths, max(BUDGET, int(lengths.max())), seed=0)
        with torch.inference_mode():
            for rows in plan.sequential():
                batch = self.collate(encoded, rows, model.config).to(model.device)
                chances = self.logits(model, batch).double().softmax(-1).cpu().numpy()
                for row, values in zip(rows.tolist(), chances, strict=True):
                    found[row] = values[: len(encoded.sides["ways"][row])] if self.by_ways else values
        return found

    by_ways = False
    """whether the classes are the ways themselves"""

    def headed(self, model: Asked) -> nn.Module:
        head: nn.Module | None = model.head
        if head is None:
            raise RegardError(
                f"{model.identity.source or 'this model'} has not learnt to {self.name}: it knows no classes. Train it: "
                f"regard train {self.name} --data FILE --model {model.identity.source or 'FOLDER'} --out RUN"
            )
        return head


def most_ways(encoded: Encoded) -> int:
    return int(lengths_of(encoded.sides["ways"]).max(initial=1))


def first_of(encoded: Encoded, most: int | None) -> Encoded:
    """The first so many samples."""
    sides: dict[str, Side] = {name: list(side)[:most] for name, side in encoded.sides.items()}
    return Encoded(encoded.samples[:most], sides, encoded.too_long)


def numbered(samples: Sequence[Any], names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """The number of each sample's class; those that are unknown are named."""
    known = {label: number for number, label in enumerate(labels)}
    strange: dict[str, list[Any]] = {}
    for sample, name in zip(samples, names, strict=True):
        if name not in known:
            strange.setdefault(name, []).append(sample)
    if strange:
        first = next(iter(strange.values()))[0]
        shown = ", ".join(f"'{name}' ({len(found):,} times)" for name, found in list(strange.items())[:5])
        more = f" and {len(strange) - 5} others" if len(strange) > 5 else ""
        advice = f"It knows: {', '.join(list(labels)[:20])}{', …' if len(labels) > 20 else ''}. "
        advice += "Add samples of it to what is trained on, or leave it out here."
        raise DataError(
            f"the model is not trained on the label {shown}{more}, which stands here first.",
            first.path,
            first.line,
            advice,
        )
    return [known[name] for name in names]
