"""What every task offers. Commands, runs, cards and evaluation know a task by these words and by nothing else."""

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
from regard.data.text import unlabeled_rows
from regard.data.text.files import ErrorHandler
from regard.decode.settings import SAMPLING_SETTINGS, DecodeSettings
from regard.errors import RegardError
from regard.tasks.processors import ProcessorMixin
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch, Prediction

FieldRows = Sequence[np.ndarray] | RaggedRows

TEXT_SETTINGS = ("data.vocab_size", "data.tokenizer", "train.batch_tokens", "train.packing")
"""Settings of all that reads text; of what reads one text or two at a time also `READ`."""
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
"""Settings of all that generates; those of what generates text are also `SPOKEN`."""
GENERATION_SETTINGS = tuple(
    f"decode.{name}" for name in ("repetition_penalty", "max_new_tokens", "max_length", "forced_eos", "stop_strings")
)


@dataclass(frozen=True)
class Encoded:
    """Samples as rows of ids on one or more sides; and those that were too long.

    What is trained on lies in mapped files, and its samples are not kept."""

    samples: list[Any]
    fields: Mapping[str, FieldRows]
    too_long: list[Any]
    batch_context: Any = None
    """what the task must know beside the rows to make batches of them: see `Task.how`"""

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))


def row_lengths(rows: FieldRows) -> np.ndarray:
    return rows.lengths() if isinstance(rows, RaggedRows) else np.array([len(row) for row in rows], dtype=np.int64)


@dataclass(frozen=True)
class LossWeights:
    """What the loss is made of beside the task's own likelihood."""

    smoothing: float = 0.0
    """share of probability that goes to the other classes"""
    auxiliary: float = 0.0
    """weight of the language-model loss beside a task's own"""


@dataclass(frozen=True)
class LossSum:
    """The loss on some data, before it is divided."""

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
    """A sample is what the task's files hold: it has a `path` and a `line`, and the rest is the task's affair."""

    name: ClassVar[str]
    description: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """that a person may name"""
    unit: ClassVar[str]
    """what samples are called"""
    metric: ClassVar[str]
    """which score decides between two models; the loss does where it is equal"""
    lower_is_better: ClassVar[bool] = False
    """whether a lower one is better"""
    sample_type: ClassVar[type[Any]]
    """the kind of its samples"""
    fields: ClassVar[tuple[str, ...]]
    """of its rows of ids"""
    count_fields: ClassVar[tuple[str, ...]] = ()
    """those of them that hold places and counts, which may be larger than any id"""
    default_model: ClassVar[str]
    """the preset that is trained when none is named"""
    multiline: ClassVar[bool] = False
    """whether answers may run over several lines"""
    has_length_limit: ClassVar[bool] = True
    """whether a sample can be too long"""
    usage: ClassVar[str] = '"a text"'
    """an input as it is written on a command line"""
    generates: ClassVar[bool] = True
    """whether answers are searched for, as settings of decode say"""
    has_labels: ClassVar[bool] = False
    """whether answers are classes that are found in the data"""
    keeps_label_order: ClassVar[bool] = False
    """whether classes keep the order in which the data names them; else they are put in order"""
    truncates: ClassVar[bool] = False
    """whether what is too long is cut, and not skipped"""
    truncation_side: ClassVar[str] = "in the middle"
    """where it is cut"""
    allows_empty_prompt: ClassVar[bool] = False
    """whether there is an answer to nothing: "" then"""
    has_file_output: ClassVar[bool] = False
    """whether answers are pictures or clouds, which are left as files"""
    max_inputs: ClassVar[int] = 512
    """inputs that are answered together at most: answers are held until all of these are there"""
    modality: ClassVar[str] = "text"
    """what its samples are made of: text, pictures or points. Bodies read one kind, and a task may have a form for each"""
    row_unit: ClassVar[str] = ""
    """what that is called which may be too long, where a sample has several; else the unit"""
    batch_unit: ClassVar[str] = "tokens"
    """what the budget of a grain counts, and the log"""
    min_valid_samples: ClassVar[int] = 100
    """samples, or what they belong to, that are held out where there are enough: a score of fewer is rough"""
    table_suffixes: ClassVar[tuple[str, ...]] = unlabeled_rows.TABLE_SUFFIXES
    """suffixes of files that it is asked a row at a time; of others it is a line"""
    settings_used: ClassVar[tuple[str, ...]] = TEXT_SETTINGS
    """settings that mean something to it and not to every task: what no task names means something to all"""

    def format_count(self, count: int) -> str:
        """So many samples, in words."""
        return f"{count:,} {self.unit if count != 1 else self.unit.removesuffix('s')}"

    def expand_entries(self, data: Sequence[str]) -> list[str]:
        """The files that paths and patterns stand for."""
        return expand_patterns(data)

    def absolute_path(self, entry: str) -> str:
        """The same entry, wherever one stands."""
        return absolute_entry(entry)

    def validation_entries(self, data: Sequence[str]) -> Sequence[str]:
        """Entries to validate by, of data that brings its own; none: a share is held out."""
        return ()

    def paths(self, entry: str) -> Sequence[str]:
        """The files or folders that an entry names."""
        return split_parallel(entry) or (entry,)

    def iter_samples(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Samples one by one, and the places of rows that are left out (`Empty`)."""
        raise NotImplementedError

    def iter_inputs(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[tuple[int, Any]]:
        """What a file with columns asks: the line of each row and what `answer` takes, or None where it is blank."""
        return unlabeled_rows.read_texts(entry, columns, complain)

    def split_key(self, sample: Any) -> str:
        """What must not stand on both sides of a split."""
        raise NotImplementedError

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """All that is text in samples, by which data is known again."""
        raise NotImplementedError

    def tokenizer_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """Those of them that a tokenizer is made of."""
        return self.fingerprint_texts(samples)

    def encoding_key(self, data: DataSettings) -> tuple[Any, ...]:
        """Settings that change how samples are encoded."""
        return ()

    def labels(self, sample: Any) -> Iterable[str]:
        """The classes that a sample shows, where the task has classes."""
        return ()

    def head_labels(self, labels: Sequence[str], data: DataSettings) -> tuple[str, ...]:
        """The classes that a head tells apart, of those that occur in the data."""
        return tuple(labels)

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Before the first step: what could stop a validation later, or make the whole training vain."""

    def num_rows(self, encoded: Encoded) -> int:
        """How many are left of what may be too long."""
        return len(encoded)

    def num_samples(self, encoded: Encoded) -> int:
        """How many samples these are, where a sample may be several rows."""
        return len(encoded)

    def mark_gap(self, sample: Any, removed: Any) -> Any:
        """The same sample where others were taken out before it, of which `taken` was the first."""
        return sample

    def length_limit(self, config: Any, train: Any) -> tuple[int, str]:
        """Maximum tokens per side besides `data.max_length`, and the setting that limits them: a sample and its special
        tokens must fit into a micro-batch."""
        return int(train.batch_tokens) // len(self.fields) - 1, "train.batch_tokens"

    def label_source(self, data: Sequence[str]) -> str:
        """What a file beside the data says of it, and decides about its classes."""
        return ""

    def batch_budget(self, train: Any) -> int:
        """What a grain has room for, in what is `counted`."""
        return int(train.batch_tokens)

    def usage_for(self, samples: Sequence[Any]) -> str:
        """An input as it is written on a command line, for a model that knows such samples."""
        return self.usage

    def from_folder(self, folder: Path) -> Task:
        """The task as the files of a folder say it, beside its weights."""
        return self

    def extra_files(self, config: Any) -> dict[str, Any]:
        """JSON files that others look for beside the weights, by their names."""
        return {}

    def adapt_config(self, config: Any) -> Any:
        """The system's config with those parts of the body that this task needs."""
        return config

    def unused_modules(self, body: Any, config: Any) -> Sequence[nn.Module]:
        """Parts of the body that this task never reads: they do not learn."""
        return ()

    def head_options(self, samples: Sequence[Any], data: DataSettings, train: Encoded) -> str:
        """What a model must know of how it has learnt, in words (`Identity.pair`): how the two texts of a sample are read
        together (`data.pair_order`), whether it may have several labels, or what its tags spell; nothing where none of it is.
        `samples` are those of validation; of those to `train` on there are the rows."""
        return ""

    def parse_head_options(self, published_config: Mapping[str, Any], labels: Sequence[str]) -> str:
        """The same as a published config says it."""
        return ""

    def export_head_options(self, head_options: str) -> dict[str, Any]:
        """The keys by which a published config says it."""
        return {}

    def unsupported_by_layout(self, labels: Sequence[str]) -> str:
        """What no published layout can say of a model with these labels; empty when it can say all."""
        return ""

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        """Refuse settings that cannot work, before anything is read; `tokens` are those of a grain."""

    def fit_config(self, config: Any, processor: Any) -> Any:
        """The system's config with what its reader decides: vocabulary and special tokens, or colours."""
        raise NotImplementedError

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        """What is put on the body's states; None: the body itself reads them."""
        return None

    def encode(
        self, samples: Sequence[Any], processor: Any, config: Any, max_length: int, data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Samples as rows; `reader` turns them into numbers: a tokenizer, pixels or a palette."""
        raise NotImplementedError

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> Any:
        """What batches of encoded samples are made by, where the samples themselves do not say it."""
        return None

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, sides): positions that each sample costs."""
        return np.stack([row_lengths(side) for side in encoded.fields.values()], axis=1)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        if packed and not getattr(config, "packs", True):
            return FixedShape(self.lengths(encoded), tokens, seed)
        return (PackedSampler if packed else LengthBucketed)(self.lengths(encoded), tokens, seed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        raise NotImplementedError

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        """All samples in order, to measure the loss."""
        lengths = self.lengths(encoded)
        for rows in LengthBucketed(lengths, max(tokens, int(lengths.sum(1).max())), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        """What the model says before any softmax."""
        return model.body.to_logits(model.body(batch).sequence)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count), so that accumulation and distribution are right by construction."""
        raise NotImplementedError

    def is_single(self, inputs: Any) -> bool:
        """Whether this is one input, and not several."""
        return isinstance(inputs, str)

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """In the order of the inputs, which are numbered from `first` for their random streams."""
        raise NotImplementedError

    def can_stream(self, decode: DecodeSettings) -> bool:
        """Whether an answer can be given as it is made."""
        return False

    def stream_prediction(
        self, model: ModelProtocol, prompt: str, decode: DecodeSettings, first: int = 0
    ) -> Iterator[str]:
        raise RegardError(f"Task '{self.name}' does not support streaming.")

    def rank(self, model: ModelProtocol, prompt: str, choices: Sequence[str]) -> Prediction:
        """Which of some texts follows best."""
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
        """Which of these scores decides between two models."""
        return self.metric

    def fast_decode(self, decode: DecodeSettings) -> DecodeSettings:
        """How samples are answered while training: as a whole they are only at the end."""
        return replace(decode, num_beams=1, num_return_sequences=1, do_sample=False)

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        """The scores of a validation in one line."""
        return "  ".join(
            f"{METRIC_LABELS.get(name, name.replace('_', ' '))} {value:.2f}"
            for name, value in scores.items()
            if isinstance(value, float) and name != "loss"
        )

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        """Pictures of the answers to all samples, left in a run's folder; their names."""
        return []

    def write_files(self, name: str, prediction: Prediction, folder: Path) -> dict[str, str]:
        """Of tasks that paint: the answer as files of this name in a folder, a picture and data; paths by what they are."""
        return {}

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """An answer as a person reads it on a terminal."""
        return str(prediction.value)

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        """A sample with its answer, as a row of a table."""
        raise NotImplementedError

    def format_example(self, sample: Any, prediction: Prediction) -> str:
        """The same as indented lines, one for each value."""
        rows = self.example_row(sample, prediction).items()
        return "".join(f"    {name}: {' ⏎ '.join(str(value).splitlines())}\n" for name, value in rows)
