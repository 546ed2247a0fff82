"""Read and check all training data before the run folder is created.

Validation samples stay in memory; training samples are encoded in chunks and stored as tokens in memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import tokenizers

from regard.data.batching.split import compute_fingerprint
from regard.data.store.cache import cache_key, cached_store, load_note, save_note
from regard.data.store.token_store import MAX_INT, VERSION, StoreWriter
from regard.data.text.files import chunked
from regard.data.text.tables import SkippedRow
from regard.errors import DataError
from regard.processors.tokenizer.tokenizer import ENCODE_BATCH, TextTokenizer
from regard.runs.scan import ScanResult, TrainingFiles, describe_empty_rows
from regard.runs.settings import Settings
from regard.runs.spec import DataSources, TrainSpec
from regard.tasks import Task
from regard.tasks.base import Encoded

LogFn = Callable[[str], None]


@dataclass(frozen=True)
class PreparedData:
    train: Encoded
    """tokens in memory-mapped files, without the texts"""
    valid: Encoded
    processor: Any
    """converts samples to tensors"""
    config: Any
    """model config with the vocabulary size of the tokenizer"""
    stats: dict[str, Any]
    """sample counts and data fingerprints"""
    labels: tuple[str, ...] = ()
    """classes; empty if the task has no classes"""
    head_options: str = ""
    """see `Task.head_options`"""


def read_samples(task: Task, paths: Sequence[str], columns: Mapping[str, str], log: LogFn) -> list[Any]:
    found: list[Any] = []
    empty: list[SkippedRow] = []
    for item in task.iter_samples(paths, columns or None):
        (empty if isinstance(item, SkippedRow) else found).append(item)
    if empty:
        log(describe_empty_rows(task, len(empty), empty[0].path, empty[0].line))
    return found


def validation_samples(task: Task, sources: DataSources, settings: Settings, log: LogFn) -> list[Any]:
    """Samples of the validation files, or the fraction of the training files held out by a content hash."""
    if sources.valid:
        return read_samples(task, sources.valid, dict(sources.columns), log)
    held = list(TrainingFiles(task, sources, settings.data.valid_fraction, log).scan().held)
    log(f"Evaluating on the {task.format_count(len(held))} held out during training.")
    return held


def _holdout_samples(task: Task, found: ScanResult, say: LogFn) -> list[Any]:
    held = len(found.held)
    say(
        f"note: no --valid given; {task.format_count(held)} held out for validation (data.valid_fraction, by content hash)."
    )
    return list(found.held)


def prepare(spec: TrainSpec, log: LogFn) -> PreparedData:
    task, settings, sources = spec.identity.task, spec.settings, spec.sources
    task.check_settings(spec.identity.config, task.batch_budget(settings.train), settings.data)
    own = validation_samples(task, sources, settings, log) if sources.valid else []
    files = TrainingFiles(task, sources, settings.data.valid_fraction, log, own)
    found = files.scan()
    found = replace(found, labels=task.head_labels(found.labels, settings.data))
    valid = own or _holdout_samples(task, found, log)
    reader, config = spec.processor, spec.identity.config  # tokenizer and config of a checkpoint already match
    reader = (
        task.default_processor(config, settings.data)
        if reader is None
        else task.adapt_processor(reader, config, settings.data)
    )
    if reader is None and not task.has_text:
        log(task.fit_message)
        reader = task.fit_processor(files.samples(found, "read"), config, settings.data)
        config = task.fit_config(config, reader)
    if reader is None:
        reader = task.build_processor(_make_tokenizer(files, found, settings, log, valid), config, settings.data)
        config = task.fit_config(config, reader)
    limit = LengthLimit.from_settings(settings, task, config)
    train = _load_or_encode(files, found, reader, config, settings, limit, log)
    encoded = task.encode(valid, reader, config, limit.max_length, settings.data, found.labels)
    limit.report("validation", task.num_rows(encoded), encoded.too_long[:1], len(encoded.too_long), log)
    task.validate_data(train, encoded, config, log)
    facts = {
        "train": task.num_samples(train),
        "valid": task.num_samples(encoded),
        "fingerprint": found.fingerprint,
        "valid_fingerprint": compute_fingerprint(task.fingerprint_texts(valid)),
    }
    log(f"Data      {facts['train']:,} training {task.unit}, {facts['valid']:,} validation {task.unit}")
    log(f"{'Tokenizer' if task.modality == 'text' else 'Input    '} {task.describe_processor(reader)}")
    return PreparedData(
        train, encoded, reader, config, facts, found.labels, task.head_options(valid, settings.data, train)
    )


def _make_tokenizer(
    files: TrainingFiles, found: ScanResult, settings: Settings, say: LogFn, valid: Sequence[Any]
) -> TextTokenizer:
    if settings.data.tokenizer:
        text = files.task.adapt_tokenizer(TextTokenizer.load(settings.data.tokenizer))
        say(f"Tokenizer {settings.data.tokenizer}")
        return text
    # The tokenizer depends on the texts, these settings and possibly the version of the library.
    made = (
        files.task.name,
        settings.data.vocab_size,
        settings.data.tokenizer_type,
        files.task.encoding_key(settings.data),
    )
    # a closed vocabulary must cover the validation data
    more = list(files.task.tokenizer_texts(valid)) if files.task.has_closed_vocabulary(settings.data) else []
    key = cache_key("tokenizer", tokenizers.__version__, found.fingerprint, compute_fingerprint(more), *made)
    if (kept := load_note(key)) is not None:
        say("Tokenizer loaded from the cache (trained earlier on the same texts)")
        return TextTokenizer(tokenizers.Tokenizer.from_str(kept))
    say("Training a tokenizer")
    texts = files.task.tokenizer_texts(files.samples(found, "read"))
    text = files.task.train_tokenizer(chain(texts, more), settings.data)
    save_note(key, text.backend.to_str())
    return text


@dataclass(frozen=True)
class LengthLimit:
    """Maximum number of tokens per side, and the setting with this limit."""

    max_length: int
    setting: str
    unit: str
    action: str = "are skipped"
    """treatment of longer samples"""

    @classmethod
    def from_settings(cls, settings: Settings, task: Task, config: Any) -> LengthLimit:
        if task.truncates:
            limit = min((settings.data.max_length, "data.max_length"), (config.max_length, "model.max_length"))
            return cls(*limit, task.unit, f"are truncated {task.truncation_side}")
        if not task.has_length_limit:
            return cls(10**9, "", task.unit)
        most = min((settings.data.max_length, "data.max_length"), task.length_limit(config, settings.train))
        return cls(*most, task.row_unit or task.unit)

    def report(self, name: str, remaining: int, examples: Sequence[Any], skipped: int, log: LogFn) -> None:
        """Log the number of samples above the limit and the first location. Raise an error if no samples remain."""
        if skipped:
            place = "".join(f"; first: {sample.path}, line {sample.line}" for sample in examples)
            most = f"more than {self.max_length:,} tokens ({self.setting})"
            log(f"warning: {skipped:,} {name} {self.unit} have {most} and {self.action}{place}")
        if not remaining:
            raise DataError(
                f"No {name} {self.unit} left: all have more than {self.max_length:,} tokens.",
                advice=f"Raise {self.setting}.",
            )


def _load_or_encode(
    files: TrainingFiles,
    found: ScanResult,
    reader: Any,
    config: Any,
    settings: Settings,
    limit: LengthLimit,
    say: LogFn,
) -> Encoded:
    """Encoded training samples, from the cache or computed now."""
    flavour = files.task.encoding_key(settings.data), found.labels, len(found.held)
    count, mark = files.task.row_encoding(reader)
    name = files.task.name if files.task.modality == "text" else f"{files.task.name} {files.task.modality}"
    if files.task.modality != "text":
        mark = f"{mark} {files.location_key()}"
    key = cache_key(VERSION, name, found.fingerprint, mark, limit.max_length, config.traits.special_ids, count, flavour)

    def encode(samples: Sequence[Any]) -> Encoded:
        return files.task.encode(samples, reader, config, limit.max_length, settings.data, found.labels)

    sides = {side: MAX_INT if side in files.task.count_fields else count for side in files.task.fields}
    what = "tokens" if files.task.modality == "text" else f"the list of {files.task.unit}"
    store = cached_store(key, sides, lambda writer: _write_tokens(files, found, encode, writer), say, what)
    skipped, place = store.metadata["too_long"], store.metadata["first"]
    # The store has the number of the sample, not its location: the same texts may be in other files now.
    first = list(islice(files.samples(found, "read"), place, place + 1)) if skipped else []
    how = files.task.batch_context(reader, config, limit.max_length, settings.data, found.labels)
    train = Encoded([], store.sides, [], how)
    limit.report("training", files.task.num_rows(train), first, skipped, say)
    return train


def _write_tokens(
    files: TrainingFiles, found: ScanResult, encode: Callable[[Sequence[Any]], Encoded], writer: StoreWriter
) -> dict[str, Any]:
    """Write encoded samples to the store. Returns the number of samples above the limit and the number of the first one."""
    done = skipped = first = 0
    for part in chunked(files.samples(found, "encoded"), ENCODE_BATCH // 10):
        encoded = encode(part)
        if encoded.too_long and not skipped:
            first = done + next(at for at, sample in enumerate(part) if sample is encoded.too_long[0])
        writer.add(**{name: list(side) for name, side in encoded.fields.items()})
        done, skipped = done + len(part), skipped + len(encoded.too_long)
    return {"samples": done, "too_long": skipped, "first": first}
