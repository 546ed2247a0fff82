"""`run`: what a model answers to arguments, files or standard input, printed in their order, one answer for each.

Nothing stands for what could not be answered, so that answers stay beside their inputs; why is said on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.text.files import chunked, existing, lines
from regard.data.text.tables import format_of, iterate_rows
from regard.data.text.unlabeled_rows import TABLES
from regard.decode.settings import Decode
from regard.errors import DataError, RegardError
from regard.folders import read_identity
from regard.model import Model
from regard.runs.predict_inputs import Given, given
from regard.runs.terminal import Pace
from regard.systems import find_published
from regard.types import Answer

PLACES = 5
"""Lines that are named where several have the same fault."""


class Said:
    """Prints answers, and says on standard error what became of the inputs."""

    def __init__(self, model: Model, inputs: Sequence[str], as_json: bool, folder: Path | None = None) -> None:
        """`folder`: where answers that are pictures or clouds are left."""
        self.model, self.as_json, self.folder = model, as_json, folder or Path("answers")
        self.left: set[str] = set()
        self.alone = not inputs and sys.stdin.isatty()
        """a person types, and waits for an answer to each line"""
        self.only = len(inputs) == 1
        self.total = self.cut = self.failed = 0
        self.faults: dict[str, list[str]] = {}
        """where else each problem was met"""
        self.hinted = False

    def answer(self, one: Given, answer: Answer, several: bool) -> None:
        """`several`: others are answered beside it."""
        self.total += 1
        self.cut += bool(answer.extra.get("cut"))
        if self.model.task.paints:
            return self._painted(one, answer)
        if self.as_json:
            row = {"input": one.written(), "value": answer.value, "scores": answer.scores, "tokens": answer.tokens}
            _print_json({**row, **answer.extra})
            return
        options = answer.extra.get("alternatives", [])
        if len(options) > 1:
            print(one.title)
            for option in options:
                print(f"{option['score']:9.4f}\t{option['value']}", flush=True)
            return
        print(self.model.task.said(one.title, answer), flush=True)
        if self.model.task.spacious and several:
            print(flush=True)

    def _painted(self, one: Given, answer: Answer) -> None:
        # a page of this name could not be opened by its address with a #
        stem = Path(str(one.title)).stem.replace("#", "-") or self.model.task.unit.removesuffix("s")
        name, number = stem, 1
        while name in self.left:  # files of one name from several folders
            number += 1
            name = f"{stem}-{number}"
        self.left.add(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self.model.task.leave(name, answer, self.folder)
        if self.as_json:
            _print_json({"input": one.written(), "value": answer.value, "files": files})
        else:
            print(self.model.task.said(one.title, answer), *files.values(), sep="\t", flush=True)

    def nothing(self, one: Given, problem: RegardError | None) -> None:
        """A blank input, or one that has a problem."""
        if problem is not None and self.only and not one.place:
            raise problem
        self.total += 1
        row: dict[str, Any] = {"input": one.written(), "value": None, "scores": []}
        if self.as_json:
            _print_json(row if problem is None else {**row, "problem": str(problem)})
        else:
            print(flush=True)
        if problem is not None:
            self.failed += 1
            self._fault(one, problem)

    def _fault(self, one: Given, problem: RegardError) -> None:
        where = "" if isinstance(problem, DataError) and problem.path is not None else one.place
        if str(problem) in self.faults and not self.alone:
            self.faults[str(problem)].append(where)
            return
        self.faults[str(problem)] = []
        print(f"regard: {where}{': ' if where else ''}{problem}", file=sys.stderr)

    def hint(self, one: Given) -> None:
        """Once, where a gap is given to a model that fills none."""
        model = self.model
        if (
            self.hinted
            or model.task.name in ("mask", "language")
            or model.text is None
            or not isinstance(one.value, str)
        ):
            return
        if model.text.role("mask") is None:
            return
        from regard.tasks.fill_mask import gap_of

        if gap_of(model.text) in one.value:
            self.hinted = True
            print(
                f"{gap_of(model.text)} is read as it is: this model was made to {model.task.name}, and fills no gaps. "
                "One that was trained for the task mask does.",
                file=sys.stderr,
            )

    def close(self) -> int:
        """How many were not answered."""
        for places in filter(None, self.faults.values()):
            named = "; ".join(filter(None, places[:PLACES]))
            more = f" and {len(places) - PLACES:,} more" if len(places) > PLACES else ""
            print(
                f"regard: the same at {named}{more}" if named else f"regard: {len(places)} times more", file=sys.stderr
            )
        if self.failed and self.total > 1:
            print(f"{counted(self.failed, self.total)} not answered", file=sys.stderr)
        if self.cut:
            where = self.model.task.cut
            print(f"{counted(self.cut, self.total)} longer than this model reads, and cut {where}", file=sys.stderr)
        return 0 if self.alone else self.failed


def counted(some: int, total: int) -> str:
    return f"{some:,} of {total:,} inputs {'was' if some == 1 else 'were'}"


def ask(
    model: Model, inputs: Sequence[str], decode: Decode, as_json: bool, chunk: int,
    columns: Mapping[str, str] | None = None, folder: Path | None = None,
) -> int:  # fmt: skip
    """Print what is answered; `chunk` inputs are answered together, but one at a time to a person who types.

    Returns how many could not be answered."""
    if folder is not None:
        _check_folder(model, folder)
    asked, said = given(model.task, inputs, columns), Said(model, inputs, as_json, folder)
    if not as_json and sys.stdout.isatty() and model.task.streams(decode) and (said.alone or said.only):
        return _stream(model, asked, decode)
    done = 0
    for some in chunked(asked, 1 if said.alone else min(chunk, model.task.at_once)):
        real = [one for one in some if one.value is not None]
        for one in real:
            said.hint(one)
        answers = iter(_tried(model, [one.value for one in real], decode, done))
        done += len(real)
        for one in some:
            answer = None if one.value is None else next(answers)
            if isinstance(answer, Answer):
                said.answer(one, answer, len(some) > 1)
            else:
                said.nothing(one, one.problem if answer is None else answer)
    return said.close()


def _check_folder(model: Model, folder: Path) -> None:
    if not model.task.paints:
        raise RegardError(
            f"--out is a folder for answers that are pictures or clouds, and those of the task {model.task.name} are words: "
            "write them to a file with > FILE."
        )
    if folder.is_file() or (folder.suffix and not folder.is_dir()):
        raise RegardError(
            f"--out {folder} is a file, and a folder is wanted: an answer is several files. Say --out {folder.stem}/."
        )


def _stream(model: Model, asked: Iterator[Given], decode: Decode) -> int:
    for number, one in enumerate(asked):
        if one.problem is not None:
            raise one.problem
        print(one.value or "", end="", flush=True)
        for part in model.task.stream_answer(model, one.value or "", decode, number):
            print(part, end="", flush=True)
        print(flush=True)
    return 0


def _tried(model: Model, values: list[Any], decode: Decode, first: int) -> list[Answer | RegardError]:
    """The answers, or why there is none; what cannot be answered together is divided until the ones at fault are alone."""
    if not values:
        return []
    try:
        return list(model.task.answer(model, values, decode, first))
    except RegardError as error:
        if len(values) == 1:
            return [error]
    half = len(values) // 2
    return _tried(model, values[:half], decode, first) + _tried(model, values[half:], decode, first + half)


def choose(model: Model, inputs: Sequence[str], choices: Sequence[str], as_json: bool) -> int:
    """Print which of some texts follows each input best."""
    said = Said(model, inputs, as_json)
    for one in given(model.task, inputs):
        if one.value is None and one.problem is not None:
            said.nothing(one, one.problem)
            continue
        if one.value is not None and not isinstance(one.value, str):
            raise RegardError(f"{one.place}: has choices of its own. Leave --choices out.")
        try:
            answer = model.choose(one.value or "", choices)
        except RegardError as error:
            said.nothing(one, error)
            continue
        if as_json:
            said.answer(one, answer, False)
            continue
        for option in answer.extra["choices"]:
            print(f"{option['probability']:7.4f}  {option['value']}", flush=True)
        said.total, said.cut = said.total + 1, said.cut + bool(answer.extra.get("cut"))
    return said.close()


def search(
    model: Model, inputs: Sequence[str], found: Mapping[int, str], best: int | None, as_json: bool, chunk: int
) -> int:
    """Print which of the texts that were `searched` are nearest to each input. Their vectors are made once."""
    from regard.tasks.embed import BEST, Embed

    task = model.task
    assert isinstance(task, Embed)
    own = _made_for(model.identity.source)
    if own != task.name:
        print(
            f"{model.identity.source} was made to {own}, not to embed: how near its texts are means little. Train it: "
            f"regard train embed --data PAIRS --model {model.identity.source} --out RUN",
            file=sys.stderr,
        )
    among, numbers = task.among(model, list(found.values()), Pace("texts")), list(found)
    said = Said(model, inputs, as_json)
    headed = not (said.alone or said.only or as_json)
    for some in chunked(given(task, inputs), 1 if said.alone else chunk):
        real = [one for one in some if one.value is not None]
        answers = iter(task.nearest(model, [one.value for one in real], among, best or BEST) if real else [])
        for one in some:
            if one.value is None:
                said.nothing(one, one.problem)
                continue
            answer = next(answers)
            for hit in answer.extra["hits"]:
                hit["line"] = numbers[hit.pop("index")]
            if headed:
                print(one.value)
            said.answer(one, answer, False)
            if headed:
                print(flush=True)
    return said.close()


def _made_for(folder: str) -> str:
    published, own = read_identity(Path(folder))
    if own:
        return str(own["task"])
    system = find_published(str(published.get("model_type")))
    return system.published.task(published, system.tasks[0])


def searched(file: str, columns: Mapping[str, str]) -> dict[int, str]:
    """The texts of a file by their lines: one a line, or the column `text` of a table. Blank ones are left out."""
    path = existing(file)
    if format_of(path) in TABLES:
        rows = iterate_rows(file, ("text",), columns or None)
        found = {line: str(row["text"]).strip() for line, row in rows}
    elif columns:
        raise DataError("has one text a line, and no columns.", path, advice="Leave --columns out.")
    else:
        found = {line: text.strip() for line, text in lines(path)}
    found = {line: text for line, text in found.items() if text}
    if not found:
        raise DataError("holds no text.", path, advice="Write one text a line, or give a table with a column 'text'.")
    print(f"searching {len(found):,} text{'s'[: len(found) > 1]} of {file}", file=sys.stderr)
    return found


def _print_json(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False), flush=True)
