"""caption: a picture in, a sentence about it out. Any system that sees and speaks can be asked.

A picture may have several captions: each is learnt from by itself, beside a picture that is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import Alike, Epochs, Even, Shape
from regard.data.images.captions import SUFFIXES, Captioned, asked_of, iterate_captioned, part_of
from regard.data.settings import Data
from regard.data.text.files import Complain
from regard.data.text.tables import Empty
from regard.decode.search import search
from regard.decode.settings import Decode
from regard.errors import SettingError
from regard.files import write_json
from regard.processors.captions import Captions
from regard.processors.padding import pad
from regard.processors.tokenizer.tokenizer import END, PAD, START, Role, Text
from regard.tasks.base import SEARCH, SPOKEN, Encoded, Scored, Sums, Terms, lengths_of
from regard.tasks.file_task import place_of, row_of
from regard.tasks.image_task import CHANGED, Pictured, Seeing, opened, together
from regard.tasks.metrics.cider import cider, words
from regard.tasks.processors import names_of
from regard.tasks.protocol import Asked
from regard.tasks.seq2seq import likelihood, spoken
from regard.types import IGNORE, Answer, Batch

MARKS: dict[Role, str] = {"pad": PAD, "start": START, "end": END}
"""What a tokenizer is given that has no token for a part."""
SHOWN = 12
"""Validation pictures that are drawn."""


@dataclass(frozen=True)
class Told(Seeing):
    """How pictures and captions become batches."""

    pairs: list[Pairs] = field(default_factory=list)
    """made when they are first asked for"""


@dataclass(frozen=True)
class Pairs:
    """Every caption of some samples: which sample it is of, and where it stands in the row of that."""

    owner: np.ndarray
    first: np.ndarray
    last: np.ndarray

    @classmethod
    def of(cls, ends: Any) -> Pairs:
        """Of rows that say where each caption of a sample ends."""
        many = lengths_of(ends)
        last = np.concatenate([np.asarray(row, dtype=np.int64) for row in ends] or [np.zeros(0, dtype=np.int64)])
        first = np.concatenate([[0], last[:-1]]) if len(last) else last
        first[(np.cumsum(many) - many)[many > 0]] = 0
        return cls(np.repeat(np.arange(len(many)), many), first, last)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens that are read, which are as many as are said."""
        return self.last - self.first - 1


class Caption(Pictured):
    name = "caption"
    about = "pictures with captions (JSON lines, COCO's JSON, a table); answers with a caption"
    columns = ("image", "captions")
    metric = "cider"
    sample = Captioned
    sides = ("picture", "captions", "ends")
    counts = ("ends",)
    model = "caption-attend-tiny"
    generates = True
    limited = True
    worded = True
    rows = "captions"
    tables = SUFFIXES
    reader_files = ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
    heeds = (
        *Pictured.heeds, *CHANGED, "data.vocabulary", "data.tokenizer", "data.longest", "data.tokenized", "train.smoothing",
        *SEARCH, *SPOKEN,
    )  # fmt: skip

    # -- samples

    def paths(self, entry: str) -> Sequence[str]:
        return (part_of(entry)[0],)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Captioned | Empty]:
        return iterate_captioned(data, columns)

    def listed(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[Captioned | Empty]:
        """Each picture once, however many captions a table has of it."""
        return asked_of(entry, columns, complain)

    def texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from super().texts((sample,))
            yield from sample.captions

    def phrases(self, samples: Iterable[Captioned]) -> Iterator[str]:
        return (caption for sample in samples for caption in sample.captions)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        if data.mixup:
            raise SettingError(
                "data.mixup mixes pictures and their classes, and captions cannot be mixed: leave it out."
            )
        if data.kind != "bytes":
            raise SettingError(f"data.kind={data.kind} is not for captions: their tokenizer is of bytes. Leave it out.")

    # -- the reader

    def reader(self, folder: Path) -> Any:
        return Captions.load(folder)

    def keep(self, reader: Any, config: Any, folder: Path) -> None:
        """One that has only half of it keeps that."""
        pixels, text = (reader.pixels, reader.text) if isinstance(reader, Captions) else (reader, reader)
        if not isinstance(pixels, Text):
            pixels.save(folder)
        if isinstance(text, Text):
            text.save(folder / "tokenizer.json")
            write_json(folder / "tokenizer_config.json", names_of(text, config))

    def ready(self, config: Any, data: Data) -> None:
        return None

    def adopt(self, text: Text) -> Text:
        """A tokenizer that was made for something else may have no token for the beginning, the end, or to fill up with."""
        return text.add([token for role, token in MARKS.items() if text.role(role) is None])

    def reading(self, text: Text, config: Any, data: Data) -> Captions:
        """Pictures are made ready as what the captioner sees through was taught to (`config.pixels()`), where it says so."""
        pixels = (config.pixels() if hasattr(config, "pixels") else None) or super().ready(config, data)
        assert pixels is not None
        return Captions(pixels, text)

    def suited(self, reader: Any, config: Any, data: Data) -> Any:
        return reader.steady(config.size)

    def fit(self, config: Any, reader: Captions) -> Any:
        ids = {role: reader.text.role(role) for role in MARKS}
        return replace(config, vocabulary=reader.text.size, **ids)

    def about_reader(self, reader: Any) -> str:
        return f"{super().about_reader(reader.pixels)}, {reader.text.size:,} tokens in the vocabulary"

    def rows_by(self, reader: Captions) -> tuple[int, str]:
        return max(2**16, reader.text.size), reader.text.fingerprint()

    def room(self, config: Any, train: Any) -> tuple[int, str]:
        return config.length - 1, "model.length"

    # -- batches

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Told:
        seeing = super().how(reader.pixels, config, longest, data)
        return Told(seeing.pixels, seeing.augment)

    def encode(
        self, samples: Sequence[Captioned], reader: Captions, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Of each picture its place, start + caption + end of all its captions in one row, and where each ends."""
        room = min(longest, config.length - 1)
        coded = iter(reader.text.encode(list(self.phrases(samples))))
        captions, ends, too_long = [], [], []
        for sample in samples:
            found = [ids for ids in (next(coded) for _ in sample.captions) if len(ids) <= room]
            too_long += [sample] * (len(sample.captions) - len(found))
            rows = [[config.start, *ids, config.end] for ids in found]
            captions.append(np.array([token for row in rows for token in row], dtype=np.int32))
            ends.append(np.cumsum([len(row) for row in rows], dtype=np.int32))
        sides = {"picture": [row_of(sample) for sample in samples], "captions": captions, "ends": ends}
        return Encoded(list(samples), sides, too_long, self.how(reader, config, longest, data))

    def left(self, encoded: Encoded) -> int:
        return len(pairs_of(encoded).owner)

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        """Captions of like lengths go together; `packed`: all grains have the shape of the longest, and can be recorded."""
        super().plan(encoded, config, tokens, seed, packed)
        lengths = pairs_of(encoded).lengths
        plan = Even(len(lengths), tokens, seed) if packed else Alike(lengths, tokens, seed)
        if packed:
            longest = min(-(-int(lengths.max()) // 8) * 8, config.length)
            plan.shape = Shape((longest,), (longest,), plan.rows)
        plan.about = f"{plan.rows} captions a grain, each beside its picture"
        return plan

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        for rows in Even(self.left(encoded), min(tokens, together(encoded.how.pixels)), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: Shape | None = None) -> Batch:
        """Teacher forcing: the decoder reads start + caption and should say caption + end. `rows` are numbers of captions."""
        batch = super().collate(encoded, rows, config)
        if shape is None or batch.target is None or batch.labels is None:
            return batch
        more = (0, shape.longest[0] - batch.target.shape[1])
        return replace(
            batch, target=F.pad(batch.target, more, value=config.pad), labels=F.pad(batch.labels, more, value=IGNORE)
        )

    def made_of(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        pairs, learnt = pairs_of(encoded), rows.ndim == 2
        numbers = rows[:, 0] if learnt else rows
        owners, shared = pairs.owner[numbers], None
        if learnt:
            x, changes = self.pictures(encoded, np.stack([owners, rows[:, 1]], axis=1))
        else:  # captions of one picture follow each other, and it is looked at once
            different, back = np.unique(owners, return_inverse=True)
            x, changes = self.pictures(encoded, different)
            shared = torch.from_numpy(back)
        side = encoded.sides["captions"]
        said = [
            np.asarray(side[owner][first:last], dtype=np.int64)
            for owner, first, last in zip(owners, pairs.first[numbers], pairs.last[numbers], strict=True)
        ]
        # the target needs no mask: padding stands at its end, where nothing that is asked sees it
        target, labels = pad([row[:-1] for row in said], config.pad)[0], pad([row[1:] for row in said], IGNORE)[0]
        return Batch(x, target=target, owners=shared, labels=labels, changes=changes, changed_by=encoded.how.augment)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        return model.body.read(model.body(self.looked_at(model, batch)).sequence)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        return likelihood(model, model.body(self.looked_at(model, batch)), batch.labels, terms.smoothing)

    # -- answers

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """Of each picture (a path, bytes, an array or a picture of Pillow's) a caption.

        Pictures are numbered from `first` for their random streams."""
        answers, pixels = [], model.pixels_or_refuse()
        for start in range(0, len(inputs), most := together(pixels)):
            x = self.asked(inputs[start : start + most], pixels)
            answers += self._said(model, x, decode, first + start)
        return answers

    def _said(self, model: Asked, x: Tensor, decode: Decode, first: int) -> list[Answer]:
        text, config = model.text_or_refuse(), model.config
        prompt = torch.full((len(x), 1), config.start)
        batch = self.looked_at(model, Batch(x, target=prompt).to(model.device))
        limits = torch.full((len(x),), min(decode.length or config.length, config.length))
        # what fills up and what begins is never said
        banned = tuple({config.pad, config.start} - {config.end})
        numbers = first + np.arange(len(x))
        found = search(model.body, batch, config.end, limits, decode, requests=numbers, banned=banned)
        return [spoken(text, options) for options in found]

    # -- scores

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """CIDEr-D, BLEU by sacreBLEU and chrF against all captions of a picture, times 100, and the share of answers that are
        one of them word for word. CIDEr is left out where there is one picture, which has no rare words."""
        count = len(encoded) if most is None else min(most, len(encoded))
        answers: list[Answer] = []
        for start in range(0, count, step := together(encoded.how.pixels)):
            x, _ = self.pictures(encoded, np.arange(start, min(start + step, count)))
            answers += self._said(model, x, decode, start)
        return scored([str(a.value) for a in answers], [s.captions for s in encoded.samples[:count]], data), answers

    def deciding(self, scores: Mapping[str, Any]) -> str:
        """CIDEr tells best what people would choose, of what can be had without a judge; of one picture BLEU-4."""
        return self.metric if self.metric in scores else "bleu4"

    def line(self, scores: Mapping[str, Any]) -> str:
        return f"{super().line(scores)}  (greedy, {scores['samples']:,} pictures)"

    def said(self, given: Any, answer: Answer) -> str:
        return f"{given}\t{answer.value}"

    def example(self, sample: Captioned, answer: Answer) -> dict[str, str]:
        return {"picture": place_of(sample), "answer": str(answer.value), "reference": sample.captions[0]}

    def show(self, sample: Captioned, answer: Answer) -> str:
        return f"    {place_of(sample)}\n    → {answer.value}\n    = {sample.captions[0]}\n"

    def draw(self, folder: Path, samples: Sequence[Captioned], answers: Sequence[Answer]) -> list[str]:
        """Some validation pictures, from all over the data."""
        from regard.draw.captions import Said, draw_captions

        count = min(SHOWN, len(answers))
        chosen = [number * len(answers) // count for number in range(count)]
        shown = []
        for sample, answer in ((samples[number], answers[number]) for number in chosen):
            shown.append(Said(opened(sample, 320), str(answer.value), sample.captions[0]))
        return [draw_captions(shown, folder / "captions.png").name] if shown else []


def pairs_of(encoded: Encoded) -> Pairs:
    kept = encoded.how.pairs
    if not kept:
        kept.append(Pairs.of(encoded.sides["ends"]))
    return kept[0]


def scored(said: Sequence[str], meant: Sequence[Sequence[str]], data: Data) -> dict[str, float | str]:
    """Of words in small letters without punctuation (`words`); of texts that are in words already, as they are."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    split = str.split if data.tokenized else words
    ours, theirs = [split(text) for text in said], [[split(text) for text in texts] for texts in meant]
    streams = _streams([[" ".join(row) for row in rows] for rows in theirs])
    scores, signature = dict[str, float | str](), ""
    if len(said) > 1:
        scores["cider"] = round(100 * float(np.mean(cider(ours, theirs))), 2)
    for order in (4, 3, 2, 1):
        bleu = BLEU(tokenize="none", force=True, effective_order=True, max_ngram_order=order)
        scores[f"bleu{order}"] = round(bleu.corpus_score([" ".join(row) for row in ours], streams).score, 2)
        signature = str(bleu.get_signature()) if order == 4 else signature
    scores["chrf"] = round(CHRF().corpus_score(said, _streams(meant)).score, 2)
    same = sum(row in rows for row, rows in zip(ours, theirs, strict=True))
    scores["exact"] = round(100 * same / max(len(said), 1), 2)
    return {**scores, "samples": len(said), "signature": signature + ("" if data.tokenized else "|words:lower-bare")}


def _streams(meant: Sequence[Sequence[str]]) -> list[list[Any]]:
    """The first reference of each, the second, …; None where there is no more."""
    most = max(map(len, meant))
    return [[texts[n] if n < len(texts) else None for texts in meant] for n in range(most)]
