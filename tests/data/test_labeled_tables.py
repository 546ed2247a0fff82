"""Texts with classes and questions with choices: file formats and messages for invalid rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, parquet, write
from regard.data.text.samples import (
    ChoiceSample,
    LabeledText,
    iterate_labeled,
    iterate_questions,
    read_labeled,
    read_questions,
)
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError


def plain(items: Any) -> list[tuple[str, ...]]:
    return [(item.text, item.text_pair, item.label) for item in items]


def reasons(items: Any) -> list[str]:
    return [item.reason for item in items if isinstance(item, SkippedRow)]


# -- labeled texts

ROWS = [("a good one", "", "1"), ("a bad one", "", "0")]


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "text\tlabel\na good one\t1\na bad one\t0\n", None),
        ("a.tsv.gz", "sentence\tlabel\na good one \t1\na bad one\t0\n", {"text": "sentence"}),
        ("a.tsv.gz", "sentence\tlabel\na good one \t1\na bad one\t0\n", None),
        ("a.tsv", "a good one\t1\na bad one\t0\n", None),
        ("a.tsv", "1\ta good one\n0\ta bad one\n", {"text": "1", "label": "0"}),
        ("a.csv", "Label,idx,Review\n1,7,a good one\n0,8,a bad one\n\n\n", None),
        ("a.csv", 'kind,"text"\n1,a good one\n0,a bad one\n', {"label": "kind"}),
        ("a.csv", "kind,said\n1,a good one\n0,a bad one\n", {"label": "kind"}),
        ("a.jsonl", '{"text": "a good one", "label": 1}\n\n{"label": "0", "text": "a bad one"}\n', None),
        ("a.jsonl", '{"id": 3, "body": "a good one", "label": 1}\n{"body": "a bad one", "label": 0}\n', None),
        ("a.parquet", {"sentence": ["a good one", "a bad one"], "label": [1, 0], "idx": [4, 5]}, None),
    ],
)
def test_texts_and_their_classes_are_read_from_every_kind_of_table(
    name: str, text: Any, columns: Any, folder: Path
) -> None:
    path = write(name, text) if isinstance(text, str) else parquet(name, text)
    assert plain(item for item in iterate_labeled([path], columns) if isinstance(item, LabeledText)) == ROWS


def test_a_pair_is_two_columns(folder: Path) -> None:
    path = write("a.tsv", "premise\thypothesis\tlabel\na dog\tan animal\tyes\na dog\ta cat\tno\n")
    items = list(iterate_labeled([path], {"text": "premise", "pair": "hypothesis"}))
    assert plain(items) == [("a dog", "an animal", "yes"), ("a dog", "a cat", "no")]
    assert (items[1].path, items[1].line) == (path, 3)
    path = jsonl("a.jsonl", {"text": "a", "pair": "b", "label": "x"}, {"text": "a", "label": "y"})
    assert plain(iterate_labeled([path])) == [("a", "b", "x"), ("a", "", "y")]


def test_incomplete_and_invalid_rows_are_skipped_by_line(folder: Path) -> None:
    items = list(iterate_labeled([write("a.tsv", "text\tpair\tlabel\na\tb\tx\n\tb\tx\na\t\tx\na\tb\t \n\n\n")]))
    assert reasons(items) == ["missing text for: b", "missing second text for: a", "missing label for: a"]
    assert [item.line for item in items] == [2, 3, 4, 5]
    path, errors = write("a.tsv", "text\tlabel\na\tx\nb\ny\tz\n"), list[str]()
    items = list(read_labeled(path, on_error=lambda kind, error: errors.append(kind)))
    assert [item.line for item in items] == [2, 4] and errors == ["format"]


@pytest.mark.parametrize(
    ("text", "columns", "word"),
    [
        ("text\tlabel\n", None, "found"),
        ("text\tlabel\n\tx\n", None, "skipped"),
        ("", None, "given"),
        ("sentence\tlabel\na b\t1\n", {"text": "sentense"}, "'sentence'"),
        ("sentence\tlabel\na b\t1\n", {"txt": "sentence"}, "'txt'"),
        ("text\tsentiment\n" + "a b\t1\n" * 9, None, "--columns"),
        ("premise\thypothesis\tlabel\na dog\tan animal\tyes\n", None, "--columns"),
        ("text\tlabel\tlabels\na\tx\ty|z\n", {"labels": "labels", "label": "label"}, "not both"),
    ],
)
def test_data_without_texts_or_columns_is_refused(text: str, columns: Any, word: str, folder: Path) -> None:
    with pytest.raises(RegardError, match=word):
        list(iterate_labeled([write("a.tsv", text)] if text else [], columns))


# -- several labels

SEVERAL = [("a good one", ("new", "long")), ("a bad one", ()), ("another", ("old",))]


def lines(name: str, *labels: Any, text: str = "text") -> str:
    rows = zip(SEVERAL, labels, strict=True)
    return "".join(json.dumps({text: sentence, name: values}) + "\n" for (sentence, _), values in rows)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.csv", "text,labels\na good one,new | long\na bad one,\nanother,old\n", None),
        ("a.tsv.gz", "said\tis\na good one\tnew|long|new\na bad one\t\nanother\told\n", {"labels": "is", "text": "said"}),
        ("a.tsv", "a good one\tnew|long\na bad one\t\nanother\told\n", {"text": "0", "labels": "1"}),
        ("a.jsonl", lines("labels", ["new", "long"], [], "old"), None),
        ("a.jsonl", lines("label", "new|long", None, ["old"]), None),
        ("a.jsonl", lines("label", ["new", "long"], [], ["old"], text="body"), None),
    ],
)  # fmt: skip
def test_texts_may_have_several_labels_or_none(name: str, text: str, columns: Any, folder: Path) -> None:
    items = list(iterate_labeled([write(name, text)], columns))
    assert [(item.text, item.label_set) for item in items] == SEVERAL and items[0].label == "long, new"
    inputs = list(read_labeled(write(name, text), columns, inputs_only=True))
    assert [item.text for item in inputs] == [text for text, _ in SEVERAL]
    assert all(item.label_set is None for item in inputs)


def test_label_sets_of_parquet_and_of_the_chosen_column(folder: Path) -> None:
    path = parquet("a.parquet", {"sentence": ["a", "b", "c"], "label": [[1, 20], [], [3]]})
    assert [item.label_set for item in iterate_labeled([path])] == [("1", "20"), (), ("3",)]
    path = write("a.csv", "text,label,labels\na,x,y|z\n")
    assert plain(iterate_labeled([path])) == [("a", "", "x")]
    assert next(iterate_labeled([path], {"labels": "labels"})).label_set == ("y", "z")


def test_files_with_one_label_and_with_several_do_not_go_together(folder: Path) -> None:
    paths = [write("a.csv", "text,label\na,x\n"), write("b.csv", "text,labels\na,x\n")]
    for both in (paths, paths[::-1]):
        with pytest.raises(DataError, match="labels"):
            list(iterate_labeled(both))
    items = list(iterate_labeled([write("a.csv", "text,pair,labels\na,b,x\n,b,x\na,,\n\na,b,\n")]))
    assert reasons(items) == ["missing text for: b", "missing second text for: a", ""] and len(items) == 5


# -- multiple-choice questions

QUESTION = {"context": "It rains.", "question": "What is wet?", "choices": ["the street", "the sun"], "label": 0}
SAMPLE = ChoiceSample("It rains.", "What is wet?", ("the street", "the sun"), 0)
OTHER = ChoiceSample("It rains.", "What is wet?", ("a", "b", "c"), 2)
SUM = {"context": "1 + 1 =", "choices": ["3", "1", "2"]}


def bare(items: Any) -> list[ChoiceSample]:
    return [ChoiceSample(item.context, item.question, item.choices, item.label) for item in items]


@pytest.mark.parametrize("label", [0, "0", "the street", "A"])
def test_the_correct_choice_is_a_number_a_letter_or_its_text(label: Any, folder: Path) -> None:
    items = list(iterate_questions([jsonl("a.jsonl", {**QUESTION, "label": label})]))
    assert bare(items) == [SAMPLE] and items[0].line == 1 and items[0].prompt == "It rains. What is wet?"


@pytest.mark.parametrize(("label", "index"), [({"answer": "2"}, 2), ({"label": 1}, 1), ({"label": "3"}, 0)])
def test_a_number_is_a_text_in_answer_and_an_index_in_label(label: Any, index: int, folder: Path) -> None:
    assert bare(iterate_questions([jsonl("a.jsonl", {**SUM, **label})]))[0].label == index


def test_choices_are_in_a_list_or_in_columns(folder: Path) -> None:
    rest = {name: value for name, value in QUESTION.items() if name not in ("question", "label")}
    path = jsonl("a.jsonl", QUESTION, {**rest, "label": 1}, {**QUESTION, "choices": ["a", "b", "c"], "label": 2})
    assert bare(iterate_questions([path])) == [SAMPLE, ChoiceSample("It rains.", "", SAMPLE.choices, 1), OTHER]
    table = "choice0,context,choice1,answer,question,choice2\nthe street,It rains.,the sun,the street,What is wet?,\n"
    assert bare(iterate_questions([write("a.csv", table + "a,It rains.,b,c,What is wet?,c\n")])) == [SAMPLE, OTHER]
    columns = {name: [value] for name, value in QUESTION.items()}
    assert bare(iterate_questions([parquet("a.parquet", columns)])) == [SAMPLE]


def test_columns_of_questions_can_be_named(folder: Path) -> None:
    row = {"article": "It rains.", "question": "What is wet?", "options": QUESTION["choices"], "answer": "A"}
    named = {"context": "article", "choices": "options"}
    assert bare(iterate_questions([jsonl("a.jsonl", row)], named)) == [SAMPLE]
    alone = {"question": "What is wet?", "choices": QUESTION["choices"], "answer": 0}
    assert bare(iterate_questions([jsonl("a.jsonl", alone)])) == [ChoiceSample("What is wet?", "", SAMPLE.choices, 0)]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"label": 2}, "line 2"), ({"label": -1}, "label"), ({"label": "the moon"}, "choices"),
        ({"choices": ["the street"]}, "choice"), ({"choices": ["the street", " "]}, "choice"),
        ({"choices": ["a", "a"]}, "choice"), ({"choices": "the street"}, "'choices'"), ({"choices": {"a": 1}}, "'choices'"),
    ],
)  # fmt: skip
def test_invalid_questions_are_refused_or_reported(change: Any, word: str, folder: Path) -> None:
    path = jsonl("a.jsonl", QUESTION, {**QUESTION, **change}, QUESTION)
    with pytest.raises(DataError, match=word):
        list(iterate_questions([path]))
    errors: list[str] = []
    items = list(read_questions(path, on_error=lambda kind, error: errors.append(f"{kind}: {error}")))
    assert len(items) == 2 and len(errors) == 1 and word in errors[0]


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ("context,choice1,choice2,label\na,b,c,1\n", "'choice1'"),
        ("sentence,label\na b,0\n", "--columns"),
        ("context,label\na b,0\n", "'choices'"),
    ],
)
def test_tables_without_context_or_choices_are_refused(table: str, word: str, folder: Path) -> None:
    with pytest.raises(DataError, match=word):
        list(iterate_questions([write("a.csv", table)]))


def test_a_question_that_lacks_something_is_left_out(folder: Path) -> None:
    path = jsonl("a.jsonl", {**QUESTION, "label": None}, {**QUESTION, "choices": []}, QUESTION)
    assert reasons(iterate_questions([path])) == ["missing label for: It rains.", "missing choices for: It rains."]
