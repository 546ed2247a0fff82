"""Task `tag`: token classification (NER, part-of-speech tagging) with encoders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import BatchShape
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import TABLE_SUFFIXES
from regard.data.text.tables import SkippedRow
from regard.data.text.tagged import (
    COLUMNS,
    CONLL_SUFFIXES,
    OUTSIDE,
    TaggedSentence,
    TagScheme,
    convert_tags,
    extract_entities,
    iterate_tagged,
    parse_tag,
    read_sentence_inputs,
)
from regard.data.text.tagged import scheme_tags as all_tags
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError
from regard.nn.blocks.heads import text_head
from regard.nn.kernels.losses import cross_entropy
from regard.processors.padding import pack, pad
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.act import add_act_cost, with_act_steps
from regard.tasks.base import ENCODING_SETTINGS, TEXT_SETTINGS, Encoded, EvalResult, LossSum, LossWeights
from regard.tasks.metrics.ner import TaggingMetrics, tagging_metrics
from regard.tasks.protocol import ModelProtocol
from regard.tasks.special_tokens import SpecialTokens
from regard.tasks.text_heads import label_ids
from regard.tasks.windowed import TokenHeadTask, TokenWindow, first_sample_rows, rows_by_sample, window_start, windows
from regard.types import IGNORE, Batch, Prediction

WORD_PATTERN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
"""A word or punctuation mark of untokenized text."""


class Tag(TokenHeadTask):
    name = "tag"
    description = "Token classification (NER, POS): one tag per word."
    columns = COLUMNS
    unit = "sentences"
    metric = "f1"
    sample_type = TaggedSentence
    usage = '"a sentence"'
    has_labels = True
    table_suffixes = (*CONLL_SUFFIXES, *TABLE_SUFFIXES)
    settings_used = (*TEXT_SETTINGS, *ENCODING_SETTINGS, "data.tag_scheme", "data.stride", "train.label_smoothing")

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[TaggedSentence | SkippedRow]:
        return iterate_tagged(data, columns)

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        return read_sentence_inputs(entry, columns, complain)

    def split_key(self, sample: TaggedSentence) -> str:
        return "\0".join(sample.words)

    def sample_texts(self, sample: TaggedSentence) -> Iterable[str]:
        return (" ".join(sample.words),)

    def target_text(self, sample: TaggedSentence) -> str:
        return " ".join(sample.tags)

    def labels(self, sample: TaggedSentence) -> Iterable[str]:
        return sample.tags

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        """All tags of the scheme for the entity types in the data; the data may use another scheme."""
        scheme = tag_scheme(labels, data)
        if scheme == "plain":
            return tuple(labels)
        kinds = {parts[1] for tag in labels if (parts := parse_tag(tag)) is not None and parts[0] != OUTSIDE}
        return tuple(all_tags(kinds, scheme))

    def head_options(self, samples: Sequence[TaggedSentence], data: DataSettings, train: Encoded) -> str:
        """Tag scheme of the predictions."""
        return tag_scheme((tag for sample in samples for tag in sample.tags), data)

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        return (data.tag_scheme, data.stride)

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        return text_head("tags", config, len(labels), pooled=False) if labels else None

    def encode(
        self,
        samples: Sequence[TaggedSentence],
        processor: TextTokenizer,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """The label of a word is at its first token; `labels` is empty at inference."""
        if data is not None and len(labels) < 2:
            found = "Only one tag found" if labels else "No tags found"
            raise DataError(f"{found}. Token classification needs at least two.")
        marks, limit = SpecialTokens.from_tokenizer(processor, config), min(max_length, config.max_length)
        room, stride = marks.max_text_tokens(limit, 1), 0 if data is None else data.stride
        scheme = _detect_scheme(labels) if data is None or data.tag_scheme == "auto" else data.tag_scheme
        tags = [_tag_ids(sample, labels, scheme) for sample in samples]
        rows: list[TokenWindow] = []
        for owner, (ids, words) in enumerate(processor.encode_words([sample.words for sample in samples])):
            asked = _token_labels(words, tags[owner])
            for first, last in windows(len(ids), room, stride):
                label = [*[0] * len(marks.start), *asked[first:last], *[0] * len(marks.extract)]
                word = next((word for word, tag in zip(words[first:], asked[first:], strict=True) if tag), 0)
                rows.append(TokenWindow(owner, word, [*marks.start, *ids[first:last], *marks.extract], 0, label))
        return self.build_encoded(samples, rows)

    def collate_labels(self, labels: Sequence[np.ndarray], lengths: Sequence[int], shape: BatchShape | None) -> Tensor:
        sizes = () if shape is None else (shape.row_lengths[0], shape.max_lengths[0], shape.num_documents)
        table = pack(labels, *sizes)[0] if shape is not None else pad(labels, 0)[0]
        return torch.where(table > 0, table - 1, IGNORE)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        assert batch.labels is not None
        states = model.body(batch)
        loss = cross_entropy(self.require_head(model)(states.sequence), batch.labels, terms.smoothing)
        return add_act_cost(model, loss, states)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | tuple)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Tags of each sentence, given as text or as words (a list or tuple). The scores are probabilities;
        `extra["entities"]` has the entities of the tags."""
        samples = [_parse_input(item) for item in inputs]
        encoded = self.encode(samples, model.require_tokenizer(), model.config, model.config.max_length)
        return with_act_steps(self, model, encoded, self._predictions(model, encoded, None))

    def _predictions(self, model: ModelProtocol, encoded: Encoded, most: int | None) -> list[Prediction]:
        names = model.spec.labels
        some = first_sample_rows(encoded, most)
        chances = self.token_logits(model, some)
        answers = []
        for sample, rows in zip(some.samples, rows_by_sample(some, None), strict=True):
            table = _merge_windows(len(sample.words), some, rows, chances)
            table = torch.from_numpy(table).softmax(-1).numpy()
            best = table.argmax(1)
            tags = [names[number] for number in best]
            sure = table[np.arange(len(best)), best].tolist()
            extra: dict[str, Any] = {"words": list(sample.words)}
            if model.spec.head_options != "plain" and all(parse_tag(name) is not None for name in names):
                extra |= {
                    "scheme": model.spec.head_options or _detect_scheme(names),
                    "entities": _entities(sample.words, tags, sure),
                }
            answers.append(Prediction(tags, tuple(sure), tuple(sample.words), extra))
        return answers

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Entity F1, precision and recall in percent as in `seqeval`; for plain tags F1 is the accuracy."""
        answers = self._predictions(model, encoded, max_samples)
        found = _tagging_metrics(encoded.samples[:max_samples], answers)
        plain = found.plain
        scores: dict[str, float | str] = dict(found.scores())
        scores = {"f1": scores["accuracy"], **scores} if plain else scores
        scores["samples"] = len(answers)
        if max_samples is None:
            scores["per_class"] = found.table()
        return scores, answers

    def save_figures(
        self, folder: Path, samples: Sequence[TaggedSentence], predictions: Sequence[Prediction]
    ) -> list[str]:
        if not predictions:
            return []
        return [_tagging_metrics(samples, predictions).save_figure(folder / "tags.png").name]

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """The sentence with entities in brackets, and the probability of each entity; for plain tags word/tag."""
        shown = _format_tags(prediction.tokens, prediction.value, "entities" in prediction.extra)
        found = prediction.extra.get("entities", [])
        lines = [f"{item['probability']:7.4f}  {item['type'] or 'entity':8} {item['text']}" for item in found]
        return "\n".join([shown, *lines])

    def example_row(self, sample: TaggedSentence, prediction: Prediction) -> dict[str, str]:
        spells = "entities" in prediction.extra
        return {
            "prediction": _format_tags(sample.words, prediction.value, spells),
            "reference": _format_tags(sample.words, sample.tags, spells),
        }


def tag_scheme(tags: Iterable[str], data: DataSettings) -> TagScheme:
    """`data.tag_scheme`; with auto IOB2 for entity tags, otherwise plain."""
    if data.tag_scheme != "auto":
        return data.tag_scheme
    return "IOB2" if all(parse_tag(tag) is not None for tag in tags) else "plain"


def _tagging_metrics(samples: Sequence[TaggedSentence], answers: Sequence[Prediction]) -> TaggingMetrics:
    plain = any("entities" not in answer.extra for answer in answers)
    right = [_converted_tags(sample, answer) for sample, answer in zip(samples, answers, strict=True)]
    return tagging_metrics(right, [answer.value for answer in answers], "plain" if plain else "IOB2")


def _converted_tags(sample: TaggedSentence, answer: Prediction) -> list[str]:
    """Reference tags in the scheme of the prediction."""
    if "entities" not in answer.extra:
        return list(sample.tags)
    return convert_tags(sample.tags, answer.extra["scheme"])


def _tag_ids(sample: TaggedSentence, labels: Sequence[str], scheme: TagScheme) -> list[int]:
    """Tag index of each word."""
    if not labels:
        return [0] * len(sample.words)
    tags = list(sample.tags)
    if scheme != "plain" and all(parse_tag(tag) is not None for tag in tags):
        tags = convert_tags(tags, scheme)
    return label_ids([sample] * len(tags), tags, labels)


def _detect_scheme(labels: Sequence[str]) -> TagScheme:
    """Scheme of all tags."""
    letters = {parts[0] for tag in labels if (parts := parse_tag(tag)) is not None}
    if any(parse_tag(tag) is None for tag in labels):
        return "plain"
    if letters & {"E", "S"}:
        return "BIOES"
    if letters & {"L", "U"}:
        return "BILOU"
    return "IOB2"


def _token_labels(words: Sequence[int], tags: Sequence[int]) -> list[int]:
    """Tag index + 1 at the first token of each word, 0 at other tokens: the token store has no negative values."""
    before = [-1, *words[:-1]]
    return [tags[word] + 1 if word != last else 0 for word, last in zip(words, before, strict=True)]


def _merge_windows(count: int, encoded: Encoded, rows: Sequence[int], chances: Sequence[np.ndarray]) -> np.ndarray:
    """(words, tags) logits from overlapping windows; a word uses the window with the most context on both sides."""
    table, inside = np.zeros((count, chances[rows[0]].shape[-1])), np.full(count, -1)
    for row in rows:
        label, first = encoded.fields["label"][row], window_start(encoded, row)
        places = np.flatnonzero(label)
        deep, words = np.minimum(places, len(label) - 1 - places), first + np.arange(len(places))
        better = deep > inside[words]
        inside[words[better]], table[words[better]] = deep[better], chances[row][places[better]]
    return table


def _entities(words: Sequence[str], tags: Sequence[str], sure: Sequence[float]) -> list[dict[str, Any]]:
    """Entities with the minimum of the probabilities of their words."""
    return [
        {
            "type": found.type,
            "text": " ".join(words[found.first : found.last + 1]),
            "first": found.first,
            "last": found.last,
            "probability": min(sure[found.first : found.last + 1]),
        }
        for found in extract_entities(tags)
    ]


def _format_tags(words: Sequence[str], tags: Sequence[str], spells: bool) -> str:
    """The sentence with entities in brackets, or with the tag of each word."""
    if not spells:
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    marked = list(words)
    for entity in extract_entities(tags):
        marked[entity.first] = f"[{marked[entity.first]}"
        marked[entity.last] += f" {entity.type}]" if entity.type else "]"
    return " ".join(marked)


def _parse_input(item: Any) -> TaggedSentence:
    words = WORD_PATTERN.findall(item) if isinstance(item, str) else list(item)
    if not words or not all(isinstance(word, str) and word.strip() for word in words):
        raise RegardError(f"Expected a sentence as a text or a list of words, got {item!r:.60}.")
    return TaggedSentence(tuple(words), ())
