"""Samples of the text tasks from tables, JSON, Parquet and CoNLL files: rows that are read, rows that are refused."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from data_files import jsonl, parquet, write
from regard.data.text.documents import Passage, iterate_texts
from regard.data.text.files import read_lines
from regard.data.text.formats import Row
from regard.data.text.qa import SPANS, QASample, locate_answer, read_qa
from regard.data.text.samples import (
    PAIRS,
    QUESTIONS,
    SIMILAR_PAIRS,
    ChoiceSample,
    LabeledText,
    Pair,
    iterate_labeled,
    read_labeled,
    read_questions,
)
from regard.data.text.tables import SkippedRow, iterate_rows
from regard.data.text.tagged import TAGGED, TaggedSentence, read_tagged
from regard.errors import DataError, RegardError


def valid_rows(*arguments: Any, **options: Any) -> list[Row]:
    """All rows; raise the first error."""
    rows = list(iterate_rows(*arguments, **options))
    for error in (row for _, row in rows if isinstance(row, DataError)):
        raise error
    return rows


ITERATORS: dict[str, Callable[..., Any]] = {
    "pairs": PAIRS.samples, "positive": SIMILAR_PAIRS.samples, "classify": iterate_labeled, "choose": QUESTIONS.samples,
    "tag": TAGGED.samples, "qa": SPANS.samples, "lm": iterate_texts,
    "text": lambda data, columns: valid_rows(data[0], ("text",), columns),
    "rows": lambda data, columns: valid_rows(data[0], ("text", "label"), columns),
    "optional": lambda data, columns: valid_rows(data[0], ("text", "label"), columns, optional=("second", "third")),
}  # fmt: skip
READERS: dict[str, Callable[..., Any]] = {"choose": read_questions, "tag": read_tagged, "qa": read_qa}
LABELLED = ("text", "label")


BRIEF: dict[type[Any], Callable[[Any], Any]] = {
    Pair: attrgetter("source", "target"), ChoiceSample: attrgetter("context", "question", "choices", "label"),
    LabeledText: lambda one: (one.text, one.text_pair, one.label) if one.label_set is None else (one.text, one.label_set),
    TaggedSentence: lambda item: (" ".join(item.words), " ".join(item.tags)), Passage: attrgetter("text"),
    QASample: attrgetter("question", "answers", "starts", "is_answerable"), SkippedRow: attrgetter("reason"),
}  # fmt: skip
"""Content of a sample, or the reason of a skipped row."""


def brief(item: Any) -> Any:
    return BRIEF[type(item)](item) if type(item) in BRIEF else item


def store(name: str, content: Any) -> str:
    """Write text, JSON values (one per line in .jsonl), or columns of Parquet."""
    if isinstance(content, dict) and name.endswith(("parquet", "pq", "PQ")):
        return parquet(name, content)
    if isinstance(content, list) and name.endswith(".jsonl"):
        return jsonl(name, *content)
    return write(name, content if isinstance(content, str | bytes) else json.dumps(content))


def choices(columns: str) -> dict[str, str] | None:
    return dict(item.split("=") for item in columns.split()) or None


def read(kind: str, *data: str, columns: Mapping[str, str] | None = None) -> list[Any]:
    return list(map(brief, ITERATORS[kind](data, columns)))


def complaint(kind: str, *data: str, columns: Mapping[str, str] | None = None) -> str:
    with pytest.raises(RegardError) as caught:
        read(kind, *data, columns=columns)
    return str(caught.value)


# -- rows that are read

GOOD_BAD = [("a good one", "", "1"), ("a bad one", "", "0")]
SEVERAL = [("a good one", ("new", "long")), ("a bad one", ()), ("another", ("old",))]
SENTENCES = [("EU rejects German lamb", "I-ORG O I-MISC O"), ("Peter Blackburn", "I-PER I-PER")]
WORDS = "EU NNP I-ORG\nrejects VBZ O\nGerman JJ I-MISC\nlamb NN O\n\nPeter NNP I-PER\nBlackburn NNP I-PER\n"
TABS = WORDS.replace(" ", "\t")
CELLS = "EU rejects German lamb{0}I-ORG O I-MISC O\nPeter Blackburn{0}I-PER I-PER\n"
QUESTION = {"context": "It rains.", "question": "What is wet?", "choices": ["the street", "the sun"], "label": 0}
RAIN = ("It rains.", "What is wet?", ("the street", "the sun"), 0)
LETTERS = ("It rains.", "What is wet?", ("a", "b", "c"), 2)
SUM = {"context": "1 + 1 =", "choices": ["3", "1", "2"]}
CONTEXT = "In 1889 the tower rose in Paris.  Paris paid for the tower."
WHERE = {"id": "q1", "question": "Where?",
         "answers": [{"text": "Paris", "answer_start": 26}, {"text": "in Paris", "answer_start": 23}]}  # fmt: skip
WHEN = {"id": "q2", "question": "When?", "answers": [{"text": "1889", "answer_start": 3}]}
WHY = {"id": "q3", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": WHEN["answers"]}
ASKED = [("Where?", ("Paris", "in Paris"), (26, 23), True), ("When?", ("1889",), (3,), True), ("Why?", (), (), False)]
PARIS = ("Where?", ("Paris",), (26,), True)


def several(name: str, *labels: Any, text: str = "text") -> list[dict[str, Any]]:
    return [{text: sentence, name: values} for (sentence, _), values in zip(SEVERAL, labels, strict=True)]


def flat(answers: Any, question: str = "Where?", **more: Any) -> dict[str, Any]:
    return {"question": question, "context": CONTEXT, "answers": answers, **more}


def squad(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"version": "x", "data": [{"title": "Tower", "paragraphs": [{"context": CONTEXT, "qas": list(asked)}]}]}


READ: list[tuple[str, str, Any, str, list[Any]]] = [
    ("pairs", "a.tsv", "Target\tSOURCE\nKatze\tcat\n", "", [("cat", "Katze")]),
    ("pairs", "a.tsv", "id\ten\tde\n1\tcat\tKatze\n", "source=de target=en", [("Katze", "cat")]),
    ("pairs", "a.tsv", "cat\tKatze\tby X\ndog\tHund\tby Y\n", "source=1 target=0", [("Katze", "cat"), ("Hund", "dog")]),
    ("pairs", "a.jsonl", '{"source": "a", "target": "c", "id": 1}\n\n{"target": "e", "source": "d\\u2028"}\n', "",
     [("a", "c"), "", ("d", "e")]),
    ("pairs", "a.json", {"translation": {"en": "cat", "de": "Katze"}}, "source=en target=de", [("cat", "Katze")]),
    ("pairs", "10:30.tsv", "a\tb\n", "", [("a", "b")]),  # a file with a colon in its name
    ("positive", "a.csv", "text,pair,label\na,b,0\n", "source=text target=pair", [("a", "b")]),
    ("optional", "a.tsv", "text\tsecond\tlabel\na\tb\tc\n", "", [(2, {"text": "a", "label": "c", "second": "b"})]),
    ("classify", "a.tsv.gz", "sentence\tlabel\na good one \t1\na bad one\t0\n", "", GOOD_BAD),
    ("classify", "a.tsv", "a good one\t1\na bad one\t0\n", "", GOOD_BAD),
    ("classify", "a.csv", "Label,idx,Review\n1,7,a good one\n0,8,a bad one\n\n\n", "", GOOD_BAD),
    ("classify", "a.csv", "kind,said\n1,a good one\n0,a bad one\n", "label=kind", GOOD_BAD),
    ("classify", "a.jsonl", '{"text": "a good one", "label": 1}\n{"label": "0", "text": "a bad one"}\n\n', "", GOOD_BAD),
    ("classify", "a.jsonl", '{"id": 3, "body": "a good one", "label": 1}\n{"body": "a bad one", "label": 0}\n', "", GOOD_BAD),
    ("classify", "a.tsv", "premise\thypothesis\tlabel\na dog\tan animal\tyes\n", "text=premise pair=hypothesis",
     [("a dog", "an animal", "yes")]),
    ("classify", "a.jsonl", [{"text": "a", "pair": "b", "label": "x"}, {"text": "a", "label": "y"}], "",
     [("a", "b", "x"), ("a", "", "y")]),
    ("classify", "a.tsv", "text\tpair\tlabel\na\tb\tx\n\tb\tx\na\t\tx\na\tb\t \n\n\n", "",
     [("a", "b", "x"), "missing text for: b", "missing second text for: a", "missing label for: a"]),
    ("classify", "a.csv", "text,pair,labels\na,b,x\n,b,x\na,,\n\na,b,\n", "",
     [("a", ("x",)), "missing text for: b", "missing second text for: a", "", ("a", ())]),
    ("classify", "a.csv", "text,labels\na good one,new | long\na bad one,\nanother,old\n", "", SEVERAL),
    ("classify", "a.tsv", "a good one\tnew|long\na bad one\t\nanother\told\n", "text=0 labels=1", SEVERAL),
    ("classify", "a.jsonl", several("labels", ["new", "long"], [], "old"), "", SEVERAL),
    ("classify", "a.jsonl", several("label", "new|long", None, ["old"]), "", SEVERAL),
    ("classify", "a.jsonl", several("label", ["new", "long"], [], ["old"], text="body"), "", SEVERAL),
    ("classify", "a.parquet", {"sentence": ["a", "b", "c"], "label": [[1, 20], [], [3]]}, "",
     [("a", ("1", "20")), ("b", ()), ("c", ("3",))]),
    ("classify", "a.csv", "text,label,labels\na,x,y|z\n", "", [("a", "", "x")]),
    ("classify", "a.csv", "text,label,labels\na,x,y|z\n", "labels=labels", [("a", ("y", "z"))]),
    *(("choose", "a.jsonl", [{**QUESTION, "label": label}], "", [RAIN]) for label in (0, "0", "the street", "A")),
    # a number is the text of a choice in `answer`, and an index in `label`
    ("choose", "a.jsonl", [{**SUM, "answer": "2"}], "", [("1 + 1 =", "", ("3", "1", "2"), 2)]),
    ("choose", "a.jsonl", [{**SUM, "label": 1}], "", [("1 + 1 =", "", ("3", "1", "2"), 1)]),
    ("choose", "a.jsonl", [{**SUM, "label": "3"}], "", [("1 + 1 =", "", ("3", "1", "2"), 0)]),
    ("choose", "a.csv", "choice0,context,choice1,answer,question,choice2\nthe street,It rains.,the sun,the street,"
     "What is wet?,\na,It rains.,b,c,What is wet?,c\n", "", [RAIN, LETTERS]),
    ("choose", "a.parquet", {name: [value] for name, value in QUESTION.items()}, "", [RAIN]),
    ("choose", "a.jsonl", [{"article": "It rains.", "question": "What is wet?", "options": QUESTION["choices"], "answer": "A"}],
     "context=article choices=options", [RAIN]),
    ("choose", "a.jsonl", [{"question": "What is wet?", "choices": QUESTION["choices"], "answer": 0}], "",
     [("What is wet?", "", RAIN[2], 0)]),
    ("choose", "a.jsonl", [{**QUESTION, "label": None}, {**QUESTION, "choices": []}, QUESTION], "",
     ["missing label for: It rains.", "missing choices for: It rains.", RAIN]),
    ("tag", "a.conll", WORDS, "tags=1", [("EU rejects German lamb", "NNP VBZ JJ NN"), ("Peter Blackburn", "NNP NNP")]),
    ("tag", "a.bio.gz", TABS, "", SENTENCES),
    ("tag", "a.txt", WORDS, "", SENTENCES),
    ("tag", "a.tsv", TABS.replace("\n", "\r\n"), "", SENTENCES),
    ("tag", "a.tsv", f"token\tpos\tner\n{TABS}", "", SENTENCES),
    ("tag", "a.tsv", f"say\tpos\tkind\n{TABS}", "words=say tags=kind", SENTENCES),
    ("tag", "a.conll", WORDS.replace("\n\n", "\n\n-DOCSTART- -X- O\n"), "", SENTENCES),
    ("tag", "a.conll", f"# id = 1\n# EU rejects\n{WORDS}", "", SENTENCES),
    ("tag", "a.conll", "# id 7\tdomain=train\n" + WORDS.replace("\n\n", "\n\n# 8\tdomain=train\n"), "", SENTENCES),
    ("tag", "a.conllu", "1\tEU\teu\tI-ORG\t_\n2-3\tx\t_\t_\t_\n2\trejects\t_\tO\t_\n2.1\ty\t_\t_\t_\n3\tGerman\t_\tI-MISC\t_\n"
     "4\tlamb\t_\tO\t_\n\n1\tPeter\t_\tI-PER\t_\n2\tBlackburn\t_\tI-PER\t_\n", "", SENTENCES),
    ("tag", "a.csv", "Sentence,id,NER_Tags\n" + CELLS.format(",3,"), "", SENTENCES),
    ("tag", "a.tsv", CELLS.format("\t"), "", SENTENCES),
    ("tag", "a.tsv", "tokens\ttags\tid\n" + CELLS.format("\t").replace("\n", "\t7\n"), "", SENTENCES),
    ("tag", "a.tsv", "tokens\tkind\tid\n" + CELLS.format("\t").replace("\n", "\t7\n"), "tags=kind", SENTENCES),
    ("tag", "a.txt.gz", CELLS.format("\t7\t"), "words=0 tags=2", SENTENCES),
    ("tag", "a.jsonl", [{"tokens": a.split(), "id": 1, "ner_tags": b.split()} for a, b in SENTENCES], "", SENTENCES),
    ("tag", "a.jsonl", [{"words": a, "labels": b} for a, b in SENTENCES], "", SENTENCES),
    ("tag", "a.parquet", {"tokens": [a.split() for a, _ in SENTENCES], "ner_tags": [b.split() for _, b in SENTENCES]}, "",
     SENTENCES),
    # lines of several widths, if columns are chosen
    ("tag", "a.conll", "EU x I-ORG y z\nrejects x O\nGerman x I-MISC y\nlamb x O\n\nPeter x I-PER\nBlackburn x I-PER z\n",
     "words=0 tags=2", SENTENCES),
    ("tag", "b.jsonl", [{"words": ["a", "b"], "tags": ["0", "1"]}], "", [("a b", "0 1")]),
    ("tag", "a.conll", "One CD O\n\n# # O\n1 CD O\n\n# text=a O\n#tag NN B-X\n# # O\n", "",  # the word #
     [("One", "O"), ("# 1", "O O"), ("#tag #", "B-X O")]),
    ("tag", "a.tsv", "#\tO\nb\tO\n\n# a comment\n# \tO\nx\tO\n", "", [("# b", "O O"), ("# x", "O O")]),
    ("tag", "a.conll", "1\u00a0000 O\nkm O\n", "", [("1\u00a0000 km", "O O")]),
    ("tag", "a.tsv", "# a note\there\nNew York\tB-LOC\nis\tO\nit\tO\n", "", [("New York is it", "B-LOC O O")]),
    ("tag", "b.conll", "a NN\nb O\nc S\n", "", [("a b c", "NN O S")]),  # single letters may be classes
    ("tag", "a.csv", "words,tags\na b,\n,O O\n\nx,O\n\n", "",
     ["missing tags for: a b", "missing words for: O O", "", ("x", "O")]),
    ("lm", "a.jsonl", [{"id": 1, "text": text} for text in (" one\r\ntwo ", "", "3\n\n")], "", [" one\ntwo ", "", "3\n\n"]),
    ("lm", "b.ndjson.gz", '{"body": "one"}\n\n', "text=body", ["one"]),
    ("lm", "c.csv", 'id,text\n1," one\r\ntwo "\n', "", [" one\ntwo "]),
    ("lm", "d.tsv", "text\tid\n one\t1\n\t2\nthree\t3\n", "", [" one", "", "three"]),
    ("lm", "d.tsv", "text\tid\n one\t1\n\t2\nthree\t3\n", "text=0", ["text", " one", "", "three"]),
    ("lm", "a.parquet", {"text": ["one\r\n", None, "b"], "by": ["x"] * 3}, "", ["one\n", "", "b"]),
    *(("qa", name, json.dumps(squad(WHERE, WHEN, WHY), indent=indent), "", ASKED)
      for name in ("a.json", "a.json.gz") for indent in (None, 1)),
    *(("qa", name, [flat(answers), {"context": CONTEXT, "question": "When?", "answer": "1889", "start": 3}, flat(None, "Why?")],
       "", ASKED)
      for name in ("a.jsonl", "b.json")
      for answers in (WHERE["answers"], ["Paris", "in Paris"], {"text": ["Paris", "in Paris"], "answer_start": [26, 23]})),
    ("qa", "a.parquet", {"question": ["Where?", "Why?"], "context": [CONTEXT] * 2, "answers": [WHERE["answers"], None]}, "",
     [ASKED[0], ASKED[2]]),
    ("qa", "a.jsonl", [flat("Paris", is_impossible=True), flat("Paris", is_impossible=False, start=-1)], "",
     [("Where?", (), (), False), PARIS]),
    ("qa", "a.csv", f"Id,Passage,Question,Answer_Start,Answer\n7,{CONTEXT},Where?,26,Paris\n8,{CONTEXT},When?,,1889\n"
     f"9,{CONTEXT},Why?,,\n", "", [PARIS, *ASKED[1:]]),
    ("qa", "a.tsv", f"asked\tread\tsaid\nWhere?\t{CONTEXT}\tParis\n", "question=asked context=read answer=said", [PARIS]),
    ("qa", "b.tsv", f"Where?\t{CONTEXT}\tParis\n", "question=0 context=1 answer=2", [PARIS]),
    ("qa", "a.jsonl", [flat("Paris", ""), {**flat("x"), "context": " "}, flat([{"text": "", "answer_start": 0}])], "",
     [f"missing question for: {CONTEXT}", "missing context for: Where?", ("Where?", (), (), False)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "columns", "expected"), READ)
def test_rows_of_files_are_read(kind: str, name: str, content: Any, columns: str, expected: Any, folder: Path) -> None:
    path = store(name, content)
    assert read(kind, path, columns=choices(columns)) == expected
    if kind == "classify" and expected == SEVERAL:  # inputs of predict
        inputs = list(read_labeled(path, choices(columns), inputs_only=True))
        assert [(item.text, item.label_set) for item in inputs] == [(text, None) for text, _ in SEVERAL]


def test_samples_have_their_file_and_line(folder: Path) -> None:
    write("a.tsv", 'the "cat \t  die Katze\u2028hier \r\na,b\tc\r\n')
    pairs = [Pair('the "cat', "die Katze\u2028hier", "a.tsv", 1), Pair("a,b", "c", "a.tsv", 2)]
    assert list(PAIRS.samples("a.tsv")) == list(PAIRS.samples(["a.tsv"])) == pairs
    write("a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\n')  # a quoted field over two lines
    assert list(PAIRS.samples(["a.csv"])) == [Pair('a "b", c\nd', "e", "a.csv", 1), Pair("f", "g", "a.csv", 3)]
    items = PAIRS.samples([write("b.tsv", "\na\tb\n\t \nc\t\n \td\n\ne\tf\n\n\n")])
    assert [(item.line, isinstance(item, Pair)) for item in items] == [(n, n in (2, 7)) for n in range(1, 8)]
    sentence = next(TAGGED.samples([write("a.conll", f"-DOCSTART- -X- O\n\n{WORDS}")]))
    span = next(SPANS.samples([write("a.json", json.dumps(squad(WHERE)))]))
    assert (sentence.line, span.line, span.id, span.title, span.split_key) == (3, 1, "q1", "Tower", "Tower")
    question = next(QUESTIONS.samples([jsonl("a.jsonl", QUESTION)]))
    assert question.line == 1 and question.prompt == "It rains. What is wet?"
    first, second = write("b.txt", "1\t2\n"), write("a.tsv.gz", "3\t4\n")
    assert read("pairs", first, second) == [("1", "2"), ("3", "4")]  # in the order given
    assert next(iterate_labeled([write("c.csv", "text,labels\na,new|long\n")])).label == "long, new"


def test_contexts_are_kept_and_relocated_answers_counted(folder: Path) -> None:
    row = {"question": " Where? ", "context": f"\n  {CONTEXT} ", "answer": "Paris", "start": 29}
    (found,) = SPANS.samples([jsonl("a.jsonl", row)])
    assert (found.context, found.question) == (row["context"], "Where?")
    assert found.starts == (29,) and not found.num_relocated
    assert found.split_key == found.context
    moved = {**WHERE, "answers": [{"text": "Paris", "answer_start": 25}, WHERE["answers"][1]]}
    items = list(SPANS.samples([write("a.json", json.dumps(squad(moved, WHEN)))]))
    assert [(item.num_relocated, item.starts) for item in items] == [(1, (26, 23)), (0, (3,))]


PLACES: list[tuple[str, str, str, int | None, tuple[str, int, bool] | None]] = [
    ("where it is said", CONTEXT, "Paris", 34, ("Paris", 34, False)),
    ("off by one", CONTEXT, "Paris", 33, ("Paris", 34, True)),
    ("nowhere said", CONTEXT, "Paris", None, ("Paris", 26, False)),
    ("blanks around", CONTEXT, " Paris ", 25, ("Paris", 26, False)),
    ("blanks and a wrong place", CONTEXT, "\nParis", 26, ("Paris", 26, True)),
    ("blanks inside", CONTEXT, "Paris. Paris", 26, ("Paris.  Paris", 26, True)),
    ("not there", CONTEXT, "London", 26, None),
    ("signs of patterns", CONTEXT, "P.ris", 26, None),
    ("whole words first", "a party of art", "art", None, ("art", 11, False)),
    ("whole words before near ones", "a party of art", "art", 4, ("art", 11, True)),
    ("no spaces", "東京都は東京", "東京", 3, ("東京", 4, True)),
]


@pytest.mark.parametrize(("context", "text", "start", "found"), [p[1:] for p in PLACES], ids=[p[0] for p in PLACES])
def test_an_answer_is_searched_near_its_position(context: str, text: str, start: Any, found: Any) -> None:
    assert locate_answer(context, text, start) == found


@pytest.mark.parametrize("names", ["source target", "anchor positive", "Question Answer", "text pair", "a b", "b a"])
def test_columns_of_positive_pairs_have_many_accepted_names(names: str, folder: Path) -> None:
    rows = [("1", "one text", "its partner"), ("2", "another text", "another partner")]
    columns = ["id", *names.split()]
    pairs = [row[:0:-1] if names == "b a" else row[1:] for row in rows]
    assert read("positive", write("a.csv", "\n".join(",".join(row) for row in (columns, *rows)))) == pairs
    assert read("positive", jsonl("a.jsonl", *(dict(zip(columns, row, strict=True)) for row in rows))) == pairs


def test_parallel_files_stay_aligned_over_odd_characters(folder: Path) -> None:
    source, target = write("t.en.gz", "a\u2028b\x0bc\nd\n\n"), write("t.de", "A\r\nD\x85E\r\n\r\n")
    both = f"{source}:{target}"
    assert list(PAIRS.samples([both])) == [Pair("a\u2028b\x0bc", "A", both, 1), Pair("d", "D\x85E", both, 2)]
    path = write("10:30.tsv", "a\tb\n")
    assert read("pairs", f"{path}:{path}") == [("a\tb", "a\tb")]
    source, target = write("a", "source\na text"), write("b", "target\nits partner")
    assert read("positive", f"{source}:{target}") == [("source", "target"), ("a text", "its partner")]


def test_lists_and_numbers_are_accepted_in_their_columns(folder: Path) -> None:
    row = {"text": "a", "choices": ["b", "c"], "answer": 1}
    path, names = jsonl("a.jsonl", row, {**row, "answer": True, "choices": "b|c"}), ("text", "choices", "answer")
    found = [found for _, found in iterate_rows(path, names, numeric=("answer",))]
    assert found == [{**row, "answer": "1"}, {"text": "a", "choices": "b|c", "answer": "true"}]
    for file, needed, part in (
        (path, names, "expected text in 'answer', got 1."),
        (write("b.jsonl", '{"choices": ["a", 5]}'), ("choices",), "expected text in 'choices', got 5."),
        (write("c.jsonl", '{"text": ["a"]}'), ("text",), "expected text in 'text', got ["),
    ):
        with pytest.raises(DataError, match=re.escape(part)):
            valid_rows(file, needed)
    columns = {"text": ["a", None], "choices": [["b", None], None], "label": [1, None], "good": [True, False]}
    parquet("a.parquet", columns)
    optional, numeric = ("label", "good", "other"), ("label", "good")
    assert list(iterate_rows("a.parquet", ("text", "choices"), optional=optional, numeric=numeric)) == [
        (1, {"text": "a", "choices": ["b", ""], "label": "1", "good": "true"}),
        (2, {"text": "", "choices": "", "label": "", "good": "false"}),
    ]
    assert "expected text in column 'label', got int64" in complaint("rows", "a.parquet")
    assert next(iterate_rows("a.parquet", ("words",), {"words": "text"})) == (1, {"words": "a"})
    assert next(iterate_rows("a.parquet", ("document",))) == (1, {"document": "a"})  # the only text column


@pytest.mark.slow
def test_long_rows_of_parquet_are_read_few_at_a_time(folder: Path) -> None:
    parquet("a.parquet", {"text": [f"{n:07}" * 150_000 for n in range(100)]})
    tracemalloc.start()
    found = [row["text"][:7] for _, row in iterate_rows("a.parquet", ("text",))]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [f"{n:07}" for n in range(100)] and most < 60e6  # the file has 105 MB


def test_a_field_of_a_table_may_be_a_book(folder: Path) -> None:
    book = "It was, they say, a dark night.\n" * 10_000
    assert read("text", write("a.csv", f'text\n"{book}"\n')) == [(2, {"text": book})]


def test_numbers_of_parquet_are_tags_if_they_have_names(folder: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    names = ["O", "I-ORG", "I-MISC", "I-PER"]
    table = arrow.table({"tokens": [words.split() for words, _ in SENTENCES], "ner_tags": [[1, 0, 2, 0], [3, 3]]})
    for known, part in ((names, ""), (names[:3], "line 2"), ([], "'ner_tags'")):
        feature = {"feature": {"names": known, "_type": "ClassLabel"}, "_type": "Sequence"}
        kept = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
        files.write_table(table.replace_schema_metadata(kept if known else None), "a.parquet")
        if part:
            assert part in complaint("tag", "a.parquet")
        else:
            assert read("tag", "a.parquet") == SENTENCES


# -- files and rows that are refused


def test_only_newlines_end_lines_and_marks_are_recognized_by_content(folder: Path) -> None:
    odd = "one\u2028still one\x0b\x0c\x1c\x85\u2029\rend"
    lines = [(1, odd), (2, "two"), (3, ""), (4, "four")]
    assert list(read_lines(write("a.txt", f"{odd}\r\ntwo\n\nfour"))) == lines
    assert list(read_lines(write("no suffix", gzip.compress("\ufeffé\nb\n".encode())))) == [(1, "é"), (2, "b")]
    Path("a.tsv.gz").write_text("a\tb\n")
    assert read("pairs", "a.tsv.gz") == [("a", "b")]


def test_files_that_do_not_exist_are_reported_with_the_nearest_name(folder: Path) -> None:
    write("train.tsv", "a\tb\n")
    assert "trian.tsv: file not found. Did you mean 'train.tsv'?" in complaint("pairs", "trian.tsv")
    with pytest.raises(DataError, match=r"train\.tsv"):
        iterate_rows("trian.tsv", LABELLED)  # at once
    assert "; the folder" in complaint("pairs", "nowhere/train.tsv")
    assert "file not found" in complaint("pairs", "x" * 300 + ":y.tsv")
    told = f"{folder}: expected a file, got a folder. Files in the folder: train.tsv."
    assert complaint("pairs", str(folder)) == told
    Path("link.tsv").symlink_to("gone.tsv")
    assert "broken link: 'gone.tsv' does not exist" in complaint("pairs", "link.tsv")
    for number in range(30):
        write(f"{number:04}.jpg", "x")
    assert "has a similar name" in complaint("pairs", "words.bin")
    assert all("No data given" in complaint(kind) for kind in ("pairs", "classify", "lm"))
    assert all("Did you mean 'train.tsv'" in complaint("lm", name) for name in ("trian.tsv", "trian.txt"))


GZIP = gzip.compress("\n".join(f"{n}\t{n * n}" for n in range(5000)).encode(), mtime=0)
GOOD = '{"source": "a", "target": "b"}\n'
REFUSED: list[tuple[str, str, Any, str, tuple[str, ...]]] = [
    *(("pairs", "none.tsv", content, "", ("none.tsv: the file is empty.",))
      for content in (b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0))),
    *(("pairs", "cut.tsv", content, "", ("cut.tsv, line", "damaged gzip", "gzip -t"))
      for content in (GZIP[: len(GZIP) // 2], GZIP[:-8] + b"\1\2\3\4" + GZIP[-4:])),
    ("pairs", "a.csv", b"PAR1\x15\x04", "", ("a.csv", "the content is a Parquet file. Rename the file to .parquet.")),
    ("pairs", "old one.tsv", b"\xef\xbb\xbfgood\tgut\ngirls\tM\xe4dchen\n", "",
     (", line 2: ", "byte 0xe4 at byte offset 19.", "iconv -f WINDOWS-1252 -t UTF-8 'old one.tsv' > 'old one.utf8.tsv'")),
    ("pairs", "old.tsv.gz", b"a\tb\n\xff\n", "",
     ("line 2", "byte offset 4 after unzipping", "gzip -dc old.tsv.gz | iconv", "old.utf8.tsv")),
    ("pairs", "word.txt", "a\tb\n".encode("utf-16"), "", ("got UTF-16", "iconv -f UTF-16 -t UTF-8")),
    ("pairs", "bare.txt", "a\tb\n".encode("utf-16-le"), "", ("not a text file", "iconv")),
    ("pairs", "a.tsv", "a\tb\nc\n", "", ("a.tsv, line 2: expected 2 columns, got 1.", "separator")),
    ("pairs", "a.csv", '"a ""b"", c\r\nd",e\r\nf,g\r\nh\r\n', "", ("a.csv, line 4: expected 2 columns, got 1",)),
    ("pairs", "a.csv", 'a,b\nc,"d\ne,f\n', "",
     ("a.csv, line 2: invalid CSV in the record that starts", "a quote, a comma or a line break")),
    ("pairs", "a.tsv", "id\ten\tde\n1\tcat\tKatze\n", "",
     ("a.tsv, line 1: expected 2 columns, got 3.", "--columns source=NAME target=NAME (available: id, en, de)")),
    ("pairs", "a.txt", "the cat danced\n", "", ("line 1: expected 2 columns, got 1", "SRC:TGT", "tabs")),
    ("pairs", "a.tsv", "a\tb\tc\n", "source=0 target=3", ("column 3 does not exist. Column positions range from 0 to 2.",)),
    ("pairs", "a.csv", "en,en,de\n1,2,3\n", "source=en target=de", ("a.csv, line 1: duplicate column 'en' in the header.",)),
    ("pairs", "a.csv", "id,english,german\n1,cat,Katze\n", "source=englsh target=german",
     ("Unknown column 'englsh'. Did you mean 'english'?", "Header of a.csv, line 1: id, english, german.")),
    ("pairs", "a.csv", "id,english,german\n1,cat,Katze\n", "sorce=english target=german", ("Did you mean 'source'?",)),
    ("pairs", "a.jsonl", '{"english": "a", "german": "b"}\n', "source=english target=germen",
     ("Did you mean 'german'?", "a.jsonl, line 1")),
    ("pairs", "a.jsonl", '{"english": "a", "german": "b"}\n{"english": "a"}\n', "source=english target=german",
     ("a.jsonl, line 2: missing key 'german' (keys: english).",)),
    ("pairs", "b.ndjson.gz", '{"en": "cat", "de": "Katze"}\n', "",
     ("b.ndjson.gz, line 1: missing key 'source' (keys: en, de).", "--columns source=NAME target=NAME")),
    ("pairs", "a.json", {"translation": {"en": "cat", "de": "Katze"}}, "", ("(keys: en, de).",)),
    ("pairs", "a.jsonl", GOOD + '{"source": "a"', "", ("a.jsonl, line 2: ", "invalid JSON", "one JSON object per line")),
    ("pairs", "a.jsonl", GOOD + '["a", "b"]', "", ("line 2: ", "expected a JSON object, got list", "jq -c '.[]'")),
    ("pairs", "a.jsonl", GOOD + "[", "", ("line 2: ", "invalid JSON", "jq -c '.[]'")),
    ("pairs", "a.jsonl", GOOD + "[" * 100_000, "", ("line 2: ", "invalid JSON", "one JSON object per line")),
    ("pairs", "a.jsonl", GOOD + '{"source": "a", "target": 5}', "", ("line 2: ", "expected text in 'target', got 5", "quotes")),
    ("pairs", "a.jsonl", GOOD + '{"source": "\\ud83d", "target": "b"}', "",
     ("line 2: ", "'source' contains \\ud83d, half of a surrogate pair", "escapes")),
    ("pairs", "a.tsv", "a\t\n\tb\n", "", ("a.tsv: no pairs found: all 2 ", "missing target for: a")),
    ("pairs", "b.tsv", "source\ttarget\n", "", ("the data contains no rows",)),
    ("pairs", "train.en", "a\n", "", ("train.en: unsupported file type '.en'", ".jsonl", "SRC:TGT")),
    ("pairs", "train", "a\n", "", ("the file name has no extension",)),
    ("positive", "a.csv", "text,pair,label\na,b,0\n", "", ("--columns",)),  # the label may mark negative pairs
    ("lm", "a.txt", b"one\ntw\xf6\n", "", ("a.txt, line 2: invalid UTF-8: byte 0xf6 at byte offset 6. Convert the file",)),
    ("lm", "a.txt", b"one\ntwo \xe2\x82", "", ("a.txt, line 2: invalid UTF-8: byte 0xe2 at byte offset 8.",)),
    ("lm", "a.txt", b"one\n\ntw\0\n", "", ("a.txt, line 3: not a text file: contains NUL bytes.",)),
    ("lm", "a.txt", b"PK\x03\x04\x14\x00\x06", "", ("not a text file: the content is a zip archive",)),
    ("lm", "a.txt", GZIP[:-9], "", ("damaged gzip file",)),
    ("lm", "a.txt", "x", "text=body", ("a.txt: plain text has no columns. Remove --columns.",)),
    ("lm", "a.json", "[\n]\n", "", ("a.json: expected one JSON object per line", "a list of 0 values")),
    ("lm", "a.txt", " \n\t\n", "", ("a.txt: no text found: the only entry was empty.",)),
    ("text", "b.csv", "one\ntwo\n", "", ("b.csv, line 1: no column is named 'text'.", "--columns text=0.")),
    ("rows", "a.tsv", "sentence\tlabel\n" + "a fine day\t1\n" * 9, "",
     ("the first row (sentence, label) looks like a header. For a header, pass", "--columns text=sentence label=label; ")),
    ("rows", "d.tsv", "a\tb\tc\n", "", ("expected 2 columns, got 3. Pass --columns text=NAME label=NAME (available: a, b, c)",
                                         "positions from 0: --columns text=0 label=1.")),
    ("optional", "a.jsonl", [{"text": "a", "second": "b", "label": "c"}], "second=secnd", ("Unknown column 'secnd'",)),
    ("classify", "a.tsv", "text\tsentiment\n" + "a b\t1\n" * 9, "", ("--columns",)),
    ("classify", "a.tsv", "premise\thypothesis\tlabel\na dog\tan animal\tyes\n", "", ("--columns",)),
    ("classify", "a.tsv", "text\tlabel\tlabels\na\tx\ty|z\n", "labels=labels label=label", ("not both",)),
    ("choose", "a.csv", "context,choice1,choice2,label\na,b,c,1\n", "", ("'choice1'",)),
    ("choose", "a.csv", "sentence,label\na b,0\n", "", ("--columns",)),
    ("choose", "a.csv", "context,label\na b,0\n", "", ("'choices'",)),
    ("tag", "a.conll", WORDS, "tags=3", ("line 1",)),
    ("tag", "a.conll", WORDS, "tags=ner", ("line 1",)),
    ("tag", "a.conll", WORDS, "tag=1", ("'tags'",)),
    ("tag", "a.xml", "<a/>", "", ("'.xml'",)),
    ("tag", "a.conll", "asentence\nword\n", "", ("line 1",)),
    ("tag", "b.conll", "\n\n", "", ("sentences",)),
    ("tag", "a.jsonl", '\n{"words": ["a", "b"], "tags": [0, 1]}\n', "", ("line 2",)),
    ("tag", "a.tsv", "sentence\tlabel\n" + "a whole sentence\t1\nand another one\t0\n" * 3, "", ("line 2",)),
    ("tag", "a.conll", "EU x I-ORG y z\nrejects x O\n", "", ("line 2",)),
    ("qa", "a.tsv", f"asked\tread\tsaid\nWhere?\t{CONTEXT}\tParis\n", "answers=said", ("'answers'",)),
    ("qa", "a.json", '{"data": 7}', "", ("'data'",)),
    ("qa", "a.json", '{\n"data": [\n', "", ("line 3",)),
    ("qa", "a.json", '{"question": "x"\n', "", ("JSON",)),
    ("qa", "a.parquet", "nothing", "", ("Parquet",)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "columns", "parts"), REFUSED)
def test_bad_files_are_refused(kind: str, name: str, content: Any, columns: str, parts: Any, folder: Path) -> None:
    message = complaint(kind, store(name, content), columns=choices(columns))
    assert [part for part in parts if part not in message] == [], message
    assert kind != "rows" or "SRC:TGT" not in message
    if offset := re.search(r"byte (0x..) at byte offset (\d+)\.", message):
        assert Path(name).read_bytes()[int(offset[2])] == int(offset[1], 16)


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3)])
def test_parallel_files_of_different_length_name_both_counts(folder: Path, left: int, right: int) -> None:
    source, target = write("t.en", "a\n" * left), write("t.de", "b\n" * right)
    longer, shorter = (source, target) if left > right else (target, source)
    message = complaint("pairs", f"{source}:{target}")
    assert f"{longer}, line 4: no matching line in " in message
    assert f"'{longer}' has 5 lines, '{shorter}' has 3." in message
    assert "t.dee: file not found. Did you mean 't.de'" in complaint("pairs", "t.en:t.dee")
    assert "one side of the colon is empty" in complaint("pairs", "t.en:")


def test_files_with_one_label_and_with_several_do_not_go_together(folder: Path) -> None:
    paths = [write("a.csv", "text,label\na,x\n"), write("b.csv", "text,labels\na,x\n")]
    assert "mixed label formats" in complaint("classify", *paths)
    assert "mixed label formats" in complaint("classify", *paths[::-1])


def tagged_rows(**first: Any) -> list[dict[str, Any]]:
    return [first, {"words": ["d"], "tags": ["O"]}]


PLAIN = flat("Paris")
BAD: list[tuple[str, str, Any, str, str]] = [
    *(("choose", "a.jsonl", [{**QUESTION, **change}, QUESTION], "format", part) for change, part in (
        ({"label": 2}, "line 1: label must be between 0 and 1"), ({"label": -1}, "label"), ({"label": "the moon"}, "choices"),
        ({"choices": ["the street"]}, "choice"), ({"choices": ["the street", " "]}, "choice"),
        ({"choices": ["a", "a"]}, "choice"), ({"choices": "the street"}, "'choices'"), ({"choices": {"a": 1}}, "'choices'"))),
    ("tag", "a.conll", "a O\nb\nc O\n\nd O\n", "format", "line 2: expected 2 columns, got 1. In the first line, spaces"),
    ("tag", "a.conll", "a O\nb c O\n\nd O\n", "format", "line 2: expected 2 columns, got 3"),
    ("tag", "a.tsv", "a\tO\nb O\n\nd\tO\n", "format", "line 2: expected 2 columns, got 1. In the first line, tabs separate"),
    ("tag", "a.tsv", "a\tO\n\tO\n\nd\tO\n", "format", "line 2: tag 'O' has no word"),
    ("tag", "a.tsv", "a\tO\nb\t\n\nd\tO\n", "format", "line 2: word 'b' has no tag"),
    ("tag", "a.conll", "a B-X\n\nb NN\n\nd O\n", "format", "line 3: inconsistent tag schemes: 'NN' here, 'B-X' on line 1"),
    ("tag", "a.jsonl", tagged_rows(words=["a", "b"], tags=["O"]), "format",
     "line 1: expected one tag per word, got 2 words and 1 tag: a b"),
    ("tag", "a.jsonl", tagged_rows(words=["a", "\u00a0"], tags=["O", "O"]), "format", "line 1: word 1 is empty"),
    ("tag", "a.jsonl", tagged_rows(words=["a", 1], tags=["O", "O"]), "format", "line 1: expected text in 'words', got 1"),
    ("tag", "a.conll", b"a O\nb\xff O\n\nd O\n", "encoding", "line 2: invalid UTF-8"),
    ("qa", "a.json", squad({**WHEN, "answers": [{"text": "1890", "answer_start": 3}]}, WHERE), "answer_not_in_context",
     "a.json: question 1 ('q2'): answer not found in the context: '1890'"),
    ("qa", "a.jsonl", [flat("London"), PLAIN], "answer_not_in_context", "line 1: answer not found"),
    ("qa", "a.json", {"data": [{"paragraphs": [{"qas": []}]}, *squad(WHERE)["data"]]}, "format",
     "paragraph 1 of article 1 has no key 'context'. Expected SQuAD format"),
    ("qa", "a.json", {"data": [{"title": "x"}, *squad(WHERE)["data"]]}, "format", "article 1 ('x') has no list 'paragraphs'"),
    ("qa", "a.jsonl", [{"context": "x", "asked": "y"}, PLAIN], "format",
     "line 1: missing key 'question' (keys: context, asked)"),
    ("qa", "a.jsonl", [flat(7), PLAIN], "format", "line 1: expected text as the answer, got 7"),
    *(("qa", "a.jsonl", [flat("Paris", start=start), PLAIN], "format", f"line 1: answer start must be an integer, got {start}")
      for start in (float("inf"), 2.5)),  # infinity is 1e400
    ("qa", "a.jsonl", [flat(["Paris", "1889"], starts=[1]), PLAIN], "format",
     "answer starts (1) must equal the number of answers (2)"),
    ("qa", "a.jsonl", [{**flat("1"), "context": 12}, PLAIN], "format", "expected text in 'context'"),
    ("qa", "a.json", [["x"], PLAIN], "format", "line 1: expected a JSON object, got list"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "error", "part"), BAD)
def test_bad_rows_are_refused(kind: str, name: str, content: Any, error: str, part: str, folder: Path) -> None:
    path = store(name, content)
    assert part in complaint(kind, path)
    found = list(READERS[kind](path))
    heard = [item.kind for item in found if isinstance(item, DataError)]
    items = [item for item in found if not isinstance(item, DataError)]
    last = {"choose": RAIN, "tag": ("d", "O")}
    assert heard == [error] and brief(items[-1])[0] == last.get(kind, ASKED[0])[0]
    assert kind != "tag" or "b" not in brief(items[0])[0]


def test_rows_that_are_complained_of_are_left_out(folder: Path) -> None:
    path = write("a.tsv", b"text\tlabel\na\tb\nc\n\xff\td\n\ne\tf\n")
    found = [
        (line, f"{row.kind} {row.line}" if isinstance(row, DataError) else tuple(row.values()))
        for line, row in iterate_rows(path, LABELLED)
    ]
    assert found == [(2, ("a", "b")), (3, "format 3"), (4, "encoding 4"), (5, ("", "")), (6, ("e", "f"))]
