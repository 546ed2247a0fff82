"""Objective `tag`: token classification (NER, part-of-speech tagging) with encoders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.padding import pad_or_pack
from regard.data.batching.samplers import BatchShape
from regard.data.settings import DataSettings
from regard.data.text.tagged import (
    OUTSIDE,
    TaggedSentence,
    TagScheme,
    convert_tags,
    extract_entities,
    parse_tag,
    scheme_tags,
)
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, InputTypeError
from regard.nn.blocks.heads import text_head
from regard.nn.kernels.losses import cross_entropy
from regard.tasks import base
from regard.tasks.classify import label_ids
from regard.tasks.metrics.per_class import ClassMetrics, tagging_metrics
from regard.tasks.modality import text as modality
from regard.types import IGNORE, Batch, Prediction

WORD_PATTERN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")  # A word or punctuation mark of untokenized text


class TagOptions(base.OptionRules):
    """Tag scheme of predictions, and all tags of the scheme for the entity types in the data."""

    def fit(self, options: base.HeadOptions, samples: Sequence[Any], data: DataSettings) -> base.HeadOptions:
        labels: Sequence[str] = options.labels
        scheme = tag_scheme(labels, data)
        if scheme != "plain":  # the data may use another scheme
            kinds = {parts[1] for tag in labels if (parts := parse_tag(tag)) is not None and parts[0] != OUTSIDE}
            labels = scheme_tags(kinds, scheme)
        predicted = tag_scheme((tag for sample in samples for tag in sample.tags), data)
        return replace(options, labels=tuple(labels), tag_scheme=predicted)


class Tag(modality.WindowObjective):
    metrics = ("f1",)
    has_labels = True
    options = TagOptions()
    single_types = (tuple,)
    modality_options: ClassVar[Any] = {"text": {"split_words": True}}
    encoding_settings = ("tag_scheme", "stride")
    settings = (*base.ENCODING_SETTINGS, "data.tag_scheme", "data.stride", "train.label_smoothing")

    def head(self, config: Any, options: base.HeadOptions) -> nn.Module | None:
        return text_head("tags", config, len(options.labels), pooled=False) if options.labels else None

    def encode(self, samples: Sequence[TaggedSentence], config: Any, context: base.EncodingContext) -> base.Encoded:
        """The label of a word is at its first token. Without data settings (at inference) labels are not known."""
        data, labels = context.data, context.options.labels if context.data is not None else ()
        if data is not None and len(labels) < 2:
            found = "Only one tag found" if labels else "No tags found"
            raise DataError(f"{found}. Token classification needs at least two.")
        marks = modality.SpecialTokens.from_tokenizer(context.processor, config)
        room = marks.max_text_tokens(min(context.max_length, config.max_length), 1)
        scheme = _detect_scheme(labels) if data is None or data.tag_scheme == "auto" else data.tag_scheme
        rows: list[tuple[Any, ...]] = []
        for owner, (ids, words) in enumerate(context.processor.encode_words([sample.words for sample in samples])):
            tags = [0] * len(samples[owner].words)
            if labels:
                names = list(samples[owner].tags)
                if scheme != "plain" and all(parse_tag(name) is not None for name in names):
                    names = convert_tags(names, scheme)
                tags = label_ids([samples[owner]] * len(names), names, labels)
            # tag index + 1 at the first token of each word, 0 at other tokens: the token store has no negative values
            token_labels = [
                tags[word] + 1 if word != last else 0 for word, last in zip(words, [-1, *words[:-1]], strict=True)
            ]
            for first, last in modality.windows(len(ids), room, 0 if data is None else data.stride):
                label = [*[0] * len(marks.start), *token_labels[first:last], *[0] * len(marks.extract)]
                word = next((word for word, tag in zip(words[first:], token_labels[first:], strict=True) if tag), 0)
                rows.append(([*marks.start, *ids[first:last], *marks.extract], 0, (owner, word), label))
        fields = {name: base.int_rows([row[at] for row in rows]) for at, name in enumerate(self.fields)}
        return base.Encoded(list(samples), fields, [], context)

    def _collate_labels(self, labels: Sequence[np.ndarray], shape: BatchShape | None) -> Tensor:
        table = pad_or_pack(labels, 0, shape)[0]
        return torch.where(table > 0, table - 1, IGNORE)

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        states = model.body(batch)
        loss = cross_entropy(base.require_head(model)(states.sequence), batch.require_labels(), terms.smoothing)
        return base.add_act_cost(model, loss, states)

    def parse_input(self, item: Any, options: base.HeadOptions) -> TaggedSentence:
        """A sentence, given as text or as words (a list or tuple)."""
        text = item if isinstance(item, str) else ""
        words = WORD_PATTERN.findall(text) if text else list(item) if isinstance(item, list | tuple) else []
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise InputTypeError(f"Expected a sentence as a text or a list of words, got {base.describe(item)}.")
        return TaggedSentence(tuple(words), (), text=text)

    def _predictions(self, model: base.Model, encoded: base.Encoded, decode: DecodeSettings) -> list[Prediction]:
        """Tags of each sentence. The scores are probabilities; `extra["entities"]` has the entities of the tags, with the
        first and last word, and with the characters in `extra["text"]`, the text of the input."""
        options, logits = model.spec.options, self.token_logits(model, encoded)
        names = options.labels
        finds_entities = options.tag_scheme != "plain" and all(parse_tag(name) is not None for name in names)
        predictions = []
        for sample, rows in zip(encoded.samples, encoded.rows_by_sample(), strict=True):
            table = torch.from_numpy(_merge_windows(len(sample.words), encoded, rows, logits)).softmax(-1).numpy()
            best = table.argmax(1)
            tags, chances = [names[number] for number in best], table[np.arange(len(best)), best].tolist()
            text, places = _word_offsets(sample)
            extra: dict[str, Any] = {"text": text, "words": list(sample.words), "offsets": places}
            if finds_entities:
                extra["scheme"] = options.tag_scheme or _detect_scheme(names)
                extra["entities"] = [
                    {
                        "type": entity.type,
                        "text": text[places[entity.first][0] : places[entity.last][1]],
                        "start": places[entity.first][0],
                        "end": places[entity.last][1],
                        "first": entity.first,
                        "last": entity.last,
                        "probability": min(chances[entity.first : entity.last + 1]),
                    }
                    for entity in extract_entities(tags)
                ]
            predictions.append(Prediction(tags, tuple(chances), tuple(sample.words), extra))
        return predictions

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """Entity F1, precision and recall in percent as in `seqeval`; for plain tags F1 is the accuracy."""
        some = encoded.first(spec.max_samples)
        predictions = self._predictions(model, some, spec.decode)
        metrics = _tagging_metrics(some.samples, predictions)
        tables = metrics.report() if spec.complete else {}
        return {**metrics.scores(), "samples": len(predictions), **tables}, predictions

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        return [_tagging_metrics(samples, predictions).save_figure(folder / "tags.png").name]

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """The sentence with entities in brackets, and the probability of each entity; for plain tags word/tag."""
        shown = _format_tags(prediction.tokens, prediction.value, "entities" in prediction.extra)
        found = prediction.extra.get("entities", [])
        lines = [f"{item['probability']:7.4f}  {item['type'] or 'entity':8} {item['text']}" for item in found]
        return "\n".join([shown, *lines])

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        extra = prediction.extra
        entities = {"entities": extra["entities"]} if "entities" in extra else {}
        return {
            "prediction": prediction.value,
            "probability": list(prediction.score),
            "words": extra["words"],
            **entities,
        }

    def example_row(self, sample: TaggedSentence, prediction: Prediction) -> dict[str, str]:
        as_entities = "entities" in prediction.extra
        return {
            "prediction": _format_tags(sample.words, prediction.value, as_entities),
            "reference": _format_tags(sample.words, sample.tags, as_entities),
        }


def _word_offsets(sample: TaggedSentence) -> tuple[str, list[tuple[int, int]]]:
    """Text of a sentence, and start and end of each word in the text."""
    text, places, at = sample.text or " ".join(sample.words), list[tuple[int, int]](), 0
    for word in sample.words:
        at = text.index(word, at)
        places.append((at, at + len(word)))
        at += len(word)
    return text, places


def tag_scheme(tags: Iterable[str], data: DataSettings) -> TagScheme:
    """`data.tag_scheme`; with auto IOB2 for entity tags, otherwise plain."""
    if data.tag_scheme != "auto":
        return data.tag_scheme
    return "IOB2" if all(parse_tag(tag) is not None for tag in tags) else "plain"


def _tagging_metrics(samples: Sequence[TaggedSentence], predictions: Sequence[Prediction]) -> ClassMetrics:
    """Metrics against the reference tags in the scheme of the predictions."""
    plain = any("entities" not in one.extra for one in predictions)
    references = [
        convert_tags(sample.tags, one.extra["scheme"]) if "entities" in one.extra else list(sample.tags)
        for sample, one in zip(samples, predictions, strict=True)
    ]
    return tagging_metrics(references, [one.value for one in predictions], "plain" if plain else "IOB2")


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


def _merge_windows(count: int, encoded: base.Encoded, rows: Sequence[int], logits: Sequence[np.ndarray]) -> np.ndarray:
    """(words, tags) logits from overlapping windows; a word uses the window with the most context on both sides."""
    table, context = np.zeros((count, logits[rows[0]].shape[-1])), np.full(count, -1)
    for row in rows:
        label, first = encoded.fields["label"][row], modality.window_start(encoded, row)
        places = np.flatnonzero(label)
        depth, words = np.minimum(places, len(label) - 1 - places), first + np.arange(len(places))
        better = depth > context[words]
        context[words[better]], table[words[better]] = depth[better], logits[row][places[better]]
    return table


def _format_tags(words: Sequence[str], tags: Sequence[str], as_entities: bool) -> str:
    """The sentence with entities in brackets, or with the tag of each word."""
    if not as_entities:
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    marked = list(words)
    for entity in extract_entities(tags):
        marked[entity.first] = f"[{marked[entity.first]}"
        marked[entity.last] += f" {entity.type}]" if entity.type else "]"
    return " ".join(marked)
