"""Read and check all training data before the run folder is created.

Validation samples stay in memory; training samples are encoded in chunks and stored as tokens in memory-mapped files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import tokenizers

from regard.data.batching.split import compute_fingerprint
from regard.data.settings import DataSettings
from regard.data.store import MAX_INT, VERSION, StoreWriter, cache_key, cached_store, load_note, save_note
from regard.data.text.files import chunked
from regard.data.text.tables import SkippedRow
from regard.errors import DataError
from regard.processors.tokenizer.tokenizer import ENCODE_BATCH, TextTokenizer
from regard.runs.scan import ScanResult, TrainingFiles, describe_empty_rows
from regard.runs.settings import Settings
from regard.runs.spec import DataSources, TrainSpec
from regard.tasks import Task
from regard.tasks.base import Encoded, EncodingContext, HeadOptions
from regard.tasks.modality.base import batch_budget

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
    options: HeadOptions
    """classes and other options of the head"""


def read_samples(task: Task, paths: Sequence[str], columns: Mapping[str, str], log: LogFn) -> list[Any]:
    found: list[Any] = []
    empty: list[SkippedRow] = []
    for item in task.reader.samples(paths, columns or None):
        (empty if isinstance(item, SkippedRow) else found).append(item)
    if empty:
        log(describe_empty_rows(task, len(empty), empty[0].path, empty[0].line))
    return found


def validation_samples(task: Task, sources: DataSources, settings: Settings, log: LogFn) -> list[Any]:
    """Samples of the validation files, or the fraction of the training files held out by a content hash."""
    if sources.valid:
        return read_samples(task, sources.valid, dict(sources.columns), log)
    held = list(TrainingFiles(task, sources, settings.data.valid_fraction, log).scan().held)
    log(f"Evaluating on the {task.reader.format_count(len(held))} held out during training.")
    return held


def content_fingerprint(task: Task, samples: Sequence[Any]) -> str:
    """Fingerprint of texts and targets."""
    return compute_fingerprint(text for sample in samples for text in task.reader.contents(sample))


def prepare(spec: TrainSpec, log: LogFn) -> PreparedData:
    task, settings, sources = spec.identity.task, spec.settings, spec.sources
    reader, objective, modality, data = task.reader, task.objective, task.modality, settings.data
    objective.check_settings(spec.identity.config, batch_budget(modality, settings.train), data)
    own = validation_samples(task, sources, settings, log) if sources.valid else []
    files = TrainingFiles(task, sources, data.valid_fraction, log, own)
    found = files.scan()
    valid = own or list(found.held)
    if not own:
        held = f"{reader.format_count(len(valid))} held out for validation (data.valid_fraction, by content hash)."
        log(f"note: no --valid given; {held}")
    options = objective.options.fit(found.labels, valid, data, spec.identity.options)
    processor, config = spec.processor, spec.identity.config  # tokenizer and config of a checkpoint already match
    if processor is None:
        processor = modality.default_processor(config, data)
    else:
        processor = modality.adapt_processor(processor, config, data)
    if processor is None:
        if task.has_text:
            tokenizer = _make_tokenizer(files, found, settings, log, valid)
            processor = modality.build_processor(tokenizer, config, data)
        else:
            log(modality.fit_message)
            processor = modality.fit_processor(files.samples(found, "read"), config, data)
        config = modality.fit_config(config, processor)
    limit = LengthLimit.from_settings(settings, task, config)
    context = EncodingContext(processor, limit.max_length, data, options)
    train = _load_or_encode(files, found, config, context, limit, log)
    encoded = objective.encode(valid, processor, config, limit.max_length, data, options)
    limit.report("validation", encoded.num_rows, encoded.too_long[:1], len(encoded.too_long), log)
    objective.validate_data(train, encoded, config, log)
    facts = {
        "train": train.num_samples,
        "valid": encoded.num_samples,
        "fingerprint": found.fingerprint,
        "valid_fingerprint": content_fingerprint(task, valid),
    }
    log(f"Data      {facts['train']:,} training {reader.unit}, {facts['valid']:,} validation {reader.unit}")
    log(f"{'Tokenizer' if task.input == 'text' else 'Input    '} {modality.describe_processor(processor)}")
    return PreparedData(train, encoded, processor, config, facts, objective.options.complete(options, train))


def _make_tokenizer(
    files: TrainingFiles, found: ScanResult, settings: Settings, say: LogFn, valid: Sequence[Any]
) -> TextTokenizer:
    if settings.data.tokenizer:
        text = TextTokenizer.load(settings.data.tokenizer)
        say(f"Tokenizer {settings.data.tokenizer}")
        return text
    modality, reader = files.task.modality, files.reader
    # The tokenizer depends on the texts, these settings and possibly the version of the library.
    made = (
        files.task.name,
        settings.data.vocab_size,
        settings.data.tokenizer_type,
        _encoding_key(files.task, settings.data),
    )
    # a closed vocabulary must cover the validation data
    closed = files.task.name == "algorithmic" or settings.data.tokenizer_type == "char"
    more = [text for sample in valid for text in reader.texts(sample)] if closed else []
    key = cache_key("tokenizer", tokenizers.__version__, found.fingerprint, compute_fingerprint(more), *made)
    if (kept := load_note(key)) is not None:
        say("Tokenizer loaded from the cache (trained earlier on the same texts)")
        return TextTokenizer(tokenizers.Tokenizer.from_str(kept))
    say("Training a tokenizer")
    texts = (text for sample in files.samples(found, "read") for text in reader.texts(sample))
    text = modality.train_tokenizer(chain(texts, more), settings.data)
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
        objective, unit = task.objective, task.reader.unit
        longest = (settings.data.max_length, "data.max_length")
        if task.input == "text" and objective.truncation:
            limit = min(longest, (config.max_length, "model.max_length"))
            return cls(*limit, unit, f"are truncated {objective.truncation}")
        if not task.has_text or not objective.has_length_limit:
            return cls(10**9, "", unit)
        if task.input != "text":
            return cls(*min(longest, (config.max_length - 1, "model.max_length")), objective.row_unit or unit)
        # a sample and its special tokens must fit into a micro-batch
        room = int(settings.train.batch_tokens) // len(objective.fields) - 1
        return cls(*min(longest, (room, "train.batch_tokens")), objective.row_unit or unit)

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


def _encoding_key(task: Task, data: DataSettings) -> tuple[Any, ...]:
    """Settings that affect the encoding of samples."""
    return tuple(getattr(data, name) for name in task.objective.encoding_settings)


def _load_or_encode(
    files: TrainingFiles, found: ScanResult, config: Any, context: EncodingContext, limit: LengthLimit, say: LogFn
) -> Encoded:
    """Encoded training samples, from the cache or computed now."""
    assert context.data is not None
    task, objective, processor, data, options = (
        files.task,
        files.task.objective,
        context.processor,
        context.data,
        context.options,
    )
    special = config.traits.special_ids
    flavor = _encoding_key(task, data), options.encoding_key, len(found.held)
    count, mark = task.modality.row_encoding(processor)
    name, what = task.name, "tokens"
    if task.input != "text":
        name, what = f"{task.name} {task.input}", f"the list of {files.reader.unit}"
        mark = f"{mark} {files.location_key()}"
    key = cache_key(VERSION, name, found.fingerprint, mark, limit.max_length, special, count, flavor)

    def encode(samples: Sequence[Any]) -> Encoded:
        return objective.encode(samples, processor, config, limit.max_length, data, options)

    sides = {side: MAX_INT if side in objective.count_fields else count for side in objective.fields}
    store = cached_store(key, sides, lambda writer: _write_tokens(files, found, encode, writer), say, what)
    skipped, place = store.metadata["too_long"], store.metadata["first"]
    # The store has the number of the sample, not its location: the same texts may be in other files now.
    first = list(islice(files.samples(found, "read"), place, place + 1)) if skipped else []
    train = Encoded([], store.sides, [], context)
    limit.report("training", train.num_rows, first, skipped, say)
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
