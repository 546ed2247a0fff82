"""Table files of predictions: quoting, types, columns of the input, atomic writing, memory."""

from __future__ import annotations

import csv
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from data_files import refused, write
from regard.data.text.own_columns import OwnColumns, column_types, read_own_rows
from regard.data.text.table_writer import TableWriter, check_output
from regard.data.text.tables import iterate_rows
from regard.errors import RegardError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
NASTY = [
    'a "quoted", text',
    "tab\there",
    "two\nlines",
    "\r\n",
    '"',
    "",
    " space ",
    "ünïcode 🐈",
    "'",
    "a\\b",
    "\ud83d",
    "=1+1",
]


def table(path: Path) -> list[dict[str, Any]]:
    """Rows of a file as read by common libraries; texts in CSV and TSV."""
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t", strict=True))


def written(path: Path, *rows: tuple[dict[str, Any], dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    with TableWriter(path, **options) as writer:
        for own, predicted in rows:
            writer.write(own, predicted)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return table(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_text_is_restored_by_common_readers(suffix: str, tmp_path: Path) -> None:
    found = written(tmp_path / f"a{suffix}", *(({"a,b\t": text}, {"prediction": text}) for text in NASTY))
    clean = [text.encode("utf-8", "backslashreplace").decode() for text in NASTY] if suffix != ".jsonl" else NASTY
    assert [[*row.values()] for row in found] == [[text, text] for text in clean]
    assert {*found[0]} == {"a,b\t", "prediction"}


def test_tsv_without_tabs_and_leading_quotes_is_plain(tmp_path: Path) -> None:
    """The product and line tools read such files without unquoting."""
    text = 'she said "no", twice'
    written(tmp_path / "a.tsv", ({"text": text}, {"prediction": "b"}))
    assert (tmp_path / "a.tsv").read_text() == f"text\tprediction\n{text}\tb\n"
    assert [row["text"] for _, row in iterate_rows(str(tmp_path / "a.tsv"), ("text",))] == [text]


VALUES: list[tuple[Any, str, Any]] = [
    ("a", "a", "a"), (None, "", None), (True, "true", True), (3, "3", 3), (0.25, "0.25", 0.25), (1e-7, "1e-07", 1e-7),
    (["a", "b"], '["a", "b"]', ["a", "b"]), ({"x": [1]}, '{"x": [1]}', '{"x": [1]}'), ([{"x": 1}], '[{"x": 1}]', '[{"x": 1}]'),
    (2**70, str(2**70), str(2**70)), ([0.5, 1.5], "[0.5, 1.5]", [0.5, 1.5]), ([], "[]", []),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text", "typed"), VALUES)
def test_values_keep_their_types_where_the_format_has_types(value: Any, text: str, typed: Any, tmp_path: Path) -> None:
    for suffix, right in ((".csv", text), (".tsv", text), (".jsonl", value), (".parquet", typed)):
        row, empty = written(tmp_path / f"a{suffix}", ({"own": value}, {"prediction": "x"}), ({}, {"prediction": None}))
        shown = json.loads(row["own"]) if suffix == ".tsv" and isinstance(value, list | dict) else row["own"]
        assert shown == (value if suffix == ".tsv" and isinstance(value, list | dict) else right)
        assert not empty.get("own") and not empty["prediction"]
        (tmp_path / f"a{suffix}").unlink()


def test_lists_of_predictions_are_joined_in_text_formats(tmp_path: Path) -> None:
    rows = [({"text": "x"}, {"prediction": ["a", "b"], "probability": [0.5, 0.25]}), ({}, {"prediction": []})]
    assert written(tmp_path / "a.csv", *rows, separator="|")[0] == {
        "text": "x",
        "prediction": "a|b",
        "probability": "0.5|0.25",
    }
    (tmp_path / "a.csv").unlink()
    assert written(tmp_path / "b.parquet", *rows)[0]["prediction"] == ["a", "b"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_columns_of_the_input_come_first_and_keep_their_content(suffix: str, tmp_path: Path) -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"id": 1, "prediction": "old"}, {"prediction": "new", "probability": 0.5}),
        ({"id": 2, "more": "m", "error": "old"}, {"prediction": None, "error": "wrong"}),
        ({"id": 3, "words": ["a"]}, {"prediction": "b", "words": ["a"]}),
    ]
    found = written(tmp_path / f"a{suffix}", *rows)
    names = [*dict.fromkeys(name for row in found for name in row)]
    if suffix != ".jsonl":
        assert names == ["id", "prediction_input", "more", "error_input", "words", "prediction", "probability", "error"]
    assert {*names} == {"id", "prediction_input", "more", "error_input", "prediction", "probability", "words", "error"}
    assert found[0]["prediction_input"] == "old" and found[0]["prediction"] == "new"
    assert found[1]["error"] == "wrong" and found[1]["error_input"] == "old" and not found[1]["prediction"]
    (tmp_path / f"a{suffix}").unlink()
    assert "error" not in written(tmp_path / f"b{suffix}", rows[0])[0]
    (tmp_path / f"b{suffix}").unlink()
    assert suffix == ".jsonl" or list(written(tmp_path / f"c{suffix}", *rows[1::-1])[0])[-1] == "error"


def test_columns_of_parquet_keep_their_types(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = {
        "a": arrow.int8(), "b": arrow.timestamp("ns"), "c": arrow.list_(arrow.float32()), "d": arrow.date32(),
        "e": arrow.struct([("x", arrow.string())]), "f": arrow.decimal128(9, 2),
        "g": arrow.dictionary(arrow.int32(), arrow.string()),
    }  # fmt: skip
    values = {"a": [1], "b": [10**18 + 1], "c": [[0.5]], "d": [3], "e": [{"x": "y"}], "f": ["1.50"], "g": ["z"]}
    columns = {
        name: arrow.array(values[name]).cast(kind) if name == "f" else arrow.array(values[name], kind)
        for name, kind in kinds.items()
    }
    source = arrow.table({**columns, "h": arrow.array([b"\xff"])})
    arrow.parquet.write_table(source, tmp_path / "in.parquet")
    path = str(tmp_path / "in.parquet")
    own, types = OwnColumns(read_own_rows(path)).at(1), column_types([path, path])
    assert own is not None
    (tmp_path / "in.parquet").unlink()
    written(tmp_path / "a.parquet", (own, {"prediction": "x"}), types=types)
    found = arrow.parquet.read_table(tmp_path / "a.parquet")
    assert found.drop(["prediction"]).cast(source.drop(["h"]).schema).equals(source.drop(["h"]))
    assert found.schema.field("a").type == arrow.int8() and found.schema.field("b").type == arrow.timestamp("ns")


OWN: list[tuple[str, str, int, dict[str, Any]]] = [
    ("a.csv", 'id,text\n1,"a\nb"\n\n2,c\n', 5, {"id": "2", "text": "c"}),
    ("a.csv", "\n\nid,text\n1,a\n", 4, {"id": "1", "text": "a"}),
    ("a.csv", ",text,text\n0,a,b\n", 2, {"column_0": "0", "text": "a", "text_2": "b"}),
    ("a.tsv", "a\tgood\nb\tbad\n", 1, {"column_0": "a", "column_1": "good"}),
    ("a.csv", "id,text\n1\n", 2, {"id": "1"}),
    ("a.csv", "id,text\n\n", 2, {}),
    ("a.jsonl", '{"id": 1}\n\n{"id": 2, "x": [null]}\n', 3, {"id": 2, "x": [None]}),
    ("a.jsonl", '{"id": 1}\n{"id\n{"id": 2}\n', 2, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "line", "row"), OWN)
def test_rows_of_a_file_have_their_own_columns(name: str, content: str, line: int, row: Any, tmp_path: Path) -> None:
    own = OwnColumns(read_own_rows(write(tmp_path / name, content)))
    assert own.at(line) == row and own.at(99) == {}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_complete_or_missing_and_is_never_replaced(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / f"a{suffix}"
    check_output(path)
    with pytest.raises(KeyError), TableWriter(path) as writer:
        writer.write({}, {"prediction": "a"})
        assert not path.exists()
        raise KeyError
    assert [*path.parent.iterdir()] == []
    written(path, ({}, {"prediction": "a"}))
    refused("exists", check_output, path, error=RegardError)
    refused("exists", check_output, path.parent, error=RegardError)
    before = path.read_bytes()
    with TableWriter(path) as writer:  # another program has written a file of this name
        writer.write({}, {"prediction": "b"})
    assert path.read_bytes() == before and writer.path == path.with_stem("a-2")
    assert table(writer.path)[0]["prediction"] == "b"
    refused("supported", check_output, tmp_path / "a.xlsx", error=RegardError)


def test_parquet_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    refused("pyarrow", check_output, tmp_path / "a.parquet", error=RegardError)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_are_not_held_in_memory(suffix: str, tmp_path: Path) -> None:
    text, path = "x" * 1000, tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow.parquet")
    tracemalloc.start()
    with TableWriter(path) as writer:
        for number in range(8000):
            writer.write({"id": number, "text": text}, {"prediction": math.pi})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 2**20 and (suffix == ".parquet" or path.stat().st_size > 8 * 10**6)
