"""Processor, head options and encoded samples of a training run, before the run folder is created.

Training samples are encoded in chunks and stored as tokens in memory-mapped files; validation samples stay in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any

import tokenizers

from regard.data.settings import DataSettings
from regard.data.store import MAX_INT, VERSION, Rows, cache_key, cached_store, load_note, save_note
from regard.data.text.files import chunked
from regard.data.training_files import (
    DataSources,
    LogFn,
    ScanResult,
    TrainingFiles,
    content_fingerprint,
    read_samples,
)
from regard.errors import DataError, name_places
from regard.processors.tokenizer.tokenizer import ENCODE_BATCH, TextTokenizer
from regard.tasks import Task
from regard.tasks.base import Encoded, EncodingContext, HeadOptions


@dataclass(frozen=True)
class PreparedData:
    train: Encoded  # tokens in memory-mapped files, without the texts
    valid: Encoded
    processor: Any  # converts samples to tensors
    config: Any  # model config with the vocabulary size of the tokenizer
    stats: dict[str, Any]  # sample counts and data fingerprints
    options: HeadOptions  # classes and other options of the head


def prepare(identity: Any, processor: Any, sources: DataSources, settings: Any, log: LogFn) -> PreparedData:
    """Encoded samples, and the processor, config and head options for them. `identity`: `ModelSpec` of the new model.
    `processor`: processor of a checkpoint folder, whose config already matches; None: a new processor is created.
    `settings`: settings of the run."""
    task, config, data = identity.task, identity.config, settings.data
    reader, objective = task.reader, task.objective
    modality = objective.modality
    others = len(sources.data) - 5
    more = f" and {others:,} more" if others > 0 else ""
    log(name_places(f"Reading {', '.join(sources.data[:5])}{more}"))
    own = list(read_samples(task, sources.valid, sources.columns, log)) if sources.valid else []
    files = TrainingFiles(task, sources, data.valid_fraction, log, own)
    found = files.scan()
    valid = own or list(found.held)
    valid_fingerprint = content_fingerprint(reader, valid)
    if not own:
        held = f"{reader.format_count(len(valid))} held out for validation (data.valid_fraction, by content hash)."
        log(f"note: no --valid given; {held}")
    # validation masks of other files may have no class file
    known = [*islice(files.samples(found, "read"), 1), *valid] if own else valid
    options = objective.options.fit(replace(identity.options, labels=tuple(found.labels)), known, data)
    if processor is None:
        processor = modality.default_processor(config, data)
    else:
        processor = modality.adapt_processor(processor, config, data)
    if processor is None:
        if modality.has_text:
            tokenizer = _make_tokenizer(files, found, data, log, valid)
            processor = modality.build_processor(tokenizer, config, data)
        else:
            log(modality.fit_message)
            processor = modality.fit_processor(files.samples(found, "read"), config, data)
        config = modality.fit_config(config, processor)
    if modality.has_text and data.split_special_tokens is not None:
        text = processor if task.input == "text" else processor.text
        text.split_special_tokens = data.split_special_tokens
    limit = LengthLimit.from_settings(data, settings.train.batch_tokens, task, config)
    context = EncodingContext(processor, limit.max_length, data, options)
    encoded = objective.encode(valid, config, replace(context, cache={}))
    train = _load_or_encode(files, found, config, context, limit, log)
    limit.report("validation", encoded.num_rows, encoded.too_long[:1], len(encoded.too_long), log)
    objective.validate_data(train, encoded, config, log)
    facts = {
        "train": train.num_samples,
        "valid": encoded.num_samples,
        "fingerprint": found.fingerprint,
        "valid_fingerprint": valid_fingerprint,
    }
    log(f"Data      {facts['train']:,} training {reader.unit}, {facts['valid']:,} validation {reader.unit}")
    log(f"{'Tokenizer' if task.input == 'text' else 'Input    '} {modality.describe_processor(processor)}")
    return PreparedData(train, encoded, processor, config, facts, objective.options.complete(options, train))


def _make_tokenizer(
    files: TrainingFiles, found: ScanResult, data: DataSettings, say: LogFn, valid: Sequence[Any]
) -> TextTokenizer:
    if data.tokenizer:
        text = TextTokenizer.load(data.tokenizer)
        say(f"Tokenizer {data.tokenizer}")
        return text
    task, reader, objective = files.task, files.reader, files.task.objective
    # The tokenizer depends on the texts, these settings and possibly the version of the library.
    encoding = tuple(getattr(data, name) for name in objective.encoding_settings)
    made = (task.name, data.vocab_size, data.tokenizer_type, encoding)
    # a closed vocabulary must cover the validation data
    closed = task.name == "algorithmic" or data.tokenizer_type == "char"
    more = [text for sample in valid for text in reader.texts(sample)] if closed else []
    key = cache_key("tokenizer", tokenizers.__version__, found.fingerprint, more, *made)
    if (kept := load_note(key)) is not None:
        say("Tokenizer loaded from the cache (trained earlier on the same texts)")
        return TextTokenizer(tokenizers.Tokenizer.from_str(kept))
    say("Training a tokenizer")
    texts = (text for sample in files.samples(found, "read") for text in reader.texts(sample))
    text = objective.modality.train_tokenizer(chain(texts, more), data)
    save_note(key, text.backend.to_str())
    return text


@dataclass(frozen=True)
class LengthLimit:
    """Maximum number of tokens per side, and the setting with this limit."""

    max_length: int
    setting: str
    unit: str
    action: str = "are skipped"  # treatment of longer samples

    @classmethod
    def from_settings(cls, data: DataSettings, batch_tokens: int, task: Task, config: Any) -> LengthLimit:
        objective, unit = task.objective, task.reader.unit
        longest = (data.max_length, "data.max_length")
        if task.input == "text" and objective.truncation:
            limit = min(longest, (config.max_length, "model.max_length"))
            return cls(*limit, unit, f"are truncated {objective.truncation}")
        if not objective.modality.has_text or not objective.has_length_limit:
            return cls(10**9, "", unit)
        if task.input != "text":
            return cls(*min(longest, (config.max_length - 1, "model.max_length")), objective.row_unit or unit)
        # a sample and its special tokens must fit into a micro-batch
        room = batch_tokens // len(objective.fields) - 1
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


def _load_or_encode(
    files: TrainingFiles, found: ScanResult, config: Any, context: EncodingContext, limit: LengthLimit, say: LogFn
) -> Encoded:
    """Encoded training samples, from the cache or computed now."""
    task, objective = files.task, files.task.objective
    encoding = tuple(getattr(context.data, name) for name in objective.encoding_settings)
    labels, pooling = context.options.labels, context.options.pooling
    limits = None if pooling is None else (pooling.max_length, pooling.lowercase)
    flavor = encoding, (labels, limits), len(found.held)
    count, mark = objective.modality.row_encoding(context.processor)
    name, what = task.name, "tokens"
    if task.input != "text":
        name, what = f"{task.name} {task.input}", f"the list of {files.reader.unit}"
        mark = f"{mark} {files.location_key()}"
    # the traits contain special tokens and separators: systems encode the same samples differently
    traits = asdict(config.traits)
    key = cache_key(VERSION, name, found.fingerprint, mark, limit.max_length, traits, count, flavor)

    def encode_chunks() -> Iterator[tuple[Rows, dict[str, int]]]:
        """Rows, and so far: the number of samples, of samples above the limit, and the number of the first of these."""
        done = skipped = first = 0
        for part in chunked(files.samples(found, "encoded"), ENCODE_BATCH // 10):
            encoded = objective.encode(part, config, replace(context, cache={}))
            if encoded.too_long and not skipped:
                first = done + next(at for at, sample in enumerate(part) if sample is encoded.too_long[0])
            done, skipped = done + len(part), skipped + len(encoded.too_long)
            rows = {name: list(side) for name, side in encoded.fields.items()}
            yield rows, {"samples": done, "too_long": skipped, "first": first}

    sides = {side: MAX_INT if side in objective.count_fields else count for side in objective.fields}
    store = cached_store(key, sides, encode_chunks, say, what)
    skipped, place = store.metadata["too_long"], store.metadata["first"]
    # The store has the number of the sample, not its location: the same texts may be in other files now.
    first = list(islice(files.samples(found, "read"), place, place + 1)) if skipped else []
    train = Encoded([], store.sides, [], context)
    limit.report("training", train.num_rows, first, skipped, say)
    return train
