"""Texts with classes and questions with choices: file formats and messages for invalid rows."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

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


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def objects(folder: Path, *rows: Any) -> str:
    return write(folder, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def parquet(folder: Path, **columns: Any) -> str:
    arrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    files.write_table(arrow.table(columns), folder / "a.parquet")
    return str(folder / "a.parquet")


def plain(items: Any) -> list[tuple[str, ...]]:
    return [(item.text, item.text_pair, item.label) for item in items]


WANTED = [("a good one", "", "1"), ("a bad one", "", "0")]


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
    ],
)
def test_texts_and_their_classes_are_read_from_every_kind_of_table(
    name: str, text: str, columns: Any, tmp_path: Path
) -> None:
    found = [item for item in iterate_labeled([write(tmp_path, name, text)], columns) if isinstance(item, LabeledText)]
    assert plain(found) == WANTED


def test_parquet_has_classes_as_numbers(tmp_path: Path) -> None:
    path = parquet(tmp_path, sentence=["a good one", "a bad one"], label=[1, 0], idx=[4, 5])
    assert plain(iterate_labeled([path])) == WANTED


def test_a_pair_is_two_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "premise\thypothesis\tlabel\na dog\tan animal\tyes\na dog\ta cat\tno\n")
    with pytest.raises(DataError, match="--columns"):
        list(iterate_labeled([path]))
    found = list(iterate_labeled([path], {"text": "premise", "pair": "hypothesis"}))
    assert plain(found) == [("a dog", "an animal", "yes"), ("a dog", "a cat", "no")]
    assert (found[1].path, found[1].line) == (path, 3)
    path = objects(tmp_path, {"text": "a", "pair": "b", "label": "x"}, {"text": "a", "label": "y"})
    assert plain(iterate_labeled([path])) == [("a", "b", "x"), ("a", "", "y")]


def test_empty_rows_are_skipped_by_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "text\tpair\tlabel\na\tb\tx\n\tb\tx\na\t\tx\na\tb\t \n\n\n")
    found = list(iterate_labeled([path]))
    assert [item.reason for item in found if isinstance(item, SkippedRow)] == [
        "missing text for: b", "missing second text for: a", "missing label for: a",
    ]  # fmt: skip
    assert [item.line for item in found] == [2, 3, 4, 5]


def test_a_file_without_a_row_reports_the_required_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found"):
        list(iterate_labeled([write(tmp_path, "a.tsv", "text\tlabel\n")]))
    with pytest.raises(DataError, match="skipped"):
        list(iterate_labeled([write(tmp_path, "a.tsv", "text\tlabel\n\tx\n")]))
    with pytest.raises(DataError, match="given"):
        list(iterate_labeled([]))


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "sentence\tlabel\na b\t1\n")
    with pytest.raises(RegardError, match="'sentence'"):
        list(iterate_labeled([path], {"text": "sentense"}))
    with pytest.raises(RegardError, match="'txt'"):
        list(iterate_labeled([path], {"txt": "sentence"}))
    path = write(tmp_path, "b.tsv", "text\tsentiment\n" + "a b\t1\n" * 9)
    with pytest.raises(DataError, match="--columns"):
        list(iterate_labeled([path]))


ASKED = {"context": "It rains.", "question": "What is wet?", "choices": ["the street", "the sun"], "label": 0}
TOLD = ChoiceSample("It rains.", "What is wet?", ("the street", "the sun"), 0)


def bare(items: Any) -> list[ChoiceSample]:
    return [ChoiceSample(item.context, item.question, item.choices, item.label) for item in items]


@pytest.mark.parametrize("label", [0, "0", "the street", "A"])
def test_the_right_choice_is_a_number_a_letter_or_its_text(label: Any, tmp_path: Path) -> None:
    found = list(iterate_questions([objects(tmp_path, {**ASKED, "label": label})]))
    assert bare(found) == [TOLD] and found[0].line == 1 and found[0].prompt == "It rains. What is wet?"


def test_choices_are_in_a_list_or_in_columns(tmp_path: Path) -> None:
    rest = {name: value for name, value in ASKED.items() if name not in ("question", "label")}
    path = objects(tmp_path, {**ASKED}, {**rest, "label": 1}, {**ASKED, "choices": ["a", "b", "c"], "label": 2})
    assert bare(iterate_questions([path])) == [
        TOLD, ChoiceSample("It rains.", "", ("the street", "the sun"), 1),
        ChoiceSample("It rains.", "What is wet?", ("a", "b", "c"), 2),
    ]  # fmt: skip
    table = "choice0,context,choice1,answer,question,choice2\nthe street,It rains.,the sun,the street,What is wet?,\n"
    table += "a,It rains.,b,c,What is wet?,c\n"
    assert bare(iterate_questions([write(tmp_path, "a.csv", table)])) == [
        TOLD, ChoiceSample("It rains.", "What is wet?", ("a", "b", "c"), 2),
    ]  # fmt: skip
    path = parquet(tmp_path, context=["It rains."], question=["What is wet?"], choices=[ASKED["choices"]], label=[0])
    assert bare(iterate_questions([path])) == [TOLD]


def test_columns_of_questions_can_be_named(tmp_path: Path) -> None:
    row = {"article": "It rains.", "question": "What is wet?", "options": ASKED["choices"], "answer": "A"}
    named = {"context": "article", "choices": "options"}
    assert bare(iterate_questions([objects(tmp_path, row)], named)) == [TOLD]
    alone = {"question": "What is wet?", "choices": ASKED["choices"], "answer": 0}
    assert bare(iterate_questions([objects(tmp_path, alone)])) == [ChoiceSample("What is wet?", "", TOLD.choices, 0)]


def test_an_answer_that_is_a_number_is_a_text_and_a_label_an_index(tmp_path: Path) -> None:
    sums = {"context": "1 + 1 =", "choices": ["3", "1", "2"]}
    assert bare(iterate_questions([objects(tmp_path, {**sums, "answer": "2"})]))[0].label == 2
    assert bare(iterate_questions([objects(tmp_path, {**sums, "label": 1})]))[0].label == 1
    assert bare(iterate_questions([objects(tmp_path, {**sums, "label": "3"})]))[0].label == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"label": 2}, "line 2"),
        ({"label": -1}, "label"),
        ({"label": "the moon"}, "choices"),
        ({"choices": ["the street"]}, "choice"),
        ({"choices": ["the street", " "]}, "choice"),
        ({"choices": ["a", "a"]}, "choice"),
        ({"choices": "the street"}, "'choices'"),
        ({"choices": {"a": 1}}, "'choices'"),
    ],
)
def test_bad_questions_are_refused_by_name_or_noted(change: Any, said: str, tmp_path: Path) -> None:
    path = objects(tmp_path, ASKED, {**ASKED, **change}, ASKED)
    with pytest.raises(DataError, match=said):
        list(iterate_questions([path]))
    heard: list[str] = []
    found = list(read_questions(path, on_error=lambda kind, error: heard.append(f"{kind}: {error}")))
    assert len(found) == 2 and len(heard) == 1 and said in heard[0]


def test_bad_rows_of_a_table_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", "text\tlabel\na\tx\nb\ny\tz\n")
    heard: list[str] = []
    found = list(read_labeled(path, on_error=lambda kind, error: heard.append(kind)))
    assert [item.line for item in found] == [2, 4] and heard == ["format"]


def test_choices_are_counted_from_nought(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'choice1'"):
        list(iterate_questions([write(tmp_path, "a.csv", "context,choice1,choice2,label\na,b,c,1\n")]))


def test_a_question_that_lacks_something_is_left_out(tmp_path: Path) -> None:
    path = objects(tmp_path, {**ASKED, "label": None}, {**ASKED, "choices": []}, ASKED)
    assert [item.reason for item in iterate_questions([path]) if isinstance(item, SkippedRow)] == [
        "missing label for: It rains.", "missing choices for: It rains.",
    ]  # fmt: skip


SEVERAL = [("a good one", ("new", "long")), ("a bad one", ()), ("another", ("old",))]


def lines(name: str, *labels: Any, text: str = "text") -> str:
    return "".join(json.dumps({text: said, name: own}) + "\n" for (said, _), own in zip(SEVERAL, labels, strict=True))


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.csv", "text,labels\na good one,new | long\na bad one,\nanother,old\n", None),
        (
            "a.tsv.gz",
            "said\tis\na good one\tnew|long|new\na bad one\t\nanother\told\n",
            {"labels": "is", "text": "said"},
        ),
        ("a.tsv", "a good one\tnew|long\na bad one\t\nanother\told\n", {"text": "0", "labels": "1"}),
        ("a.jsonl", lines("labels", ["new", "long"], [], "old"), None),
        ("a.jsonl", lines("label", "new|long", None, ["old"]), None),
        ("a.jsonl", lines("label", ["new", "long"], [], ["old"], text="body"), None),
    ],
)
def test_texts_may_have_several_labels_or_none(name: str, text: str, columns: Any, tmp_path: Path) -> None:
    found = list(iterate_labeled([write(tmp_path, name, text)], columns))
    assert [(item.text, item.label_set) for item in found] == SEVERAL and found[0].label == "long, new"
    asked = list(read_labeled(write(tmp_path, name, text), columns, inputs_only=True))
    assert [item.text for item in asked] == [text for text, _ in SEVERAL] and all(a.label_set is None for a in asked)


def test_parquet_has_lists_of_labels_and_a_list_may_hold_numbers(tmp_path: Path) -> None:
    path = parquet(tmp_path, sentence=["a", "b", "c"], label=[[1, 20], [], [3]])
    assert [item.label_set for item in iterate_labeled([path])] == [("1", "20"), (), ("3",)]


def test_a_column_label_takes_precedence_over_labels_unless_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "text,label,labels\na,x,y|z\n")
    assert plain(iterate_labeled([path])) == [("a", "", "x")]
    assert next(iterate_labeled([path], {"labels": "labels"})).label_set == ("y", "z")
    with pytest.raises(DataError, match="not both"):
        list(iterate_labeled([path], {"labels": "labels", "label": "label"}))


def test_files_with_one_label_and_with_several_do_not_go_together(tmp_path: Path) -> None:
    paths = [write(tmp_path, "a.csv", "text,label\na,x\n"), write(tmp_path, "b.csv", "text,labels\na,x\n")]
    for both in (paths, paths[::-1]):
        with pytest.raises(DataError, match="labels"):
            list(iterate_labeled(both))
    path = write(tmp_path, "a.csv", "text,pair,labels\na,b,x\n,b,x\na,,\n\na,b,\n")
    assert [item.text if isinstance(item, LabeledText) else item.reason for item in iterate_labeled([path])] == [
        "a",
        "missing text for: b",
        "missing second text for: a",
        "",
        "a",
    ]


def test_a_table_without_context_or_choices_needs_named_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("sentence\tlabel\na b\t0\n")
    with pytest.raises(DataError, match="--columns"):
        list(iterate_questions([str(path)]))
    path.write_text("context\tlabel\na b\t0\n")
    with pytest.raises(DataError, match="'choices'"):
        list(iterate_questions([str(path)]))
