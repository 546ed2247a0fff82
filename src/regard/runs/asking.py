"""`run`: what a model answers to arguments, lines of files or standard input, printed in their order."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.files import chunked, existing, lines
from regard.data.rows import OBJECTS, PARQUET, format_of, iterate_rows
from regard.decode.settings import Decode
from regard.errors import DataError, RegardError
from regard.model import Model
from regard.tasks.embed import BEST, Embed
from regard.waists import Answer

TABLE_NAME = re.compile(r"\.(tsv|csv|jsonl|parquet|pq)(\.gz)?$")

FILE_NAME = re.compile(r"\S+\.(txt|tsv|csv|jsonl|parquet|gz)")
"""An argument of this form is taken for a file, so that a misspelt one is not translated."""

TABLES = (".tsv", ".tab", ".csv", *OBJECTS, *PARQUET)
"""Files of texts whose rows have columns."""

PAUSE = 10.0
"""Seconds between two lines about a long work."""


def ask(model: Model, inputs: Sequence[str], decode: Decode, as_json: bool, chunk: int) -> None:
    """Print what is answered; `chunk` inputs are answered together, but one at a time to a person who types."""
    alone = not inputs and sys.stdin.isatty()
    if not as_json and sys.stdout.isatty() and model.task.streams(decode) and (alone or len(inputs) == 1):
        for number, text in enumerate(texts(inputs)):
            print(text, end="", flush=True)
            for part in model.task.stream_answer(model, text, decode, number):
                print(part, end="", flush=True)
            print(flush=True)
        return
    done = 0
    for some in chunked(texts(inputs), 1 if alone else chunk):
        _print(model, some, model.task.answer(model, some, decode, done), as_json)
        done += len(some)


def choose(model: Model, inputs: Sequence[str], choices: Sequence[str], as_json: bool) -> None:
    """Print which of some texts follows each input best."""
    for text in texts(inputs):
        answer = model.choose(text, choices)
        if as_json:
            _print_json(text, answer)
            continue
        for option in answer.extra["choices"]:
            print(f"{option['probability']:7.4f}  {option['value']}", flush=True)


def search(
    model: Model, inputs: Sequence[str], found: Mapping[int, str], best: int | None, as_json: bool, chunk: int
) -> None:
    """Print which of the texts that were `searched` are nearest to each input. Their vectors are made once."""
    task = model.task
    assert isinstance(task, Embed)
    among, numbers = task.among(model, list(found.values()), _Pace()), list(found)
    alone, several = not inputs and sys.stdin.isatty(), len(inputs) != 1
    for some in chunked(texts(inputs), 1 if alone else chunk):
        for text, answer in zip(some, task.nearest(model, some, among, best or BEST), strict=True):
            for hit in answer.extra["hits"]:
                hit["line"] = numbers[hit.pop("index")]
            if as_json:
                _print_json(text, answer)
                continue
            said = task.said(text, answer)
            print(f"{text}\n{said}\n" if several and not alone else said, flush=True)


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
    print(f"searching {len(found):,} texts of {file}", file=sys.stderr)
    return found


class _Pace:
    """Every ten seconds a line says how many texts are done."""

    def __init__(self) -> None:
        self.begun = self.told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.told > PAUSE and done < total:
            self.told = now
            print(f"  {done:,} of {total:,} texts, {done / (now - self.begun):,.0f} a second", file=sys.stderr)


def texts(inputs: Sequence[str]) -> Iterator[str]:
    """Arguments as they are, the lines of those that are files, or the lines of standard input."""
    if not inputs:
        if sys.stdin.isatty():
            print("type one text a line; Ctrl-D ends", file=sys.stderr)
        for number, line in enumerate(sys.stdin, start=1):
            try:
                line.encode()  # a byte that is not UTF-8 arrives as half of a character
            except UnicodeEncodeError as error:
                raise DataError("is not UTF-8.", "standard input", number, "Convert it with iconv.") from error
            yield line.rstrip("\r\n")
    for text in inputs:
        if TABLE_NAME.search(text) and os.path.isfile(text):
            raise RegardError(
                f"{text} is a table. 'regard run' reads one text a line; score a table by 'regard evaluate'."
            )
        if len(text) < 4096 and (os.path.isfile(text) or FILE_NAME.fullmatch(text)):
            if not Path(text).suffix:  # it could have been meant as a text
                print(f"reading the lines of the file {text}", file=sys.stderr)
            yield from (line for _, line in lines(text))
        else:
            yield text


def _print(model: Model, some: list[str], answers: list[Answer], as_json: bool) -> None:
    for text, answer in zip(some, answers, strict=True):
        if as_json:
            _print_json(text, answer, tokens=answer.tokens)
            continue
        options = answer.extra.get("alternatives", [])
        if len(options) > 1:
            print(f"{text}")
            for option in options:
                print(f"{option['score']:9.4f}\t{option['value']}", flush=True)
        else:
            print(model.task.said(text, answer), flush=True)
            if model.task.spacious and len(some) > 1:
                print(flush=True)


def _print_json(text: str, answer: Answer, **more: Any) -> None:
    row = {"input": text, "value": answer.value, "scores": answer.scores, **more, **answer.extra}
    print(json.dumps(row, ensure_ascii=False), flush=True)
