"""Base class of tasks. Commands, runs, model cards and evaluation use only this interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from regard.data.batching.samplers import BatchSampler, BatchShape, FixedShape, LengthBucketed, PackedSampler
from regard.data.settings import DataSettings
from regard.data.sources import absolute_entry, expand_patterns, split_parallel
from regard.data.store.token_store import RaggedRows
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import TABLE_SUFFIXES
from regard.data.text.tables import read_text_column
from regard.decode.settings import SAMPLING_SETTINGS, DecodeSettings
from regard.errors import RegardError
from regard.tasks.processors import ProcessorMixin
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, Prediction

FieldRows = Sequence[np.ndarray] | RaggedRows

TEXT_SETTINGS = ("data.vocab_size", "data.tokenizer", "train.batch_tokens", "train.packing")
"""Settings of all text tasks. Text tasks without generation also use `ENCODING_SETTINGS`."""
ENCODING_SETTINGS = ("data.tokenizer_type", "data.max_length")
SEARCH_SETTINGS = tuple(
    f"decode.{name}"
    for name in (
        "num_beams",
        "length_penalty",
        "length_penalty_type",
        "early_stopping",
        "num_return_sequences",
        "do_sample",
        *SAMPLING_SETTINGS,
        "seed",
    )
)
"""Settings of all generation tasks. Text generation also uses `GENERATION_SETTINGS`."""
GENERATION_SETTINGS = tuple(
    f"decode.{name}" for name in ("repetition_penalty", "max_new_tokens", "max_length", "forced_eos", "stop_strings")
)


@dataclass(frozen=True)
class Encoded:
    """Encoded samples: one row of ids per sample and field, and the samples above the length limit.

    Training rows are memory-mapped files without `samples`."""

    samples: list[Any]
    fields: Mapping[str, FieldRows]
    too_long: list[Any]
    batch_context: Any = None
    """additional data for `Task.collate`: see `Task.batch_context`"""

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))


def row_lengths(rows: FieldRows) -> np.ndarray:
    return rows.lengths() if isinstance(rows, RaggedRows) else np.array([len(row) for row in rows], dtype=np.int64)


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms."""

    smoothing: float = 0.0
    """label smoothing"""
    auxiliary: float = 0.0
    """weight of the auxiliary language modeling loss"""


@dataclass(frozen=True)
class LossSum:
    """Sum of the loss on a dataset, and the number of labels in this sum; the mean loss is their quotient."""

    total: float
    count: float

    @property
    def mean(self) -> float:
        return self.total / self.count


EvalResult = tuple[dict[str, float | str], list[Prediction]]


METRIC_LABELS = {
    "bleu": "BLEU", **{f"bleu{n}": f"BLEU-{n}" for n in range(1, 5)}, "chrf": "chrF", "cider": "CIDEr", "f1": "F1",
    "macro_f1": "macro F1", "micro_f1": "micro F1", "mcc": "MCC", "miou": "mIoU", "mrr": "MRR", "rmse": "RMSE",
}  # fmt: skip
"""Printed names of metrics; other names are printed with spaces."""


class Task(ProcessorMixin):
    """Data format, encoding, loss, prediction and metrics of a task. Samples have the attributes `path` and `line`."""

    name: ClassVar[str]
    description: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """columns that the user can rename"""
    unit: ClassVar[str]
    """plural noun for samples"""
    metric: ClassVar[str]
    """score for model selection; the loss decides between equal scores"""
    lower_is_better: ClassVar[bool] = False
    """True if a lower score is better"""
    sample_type: ClassVar[type[Any]]
    """class of the samples"""
    fields: ClassVar[tuple[str, ...]]
    """fields of an encoded sample"""
    count_fields: ClassVar[tuple[str, ...]] = ()
    """fields of encoded samples with positions or counts instead of token ids; their values may exceed the vocabulary size"""
    default_model: ClassVar[str]
    """preset if no model is given"""
    multiline: ClassVar[bool] = False
    """True if predictions may have several lines"""
    has_length_limit: ClassVar[bool] = True
    """True if samples may exceed the length limit"""
    usage: ClassVar[str] = '"a text"'
    """example of an input on the command line"""
    generates: ClassVar[bool] = True
    """True if predictions are generated with the settings of `decode`"""
    has_labels: ClassVar[bool] = False
    """True if predictions are classes collected from the data"""
    keeps_label_order: ClassVar[bool] = False
    """True if classes keep the order of the data; otherwise classes are sorted"""
    truncates: ClassVar[bool] = False
    """True if long samples are truncated instead of skipped"""
    truncation_side: ClassVar[str] = "in the middle"
    """truncated part of a sample"""
    allows_empty_prompt: ClassVar[bool] = False
    """True if the empty prompt is valid input"""
    has_file_output: ClassVar[bool] = False
    """True if predictions are images or point clouds, written to files"""
    max_inputs: ClassVar[int] = 512
    """maximum inputs per call of `predict`, whose predictions are held in memory together"""
    modality: ClassVar[str] = "text"
    """input modality: text, image or points. A task may have one class per modality"""
    row_unit: ClassVar[str] = ""
    """plural noun for the rows with a length limit, if a sample has several rows; empty: `unit`"""
    batch_unit: ClassVar[str] = "tokens"
    """unit of the micro-batch budget and of the log"""
    min_valid_samples: ClassVar[int] = 100
    """minimum number of held-out samples or groups in large datasets: scores of fewer samples are imprecise"""
    table_suffixes: ClassVar[tuple[str, ...]] = TABLE_SUFFIXES
    """suffixes of files with one input per row; other files have one input per line"""
    settings_used: ClassVar[tuple[str, ...]] = TEXT_SETTINGS
    """task-specific settings with an effect in this task. Settings in no such list apply to all tasks"""

    def format_count(self, count: int) -> str:
        """Number of samples with the unit."""
        return f"{count:,} {self.unit if count != 1 else self.unit.removesuffix('s')}"

    def expand_entries(self, data: Sequence[str]) -> list[str]:
        """Files for paths and glob patterns."""
        return expand_patterns(data)

    def absolute_path(self, entry: str) -> str:
        """The data entry with absolute paths."""
        return absolute_entry(entry)

    def validation_entries(self, data: Sequence[str]) -> Sequence[str]:
        """Entries of a dataset's own validation split. Empty: a fraction of the training data is held out."""
        return ()

    def paths(self, entry: str) -> Sequence[str]:
        """Files or folders of a data entry."""
        return split_parallel(entry) or (entry,)

    def iter_samples(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Iterate over samples, with a `SkippedRow` for each skipped row."""
        raise NotImplementedError

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        """Line number and input of `predict` for each row of a table without labels. The input of an empty row is None."""
        return read_text_column(entry, columns, complain)

    def split_key(self, sample: Any) -> str:
        """Samples with equal keys are in the same split, to prevent leaks between training and validation."""
        raise NotImplementedError

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """All texts of the samples, for the fingerprint of the data."""
        raise NotImplementedError

    def tokenizer_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """Training texts of the tokenizer."""
        return self.fingerprint_texts(samples)

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        """Settings that affect the encoding of samples."""
        return ()

    def labels(self, sample: Any) -> Iterable[str]:
        """Classes of a sample. Empty if the task has no classes."""
        return ()

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        """Classes of the head, computed from the classes in the data."""
        return tuple(labels)

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Raise an error before the first step for data that would stop or invalidate a later validation."""

    def num_rows(self, encoded: Encoded) -> int:
        """Number of rows within the length limit."""
        return len(encoded)

    def num_samples(self, encoded: Encoded) -> int:
        """Number of samples. A sample may have several rows."""
        return len(encoded)

    def mark_gap(self, sample: Any, removed: Any) -> Any:
        """The sample, marked as following a gap; `removed` is the first of the samples removed before it."""
        return sample

    def length_limit(self, config: Any, train: Any) -> tuple[int, str]:
        """Maximum tokens per side besides `data.max_length`, and the setting that limits them: a sample and its special
        tokens must fit into a micro-batch."""
        return int(train.batch_tokens) // len(self.fields) - 1, "train.batch_tokens"

    def label_source(self, data: Sequence[str]) -> str:
        """Content of a file next to the data with class definitions. Empty if such a file has no effect."""
        return ""

    def batch_budget(self, train: Any) -> int:
        """Size of a micro-batch in `batch_unit`."""
        return int(train.batch_tokens)

    def usage_for(self, samples: Sequence[Any]) -> str:
        """Example of a command-line input, for a model trained on such samples."""
        return self.usage

    def from_folder(self, folder: Path) -> Task:
        """The task with the options stored in a checkpoint folder."""
        return self

    def extra_files(self, config: Any) -> dict[str, Any]:
        """Contents of additional JSON files of a Hugging Face checkpoint, by file name."""
        return {}

    def adapt_config(self, config: Any) -> Any:
        """Model config with the optional modules that this task requires."""
        return config

    def unused_modules(self, body: Any, config: Any) -> Sequence[nn.Module]:
        """Modules of the body without an effect on the output of this task. These modules are frozen."""
        return ()

    def head_options(self, samples: Sequence[Any], data: DataSettings, train: Encoded) -> str:
        """Options of the head as a string in the checkpoint, for example the order of two texts (`data.pair_order`),
        multi-label classification or the tagging scheme; empty if there are none. `samples` are the validation samples;
        `train` contains only encoded rows."""
        return ""

    def parse_head_options(self, published_config: Mapping[str, Any], labels: Sequence[str]) -> str:
        """Head options from a Hugging Face config."""
        return ""

    def export_head_options(self, head_options: str) -> dict[str, Any]:
        """Keys of a Hugging Face config for the head options."""
        return {}

    def unsupported_by_layout(self, labels: Sequence[str]) -> str:
        """Reason why the Hugging Face format cannot represent a model with these labels, or an empty string."""
        return ""

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        """Raise an error for invalid settings before data is read. `tokens`: tokens per micro-batch."""

    def fit_config(self, config: Any, processor: Any) -> Any:
        """Model config with the values from the processor: vocabulary size and special token ids, or the color palette."""
        raise NotImplementedError

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        """Head on the hidden states of the body. None: the body has the output layer."""
        return None

    def encode(
        self, samples: Sequence[Any], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Encode samples with the processor (a tokenizer, an image or point processor, or a color palette)."""
        raise NotImplementedError

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> Any:
        """Additional data for `collate`, for example augmentation or token masking."""
        return None

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, fields) number of positions per sample."""
        return np.stack([row_lengths(side) for side in encoded.fields.values()], axis=1)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        if packed and not config.traits.packs:
            return FixedShape(self.lengths(encoded), tokens, seed)
        return (PackedSampler if packed else LengthBucketed)(self.lengths(encoded), tokens, seed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        raise NotImplementedError

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        """Batches of all samples, for the evaluation loss."""
        lengths = self.lengths(encoded)
        for rows in LengthBucketed(lengths, max(tokens, int(lengths.sum(1).max())), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """Logits of the model."""
        return model.body.to_logits(model.body(batch).sequence)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count) of the loss. Gradient accumulation and data parallelism divide by the global count."""
        raise NotImplementedError

    def is_single(self, inputs: Any) -> bool:
        """True for a single input, False for a list of inputs."""
        return isinstance(inputs, str)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Predictions in input order. Input i has the random stream `first + i`."""
        raise NotImplementedError

    def can_stream(self, decode: DecodeSettings) -> bool:
        """True if the prediction can be streamed."""
        return False

    def stream_prediction(
        self, model: ModelProtocol, prompt: str, decode: DecodeSettings, first: int = 0
    ) -> Iterator[str]:
        raise RegardError(f"Task '{self.name}' does not support streaming.")

    def rank(self, model: ModelProtocol, prompt: str, choices: Sequence[str]) -> Prediction:
        """Rank the choices by the likelihood after the prompt."""
        raise RegardError(f"Task '{self.name}' cannot rank choices. Use a model trained for task 'lm' or 'choose'.")

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """Metrics of the task, and predictions for the first `max_samples` (None: all); `sums` is the loss on all samples."""
        raise NotImplementedError

    def selection_metric(self, scores: Mapping[str, Any]) -> str:
        """Name of the score for model selection."""
        return self.metric

    def fast_decode(self, decode: DecodeSettings) -> DecodeSettings:
        """Decode settings for validation during training: greedy search. Full settings apply at the end."""
        return replace(decode, num_beams=1, num_return_sequences=1, do_sample=False)

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        """Validation scores in one line."""
        return "  ".join(
            f"{METRIC_LABELS.get(name, name.replace('_', ' '))} {value:.2f}"
            for name, value in scores.items()
            if isinstance(value, float) and name != "loss"
        )

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        """Save figures of the predictions to the run folder, and return the file names."""
        return []

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Write a prediction as an image and data files, and return the paths by kind (tasks with file output)."""
        return {}

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """Prediction as text for the terminal."""
        return str(prediction.value)

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        """A sample with its prediction as a table row."""
        raise NotImplementedError

    def format_example(self, sample: Any, prediction: Prediction) -> str:
        """A sample with its prediction as indented lines, one per value."""
        rows = self.example_row(sample, prediction).items()
        return "".join(f"    {name}: {' ⏎ '.join(str(value).splitlines())}\n" for name, value in rows)
