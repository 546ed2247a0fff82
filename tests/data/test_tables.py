"""Rows with arbitrary columns from tables, JSON and Parquet by one reader."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, parquet, write
from regard.data.text.formats import Row
from regard.data.text.tables import iterate_rows
from regard.errors import DataError, RegardError, UnknownNameError

LABELLED = ("text", "label")


def rows(path: str, names: tuple[str, ...] = LABELLED, columns: dict[str, str] | None = None, **more: Any) -> list[Row]:
    return list(iterate_rows(path, names, columns, **more))


def complaint(path: str, *given: Any, kind: type[RegardError] = DataError, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        rows(path, *given, **more)
    return str(caught.value)


def test_columns_are_found_by_header_by_choice_or_by_order(folder: Path) -> None:
    wanted = [(2, {"text": " a b ", "label": "x"}), (3, {"text": "c", "label": "y"})]
    assert rows(write("a.tsv", "Label\tid\tTEXT\nx\t1\t a b \ny\t2\tc\n")) == wanted
    path = write("a.csv.gz", "sentence,kind\n a b ,x\nc,y\n")
    assert rows(path, columns={"text": "sentence", "label": "kind"}) == wanted
    assert rows(write("b.txt", "c\ty\n")) == [(1, {"text": "c", "label": "y"})]
    assert rows(write("c.tsv", "y\tc\t5\n"), columns={"text": "1", "label": "0"}) == [(1, {"text": "c", "label": "y"})]
    three = complaint(write("d.tsv", "a\tb\tc\n"))
    assert "expected 2 columns, got 3. Pass --columns text=NAME label=NAME (available: a, b, c)" in three
    assert "positions from 0: --columns text=0 label=1." in three and "SRC:TGT" not in complaint(write("e.tsv", "a\n"))


def test_one_column_needs_a_name(folder: Path) -> None:
    assert rows(write("a.csv", "text\none\n"), ("text",)) == [(2, {"text": "one"})]
    path = write("b.csv", "one\ntwo\n")
    said = complaint(path, ("text",))
    assert said.startswith(f"{path}, line 1: no column is named 'text'.") and "--columns text=0." in said
    assert rows(path, ("text",), {"text": "0"}) == [(1, {"text": "one"}), (2, {"text": "two"})]


def test_an_unrequested_header_is_refused(folder: Path) -> None:
    path = write("a.tsv", "sentence\tlabel\n" + "a fine day\t1\n" * 9)
    message = complaint(path)
    assert "the first row (sentence, label) looks like a header. For a header, pass" in message
    assert "--columns text=sentence label=label; " in message
    assert len(rows(path, columns={"text": "sentence"})) == 9


def test_optional_columns_are_there_or_not(folder: Path) -> None:
    header = write("a.tsv", "text\tsecond\tlabel\na\tb\tc\n")
    objects = write("a.jsonl", '{"text": "a", "label": "c"}\n{"text": "a", "second": "b", "label": "c"}\n')
    assert rows(header, optional=("second", "third")) == [(2, {"text": "a", "label": "c", "second": "b"})]
    assert [row.get("second") for _, row in rows(objects, optional=("second",))] == [None, "b"]
    assert rows(write("b.tsv", "a\tc\n"), optional=("second",)) == [(1, {"text": "a", "label": "c"})]
    for path in (header, objects):  # an explicitly named column must exist
        said = complaint(path, LABELLED, {"second": "secnd"}, optional=("second",), kind=UnknownNameError)
        assert "Unknown column 'secnd'" in said
    message = complaint(header, LABELLED, {"secnd": "b"}, optional=("second",), kind=UnknownNameError)
    assert "Did you mean 'second'?" in message


def test_lists_and_numbers_are_accepted_in_their_columns(folder: Path) -> None:
    row = {"text": "a", "choices": ["b", "c"], "answer": 1}
    path = jsonl("a.jsonl", row, {**row, "answer": True, "choices": "b|c"})
    names = ("text", "choices", "answer")
    assert [row["answer"] for _, row in rows(path, names, numeric=("answer",))] == ["1", "true"]
    assert [row["choices"] for _, row in rows(path, names, numeric=("answer",))] == [["b", "c"], "b|c"]
    assert "expected text in 'answer', got 1." in complaint(path, names)
    assert "expected text in 'choices', got 5." in complaint(write("b.jsonl", '{"choices": ["a", 5]}'), ("choices",))
    assert "expected text in 'text', got [" in complaint(write("c.jsonl", '{"text": ["a"]}'), ("text",))


def test_parquet_has_lists_numbers_and_optional_columns_too(folder: Path) -> None:
    columns = {"text": ["a", None], "choices": [["b", None], None], "label": [1, None], "good": [True, False]}
    parquet("a.parquet", columns)
    names, numbers = ("text", "choices"), ("label", "good")
    assert rows("a.parquet", names, optional=("label", "good", "other"), numeric=numbers) == [
        (1, {"text": "a", "choices": ["b", ""], "label": "1", "good": "true"}),
        (2, {"text": "", "choices": "", "label": "", "good": "false"}),
    ]
    assert "expected text in column 'label', got int64" in complaint("a.parquet", LABELLED)
    assert rows("a.parquet", ("words",), {"words": "text"})[0] == (1, {"words": "a"})
    assert rows("a.parquet", ("document",))[0] == (1, {"document": "a"})  # the only text column


@pytest.mark.slow
def test_long_rows_of_parquet_are_read_few_at_a_time(folder: Path) -> None:
    parquet("a.parquet", {"text": [f"{n:07}" * 150_000 for n in range(100)]})
    tracemalloc.start()
    found = [row["text"][:7] for _, row in iterate_rows("a.parquet", ("text",))]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [f"{n:07}" for n in range(100)] and most < 60e6  # the file has 105 MB


def test_a_field_of_a_table_may_be_a_book(folder: Path) -> None:
    book = "It was, they say, a dark night.\n" * 10_000
    path = write("a.csv", f'text\n"{book}"\n')
    assert rows(path, ("text",)) == [(2, {"text": book})]


def test_rows_that_are_complained_of_are_left_out(folder: Path) -> None:
    heard: list[str] = []
    Path("a.tsv").write_bytes(b"text\tlabel\na\tb\nc\n\xff\td\n\ne\tf\n")
    found = rows("a.tsv", on_error=lambda kind, error: heard.append(f"{kind} {error.line}"))
    assert found == [(2, {"text": "a", "label": "b"}), (5, {"text": "", "label": ""}), (6, {"text": "e", "label": "f"})]
    assert heard == ["format 3", "encoding 4"]


def test_a_missing_file_is_detected_at_once(folder: Path) -> None:
    write("train.tsv", "a\tb\n")
    with pytest.raises(DataError, match=r"train\.tsv"):
        iterate_rows("trian.tsv", LABELLED)
