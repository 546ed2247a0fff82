"""Modalities: open inputs, make, load and save the processor, and batch samples. Files of images and point clouds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from torch import Tensor, nn

from regard.data.batching.samplers import BatchSampler, BatchShape
from regard.data.memory_tables import is_saved_file
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, InputError, InputTypeError, name_places
from regard.index import print_note
from regard.tasks.base import Encoded, EncodingContext, FieldRows, Inputs, Model, is_file
from regard.types import Batch

if TYPE_CHECKING:
    from regard.tasks.base import Objective

INLINE_MARKER = 2**16 - 1  # first value of a row with the contents of a file; rows with a path begin with a byte
InputFields = tuple[dict[str, FieldRows], list[Any]]  # fields of encoded inputs, and the samples above the length limit
InputBatches = Iterator[tuple[np.ndarray, Batch]]
"""Index of the input of each row, and the batch; an input may have several rows."""


FILE_TYPES = (str, bytes, bytearray, memoryview, os.PathLike)  # Path or contents of a file.


class Export(NamedTuple):
    """Facts about a model for the processor files of other programs."""

    max_length: int = 0  # maximum tokens of an input; 0: not in Hugging Face format
    pad_id: int | None = None  # padding token of the Hugging Face checkpoint from which the model was loaded


class Modality(Protocol):
    """Inputs of one kind: text, image or points."""

    name: ClassVar[str]
    noun: ClassVar[str]  # an input with its forms, for messages
    batch_unit: ClassVar[str]  # unit of the micro-batch budget and of the log
    settings: tuple[str, ...]  # task-specific settings with an effect for all objectives of this modality
    processor_files: ClassVar[tuple[str, ...]]  # files of the processor in a checkpoint folder
    default_batch_size: ClassVar[int] = 0
    """samples per micro-batch if `train.batch_size` is not set; 0: `train.batch_tokens` is the limit"""
    input_field: ClassVar[str]  # field of encoded inputs
    has_text: ClassVar[bool] = False  # True if the processor includes a tokenizer
    reads_files: ClassVar[bool] = False  # True if samples are files that are read when a batch is built
    initial_processor: Any = None
    """processor of new models before it is fitted, if settings of the user may be invalid for it"""
    fit_message: ClassVar[str] = ""  # log message during `fit_processor`
    max_inputs: int = 512  # maximum inputs per call of `predict`, whose predictions are held in memory together

    def is_single(self, inputs: Any) -> bool:
        """True for one input, False for a list of inputs."""

    # -- processor

    def default_processor(self, config: Any, data: DataSettings) -> Any:
        """Processor of a new model if no part of the processor is fitted to the data; otherwise None."""
        return None

    def fit_processor(self, samples: Iterable[Any], config: Any, data: DataSettings) -> Any:
        """Processor of a new model, fitted to samples; None for texts, which train a tokenizer instead."""
        return None

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> Any:
        """New tokenizer of inputs or targets, trained on texts."""

    def build_processor(self, text: Any, config: Any, data: DataSettings | None = None) -> Any:
        """Processor of a new model or head, from a trained or given tokenizer."""
        return text

    def load_processor(self, folder: Path) -> Any:
        """Processor from a checkpoint folder, or None."""

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        """Processor of a checkpoint, adapted to the training settings."""
        return processor

    def save_processor(self, processor: Any, config: Any, folder: Path, export: Export | None = None) -> None:
        """Save the processor in Hugging Face format. `export`: with the special tokens and limits for other programs."""
        processor.save(folder)

    def fit_config(self, config: Any, processor: Any) -> Any:
        """Model config with the values of the processor: vocabulary size and special token ids, palette or features."""
        return config

    def describe_processor(self, processor: Any) -> str:
        """Facts about the processor for the log."""

    def row_encoding(self, processor: Any) -> tuple[int, str]:
        """Number of distinct values in encoded rows, and a fingerprint of the processor for their cache."""
        return 2**16, ""

    # -- batches

    def encode(self, samples: Sequence[Any], config: Any, context: EncodingContext) -> InputFields:
        """Fields of the inputs, and the samples above the length limit."""

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Micro-batches of at most `tokens` units."""

    def eval_rows(self, encoded: Encoded, tokens: int) -> Iterator[np.ndarray]:
        """Row indices of the evaluation batches of all samples."""

    def validate_data(self, train: Encoded, valid: Encoded, log: Callable[[str], None]) -> None:
        """Report facts about the inputs before the first step."""
        return None

    def collate(
        self, encoded: Encoded, rows: np.ndarray, config: Any, labels: Tensor | None, shape: BatchShape | None = None
    ) -> Batch:
        """Batch of inputs with one label per sample."""

    # -- classification

    def class_head(self, config: Any, outputs: int) -> nn.Module:
        """Classifier on the pooled state of an input."""

    def pooled(self, model: Model, batch: Batch) -> tuple[Tensor, Any]:
        """(B, D) pooled state of each input, and further outputs of the body."""
        output = model.body(batch)
        return output.pooled, output

    def input_batches(self, model: Model, inputs: Inputs, count: int, decode: DecodeSettings) -> InputBatches:
        """Batches of inputs, or of the first `count` encoded samples."""


def batch_budget(modality: Modality, train: Any) -> int:
    """Size of a micro-batch in `batch_unit`."""
    if not modality.default_batch_size:
        return int(train.batch_tokens)
    return train.batch_size if train.batch_size > 0 else modality.default_batch_size


def readable_batch(build: Callable[[np.ndarray], Batch], rows: Any, objective: Objective) -> Batch:
    """Batch of sample indices (B,), or in training of (B, 2) with a random seed for each sample.

    In training, unreadable files are replaced by other files of the batch, with a warning."""
    rows = np.asarray(rows)
    try:
        return build(rows)
    except DataError:
        if rows.ndim == 1:
            raise
    readable = []
    for place in range(len(rows)):
        try:
            build(rows[place : place + 1])
            readable.append(place)
        except DataError as error:
            print_note(f"  warning: skipped: {error}")
            last_error = error
    if 2 * len(readable) < len(rows):
        unit = objective.task.reader.unit
        raise DataError(
            f"{len(rows) - len(readable)} of {len(rows)} {unit} cannot be read: {last_error}",
            advice=f"List all unreadable {unit} with 'regard check {objective.name}'.",
        )
    chosen = [place if place in readable else readable[place % len(readable)] for place in range(len(rows))]
    return build(np.stack([rows[chosen, 0], rows[:, 1]], axis=1))


def file_content(item: Any) -> str | bytes | None:
    """Path of a file or the contents of a file, also of an open file; None for other values."""
    if isinstance(item, str | os.PathLike):
        return os.fsdecode(item)
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    if not is_file(item):
        return None
    try:
        if item.seekable():
            item.seek(0)  # a second call reads the same
        content = item.read()
    except (AttributeError, OSError, ValueError) as error:
        raise InputError(f"The file object cannot be read: {error}.") from error
    if not isinstance(content, bytes):
        raise InputTypeError("Expected a file in binary mode, got text. Open the file with mode 'rb'.")
    return content


def sample_ids(rows: np.ndarray) -> np.ndarray:
    """Sample indices of rows (B,) or (B, 2)."""
    return rows[:, 0] if rows.ndim == 2 else rows


def sample_location(sample: Any) -> str:
    """File or table row of a sample, for messages."""
    embedded = not sample.source or is_saved_file(sample.source, sample.path)
    return name_places(f"{sample.path}, row {sample.line}") if embedded else sample.source


def reservoir_sample(samples: Iterable[Any], max_samples: int, seed: int = 0) -> list[Any]:
    """Uniform random choice of at most `max_samples` samples from a stream."""
    random, source = np.random.default_rng(seed), iter(samples)
    kept = list(islice(source, max_samples))
    for seen, sample in enumerate(source, max_samples + 1):
        place = int(random.integers(seen))
        if place < max_samples:
            kept[place] = sample
    return kept


def encode_source(source: str, content: bytes = b"") -> np.ndarray:
    """Path or contents of a file as integers for the token store."""
    if content:
        # uint16 as in the store: int64 would need four times the memory
        row = np.empty(1 + len(content), np.uint16)
        row[0], row[1:] = INLINE_MARKER, np.frombuffer(content, dtype=np.uint8)
        return row
    return np.frombuffer(os.fsencode(source), dtype=np.uint8).astype(np.uint16)


def decode_source(row: np.ndarray) -> str | bytes:
    """Path or contents of a file from a row of the token store."""
    if len(row) and row[0] == INLINE_MARKER:
        return row[1:].astype(np.uint8).tobytes()
    return os.fsdecode(row.astype(np.uint8).tobytes())
