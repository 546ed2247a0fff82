"""Text files, and pairs of texts from tables, JSON and parallel files."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from data_files import jsonl, write
from regard.data.text.files import read_lines
from regard.data.text.samples import Pair, iterate_pairs, iterate_positive_pairs
from regard.errors import DataError, RegardError, UnknownNameError


def read_pairs(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> tuple[list[Pair], list[tuple[str, int]]]:
    """Pairs, and (path, line) of skipped rows."""
    items = list(iterate_pairs(data, columns))
    skipped = [(row.path, row.line) for row in items if not isinstance(row, Pair)]
    return [row for row in items if isinstance(row, Pair)], skipped


def texts(*data: str, **columns: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(data, columns or None)[0]]


def complaint(*data: str, kind: type[RegardError] = DataError, **columns: str) -> str:
    with pytest.raises(kind) as caught:
        read_pairs(data, columns or None)
    return str(caught.value)


# -- files


def test_only_newlines_end_lines(folder: Path) -> None:
    odd = "one\u2028still one\x0b\x0c\x1c\x85\u2029\rend"
    lines = [(1, odd), (2, "two"), (3, ""), (4, "four")]
    assert list(read_lines(write("a.txt", f"{odd}\r\ntwo\n\nfour"))) == lines


def test_byte_order_marks_and_gzip_are_recognized_by_content(folder: Path) -> None:
    assert list(read_lines(write("no suffix", gzip.compress("\ufeffé\nb\n".encode())))) == [(1, "é"), (2, "b")]
    Path("a.tsv.gz").write_text("a\tb\n")
    assert texts("a.tsv.gz") == [("a", "b")]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04\x14\x00\x06", "a zip archive"), (b"PAR1\x15\x04", "a Parquet file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ""), (b"some text\nand a \0 in it", "NUL"),
    ],
)  # fmt: skip
def test_a_binary_file_is_not_text(folder: Path, content: bytes, kind: str) -> None:
    with pytest.raises(DataError, match=r"text|UTF-8") as caught:
        list(read_lines(write("a.csv", content)))
    assert "a.csv" in str(caught.value) and kind in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(folder: Path, content: bytes) -> None:
    assert complaint(write("none.tsv", content)) == "none.tsv: the file is empty."


def test_a_damaged_gzip_file_is_refused(folder: Path) -> None:
    content = gzip.compress("\n".join(f"{n}\t{n * n}" for n in range(5000)).encode())
    for damaged in (content[: len(content) // 2], content[:-8] + b"\1\2\3\4" + content[-4:]):
        message = complaint(write("cut.tsv", damaged))
        assert "cut.tsv, line" in message and "damaged gzip" in message and "gzip -t" in message


def test_files_that_do_not_exist_are_reported_with_the_nearest_name(folder: Path) -> None:
    write("train.tsv", "a\tb\n")
    assert "trian.tsv: file not found. Did you mean 'train.tsv'?" in complaint("trian.tsv")
    assert "; the folder" in complaint("nowhere/train.tsv")
    assert "file not found" in complaint("x" * 300 + ":y.tsv")
    assert complaint(str(folder)) == f"{folder}: expected a file, got a folder. Files in the folder: train.tsv."
    Path("link.tsv").symlink_to("gone.tsv")
    assert "broken link: 'gone.tsv' does not exist" in complaint("link.tsv")
    for number in range(30):
        write(f"{number:04}.jpg", "x")
    assert "has a similar name" in complaint("words.bin")


# -- rows that are read


@pytest.mark.parametrize(
    ("name", "content", "columns", "pairs"),
    [
        ("a.tsv", "Target\tSOURCE\nKatze\tcat\n", "", "cat/Katze"),
        ("a.csv", "source,target\ncat,Katze\n", "", "cat/Katze"),
        ("a.tsv", "id\ten\tde\n1\tcat\tKatze\n", "source=en target=de", "cat/Katze"),
        ("a.tsv", "id\ten\tde\n1\tcat\tKatze\n", "source=de target=en", "Katze/cat"),
        ("a.tsv", "cat\tKatze\tby X\ndog\tHund\tby Y\n", "source=1 target=0", "Katze/cat Hund/dog"),
        ("a.jsonl", '{"source": "a", "target": "c", "id": 1}\n\n{"target": "e", "source": "d"}\n', "", "a/c d/e"),
        ("b.ndjson.gz", '{"en": "cat", "de": "Katze"}\n', "source=en target=de", "cat/Katze"),
        ("a.json", json.dumps({"translation": {"en": "cat", "de": "Katze"}}), "source=en target=de", "cat/Katze"),
        ("10:30.tsv", "a\tb\n", "", "a/b"),  # a file with a colon in its name
    ],
)  # fmt: skip
def test_columns_are_found_by_name_choice_or_position(
    folder: Path, name: str, content: str, columns: str, pairs: str
) -> None:
    chosen = dict(item.split("=") for item in columns.split())
    assert texts(write(name, content), **chosen) == [tuple(pair.split("/")) for pair in pairs.split()]


def test_texts_and_line_numbers_are_kept(folder: Path) -> None:
    write("a.tsv", 'the "cat \t  die Katze\u2028hier \r\na,b\tc\r\n')
    assert read_pairs(["a.tsv"])[0] == [
        Pair('the "cat', "die Katze\u2028hier", "a.tsv", 1),
        Pair("a,b", "c", "a.tsv", 2),
    ]
    write("a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\n')  # a quoted field runs over two lines
    assert read_pairs(["a.csv"])[0] == [Pair('a "b", c\nd', "e", "a.csv", 1), Pair("f", "g", "a.csv", 3)]
    assert texts(write("a.jsonl", '{"source": "a\\u2028b", "target": "c"}\n')) == [("a\u2028b", "c")]


def test_files_are_read_in_the_order_given(folder: Path) -> None:
    first, second = write("b.txt", "1\t2\n"), write("a.tsv.gz", "3\t4\n")
    assert texts(first, second) == [("1", "2"), ("3", "4")]
    assert list(iterate_pairs(first)) == list(iterate_pairs([first]))


def test_empty_sides_are_skipped_and_counted(folder: Path) -> None:
    pairs, skipped = read_pairs([write("a.tsv", "\na\tb\n\t \nc\t\n \td\n\ne\tf\n\n\n")])
    assert [pair.line for pair in pairs] == [2, 7] and skipped == [("a.tsv", line) for line in (1, 3, 4, 5, 6)]
    write("a.jsonl", '{"source": "a", "target": null}\n{"source": "a", "target": "b"}\n')
    assert read_pairs(["a.jsonl"])[1] == [("a.jsonl", 1)]


def test_parallel_files_stay_aligned_over_odd_characters(folder: Path) -> None:
    source, target = write("t.en.gz", "a\u2028b\x0bc\nd\n\n"), write("t.de", "A\r\nD\x85E\r\n\r\n")
    both = f"{source}:{target}"
    assert read_pairs([both]) == ([Pair("a\u2028b\x0bc", "A", both, 1), Pair("d", "D\x85E", both, 2)], [])
    path = write("10:30.tsv", "a\tb\n")
    assert texts(f"{path}:{path}") == [("a\tb", "a\tb")]


# -- rows that are refused

GOOD = '{"source": "a", "target": "b"}\n'
REFUSED: list[tuple[str, str | bytes, str, tuple[str, ...]]] = [
    ("old one.tsv", b"\xef\xbb\xbfgood\tgut\ngirls\tM\xe4dchen\n", "",
     (", line 2: ", "byte 0xe4 at byte offset 19.", "iconv -f WINDOWS-1252 -t UTF-8 'old one.tsv' > 'old one.utf8.tsv'")),
    ("old.tsv.gz", b"a\tb\n\xff\n", "",
     ("line 2", "byte offset 4 after unzipping", "gzip -dc old.tsv.gz | iconv", "old.utf8.tsv")),
    ("word.txt", "a\tb\n".encode("utf-16"), "", ("got UTF-16", "iconv -f UTF-16 -t UTF-8")),
    ("bare.txt", "a\tb\n".encode("utf-16-le"), "", ("not a text file", "iconv")),
    ("a.tsv", "a\tb\nc\n", "", ("a.tsv, line 2: expected 2 columns, got 1.", "separator")),
    ("a.csv", "a,b\nc,d,e\n", "", ("a.csv, line 2: expected 2 columns, got 3.",)),
    ("a.csv", "id,en,de\n1,a,b\n2,c\n", "source=en target=de", ("a.csv, line 3: expected 3 columns, got 2.",)),
    ("a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\nh\r\n', "", ("a.csv, line 4: expected 2 columns, got 1",)),
    ("a.csv", 'a,b\nc,"d\ne,f\n', "",
     ("a.csv, line 2: invalid CSV in the record that starts", "a quote, a comma or a line break")),
    ("a.tsv", "id\ten\tde\n1\tcat\tKatze\n", "",
     ("a.tsv, line 1: expected 2 columns, got 3.", "--columns source=NAME target=NAME (available: id, en, de)")),
    ("a.txt", "the cat danced\n", "", ("line 1: expected 2 columns, got 1", "SRC:TGT", "tabs")),
    ("a.tsv", "a\tb\tc\n", "source=0 target=3", ("column 3 does not exist. Column positions range from 0 to 2.",)),
    ("a.csv", "en,en,de\n1,2,3\n", "source=en target=de", ("a.csv, line 1: duplicate column 'en' in the header.",)),
    ("a.csv", "id,english,german\n1,cat,Katze\n", "source=englsh target=german",
     ("Unknown column 'englsh'. Did you mean 'english'?", "Header of a.csv, line 1: id, english, german.")),
    ("a.csv", "id,english,german\n1,cat,Katze\n", "sorce=english target=german", ("Did you mean 'source'?",)),
    ("a.jsonl", '{"english": "a", "german": "b"}\n', "source=english target=germen",
     ("Did you mean 'german'?", "a.jsonl, line 1")),
    ("a.jsonl", '{"english": "a", "german": "b"}\n{"english": "a"}\n', "source=english target=german",
     ("a.jsonl, line 2: missing key 'german' (keys: english).",)),
    ("b.ndjson.gz", '{"en": "cat", "de": "Katze"}\n', "",
     ("b.ndjson.gz, line 1: missing key 'source' (keys: en, de).", "--columns source=NAME target=NAME")),
    ("a.json", json.dumps({"translation": {"en": "cat", "de": "Katze"}}), "", ("(keys: en, de).",)),
    ("a.jsonl", GOOD + '{"source": "a"', "", ("a.jsonl, line 2: ", "invalid JSON", "one JSON object per line")),
    ("a.jsonl", GOOD + '["a", "b"]', "", ("line 2: ", "expected a JSON object, got list", "jq -c '.[]'")),
    ("a.jsonl", GOOD + "[", "", ("line 2: ", "invalid JSON", "jq -c '.[]'")),
    ("a.jsonl", GOOD + "[" * 100_000, "", ("line 2: ", "invalid JSON", "one JSON object per line")),
    ("a.jsonl", GOOD + '{"source": "a", "target": 5}', "", ("line 2: ", "expected text in 'target', got 5", "quotes")),
    ("a.jsonl", GOOD + '{"source": "\\ud83d", "target": "b"}', "",
     ("line 2: ", "'source' contains \\ud83d, half of a surrogate pair", "escapes")),
    ("a.tsv", "a\t\n\tb\n", "", ("a.tsv: no pairs found: all 2 ", "missing target for: a")),
    ("b.tsv", "source\ttarget\n", "", ("the data contains no rows",)),
    ("train.en", "a\n", "", ("train.en: unsupported file type '.en'", ".jsonl", "SRC:TGT")),
    ("train", "a\n", "", ("the file name has no extension",)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "columns", "parts"), REFUSED)
def test_bad_files_are_refused_with_place_and_advice(
    folder: Path, name: str, content: str | bytes, columns: str, parts: tuple[str, ...]
) -> None:
    chosen = dict(item.split("=") for item in columns.split())
    kind = UnknownNameError if "Did you mean" in parts[0] else DataError
    message = complaint(write(name, content), kind=kind, **chosen)
    assert [part for part in parts if part not in message] == [], message
    if offset := re.search(r"byte (0x..) at byte offset (\d+)\.", message):
        assert Path(name).read_bytes()[int(offset[2])] == int(offset[1], 16)


def test_data_must_be_given() -> None:
    assert "No data given" in complaint()


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_parallel_files_of_different_length_name_both_counts(folder: Path, left: int, right: int) -> None:
    source, target = write("t.en", "a\n" * left), write("t.de", "b\n" * right)
    longer, shorter = (source, target) if left > right else (target, source)
    message = complaint(f"{source}:{target}")
    assert f"{longer}, line 4: no matching line in " in message
    assert f"'{longer}' has 5 lines, '{shorter}' has 3." in message
    assert "t.dee: file not found. Did you mean 't.de'" in complaint("t.en:t.dee")
    assert "one side of the colon is empty" in complaint("t.en:")


# -- positive pairs of embeddings


def positive(path: str, columns: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in iterate_positive_pairs([path], columns)]


@pytest.mark.parametrize("names", ["source target", "anchor positive", "Question Answer", "text pair", "a b", "b a"])
def test_columns_of_positive_pairs_have_many_accepted_names(names: str, folder: Path) -> None:
    rows = [("1", "one text", "its partner"), ("2", "another text", "another partner")]
    columns = ["id", *names.split()]
    pairs = [row[:0:-1] if names == "b a" else row[1:] for row in rows]
    assert positive(write("a.csv", "\n".join(",".join(row) for row in (columns, *rows)))) == pairs
    assert positive(jsonl("a.jsonl", *(dict(zip(columns, row, strict=True)) for row in rows))) == pairs


def test_positive_pairs_by_order_by_choice_and_from_parallel_files(folder: Path) -> None:
    assert positive(write("a.tsv", "one text\tits partner\n")) == [("one text", "its partner")]
    path = write("b.tsv", "x\ty\tz\none text\tno\tits partner\n")
    assert positive(path, {"source": "x", "target": "z"}) == [("one text", "its partner")]
    both = f"{write('a', f'source{chr(10)}a text')}:{write('b', f'target{chr(10)}its partner')}"
    assert positive(both) == [("source", "target"), ("a text", "its partner")]
    path = write("a.csv", "text,pair,label\none text,no partner,0\n")
    with pytest.raises(DataError, match="--columns"):  # the label may mark negative pairs
        positive(path)
    assert len(positive(path, {"source": "text", "target": "pair"})) == 1
