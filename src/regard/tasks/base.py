"""What every task offers. Commands, runs, cards and evaluation know a task by these words and by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from regard.data.batching.samplers import Blocks, Epochs, Packs, Plan, Shape
from regard.data.settings import Data
from regard.data.sources import absolute, expand, parallel
from regard.data.store.token_store import Rows
from regard.data.text import unlabeled_rows
from regard.data.text.files import Complain
from regard.decode.settings import DRAWING, Decode
from regard.errors import RegardError
from regard.tasks.processors import Reads
from regard.tasks.protocol import Asked
from regard.types import Answer, Batch

Side = Sequence[np.ndarray] | Rows

TEXT = ("data.vocabulary", "data.tokenizer", "train.tokens", "train.packed")
"""Settings of all that reads text; of what reads one text or two at a time also `READ`."""
READ = ("data.kind", "data.longest")
SEARCH = tuple(f"decode.{name}" for name in ("beam", "penalty", "form", "stop", "best", "sample", *DRAWING, "seed"))
"""Settings of all that generates; those of what generates text are also `SPOKEN`."""
SPOKEN = ("decode.repetition", "decode.length", "decode.until")


@dataclass(frozen=True)
class Encoded:
    """Samples as rows of ids on one or more sides; and those that were too long.

    What is trained on lies in mapped files, and its samples are not kept."""

    samples: list[Any]
    sides: Mapping[str, Side]
    too_long: list[Any]
    how: Any = None
    """what the task must know beside the rows to make batches of them: see `Task.how`"""

    def __len__(self) -> int:
        return len(next(iter(self.sides.values())))


def lengths_of(rows: Side) -> np.ndarray:
    return rows.lengths() if isinstance(rows, Rows) else np.array([len(row) for row in rows], dtype=np.int64)


@dataclass(frozen=True)
class Terms:
    """What the loss is made of beside the task's own likelihood."""

    smoothing: float = 0.0
    """share of probability that goes to the other classes"""
    auxiliary: float = 0.0
    """weight of the language-model loss beside a task's own"""


@dataclass(frozen=True)
class Sums:
    """The loss on some data, before it is divided."""

    total: float
    count: float

    @property
    def mean(self) -> float:
        return self.total / self.count


Scored = tuple[dict[str, float | str], list[Answer]]


class Task(Reads):
    """A sample is what the task's files hold: it has a `path` and a `line`, and the rest is the task's affair."""

    name: ClassVar[str]
    about: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    """that a person may name"""
    unit: ClassVar[str]
    """what samples are called"""
    metric: ClassVar[str]
    """which score decides between two models; the loss does where it is equal"""
    lowest: ClassVar[bool] = False
    """whether a lower one is better"""
    sample: ClassVar[type[Any]]
    """the kind of its samples"""
    sides: ClassVar[tuple[str, ...]]
    """of its rows of ids"""
    counts: ClassVar[tuple[str, ...]] = ()
    """those of them that hold places and counts, which may be larger than any id"""
    model: ClassVar[str]
    """the preset that is trained when none is named"""
    spacious: ClassVar[bool] = False
    """whether answers may run over several lines"""
    limited: ClassVar[bool] = True
    """whether a sample can be too long"""
    usage: ClassVar[str] = '"a text"'
    """an input as it is written on a command line"""
    generates: ClassVar[bool] = True
    """whether answers are searched for, as settings of decode say"""
    labelled: ClassVar[bool] = False
    """whether answers are classes that are found in the data"""
    as_listed: ClassVar[bool] = False
    """whether classes keep the order in which the data names them; else they are put in order"""
    cuts: ClassVar[bool] = False
    """whether what is too long is cut, and not skipped"""
    cut: ClassVar[str] = "in their middle"
    """where it is cut"""
    unprompted: ClassVar[bool] = False
    """whether there is an answer to nothing: "" then"""
    paints: ClassVar[bool] = False
    """whether answers are pictures or clouds, which are left as files"""
    at_once: ClassVar[int] = 512
    """inputs that are answered together at most: answers are held until all of these are there"""
    reads: ClassVar[str] = "text"
    """what its samples are made of: text, pictures or points. Bodies read one kind, and a task may have a form for each"""
    rows: ClassVar[str] = ""
    """what that is called which may be too long, where a sample has several; else the unit"""
    counted: ClassVar[str] = "tokens"
    """what the budget of a grain counts, and the log"""
    least: ClassVar[int] = 100
    """samples, or what they belong to, that are held out where there are enough: a score of fewer is rough"""
    tables: ClassVar[tuple[str, ...]] = unlabeled_rows.TABLES
    """suffixes of files that it is asked a row at a time; of others it is a line"""
    heeds: ClassVar[tuple[str, ...]] = TEXT
    """settings that mean something to it and not to every task: what no task names means something to all"""

    def some(self, count: int) -> str:
        """So many samples, in words."""
        return f"{count:,} {self.unit if count != 1 else self.unit.removesuffix('s')}"

    def entries(self, data: Sequence[str]) -> list[str]:
        """The files that paths and patterns stand for."""
        return expand(data)

    def lasting(self, entry: str) -> str:
        """The same entry, wherever one stands."""
        return absolute(entry)

    def validated(self, data: Sequence[str]) -> Sequence[str]:
        """Entries to validate by, of data that brings its own; none: a share is held out."""
        return ()

    def paths(self, entry: str) -> Sequence[str]:
        """The files or folders that an entry names."""
        return parallel(entry) or (entry,)

    def stream(self, data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Any]:
        """Samples one by one, and the places of rows that are left out (`Empty`)."""
        raise NotImplementedError

    def inputs_of(self, entry: str, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Any]]:
        """What a file with columns asks: the line of each row and what `answer` takes, or None where it is blank."""
        return unlabeled_rows.texts(entry, columns, complain)

    def key(self, sample: Any) -> str:
        """What must not stand on both sides of a split."""
        raise NotImplementedError

    def texts(self, samples: Iterable[Any]) -> Iterator[str]:
        """All that is text in samples, by which data is known again."""
        raise NotImplementedError

    def phrases(self, samples: Iterable[Any]) -> Iterator[str]:
        """Those of them that a tokenizer is made of."""
        return self.texts(samples)

    def flavour(self, data: Data) -> tuple[Any, ...]:
        """Settings that change how samples are encoded."""
        return ()

    def labels(self, sample: Any) -> Iterable[str]:
        """The classes that a sample shows, where the task has classes."""
        return ()

    def head_labels(self, labels: Sequence[str], data: Data) -> tuple[str, ...]:
        """The classes that a head tells apart, of those that occur in the data."""
        return tuple(labels)

    def look_through(self, train: Encoded, valid: Encoded, config: Any, say: Callable[[str], None]) -> None:
        """Before the first step: what could stop a validation later, or make the whole training vain."""

    def left(self, encoded: Encoded) -> int:
        """How many are left of what may be too long."""
        return len(encoded)

    def count(self, encoded: Encoded) -> int:
        """How many samples these are, where a sample may be several rows."""
        return len(encoded)

    def torn(self, sample: Any, taken: Any) -> Any:
        """The same sample where others were taken out before it, of which `taken` was the first."""
        return sample

    def room(self, config: Any, train: Any) -> tuple[int, str]:
        """Tokens that a side may have beside `data.longest`, and the setting that says so: a sample must fit into a grain, with
        its special tokens on all sides."""
        return int(train.tokens) // len(self.sides) - 1, "train.tokens"

    def told(self, data: Sequence[str]) -> str:
        """What a file beside the data says of it, and decides about its classes."""
        return ""

    def budget(self, train: Any) -> int:
        """What a grain has room for, in what is `counted`."""
        return int(train.tokens)

    def used(self, samples: Sequence[Any]) -> str:
        """An input as it is written on a command line, for a model that knows such samples."""
        return self.usage

    def of(self, folder: Path) -> Task:
        """The task as the files of a folder say it, beside its weights."""
        return self

    def files(self, config: Any) -> dict[str, Any]:
        """JSON files that others look for beside the weights, by their names."""
        return {}

    def bodied(self, config: Any) -> Any:
        """The system's config with those parts of the body that this task needs."""
        return config

    def unread(self, body: Any, config: Any) -> Sequence[nn.Module]:
        """Parts of the body that this task never reads: they do not learn."""
        return ()

    def pairing(self, samples: Sequence[Any], data: Data, train: Encoded) -> str:
        """What a model must know of how it has learnt, in words (`Identity.pair`): how the two texts of a sample are read
        together (`data.pair`), whether it may have several labels, or what its tags spell; nothing where none of it is.
        `samples` are those of validation; of those to `train` on there are the rows."""
        return ""

    def read_manner(self, published: Mapping[str, Any], labels: Sequence[str]) -> str:
        """The same as a published config says it."""
        return ""

    def write_manner(self, pair: str) -> dict[str, Any]:
        """The keys by which a published config says it."""
        return {}

    def unsayable(self, labels: Sequence[str]) -> str:
        """What no published layout can say of a model with these labels; empty when it can say all."""
        return ""

    def check(self, config: Any, tokens: int, data: Data) -> None:
        """Refuse settings that cannot work, before anything is read; `tokens` are those of a grain."""

    def fit(self, config: Any, reader: Any) -> Any:
        """The system's config with what its reader decides: vocabulary and special tokens, or colours."""
        raise NotImplementedError

    def head(self, config: Any, labels: Sequence[str]) -> nn.Module | None:
        """What is put on the body's states; None: the body itself reads them."""
        return None

    def encode(
        self, samples: Sequence[Any], reader: Any, config: Any, longest: int, data: Data | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:  # fmt: skip
        """Samples as rows; `reader` turns them into numbers: a tokenizer, pixels or a palette."""
        raise NotImplementedError

    def how(self, reader: Any, config: Any, longest: int, data: Data | None, labels: Sequence[str] = ()) -> Any:
        """What batches of encoded samples are made by, where the samples themselves do not say it."""
        return None

    def lengths(self, encoded: Encoded) -> np.ndarray:
        """(N, sides): positions that each sample costs."""
        return np.stack([lengths_of(side) for side in encoded.sides.values()], axis=1)

    def plan(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> Epochs:
        if packed and not getattr(config, "packs", True):
            return Blocks(self.lengths(encoded), tokens, seed)
        return (Packs if packed else Plan)(self.lengths(encoded), tokens, seed)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: Shape | None = None) -> Batch:
        raise NotImplementedError

    def batches(self, encoded: Encoded, config: Any, tokens: int, data: Data | None = None) -> Iterator[Batch]:
        """All samples in order, to measure the loss."""
        lengths = self.lengths(encoded)
        for rows in Plan(lengths, max(tokens, int(lengths.sum(1).max())), seed=0).sequential():
            yield self.collate(encoded, rows, config)

    def logits(self, model: Asked, batch: Batch) -> Tensor:
        """What the model says before any softmax."""
        return model.body.read(model.body(batch).sequence)

    def loss(self, model: Asked, batch: Batch, terms: Terms = Terms()) -> tuple[Tensor, Tensor]:  # noqa: B008
        """(sum, count), so that accumulation and distribution are right by construction."""
        raise NotImplementedError

    def alone(self, inputs: Any) -> bool:
        """Whether this is one input, and not several."""
        return isinstance(inputs, str)

    def answer(self, model: Asked, inputs: Sequence[Any], decode: Decode, first: int = 0) -> list[Answer]:
        """In the order of the inputs, which are numbered from `first` for their random streams."""
        raise NotImplementedError

    def streams(self, decode: Decode) -> bool:
        """Whether an answer can be given as it is made."""
        return False

    def stream_answer(self, model: Asked, prompt: str, decode: Decode, first: int = 0) -> Iterator[str]:
        raise RegardError(f"{self.name} answers as a whole, not word by word.")

    def choose(self, model: Asked, prompt: str, choices: Sequence[str]) -> Answer:
        """Which of some texts follows best."""
        raise RegardError(f"{self.name} cannot choose between texts: language and choose can.")

    def score(
        self, model: Asked, encoded: Encoded, decode: Decode, data: Data, sums: Sums, most: int | None = None
    ) -> Scored:
        """The task's own measures, and answers to the samples, or to the first `most`; `sums` is the loss on all of them."""
        raise NotImplementedError

    def deciding(self, scores: Mapping[str, Any]) -> str:
        """Which of these scores decides between two models."""
        return self.metric

    def quick(self, decode: Decode) -> Decode:
        """How samples are answered while training: as a whole they are only at the end."""
        return replace(decode, beam=1, best=1, sample=False)

    def line(self, scores: Mapping[str, Any]) -> str:
        """The scores of a validation in a few words."""
        return "  ".join(
            f"{name} {value:6.2f}" for name, value in scores.items() if isinstance(value, float) and name != "loss"
        )

    def draw(self, folder: Path, samples: Sequence[Any], answers: Sequence[Answer]) -> list[str]:
        """Pictures of the answers to all samples, left in a run's folder; their names."""
        return []

    def leave(self, name: str, answer: Answer, folder: Path) -> dict[str, str]:
        """Of tasks that paint: the answer as files of this name in a folder, a picture and data; paths by what they are."""
        return {}

    def said(self, given: Any, answer: Answer) -> str:
        """An answer as a person reads it on a terminal."""
        return str(answer.value)

    def example(self, sample: Any, answer: Answer) -> dict[str, str]:
        """A sample with its answer, as a row of a table."""
        raise NotImplementedError

    def show(self, sample: Any, answer: Answer) -> str:
        """The same as indented lines, one for each value."""
        rows = self.example(sample, answer).items()
        return "".join(f"    {name}: {' ⏎ '.join(str(value).splitlines())}\n" for name, value in rows)
