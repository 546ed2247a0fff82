"""Tagged sentences: file formats and messages for invalid rows."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from data_files import write
from regard.data.text.tables import SkippedRow
from regard.data.text.tagged import TaggedSentence, iterate_tagged, read_tagged
from regard.errors import DataError, RegardError


def plain(items: Any) -> list[tuple[str, str]]:
    return [(" ".join(item.words), " ".join(item.tags)) for item in items if isinstance(item, TaggedSentence)]


WANTED = [("EU rejects German lamb", "I-ORG O I-MISC O"), ("Peter Blackburn", "I-PER I-PER")]
WORDS = "EU NNP I-ORG\nrejects VBZ O\nGerman JJ I-MISC\nlamb NN O\n\nPeter NNP I-PER\nBlackburn NNP I-PER\n"
TABS = WORDS.replace(" ", "\t")
ROWS = "EU rejects German lamb{0}I-ORG O I-MISC O\nPeter Blackburn{0}I-PER I-PER\n"


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.conll", WORDS, None),
        ("a.iob", f"\n\n{WORDS}\n\n\n", None),
        ("a.bio.gz", TABS, None),
        ("a.txt", WORDS, None),
        ("a.tsv", TABS, None),
        ("a.tsv", TABS.replace("\n", "\r\n"), None),
        ("a.tsv", f"token\tpos\tner\n{TABS}", None),
        ("a.tsv", f"say\tpos\tkind\n{TABS}", {"words": "say", "tags": "kind"}),
        ("a.conll", f"-DOCSTART- -X- O\n\n{WORDS}", None),
        ("a.conll", WORDS.replace("\n\n", "\n\n-DOCSTART- -X- O\n"), None),
        ("a.conll", f"# id = 1\n# EU rejects\n{WORDS}", None),
        ("a.conll", "# id 7\tdomain=train\n" + WORDS.replace("\n\n", "\n\n# 8\tdomain=train\n"), None),
        ("a.conll", WORDS, {"words": "0", "tags": "2"}),
        ("a.conllu", "1\tEU\teu\tI-ORG\t_\n2-3\tx\t_\t_\t_\n2\trejects\t_\tO\t_\n2.1\ty\t_\t_\t_\n3\tGerman\t_\tI-MISC\t_\n"
         "4\tlamb\t_\tO\t_\n\n1\tPeter\t_\tI-PER\t_\n2\tBlackburn\t_\tI-PER\t_\n", None),
        ("a.csv", "words,tags\n" + ROWS.format(","), None),
        ("a.csv", "Sentence,id,NER_Tags\n" + ROWS.format(",3,"), None),
        ("a.csv", "said,kind\n" + ROWS.format(","), {"words": "said", "tags": "kind"}),
        ("a.tsv", ROWS.format("\t"), None),
        ("a.tsv", "tokens\ttags\n" + ROWS.format("\t"), None),
        ("a.tsv", "tokens\ttags\tid\n" + ROWS.format("\t").replace("\n", "\t7\n"), None),
        ("a.tsv", "tokens\tkind\tid\n" + ROWS.format("\t").replace("\n", "\t7\n"), {"tags": "kind"}),
        ("a.txt.gz", ROWS.format("\t7\t"), {"words": "0", "tags": "2"}),
        ("a.jsonl", "".join(json.dumps({"tokens": a.split(), "id": 1, "ner_tags": b.split()}) + "\n" for a, b in WANTED), None),
        ("a.jsonl", "".join(json.dumps({"words": a, "labels": b}) + "\n\n" for a, b in WANTED), None),
    ],
)  # fmt: skip
def test_sentences_are_read_from_every_form(name: str, text: str, columns: Any, folder: Path) -> None:
    assert plain(iterate_tagged([write(name, text)], columns)) == WANTED


def test_rows_may_have_several_widths_where_columns_were_chosen(folder: Path) -> None:
    wide = "EU x I-ORG y z\nrejects x O\nGerman x I-MISC y\nlamb x O\n\nPeter x I-PER\nBlackburn x I-PER z\n"
    path = write("a.conll", wide)
    assert plain(iterate_tagged([path], {"words": "0", "tags": "2"})) == WANTED
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))


def tags_parquet(names: list[str] | None = None, **columns: Any) -> str:
    arrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    table = arrow.table(columns)
    if names:
        kind = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
        kept = json.dumps({"info": {"features": {"ner_tags": kind}}})
        table = table.replace_schema_metadata({"huggingface": kept})
    files.write_table(table, "a.parquet")
    return "a.parquet"


def test_parquet_has_lists_and_may_name_its_numbers(folder: Path) -> None:
    tokens = [words.split() for words, _ in WANTED]
    assert plain(iterate_tagged([tags_parquet(tokens=tokens, ner_tags=[t.split() for _, t in WANTED])])) == WANTED
    names = ["O", "I-ORG", "I-MISC", "I-PER"]
    numbers = [[1, 0, 2, 0], [3, 3]]
    path = tags_parquet(names, tokens=tokens, ner_tags=numbers)
    assert plain(iterate_tagged([path])) == WANTED
    path = tags_parquet(None, tokens=tokens, ner_tags=numbers)
    with pytest.raises(DataError, match="'ner_tags'"):
        list(iterate_tagged([path]))
    path = tags_parquet(names[:3], tokens=tokens, ner_tags=numbers)
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))


def test_numbers_are_not_tags_unless_they_have_names(folder: Path) -> None:
    path = write("a.jsonl", '\n{"words": ["a", "b"], "tags": [0, 1]}\n')
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))
    path = write("b.jsonl", '{"words": ["a", "b"], "tags": ["0", "1"]}\n')
    assert plain(iterate_tagged([path])) == [("a b", "0 1")]


def test_a_sentence_has_its_line_and_comes_back_from_json(folder: Path) -> None:
    path = write("a.conll", f"-DOCSTART- -X- O\n\n{WORDS}")
    found = list(iterate_tagged([path]))
    assert [(item.path, item.line) for item in found] == [(path, 3), (path, 8)]
    assert TaggedSentence(**json.loads(json.dumps(asdict(found[0])))) == found[0]


def test_a_number_sign_as_a_word_is_not_a_comment(folder: Path) -> None:
    path = write("a.conll", "One CD O\n\n# # O\n1 CD O\n\n# text=a O\n#tag NN B-X\n# # O\n")
    assert plain(iterate_tagged([path])) == [("One", "O"), ("# 1", "O O"), ("#tag #", "B-X O")]
    path = write("a.tsv", "#\tO\nb\tO\n\n# a comment\n# \tO\nx\tO\n")
    assert plain(iterate_tagged([path])) == [("# b", "O O"), ("# x", "O O")]


def test_non_breaking_spaces_do_not_split_a_word(folder: Path) -> None:
    assert plain(iterate_tagged([write("a.conll", "1\u00a0000 O\nkm O\n")])) == [("1\u00a0000 km", "O O")]
    assert plain(iterate_tagged([write("a.tsv", "New York\tB-LOC\nis\tO\n")])) == [("New York is", "B-LOC O")]


BAD: list[tuple[str, str, str, str]] = [
    ("one column", "a.conll", "a O\nb\nc O\n\nd O\n", "line 2: expected 2 columns, got 1. In the first line, spaces"),
    ("too many", "a.conll", "a O\nb c O\n\nd O\n", "line 2: expected 2 columns, got 3"),
    ("blanks for a tab", "a.tsv", "a\tO\nb O\n\nd\tO\n", "line 2: expected 2 columns, got 1.*tabs separate"),
    ("no word", "a.tsv", "a\tO\n\tO\n\nd\tO\n", "line 2: tag 'O' has no word"),
    ("no tag", "a.tsv", "a\tO\nb\t\n\nd\tO\n", "line 2: word 'b' has no tag"),
    ("another scheme", "a.conll", "a B-X\n\nb NN\n\nd O\n", "line 3: inconsistent tag schemes: 'NN' here, 'B-X' on line 1"),
    ("uneven", "a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: expected one tag per word, got 2 words and 1 tag: a b"),
    ("blank word", "a.jsonl", '{"words": ["a", "\u00a0"], "tags": ["O", "O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: word 1 is empty"),
    ("a number", "a.jsonl", '{"words": ["a", 1], "tags": ["O", "O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: expected text in 'words', got 1"),
    ("not UTF-8", "a.conll", "a O\nb\udcff O\n\nd O\n", "line 2: invalid UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_lines_are_refused_by_name_or_noted(name: str, text: str, said: str, folder: Path) -> None:
    write(name, text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=f"{name}, {said}"):
        list(iterate_tagged([name]))
    heard: list[str] = []
    found = list(read_tagged(name, on_error=lambda kind, error: heard.append(kind)))
    assert len(heard) == 1 and plain(found)[-1] == ("d", "O") and ("b" not in plain(found)[0][0])


def test_single_letters_may_be_classes(folder: Path) -> None:
    letters = write("b.conll", "a NN\nb O\nc S\n")
    assert plain(iterate_tagged([letters])) == [("a b c", "NN O S")]


def test_rows_that_lack_something_are_left_out(folder: Path) -> None:
    path = write("a.csv", "words,tags\na b,\n,O O\n\nx,O\n\n")
    found = list(iterate_tagged([path]))
    assert [item.reason for item in found if isinstance(item, SkippedRow)] == [
        "missing tags for: a b",
        "missing words for: O O",
        "",
    ]


def test_a_file_of_whole_sentences_is_reported_as_not_pretokenized(folder: Path) -> None:
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([write("a.tsv", "sentence\tlabel\n" + "a whole sentence\t1\nand another one\t0\n" * 3)]))
    path = write("a.tsv", "# a note\there\nword\tO\nanother\tO\n\nNew York\tB-LOC\n")
    assert len(list(iterate_tagged([path]))) == 2


@pytest.mark.parametrize(
    ("name", "text", "columns", "word"),
    [
        ("a.conll", WORDS, {"tags": "3"}, "line 1"),
        ("a.conll", WORDS, {"tags": "ner"}, "line 1"),
        ("a.conll", WORDS, {"tag": "1"}, "'tags'"),
        ("a.xml", "<a/>", None, r"'\.xml'"),
        ("a.jsonl", '{"words": ["a"], "kind": ["O"]}', None, "--columns"),
        ("a.conll", "asentence\nword\n", None, "line 1"),
        ("b.csv", "words,tags\na,\n", None, "sentences"),
        ("b.conll", "\n\n", None, "sentences"),
    ],
)
def test_other_files_and_columns_are_refused(name: str, text: str, columns: Any, word: str, folder: Path) -> None:
    with pytest.raises(RegardError, match=word):
        list(iterate_tagged([write(name, text)], columns))


def test_another_column_has_other_tags(folder: Path) -> None:
    assert plain(iterate_tagged([write("a.conll", WORDS)], {"tags": "1"}))[1] == ("Peter Blackburn", "NNP NNP")
