"""Files -> everything that training needs, read and checked before a folder is made.

Validation samples are kept as they are; training samples only as tokens in mapped files, a part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import tokenizers

from regard.data.batching.split import fingerprint
from regard.data.store.cache import key_of, recall, remember, stored
from regard.data.store.token_store import ANY, VERSION, Writer
from regard.data.text.files import chunked
from regard.data.text.pairs import Empty
from regard.errors import DataError
from regard.processors.tokenizer.tokenizer import CHUNK, Text
from regard.runs.scan import Files, Reading, empties
from regard.runs.settings import Settings
from regard.runs.spec import Order, Sources
from regard.tasks import Task
from regard.tasks.base import Encoded

Say = Callable[[str], None]

SPECIAL = ("start", "end", "pad", "mask", "delimiter", "extract")
"""Fields of a config that name special tokens, which encoded samples hold."""


@dataclass(frozen=True)
class Prepared:
    train: Encoded
    """tokens in mapped files, without the texts"""
    valid: Encoded
    reader: Any
    """what turns samples into tensors"""
    config: Any
    """the system's, with the tokenizer's vocabulary"""
    facts: dict[str, Any]
    """what was found: counts, fingerprints"""
    labels: tuple[str, ...] = ()
    """the classes, where the task has classes"""
    pair: str = ""
    """how two texts of a sample are read together, where there are two"""


def read_samples(task: Task, paths: Sequence[str], columns: Mapping[str, str], say: Say) -> list[Any]:
    found: list[Any] = []
    empty: list[Empty] = []
    for item in task.stream(paths, columns or None):
        (empty if isinstance(item, Empty) else found).append(item)
    if empty:
        say(empties(task, len(empty), empty[0].path, empty[0].line))
    return found


def validation_samples(task: Task, sources: Sources, settings: Settings, say: Say) -> list[Any]:
    """Those of the validation files; without any, the share of the training files that is held out by content."""
    if sources.valid:
        return read_samples(task, sources.valid, dict(sources.columns), say)
    held = list(Files(task, sources, settings.data.share, say).read().held)
    say(f"  on what was held out in training: {task.some(len(held))}")
    return held


def _held_out(task: Task, found: Reading, say: Say) -> list[Any]:
    held = len(found.held)
    be = "is" if held == 1 else "are"
    say(f"  no --valid given: {task.some(held)} {be} held out for validation, chosen by their content")
    return list(found.held)


def prepare(order: Order, say: Say) -> Prepared:
    task, settings, sources = order.identity.task, order.settings, order.sources
    task.check(order.identity.config, task.budget(settings.train), settings.data)
    own = validation_samples(task, sources, settings, say) if sources.valid else []
    files = Files(task, sources, settings.data.share, say, own)
    found = files.read()
    found = replace(found, labels=task.head_labels(found.labels, settings.data))
    valid = own or _held_out(task, found, say)
    reader, config = order.reader, order.identity.config  # a folder's tokenizer and config belong together already
    reader = task.ready(config, settings.data) if reader is None else task.suited(reader, config, settings.data)
    if reader is None and not task.worded:
        say(f"  {task.learning}")
        reader = task.learnt(files.samples(found, "read"), config, settings.data)
        config = task.fit(config, reader)
    if reader is None:
        reader = task.reading(_make_text(files, found, settings, say, valid), config, settings.data)
        config = task.fit(config, reader)
    limit = Limit.of(settings, task, config)
    train = _tokens(files, found, reader, config, settings, limit, say)
    encoded = task.encode(valid, reader, config, limit.longest, settings.data, found.labels)
    limit.tell("validation", task.left(encoded), encoded.too_long[:1], len(encoded.too_long), say)
    task.look_through(train, encoded, config, say)
    facts = {
        "train": task.count(train),
        "valid": task.count(encoded),
        "fingerprint": found.fingerprint,
        "valid_fingerprint": fingerprint(task.texts(valid)),
    }
    say(f"  {task.some(task.count(train))} to train on, {facts['valid']:,} to validate, {task.about_reader(reader)}")
    return Prepared(train, encoded, reader, config, facts, found.labels, task.pairing(valid, settings.data, train))


def _make_text(files: Files, found: Reading, settings: Settings, say: Say, valid: Sequence[Any]) -> Text:
    if settings.data.tokenizer:
        text = files.task.adopt(Text.load(settings.data.tokenizer))
        say(f"  tokenizer {settings.data.tokenizer} with {text.size:,} tokens")
        return text
    # Which texts and how many tokens decide it, and the library's version might.
    made = files.task.name, settings.data.vocabulary, settings.data.kind, files.task.flavour(settings.data)
    # an alphabet must know what the validation data holds too
    more = list(files.task.phrases(valid)) if files.task.closed(settings.data) else []
    key = key_of("tokenizer", tokenizers.__version__, found.fingerprint, fingerprint(more), *made)
    if (kept := recall(key)) is not None:
        say("  tokenizer from the cache: it was trained on these texts before")
        return Text(tokenizers.Tokenizer.from_str(kept))
    say("  making a tokenizer of these texts")
    texts = files.task.phrases(files.samples(found, "read"))
    text = files.task.tokenizer(chain(texts, more), settings.data)
    remember(key, text.backend.to_str())
    return text


@dataclass(frozen=True)
class Limit:
    """How many tokens a side may have, and which setting says so."""

    longest: int
    why: str
    unit: str
    fate: str = "are skipped"
    """what becomes of those with more"""

    @classmethod
    def of(cls, settings: Settings, task: Task, config: Any) -> Limit:
        if task.cuts:
            limit = min((settings.data.longest, "data.longest"), (config.length, "model.length"))
            return cls(*limit, task.unit, f"are cut {task.cut}")
        if not task.limited:
            return cls(10**9, "", task.unit)
        most = min((settings.data.longest, "data.longest"), task.room(config, settings.train))
        return cls(*most, task.rows or task.unit)

    def tell(self, name: str, kept: int, first: Sequence[Any], skipped: int, say: Say) -> None:
        """Say how many were too long and where the first is; where nothing is left, refuse."""
        if skipped:
            place = "".join(f", the first at {sample.path}, line {sample.line}" for sample in first)
            most = f"more than {self.longest:,} tokens on a side ({self.why})"
            say(f"  {skipped:,} {name} {self.unit} have {most} and {self.fate}{place}")
        if not kept:
            raise DataError(
                f"no {name} {self.unit} are left: all have more than {self.longest:,} tokens on a side.",
                advice=f"Raise {self.why}.",
            )


def _tokens(
    files: Files, found: Reading, reader: Any, config: Any, settings: Settings, limit: Limit, say: Say
) -> Encoded:
    """The training samples as tokens: from the cache, or encoded now."""
    special = tuple(getattr(config, name, None) for name in SPECIAL)
    flavour = files.task.flavour(settings.data), found.labels, len(found.held)
    count, mark = files.task.rows_by(reader)
    name = files.task.name if files.task.reads == "text" else f"{files.task.name} {files.task.reads}"
    if files.task.reads != "text":
        mark = f"{mark} {files.places()}"
    key = key_of(VERSION, name, found.fingerprint, mark, limit.longest, special, count, flavour)

    def encode(samples: Sequence[Any]) -> Encoded:
        return files.task.encode(samples, reader, config, limit.longest, settings.data, found.labels)

    sides = {side: ANY if side in files.task.counts else count for side in files.task.sides}
    what = "tokens" if files.task.reads == "text" else f"the list of {files.task.unit}"
    store = stored(key, sides, lambda writer: _encode(files, found, encode, writer), say, what)
    skipped, place = store.facts["too_long"], store.facts["first"]
    # the store knows which pair it was, not where: the same texts may lie in other files by now
    first = list(islice(files.samples(found, "read"), place, place + 1)) if skipped else []
    how = files.task.how(reader, config, limit.longest, settings.data, found.labels)
    train = Encoded([], store.sides, [], how)
    limit.tell("training", files.task.left(train), first, skipped, say)
    return train


def _encode(files: Files, found: Reading, encode: Callable[[Sequence[Any]], Encoded], writer: Writer) -> dict[str, Any]:
    """Fill the store; returns how many samples were too long, and the number of the first."""
    done = skipped = first = 0
    for part in chunked(files.samples(found, "encoded"), CHUNK // 10):
        encoded = encode(part)
        if encoded.too_long and not skipped:
            first = done + next(at for at, sample in enumerate(part) if sample is encoded.too_long[0])
        writer.add(**{name: list(side) for name, side in encoded.sides.items()})
        done, skipped = done + len(part), skipped + len(encoded.too_long)
    return {"samples": done, "too_long": skipped, "first": first}
