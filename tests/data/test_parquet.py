"""Pairs from Parquet files, and file patterns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from test_pairs import complaint, read_pairs, texts

from data_files import parquet
from regard.data.sources import expand_patterns
from regard.data.text.samples import Pair
from regard.errors import RegardError, UnknownNameError
from regard.runs.spec import expand_paths
from regard.tasks import find_task

arrow = pytest.importorskip("pyarrow")


# Parquet

ENGLISH, GERMAN = ["cat", "dög", "🐦"], ["Katze", "Hund", "Vogel"]
BOTH = list(zip(ENGLISH, GERMAN, strict=True))


def test_columns_are_found_by_name_by_choice_or_by_being_the_only_two(folder: Path) -> None:
    numbers = arrow.array([1, 2, 3])
    assert texts(parquet("a.parquet", {"id": numbers, "target": GERMAN, "source": ENGLISH})) == BOTH
    assert texts(parquet("b.PQ", {"id": numbers, "en": ENGLISH, "de": GERMAN})) == BOTH
    several = parquet("c.pq", {"en.text": ENGLISH, "by": ["x", "y", "z"], "de": GERMAN})
    assert texts(several, source="en.text", target="de") == BOTH
    assert texts(several, source="de", target="de") == [(word, word) for word in GERMAN]
    assert "expected 2 text columns, got 3. Pass --columns" in complaint(several)
    assert "expected 2 text columns, got 1" in complaint(parquet("d.pq", {"a": ["x"], "b": [1]}))


@pytest.mark.parametrize("kind", ["large_string", "dictionary", "string_view"])
def test_every_kind_of_text_is_text(folder: Path, kind: str) -> None:
    if kind == "dictionary":
        column: Any = arrow.array(ENGLISH).dictionary_encode()
    else:
        column = arrow.array(ENGLISH, type=getattr(arrow, kind)())
    assert texts(parquet("a.parquet", {"source": column, "target": GERMAN})) == BOTH


def test_languages_under_translation_are_picked_by_name(folder: Path) -> None:
    nested = [{"de": german, "en": english} for english, german in BOTH]
    path = parquet("a.parquet", {"id": [1, 2, 3], "translation": nested})
    assert texts(path, source="en", target="de") == BOTH
    assert "'translation' has no fields named source and target. Pass --columns" in complaint(path)
    assert "(available: de, en)" in complaint(path)
    assert "Did you mean 'de'" in complaint(path, kind=UnknownNameError, source="en", target="dee")
    path = parquet("b.parquet", {"translation": [*nested[:2], None, {"en": "x", "de": None}]})
    pairs, skipped = read_pairs([path], {"source": "en", "target": "de"})
    assert [pair.source for pair in pairs] == ENGLISH[:2] and skipped == [(path, 3), (path, 4)]


def test_rows_keep_their_number_over_row_groups_and_nulls_are_empty(folder: Path) -> None:
    many = [f"row {n}" for n in range(1, 10_001)]
    german: list[str | None] = [f"Zeile {n}" for n in range(1, 10_001)]
    german[6] = None
    path = parquet("a.parquet", {"source": many, "target": german}, row_group_size=700)
    pairs, skipped = read_pairs([path])
    assert skipped == [(path, 7)]
    assert pairs[-1] == Pair("row 10000", "Zeile 10000", path, 10_000) and len(pairs) == 9999


def test_a_wrong_column_is_named(folder: Path) -> None:
    path = parquet("a.parquet", {"english": ENGLISH, "count": [1, 2, 3], "german": GERMAN})
    said = complaint(path, kind=UnknownNameError, source="englsh", target="german")
    assert "Did you mean 'english'?" in said and f"Columns in {path}: english, count, german." in said
    said = complaint(path, source="english", target="count")
    assert said.startswith(f"{path}: expected text in column 'count', got int64. Pass --columns")


def test_a_damaged_file_is_refused(folder: Path) -> None:
    path = Path(parquet("a.parquet", {"source": ENGLISH * 5000, "target": GERMAN * 5000}))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no such thing", whole[:4] + b"\xff" * 4000 + whole[4004:]):
        path.write_bytes(content)
        said = complaint(str(path))
        assert said.startswith(f"{path}: not a Parquet file, or damaged") and "Copy or download the file again." in said
    path.write_bytes(b"")
    assert complaint(str(path)) == f"{path}: the file is empty."
    nothing = arrow.array([], arrow.string())
    assert "contains no rows" in complaint(parquet("b.pq", {"source": nothing, "target": nothing}))


def test_invalid_bytes_are_named_by_their_row(folder: Path) -> None:
    raw = arrow.array([b"cat", b"M\xe4dchen"], arrow.binary())
    column = arrow.Array.from_buffers(arrow.string(), 2, raw.buffers())
    path = parquet("a.parquet", {"source": ["a", "b"], "target": column})
    assert complaint(path).startswith(f"{path}: invalid UTF-8 in 'target' of row 2 (byte 0xe4).")


def test_without_pyarrow_the_install_command_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet("a.parquet", {"source": ENGLISH, "target": GERMAN})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in complaint(path, kind=RegardError)


def test_a_parquet_file_by_another_name_is_recognised(folder: Path) -> None:
    path = parquet("a.tsv", {"source": ENGLISH, "target": GERMAN})
    assert "the content is a Parquet file. Rename the file to .parquet." in complaint(path)


# Patterns


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a\tb\n")


def test_a_pattern_matches_its_files_in_sorted_order(folder: Path) -> None:
    touch("b.tsv", "a.tsv", "c.csv", ".hidden.tsv", "deep/er/d.tsv", "deep/e.tsv")
    Path("f.tsv").mkdir()
    assert expand_patterns("*.tsv") == ["a.tsv", "b.tsv"]
    assert expand_patterns(["c.csv", "[!a].tsv", "?.tsv"]) == ["c.csv", "b.tsv", "a.tsv", "b.tsv"]
    assert expand_patterns("**/*.tsv") == ["a.tsv", "b.tsv", "deep/e.tsv", "deep/er/d.tsv"]
    assert expand_patterns(str(folder / "d*/**/*.tsv")) == [str(folder / "deep/e.tsv"), str(folder / "deep/er/d.tsv")]
    assert texts("*.tsv", "deep/*.tsv") == [("a", "b")] * 3


def test_a_pattern_that_matches_nothing_is_refused(folder: Path) -> None:
    touch("a.tsv")
    assert complaint("*.jsonl").startswith("*.jsonl: no file matches this pattern.")
    assert "no file matches" in complaint("*.en:*.de")


def test_a_name_that_exists_wins_over_the_pattern(folder: Path) -> None:
    touch("[a].tsv", "a.tsv", "x*.tsv", "xy.tsv", "set [new]/b.tsv", "[a].en", "[a].de", "n/b.tsv")
    assert expand_patterns(["[a].tsv", "x*.tsv"]) == ["[a].tsv", "x*.tsv"]
    assert expand_patterns("[a].en:[a].de") == ["[a].en:[a].de"]
    assert expand_patterns("set [new]/*.tsv") == ["set [new]/b.tsv"]
    assert expand_patterns("[n]/*.tsv") == ["n/b.tsv"]
    assert expand_patterns("missing.tsv") == ["missing.tsv"]


def test_two_patterns_are_paired_by_their_wildcards(folder: Path) -> None:
    touch("b.en", "a.en", "a.de", "b.de", "en/x/1.txt", "de/x/1.txt", "en/2.txt", "de/2.txt")
    assert expand_patterns("*.en:*.de") == ["a.en:a.de", "b.en:b.de"]
    assert expand_patterns("en/**/*.txt:de/**/*.txt") == ["en/2.txt:de/2.txt", "en/x/1.txt:de/x/1.txt"]
    assert texts("*.en:*.de") == [("a\tb", "a\tb")] * 2
    assert expand_patterns(f"{folder}/[ab].en:{folder}/[ab].de")[0] == f"{folder}/a.en:{folder}/a.de"
    touch("c.en")
    said = complaint("*.en:*.de")
    assert said.startswith("c.en: no matching file: '*.de' matches no file with 'c'")
    assert "Files left of the colon: 3, right of the colon: 2." in said
    assert "no matching file" in complaint("a.en:*.de")
    assert expand_patterns("a.en:a.d?") == ["a.en:a.de"]
    Path("c.en").rename("d.de")
    assert complaint("*.en:*.de").startswith("d.de: no matching file: '*.en' matches no file with 'd'")


def test_a_run_remembers_the_files_and_not_the_pattern(folder: Path) -> None:
    touch("b.tsv", "a.tsv", "a.en", "a.de")
    task = find_task("translate")
    assert expand_paths(task, Path("*.tsv")) == (str(folder / "a.tsv"), str(folder / "b.tsv"))
    assert expand_paths(task, ["*.en:*.de", "b.tsv"]) == (f"{folder}/a.en:{folder}/a.de", str(folder / "b.tsv"))
    assert expand_paths(task, expand_paths(task, "*.tsv")) == expand_paths(task, "*.tsv")
