"""translate: a sentence in, a sentence out. Any sequence-to-sequence system can be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import Block, Plan, Shape
from regard.data.settings import Data
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.data.text.pairs import Empty, Pair, iterate_pairs
from regard.decode.search import Found, search
from regard.decode.settings import Decode
from regard.errors import DataError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import END, PAD, START, Text
from regard.tasks.base import SEARCH, SPOKEN, TEXT, Encoded, Scored, Sums, Task, Terms
from regard.tasks.protocol import Asked
from regard.tasks.seq2seq import likelihood, pondered, spoken
from regard.types import IGNORE, Answer, Batch


class Translate(Task):
    name = "translate"
    about = "sentence pairs in two languages; answers with a translation"
    columns = ("source", "target")
    unit = "pairs"
    metric = "bleu"
    sample = Pair
    sides = ("source", "target")
    model = "transformer-tiny"
    usage = '"a sentence"'
    heeds = (*TEXT, "data.longest", "data.tokenized", "train.smoothing", *SEARCH, *SPOKEN, "decode.longer")

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Pair | Empty]:
        return iterate_pairs(data, columns)

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        return unlabeled_rows.sources(entry, columns, complain)

    def key(self, sample: Pair) -> str:
        return sample.source

    def texts(self, samples: Iterable[Pair]) -> Iterator[str]:
        for sample in samples:
            yield sample.source
            yield sample.target

    def fit(self, config: Any, reader: Text) -> Any:
        ids = {"pad": reader.id_of(PAD), "start": reader.id_of(START), "end": reader.id_of(END)}
        missing = [token for token in (PAD, START, END) if reader.id_of(token) is None]
        if missing:
            raise DataError(f"the tokenizer has no {', '.join(missing)}: a translation needs them to begin and to end.")
        return replace(config, vocabulary=reader.size, **ids)

    def encode(
        self, samples: Sequence[Pair], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Source + end, and start + target + end, of each."""
        source = reader.encode([sample.source for sample in samples])
        target = reader.encode([sample.target for sample in samples])
        fits = [len(s) <= longest and len(t) <= longest for s, t in zip(source, target, strict=True)]
        kept = [i for i, fit in enumerate(fits) if fit]
        sides = {
            "source": [np.array([*source[i], config.end], dtype=np.int32) for i in kept],
            "target": [np.array([config.start, *target[i], config.end], dtype=np.int32) for i in kept],
        }
        too_long = [sample for sample, fit in zip(samples, fits, strict=True) if not fit]
        return Encoded([samples[i] for i in kept], sides, too_long)

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """The decoder reads all of its side but the end."""
        return super().lengths(encoded) - np.array([0, 1])

    def collate(self, encoded: Encoded, rows: Iterable[int], config: Any, shape: Shape | None = None) -> Batch:
        """Teacher forcing: the decoder reads start + target and should say target + end.

        With a `shape` the samples are packed into one row of it on each side, or padded to it."""
        rows = list(rows)
        source, target = ([encoded.sides[side][i] for i in rows] for side in self.sides)
        reads, says = [row[:-1] for row in target], [row[1:] for row in target]
        if isinstance(shape, Block):
            return _filled(source, reads, says, config.pad, shape)
        if shape is not None:
            (room, target_room), (longest, target_longest), many = shape.rooms, shape.longest, shape.documents
            x, offsets = pack(source, room, longest, many, config.pad)
            y, target_offsets = pack(reads, target_room, target_longest, many, config.pad)
            labels, _ = pack(says, target_room, target_longest, many, IGNORE)
            return Batch(x, target=y, labels=labels, offsets=offsets, target_offsets=target_offsets)
        x, lengths = pad(source, config.pad)
        # the target needs no mask: padding stands at its end, where the causal rule hides it
        return Batch(x, lengths, pad(reads, config.pad)[0], labels=pad(says, IGNORE)[0])

    def source_ids(self, text: Text, inputs: Sequence[str], config: Any) -> list[list[int]]:
        """What the encoder reads: the text without blanks around it, as in training, and the end."""
        return [[*row, config.end] for row in text.encode([item.strip() for item in inputs])]

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        return likelihood(model, model.body(batch), batch.labels, terms.smoothing)

    def answer(
        self, model: Asked, inputs: Sequence[str], decode: Decode, first: int = 0, budget: int = 8192
    ) -> list[Answer]:
        """In the order of the inputs; longer ones are searched together with their like.

        Inputs are numbered from `first` for their random streams; `budget` bounds the tokens searched at once."""
        text, config = model.text_or_refuse(), model.config
        ids = [np.array(row) for row in self.source_ids(text, inputs, config)]
        lengths = np.array([len(row) for row in ids])
        answers = [spoken(text, [Found((), 0.0, (), "end")])] * len(inputs)
        asked = np.flatnonzero(lengths > 1)
        banned = () if config.pad == config.end else (config.pad,)  # padding is never said, as published models have it
        if not len(asked):
            return answers
        costs = lengths[asked] * max(decode.beam, decode.best)
        plan = Plan(costs, max(budget, int(costs.max())), seed=0)
        for chosen in plan.sequential():
            rows = asked[chosen]
            x, mask = pad([ids[i] for i in rows], config.pad)
            prompt = torch.full((len(rows), 1), config.start)
            limits = torch.from_numpy(lengths[rows] + decode.longer)
            batch = Batch(x, mask, prompt).to(model.device)
            # requests are numbered by their place in the input, so that batching changes no draw
            found = search(model.body, batch, config.end, limits, decode, requests=first + rows, banned=banned)
            steps = pondered(model, batch)
            for number, (i, options) in enumerate(zip(rows, found, strict=True)):
                answers[i] = spoken(text, options)
                if steps is not None:
                    answers[i].extra["steps"] = steps[number][: lengths[i]]
        return answers

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """BLEU and chrF by sacreBLEU, with its signature, and the share of exact matches."""
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        samples = encoded.samples[:most]
        answers = self.answer(model, [sample.source for sample in samples], decode)
        said, meant = [str(a.value) for a in answers], [sample.target for sample in samples]
        bleu = BLEU(tokenize="none", force=True) if data.tokenized else BLEU()
        scores: dict[str, float | str] = {
            "bleu": round(bleu.corpus_score(said, [meant]).score, 2),
            "chrf": round(CHRF().corpus_score(said, [meant]).score, 2),
            "exact": round(100 * sum(a == b for a, b in zip(said, meant, strict=True)) / len(meant), 2),
            "sentences": len(meant),
            "signature": str(bleu.get_signature()),
        }
        return scores, answers

    def line(self, scores: Mapping[str, Any]) -> str:
        return f"{super().line(scores)}  (greedy, {scores['sentences']:,} sentences)"

    def example(self, sample: Pair, answer: Answer) -> dict[str, str]:
        return {"source": sample.source, "answer": str(answer.value), "reference": sample.target}

    def show(self, sample: Pair, answer: Answer) -> str:
        return f"    {sample.source}\n    → {answer.value}\n    = {sample.target}\n"


def _filled(
    source: list[np.ndarray], reads: list[np.ndarray], says: list[np.ndarray], fill: int, block: Block
) -> Batch:
    """Rows of the lengths of a block, and as many: for those that are missing the first one again, nothing asked of it."""
    missing = block.documents - len(source)
    across, over = block.longest
    x, lengths = pad(source + source[:1] * missing, fill, across)
    y, _ = pad(reads + reads[:1] * missing, fill, over)
    return Batch(x, lengths, y, labels=pad(says + [says[0][:0]] * missing, IGNORE, over)[0])
