"""Objectives: head, loss, predictions and metrics of a task. Encoded samples and head options."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchSampler, BatchShape, length_batches
from regard.data.settings import DataSettings
from regard.data.store import RaggedRows
from regard.decode.settings import SAMPLING_SETTINGS, DecodeSettings
from regard.errors import InputError, InputTypeError, RegardError
from regard.tasks import MODALITIES, Task
from regard.types import Batch, BodyOutput, Prediction

if TYPE_CHECKING:
    from regard.decode.search import Hypothesis
    from regard.processors.tokenizer.tokenizer import TextTokenizer
    from regard.tasks.modality.base import Modality

FieldRows = Sequence[np.ndarray] | RaggedRows

ENCODING_SETTINGS = ("data.tokenizer_type", "data.max_length")  # settings of text objectives without generation
HEAD_SETTINGS = (*ENCODING_SETTINGS, "train.label_smoothing", "train.lm_loss_weight")
"""Settings of heads on the pooled state of a text."""
AUGMENT_SETTINGS = tuple(f"data.{name}" for name in ("crop_scale", "shift", "flip", "color_jitter", "random_erasing"))
"""Settings of image augmentation in training."""
_BEAM_SETTINGS = ("num_beams", "length_penalty", "length_penalty_type", "early_stopping", "num_return_sequences")
SEARCH_SETTINGS = tuple(f"decode.{name}" for name in (*_BEAM_SETTINGS, "do_sample", *SAMPLING_SETTINGS, "seed"))
"""Settings of all generating objectives."""
TOKEN_SETTINGS = ("repetition_penalty", "max_new_tokens", "max_length", "forced_eos", "stop_strings")
"""Settings `decode.*` of generated text."""
GENERATION_SETTINGS = ("train.label_smoothing", *SEARCH_SETTINGS, *(f"decode.{name}" for name in TOKEN_SETTINGS))
"""Settings of text generation."""

BATCH_TOKENS = 16_384  # tokens per batch at inference
EVAL_BATCH_SIZE = 64  # images or point clouds per batch at inference
LARGE_VALIDATION = 2000  # minimum number of validation samples for a log message before reading


class Model(Protocol):
    """Interface of a model for objectives and explanations, without an import of the model class."""

    body: Any
    head: Any
    spec: Any
    processor: Any
    training: bool
    config: Any
    task: Task
    objective: Any

    @property
    def device(self) -> torch.device: ...
    @property
    def tokenizer(self) -> Any: ...
    def predict(self, inputs: str, **settings: Any) -> Prediction: ...


@dataclass(frozen=True)
class HeadOptions:
    """Options of a head beyond the config, saved with the model."""

    labels: tuple[str, ...] = ()  # classes of the head, if any
    multi_label: bool = False  # True if every label is an independent binary decision
    pair_order: str = ""  # order of text pairs (`data.pair_order`); empty for models of single texts
    tag_scheme: str = ""  # tag scheme of predictions (`data.tag_scheme`)
    class_ids: tuple[int, ...] = ()  # values of the classes in masks or point labels, unless equal to the indices
    void_ids: tuple[int, ...] = ()  # values of ignored pixels or points, in addition to 255 and 65,535
    class_colors: tuple[tuple[int, ...], ...] = ()  # red, green, blue and value of each class of colored masks
    max_train_length: int = 0  # maximum number of tokens of a training question; 0: unknown
    pooling: Any = field(default=None, compare=False)  # pooling of embeddings, saved in files of sentence-transformers


NO_OPTIONS = HeadOptions()


class ExportedOptions(NamedTuple):
    """Head options in Hugging Face format."""

    keys: Mapping[str, Any] = MappingProxyType({})  # keys of config.json
    files: Mapping[str, Any] = MappingProxyType({})  # contents of additional JSON files, by file name
    max_length: int = 0  # maximum tokens of an input, if less than the maximum of the model; 0: maximum of the model
    unsupported: str = ""  # reason why the format cannot represent the options, or empty


class OptionRules:
    """Head options of an objective: from the data, from a checkpoint folder, and for a Hugging Face config."""

    def fit(self, options: HeadOptions, samples: Sequence[Any], data: DataSettings) -> HeadOptions:
        """Options before encoding, from the options with the classes of the data and the validation samples. The first
        sample is a training sample if the validation samples are in other files."""
        return options

    def complete(self, options: HeadOptions, train: Encoded) -> HeadOptions:
        """Options that follow from the encoded training samples."""
        return options

    def load(self, options: HeadOptions, folder: Path, published: dict[str, Any] | None = None) -> HeadOptions:
        """Options with the values in other files of a checkpoint folder. `published`: config of a Hugging Face checkpoint
        with a head for this task."""
        return options

    def export(self, options: HeadOptions, config: Any) -> ExportedOptions:
        """The options in Hugging Face format."""
        return ExportedOptions()


@dataclass(frozen=True)
class EncodingContext:
    """Processor, settings and options that samples were encoded with, and data computed from them at the first use."""

    processor: Any = None
    max_length: int = 10**9
    data: DataSettings | None = None
    options: HeadOptions = NO_OPTIONS
    cache: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """Encoded samples: one row of ids per sample and field, and the samples above the length limit.

    Training rows are memory-mapped files without `samples`."""

    samples: list[Any]
    fields: Mapping[str, FieldRows]
    too_long: list[Any]
    context: EncodingContext = field(default_factory=EncodingContext)

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    @property
    def num_rows(self) -> int:
        """Number of training rows within the length limit: an image has one row per caption."""
        return int(row_lengths(self.fields["ends"]).sum()) if "ends" in self.fields else len(self)

    @property
    def num_samples(self) -> int:
        """Number of samples, which may have several windows. Sample indices restart in each encoded chunk."""
        if "owner" not in self.fields:
            return len(self)
        owners = np.array([int(owner[0]) for owner in self.fields["owner"]], dtype=np.int64)
        return 1 + int((np.diff(owners) != 0).sum()) if len(owners) else 0

    def lengths(self) -> np.ndarray:
        """(N, sides) number of positions per row in a batch. Decoder inputs exclude the end token; the sequences of a sample
        (`ways`) are padded to the longest one."""
        if "text" not in self.fields:
            lengths = np.stack([row_lengths(side) for side in self.fields.values()], axis=1)
            return lengths - np.array([0, 1]) if "target" in self.fields else lengths
        if self.max_sequences == 1:
            return row_lengths(self.fields["text"])[:, None]
        return np.array([len(way) * int(way.max()) for way in self.fields["ways"]])[:, None]

    @property
    def max_sequences(self) -> int:
        """Maximum number of token sequences per sample."""
        return int(row_lengths(self.fields["ways"]).max(initial=1)) if "ways" in self.fields else 1

    def rows_by_sample(self) -> list[list[int]]:
        """Row indices of each sample, which may have several windows."""
        rows: list[list[int]] = [[] for _ in self.samples]
        for row in range(len(self)):
            rows[int(self.fields["owner"][row][0]) if "owner" in self.fields else row].append(row)
        return rows

    def first(self, max_samples: int | None) -> Encoded:
        """The first `max_samples` samples with all their rows; None: all."""
        if max_samples is None or max_samples >= len(self.samples):
            return self
        rows = [*chain(*self.rows_by_sample()[:max_samples])]
        sides: dict[str, FieldRows] = {name: [side[row] for row in rows] for name, side in self.fields.items()}
        return Encoded(self.samples[:max_samples], sides, self.too_long, self.context)


Inputs = Sequence[Any] | Encoded  # inputs of the user, or encoded samples


def row_lengths(rows: FieldRows) -> np.ndarray:
    return rows.lengths() if isinstance(rows, RaggedRows) else np.array([len(row) for row in rows], dtype=np.int64)


def int_rows(rows: Sequence[Any]) -> list[np.ndarray]:
    """Rows of integers for the token store."""
    return [np.atleast_1d(np.array(row, dtype=np.int32)) for row in rows]


@dataclass(frozen=True)
class LossWeights:
    """Weights of the loss terms."""

    smoothing: float = 0.0  # label smoothing
    auxiliary: float = 0.0  # weight of the auxiliary language modeling loss


NO_WEIGHTS = LossWeights()
Loss = tuple[Tensor, Tensor]  # Sum and count of a loss; accumulation and data parallelism divide by the global count.


@dataclass(frozen=True)
class LossSum:
    """Sum of the loss on a dataset, and the number of labels in this sum; the mean loss is their quotient."""

    total: float
    count: float


Scores = dict[str, float | str]
EvalResult = tuple[Scores, list[Prediction]]


@dataclass(frozen=True)
class EvalSpec:
    """Settings of an evaluation."""

    decode: DecodeSettings
    data: DataSettings
    loss: LossSum  # loss on all samples
    max_samples: int | None = None  # predictions for the first samples only; None: all

    @property
    def complete(self) -> bool:
        """True if all samples are evaluated; tables are added to the scores."""
        return self.max_samples is None

    def count(self, encoded: Encoded) -> int:
        return len(encoded) if self.max_samples is None else min(self.max_samples, len(encoded))


METRIC_LABELS = {
    "bleu": "BLEU", **{f"bleu{n}": f"BLEU-{n}" for n in range(1, 5)}, "chrf": "chrF", "cider": "CIDEr", "f1": "F1",
    "macro_f1": "macro F1", "micro_f1": "micro F1", "mcc": "MCC", "miou": "mIoU", "mrr": "MRR", "rmse": "RMSE",
}  # fmt: skip
"""Printed names of metrics; other names are printed with spaces."""


class Objective:
    """Head, loss, predictions and metrics of a task; one instance per row of the table of tasks."""

    metrics: ClassVar[tuple[str, ...]]
    """scores for model selection: the first one that was computed; the loss decides between equal scores"""
    lower_is_better: ClassVar[bool] = False
    fields: tuple[str, ...]  # fields of an encoded sample
    count_fields: ClassVar[tuple[str, ...]] = ()
    """fields with positions or counts instead of token ids; their values may exceed the vocabulary size"""
    options: OptionRules = OptionRules()
    settings: ClassVar[tuple[str, ...]] = ()  # task-specific settings with an effect, besides those of the modality
    input_settings: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # further settings by input modality
    modality_class: ClassVar[Any] = None  # class of the modality, if different from the class of the input modality
    modality_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # arguments of the modality class by its name
    encoding_settings: ClassVar[tuple[str, ...]] = ()  # settings `data.*` that change encoded samples
    single_types: tuple[type, ...] = ()  # types of one input besides those of the modality; a list is several
    validation_decode: ClassVar[Mapping[str, Any]] = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False}
    """decode settings of validations during training. The full settings apply at the end"""
    truncation: ClassVar[str] = ""  # removed part of long samples; empty: long samples are skipped
    row_unit: ClassVar[str] = ""
    """plural noun for the rows with a length limit, if a sample has several rows; empty: unit of the reader"""
    generates: ClassVar[bool] = False  # True if predictions are generated with the settings of `decode`
    has_decoder_inputs: ClassVar[bool] = False  # True if a decoder reads other tokens than the inputs
    has_labels: ClassVar[bool] = False  # True if predictions are classes collected from the data
    has_length_limit: bool = True  # True if samples may exceed the length limit
    multiline: ClassVar[bool] = False  # True if predictions may have several lines
    allows_empty_prompt: ClassVar[bool] = False  # True if no input at all is a valid input
    has_file_output: ClassVar[bool] = False  # True if predictions are images or point clouds, for `write_files`
    has_top_k: ClassVar[bool] = False  # True if the objective has `top_classes`
    streams: ClassVar[bool] = False  # True if the objective has `stream`
    list_separator: ClassVar[str] = " "  # separator of the values of a prediction in text tables
    ranks: ClassVar[bool] = False  # True if the objective has `rank`
    rank_advice: ClassVar[str] = "Use a model trained for task 'lm' or 'choose'."  # advice if there is no `rank`
    head: Any = None  # builds the head from config and options; None: the body has the output layer
    uses_feature_maps: bool = False  # True if the head reads feature maps: later modules of the body are frozen
    example_from: ClassVar[str] = ""  # attribute of a sample used as command-line example; empty: `usage` of the task

    def __init__(self, task: Task) -> None:
        self.task, self.name = task, task.name
        kind = self.modality_class or resolve_name(MODALITIES[task.input])
        self.modality: Modality = kind(**self.modality_options.get(task.input, {}))
        self.settings_used = (*self.modality.settings, *self.settings, *self.input_settings.get(task.input, ()))

    def __reduce__(self) -> Any:
        return attrgetter("objective"), (self.task,)  # without further state

    # -- data

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        """Raise an error for invalid settings before data is read. `tokens`: tokens per micro-batch."""

    def adapt_config(self, config: Any) -> Any:
        """Model config with the optional modules that this objective requires."""
        return config

    def encode(self, samples: Sequence[Any], config: Any, context: EncodingContext) -> Encoded:
        """Encode samples with the processor (a tokenizer, an image or point processor, or a color palette)."""
        raise NotImplementedError

    def validate_data(self, train: Encoded, valid: Encoded, config: Any, log: Callable[[str], None]) -> None:
        """Raise an error before the first step for data that would stop or invalidate a later validation. All validation
        files are read, so that unreadable files do not stop a later validation."""
        if self.modality.reads_files:
            if len(valid) >= LARGE_VALIDATION:
                log(f"  Reading {len(valid):,} validation {self.task.reader.unit} …")
            for _ in self.eval_batches(valid, config, EVAL_BATCH_SIZE):
                pass
            self.modality.validate_data(train, valid, log)

    # -- batches

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Micro-batches of at most `tokens` units of the modality."""
        return self.modality.sampler(encoded, config, tokens, seed, packed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """Batch of the rows. With a `shape` the samples are packed into one row per side, or padded to a fixed shape."""
        raise NotImplementedError

    def eval_batches(self, encoded: Encoded, config: Any, tokens: int) -> Iterator[Batch]:
        """Batches of all samples, for the evaluation loss."""
        for rows in self.modality.eval_rows(encoded, tokens):
            yield self.collate(encoded, rows, config)

    # -- model

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Logits of the model."""
        return model.body.to_logits(model.body(batch).sequence)

    def loss(self, model: Model, batch: Batch, terms: LossWeights = NO_WEIGHTS) -> Loss:
        """(sum, count) of the loss: cross-entropy of the next token, in training plus the sum `aux_losses["penalty"]`."""
        labels, states = batch.require_labels(), model.body(batch)
        total, count = model.body.cross_entropy(states.sequence, labels, terms.smoothing)
        if model.training and "penalty" in states.aux_losses:
            total = total + states.aux_losses["penalty"]
        return total, count

    # -- predictions

    def predict(self, model: Model, inputs: list[Any], decode: DecodeSettings, first: int = 0) -> list[Prediction]:
        """Predictions in input order. Input i has the random stream `first + i`. This method is for objectives whose
        predictions are computed from encoded samples."""
        encoded = encode_samples(model, [self.parse_input(item, model.spec.options) for item in inputs])
        return with_act_steps(model, encoded, self._predictions(model, encoded, decode))

    def parse_input(self, item: Any, options: HeadOptions) -> Any:
        """Sample of one input."""
        raise NotImplementedError

    def _predictions(self, model: Model, encoded: Encoded, decode: DecodeSettings) -> list[Prediction]:
        """Predictions of encoded samples."""
        raise NotImplementedError

    def evaluate(self, model: Model, encoded: Encoded, spec: EvalSpec) -> EvalResult:
        """Metrics, and predictions for the samples selected by `spec`."""
        raise NotImplementedError

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        """Validation scores in one line."""
        shown = "  ".join(
            f"{METRIC_LABELS.get(name, name.replace('_', ' '))} {value:.2f}"
            for name, value in scores.items()
            if isinstance(value, float) and name != "loss"
        )
        return f"{shown}  ({scores['samples']:,} samples, greedy)" if self.generates else shown

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        """Prediction as text for the terminal."""
        return str(prediction.value)

    def table_columns(self, prediction: Prediction) -> dict[str, Any]:
        """Columns of a prediction in a table: `prediction` with its score, further outputs, and columns of the task."""
        score = "score" if self.generates and "choices" not in prediction.extra else "probability"
        columns = {"prediction": prediction.value, **({score: prediction.score[0]} if prediction.score else {})}
        for number, option in enumerate(prediction.extra.get("alternatives", ())[1:], 2):
            columns |= {f"prediction_{number}": option["value"], f"{score}_{number}": option["score"]}
        return columns

    def example_row(self, sample: Any, prediction: Prediction) -> dict[str, str]:
        """A sample with its prediction as a table row."""
        raise NotImplementedError

    def format_example(self, sample: Any, prediction: Prediction) -> str:
        """A sample with its prediction as indented lines, one per value."""
        rows = self.example_row(sample, prediction).items()
        return "".join(f"    {name}: {' ⏎ '.join(str(value).splitlines())}\n" for name, value in rows)

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        """Save figures of at least one prediction to the run folder, and return the file names."""
        return []


# -- inputs from Python

_NOUNS = {Mapping: "a dict", tuple: "a tuple", NoneType: "None"}


def split_inputs(objective: Objective, inputs: Any, single: bool = False) -> list[Any] | None:
    """The inputs of a list, iterator or batch; None if the value is one input. `single`: only one input is accepted."""
    if objective.modality.is_single(inputs) or isinstance(inputs, objective.single_types):
        return None
    nouns = " or ".join([objective.modality.noun, *(_NOUNS[kind] for kind in objective.single_types if kind in _NOUNS)])
    expected = f"Expected {nouns}" if single else f"Expected {nouns}, or a list of such inputs"
    refused = isinstance(inputs, str | bytes | Mapping | set | frozenset | type) or is_file(inputs)
    if refused or not isinstance(inputs, Iterable) or (isinstance(inputs, np.ndarray | Tensor) and not inputs.ndim):
        raise InputTypeError(f"{expected}, got {describe(inputs)}.")
    if single:
        raise InputTypeError(f"{expected}, got {describe(inputs)}. For several inputs use predict().")
    if isinstance(inputs, np.ndarray | Tensor) and not len(inputs):
        raise InputError(f"{expected}, got an empty array.")
    return list(inputs)


def is_file(value: Any) -> bool:
    """True for an open file."""
    return hasattr(value, "read")


def describe(value: Any) -> str:
    """Type of a value for messages, with the shape and dtype of arrays and tensors."""
    name = type(value).__name__
    if isinstance(value, np.ndarray | Tensor):
        return f"{name} of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, str | bytes | int | float | tuple | list | dict):
        return f"{name} {' '.join(repr(value).split()):.60}"
    return "None" if value is None else name


def require_text(value: Any, name: str = "a text") -> str:
    """The value if it is a text; other values are an error."""
    if not isinstance(value, str):
        raise InputTypeError(f"Expected {name}, got {describe(value)}.")
    return value


def require_choices(value: Any) -> list[str]:
    """The choices as a list if these are at least two texts; other values are an error."""
    found = [] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if len(found) < 2 or not all(isinstance(choice, str) and choice for choice in found):
        raise InputTypeError(f"At least two non-empty choices are required, got {describe(value)}.")
    return found


# -- shared by the objectives


def require_tokenizer(model: Model) -> TextTokenizer:
    """Tokenizer of the model. A missing tokenizer is an error."""
    text: TextTokenizer | None = model.processor if model.task.input == "text" else model.tokenizer
    if text is None:
        from regard.processors.tokenizer.vocabulary import unread_files

        others = unread_files(model.spec.source)
        found = f" and no other supported tokenizer (found {others})" if others else ""
        raise RegardError(
            f"{model.spec.source or 'this model'} has no tokenizer.json{found}. Add the file to the model folder; "
            "logits(ids) and states(ids) work without a tokenizer."
        )
    return text


def require_head(model: Model) -> Any:
    """Head of the model. A missing head is an error."""
    if model.head is None:
        files = "FILE" if model.task.input == "text" else "FILES"
        raise RegardError(
            f"{model.spec.source or 'This model'} has no head for task '{model.task.name}'. Fine-tune the model first: "
            f"regard train {model.task.name} --data {files} --model {model.spec.source or 'FOLDER'} --out RUN"
        )
    return model.head


def encode_samples(model: Model, samples: Sequence[Any]) -> Encoded:
    """Samples encoded with the tokenizer and the options of the model."""
    context = EncodingContext(require_tokenizer(model), options=model.spec.options)
    encoded: Encoded = model.objective.encode(samples, model.config, context)
    return encoded


def parse_json(text: str) -> Any:
    """Value of a JSON text; None for other texts."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def map_rows(model: Model, encoded: Encoded, function: Callable[[Batch], Any]) -> list[Any]:
    """Value of each row, from a function of a batch that returns one value per row, without gradients."""
    values: list[Any] = [None] * len(encoded)
    with torch.inference_mode():
        for rows in length_batches(encoded.lengths(), BATCH_TOKENS):
            batch = model.objective.collate(encoded, rows, model.config).to(model.device)
            for row, value in zip(rows.tolist(), function(batch), strict=True):
                values[row] = value
    return values


def text_prediction(
    text: TextTokenizer, hypotheses: Sequence[Hypothesis], values: Sequence[str] | None = None
) -> Prediction:
    """Prediction from the best hypothesis, with token ids, log-probabilities, and the other hypotheses as alternatives.
    `values`: text of each hypothesis, if different from the decoded tokens."""
    values = text.decode([option.tokens for option in hypotheses]) if values is None else values
    best = hypotheses[0]
    extra = {
        "token_ids": list(best.tokens),
        "finish_reason": "eos" if best.finish_reason == "eos" else "length",
        "logprobs": [round(value, 6) for value in best.log_probs],
        "alternatives": [
            {"value": value, "score": option.score} for value, option in zip(values, hypotheses, strict=True)
        ],
    }
    pieces = text.display_tokens(best.tokens)
    return Prediction(values[0], tuple(option.score for option in hypotheses), tuple(pieces), extra)


def add_act_cost(model: Model, loss: Loss, *states: BodyOutput) -> Loss:
    """(sum, count) of a loss of a model with adaptive computation time. During training `count` × `aux_losses["cost"]`,
    the ponder cost averaged over tokens, is added; for several forward passes, the average of their costs."""
    total, count = loss
    costs = [one.aux_losses["cost"] for one in states if "cost" in one.aux_losses]
    if not model.training or not costs:
        return total, count
    return total + torch.stack(costs).mean() * count, count


def act_steps(model: Model, batch: Batch) -> list[list[int]]:
    """Ponder steps of each token in each row; empty for a fixed number of steps. Inputs (S, K, L) have S·K rows."""
    if not model.config.traits.act:
        return []
    length = batch.inputs.shape[-1]
    mask = None if batch.mask is None else batch.mask.reshape(-1, *([length] if batch.mask.dtype == torch.bool else []))
    text = batch.text.map(lambda table: table.reshape(-1, length))
    with torch.inference_mode():
        steps = model.body(Batch(batch.inputs.reshape(-1, length), mask, text=text)).act_steps
    return [row[row > 0].tolist() for row in steps.cpu()]  # padding has 0 steps


def with_act_steps(model: Model, encoded: Encoded, predictions: Sequence[Prediction]) -> list[Prediction]:
    """Predictions with the ponder steps of all input tokens including special tokens (`extra["act_steps"]`). The steps of
    several sequences or windows of a sample are concatenated."""
    if not model.config.traits.act:
        return list(predictions)

    def steps_per_row(batch: Batch) -> list[list[int]]:
        steps = act_steps(model, batch)
        ways = len(steps) // len(batch.inputs)
        return [[*chain(*steps[at : at + ways])] for at in range(0, len(steps), ways)]

    steps = map_rows(model, encoded, steps_per_row)
    own = ([*chain(*(steps[row] for row in rows))] for rows in encoded.rows_by_sample())
    return [replace(one, extra={**one.extra, "act_steps": found}) for one, found in zip(predictions, own, strict=True)]


def safe_exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
