"""Outputs of predictions: the terminal, JSON lines, files of images and point clouds, and tables.

Predictions keep the order of the inputs, and an input that fails keeps its place; the error goes to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from regard.data.standard_input import STDIN_ARGUMENT
from regard.errors import DataError, RegardError
from regard.model import Model
from regard.runs.inputs import PredictInput
from regard.types import Prediction

MAX_LOCATIONS = 5  # Maximum number of listed locations of one error.


def is_terminal(stream: Literal["stdout", "stderr"]) -> bool:
    return bool(getattr(sys, stream).isatty())


def open_output(
    model: Model, inputs: Sequence[str], as_json: bool, out: Path | None, top_k: int | None = None
) -> PredictionWriter:
    """Output of a command. `out`: a folder of predictions that are files, or a table. `top_k`: number of classes."""
    if top_k is not None and not model.objective.has_top_k:
        raise RegardError(
            f"--top-k requires a model of task 'classify' or --search FILE, got task '{model.task.name}'."
        )
    if out is None or model.objective.has_file_output:
        if out is not None and (out.is_file() or (out.suffix and not out.is_dir())):
            raise RegardError(f"--out: expected a folder, got the file {out}. Use --out {out.stem}/.")
        return PredictionWriter(model, inputs, as_json, out, top_k)
    if as_json:
        raise RegardError("--json prints to standard output. Use --out FILE.jsonl without --json.")
    return TableOutput(model, inputs, out, top_k)


class PredictionWriter:
    """Prints predictions; errors and counts go to standard error. A context around the predictions."""

    own = False  # True if the columns of the inputs are written

    def __init__(
        self, model: Model, inputs: Sequence[str], as_json: bool, folder: Path | None = None, top_k: int | None = None
    ) -> None:
        """`folder`: output folder of predictions that are files. `top_k`: maximum number of classes."""
        self.model, self.as_json, self.folder, self.top_k = model, as_json, folder or Path("predictions"), top_k
        self.written_names: set[str] = set()
        from_stdin = not inputs or list(inputs) == [STDIN_ARGUMENT]
        self.interactive = from_stdin and sys.stdin.isatty()  # True if a user types the inputs in a terminal
        self.single_input = len(inputs) == 1 and not from_stdin
        self.total = self.truncated = self.failed = 0
        self.error_locations: dict[str, list[str]] = {}  # further locations of each error
        self._progress: Any = None
        if is_terminal("stderr") and (self.own or not is_terminal("stdout")):
            from regard.runs.progress import ProgressPrinter

            self._progress = ProgressPrinter("inputs")

    def __enter__(self) -> PredictionWriter:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def write(self, item: PredictInput, prediction: Prediction, in_batch: bool, ranked: bool = False) -> None:
        """`in_batch`: other inputs are predicted in the same call. `ranked`: all choices are printed."""
        self._count()
        self.truncated += bool(prediction.extra.get("truncated"))
        if self.top_k is not None:
            objective: Any = self.model.objective
            prediction = objective.top_classes(prediction, self.top_k)
        self._write(item, prediction, in_batch, ranked)

    def _count(self) -> None:
        self.total += 1
        if self._progress is not None:
            self._progress(self.total)

    def _write(self, item: PredictInput, prediction: Prediction, in_batch: bool, ranked: bool) -> None:
        if self.model.objective.has_file_output:
            return self._write_files(item, prediction)
        if self.as_json:
            row = {"value": prediction.value, "score": prediction.score, "tokens": prediction.tokens}
            _print_json({"input": item.to_json(), **row, **prediction.extra})
            return
        if ranked:
            for option in prediction.extra["choices"]:
                print(f"{option['probability']:7.4f}  {option['value']}", flush=True)
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
            print(objective.format_prediction(one.name or one.value, answer), *files.values(), sep="\t", flush=True)

    def write_missing(self, item: PredictInput, error: RegardError | None) -> None:
        """Output of an empty input, or of an input with an error."""
        if error is not None and self.single_input and not item.location:
            raise error
        self._count()
        self._write_missing(item, error)
        if error is None:
            return
        self.failed += 1
        where = "" if isinstance(error, DataError) and error.path is not None else item.location
        if str(error) in self.error_locations and not self.interactive:
            self.error_locations[str(error)].append(where)
            return
        self.error_locations[str(error)] = []
        print(f"regard: error: {where}{': ' if where else ''}{error}", file=sys.stderr)

    def _write_missing(self, item: PredictInput, error: RegardError | None) -> None:
        row: dict[str, Any] = {"input": item.to_json(), "value": None, "score": []}
        if self.as_json:
            _print_json(row if error is None else {**row, "error": str(error)})
        else:
            print(flush=True)

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


class TableOutput(PredictionWriter):
    """Writes a table with the columns of the inputs and the predictions."""

    own = True

    def __init__(self, model: Model, inputs: Sequence[str], path: Path, top_k: int | None = None) -> None:
        from regard.data.text.formats import BINARY_SUFFIXES, file_format
        from regard.data.text.own_columns import column_types
        from regard.data.text.table_writer import TableWriter, check_output

        super().__init__(model, inputs, False, top_k=top_k)
        check_output(path)
        typed = [entry for entry in inputs if file_format(entry) in BINARY_SUFFIXES and Path(entry).is_file()]
        types = column_types(typed) if path.suffix.lower() in BINARY_SUFFIXES else {}
        self.table = TableWriter(path, model.objective.list_separator, types)

    def __enter__(self) -> TableOutput:
        self.table.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.table.__exit__(*error)

    def _write(self, item: PredictInput, prediction: Prediction, in_batch: bool, ranked: bool) -> None:
        self.table.write(item.own or {}, self.model.objective.table_columns(prediction))

    def _write_missing(self, item: PredictInput, error: RegardError | None) -> None:
        self.table.write(item.own or {}, {"prediction": None, **({} if error is None else {"error": str(error)})})

    def close(self) -> int:
        print(self.table.path)
        return super().close()


def _print_json(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)
