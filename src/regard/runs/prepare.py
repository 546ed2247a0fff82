"""Files -> everything that training needs, read and checked before a folder is made.

Validation pairs are kept as they are; training pairs only as tokens in mapped files, a part at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any

import tokenizers

from regard.data.cache import key_of, recall, remember, stored
from regard.data.files import chunked
from regard.data.pairs import Pair
from regard.data.split import fingerprint
from regard.data.store import VERSION, Writer
from regard.errors import DataError
from regard.inputs.text import CHUNK, Text
from regard.runs.order import Order, Sources
from regard.runs.reading import Files, Reading
from regard.runs.settings import Settings
from regard.tasks import Task
from regard.tasks.translate import Encoded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    train: Encoded
    """tokens in mapped files, without the texts"""
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


def validation_samples(task: Task, sources: Sources, settings: Settings, say: Say) -> list[Pair]:
    """Those of the validation files; without any, the share of the training files that is held out by content."""
    if sources.valid:
        return read_samples(task, sources.valid, dict(sources.columns), say)
    return _held_out(Files(task, sources, settings.data.share, say).read(), say)


def _held_out(found: Reading, say: Say) -> list[Pair]:
    say(f"  no --valid given: {len(found.held):,} pairs are held out for validation, chosen by their content")
    return list(found.held)


def prepare(order: Order, say: Say) -> Prepared:
    task, settings, sources = order.identity.task, order.settings, order.sources
    own = validation_samples(task, sources, settings, say) if sources.valid else []
    files = Files(task, sources, settings.data.share, say, own)
    found = files.read()
    valid = own or _held_out(found, say)
    text, config = order.text, order.identity.config  # a folder's tokenizer and config belong together already
    if text is None:
        text = _make_text(files, found, settings, say)
        config = task.fit(config, text)
    limit = Limit.of(settings)
    train = _tokens(files, found, text, config, limit, say)
    encoded = task.encode(valid, text, config, limit.longest)
    limit.tell("validation", len(encoded), encoded.too_long[:1], len(encoded.too_long), say)
    facts = {
        "train": len(train),
        "valid": len(encoded),
        "fingerprint": found.fingerprint,
        "valid_fingerprint": fingerprint(task.texts(valid)),
    }
    say(
        f"  {facts['train']:,} pairs to train on, {facts['valid']:,} to validate, {text.size:,} tokens in the vocabulary"
    )
    return Prepared(train, encoded, text, config, facts)


def _make_text(files: Files, found: Reading, settings: Settings, say: Say) -> Text:
    if settings.data.tokenizer:
        text = Text.load(settings.data.tokenizer)
        say(f"  tokenizer {settings.data.tokenizer} with {text.size:,} tokens")
        return text
    # Which texts and how many tokens decide it, and the library's version might.
    key = key_of("tokenizer", tokenizers.__version__, found.fingerprint, settings.data.vocabulary)
    if (kept := recall(key)) is not None:
        say("  tokenizer from the cache: it was trained on these texts before")
        return Text(tokenizers.Tokenizer.from_str(kept))
    say("  training a byte-pair tokenizer on both languages")
    text = Text.train(files.task.texts(files.pairs(found, "read")), settings.data.vocabulary)
    remember(key, text.backend.to_str())
    return text


@dataclass(frozen=True)
class Limit:
    """How many tokens a side may have, and which setting says so."""

    longest: int
    why: str

    @classmethod
    def of(cls, settings: Settings) -> Limit:
        # a sample must also fit into a grain, with its special tokens on both sides
        room = settings.train.tokens // 2 - 1
        return cls(*min((settings.data.longest, "data.longest"), (room, "train.tokens")))

    def tell(self, name: str, kept: int, first: Sequence[Pair], skipped: int, say: Say) -> None:
        """Say how many were too long and where the first is; where nothing is left, refuse."""
        if skipped:
            place = "".join(f", the first at {pair.path}, line {pair.line}" for pair in first)
            most = f"more than {self.longest:,} tokens on a side ({self.why})"
            say(f"  {skipped:,} {name} pairs have {most} and are skipped{place}")
        if not kept:
            raise DataError(
                f"no {name} pair is left: all have more than {self.longest:,} tokens on a side.",
                advice=f"Raise {self.why}.",
            )


def _tokens(files: Files, found: Reading, text: Text, config: Any, limit: Limit, say: Say) -> Encoded:
    """The training pairs as tokens: from the cache, or encoded now."""
    tokenizer = blake2b(text.backend.to_str().encode(), digest_size=16).hexdigest()
    key = key_of(
        VERSION, files.task.name, found.fingerprint, tokenizer, limit.longest, (config.start, config.end), text.size
    )

    def fill(writer: Writer) -> dict[str, Any]:
        return _encode(files, found, text, config, limit, writer)

    store = stored(key, ("source", "target"), text.size, fill, say)
    skipped, place = store.facts["too_long"], store.facts["first"]
    # the store knows which pair it was, not where: the same texts may lie in other files by now
    first = list(islice(files.pairs(found, "read"), place, place + 1)) if skipped else []
    source, target = store.sides["source"], store.sides["target"]
    limit.tell("training", len(source), first, skipped, say)
    return Encoded([], source, target, [])


def _encode(files: Files, found: Reading, text: Text, config: Any, limit: Limit, writer: Writer) -> dict[str, Any]:
    """Fill the store; returns how many pairs were too long, and the number of the first."""
    done = skipped = first = 0
    for part in chunked(files.pairs(found, "encoded"), CHUNK):
        encoded = files.task.encode(part, text, config, limit.longest)
        if encoded.too_long and not skipped:
            first = done + next(at for at, pair in enumerate(part) if pair is encoded.too_long[0])
        writer.add(source=list(encoded.source), target=list(encoded.target))
        done, skipped = done + len(part), skipped + len(encoded.too_long)
    return {"pairs": done, "too_long": skipped, "first": first}
