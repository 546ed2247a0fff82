"""`predict`: predictions for arguments, lines of files, rows of tables, images, point clouds, or standard input.

Predictions are printed in input order. A failed input prints an empty line, so that outputs stay aligned with inputs; the
error goes to standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.file_discovery import IMAGE_SUFFIXES, walk_files
from regard.data.text.files import chunked, existing_file, expand_patterns, read_lines, reject_url
from regard.data.text.formats import ALL_TABLE_SUFFIXES, TABLE_SUFFIXES, file_format
from regard.data.text.tables import iterate_rows
from regard.decode.settings import DecodeSettings
from regard.errors import DataError, RegardError
from regard.index import read_config_files
from regard.model import Model
from regard.tasks import Task
from regard.types import Prediction

FILE_NAME = re.compile(rf"\S+({'|'.join(map(re.escape, (*ALL_TABLE_SUFFIXES, '.conll', '.conllu', '.gz')))})")
"""Arguments of this form are file names, so that a misspelled file name is an error instead of a text."""

STDIN_NAME = "standard input"
MAX_PATH_CHARS = 4096  # Maximum length of a file path.

POINT_FILE_START = re.compile(r"(ply|C?N?OFF|solid\b.*|v\s.*|#.*|[-+.\deE]+([\s,;]+[-+.\deE]+)+)$")
"""First line of a point cloud file, to detect file contents instead of paths on standard input."""


@dataclass(frozen=True)
class PredictInput:
    """One input and its location."""

    value: Any  # input of `Objective.predict`; None for an empty or unreadable input
    location: str = ""  # file and line; empty for a command-line argument
    error: RegardError | None = None  # error of an unreadable input
    name: str = ""  # displayed name of an input without text or path, such as an image inside a table

    def to_json(self) -> Any:
        """The input in JSON output."""
        if self.name:
            return self.name
        if is_dataclass(self.value):
            known = ((field.name, getattr(self.value, field.name)) for field in fields(self.value))
            return {name: value for name, value in known if name not in ("label", "path", "line")}
        return "" if self.value is None else self.value


def read_inputs(task: Task, inputs: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[PredictInput]:
    """Inputs from arguments, from lines or rows of files, or from lines of standard input.

    The value of an empty line is None, except for generation tasks."""
    if columns and not any(_is_file(task, entry) or _is_table(task, entry) for entry in inputs):
        raise RegardError("--columns requires an input file.")
    if task.objective.allows_empty_prompt and not inputs:
        yield PredictInput("")
    elif task.reader.suffixes:
        for entry in _stdin_paths(task) if not inputs or list(inputs) == ["-"] else inputs:
            if _is_table(task, entry):
                yield from _table_inputs(task, entry, columns)
            elif not entry:
                yield PredictInput("" if task.objective.allows_empty_prompt else None)
            else:  # an error in a file of a folder or pattern (with a location) stops no other input
                for path in expand_files(task, [entry]):
                    yield PredictInput(path, "" if path == entry else entry)
    elif not inputs:
        yield from _stdin_inputs(task)
    else:
        for entry in inputs:
            if not _is_file(task, entry):
                yield _text_input(task, entry)
            elif columns or file_format(entry) in task.reader.table_suffixes:
                for number, value in task.reader.inputs(entry, columns):
                    if isinstance(value, DataError) and value.kind == "header":
                        raise value
                    failed = isinstance(value, DataError)
                    yield PredictInput(None, entry, value) if failed else PredictInput(value, f"{entry}, line {number}")
            else:
                yield from _line_inputs(task, entry)


def _stdin_paths(task: Task) -> Iterator[str]:
    """Lines of standard input. If standard input is the content of a file, a single error is raised."""
    try:
        for number, line in enumerate(sys.stdin):
            entry = line.strip()
            if not number and entry and not os.path.exists(entry) and POINT_FILE_START.match(entry):
                raise RegardError(
                    f"Standard input: expected one path per line, got the content of a file ('{entry:.40}'). Pass the path."
                )
            yield entry
    except UnicodeDecodeError as error:
        raise RegardError(
            f"Standard input: expected one path per line, got binary data. Pass the paths of {task.reader.unit} as arguments."
        ) from error


def expand_files(task: Task, inputs: Iterator[str] | Sequence[str]) -> Iterator[str]:
    """Paths of the task's files for paths, patterns and folders; files of a folder are sorted by name."""
    for entry in expand_patterns(inputs):
        if not os.path.isdir(entry):
            yield entry
            continue
        found = [item.path for item in walk_files(entry, task.reader.suffixes) if not item.reason]
        if not found:
            raise DataError(f"contains no {task.reader.unit}.", entry)
        yield from found


def _is_table(task: Task, entry: str) -> bool:
    """True for a table of files, or for a part of one such as captions.json#val."""
    if os.path.isfile(entry):
        return file_format(entry) in task.reader.table_suffixes
    name = next(iter(task.reader.paths(entry)), entry) if "#" in entry else entry
    return name != entry and (os.path.isdir(name) or file_format(name) in task.reader.table_suffixes)


def _table_inputs(task: Task, entry: str, columns: Mapping[str, str] | None) -> Iterator[PredictInput]:
    """Inputs of the files listed or contained in a table, in order."""
    for sample in task.reader.inputs(entry, columns):
        if isinstance(sample, DataError):
            yield PredictInput(None, entry, sample)
        elif isinstance(sample, task.reader.sample_type):
            inside = f"{Path(sample.path).stem}-{sample.line}" if sample.content else ""
            # a table of points is a point cloud itself
            where = "" if sample.source == entry else f"{sample.path}, row {sample.line}"
            yield PredictInput(sample.content or sample.source, where, name=inside)


def may_be_path(text: str) -> bool:
    """False for a text that is too long for a path. Raise `DataError` for a folder or a URL."""
    if len(text) >= MAX_PATH_CHARS:
        return False
    reject_url(text)
    if os.path.isdir(text):
        pattern = os.path.join(text, "*.txt")
        advice = f"Pass files, or a quoted pattern such as '{pattern}'. For a text of this name, use standard input."
        raise DataError("expected a text or a file, got a folder.", text, advice=advice)
    return True


def _is_file(task: Task, text: str) -> bool:
    if task.input == "text" and not may_be_path(text):
        return False
    tables = task.reader.table_suffixes
    if os.path.isfile(text) and (task.input == "text" or file_format(text) in tables):  # images have no columns
        return True
    return bool(FILE_NAME.fullmatch(text)) or Path(text).suffix.lower() in tables


def _text_input(task: Task, text: str, place: str = "") -> PredictInput:
    return PredictInput(text if text.strip() or task.objective.generates else None, place)


def _stdin_inputs(task: Task) -> Iterator[PredictInput]:
    if sys.stdin.isatty():
        print("Type one text per line; Ctrl-D ends.", file=sys.stderr)
    for number, line in enumerate(sys.stdin, start=1):
        try:
            line.encode()  # invalid UTF-8 bytes are lone surrogates
        except UnicodeEncodeError:
            yield PredictInput(
                None, STDIN_NAME, DataError("is not UTF-8.", STDIN_NAME, number, "Convert the file with iconv.")
            )
            continue
        yield _text_input(task, line.rstrip("\r\n"), f"{STDIN_NAME}, line {number}")


def _line_inputs(task: Task, path: str) -> Iterator[PredictInput]:
    from regard.data.points.labeled import CLOUD_ONLY_SUFFIXES

    ending = file_format(path)
    if ending in (*CLOUD_ONLY_SUFFIXES, *IMAGE_SUFFIXES):
        kind = "a point cloud" if ending in CLOUD_ONLY_SUFFIXES else "an image"
        raise RegardError(f"{path}: expected text, got {kind}.")
    if not Path(path).suffix:  # the argument could also be a text
        print(f"Reading the lines of file {path}", file=sys.stderr)
    found: list[DataError] = []
    for number, text in read_lines(path, found.append):
        yield PredictInput(None, path, found.pop()) if found else _text_input(task, text, f"{path}, line {number}")
        found.clear()


# -- output

MAX_LOCATIONS = 5  # Maximum number of listed locations of one error.


class PredictionWriter:
    """Prints predictions; errors and counts go to standard error."""

    def __init__(self, model: Model, inputs: Sequence[str], as_json: bool, folder: Path | None = None) -> None:
        """`folder`: output folder of predictions that are files."""
        self.model, self.as_json, self.folder = model, as_json, folder or Path("predictions")
        self.written_names: set[str] = set()
        self.interactive = not inputs and sys.stdin.isatty()  # True if a user types the inputs in a terminal
        self.single_input = len(inputs) == 1
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
    columns: Mapping[str, str] | None = None,
    folder: Path | None = None,
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
    asked, said = read_inputs(model.task, inputs, columns), PredictionWriter(model, inputs, as_json, folder)
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


def choose(model: Model, inputs: Sequence[str], choices: Sequence[str], as_json: bool) -> int:
    """Print the choices for each input, ranked by probability."""
    said = PredictionWriter(model, inputs, as_json)
    for one in read_inputs(model.task, inputs):
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
    model: Model, inputs: Sequence[str], texts: Mapping[int, str], top_k: int | None, as_json: bool, chunk_size: int
) -> int:
    """Print the `top_k` texts most similar to each input; the texts are embedded once."""
    from regard.runs.progress import ProgressPrinter
    from regard.tasks import embed

    task, source = model.task, model.spec.source
    published, own = read_config_files(Path(source))
    system = model.spec.system
    trained = own["task"] if own else system.published.infer_task(published, system.tasks[0])
    if trained != task.name:
        print(
            f"warning: {source} has the task '{trained}', not 'embed': its similarities are not meaningful. "
            f"Train an embedding model: regard train embed --data PAIRS --model {source} --out RUN",
            file=sys.stderr,
        )
    among, numbers = embed.build_index(model, list(texts.values()), ProgressPrinter("texts")), list(texts)
    said = PredictionWriter(model, inputs, as_json)
    headed = not (said.interactive or said.single_input or as_json)
    for some in chunked(read_inputs(task, inputs), 1 if said.interactive else chunk_size):
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


def read_search_texts(file: str, columns: Mapping[str, str]) -> dict[int, str]:
    """Texts of a file by line number: one per line, or the column 'text' of a table, without empty texts."""
    path = existing_file(file)
    if file_format(path) in TABLE_SUFFIXES:
        found = {}
        for line, row in iterate_rows(file, ("text",), columns or None):
            if isinstance(row, DataError):
                raise row
            found[line] = str(row["text"]).strip()
    elif columns:
        raise DataError("a text file has no columns.", path, advice="Remove --columns.")
    else:
        found = {line: text.strip() for line, text in read_lines(path)}
    found = {line: text for line, text in found.items() if text}
    if not found:
        raise DataError("contains no text.", path, advice="Use one text per line, or a table with a column 'text'.")
    print(f"Searching {len(found):,} text{'s'[: len(found) > 1]} in {file}", file=sys.stderr)
    return found


def _print_json(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)
