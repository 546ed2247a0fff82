"""language: text in, what follows it out. Any decoder-only system can be asked.

A document is one stream of tokens: the end token, its text, the end token. Long ones are read in windows; no window reaches
from one document into another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import Epochs, Plan, Shape
from regard.data.batching.windows import Stretches, in_turn, plan_windows
from regard.data.settings import Data
from regard.data.store.token_store import Rows
from regard.data.text.detokenize import DETOKENISERS, words
from regard.data.text.documents import Passage, iterate_texts, text_files
from regard.data.text.files import chunked
from regard.data.text.pairs import Empty
from regard.decode.search import Found, search
from regard.decode.settings import Decode
from regard.decode.stream import stream
from regard.errors import DataError, RegardError, SettingError
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.stream_decoder import Flow
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, Text
from regard.tasks.base import SEARCH, SPOKEN, TEXT, Encoded, Scored, Sums, Task, Terms
from regard.tasks.prompts import cut_text, prompt_ids, reason, room_left, stops
from regard.tasks.protocol import Asked
from regard.types import IGNORE, Answer, Batch

CONTINUES, TORN, OPENS, APART = 0, 1, 2, 3
"""How a row of tokens joins the one before: it goes on; something was taken out between them; a document begins where the one
before ended; or a document begins, but the end of the one before was taken out."""

BUDGET = 65_536
"""Tokens of prompts and answers that are searched at once."""

LINES = 16
"""of a sample that are shown, without blank ones that follow each other"""

SHOWN, BEGINNING = 3, 120
"""Samples that are gone on with while training, and how many of their characters are given."""


class Language(Task):
    name = "language"
    about = "plain text; goes on with what it is given"
    columns = ("text",)
    unit = "passages"
    metric = "loss"
    lowest = True
    limited = False
    spacious = True
    sample = Passage
    sides = ("text", "joint")
    least = 1  # a passage has many words
    model = "gpt2-mini"
    usage = '"Once upon a time"'
    heeds = (*TEXT, "data.kind", "data.detokenise", "data.stride", "train.smoothing", *SEARCH, *SPOKEN, "decode.crop")

    def entries(self, data: Sequence[str]) -> list[str]:
        """Folders too: all the text in them."""
        return text_files(data)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Passage | Empty]:
        return iterate_texts(data, columns)

    def key(self, sample: Passage) -> str:
        return sample.text

    def torn(self, sample: Passage, taken: Passage) -> Passage:
        """A document that ends before what was taken out ends truly, so that the next may begin there."""
        return sample if sample.opens and taken.opens else replace(sample, torn=True)

    def texts(self, samples: Iterable[Passage]) -> Iterator[str]:
        for sample in samples:
            yield sample.text

    def flavour(self, data: Data) -> tuple[Any, ...]:
        return (data.detokenise,)

    def tokenizer(self, texts: Iterable[str], data: Data) -> Text:
        texts = map(DETOKENISERS[data.detokenise], texts)
        return Text.characters(texts) if data.kind == "characters" else Text.language(texts, data.vocabulary)

    def check(self, config: Any, tokens: int, data: Data) -> None:
        if config.length > tokens:
            raise SettingError(
                f"train.tokens={tokens} has no room for one window of model.length={config.length}. Raise it, or lower that."
            )
        if data.stride > config.length:
            raise SettingError(f"data.stride={data.stride} would leave tokens out: the context has {config.length}.")

    def adopt(self, text: Text) -> Text:
        """Documents begin and end with a token that a vocabulary made for something else may lack."""
        return text if text.id_of(END_OF_TEXT) is not None else text.add([END_OF_TEXT])

    def fit(self, config: Any, reader: Text) -> Any:
        end = reader.id_of(END_OF_TEXT)
        if end is None:
            raise DataError(f"the tokenizer has no {END_OF_TEXT}, which begins and ends documents.")
        return replace(config, vocabulary=reader.size, end=end)

    def encode(
        self, samples: Sequence[Passage], reader: Text, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Nothing is too long. The end token of a document is the one that the next begins with."""
        clean = DETOKENISERS["none" if data is None else data.detokenise]
        rows = reader.encode([clean(sample.text) for sample in samples])
        joints = [(APART if s.torn else OPENS) if s.opens else TORN if s.torn else CONTINUES for s in samples]
        joined = [[config.end, *row] if sample.opens else row for row, sample in zip(rows, samples, strict=True)]
        flat = {"text": joined, "joint": [[joint] for joint in joints]}
        return Encoded(list(samples), {name: _rows(side) for name, side in flat.items()}, [])

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        if config.length > tokens:
            raise SettingError(
                f"train.tokens={tokens} has no room for one window of model.length={config.length}. Raise it, or lower that."
            )
        return plan_windows(documents(encoded), config.length, tokens, seed, packed)

    def collate(self, encoded: Encoded, rows: Stretches, config: Any, shape: Shape | None = None) -> Batch:
        values = _stream(encoded)
        if shape is not None:
            reads = [values[first:last] for first, last in rows]
            labels = [values[first + 1 : last + 1] for first, last in rows]
            x, offsets = pack(reads, shape.rooms[0], shape.longest[0], shape.documents, config.end)
            y, _ = pack(labels, shape.rooms[0], shape.longest[0], shape.documents, IGNORE)
            return Batch(x, labels=y, offsets=offsets)
        first, last = rows[:, :1], rows[:, 1:2]
        said, room = (rows[:, 2:3], int(rows[:, 3].max())) if rows.shape[1] > 2 else (first, 0)
        at = first + np.arange(max(room, int((last - first).max())))
        read = np.minimum(at, last)
        # no mask: padding stands at the end, where the causal rule hides it
        ids = np.where(at < last, values[read].astype(np.int64), config.end)
        says = np.where((at < last) & (at >= said), values[np.minimum(read + 1, last)].astype(np.int64), IGNORE)
        return Batch(torch.from_numpy(ids), labels=torch.from_numpy(says))

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        stride = config.length if data is None else data.stride or config.length
        if stride > config.length:
            raise SettingError(f"data.stride={stride} would leave tokens out: the context has {config.length}.")
        windows = in_turn(documents(encoded), config.length, stride)
        for part in chunked(windows, max(tokens // config.length, 1)):
            yield self.collate(encoded, np.array([(*window, 0) for window in part]), config)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        return model.body.cross_entropy(model.body(batch).sequence, batch.labels, terms.smoothing)

    def answer(self, model: Asked, inputs: Sequence[str], decode: Decode, first: int = 0) -> list[Answer]:
        """What follows each text. An empty one is the beginning of a document."""
        text, config = model.text_or_refuse(), model.config
        prompts = [prompt_ids(item, text, config, decode) for item in inputs]
        lengths = np.array([len(row) for row in prompts], dtype=np.int64)
        if not len(prompts):
            return []
        limits = np.array([room_left(length, config, decode) for length in lengths.tolist()])
        answers: list[Answer] = [Answer("")] * len(prompts)
        costs = lengths + limits
        plan = Plan(costs, max(BUDGET, int(costs.max())), seed=0)
        for rows in plan.sequential():
            x, mask = pad([prompts[i] for i in rows], config.end)
            batch = Batch(x, mask).to(model.device)
            until = stops(text, decode.until)
            found = search(
                model.body, batch, config.end, torch.from_numpy(limits[rows]), decode, requests=first + rows,
                until=until,
            )  # fmt: skip
            for i, options in zip(rows.tolist(), found, strict=True):
                answers[i] = self._say(model, inputs[i], options, int(lengths[i]), decode)
        return answers

    def _say(self, model: Asked, prompt: str, options: list[Found], given: int, decode: Decode) -> Answer:
        text, best = model.text_or_refuse(), options[0]
        values = [cut_text(text, option, decode.until) for option in options]
        why = [reason(option, given, model.config) for option in options]
        extra = {
            "prompt": prompt,
            "ids": list(best.tokens),
            "why": why[0],
            "log_probabilities": np.round(best.logs, 6).tolist(),
            "alternatives": [
                {"value": value, "score": option.score, "why": because}
                for value, option, because in zip(values, options, why, strict=True)
            ],
        }
        return Answer(values[0], tuple(option.score for option in options), tuple(text.pieces(best.tokens)), extra)

    def streams(self, decode: Decode) -> bool:
        return decode.beam == 1 and decode.best == 1

    def stream_answer(self, model: Asked, prompt: str, decode: Decode, first: int = 0) -> Iterator[str]:
        text, config = model.text_or_refuse(), model.config
        ids = prompt_ids(prompt, text, config, decode)
        limit = torch.tensor([room_left(len(ids), config, decode)])
        batch = Batch(torch.tensor([ids])).to(model.device)
        request, until = np.array([first]), stops(text, decode.until)
        steps = stream(model.body, batch, config.end, limit, decode, requests=request, until=until)
        return _flowing(steps, Flow(text, decode.until))

    def choose(self, model: Asked, prompt: str, choices: Sequence[str]) -> Answer:
        """The likeliest of some continuations, as GPT-2 was asked without being trained for it: by the probability of all
        tokens of each after the prompt. `scores` are the probabilities among the choices."""
        if len(choices) < 2 or not all(choices):
            raise SettingError("a choice needs two or more texts, none of them empty.")
        text, config = model.text_or_refuse(), model.config
        given = text.encode([prompt])[0] or [config.end]
        rows = [[*given, *row] for row in text.encode(list(choices))]
        if (most := max(map(len, rows))) > config.length:
            raise RegardError(f"the prompt with a choice has {most} tokens, and the model reads {config.length}.")
        x = pad(rows, config.end)[0].to(model.device)
        with torch.inference_mode():
            logits = model.body.read(model.body(Batch(x)).sequence)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logs = logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0].double().cpu()
        sums = [float(logs[i, len(given) - 1 : len(row) - 1].sum()) for i, row in enumerate(rows)]
        counts = [len(row) - len(given) for row in rows]
        chances = torch.tensor(sums, dtype=torch.float64).softmax(0).tolist()
        order = sorted(range(len(choices)), key=lambda i: -sums[i])
        listed = [
            {"value": choices[i], "probability": chances[i], "log_probability": sums[i], "tokens": counts[i]}
            for i in order
        ]
        return Answer(choices[order[0]], tuple(chances[i] for i in order), (), {"prompt": prompt, "choices": listed})

    def quick(self, decode: Decode) -> Decode:
        return replace(decode, beam=1, best=1, length=64)

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """Perplexity of a token and of a word (of the text as it was, with its line ends), and bits for each of its bytes."""
        size = sum(len(sample.text.encode()) for sample in encoded.samples)
        count = sum(words(sample.text) for sample in encoded.samples)
        scores: dict[str, float | str] = {
            "perplexity": round(_exp(sums.mean), 3),
            "word_perplexity": round(_exp(sums.total / max(count, 1)), 2),
            "bits_per_byte": round(sums.total / math.log(2) / max(size, 1), 4),
        }
        clean = DETOKENISERS[data.detokenise]  # the model has read such texts only
        some = [_beginning(clean(sample.text)) for sample in encoded.samples[:SHOWN]]
        answers = self.answer(model, some, replace(decode, crop=True))
        return scores, answers

    def line(self, scores: Mapping[str, Any]) -> str:
        return (
            f"perplexity {scores['perplexity']:8.2f}  of a word {scores['word_perplexity']:9,.1f}  "
            f"bits a byte {scores['bits_per_byte']:6.3f}"
        )

    def said(self, given: str, answer: Answer) -> str:
        """The text as a whole."""
        return f"{given}{answer.value}"

    def example(self, sample: Passage, answer: Answer) -> dict[str, str]:
        return {"text": str(answer.extra.get("prompt", "")), "goes on": str(answer.value)}

    def show(self, sample: Passage, answer: Answer) -> str:
        lines = f"{answer.extra.get('prompt', '')}▸{answer.value}".splitlines()
        shown = [line for line, before in zip(lines, ["", *lines], strict=False) if line.strip() or before.strip()]
        return "".join(f"    {line}\n" for line in shown[:LINES])


def documents(encoded: Encoded) -> Stretches:
    """(N, 2): where reading may begin, and the last token that may be said, in each document or torn part of one."""
    text, joint = encoded.sides["text"], encoded.sides["joint"]
    assert isinstance(text, Rows) and isinstance(joint, Rows)
    joints = np.asarray(joint.values)
    heads = np.flatnonzero(joints != CONTINUES)
    heads = heads if len(heads) and heads[0] == 0 else np.concatenate([[0], heads])
    following = np.append(heads[1:], len(joints))
    # where the next document follows, its first token ends this one
    opens = np.append(joints, CONTINUES)[following] == OPENS
    return np.stack([text.starts[heads], text.starts[following] - 1 + opens], axis=1)


def _rows(rows: Sequence[Sequence[int]]) -> Rows:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.concatenate([np.array(row, dtype=np.int32) for row in rows]) if len(rows) else np.zeros(0, np.int32)
    return Rows(values, starts)


def _stream(encoded: Encoded) -> np.ndarray:
    text = encoded.sides["text"]
    assert isinstance(text, Rows)
    return text.values


def _flowing(steps: Iterator[list[list[int]]], flow: Flow) -> Iterator[str]:
    for new in steps:
        if part := flow.add(new[0]):
            yield part
        if flow.stopped:
            return
    if rest := flow.end():
        yield rest


def _beginning(text: str) -> str:
    """Some of the text, up to the end of a word."""
    if len(text) <= BEGINNING:
        return text[: len(text) // 2]
    return text[:BEGINNING].rsplit(" ", 1)[0]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
