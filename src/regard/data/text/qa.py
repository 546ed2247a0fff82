"""Questions about a context whose answers stand in it word for word: SQuAD's JSON, JSON lines, Parquet and tables.

An answer is held by the place where it begins. One that does not stand where it is said to is looked for, and the nearest
place is taken; whitespace may be written otherwise. No answer means that the context does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.samples import everything, settled
from regard.data.text.columns import Wanted, listed
from regard.data.text.files import Complain, existing, refuse
from regard.data.text.records import document, records, wanted_of
from regard.data.text.tables import OBJECTS, PARQUET, Empty, format_of, heading, iterate_rows, value_of
from regard.errors import DataError

NEEDED = ("question", "context")
COLUMNS = (*NEEDED, "answer", "start", "id", "title")
"""What a person may name by --columns."""

USUAL: dict[str, tuple[str, ...]] = {
    "question": ("question", "query"),
    "context": ("context", "passage", "paragraph", "text"),
    "answer": ("answers", "answer", "answer_text"),
    "start": ("starts", "start", "answer_start", "answer_starts"),
    "id": ("id", "qid", "question_id"),
    "title": ("title", "article"),
    "impossible": ("is_impossible",),
}
"""What columns are usually called, the surest first."""

Row = dict[str, Any]
Told = tuple[str, int | None]
"""An answer, and where it is said to begin."""


@dataclass(frozen=True, slots=True)
class Span:
    """A question, what it is asked about, and its answers there; and where they were read."""

    question: str
    context: str
    answers: tuple[str, ...]
    """as they stand in the context, each of equal worth; none where it does not say"""
    starts: tuple[int, ...]
    """the characters that they begin with, from 0"""
    possible: bool = True
    """whether the context has the answer"""
    id: str = ""
    title: str = ""
    """of the article that the context is from"""
    path: str = ""
    line: int = 0
    """in a file that is one JSON document, the number of the question"""
    mended: int = 0
    """answers that did not stand where they were said to, and were found elsewhere"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "answers", tuple(self.answers))  # what was kept as JSON comes back as lists
        object.__setattr__(self, "starts", tuple(self.starts))

    @property
    def key(self) -> str:
        """What must not stand on both sides of a split: who has read an article knows more than its questions."""
        return self.title or self.context


class Found(NamedTuple):
    """An answer in its context."""

    text: str
    start: int
    mended: bool


def iterate_spans(data: Sequence[str], columns: Mapping[str, str] | None = None) -> Iterator[Span | Empty]:
    """Those of every file or pattern of files, in the order given."""
    advice = "Each row needs a question and a context."
    return everything(data, lambda entry: spans_of(entry, columns), "questions", advice)


def spans_of(
    entry: str, columns: Mapping[str, str] | None = None, complain: Complain = refuse, asked: bool = False
) -> Iterator[Span | Empty]:
    """Those of one file: SQuAD's JSON, or rows with `question`, `context`, `answer` and perhaps `start`, `id`, `title`.

    In JSON and Parquet `answers` may be a text, a list, or SQuAD's {"text": …, "answer_start": …}, one or a list of them.
    Where answers are `asked` for, none is read."""
    Wanted(NEEDED, columns, COLUMNS[2:])  # a wrong choice is refused before anything is read
    path = existing(entry)
    kind = format_of(path)
    whole = document(path) if kind == ".json" else None
    if isinstance(whole, dict):
        rows = _squad(path, whole, complain)
    elif isinstance(whole, list):
        rows = wanted_of(path, enumerate(whole, start=1), USUAL, NEEDED, columns, complain)
    elif kind in (*OBJECTS, *PARQUET):
        rows = wanted_of(path, records(path, complain), USUAL, NEEDED, columns, complain)
    else:
        rows = _table(entry, path, columns, complain)

    def read() -> Iterator[tuple[int, Span | Empty | None]]:
        for line, row in rows:
            try:
                yield line, _span(path, entry, line, {**row, "answer": None} if asked else row)
            except Stray as error:
                complain("answer", error)
            except DataError as error:
                complain("format", error)

    return settled(entry, read())


class Stray(DataError):
    """An answer that does not stand in its context."""


# -- files -> rows


def _squad(path: Path, whole: Mapping[str, Any], complain: Complain) -> Iterator[tuple[int, Row]]:
    """The questions of the paragraphs of the articles, counted from 1."""
    number = 0
    for article, title, paragraphs in _parts(path, whole, complain):
        for place, paragraph in enumerate(paragraphs, start=1):
            where = f"paragraph {place} of {article}"
            try:
                context, asked = paragraph["context"], paragraph["qas"]
                asked = [dict(one) for one in asked]
            except (TypeError, KeyError, ValueError) as error:
                missing = f"has no {error}" if isinstance(error, KeyError) else "is not as SQuAD writes it"
                complain("format", DataError(f"{where} {missing}.", path, advice=_FORM))
                continue
            for row in asked:
                number += 1
                told = {wanted: row[name] for wanted, name in _SQUAD.items() if name in row}
                yield number, {**told, "context": context, "title": title, "number": number}


_FORM = (
    'SQuAD\'s form is {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"question": …, "answers": …}]}]}]}.'
)
_SQUAD = {"question": "question", "answer": "answers", "id": "id", "impossible": "is_impossible"}


def _parts(path: Path, whole: Mapping[str, Any], complain: Complain) -> Iterator[tuple[str, Any, list[Any]]]:
    """Each article's name for people, its title, and its paragraphs."""
    articles = whole.get("data")
    if not isinstance(articles, list):
        raise DataError("has no list 'data'.", path, advice=f"{_FORM} Rows are written an object a line, as .jsonl.")
    for place, article in enumerate(articles, start=1):
        title = article.get("title", "") if isinstance(article, dict) else ""
        named = f"article {place}" + (f" ('{title}')" if title else "")
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if isinstance(paragraphs, list):
            yield named, title, paragraphs
        else:
            complain("format", DataError(f"{named} has no list 'paragraphs'.", path, advice=_FORM))


def _table(entry: str, path: Path, columns: Mapping[str, str] | None, complain: Complain) -> Iterator[tuple[int, Row]]:
    names = heading(entry)
    chosen = dict(columns or {})
    if not any(name not in names and name.isdigit() for name in chosen.values()):
        small = {name.lower(): name for name in reversed(names)}
        for wanted in COLUMNS:
            found = next((small[name] for name in USUAL[wanted] if name in small), None)
            if wanted not in chosen and found is not None:
                chosen[wanted] = found
        for wanted in NEEDED:
            if wanted not in chosen:
                advice = f"Say which it is: --columns {wanted}=NAME, of: {listed(names)}."
                raise DataError(f"no column is named '{wanted}'.", path, 1, advice)
    return iterate_rows(entry, NEEDED, chosen, complain, optional=COLUMNS[2:], numbers=("start", "id"))


# -- rows -> samples


def _span(path: Path, entry: str, line: int, row: Row) -> Span | Empty | None:
    where = None if "number" in row else line
    texts = {
        name: value_of(path, line, name, row.get(name), number=name == "id", several=False)
        for name in (*NEEDED, "id", "title")
    }
    question, context = texts["question"].strip(), texts["context"]
    told = [] if row.get("impossible") is True else _told(path, where, row.get("answer"), row.get("start"))
    if not question and not context.strip() and not told:
        return None
    if not question or not context.strip():
        missing, beside = ("question", context) if context.strip() else ("context", question)
        return Empty(entry, line, f"no {missing} beside: {beside.strip()[:60]}")
    found = []
    for text, start in told:
        answer = locate(context, text, start)
        if answer is None:
            name = f"question {row['number']} " if "number" in row else ""
            name += f"('{texts['id']}') " if texts["id"] else ""
            problem = f"{name}has an answer that does not stand in its context: '{text[:60]}'."
            raise Stray(problem, path, where, "Put it right, or remove the question.")
        found.append(answer)
    return Span(
        question, context, tuple(answer.text for answer in found), tuple(answer.start for answer in found), bool(found),
        texts["id"], texts["title"], entry, line, sum(answer.mended for answer in found),
    )  # fmt: skip


def _told(path: Path, line: int | None, value: Any, start: Any) -> list[Told]:
    """Answers that are not blank, with their places where these are said."""
    if isinstance(value, Mapping):
        value, start = value.get("text"), value.get("answer_start", value.get("start", start))
    if isinstance(value, list):
        starts = start if isinstance(start, list) else [start] * len(value) if len(value) == 1 else [None] * len(value)
        if len(starts) != len(value):
            raise DataError(f"has {len(value)} answers and {len(starts)} places of them.", path, line)
        return [told for item, at in zip(value, starts, strict=True) for told in _told(path, line, item, at)]
    if isinstance(start, list):
        start = start[0] if len(start) == 1 else None
    if value is None or value == "":
        return []
    if not isinstance(value, str):
        raise DataError(f"the answer is not text but {value!r:.40}.", path, line, "Write it in quotes.")
    return [(value, _number(path, line, start))] if value.strip() else []


def _number(path: Path, line: int | None, start: Any) -> int | None:
    """Where an answer begins; nothing, or below 0, is unknown."""
    if start is None or start == "":
        return None
    try:
        number = int(start)
    except (TypeError, ValueError, OverflowError):  # 1e400 is infinite
        number = None
    if number is None or (isinstance(start, float) and start != number):
        raise DataError(f"the answer begins at {start!r:.40}, which is no whole number.", path, line)
    return number if number >= 0 else None


def locate(context: str, text: str, start: int | None) -> Found | None:
    """An answer where it stands, without blanks around it; else at the nearest place to where it should, or the first.

    Whole words go before parts of such."""
    stripped = text.strip()
    at = None if start is None else start + len(text) - len(text.lstrip())
    if at is not None and context.startswith(stripped, at):
        return Found(stripped, at, False)
    places = [match.span() for match in re.finditer(re.escape(stripped), context)]
    same = bool(places)
    if not same:
        words = r"\s+".join(map(re.escape, stripped.split()))
        places = [match.span() for match in re.finditer(words, context)]
    if not places:
        return None
    first, end = min(places, key=lambda place: (_inside(context, *place), abs(place[0] - (at or 0))))
    return Found(context[first:end], first, at is not None or not same)


def _inside(context: str, first: int, end: int) -> bool:
    """Whether a word begins before this place, or ends behind it."""
    before = first > 0 and context[first - 1 : first + 1].isalnum()
    return before or (end < len(context) and context[end - 1 : end + 1].isalnum())
