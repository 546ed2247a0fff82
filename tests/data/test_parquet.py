"""Pairs from Parquet files, and file patterns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from test_tables import choices, complaint, read

from data_files import parquet
from regard.data.text.files import expand_patterns
from regard.data.text.samples import PAIRS, Pair
from regard.tasks import find_task

arrow = pytest.importorskip("pyarrow")


# Parquet

ENGLISH, GERMAN = ["cat", "dög", "🐦"], ["Katze", "Hund", "Vogel"]
BOTH = list(zip(ENGLISH, GERMAN, strict=True))
NESTED = [{"de": german, "en": english} for english, german in BOTH]
SEVERAL = {"en.text": ENGLISH, "by": ["x", "y", "z"], "de": GERMAN}
INVALID = arrow.Array.from_buffers(
    arrow.string(), 2, arrow.array([b"cat", b"M\xe4dchen"], arrow.binary()).buffers()
)  # not UTF-8


@pytest.mark.parametrize(
    ("columns", "chosen", "expected"),
    [
        ({"id": [1, 2, 3], "target": GERMAN, "source": ENGLISH}, "", BOTH),
        ({"id": [1, 2, 3], "en": ENGLISH, "de": GERMAN}, "", BOTH),
        (SEVERAL, "source=en.text target=de", BOTH),
        (SEVERAL, "source=de target=de", [(word, word) for word in GERMAN]),
        ({"source": arrow.array(ENGLISH, arrow.large_string()), "target": GERMAN}, "", BOTH),
        ({"source": arrow.array(ENGLISH, arrow.string_view()), "target": GERMAN}, "", BOTH),
        ({"source": arrow.array(ENGLISH).dictionary_encode(), "target": GERMAN}, "", BOTH),
        ({"id": [1, 2, 3], "translation": NESTED}, "source=en target=de", BOTH),
        ({"translation": [*NESTED[:2], None, {"en": "x", "de": None}, NESTED[2]]}, "source=en target=de",
         [*BOTH[:2], "", "missing target for: x", BOTH[2]]),
        (SEVERAL, "", "expected 2 text columns, got 3. Pass --columns"),
        ({"translation": NESTED}, "", "'translation' has no fields named source and target. Pass --columns"),
        ({"translation": NESTED}, "source=en target=dee", "Did you mean 'de'"),
        (SEVERAL, "source=de target=byy", "Did you mean 'by'? Columns in a.pq: en.text, by, de."),
        ({"a": ENGLISH, "count": [1, 2, 3]}, "source=a target=count",
         "a.pq: expected text in column 'count', got int64. Pass --columns"),
        ({"source": ["a", "b"], "target": INVALID}, "", "a.pq: invalid UTF-8 in 'target' of row 2 (byte 0xe4)."),
    ],
)  # fmt: skip
def test_columns_are_found_by_name_or_by_choice(columns: Any, chosen: str, expected: Any, folder: Path) -> None:
    path = parquet("a.pq", columns)
    if isinstance(expected, str):
        assert expected in complaint("pairs", path, columns=choices(chosen))
    else:
        assert read("pairs", path, columns=choices(chosen)) == expected


def test_rows_keep_their_number_over_row_groups_and_nulls_are_empty(folder: Path) -> None:
    german = [f"Zeile {n}" if n != 7 else None for n in range(1, 10_001)]
    path = parquet("a.PQ", {"source": [f"row {n}" for n in range(1, 10_001)], "target": german}, row_group_size=700)
    items = list(PAIRS.samples([path]))
    assert [item.line for item in items if not isinstance(item, Pair)] == [7] and len(items) == 10_000
    assert items[-1] == Pair("row 10000", "Zeile 10000", path, 10_000)


def test_damaged_files_and_a_missing_library_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(parquet("a.parquet", {"source": ENGLISH * 5000, "target": GERMAN * 5000}))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no such thing", whole[:4] + b"\xff" * 4000 + whole[4004:]):
        path.write_bytes(content)
        message = complaint("pairs", str(path))
        assert message.startswith(f"{path}: not a Parquet file, or damaged")
        assert "Copy or download the file again." in message
    path.write_bytes(b"")
    assert complaint("pairs", str(path)) == f"{path}: the file is empty."
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in complaint("pairs", str(path))


# Patterns


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a\tb\n")


FILES = (
    "b.tsv a.tsv c.csv .hidden.tsv deep/er/d.tsv deep/e.tsv b.en a.en a.de b.de en/x/1.txt de/x/1.txt en/2.txt de/2.txt"
)
NAMED = "[a].tsv a.tsv x*.tsv xy.tsv set_[new]/b.tsv [a].en [a].de n/b.tsv"
"""Files whose names are patterns."""


@pytest.mark.parametrize(("files", "pattern", "expected"), [
    (FILES, "*.tsv", "a.tsv b.tsv"), (FILES, "c.csv [!a].tsv ?.tsv", "c.csv b.tsv a.tsv b.tsv"),
    (FILES, "**/*.tsv", "a.tsv b.tsv deep/e.tsv deep/er/d.tsv"),
    (FILES, "HERE/d*/**/*.tsv", "HERE/deep/e.tsv HERE/deep/er/d.tsv"),
    (FILES, "*.en:*.de", "a.en:a.de b.en:b.de"), (FILES, "en/**/*.txt:de/**/*.txt", "en/2.txt:de/2.txt en/x/1.txt:de/x/1.txt"),
    (FILES, "HERE/[ab].en:HERE/[ab].de", "HERE/a.en:HERE/a.de HERE/b.en:HERE/b.de"), (FILES, "a.en:a.d?", "a.en:a.de"),
    # a name that exists wins over the pattern
    (NAMED, "[a].tsv x*.tsv", "[a].tsv x*.tsv"), (NAMED, "[a].en:[a].de", "[a].en:[a].de"),
    (NAMED, "set_[new]/*.tsv", "set_[new]/b.tsv"), (NAMED, "[n]/*.tsv", "n/b.tsv"), (NAMED, "missing.tsv", "missing.tsv"),
])  # fmt: skip
def test_a_pattern_is_its_files_in_sorted_order(files: str, pattern: str, expected: str, folder: Path) -> None:
    touch(*files.split())
    Path("f.tsv").mkdir()
    asked, right = ([name.replace("HERE", str(folder)) for name in words.split()] for words in (pattern, expected))
    assert expand_patterns(asked) == right


def test_patterns_are_read_stored_as_files_and_refused_without_a_partner(folder: Path) -> None:
    touch("b.tsv", "a.tsv", "deep/e.tsv", "a.en", "a.de", "b.en", "b.de")
    assert read("pairs", "*.tsv", "deep/*.tsv") == [("a", "b")] * 3
    assert read("pairs", "*.en:*.de") == [("a\tb", "a\tb")] * 2
    assert complaint("pairs", "*.jsonl").startswith("*.jsonl: no file matches this pattern.")
    assert "no file matches" in complaint("pairs", "*.x:*.y")
    expand = find_task("translate").reader.expand  # a run stores the files instead of the pattern
    assert expand(Path("*.tsv")) == (str(folder / "a.tsv"), str(folder / "b.tsv"))
    assert expand(expand("*.tsv")) == expand("*.tsv")
    assert expand(["[a].en:[a].de", "b.tsv"]) == (f"{folder}/a.en:{folder}/a.de", str(folder / "b.tsv"))
    touch("c.en")
    message = complaint("pairs", "*.en:*.de")
    assert message.startswith("c.en: no matching file: '*.de' matches no file with 'c'")
    assert "Files left of the colon: 3, right of the colon: 2." in message
    assert "no matching file" in complaint("pairs", "a.en:*.de")
    Path("c.en").rename("d.de")
    assert complaint("pairs", "*.en:*.de").startswith("d.de: no matching file: '*.en' matches no file with 'd'")
