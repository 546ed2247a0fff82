"""`predict`: predictions for the inputs of a command.

Predictions are printed in input order. A failed input prints an empty line, so that outputs stay aligned with inputs; the
error goes to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.standard_input import STDIN_ARGUMENT
from regard.data.text.files import chunked
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError
from regard.model import Model, stored_task
from regard.runs.inputs import Columns, PredictInput, read_inputs
from regard.types import Prediction

# -- output

MAX_LOCATIONS = 5  # Maximum number of listed locations of one error.


class PredictionWriter:
    """Prints predictions; errors and counts go to standard error."""

    def __init__(self, model: Model, inputs: Sequence[str], as_json: bool, folder: Path | None = None) -> None:
        """`folder`: output folder of predictions that are files."""
        self.model, self.as_json, self.folder = model, as_json, folder or Path("predictions")
        self.written_names: set[str] = set()
        from_stdin = not inputs or list(inputs) == [STDIN_ARGUMENT]
        self.interactive = from_stdin and sys.stdin.isatty()  # True if a user types the inputs in a terminal
        self.single_input = len(inputs) == 1 and not from_stdin
        self.total = self.truncated = self.failed = 0
        self.error_locations: dict[str, list[str]] = {}  # further locations of each error

    def write(self, item: PredictInput, prediction: Prediction, in_batch: bool) -> None:
        """`in_batch`: other inputs are predicted in the same call."""
        self.total += 1
        self.truncated += bool(prediction.extra.get("truncated"))
        if self.model.objective.has_file_output:
            return self._write_files(item, prediction)
        if self.as_json:
            row = {"value": prediction.value, "score": prediction.score, "tokens": prediction.tokens}
            _print_json({"input": item.to_json(), **row, **prediction.extra})
            return
        options = prediction.extra.get("alternatives", [])
        if len(options) > 1:
            print(item.name or item.value)
            for option in options:
                print(f"{option['score']:9.4f}\t{option['value']}", flush=True)
            return
        print(self.model.objective.format_prediction(item.name or item.value, prediction), flush=True)
        if self.model.objective.multiline and in_batch:
            print(flush=True)

    def _write_files(self, one: PredictInput, answer: Prediction) -> None:
        # a page of this name could not be opened by its address with a #
        stem = Path(str(one.name or one.value)).stem.replace("#", "-") or self.model.task.reader.unit.removesuffix("s")
        name, number = stem, 1
        while name in self.written_names:  # files of one name from several folders
            number += 1
            name = f"{stem}-{number}"
        self.written_names.add(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        objective: Any = self.model.objective
        files = objective.write_files(name, answer, self.folder)
        if self.as_json:
            _print_json({"input": one.to_json(), "value": answer.value, "files": files})
        else:
            print(
                self.model.objective.format_prediction(one.name or one.value, answer),
                *files.values(),
                sep="\t",
                flush=True,
            )

    def write_missing(self, item: PredictInput, error: RegardError | None) -> None:
        """Output of an empty input, or of an input with an error."""
        if error is not None and self.single_input and not item.location:
            raise error
        self.total += 1
        row: dict[str, Any] = {"input": item.to_json(), "value": None, "score": []}
        if self.as_json:
            _print_json(row if error is None else {**row, "error": str(error)})
        else:
            print(flush=True)
        if error is None:
            return
        self.failed += 1
        where = "" if isinstance(error, DataError) and error.path is not None else item.location
        if str(error) in self.error_locations and not self.interactive:
            self.error_locations[str(error)].append(where)
            return
        self.error_locations[str(error)] = []
        print(f"regard: error: {where}{': ' if where else ''}{error}", file=sys.stderr)

    def close(self) -> int:
        """Print repeated errors and counts. Returns the number of failed inputs."""
        for places in filter(None, self.error_locations.values()):
            named = "; ".join(filter(None, places[:MAX_LOCATIONS]))
            more = f" and {len(places) - MAX_LOCATIONS:,} more" if len(places) > MAX_LOCATIONS else ""
            where = f"at {named}{more}" if named else f"{len(places)} more times"
            print(f"regard: error: same error {where}", file=sys.stderr)
        if self.failed and self.total > 1:
            print(f"{self.failed:,} of {self.total:,} inputs failed.", file=sys.stderr)
        if self.truncated:
            how = f"truncated {self.model.objective.truncation} to the maximum length of the model"
            print(f"warning: {self.truncated:,} of {self.total:,} inputs {how}.", file=sys.stderr)
        return 0 if self.interactive else self.failed


def predict(
    model: Model,
    inputs: Sequence[str],
    decode: DecodeSettings,
    as_json: bool,
    chunk_size: int,
    columns: Columns = None,
    folder: Path | None = None,
    form: str | None = None,
) -> int:
    """Print predictions in chunks of `chunk_size` inputs, or one at a time for a user in a terminal.

    Returns the number of failed inputs."""
    if folder is not None and not model.objective.has_file_output:
        raise RegardError(
            f"--out is only for predictions that are files; task '{model.task.name}' prints text. "
            "Redirect the output with > FILE."
        )
    if folder is not None and (folder.is_file() or (folder.suffix and not folder.is_dir())):
        raise RegardError(f"--out: expected a folder, got the file {folder}. Use --out {folder.stem}/.")
    asked, said = read_inputs(model.task, inputs, columns, form), PredictionWriter(model, inputs, as_json, folder)
    if (
        not as_json
        and sys.stdout.isatty()
        and model.objective.streams
        and decode.num_beams == decode.num_return_sequences == 1
        and (said.interactive or said.single_input)
    ):
        return _stream(model, asked, decode)
    task, done, mask = model.task, 0, None
    if model.config.traits.is_encoder and task.name != "mlm" and model.processor is not None:
        mask = model.processor.special_tokens_map().get("mask_token")
    size = 1 if said.interactive else min(chunk_size, model.objective.modality.max_inputs)
    while some := list(islice(asked, size)):
        real = [one for one in some if one.value is not None]
        if mask is not None and any(isinstance(one.value, str) and mask in one.value for one in real):
            print(
                f"warning: {mask} is not predicted: this model has the task '{task.name}'. "
                "Filling masks needs a model trained for the task 'mlm'.",
                file=sys.stderr,
            )
            mask = None  # warn once
        answers = iter(_predict_or_errors(model, [one.value for one in real], decode, done))
        done += len(real)
        for one in some:
            answer = None if one.value is None else next(answers)
            if isinstance(answer, Prediction):
                said.write(one, answer, len(some) > 1)
            else:
                said.write_missing(one, one.error if answer is None else answer)
    return said.close()


def _stream(model: Model, asked: Iterator[PredictInput], decode: DecodeSettings) -> int:
    objective: Any = model.objective
    for number, one in enumerate(asked):
        if one.error is not None:
            raise one.error
        print(one.value or "", end="", flush=True)
        for part in objective.stream(model, one.value or "", decode, number):
            print(part, end="", flush=True)
        print(flush=True)
    return 0


def _predict_or_errors(
    model: Model, values: list[Any], decode: DecodeSettings, first: int
) -> list[Prediction | RegardError]:
    """Prediction or error for each value; a failing batch is split in halves until the failing inputs are isolated."""
    if not values:
        return []
    try:
        return list(model.objective.predict(model, values, decode, first))
    except RegardError as error:
        if len(values) == 1:
            return [error]
    half = len(values) // 2
    return _predict_or_errors(model, values[:half], decode, first) + _predict_or_errors(
        model, values[half:], decode, first + half
    )


def choose(model: Model, inputs: Sequence[str], choices: Sequence[str], as_json: bool, form: str | None = None) -> int:
    """Print the choices for each input, ranked by probability."""
    said = PredictionWriter(model, inputs, as_json)
    for one in read_inputs(model.task, inputs, form=form):
        if one.value is None and one.error is not None:
            said.write_missing(one, one.error)
            continue
        if one.value is not None and not isinstance(one.value, str):
            raise RegardError(f"{one.location}: the row already has choices. Remove --choices.")
        try:
            answer = model.rank(one.value or "", choices)
        except RegardError as error:
            said.write_missing(one, error)
            continue
        if as_json:
            said.write(one, answer, False)
            continue
        for option in answer.extra["choices"]:
            print(f"{option['probability']:7.4f}  {option['value']}", flush=True)
        said.total, said.truncated = said.total + 1, said.truncated + bool(answer.extra.get("truncated"))
    return said.close()


def search(
    model: Model,
    inputs: Sequence[str],
    texts: Mapping[int, str],
    top_k: int | None,
    as_json: bool,
    chunk_size: int,
    form: str | None = None,
) -> int:
    """Print the `top_k` texts most similar to each input; the texts are embedded once."""
    from regard.runs.progress import ProgressPrinter
    from regard.tasks import embed

    task, source = model.task, model.spec.source
    trained = stored_task(source).name
    if trained != task.name:
        print(
            f"warning: {source} has the task '{trained}', not 'embed': its similarities are not meaningful. "
            f"Train an embedding model: regard train embed --data PAIRS --model {source} --out RUN",
            file=sys.stderr,
        )
    among, numbers = embed.build_index(model, list(texts.values()), ProgressPrinter("texts")), list(texts)
    said = PredictionWriter(model, inputs, as_json)
    headed = not (said.interactive or said.single_input or as_json)
    for some in chunked(read_inputs(task, inputs, form=form), 1 if said.interactive else chunk_size):
        real = [one for one in some if one.value is not None]
        answers = iter(embed.search(model, [one.value for one in real], among, top_k or embed.TOP_K) if real else [])
        for one in some:
            if one.value is None:
                said.write_missing(one, one.error)
                continue
            answer = next(answers)
            for hit in answer.extra["hits"]:
                hit["line"] = numbers[hit.pop("index")]
            if headed:
                print(one.value)
            said.write(one, answer, False)
            if headed:
                print(flush=True)
    return said.close()


def _print_json(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)
