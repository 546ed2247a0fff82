"""Text documents from files and folders, split without a change of tokens; detokenization of public datasets."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tracemalloc
from pathlib import Path

import pytest
from test_tables import complaint
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from data_files import jsonl, write
from regard.config import from_dict
from regard.data.settings import DataSettings
from regard.data.text import documents as texts
from regard.data.text import files
from regard.data.text.documents import (
    DETOKENIZERS,
    MAX_LINE_SEARCH,
    PASSAGE_CHARS,
    Passage,
    count_words,
    iterate_texts,
    passage_size,
    split_document,
    text_files,
)
from regard.data.text.files import read_blocks
from regard.data.text.tables import SkippedRow

SHARED = Path(__file__).parents[3] / "shared/data"


def read(*data: str, **columns: str) -> list[Passage | SkippedRow]:
    return list(iterate_texts(data, columns or None))


def documents(*data: str, **columns: str) -> list[str]:
    found: list[str] = []
    for item in read(*data, **columns):
        if isinstance(item, Passage):
            found = [*found, item.text] if item.starts_document else [*found[:-1], found[-1] + item.text]
    return found


# -- plain files


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.txt.gz", "a.raw", "no suffix", ".hidden"])
def test_a_plain_file_is_one_document_kept_exactly(folder: Path, name: str) -> None:
    content = "  one\ttwo \n\n\u2028three\x0b\rfour\n \n"
    assert read(write(name, content)) == [Passage(content, name, 1, True)]


def test_files_come_in_the_order_given_and_empty_ones_are_named(folder: Path) -> None:
    for name, content in (("b.txt", b"\xef\xbb\xbfone\r\n\r\ntwo\r\r\n"), ("a.txt", b"a"), ("c.md", b"c")):
        write(name, content)
    assert documents("c.md", "*.txt") == ["c", "a", "one\n\ntwo\r\n"] and text_files(Path("c.md")) == ["c.md"]
    write("d.txt", " \n\t\n"), write("e.txt", ""), write("f.txt", b"\xef\xbb\xbf")
    d, e, f = (SkippedRow(f"{name}.txt", 1) for name in "def")
    assert read("d.txt", "e.txt", "a.txt", "f.txt") == [d, e, Passage("a", "a.txt", 1, True), f]
    assert complaint("lm", "d.txt", "e.txt") == "d.txt, e.txt: no text found: all 2 entries were empty."
    assert documents("a.txt", write("a.csv", "body,id\nx,5\n"), text="body") == ["a", "x"]
    assert [item.line for item in read(write("c.csv", 'id,text\n1," one\ntwo "\n1,""\n1,"three"\n'))] == [2, 4, 5]


def test_line_numbers_of_errors_are_right_far_into_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    content = b"\xef\xbb\xbf" + b"a line of text\n" * 500 + b"x" * 333 + b"\xff" + b"y" * 50
    write("a.txt", content), write("a.txt.gz", content)
    assert f"a.txt, line 501: invalid UTF-8: byte 0xff at byte offset {content.index(255)}." in complaint("lm", "a.txt")
    assert f"byte offset {content.index(255)} after unzipping." in complaint("lm", "a.txt.gz")


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
    message = complaint("lm", "set")
    assert message.startswith("set: no text file") and " code/a.py." in message and "'set/*.py'" in message
    (folder / "none").mkdir()
    assert complaint("lm", "none").startswith("none: the folder is empty.")


# -- passages


def passages(text: str, size: int = 1 << 30) -> list[Passage]:
    pieces = [text[first : first + size] for first in range(0, len(text), size)]
    found = list(split_document("a.txt", 1, pieces, count_lines=True))
    assert all(isinstance(item, Passage) for item in found)
    return found  # type: ignore[return-value]


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
def test_a_long_document_is_divided_at_line_ends_into_many_passages(folder: Path, size: int, name: str) -> None:
    text = "".join(f"line {n} of many\n" for n in range(1, size // 16))
    items = read(write(name, "\n" + json.dumps({"text": text}) if name.endswith("jsonl") else text))
    found = [item for item in items if isinstance(item, Passage)]
    assert len(found) > 50 and documents(name) == [text]
    for item in found:
        assert item.starts_document == (item is found[0])
        assert item.line == 2 if name.endswith("jsonl") else item.text.startswith(f"line {item.line} of")
        assert item.text.endswith("many\n") and len(item.text) <= 1.25 * PASSAGE_CHARS


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


def test_the_tokens_of_passages_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pre-tokens of GPT-2; merges never cross pre-tokens."""
    tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts_of_noise = (noise(random.Random(seed), 200) for seed in range(50))
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts_of_noise, trainer)
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


# -- detokenization of WikiText and Penn Treebank


@pytest.mark.parametrize(
    ("name", "line", "wanted"),
    [
        ("wikitext", " A well @-@ known castle ( of 1 @,@ 200 ) , 3 @.@ 5 km . ", "A well-known castle (of 1,200), 3.5 km."),
        ("wikitext", " = Castle = ", "= Castle ="),
        ("wikitext", " = = = Early days = = = ", "=== Early days ==="),
        ("wikitext", " x = 5 = y ", "x = 5 = y"),
        ("wikitext", " = = only on one side ", "= = only on one side"),
        ("wikitext", ' " It is " , she said , " a <unk> [ fine ] day ! " ', '"It is", she said, "a <unk> [fine] day!"'),
        ("wikitext", ' He said : " the so @-@ called \' cat \' " ; no ? ', "He said: \"the so-called 'cat'\"; no?"),
        ("wikitext", " It 's O 'Brien 's , don 't touch . ", "It's O'Brien's, don't touch."),
        ("wikitext", " the sisters ' house and the ' big ' one ", "the sisters' house and the 'big' one"),
        ("wikitext", " in the ' 80s ", "in the '80s"),
        ("wikitext", " people ’ s “ own ” dogs ’ tails ", "people’s “own” dogs’ tails"),
        ("wikitext", " It cost $ 5 million , US $ 7 or £ 3 ( 8 % ) . ", "It cost $5 million, US$7 or £3 (8%)."),
        ("wikitext", " won 3 – 1 at 10 : 30 – a record ; note : 5 ", "won 3–1 at 10:30 – a record; note: 5"),
        ("wikitext", " 84 ° F ( − 2 ° C ) , at 35 ° and 5 − 3 ", "84 °F (−2 °C), at 35° and 5 − 3"),
        ("wikitext", " 93 km / h and / or issue # 4 — so it was ", "93 km/h and/or issue #4—so it was"),
        ("wikitext", " he waited ... and  waited . . . ", "he waited ... and  waited..."),
        ("wikitext", " ", ""),
        ("ptb", " the company does n't say it 's <unk> ", "the company doesn't say it's <unk>"),
        ("ptb", " companies ' profits rose $ N million or N N % ", "companies' profits rose $N million or N N%"),
        ("ptb", " c$ N and # N to standard & poor 's ", "c$N and #N to standard & poor's"),
        ("ptb", " `` We 'll see , '' said Mr. Vinken -LRB- 61 -RRB- . ", '"We\'ll see," said Mr. Vinken (61).'),
    ],
)  # fmt: skip
def test_text_reads_as_it_was_written(name: str, line: str, wanted: str) -> None:
    assert DETOKENIZERS[name](line) == wanted


def test_words_are_counted_by_the_rule_of_wikitext() -> None:
    assert count_words(" \n = A = \n some text . \n") == 3 + 3 + 3
    assert count_words("") == 0 and count_words("no end of line") == 4
    text = " one two \n \n three . \n"
    assert all(count_words(text[:cut]) + count_words(text[cut:]) == count_words(text) for cut in (5, 10, 12, len(text)))


@pytest.mark.parametrize("name", ["wikitext", "ptb"])
def test_only_spaces_and_markers_are_removed(name: str) -> None:
    clean, draw = DETOKENIZERS[name], random.Random(4)
    tokens = [*"aT5,.;:()[]\"'$%=#−–—/°C’‘“”…Né\n", "The", "'s", "n't", "@-@", "@,@", "@.@", "<unk>", ""]
    for _ in range(500):
        line = " ".join(draw.choices(tokens, k=30))
        marked = re.sub("@([-,.])@", r"\1", line) if name == "wikitext" else line
        assert clean(line).replace(" ", "") == marked.replace(" ", "")
        first, last = line[: len(line) // 2] + "\n", line[len(line) // 2 :]
        assert clean(first) + clean(last) == clean(first + last)
        assert clean(line).count("\n") == line.count("\n")


def test_none_changes_nothing_and_settings_accept_the_names() -> None:
    text = " as @-@ is \n\n"
    assert DETOKENIZERS["none"](text) == text
    for name in DETOKENIZERS:
        assert from_dict(DataSettings, {"detokenize": name}, "data.").detokenize == name


@pytest.mark.parametrize(("name", "count"), [("valid", 217_646), ("test", 245_569)])
def test_the_published_text_has_its_published_size_and_stays_apart(name: str, count: int) -> None:
    path = SHARED / "wikitext-2" / f"wiki.{name}.raw.gz"
    if not path.exists():
        pytest.skip(f"the data set is not there: {path}")
    text = gzip.decompress(path.read_bytes()).decode()
    assert count_words(text) == count
    lines = {line.strip(" ") for line in text.split("\n")}
    repaired = {DETOKENIZERS["wikitext"](line) for line in lines}
    assert len(repaired) == len(lines)
    assert not [line for line in repaired if re.search(r" [,.;!?)] | @.@ |\( ", line)]
