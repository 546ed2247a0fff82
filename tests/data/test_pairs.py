"""Text files, pairs of texts, and the held-out part."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.data.batching.split import HeldOutKeys, compute_fingerprint
from regard.data.text.files import read_lines
from regard.data.text.samples import Pair, iterate_pairs
from regard.errors import DataError, RegardError, SettingError, UnknownNameError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with spaces in its path."""
    place = tmp_path / "my own data"
    place.mkdir()
    return place


def write(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def read_pairs(
    data: Sequence[str], columns: Mapping[str, str] | None = None
) -> tuple[list[Pair], list[tuple[str, int]]]:
    """Pairs, and (path, line) of skipped rows."""
    found = list(iterate_pairs(data, columns))
    skipped = [(row.path, row.line) for row in found if not isinstance(row, Pair)]
    return [row for row in found if isinstance(row, Pair)], skipped


def texts(*data: str, **columns: str) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(data, columns or None)[0]]


def complaint(*data: str, kind: type[RegardError] = DataError, **columns: str) -> str:
    with pytest.raises(kind) as caught:
        read_pairs(data, columns or None)
    return str(caught.value)


# Lines


def test_only_newlines_end_lines(folder: Path) -> None:
    odd = "one\u2028still one\x0b\x0c\x1c\x85\u2029\rend"
    assert list(read_lines(write(folder / "a.txt", f"{odd}\r\ntwo\n\nfour"))) == [
        (1, odd),
        (2, "two"),
        (3, ""),
        (4, "four"),
    ]


def test_a_byte_order_mark_and_gzip_are_handled(folder: Path) -> None:
    path = folder / "no suffix of gzip"
    path.write_bytes(gzip.compress("\ufeffé\nb\n".encode()))
    assert list(read_lines(path)) == [(1, "é"), (2, "b")]


def test_a_plain_file_named_gz_is_read_as_it_is(folder: Path) -> None:
    path = folder / "a.tsv.gz"
    path.write_text("a\tb\n")
    assert texts(str(path)) == [("a", "b")]


def test_a_wrong_byte_is_named_with_line_offset_and_cure(folder: Path) -> None:
    path = write(folder / "old.tsv", b"\xef\xbb\xbfgood\tgut\ngirls\tM\xe4dchen\n")
    said = complaint(path)
    assert f"{path}, line 2: " in said
    assert "byte 0xe4 at byte offset 19." in said
    assert Path(path).read_bytes()[19] == 0xE4
    assert f"iconv -f WINDOWS-1252 -t UTF-8 '{path}' > '{folder}/old.utf8.tsv'" in said


def test_a_wrong_byte_in_gzip_is_counted_in_the_unzipped_text(folder: Path) -> None:
    path = write(folder / "old.tsv.gz", b"a\tb\n\xff\n")
    said = complaint(path)
    assert "line 2" in said and "byte offset 4 after unzipping" in said
    assert f"gzip -dc '{path}' | iconv" in said and "old.utf8.tsv'" in said


def test_utf_16_is_recognised(folder: Path) -> None:
    said = complaint(write(folder / "word.txt", "a\tb\n".encode("utf-16")))
    assert "got UTF-16" in said and "iconv -f UTF-16 -t UTF-8" in said
    unmarked = complaint(write(folder / "bare.txt", "a\tb\n".encode("utf-16-le")))
    assert "not a text file" in unmarked and "iconv" in unmarked


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04\x14\x00\x06", "a zip archive"),
        (b"PAR1\x15\x04", "a Parquet file"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ""),
        (b"some text\nand a \0 in it", "NUL"),
    ],
)
def test_a_binary_file_is_not_text(folder: Path, content: bytes, kind: str) -> None:
    path = write(folder / "a.csv", content)
    with pytest.raises(DataError) as caught:
        list(read_lines(path))
    assert path in str(caught.value) and kind in str(caught.value)
    assert re.search("text|UTF-8", str(caught.value))


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(folder: Path, content: bytes) -> None:
    path = write(folder / "none.tsv", content)
    assert complaint(path) == f"{path}: the file is empty."


def test_a_damaged_gzip_file_is_refused(folder: Path) -> None:
    content = gzip.compress("\n".join(f"{n}\t{n * n}" for n in range(5000)).encode())
    cut, wrong = folder / "cut.tsv.gz", folder / "wrong.tsv.gz"
    cut.write_bytes(content[: len(content) // 2])
    wrong.write_bytes(content[:-8] + b"\1\2\3\4" + content[-4:])
    for path in (cut, wrong):
        said = complaint(str(path))
        assert f"{path}, line" in said and "damaged gzip" in said and "gzip -t" in said


def test_a_missing_file_is_reported_with_the_nearest_name(folder: Path) -> None:
    write(folder / "train.tsv", "a\tb\n")
    said = complaint(str(folder / "trian.tsv"))
    assert "trian.tsv: file not found. Did you mean 'train.tsv'?" in said
    assert "; the folder" in complaint(str(folder / "nowhere" / "train.tsv"))
    assert "file not found" in complaint(str(folder / ("x" * 300 + ":y.tsv")))


def test_a_missing_file_in_a_crowded_folder_does_not_list_it(folder: Path) -> None:
    for number in range(30):
        write(folder / f"{number:04}.jpg", "x")
    assert "has a similar name" in complaint(str(folder / "sentences.tsv"))


def test_a_folder_is_not_a_file(folder: Path) -> None:
    write(folder / "train.tsv", "a\tb\n")
    assert complaint(str(folder)) == f"{folder}: expected a file, got a folder. Files in the folder: train.tsv."


def test_a_dangling_link_is_reported_with_its_target(folder: Path) -> None:
    (folder / "link.tsv").symlink_to("gone.tsv")
    assert "broken link: 'gone.tsv' does not exist" in complaint(str(folder / "link.tsv"))


# Tables


def test_tab_separated_pairs_keep_their_text_and_line(folder: Path) -> None:
    path = write(folder / "a.tsv", 'the "cat \t  die Katze\u2028hier \r\na,b\tc\r\n')
    assert read_pairs([path])[0] == [
        Pair('the "cat', "die Katze\u2028hier", path, 1),
        Pair("a,b", "c", path, 2),
    ]


def test_files_are_read_in_the_order_given(folder: Path) -> None:
    first, second = write(folder / "b.txt", "1\t2\n"), write(folder / "a.tsv.gz", "3\t4\n")
    assert texts(first, second) == [("1", "2"), ("3", "4")]
    assert read_pairs(first)[0] == read_pairs([first])[0]


def test_a_header_of_source_and_target_is_used_in_its_order(folder: Path) -> None:
    assert texts(write(folder / "a.tsv", "Target\tSOURCE\nKatze\tcat\n")) == [("cat", "Katze")]
    assert texts(write(folder / "a.csv", "source,target\ncat,Katze\n")) == [("cat", "Katze")]


def test_a_ragged_row_is_named_with_file_and_line(folder: Path) -> None:
    path = write(folder / "a.tsv", "a\tb\nc\n")
    said = complaint(path)
    assert f"{path}, line 2: expected 2 columns, got 1." in said and "separator" in said
    path = write(folder / "a.csv", "a,b\nc,d,e\n")
    assert f"{path}, line 2: expected 2 columns, got 3." in complaint(path)
    path = write(folder / "b.csv", "id,en,de\n1,a,b\n2,c\n")
    assert f"{path}, line 3: expected 3 columns, got 2." in complaint(path, source="en", target="de")


def test_three_columns_need_a_choice(folder: Path) -> None:
    path = write(folder / "a.tsv", "id\ten\tde\n1\tcat\tKatze\n")
    said = complaint(path)
    assert f"{path}, line 1: expected 2 columns, got 3." in said
    assert "--columns source=NAME target=NAME (available: id, en, de)" in said
    assert texts(path, source="en", target="de") == [("cat", "Katze")]
    assert texts(path, source="de", target="en") == [("Katze", "cat")]


def test_one_column_is_reported_with_separators_and_parallel_files(folder: Path) -> None:
    said = complaint(write(folder / "a.txt", "the cat danced\n"))
    assert "line 1: expected 2 columns, got 1" in said and "SRC:TGT" in said and "tabs" in said


def test_columns_without_a_header_are_chosen_by_position(folder: Path) -> None:
    path = write(folder / "a.tsv", "cat\tKatze\tby X\ndog\tHund\tby Y\n")
    assert texts(path, source="1", target="0") == [("Katze", "cat"), ("Hund", "dog")]
    assert "column 3 does not exist. Column positions range from 0 to 2." in complaint(path, source="0", target="3")


def test_an_unknown_column_is_reported_with_the_nearest(folder: Path) -> None:
    path = write(folder / "a.csv", "id,english,german\n1,cat,Katze\n")
    said = complaint(path, kind=UnknownNameError, source="englsh", target="german")
    assert "Unknown column 'englsh'. Did you mean 'english'?" in said
    assert f"Header of {path}, line 1: id, english, german." in said
    assert "Did you mean 'source'?" in complaint(path, kind=UnknownNameError, sorce="english", target="german")


def test_a_column_named_twice_is_refused(folder: Path) -> None:
    path = write(folder / "a.csv", "en,en,de\n1,2,3\n")
    assert f"{path}, line 1: duplicate column 'en' in the header." in complaint(path, source="en", target="de")


def test_a_quoted_field_runs_over_lines_and_later_lines_are_numbered_right(folder: Path) -> None:
    path = write(folder / "a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\nh\r\n')
    said = complaint(path)
    assert f"{path}, line 4: expected 2 columns, got 1" in said
    path = write(folder / "a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\n')
    assert read_pairs([path])[0] == [Pair('a "b", c\nd', "e", path, 1), Pair("f", "g", path, 3)]


def test_a_quote_left_open_is_named_where_it_starts(folder: Path) -> None:
    path = write(folder / "a.csv", 'a,b\nc,"d\ne,f\n')
    said = complaint(path)
    assert (
        f"{path}, line 2: invalid CSV in the record that starts here" in said
        and "a quote, a comma or a line break" in said
    )


def test_empty_sides_are_skipped_and_counted(folder: Path) -> None:
    path = write(folder / "a.tsv", "\na\tb\n\t \nc\t\n \td\n\ne\tf\n\n\n")
    pairs, skipped = read_pairs([path])
    assert [pair.line for pair in pairs] == [2, 7]
    assert skipped == [(path, line) for line in (1, 3, 4, 5, 6)]


def test_no_pairs_at_all_is_an_error(folder: Path) -> None:
    path = write(folder / "a.tsv", "a\t\n\tb\n")
    assert complaint(path).startswith(f"{path}: no pairs found: all 2 ") and "missing target for: a" in complaint(path)
    assert "the data contains no rows" in complaint(write(folder / "b.tsv", "source\ttarget\n"))
    assert "No data given" in complaint()


def test_an_unknown_suffix_lists_the_supported_ones(folder: Path) -> None:
    said = complaint(write(folder / "train.en", "a\n"))
    assert "train.en: unsupported file type '.en'" in said and ".jsonl" in said and "SRC:TGT" in said
    assert "the file name has no extension" in complaint(write(folder / "train", "a\n"))


# JSON


def test_json_lines_use_source_and_target_or_the_given_keys(folder: Path) -> None:
    path = write(
        folder / "a.jsonl", '{"source": "a\\u2028b", "target": "c", "id": 1}\n\n{"target": "e", "source": "d"}\n'
    )
    assert texts(path) == [("a\u2028b", "c"), ("d", "e")]
    path = write(folder / "b.ndjson.gz", '{"en": "cat", "de": "Katze"}\n')
    assert texts(path, source="en", target="de") == [("cat", "Katze")]
    said = complaint(path)
    assert f"{path}, line 1: missing key 'source' (keys: en, de)." in said
    assert "--columns source=NAME target=NAME" in said


def test_json_of_nested_translations_is_read_by_column(folder: Path) -> None:
    path = write(folder / "a.json", json.dumps({"id": "7", "translation": {"en": "cat", "de": "Katze"}}))
    assert texts(path, source="en", target="de") == [("cat", "Katze")]
    assert "(keys: en, de)." in complaint(path)


def test_an_unknown_json_key_is_reported_with_the_nearest(folder: Path) -> None:
    path = write(folder / "a.jsonl", '{"english": "a", "german": "b"}\n{"english": "a"}\n')
    said = complaint(path, kind=UnknownNameError, source="english", target="germen")
    assert "Did you mean 'german'?" in said and f"{path}, line 1" in said
    said = complaint(path, source="english", target="german")
    assert f"{path}, line 2: missing key 'german' (keys: english)." in said


@pytest.mark.parametrize(
    ("row", "problem", "advice"),
    [
        ('{"source": "a"', "invalid JSON", "one JSON object per line"),
        ('["a", "b"]', "expected a JSON object, got list", "jq -c '.[]'"),
        ("[", "invalid JSON", "jq -c '.[]'"),
        ("[" * 100_000, "invalid JSON", "one JSON object per line"),
        ('{"source": "a", "target": 5}', "expected text in 'target', got 5", "quotes"),
        ('{"source": "\\ud83d", "target": "b"}', "'source' contains \\ud83d, half of a surrogate pair", "escapes"),
    ],
)
def test_a_bad_json_line_is_named_with_file_line_and_cure(folder: Path, row: str, problem: str, advice: str) -> None:
    path = write(folder / "a.jsonl", '{"source": "a", "target": "b"}\n' + row + "\n")
    said = complaint(path)
    assert f"{path}, line 2: " in said and problem in said and advice in said


def test_a_null_is_an_empty_side(folder: Path) -> None:
    path = write(folder / "a.jsonl", '{"source": "a", "target": null}\n{"source": "a", "target": "b"}\n')
    assert read_pairs([path])[1] == [(path, 1)]


# Parallel files


def test_parallel_files_stay_aligned_over_odd_characters(folder: Path) -> None:
    source = write(folder / "t.en.gz", "a\u2028b\x0bc\nd\n\n")
    target = write(folder / "t.de", "A\r\nD\x85E\r\n\r\n")
    both = f"{source}:{target}"
    assert read_pairs([both])[0] == [Pair("a\u2028b\x0bc", "A", both, 1), Pair("d", "D\x85E", both, 2)]
    assert read_pairs([both])[1] == []


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_parallel_files_of_different_length_name_both_counts(folder: Path, left: int, right: int) -> None:
    source, target = write(folder / "t.en", "a\n" * left), write(folder / "t.de", "b\n" * right)
    longer, shorter = (source, target) if left > right else (target, source)
    said = complaint(f"{source}:{target}")
    assert f"{longer}, line 4: no matching line in " in said
    assert f"'{longer}' has 5 lines, '{shorter}' has 3." in said


def test_a_file_whose_name_has_a_colon_is_a_file(folder: Path) -> None:
    path = write(folder / "10:30.tsv", "a\tb\n")
    assert texts(path) == [("a", "b")]
    assert texts(f"{path}:{path}") == [("a\tb", "a\tb")]


def test_a_missing_parallel_file_is_named(folder: Path) -> None:
    source = write(folder / "train.en", "a\n")
    write(folder / "train.de", "b\n")
    assert "train.dee: file not found. Did you mean 'train.de'" in complaint(f"{source}:{folder}/train.dee")
    assert "one side of the colon is empty" in complaint(f"{source}:")


# Holding out


def numbered(count: int) -> list[Pair]:
    return [Pair(f"sentence {n}", f"Satz {n}", "a.tsv", n) for n in range(1, count + 1)]


def source_of(pair: Pair) -> str:
    return pair.source


def hold_out(pairs: list[Pair], key: Callable[[Pair], str], *more: Any, **given: Any) -> tuple[list[Pair], list[Pair]]:
    held = HeldOutKeys(map(key, pairs), *more, **given)
    return [pair for pair in pairs if key(pair) not in held], [pair for pair in pairs if key(pair) in held]


def test_two_percent_are_held_out_in_file_order() -> None:
    pairs = numbered(1000)
    train, valid = hold_out(pairs, source_of)
    assert len(valid) == 20
    assert sorted(train + valid, key=lambda pair: pair.line) == pairs
    assert [p.line for p in valid] == sorted(p.line for p in valid)
    assert [p.line for p in train] == sorted(p.line for p in train)
    assert len(hold_out(pairs, source_of, fraction=0.29)[1]) == 290
    assert len(hold_out(pairs, source_of, fraction=0.5, max_keys=7)[1]) == 7
    assert hold_out(pairs, source_of, salt="other")[1] != valid


def test_the_same_sentence_never_falls_on_both_sides() -> None:
    pairs = [Pair(f"sentence {n % 100}", str(n), "a.tsv", n) for n in range(1000)]
    train, valid = hold_out(pairs, source_of, fraction=0.1)
    assert len({pair.source for pair in valid}) == 10 and len(valid) == 100
    assert not {pair.source for pair in valid} & {pair.source for pair in train}


def test_order_does_not_change_the_held_out_rows_and_growth_changes_few() -> None:
    pairs = numbered(1000)
    held = set(hold_out(pairs, source_of, fraction=0.1)[1])
    random.Random(0).shuffle(pairs)
    assert set(hold_out(pairs, source_of, fraction=0.1)[1]) == held
    grown = set(hold_out(numbered(1100), source_of, fraction=0.1)[1])
    assert len(held & grown) >= 90


def test_something_stays_on_either_side() -> None:
    train, valid = hold_out(numbered(2), source_of)
    assert len(train) == len(valid) == 1
    assert len(hold_out(numbered(3), source_of, fraction=0.99)[0]) == 1


def test_too_little_data_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match="--valid"):
        hold_out(numbered(1) * 5, source_of)
    with pytest.raises(SettingError, match="between 0 and 1"):
        hold_out(numbered(5), source_of, fraction=1.0)


def test_a_fingerprint_notices_content_order_and_borders() -> None:
    seen = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"], ["ab", "c", ""], []]
    assert len({compute_fingerprint(some) for some in seen}) == len(seen)
    assert (
        compute_fingerprint(["ab", "c"]) == compute_fingerprint(iter(("ab", "c"))) == "4826ed043ab3cdec576d8541fa5d5a80"
    )
