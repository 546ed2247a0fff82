"""mask: documents in which words are hidden; says which, and whether one text follows another. How encoders are pre-trained.

A row is `[CLS] text [SEP]`, or with `model.pairs` `[CLS] A [SEP] B [SEP]`, where B follows A in its document in half of the
rows and comes from another document of the same data in the others. Which rows there are is a function of (seed, epoch), which
of their words are hidden of (seed, grain); in validation both are always the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching.mlm_masking import Hidden, Hiding
from regard.data.batching.nsp_sampling import Parts, Readings, pairs, singles
from regard.data.batching.samplers import Epochs, Plan, Shape
from regard.data.settings import Data
from regard.data.store.token_store import Rows
from regard.data.text.detokenize import DETOKENISERS
from regard.data.text.documents import Passage, iterate_texts, text_files
from regard.data.text.pairs import Empty
from regard.decode.settings import Decode
from regard.draw.markdown_table import table
from regard.errors import SettingError
from regard.nn.blocks.heads import Hidden as HiddenHead
from regard.nn.blocks.heads import Words
from regard.nn.blocks.losses import cross_entropy
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import Text
from regard.processors.tokenizer.wordpiece import MASK
from regard.tasks.act import costed
from regard.tasks.base import READ, TEXT, Encoded, Scored, Sums, Task, Terms
from regard.tasks.fill_mask import fill, gap_of, named, ordinary
from regard.tasks.lm import APART, CONTINUES, OPENS, TORN
from regard.tasks.protocol import Asked
from regard.tasks.special_tokens import between, filler, framed
from regard.tasks.text_heads import fitting, made_text
from regard.types import IGNORE, Answer, Batch, States

BUDGET = 16_384
"""Tokens that are looked at together when they are scored."""

SHOWN, BEGINNING = 3, 120
"""Samples whose words are asked for while training, and how many of their characters are given."""

UNKNOWN = "not measured, as the validation data is of one document"
"""Said of pairs where no text of another document can stand in the place of the successor."""

SHORTEST = 8
"""tokens that a row has room for at least"""


@dataclass(frozen=True, eq=False)
class Manner:
    """How rows are made of documents."""

    longest: int
    hide: Hiding


class Mask(Task):
    name = "mask"
    about = "documents; says which words are hidden, and whether a text follows another: pre-training of encoders"
    columns = ("text",)
    unit = "passages"
    metric = "loss"
    lowest = True
    sample = Passage
    sides = ("text", "joint", "document")
    counts = ("document",)
    model = "bert-mini"
    usage = '"The capital of [MASK] is Paris."'
    generates = False
    cuts = spacious = True
    least = 1  # a passage has many words
    heeds = (*TEXT, *READ, "data.hidden", "data.whole_words", "data.detokenise", "train.smoothing")

    def entries(self, data: Sequence[str]) -> list[str]:
        """Folders too: all the text in them."""
        return text_files(data)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Passage | Empty]:
        return iterate_texts(data, columns)

    def key(self, sample: Passage) -> str:
        return sample.text

    def torn(self, sample: Passage, taken: Passage) -> Passage:
        return replace(sample, torn=True)

    def texts(self, samples: Iterable[Passage]) -> Iterator[str]:
        for sample in samples:
            yield sample.text

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.detokenise,)

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        return made_text(map(DETOKENISERS[data.detokenise], texts), data)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        name, longest = min((data.longest, "data.longest"), (config.length, "model.length"))[::-1]
        if longest > tokens:
            raise SettingError(
                f"train.tokens={tokens} has no room for one row of {name}={longest}. Raise it, or lower that."
            )
        if longest < SHORTEST:
            raise SettingError(f"{name}={longest} is too short a row to hide words in: at least {SHORTEST} are needed.")

    def bodied(self, config: Any) -> Any:
        """Only the question whether a text follows reads a summary."""
        return replace(config, pooler=paired(config)) if hasattr(config, "pooler") else config

    def dressed(self, text: Text, config: Any) -> Text:
        return framed(text, config)

    def fit(self, config: Any, reader: Text) -> Any:
        return self.bodied(replace(config, vocabulary=reader.size, **fitting(reader)))

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module:
        width = getattr(config, "embedding", config.width)
        words = Words(config.width, width, config.vocabulary, config.activation, config.eps)
        return HiddenHead(words, config.width, paired(config))

    def how(self, reader: Text, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Manner:
        data = data or Data()
        starts = reader.starts_word if data.whole_words else None
        hide = Hiding(config.mask, ordinary(reader, config), data.hidden, starts)
        return Manner(min(longest, data.longest, config.length), hide)

    def encode(
        self, samples: Sequence[Passage], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Tokens without any special one; nothing is too long."""
        clean = DETOKENISERS["none" if data is None else data.detokenise]
        rows = reader.encode([clean(sample.text) for sample in samples])
        joints = [(APART if s.torn else OPENS) if s.opens else TORN if s.torn else CONTINUES for s in samples]
        sides = {"text": _rows(rows), "joint": _rows([[joint] for joint in joints])}
        sides["document"] = _rows([[sample.document] for sample in samples])
        return Encoded(list(samples), sides, [], self.how(reader, config, longest, data))

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        longest, pairs = encoded.how.longest, paired(config)
        return Readings(parts(encoded), longest, around(config), max(tokens, longest), seed, packed, pairs)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: Shape | None = None) -> Batch:
        """`rows` are those of a plan, with their seed and the number of their grain."""
        random = np.random.default_rng(np.random.SeedSequence([*rows[0, 5:7].tolist(), 2]))
        hidden = encoded.how.hide(written(encoded, rows, config), random)
        return _batch(encoded.how, hidden, rows, config, shape)

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        """All that there is, with the same words hidden each time, whatever is read together."""
        random = np.random.default_rng(0)
        found, room = parts(encoded), encoded.how.longest - around(config)
        rows = (pairs if paired(config) else singles)(found[found[:, 1] > found[:, 0]], room, random)
        texts = written(encoded, rows, config)
        hidden = encoded.how.hide(texts, random) if texts else Hidden([], [], [])
        lengths = np.array([len(row) for row in texts], dtype=np.int64)
        for chosen in Plan(lengths, max(tokens, encoded.how.longest), seed=0).sequential():
            some = Hidden(*([side[i] for i in chosen] for side in hidden))
            yield _batch(encoded.how, some, rows[chosen], config)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        """(B, L, V): which token each position is."""
        return model.head.words(model.body(batch).sequence, model.body.tokens)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """The mean over hidden words plus the mean over pairs, times the number of hidden words, and that number. So one
        grain has the loss of the paper; in several each hidden word weighs the same, and a grain's pairs as its words do."""
        assert batch.labels is not None
        states = model.body(batch)
        total, count = model.head.words.cross_entropy(
            picked(states, batch), model.body.tokens, batch.labels, terms.smoothing
        )
        if model.head.pairs and batch.follows is not None:
            more, many = cross_entropy(model.head.follows(states.summary), batch.follows)
            total = total + more * count / many.clamp(min=1)
        return costed(model, (total, count), states)

    def answer(self, model: Asked, inputs: Sequence[str], decode: Decode, first: int = 0) -> list[Answer]:
        """The gaps of each text filled, [MASK] by [MASK]."""
        return fill(model, inputs)

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Of hidden words the loss, its exponential and the share that is found, and the share of pairs that are told apart,
        in parts of 100."""
        measured = np.zeros(5)
        with torch.inference_mode():
            for batch in self.batches(encoded, model.config, BUDGET, data):
                measured += self._measured(model, batch.to(model.device))
        loss, hits, words, right, many = measured.tolist()
        scores: dict[str, float | str] = {
            "word_loss": round(loss / max(words, 1), 4),
            "perplexity": round(_exp(loss / max(words, 1)), 2),
            "accuracy": round(100 * hits / max(words, 1), 2),
        }
        if many or paired(model.config):
            scores["follows_accuracy"] = round(100 * right / many, 2) if many else UNKNOWN
        clean = DETOKENISERS[data.detokenise]
        shown = [_gapped(clean(sample.text), model) for sample in encoded.samples[:SHOWN]]
        said = iter(fill(model, [asked for asked, right in shown if right]))
        answers = [next(said) if right else Answer(asked, extra={"gaps": []}) for asked, right in shown]
        return scores, [
            replace(answer, extra={**answer.extra, "asked": asked, "right": right})
            for answer, (asked, right) in zip(answers, shown, strict=True)
        ]

    def _measured(self, model: Asked, batch: Batch) -> list[float]:
        """Summed loss, hits and number of hidden words; hits and number of pairs."""
        assert batch.labels is not None
        states, labels = model.body(batch), batch.labels
        logits = model.head.words(picked(states, batch), model.body.tokens)
        loss, count = cross_entropy(logits, labels)
        found = [loss, (logits.argmax(-1) == labels).sum(), count]
        if model.head.pairs and batch.follows is not None:
            said = model.head.follows(states.summary).argmax(-1)
            found += [(said == batch.follows).sum(), (batch.follows != IGNORE).sum()]
        return [float(value) for value in found] + [0.0] * (5 - len(found))

    def line(self, scores: Mapping[str, Any]) -> str:
        words = f"of hidden words perplexity {scores['perplexity']:8.2f}, {scores['accuracy']:5.2f} % found"
        follows = scores.get("follows_accuracy")
        if isinstance(follows, str):
            return f"{words}  pairs told apart: {follows}"
        return words if follows is None else f"{words}  {follows:5.2f} % of pairs told apart (50 by chance)"

    def said(self, given: str, answer: Answer) -> str:
        """The text as it was filled, and a row of words for each gap."""
        if not answer.extra["gaps"]:
            return str(answer.value)
        rows = [{"gap": number, "words": named(gap)} for number, gap in enumerate(answer.extra["gaps"], start=1)]
        return f"{answer.value}\n{table(rows)}"

    def example(self, sample: Passage, answer: Answer) -> dict[str, str]:
        words = [gap[0]["word"] for gap in answer.extra["gaps"]]
        return {
            "text": str(answer.extra.get("asked", "")),
            "says": ", ".join(words),
            "hidden": ", ".join(answer.extra.get("right", ())),
        }

    def show(self, sample: Passage, answer: Answer) -> str:
        lines = [f"    {' '.join(str(answer.extra['asked']).split())}\n"]
        for right, gap in zip(answer.extra["right"], answer.extra["gaps"], strict=True):
            lines.append(f"    {right}: {named(gap)}\n")
        return "".join(lines)


def paired(config: Any) -> bool:
    return bool(getattr(config, "pairs", False))


def around(config: Any) -> int:
    """The special tokens of a row."""
    return 2 + (between(config) if paired(config) else 0)


def parts(encoded: Encoded) -> Parts:
    """What stands together in each document. What is left of one whose beginning was taken out is known by its number."""
    text, joint, document = (encoded.sides[name] for name in ("text", "joint", "document"))
    assert isinstance(text, Rows) and isinstance(joint, Rows) and isinstance(document, Rows)
    joints = np.asarray(joint.values)
    heads = np.flatnonzero(joints != CONTINUES)
    heads = heads if len(heads) and heads[0] == 0 else np.concatenate([[0], heads])
    number = np.asarray(document.values)[heads]
    return np.stack([text.starts[heads], text.starts[np.append(heads[1:], len(joints))], number], axis=1)


def written(encoded: Encoded, rows: np.ndarray, config: Any) -> list[np.ndarray]:
    """The tokens of rows with the special ones around them."""
    text = encoded.sides["text"]
    assert isinstance(text, Rows)
    start, end = np.array([config.start]), np.array([config.end])
    middle = np.array([config.end] * between(config))
    return [
        np.concatenate(
            [start, text.values[a:b], *((middle, text.values[c:d], end) if paired(config) else (end,))]
        ).astype(np.int64)
        for a, b, c, d in rows[:, :4].tolist()
    ]


def _batch(how: Manner, hidden: Hidden, rows: np.ndarray, config: Any, shape: Shape | None = None) -> Batch:
    """The rows padded, or packed with as many questions as such a row can have at most."""
    right, lengths = torch.from_numpy(np.concatenate(hidden.right)), [len(row) for row in hidden.read]
    types, follows = _paired(lengths, rows, config)
    if shape is None:
        x, mask = pad(hidden.read, filler(config))
        asked = _through(hidden.places, x.shape[1] * np.arange(len(rows)))
        beside = None if types is None else pad(types, 0)[0]
        return Batch(x, mask, labels=right, asked=asked, types=beside, follows=follows)
    sizes = shape.rooms[0], shape.longest[0], shape.documents
    x, offsets = pack(hidden.read, *sizes, filler(config))
    asked = _through(hidden.places, np.cumsum(lengths) - lengths)
    rest = how.hide.most(shape.rooms[0], shape.documents, shape.longest[0], around(config)) - len(asked)
    right, asked = F.pad(right, (0, rest), value=IGNORE), F.pad(asked, (0, rest))
    beside = None if types is None else pack(types, *sizes)[0]
    follows = None if follows is None else F.pad(follows, (0, shape.documents - len(rows)), value=IGNORE)
    return Batch(x, labels=right, asked=asked, types=beside, follows=follows, offsets=offsets)


def _paired(lengths: Sequence[int], rows: np.ndarray, config: Any) -> tuple[list[np.ndarray] | None, Tensor | None]:
    """Where rows have two texts: which of them each token belongs to, and whether the second follows."""
    if not paired(config):
        return None, None
    second = 1 + between(config) + rows[:, 1] - rows[:, 0]
    types = [(np.arange(length) >= at).astype(np.int64) for length, at in zip(lengths, second, strict=True)]
    return types if config.types > 1 else None, torch.from_numpy(rows[:, 4].copy())


def _through(places: Sequence[np.ndarray], starts: np.ndarray) -> Tensor:
    """Places counted through all rows, which start there."""
    return torch.from_numpy(np.concatenate([at + first for at, first in zip(places, starts, strict=True)]))


def picked(states: States, batch: Batch) -> Tensor:
    """(M, D) the states that are asked, or all."""
    if batch.asked is None:
        return states.sequence
    # its gradient is added place by place: that of `[asked]` is sorted first
    return states.sequence.flatten(0, 1).index_select(0, batch.asked)


def _gapped(text: str, model: Asked) -> tuple[str, tuple[str, ...]]:
    """The beginning of a text with gaps for some of its words, and these words: always the same ones."""
    reader, gap = model.text_or_refuse(), gap_of(model.text_or_refuse())
    text = text if len(text) <= BEGINNING else text[:BEGINNING].rsplit(" ", 1)[0]
    ids, spans = reader.encode_offsets([text])[0]
    most = max(model.config.length // 2 - 1, 1)  # around gaps there may be other tokens, and more
    ids, spans = ids[:most], spans[:most]
    starts = np.append(reader.starts_word(ids), True)
    words = [
        place
        for place in np.flatnonzero(starts[:-1] & starts[1:]).tolist()
        if ids[place] not in reader.special and any(letter.isalnum() for letter in text[slice(*spans[place])])
    ]
    if not words or gap in text or MASK in text:  # what looks like a gap is text there
        return text, ()
    chosen = sorted(np.random.default_rng(0).permutation(words)[: max(round(0.15 * len(ids)), 1)].tolist())
    asked, at = "", 0
    for first, last in (spans[place] for place in chosen):
        asked, at = asked + text[at:first] + gap, last
    return asked + text[at : spans[-1][1]], tuple(text[slice(*spans[place])] for place in chosen)


def _rows(rows: Sequence[Sequence[int]]) -> Rows:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.concatenate([np.array(row, dtype=np.int32) for row in rows]) if len(rows) else np.zeros(0, np.int32)
    return Rows(values, starts)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
