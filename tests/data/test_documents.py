"""Text documents from files, folders, JSON, Parquet and tables, split without a change of tokens."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from data_files import jsonl, parquet, write
from regard.data.text import documents as texts
from regard.data.text import files
from regard.data.text.documents import (
    MAX_LINE_SEARCH,
    MIN_PASSAGE_CHARS,
    PASSAGE_CHARS,
    Passage,
    iterate_texts,
    passage_size,
    split_document,
    text_files,
)
from regard.data.text.files import read_blocks
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError, UnknownNameError

VOCABULARY = Path(__file__).parents[3] / "shared/data/vocab/gpt2"


def read(*data: str, **columns: str) -> list[Passage | SkippedRow]:
    return list(iterate_texts(data, columns or None))


def documents(*data: str, **columns: str) -> list[str]:
    found: list[str] = []
    for item in read(*data, **columns):
        if isinstance(item, Passage):
            found = [*found, item.text] if item.starts_document else [*found[:-1], found[-1] + item.text]
    return found


def complaint(*data: str, kind: type[RegardError] = DataError, **columns: str) -> str:
    with pytest.raises(kind) as caught:
        read(*data, **columns)
    return str(caught.value)


# -- plain files


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.txt.gz", "a.raw", "no suffix", ".hidden"])
def test_a_plain_file_is_one_document_kept_exactly(folder: Path, name: str) -> None:
    content = "  one\ttwo \n\n\u2028three\x0b\rfour\n \n"
    assert read(write(name, content)) == [Passage(content, name, 1, True)]


def test_windows_line_ends_and_a_byte_order_mark_are_handled(folder: Path) -> None:
    assert documents(write("a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\r\r\n")) == ["one\n\ntwo\r\n"]


def test_files_come_in_the_order_given_and_patterns_sorted(folder: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        write(name, name)
    assert documents("c.md", "*.txt") == ["c.md", "a.txt", "b.txt"]
    assert text_files(Path("c.md")) == ["c.md"]


def test_empty_documents_are_skipped_and_named(folder: Path) -> None:
    write("a.txt", " \n\t\n"), write("b.txt", ""), write("c.txt", "c"), write("d.txt", b"\xef\xbb\xbf")
    a, b, d = (SkippedRow(f"{name}.txt", 1) for name in "abd")
    assert read("a.txt", "b.txt", "c.txt", "d.txt") == [a, b, Passage("c", "c.txt", 1, True), d]
    assert complaint("a.txt", "b.txt") == "a.txt, b.txt: no text found: all 2 documents are empty."
    assert complaint("a.txt") == "a.txt: no text found: the document is empty."
    assert "No data given" in complaint()


REFUSED: list[tuple[str, str | bytes, str, str]] = [
    ("a.txt", b"one\ntw\xf6\n", "", "a.txt, line 2: invalid UTF-8: byte 0xf6 at byte offset 6. Convert the file"),
    ("a.txt", b"one\ntwo \xe2\x82", "", "a.txt, line 2: invalid UTF-8: byte 0xe2 at byte offset 8."),
    ("a.txt", b"one\n\ntw\0\n", "", "a.txt, line 3: not a text file: contains NUL bytes."),
    ("a.txt", "text".encode("utf-16"), "", "expected UTF-8, got UTF-16"),
    ("a.txt", b"PK\x03\x04\x14\x00\x06", "", "not a text file: the content is a zip archive"),
    ("a.txt", gzip.compress(b"one\n" * 1000, mtime=0)[:-9], "", "damaged gzip file"),
    ("a.jsonl", '{"body": "x", "id": 5}\n', "",
     "a.jsonl, line 1: missing key 'text' (keys: body, id). Pass --columns text=NAME."),
    ("a.jsonl", '{"body": "x", "id": 5}\n', "text=id", "expected text in 'id', got 5"),
    ("a.jsonl", '{"body": "x", "id": 5}\n', "text=bdy", "Did you mean 'body'?"),
    ("a.csv", "body,id\nx,5\n", "text=bdy", "Did you mean 'body'?"),
    ("a.csv", "body,id\nx,5\n", "txt=body", "Unknown column choice 'txt'. Did you mean 'text'?"),
    ("a.csv", "body,id\nx,5\n", "", "no column is named 'text'"),
    ("a.txt", "x", "text=body", "a.txt: plain text has no columns. Remove --columns."),
    ("a.json", "[\n]\n", "", "a.json, line 1: invalid JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "columns", "part"), REFUSED)
def test_invalid_text_and_columns_are_refused(
    folder: Path, name: str, content: str | bytes, columns: str, part: str
) -> None:
    kind = UnknownNameError if "Did you mean" in part else DataError
    assert part in complaint(write(name, content), kind=kind, **dict([columns.split("=")] if columns else []))


def test_line_numbers_of_errors_are_right_far_into_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    content = b"\xef\xbb\xbf" + b"a line of text\n" * 500 + b"x" * 333 + b"\xff" + b"y" * 50
    write("a.txt", content), write("a.txt.gz", content)
    assert f"a.txt, line 501: invalid UTF-8: byte 0xff at byte offset {content.index(255)}." in complaint("a.txt")
    assert f"byte offset {content.index(255)} after unzipping." in complaint("a.txt.gz")


def test_a_missing_file_is_reported_with_the_nearest_name(folder: Path) -> None:
    write("train.txt", "a"), write("train.jsonl", "a")
    assert "trian.txt: file not found. Did you mean 'train.txt'" in complaint("trian.txt")
    assert "Did you mean 'train.jsonl'" in complaint("trian.jsonl")
    assert "no file matches this pattern" in complaint("*.md")


# -- folders


def test_a_folder_is_the_files_of_text_below_it(folder: Path) -> None:
    for name in ("b.txt", "a/z.MD", "a/b/c.txt.gz", "a.txt", ".hidden.txt", ".git/x.txt", "a/picture.png", "script.py"):
        Path(f"my set/{name}").parent.mkdir(parents=True, exist_ok=True)
        write(f"my set/{name}", name)
    jsonl("my set/d.jsonl", {"text": "object"})
    (folder / "my set/empty").mkdir()
    names = ("a/b/c.txt.gz", "a/z.MD", "a.txt", "b.txt", "d.jsonl")
    assert text_files("my set") == sorted(os.path.join("my set", name) for name in names)
    assert set(documents("my set")) == {"a/b/c.txt.gz", "a/z.MD", "a.txt", "b.txt", "object"}
    assert documents("my set/script.py") == ["script.py"]  # a single file is text whatever its extension
    assert documents("my set/") == documents("my set")


def test_a_folder_without_text_reports_its_contents(folder: Path) -> None:
    Path("set/code").mkdir(parents=True)
    write("set/code/a.py", "x")
    message = complaint("set")
    assert message.startswith("set: no text file") and " code/a.py." in message and "'set/*.py'" in message
    (folder / "none").mkdir()
    assert complaint("none").startswith("none: the folder is empty.")


# -- documents in rows


def test_json_parquet_and_tables_hold_a_document_a_row(folder: Path) -> None:
    content = [" one\r\ntwo ", "", "three\n\n"]
    wanted = [" one\ntwo ", "three\n\n"]
    write("a.jsonl", "\n".join(json.dumps({"id": 1, "text": text}) for text in content) + "\n\n")
    jsonl("b.ndjson.gz", *({"body": text} for text in content))
    write("c.csv", "id,text\n" + "".join(f'1,"{text}"\n' for text in content))
    write("d.tsv", "text\tid\n one\t1\n\t2\nthree\t3\n")
    assert documents("a.jsonl") == documents("b.ndjson.gz", text="body") == documents("c.csv") == wanted
    first, last = Passage(" one", "d.tsv", 2, True), Passage("three", "d.tsv", 4, True)
    assert read("d.tsv") == [first, SkippedRow("d.tsv", 3), last]
    assert [item.line for item in read("c.csv")] == [2, 4, 5]
    assert documents("d.tsv", text="id") == ["1", "2", "3"]
    assert documents("d.tsv", text="0") == ["text", " one", "three"]


def test_parquet_uses_text_or_its_only_column_of_text(folder: Path) -> None:
    assert read(parquet("a.parquet", {"text": ["one\r\n", None, "b"], "by": ["x"] * 3})) == [
        Passage("one\n", "a.parquet", 1, True), SkippedRow("a.parquet", 2), Passage("b", "a.parquet", 3, True),
    ]  # fmt: skip
    assert documents(parquet("b.pq", {"id": [1, 2], "content": ["c", "d"]})) == ["c", "d"]
    two = parquet("c.pq", {"title": ["e"], "content": ["f"]})
    assert "expected 1 text column, got 2. Pass --columns text=NAME (available: title, content)" in (complaint(two))
    assert documents(two, text="content") == ["f"]
    assert documents(write("a.txt", "x"), write("a.csv", "body,id\nx,5\n"), text="body") == ["x", "x"]


# -- passages


def passages(text: str, size: int = 1 << 30) -> list[Passage]:
    pieces = [text[first : first + size] for first in range(0, len(text), size)]
    found = list(split_document("a.txt", 1, pieces, count_lines=True))
    assert all(isinstance(item, Passage) for item in found)
    return found  # type: ignore[return-value]


def test_a_long_document_is_divided_at_line_ends(folder: Path) -> None:
    lines = "".join(f"line {n} of many\n" for n in range(1, 5001))
    found = read(write("a.txt", lines))
    assert all(isinstance(item, Passage) for item in found)
    assert "".join(item.text for item in found) == lines
    assert len(lines) / MIN_PASSAGE_CHARS < len(found) < len(lines) / (MIN_PASSAGE_CHARS - 20)
    assert [item.starts_document for item in found] == [True] + [False] * (len(found) - 1)
    for item in found:
        assert item.text.startswith(f"line {item.line} of") and item.text.endswith("many\n")
        assert len(item.text) <= MIN_PASSAGE_CHARS or item is found[-1]
    row = read(write("a.jsonl", "\n" + json.dumps({"text": lines})))
    assert [item.text for item in row[1:]] == [item.text for item in found] and {item.line for item in row[1:]} == {2}


def test_a_document_of_one_passage_is_whole_and_little_is_never_left_over() -> None:
    assert [len(item.text) for item in passages("ab\n" * 2730 + "ab")] == [PASSAGE_CHARS]
    assert [len(item.text) for item in passages("ab\n" * 2730 + "abc")] == [PASSAGE_CHARS + 1]
    for size in range(2700, 30_000, 77):
        found = passages("ab\n" * size, 5000)
        assert all(PASSAGE_CHARS // 4 <= len(item.text) <= PASSAGE_CHARS + PASSAGE_CHARS // 4 for item in found)
        assert found == passages("ab\n" * size)
    late = "x" * (MAX_LINE_SEARCH - 1) + "\n"
    for rest, sizes in ((9, [MAX_LINE_SEARCH + 9]), (5000, [MAX_LINE_SEARCH, 5000])):
        for piece in (1000, 1 << 30):
            assert [len(item.text) for item in passages(late + "y" * rest, piece)] == sizes


@pytest.mark.parametrize("size", [30_000, 120_000, 700_000, 2_000_000])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_there_are_enough_passages_of_a_small_text_to_hold_a_few_out(folder: Path, size: int, name: str) -> None:
    draw = random.Random(0)
    text = "".join(f"{draw.random()}\n" for _ in range(size // 19))
    write(name, json.dumps({"text": text}) if name.endswith("jsonl") else text)
    found = read(name)
    assert len(found) > 50
    assert max(len(item.text) for item in found if isinstance(item, Passage)) <= 1.25 * PASSAGE_CHARS
    assert documents(name) == [text]


def test_the_size_of_passages_changes_seldom_with_the_files(folder: Path) -> None:
    sizes = [passage_size([write("a.txt", "x" * size)]) for size in range(1000, 1_000_000, 5000)]
    assert sizes == sorted(sizes) and set(sizes) == {512, 1024, 2048, 4096, 8192}
    assert passage_size(["a.txt", "missing"]) == PASSAGE_CHARS


def test_without_line_ends_texts_are_split_at_spaces_or_anywhere() -> None:
    words = "word " * 20_000
    found = passages(words)
    assert "".join(item.text for item in found) == words
    assert all(item.text.startswith(" word") for item in found[1:])
    assert max(len(item.text) for item in found[:-1]) <= PASSAGE_CHARS
    solid = "x" * (MAX_LINE_SEARCH + 1000)
    assert [len(item.text) for item in passages(solid)] == [PASSAGE_CHARS, MAX_LINE_SEARCH + 1000 - PASSAGE_CHARS]
    assert len(passages("x" * MAX_LINE_SEARCH)) == 1  # no line end within the limit
    late = "x" * 10_000 + "\n" + "y" * 9_000
    assert [len(item.text) for item in passages(late)] == [10_001, 9_000]
    odd = "x" * 9_000 + " " + "y" * MAX_LINE_SEARCH
    assert next(len(item.text) for item in passages(odd)) == 9_000


def noise(draw: random.Random, size: int) -> str:
    """Words and whitespace of all kinds, in difficult sequences."""
    parts = [
        "a", "word", "don't", "I'll", "2024", "...", "\n", "\n\n", " \n", "\n ", " \n ", "  ", " ", "\t", "\n\t", "🐦", "é",
        "\u00a0", "\u3000", "\u2028", "\x85", "\x1c", "\x1f\n", "\r", "\x0b\n", "\n\x0c", "'", "'s", "\u200b",
    ]  # fmt: skip
    return "".join(draw.choices(parts, k=size))


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "PASSAGE_CHARS", 40), monkeypatch.setattr(texts, "MAX_LINE_SEARCH", 120)
    draw = random.Random(1)
    for _ in range(30):
        text = "a" + noise(draw, 400)
        whole = passages(text)
        assert "".join(item.text for item in whole) == text
        assert all(passages(text, size) == whole for size in (1, 7, 100, 1000))
        for number, item in enumerate(whole):
            assert item.line == 1 + "".join(before.text for before in whole[:number]).count("\n")


def test_blocks_are_the_text_however_they_fall(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(2)
    for size in (1, 2, 3, 5, 64):
        monkeypatch.setattr(files, "BLOCK_BYTES", size)
        text = "x" + "".join(draw.choices(["a", "é", "€", "🐦", "\n", "\r\n", "\r", "word"], k=300))
        write("a.txt", text), write("b.gz", "\ufeff" + text)
        for name in ("a.txt", "b.gz"):
            found = list(read_blocks(name))
            assert "".join(part for _, part in found) == text.replace("\r\n", "\n")
            assert all(line == 1 + "".join(p for _, p in found[:n]).count("\n") for n, (line, _) in enumerate(found))


def gpt2() -> Tokenizer:
    if not VOCABULARY.is_dir():
        pytest.skip(f"the published vocabulary is not there: {VOCABULARY}")
    vocab = json.loads(gzip.decompress((VOCABULARY / "encoder.json.gz").read_bytes()))
    lines = gzip.decompress((VOCABULARY / "vocab.bpe.gz").read_bytes()).decode().split("\n")[1:]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines if line)]
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def trained() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    draw = random.Random(0)
    made.train_from_iterator(
        (noise(draw, 200) for _ in range(50)), trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    )
    return made


@pytest.mark.parametrize("make", [gpt2, trained])
def test_the_tokens_of_passages_are_those_of_the_whole(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    monkeypatch.setattr(texts, "PASSAGE_CHARS", 40), monkeypatch.setattr(texts, "MAX_LINE_SEARCH", 4000)
    draw, many = random.Random(3), 0
    for _ in range(60):
        found = passages("a" + noise(draw, 500))
        ids = [i for item in found for i in tokenizer.encode(item.text).ids]
        assert ids == tokenizer.encode("".join(item.text for item in found)).ids
        many += len(found)
    assert many > 1000
    # spaces after an empty line as between paragraphs, and at line starts as in WikiText
    paragraphs = "a paragraph.\n\n", "a paragraph.\n\n\n", " = Title = \n \n some text . \n", "word " * 20
    for text in (50 * paragraph for paragraph in paragraphs):
        found = passages(text)
        assert len(found) > 5
        assert [i for item in found for i in tokenizer.encode(item.text).ids] == tokenizer.encode(text).ids


@pytest.mark.every(4)
@pytest.mark.parametrize("line", ["some words of a line, as text has them\n", "one line without an end "])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_memory_does_not_grow_with_the_file(folder: Path, line: str, name: str) -> None:
    write(name, line * (20_000_000 // len(line)))
    tracemalloc.start()
    size = sum(len(item.text) for item in iterate_texts([name]) if isinstance(item, Passage))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 20_000_000 // len(line) * len(line) and most < 5e6
