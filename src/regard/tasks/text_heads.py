"""What classify and choose share: one new matrix on one state for a whole text, or for two.

A sample is read in one or more ways, each a row of tokens by itself: a text, two texts, a pair in both orders, or a context
with each of its choices. What is learnt of a way is the body's summary of it: of an encoder that of the first token, of a
decoder the state at its last token, as GPT-1 was fine-tuned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.samplers import Epochs, Packs, Plan, Shape
from regard.data.settings import Data
from regard.errors import DataError, RegardError, SettingError
from regard.nn.blocks.heads import ReadOut
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, Text
from regard.tasks.act import costed
from regard.tasks.base import Encoded, Side, Task, Terms, lengths_of
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import (
    DELIMITER,
    EXTRACT,
    MARKS,
    ROLES,
    START,
    Way,
    beside,
    encodes,
    filler,
    framed,
    typed,
)
from regard.types import IGNORE, Batch, States

NO_TEXT = "\0"
"""Stands before a class among the texts of a sample: data is known again by it, and no tokenizer is made of it."""

BUDGET = 16_384
"""Tokens that are looked at together when samples are answered."""


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
    """the summary of each way"""
    whole: States
    """what the body itself said"""


def read(body: Any, batch: Batch) -> Read:
    """`batch.x` is (S, K, L) with lengths (S, K) as its mask, (B, L) of single ways, or one packed row of S·K ways."""
    if batch.offsets is not None:
        assert batch.labels is not None
        starts, rows = batch.offsets.starts, replace(batch, labels=None)
        found: States = body(rows)
        lengths = starts.diff().view(len(batch.labels), -1)
        last = found.sequence[0, (starts[1:] - 1).clamp(min=0)] if found.summary is None else found.summary
        return Read(rows, found.sequence, lengths, last.view(*lengths.shape, -1), found)
    x = batch.x if batch.x.ndim == 3 else batch.x[:, None]
    S, K, L = x.shape
    if batch.mask is None:
        lengths = x.new_full((S, K), L)
    else:
        lengths = (batch.mask.sum(-1) if batch.mask.dtype == torch.bool else batch.mask).view(S, K)
    tables: dict[str, Any] = {name: _flat(getattr(batch, name), L) for name in ("types", "marked")}
    rows = Batch(x.flatten(0, 1), lengths.flatten(), most_marked=batch.most_marked, **tables)
    found = body(rows)
    if found.summary is not None:
        return Read(rows, found.sequence, lengths, found.summary.view(S, K, -1), found)
    last = (lengths.flatten() - 1).clamp(min=0)
    at = last[:, None, None].expand(-1, 1, found.sequence.shape[-1])
    return Read(rows, found.sequence, lengths, found.sequence.gather(1, at).view(S, K, -1), found)


def _flat(table: Tensor | None, length: int) -> Tensor | None:
    return None if table is None else table.reshape(-1, length)


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


def read_out(name: str, config: Any, outputs: int) -> ReadOut:
    """The head that tells `outputs` things of a summary: for decoders one matrix without a bias, as GPT-1's authors have it;
    encoders without a layer of their own for summaries have it there."""
    if not encodes(config):
        return ReadOut(name, config.width, outputs, config.dropout, bias=False)
    inner = getattr(config, "head_activation", None)
    return ReadOut(name, config.width, outputs, config.head_dropout, inner=inner)


def bias_names(head: nn.Module) -> list[str]:
    """Where the bias of a head would be that has none: some that were published do."""
    return [f"{name}.bias" for name, part in head.named_modules() if isinstance(part, nn.Linear) and part.bias is None]


def take_bias(head: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make room for the bias that these tensors of a head have."""
    for name, part in head.named_modules():
        if isinstance(part, nn.Linear) and part.bias is None and f"{name}.bias" in tensors:
            part.bias = nn.Parameter(torch.zeros_like(part.weight[:, 0]))


class Headed(Task):
    """A task with a head. Its rows of ids: all ways of a sample one after another, their lengths, and the right class."""

    sides = ("text", "ways", "second", "label")
    counts = ("ways", "second", "label")
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
        return made_text(texts, data)

    def bodied(self, config: Any) -> Any:
        """A summary needs one more layer: the body's own, or one in the head."""
        return replace(config, pooler=not hasattr(config, "head_activation")) if hasattr(config, "pooler") else config

    def dressed(self, text: Text, config: Any) -> Text:
        """Others find the marks around a text by themselves: it would be classified otherwise without them."""
        if encodes(config):
            return framed(text, config)
        if any(text.id_of(mark) is None for mark in MARKS):
            return text
        return text.between(f"{START} $A {EXTRACT}", f"{START} $A {DELIMITER} $B {EXTRACT}", MARKS)

    def grow(self, text: Text, config: Any) -> Text:
        return text if encodes(config) else text.add(MARKS)

    def fit(self, config: Any, reader: Text) -> Any:
        if encodes(config):
            return replace(config, vocabulary=reader.size, **fitting(reader))
        end = reader.id_of(END_OF_TEXT)
        return replace(config, vocabulary=reader.size, **({} if end is None else {"end": end}))

    def encoded(self, samples: Sequence[Any], ways: Sequence[Sequence[Way]], right: Any) -> Encoded:
        """`right` is the number of each sample's class, or the numbers that say its classes."""
        sides: dict[str, Side] = {
            "text": [np.concatenate([np.array(way.ids, dtype=np.int32) for way in item]) for item in ways],
            "ways": [np.array([len(way.ids) for way in item], dtype=np.int32) for item in ways],
            "second": [np.array([way.second for way in item], dtype=np.int32) for item in ways],
            "label": [np.atleast_1d(np.array(number, dtype=np.int32)) for number in right],
        }
        cut = [sample for sample, item in zip(samples, ways, strict=True) if any(way.cut for way in item)]
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
        labels = table_of([encoded.sides["label"][i] for i in rows])
        most = most_ways(encoded) if shape is not None else max(map(len, parts))
        none = np.zeros(0, dtype=np.int32)
        flat = [way for item in parts for way in (*item, *[none] * (most - len(item)))]
        seconds = [second for i in rows for second in _filled(encoded.sides["second"][i], most)]
        marks = beside(flat, seconds, [1] * len(flat), config)  # the first token is asked: it must see all
        if shape is not None:
            sizes = shape.rooms[0], shape.longest[0], shape.documents
            x, offsets = pack(flat, *sizes, filler(config))
            rest = shape.documents // most - len(labels)
            labels = torch.cat([labels, labels.new_full((rest, *labels.shape[1:]), IGNORE)])
            tables = {name: pack(table, *sizes)[0] for name, table in marks.items()}
            return Batch(x, labels=labels, offsets=offsets, most_marked=shape.documents, **typed(tables))
        x, lengths = pad(flat, filler(config))
        lengths = torch.full((len(flat),), x.shape[1]) if lengths is None else lengths
        tables = {name: pad(table, 0)[0].view(len(rows), most, -1) for name, table in marks.items()}
        x, lengths = x.view(len(rows), most, -1), lengths.view(len(rows), most)
        return Batch(x, lengths, labels=labels, most_marked=1, **typed(tables))

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
            if encodes(model.config):
                raise SettingError("train.auxiliary is for decoders: an encoder says no next word. Set it to 0.")
            asked = batch.labels.view(len(batch.labels), -1)[:, 0] != IGNORE
            total = total + terms.auxiliary * spoken(model.body, found, asked).to(total.dtype)
        return costed(model, (total, count), found.whole)

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
                chances = self.chances(model, self.logits(model, batch).double()).cpu().numpy()
                for row, values in zip(rows.tolist(), chances, strict=True):
                    found[row] = values[: len(encoded.sides["ways"][row])] if self.by_ways else values
        return found

    def chances(self, model: Asked, logits: Tensor) -> Tensor:
        """The probability of each class; they compete."""
        return logits.softmax(-1)

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


def made_text(texts: Iterable[str], data: Data) -> Text:
    """The tokenizer that data.kind asks for."""
    if data.kind == "characters":
        return Text.characters(texts)
    if data.kind == "wordpiece":
        return Text.wordpiece(texts, data.vocabulary)
    return Text.language(texts, data.vocabulary)


def fitting(text: Text) -> dict[str, int]:
    """The special tokens that an encoder cannot do without; a tokenizer that lacks one is refused."""
    found = {name: text.role(name) for name in ROLES}
    if missing := [name for name, number in found.items() if number is None]:
        raise DataError(
            f"the tokenizer has no token for: {', '.join(missing)}. An encoder needs them.",
            advice="Leave data.tokenizer out, or set data.kind=wordpiece, so that one is made that has them.",
        )
    return {name: number for name, number in found.items() if number is not None}


def _filled(numbers: np.ndarray, most: int) -> list[int]:
    """As many numbers as there are ways at most."""
    return [*numbers.tolist(), *[0] * (most - len(numbers))]


def most_ways(encoded: Encoded) -> int:
    return int(lengths_of(encoded.sides["ways"]).max(initial=1))


def table_of(rows: Sequence[np.ndarray]) -> Tensor:
    """(S,) the class of each sample; where a row is `[0, C, …]` (S, C): 1 where it has a label, and 0 where it has not."""
    if len(rows[0]) == 1:
        return torch.tensor([int(row[0]) for row in rows])
    found = torch.zeros(len(rows), int(rows[0][1]), dtype=torch.long)
    for number, row in enumerate(rows):
        found[number, torch.from_numpy(row[2:].astype(np.int64))] = 1
    return found


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
        shown = ", ".join(
            f"'{name}' ({len(found):,} time{'s'[: len(found) > 1]})" for name, found in list(strange.items())[:5]
        )
        more = f" and {len(strange) - 5} others" if len(strange) > 5 else ""
        advice = f"It knows: {', '.join(list(labels)[:20])}{', …' if len(labels) > 20 else ''}. "
        advice += "Add samples of it to what is trained on, or leave it out here."
        inside = os.path.isdir(first.path)  # a folder of pictures, which has no lines
        raise DataError(
            f"the model is not trained on the label {shown}{more}, which stands here first.",
            first.source if inside else first.path,
            None if inside else first.line,
            advice,
        )
    return [known[name] for name in names]
