"""Files -> everything that training needs, read and checked before a folder is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.pairs import Pair
from regard.data.split import fingerprint, hold_out
from regard.errors import DataError
from regard.inputs.text import Text
from regard.runs.order import Order, Sources
from regard.runs.settings import Settings
from regard.tasks import Task
from regard.tasks.translate import Encoded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    train: Encoded
    valid: Encoded
    text: Text
    config: Any
    """the system's, with the tokenizer's vocabulary"""
    facts: dict[str, Any]
    """what was found: counts, fingerprints"""


def read_samples(task: Task, paths: Sequence[str], columns: Mapping[str, str], say: Say) -> list[Pair]:
    found = task.read(paths, columns or None)
    if found.empty:
        path, line = found.empty[0]
        say(f"  {len(found.empty):,} rows with an empty side are skipped, the first at {path}, line {line}")
    return found.pairs


def split_samples(task: Task, sources: Sources, settings: Settings, say: Say) -> tuple[list[Pair], list[Pair]]:
    """Training and validation samples; without a validation file a share is held out by content."""
    columns = dict(sources.columns)
    samples = read_samples(task, sources.data, columns, say)
    if sources.valid:
        return samples, read_samples(task, sources.valid, columns, say)
    train, valid = hold_out(samples, task.key, settings.data.share)
    say(f"  no --valid given: {len(valid):,} pairs are held out for validation, chosen by their content")
    return train, valid


def prepare(order: Order, say: Say) -> Prepared:
    task, settings = order.identity.task, order.settings
    train, valid = split_samples(task, order.sources, settings, say)
    text, config = order.text, order.identity.config  # a folder's tokenizer and config belong together already
    if text is None:
        text = make_text(task, train, settings, say)
        config = task.fit(config, text)
    encoded = {
        name: _encode(task, samples, text, config, settings, name, say)
        for name, samples in (("training", train), ("validation", valid))
    }
    facts = {
        "train": len(encoded["training"].samples),
        "valid": len(encoded["validation"].samples),
        "fingerprint": fingerprint(task.texts(train)),
        "valid_fingerprint": fingerprint(task.texts(valid)),
    }
    say(
        f"  {facts['train']:,} pairs to train on, {facts['valid']:,} to validate, {text.size:,} tokens in the vocabulary"
    )
    return Prepared(encoded["training"], encoded["validation"], text, config, facts)


def make_text(task: Task, samples: Sequence[Pair], settings: Settings, say: Say) -> Text:
    if settings.data.tokenizer:
        text = Text.load(settings.data.tokenizer)
        say(f"  tokenizer {settings.data.tokenizer} with {text.size:,} tokens")
        return text
    say("  training a byte-pair tokenizer on both languages")
    return Text.train(task.texts(samples), settings.data.vocabulary)


def _encode(
    task: Task, samples: Sequence[Pair], text: Text, config: Any, settings: Settings, name: str, say: Say
) -> Encoded:
    # a sample must also fit into a grain, with its special tokens on both sides
    room = settings.train.tokens // 2 - 1
    longest, why = min((settings.data.longest, "data.longest"), (room, "train.tokens"))
    encoded = task.encode(samples, text, config, longest)
    if encoded.too_long:
        first = encoded.too_long[0]
        say(
            f"  {len(encoded.too_long):,} {name} pairs have more than {longest:,} tokens on a side ({why}) and are skipped, "
            f"the first at {first.path}, line {first.line}"
        )
    if not encoded.samples:
        raise DataError(
            f"no {name} pair is left: all have more than {longest:,} tokens on a side.", advice=f"Raise {why}."
        )
    return encoded
