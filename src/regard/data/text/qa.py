"""Extractive question answering data: SQuAD JSON, JSONL, Parquet and tables.

An answer is a span of the context, given by its text and start. If the text is not at the given start, the nearest
occurrence is used; whitespace may differ. A question without answers is unanswerable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from regard.data.reader import Reader, with_target
from regard.data.text import tables
from regard.data.text.files import Columns, existing_file
from regard.data.text.formats import Row, file_format, has_column_names
from regard.data.text.own_columns import read_own_rows
from regard.errors import DataError

REQUIRED_COLUMNS = ("question", "context")
COLUMNS = (*REQUIRED_COLUMNS, "answer", "start", "id", "title")  # Column names accepted by --columns

COLUMN_ALIASES: dict[str, tuple[str, ...]] = {
    "question": ("question", "query"),
    "context": ("context", "passage", "paragraph", "text"),
    "answer": ("answers", "answer", "answer_text"),
    "start": ("starts", "start", "answer_start", "answer_starts"),
    "id": ("id", "qid", "question_id"),
    "title": ("title", "article"),
    "impossible": ("is_impossible",),
}
"""Usual column names, in order of preference."""

RawRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class QASample:
    """A question, the context, and the answers in the context, with file and line."""

    question: str
    context: str
    answers: tuple[str, ...]  # reference answers, exactly as in the context; empty if unanswerable
    starts: tuple[int, ...]  # character offset of each answer in the context
    is_answerable: bool = True  # True if the context contains an answer
    id: str = ""
    title: str = ""  # title of the article of the context
    path: str = ""
    line: int = 0  # number of the question in SQuAD JSON
    num_relocated: int = 0  # number of answers found at another position than given

    @property
    def split_key(self) -> str:
        """Article or context, kept on one side of a train/validation split to avoid leaks."""
        return self.title or self.context


def read_qa(entry: str, columns: Columns = None, inputs_only: bool = False) -> tables.Samples[QASample]:
    """Yield the questions of one file: SQuAD JSON, or rows with `question`, `context`, `answer` and optionally `start`,
    `id`, `title`.

    In JSON and Parquet, `answers` may be a text, {"text": …, "answer_start": …} as in SQuAD, or a list of either. With
    `inputs_only`, answers are not read."""
    tables.ColumnSpec(REQUIRED_COLUMNS, columns, COLUMNS[2:])  # raises for an unknown column choice
    path = existing_file(entry)
    document = tables.read_json_document(path) if file_format(path) == ".json" else None
    if isinstance(document, dict):
        rows = _squad_rows(path, document)
    elif has_column_names(path):
        rows = tables.read_records(path, document, COLUMN_ALIASES, REQUIRED_COLUMNS, columns)
    else:
        aliases = {name: COLUMN_ALIASES[name] for name in COLUMNS}
        chosen = tables.find_columns(path, aliases, REQUIRED_COLUMNS, columns)
        rows = tables.iterate_rows(entry, REQUIRED_COLUMNS, chosen, optional=COLUMNS[2:], numeric=("start", "id"))
    return tables.make_samples(rows, partial(_make_sample, path, entry, inputs_only))


OWN_COLUMNS = ("id", "title", "context", "question")  # columns of a question in SQuAD JSON


def _own_rows(entry: str, columns: Columns) -> Iterator[Row]:
    path = existing_file(entry)
    document = tables.read_json_document(path) if file_format(path) == ".json" else None
    if isinstance(document, dict):
        for number, row in _squad_rows(path, document):
            yield number, None if isinstance(row, DataError) else {name: row.get(name, "") for name in OWN_COLUMNS}
    elif document is not None:
        yield from enumerate(document, start=1)
    else:
        yield from read_own_rows(entry)


_SQUAD_HINT = (
    'Expected SQuAD format: {"data": [{"title": …, "paragraphs": '
    '[{"context": …, "qas": [{"question": …, "answers": …}]}]}]}.'
)
_SQUAD_KEYS = {"question": "question", "answer": "answers", "id": "id", "impossible": "is_impossible"}


def _squad_rows(path: Path, document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield numbers from 1 and questions of all articles in SQuAD JSON, or the errors of invalid articles."""
    articles = document.get("data")
    if not isinstance(articles, list):
        raise DataError(
            f"missing list 'data' (keys: {tables.format_list(document)}).",
            path,
            advice=f"{_SQUAD_HINT} For one question per line, use .jsonl.",
        )
    number = 0
    for article_number, article in enumerate(articles, start=1):
        title = article.get("title", "") if isinstance(article, dict) else ""
        name = f"article {article_number}" + (f" ('{title}')" if title else "")
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            yield number, DataError(f"{name} has no list 'paragraphs'.", path, advice=_SQUAD_HINT)
            continue
        for paragraph_number, paragraph in enumerate(paragraphs, start=1):
            try:
                context, questions = paragraph["context"], [dict(item) for item in paragraph["qas"]]
            except (TypeError, KeyError, ValueError) as error:
                missing = f"has no key {error}" if isinstance(error, KeyError) else "is not in SQuAD format"
                problem = f"paragraph {paragraph_number} of {name} {missing}."
                yield number, DataError(problem, path, advice=_SQUAD_HINT)
                continue
            for row in questions:
                number += 1
                values = {column: row[key] for column, key in _SQUAD_KEYS.items() if key in row}
                yield number, {**values, "context": context, "title": title, "number": number}


def _make_sample(path: Path, entry: str, inputs_only: bool, line: int, row: RawRow) -> QASample | tables.SkippedRow:
    error_line = None if "number" in row else line
    texts = {
        name: tables.text_value(path, line, name, row.get(name), allow_numbers=name == "id")
        for name in (*REQUIRED_COLUMNS, "id", "title")
    }
    question, context = texts["question"].strip(), texts["context"]
    answers = []
    if row.get("impossible") is not True and not inputs_only:
        answers = _parse_answers(path, error_line, row.get("answer"), row.get("start"))
    fields = {"question": question, "context": context.strip(), "answer": "".join(text for text, _ in answers)}
    if (skipped := tables.find_missing(entry, line, fields, ("answer",))) is not None:
        return skipped
    located = []
    for text, start in answers:
        answer = locate_answer(context, text, start)
        if answer is None:
            name = f" {row['number']}" if "number" in row else ""
            name += f" ('{texts['id']}')" if texts["id"] else ""
            name = f"question{name}: " if name else ""
            problem = f"{name}answer not found in the context: '{text[:60]}'."
            advice = "Fix the answer, or remove the question."
            raise DataError(problem, path, error_line, advice, "answer_not_in_context")
        located.append(answer)
    spans, starts, relocated = zip(*located, strict=True) if located else ((), (), ())
    return QASample(
        question, context, spans, starts, bool(located), texts["id"], texts["title"], entry, line, sum(relocated)
    )


def _parse_answers(path: Path, line: int | None, value: Any, start: Any) -> list[tuple[str, int | None]]:
    """Non-empty answers, with their starts if given."""
    if isinstance(value, Mapping):
        value, start = value.get("text"), value.get("answer_start", value.get("start", start))
    if isinstance(value, list):
        starts = start if isinstance(start, list) else [start] * len(value) if len(value) == 1 else [None] * len(value)
        if len(starts) != len(value):
            problem = f"the number of answer starts ({len(starts)}) must equal the number of answers ({len(value)})."
            raise DataError(problem, path, line)
        parsed = (_parse_answers(path, line, item, offset) for item, offset in zip(value, starts, strict=True))
        return list(chain.from_iterable(parsed))
    if isinstance(start, list):
        start = start[0] if len(start) == 1 else None
    if value is None or value == "":
        return []
    if not isinstance(value, str):
        raise DataError(f"expected text as the answer, got {value!r:.40}.", path, line, "Write the answer in quotes.")
    number = None
    if start is not None and start != "" and value.strip():
        with suppress(TypeError, ValueError, OverflowError):  # 1e400 is infinite
            number = int(start)
        if number is None or (isinstance(start, float) and start != number):
            raise DataError(f"answer start must be an integer, got {start!r:.40}.", path, line)
    return [(value, None if number is None or number < 0 else number)] if value.strip() else []


def locate_answer(context: str, text: str, start: int | None) -> tuple[str, int, bool] | None:
    """Text of an answer in the context without surrounding spaces, its position, and True if relocated: at `start`, else
    at the nearest occurrence, or the first. Occurrences of whole words are preferred."""
    stripped = text.strip()
    at = None if start is None else start + len(text) - len(text.lstrip())
    if at is not None and context.startswith(stripped, at):
        return stripped, at, False
    places = [match.span() for match in re.finditer(re.escape(stripped), context)]
    same = bool(places)
    if not same:
        words = r"\s+".join(map(re.escape, stripped.split()))
        places = [match.span() for match in re.finditer(words, context)]
    if not places:
        return None
    first, end = min(places, key=lambda place: (_splits_word(context, *place), abs(place[0] - (at or 0))))
    return context[first:end], first, at is not None or not same


def _splits_word(context: str, first: int, end: int) -> bool:
    """True if the span begins or ends inside a word."""
    before = first > 0 and context[first - 1 : first + 1].isalnum()
    return before or (end < len(context) and context[end - 1 : end + 1].isalnum())


NO_ANSWER = "no answer"  # The only label of data with unanswerable questions

SPANS = Reader(
    unit="questions",
    columns=COLUMNS,
    sample_type=QASample,
    samples=partial(tables.iterate_all, read_qa, "questions", "Each row needs a question and a context."),
    inputs=partial(tables.sample_inputs, read_qa, lambda item: (item.question, item.context)),
    own_rows=_own_rows,
    split_key=lambda sample: sample.split_key,
    contents=lambda sample: with_target((sample.question, sample.context), json.dumps([sample.answers, sample.starts])),
    texts=lambda sample: (sample.question, sample.context),
    labels=lambda sample: () if sample.is_answerable else (NO_ANSWER,),
    min_valid_samples=20,  # contexts, which have several questions each
)
