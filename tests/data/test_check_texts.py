"""Findings of `regard check` in texts of all tasks with deliberate errors, without false findings; and the command."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import regard
from conftest import Cli
from data_files import found, jsonl, kinds, write
from regard.data.check import texts as documents
from regard.data.check.engine import normalize_text
from regard.data.check.findings import find_quality_issues
from regard.data.check.pairs import PairSurvey, count_trigrams, source_scores
from regard.data.check.report import ClassCounts, Finding, Report
from regard.data.check.texts import TextSurvey
from regard.data.text.documents import iterate_texts
from regard.data.text.samples import PAIRS
from regard.draw.charts import draw_class_counts
from regard.errors import DataError, RegardError, UnknownNameError
from regard.runs.check import check

Rows = list[Any]
Expected = dict[str, tuple[Any, ...]]
"""Severity and count of each finding by id; optionally the line and a part of the text of the first location."""

# -- data without findings, in rows


@cache
def pairs() -> Rows:
    from regard.demos.grammar import generate_corpus

    sources: dict[str, str] = {}
    for pair in dict.fromkeys((pair.source, pair.target) for pair in generate_corpus(count=3000).train):
        sources.setdefault(normalize_text(pair[0]), pair[1])
    return list(sources.items())[:1500]


def positive() -> Rows:
    return [("anchor", "positive"), *((f"question number {n}", f"the answer to {n}") for n in range(1200))]


def story(seed: int = 1, lines: int = 4000) -> Rows:
    draw = random.Random(seed)
    words = ("king", "queen", "castle", "river", "mountain", "garden", "silver", "winter", "morning", "shadow", "sea")
    return [f"The {' '.join(draw.choices(words, k=9))} {draw.randrange(10**6)}." for _ in range(lines)]


def texts() -> Rows:
    reviews = [(f"the film number {n} was {'fine' if n % 2 else 'dull'}", str(n % 2)) for n in range(200)]
    return [("sentence", "label"), *reviews]


def choices() -> Rows:
    return [
        {"context": f"case {n}", "choices": [f"answer {n}", "another", "a third"], "label": n % 3} for n in range(120)
    ]


def sentences(count: int = 200) -> Rows:
    return [f"number B-{'A' if n % 2 else 'B'}\n{n} I-{'A' if n % 2 else 'B'}\nis O\nhere O\n" for n in range(count)]


def questions(count: int = 150, article: str = "a") -> Rows:
    return [
        {"context": f"{article} number {n} is a tower of {n} metres", "question": f"How high is {n}?", "answer": f"{n} metres",
         "start": len(f"{article} number {n} is a tower of "), "title": f"{article}{n // 3}"}
        for n in range(count)
    ]  # fmt: skip


def line_of(row: Any) -> bytes:
    """Line of a file: bytes and texts are unchanged, a tuple is joined by tabs, other values are JSON."""
    if isinstance(row, bytes):
        return row
    return (row if isinstance(row, str) else "\t".join(row) if isinstance(row, tuple) else json.dumps(row)).encode()


def document_line(row: Any) -> bytes:
    return line_of({"text": row} if isinstance(row, str) else row)


KINDS: dict[str, tuple[Callable[..., Rows], str, str, Callable[[Any], bytes]]] = {
    "translate": (pairs, "translate", ".tsv", line_of), "embed": (positive, "embed", ".tsv", line_of),
    "lm": (story, "lm", ".txt", line_of), "documents": (story, "lm", ".jsonl", document_line),
    "classify": (texts, "classify", ".tsv", line_of), "choose": (choices, "choose", ".jsonl", line_of),
    "tag": (sentences, "tag", ".conll", line_of), "qa": (questions, "qa", ".jsonl", line_of),
}  # fmt: skip
"""Clean rows, task, file extension and line of a row."""


def save(kind: str, rows: Rows, name: str = "a") -> str:
    _, _, suffix, line = KINDS[kind]
    return write(f"{name}{suffix}", b"".join(line(row) + b"\n" for row in rows))


def checked(kind: str, rows: Rows, held: Rows | None = None, **options: Any) -> Report:
    path, valid = save(kind, rows), save(kind, held, "v") if held else ()
    if kind == "embed":
        options["settings"] = ["data.max_length=20"]
    return check(KINDS[kind][1], path, valid=valid, **options)


def assert_findings(report: Report, expected: Expected, path: str) -> None:
    assert found(report) == {name: values[:2] for name, values in expected.items()}, report
    for finding in report.findings:
        for location in finding.locations[:1]:
            assert location.path == path and location.line
            if len(place := expected.get(finding.id, ())[2:]):
                assert location.line == place[0] and place[1] in location.text


def by_id(report: Report) -> dict[str, Finding]:
    return {("validation " if f.message.startswith("validation") else "") + f.id: f for f in report.findings}


def only(report: Report, *ids: str) -> Finding:
    """First finding, if exactly these ids were found."""
    assert set(by_id(report)) == set(ids), report
    return by_id(report)[ids[0]]


def places(finding: Finding) -> list[tuple[str, int | None]]:
    return [(location.path, location.line) for location in finding.locations]


# -- clean data


STORY = "".join(f"{line}\n" for line in story())
CLEAN: list[tuple[str, dict[str, int], dict[str, dict[str, int]], str]] = [
    ("translate", {"pairs": 1500, "files": 1}, {}, "translate: pairs 1,500, files 1|source words|No problems found."),
    ("embed", {"pairs": 1200, "files": 1}, {}, "No problems found."),
    ("classify", {"texts": 200, "files": 1, "classes": 2}, {"classes": {"0": 100, "1": 100}},
     "classes (0: 100, 1: 100)|text words|50.0 %|Found no errors, 1 note."),
    ("choose", {"questions": 120, "files": 1}, {"correct_choice_positions": {"0": 40, "1": 40, "2": 40}},
     "context words|longest choice words|correct choice positions"),
    ("tag", {"sentences": 200, "files": 1, "words": 800, "entities": 200},
     {"entities_by_type": {"A": 100, "B": 100}, "words_by_tag": {"B-A": 100, "B-B": 100, "I-A": 100, "I-B": 100, "O": 400}},
     "tags use the IOB2 scheme|entity types (B: 100, A: 100)|words tagged O (outside of entities): 400 (50.0 %)"),
    ("qa", {"questions": 150, "contexts": 150, "articles": 50, "files": 1}, {}, "context words|No problems found."),
    ("lm", {"documents": 1, "files": 1, "lines": 4000, "words": len(STORY.split()), "characters": len(STORY),
            "unique_characters": len(set(STORY)), "bytes": len(STORY)}, {}, "document words|No problems found."),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "counts", "classes", "parts"), CLEAN, ids=[case[0] for case in CLEAN])
def test_clean_data_has_only_statistics(kind: str, counts: Any, classes: Any, parts: str, folder: Path) -> None:
    report = checked(kind, KINDS[kind][0](), out="x.svg")
    assert found(report) == {} and report.counts == counts
    assert {counted.name: counted.train for counted in report.class_counts or ()} == classes
    assert all(part in str(report) for part in ["chart: x.svg", *parts.split("|")])
    assert report.figures == (("x.svg", "x-classes.svg") if classes else ("x.svg",))
    drawn = Path("x.svg").read_text()
    assert "Sequence lengths: " in drawn and ("data.max_length" in drawn) == (kind != "lm")


def test_variants_of_clean_data_have_only_statistics(folder: Path) -> None:
    compressed = check("translate", write("a b.tsv.gz", b"".join(line_of(row) + b"\n" for row in pairs())))
    assert not compressed.findings and regard.check is check
    swapped = [(b, a) if n % 2 else (a, b) for n, (a, b) in enumerate(positive()[1:])]
    assert kinds(checked("embed", [positive()[0], *swapped])) == {}  # one language or two
    rows = [("text", "pair", "label"), *((a, "and the other", b) for a, b in texts()[1:])]
    report = checked("classify", rows)
    assert report.lengths.names == ("text", "pair") and kinds(report) == {"classes": ("note", 2)}
    text = f"{STORY}\nEnde, schön.\n"
    report = check("lm", write("a b.txt.gz", text))
    assert not report.findings and report.counts["lines"] == 4001 and report.counts["bytes"] == len(text) + 1


# -- deliberate errors


def more(*rows: Any) -> Callable[[Rows], Rows]:
    return lambda clean: [*clean, *rows]


def put(changes: dict[int, Any]) -> Callable[[Rows], Rows]:
    return lambda clean: [changes.get(n, row) for n, row in enumerate(clean)]


def unanswered(count: int) -> Callable[[Rows], Rows]:
    return lambda rows: [{**row, "answer": ""} for row in rows[:count]] + rows[count:]


def copies(rows: Rows, count: int) -> Rows:
    return [(f"{a} {n}", f"{a} {n}") for n, (a, _) in enumerate(rows[:count])]


def joined(count: int, side: int = 0) -> str:
    return " ".join(pair[side] for pair in pairs()[:count])


ONCE, NOTE, ERROR = ("warning", 1), ("note", 1), ("error", 1)
NOTICE = "This file is part of a library that must never be read aloud."
LONG = "\n".join(story(9, 500))
SPOILED: list[tuple[str, str, Callable[[Rows], Rows], Expected]] = [
    ("translate", "empty side", more(("no target", "")), {"empty": (*ONCE, 1501, "no target")}),
    ("translate", "many empty", more(*[("x", "")] * 300), {"empty": ("error", 300, 1501, "x")}),
    ("translate", "header", lambda rows: [("english", "german"), *rows], {"header": (*ERROR, 1, "looks like a header")}),
    ("translate", "few", lambda rows: rows[:100], {"few": ("warning", 100)}),
    ("translate", "none", lambda rows: [("a", ""), ("", "b")], {"empty": ("error", 2), "few": ("error", 0)}),
    ("translate", "one source", lambda rows: [("a", "b"), ("a", "c")], {"few": ("error", 2), "multiple_targets": NOTE}),
    ("translate", "damaged", put({0: ("the girls danced", "die MÃ¤dchen tanzten"), 1: ("the caf\ufffd closed", "es schloss"),
                                  2: ("the bell\x07 rang", "es klang"), 3: ("fish &amp; chips", "Fisch &amp; Chips")}),
     {"mojibake": (*ONCE, 1, "MÃ¤dchen"), "replacement_character": (*ONCE, 2, ""), "control_character": (*ONCE, 3, "\\u0007"),
      "markup": (*NOTE, 4, "&amp;")}),
    ("translate", "twice", lambda rows: [*rows, rows[7], (rows[8][0], "etwas anderes ganz und gar")],
     {"duplicates": (*ONCE, 1501, "(same as line 8)"), "multiple_targets": (*NOTE, 1502, "(also in line 9)")}),
    ("translate", "copy", more(("Adlon 1907",) * 2), {"identical_sides": (*NOTE, 1501, "Adlon")}),
    ("translate", "copies", lambda rows: rows + copies(rows, 50), {"identical_sides": ("warning", 50, 1501, "")}),
    ("translate", "long", lambda rows: [*rows, (joined(80), joined(80, 1)), (joined(9), "ja")],
     {"long": (*ONCE, 1501, "about"), "length_ratio": (*ONCE, 1502, "vs. 1 words")}),
    ("translate", "untranslated", lambda rows: [*rows[:-1], (rows[-1][0], rows[-2][0])], {"same_language": (*ONCE, 1500, "")}),
    ("translate", "few swapped", lambda rows: [(b, a) if n % 100 == 7 else (a, b) for n, (a, b) in enumerate(rows)],
     {"swapped": ("warning", 15, 8, "")}),
    ("translate", "many swapped", lambda rows: [(b, a) if n % 4 == 0 else (a, b) for n, (a, b) in enumerate(rows)],
     {"swapped": ("error", 374, 1, "")}),
    ("translate", "one language", lambda rows: [(a, rows[n - 7][0]) for n, (a, _) in enumerate(rows)],
     {"length_ratio": ("warning", 91), "indistinguishable_languages": ("note", 0)}),
    ("translate", "encoding", put({4: b"girls\tM\xe4dchen", 9: b"zero\tn\0ull"}),
     {"encoding": ("error", 2, 5, "byte 0xe4 at byte offset")}),
    ("translate", "one column", put({1: "one column"}), {"format": (*ERROR, 2, "")}),
    ("embed", "several", lambda rows: [*rows, rows[8], ("the same",) * 2, ("", "no first"), ("long " * 30, "short")],
     {"duplicates": ONCE, "identical_sides": ONCE, "empty": ONCE, "long": ONCE}),
    ("embed", "copies", lambda rows: rows + copies(rows[1:], 200), {"identical_sides": ("error", 200)}),
    ("lm", "encoding", put({10: b"caf\xe9", 3000: b"n\0ull"}), {"encoding": ("error", 2, 11, "byte 0xe9 at byte offset")}),
    ("lm", "damaged", put({100: "fÃ¼r", 1000: "caf\ufffd", 2000: "a\x07b", 3000: "fish &amp; chips"}),
     {"mojibake": (*ONCE, 101, ""), "replacement_character": (*ONCE, 1001, ""), "control_character": (*ONCE, 2001, ""),
      "markup": (*NOTE, 3001, "")}),
    ("lm", "mojibake", more(*["Ã¤Ã¶"] * 1000), {"mojibake": ("error", 1000)}),
    ("lm", "nothing", lambda rows: [" "], {"empty": ERROR, "few": ("error", 0)}),
    ("lm", "one passage", lambda rows: ["A short text."], {"few": ("error", 14)}),
    ("lm", "few", lambda rows: rows[:500], {"few": ("warning", 35734)}),
    *(("lm", f"{size} letters", lambda rows, size=size: [*rows, "x" * size, *story(2)], {"no_whitespace": ONCE})
      for size in (100_001, 300_000)),
    ("lm", "long words", more("x" * 99_000, "y" * 99_000), {}),
    ("lm", "a repeated line", more(*[NOTICE] * 20), {}),
    ("lm", "repeated lines", more(*[NOTICE, NOTICE.upper()] * 100),
     {"duplicate_lines": ("note", 199, 4002, "(same as line 4001)")}),
    ("lm", "repeated text", lambda rows: rows + rows[:1000], {"duplicate_lines": ("warning", 1000)}),
    ("lm", "lines without letters", more(*["- " * 40] * 900), {}),
    ("documents", "empty", more(" \n", "end"), {"empty": (*ONCE, 4001, "")}),
    ("documents", "many empty", more(*[""] * 500, "end"), {"empty": ("error", 500)}),
    ("documents", "broken", put({1: b"{", 4: {"id": 5}}), {"format": ("error", 2, 2, "")}),
    ("documents", "line of a row", more("one\ntwo\x07"), {"control_character": (*ONCE, 4001, "")}),
    ("documents", "twice", lambda rows: [*rows, LONG, rows[7], LONG],
     {"duplicates": ("warning", 2, 4002, "(same as line 8)"), "duplicate_lines": ("note", 501)}),
    ("classify", "several", lambda rows: [*rows, rows[4], rows[5], (rows[6][0], "0"), ("a text", ""), ("schÃ¶n und gut", "1"),
                                          ("lost � here", "0"), ("a &amp; b", "1"), ("a\x07b", "0"), ("so so", "middling"),
                                          ("fine " * 300, "1"), ("one", "two", "three")],
     {"duplicates": ("warning", 2, 202, "(same as line 5)"), "conflicting_labels": (*ONCE, 204, "→ 0  (also in line 7)"),
      "empty": ONCE, "mojibake": ONCE, "replacement_character": ONCE, "markup": NOTE, "control_character": ONCE, "rare": ONCE,
      "long": ONCE, "format": (*ERROR, 212, "")}),
    ("classify", "many others", lambda rows: [*rows, *((text, "2") for text, _ in rows[1:61])],
     {"conflicting_labels": ("error", 60)}),
    ("classify", "no text", more(*[("", "1")] * 40), {"empty": ("error", 40)}),
    ("classify", "one class", lambda rows: [rows[0], *((text, "x") for text, _ in rows[1:])], {"single_class": ERROR}),
    ("classify", "uneven", lambda rows: [rows[0], *((text, "0") for text, _ in rows[11:]), *rows[1:11]],
     {"imbalance": ("warning", 195)}),
    ("classify", "texts as labels", lambda rows: [rows[0], *((text, f"{text} indeed") for text, _ in rows[1:])],
     {"too_many_classes": ("error", 200)}),
    ("classify", "few", lambda rows: rows[:21], {"few": ("warning", 20)}),
    ("choose", "several", lambda rows: [*rows, {**rows[0], "label": 7}, rows[1], {**rows[2], "label": 0}],
     {"format": (*ERROR, 121, "label must be between 0 and 2, got 7"), "duplicates": ONCE, "conflicting_labels": ONCE}),
    ("choose", "one position", lambda rows: [{**row, "label": 0} for row in rows], {"imbalance": ("warning", 120)}),
    ("tag", "several", lambda rows: [*rows, rows[3], rows[5].replace("-A", "-B"), "some O\nother I-A\n", "Rome B-C\n",
                                     "schÃ¶n O\n", "fine O\n" * 300, "a O\nb\n"],
     {"duplicates": ONCE, "conflicting_labels": ONCE, "rare": ONCE, "mojibake": ONCE, "long": ONCE, "format": ERROR,
      "invalid_tags": (*ONCE, 1011, "some other/I-A  ('other' is tagged I-A, expected B-A)")}),
    ("tag", "two schemes", more(*(f"x{n} O\ny I-A\n" for n in range(60))),
     {"invalid_tags": ("error", 60), "tag_scheme": ("warning", 0)}),
    ("tag", "no entity", lambda rows: [f"x{n} O\n" for n in range(200)],
     {"no_entities": ("error", 0), "tag_scheme": ("warning", 0)}),
    ("tag", "hardly any", lambda rows: [*rows[:100], *(f"{n} O\n" * 400 for n in range(60))],
     {"imbalance": ("warning", 200), "long": ("warning", 60)}),
    ("tag", "one type", lambda rows: [*(row.replace("-B", "-A") for row in rows), *(f"x{n} B-C\n" for n in range(9))],
     {"imbalance": ("warning", 200)}),
    ("tag", "few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("tag", "plain", lambda rows: [f"the DT\nword NN\n{n} CD\n" for n in range(100)], {}),
    ("tag", "plain and rare", lambda rows: [*(f"the DT\nword NN\n{n} CD\n" for n in range(100)), "x FW\n"], {"rare": ONCE}),
    ("tag", "one plain tag", lambda rows: [f"a{n} NN\n" for n in range(100)], {"single_class": ("error", 0)}),
    ("tag", "many plain tags", lambda rows: [f"a{n} t{n}\n" for n in range(100)], {"too_many_classes": ("error", 100)}),
    ("tag", "uneven plain tags", lambda rows: [*(f"a{n} NN\n" for n in range(200)), *(f"b{n} DT\n" for n in range(6))],
     {"imbalance": ("warning", 200)}),
    ("qa", "several", lambda rows: [{**rows[0], "start": 1}, *rows[1:], *({**rows[3], **values} for values in (
        {}, {"answer": "7 feet"}, {"answer": "tower", "start": ""}, {"question": ""}, {"answer": 3},
        {"context": rows[3]["context"] + " x" * 300}, {"context": "x " * 40, "answer": "x " * 39, "start": 0},
        {"question": "Wie schÃ¶n?"}))],
     {"answer_not_in_context": ERROR, "wrong_answer_offsets": ONCE, "duplicates": ONCE, "conflicting_labels": ONCE,
      "empty": ONCE, "format": ERROR, "long": NOTE, "long_answer": ONCE, "mojibake": ONCE}),
    ("qa", "many moved", lambda rows: [{**row, "start": 1} for row in rows], {"wrong_answer_offsets": ("error", 150)}),
    ("qa", "some unanswered", unanswered(50), {"unanswerable": ("note", 50)}),
    ("qa", "few unanswered", unanswered(3), {"unanswerable": ("note", 3), "imbalance": ("warning", 147)}),
    ("qa", "most unanswered", unanswered(145), {"unanswerable": ("note", 145), "imbalance": ("warning", 145)}),
    ("qa", "all unanswered", unanswered(150), {"unanswerable": ("note", 150), "no_answers": ("error", 0)}),
    ("qa", "few", lambda rows: rows[:20], {"few": ("warning", 20)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "spoil", "expected"), [(c[0], *c[2:]) for c in SPOILED], ids=[f"{c[0]}-{c[1]}" for c in SPOILED]
)
def test_deliberate_errors_are_found_and_nothing_else(kind: str, spoil: Any, expected: Expected, folder: Path) -> None:
    clean, _, suffix, _ = KINDS[kind]
    assert_findings(checked(kind, spoil(clean())), expected, f"a{suffix}")


NEAR = "\n".join(story(9, 300)).upper().replace(" ", "  ").replace(".", " !")
LEAKS: list[tuple[str, Callable[[Rows], Rows], Callable[[Rows], Rows], Expected]] = [
    ("translate", lambda rows: rows[:1200],
     lambda rows: [*rows[1200:], rows[0], (rows[1][0], rows[2][1]), (rows[2][0].upper() + "!!", rows[2][1])],
     {"leak": (*ERROR, 301, "in training data: a.tsv:1"), "leak_source": (*ONCE, 302, "in training data: a.tsv:2"),
      "leak_near_duplicate": (*ONCE, 303, "in training data: a.tsv:3")}),
    ("translate", lambda rows: rows[:1200], lambda rows: [(b, a) if n == 7 else (a, b) for n, (a, b) in enumerate(rows[1200:])],
     {"swapped": (*ONCE, 8, "")}),
    ("embed", list, lambda rows: [rows[0], rows[4], ("Question number 5!", "x"), (rows[5][0], "y"), ("new", "z")],
     {"leak": (*ERROR, 2, ""), "leak_anchor": ONCE, "leak_near_duplicate": ONCE}),
    ("lm", list, lambda rows: story(2, 1000), {}),
    *(("lm", list, lambda rows, first=first, last=last: [*story(2, 1000), *rows[first:last]],
       {"leak_lines": (severity, last - first, 1001, f"in training data: a.txt:{first + 1}")})
      for first, last, severity in ((5, 6, "note"), (77, 100, "warning"), (77, 400, "error"))),
    ("lm", list, lambda rows: [*story(2, 1000), *(line.upper() for line in rows[:500])], {"leak_lines": ("error", 500)}),
    ("documents", lambda rows: [*rows, "\n".join(story(9, 300))], lambda rows: [*story(2, 400), rows[3], NEAR],
     {"leak": (*ERROR, 401, "in training data: a.jsonl:4"),
      "leak_near_duplicate": (*ONCE, 402, "in training data: a.jsonl:4001"), "leak_lines": ("error", 301)}),
    ("classify", list, lambda rows: [rows[0], rows[1], (rows[2][0], "0"), (rows[3][0].upper() + "!", "0"), ("else", "2"),
                                     ("more", "1")],
     {"leak": ERROR, "leak_conflicting_labels": ONCE, "leak_near_duplicate": ONCE, "unseen_classes": ERROR,
      "rare": ("warning", 3)}),
    ("tag", list, lambda rows: [rows[0], rows[1].replace("-A", "-B"), rows[2].replace("is", "IS"), "Rome B-C\n",
                                *(f"fresh{n} B-{'A' if n % 2 else 'B'}\n" for n in range(40))],
     {"leak": ONCE, "leak_conflicting_labels": ONCE, "leak_near_duplicate": ONCE, "unseen_classes": ERROR}),
    ("tag", list, lambda rows: rows[:50], {"leak": ("error", 50)}),
    ("qa", list, lambda rows: [*questions(10, "b"), rows[0], {**rows[1], "answer": "tower", "start": ""},
                               {**rows[2], "question": "Is it?"}, {**questions(1, "c")[0], "title": "a7"}],
     {"leak": ERROR, "leak_question": ERROR, "leak_context": ONCE, "leak_article": NOTE}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "train", "held", "expected"), LEAKS)
def test_leaks_and_unseen_classes(kind: str, train: Any, held: Any, expected: Expected, folder: Path) -> None:
    clean, _, suffix, _ = KINDS[kind]
    report = checked(kind, train(clean()), held(clean()))
    assert_findings(report, expected, f"v{suffix}")
    assert any(name.startswith("validation_") for name in report.counts)
    assert all(finding.message.startswith("validation: ") for finding in report.findings if finding.id in expected)
    if kind == "tag" and "unseen_classes" in expected:
        assert "validation: entity types absent from the training data (C: 1)" in str(report)


def test_messages_and_fractions_of_single_findings(folder: Path) -> None:
    report = checked("qa", [*questions(), {**questions()[3], "answer": "7 feet"}])
    assert report.findings[0].fraction == 1 / 151  # skipped questions count too
    assert "tags are classes of single words" in str(checked("tag", [f"the DT\nword NN\n{n} CD\n" for n in range(100)]))
    assert "truncated at the end" in str(checked("embed", [*positive(), ("long " * 30, "short")]))
    bad = only(checked("translate", put({4: b"girls\tM\xe4dchen", 9: b"zero\tn\0ull"})(pairs())), "encoding")
    assert bad.fraction == pytest.approx(2 / 1500) and "NUL" in bad.locations[1].text
    assert 0.02 < only(checked("lm", [*story(), *[NOTICE] * 200]), "duplicate_lines").fraction < 0.06
    report = checked("lm", [*story(), "x" * 300_000, *story(2)])
    assert only(report, "no_whitespace").locations[0].line >= 4001
    assert report.counts["characters"] == Path("a.txt").stat().st_size  # also after the section without a space
    assert only(checked("lm", ["A short text."], ["Another."]), "few").severity == "warning"
    report = check("translate", [save("translate", pairs()), save("translate", pairs()[:1], "b")])
    assert "(same as a.tsv:1)" in by_id(report)["duplicates"].locations[-1].text


def test_limits_of_the_length_are_a_setting(folder: Path) -> None:
    path = save("translate", [*pairs(), (joined(80), joined(80, 1)), (joined(9), "ja")])
    report = check("translate", path, settings=["data.max_length=5000"])
    assert list(report.lengths.outliers) == [1501] and only(report, "length_ratio")
    short = by_id(check("translate", path, settings={"data.max_length": 12}))["long"]
    assert short.count > 100 and "estimate" in short.message


# -- files


def test_parallel_files_stay_aligned_and_are_paired_as_far_as_they_go(folder: Path) -> None:
    english = [a.encode() for a, _ in pairs()]
    write("a.de", "".join(f"{b}\n" for _, b in pairs()[:1400]))
    write("b.de", "".join(f"{b}\n" for _, b in pairs()))
    report = check("translate", f"{write('a.en', b''.join(line + bytes([10]) for line in english))}:a.de")
    odd = only(report, "line_count_mismatch")
    assert odd.severity == "error" and report.counts["pairs"] == 1400
    assert places(odd) == [("a.en", 1401)] and "has 1500 lines" in odd.locations[0].text
    english[3] = b"caf\xe9"
    report = check("translate", f"{write('a.en.gz', bytes([10]).join(english))}:b.de")
    assert only(report, "encoding").locations[0].path == "a.en.gz" and len(report.lengths.words) == 1499


def test_rows_after_a_broken_row_of_csv_are_counted(folder: Path) -> None:
    quoted = [f'"{a}","{b}"' for a, b in pairs()]
    quoted[3] = 'a,"b"c'
    report = check("translate", write("a.csv", "\n".join(quoted)))
    assert places(only(report, "format")) == [("a.csv", 4)] and report.counts["pairs"] == 1499


def test_a_file_that_cannot_be_read_is_a_finding_and_the_others_are_read(folder: Path) -> None:
    whole = gzip.compress(b"".join(line_of(row) + b"\n" for row in pairs()))
    files = [save("translate", pairs()), write("b.tsv", whole[: len(whole) // 2]), write("c.tsv", b"")]
    bad = by_id(check("translate", files))["unreadable"]
    assert bad.severity == "error" and bad.count == 2
    assert "damaged gzip" in bad.locations[0].text and bad.locations[1].text == "the file is empty."
    write("b.txt", whole[: len(whole) // 2])
    assert only(check("lm", [save("lm", story()), "b.txt"]), "unreadable").severity == "error"
    assert only(check("lm", ["a.txt", write("d.txt", "")]), "empty").locations[0].path == "d.txt"
    write("a.tsv.gz", b"")
    Path("a.tsv.gz").write_bytes(b"\x1f\x8b broken")
    assert {name: kind[0] for name, kind in kinds(check("classify", "a.tsv.gz")).items()} == {
        "unreadable": "error", "few": "error",
    }  # fmt: skip


def test_folders_and_columns_are_read_as_training_reads_them(folder: Path) -> None:
    Path("set/deep").mkdir(parents=True)
    for name, lines in (("a.txt", story()), ("deep/b.md", story(2)), ("c.bin", ["x"])):
        write(f"set/{name}", "".join(f"{line}\n" for line in lines))
    report = check("lm", "set")
    assert not report.findings and (report.counts["documents"], report.counts["files"]) == (2, 2)
    write("set/deep/b.md", Path("set/a.txt").read_bytes())
    assert "(same as set/a.txt:1)" in by_id(check("lm", "set"))["duplicates"].locations[0].text
    jsonl("c.jsonl", *({"body": line} for line in story(3)))
    assert check("lm", "c.jsonl", columns={"text": "body"}).counts["documents"] == 4000
    for path, column, error, part in (
        ("c.jsonl", "bdy", UnknownNameError, "'body'"), ("set/a.txt", "body", DataError, "columns"),
        ("d.jsonl", "", DataError, r"'c\.jsonl'"),
    ):  # fmt: skip
        with pytest.raises(error, match=part):
            check("lm", path, columns={"text": column} if column else None)


TWICE_ENCODED = ("fÃ¼r", "gehtâ€™s", "Â©", "l'Ãªtre", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Å“uvre")
CORRECT = ("für", "São", "NÃO", "déjà\u00a0» oui", "„Ä“", "Größe", "Привет", "naïve €5", "你好")


@pytest.mark.parametrize("text", TWICE_ENCODED + CORRECT)
def test_only_twice_encoded_text_is_damaged(text: str) -> None:
    assert [kind for kind, _ in find_quality_issues(text)] == ["mojibake"] * (text in TWICE_ENCODED)


# -- languages


@pytest.mark.parametrize("order", ["abc", "bac", "acb"])
def test_a_file_with_swapped_sides_is_named_wherever_it_is(folder: Path, order: str) -> None:
    turned = [(b, a) for a, b in pairs()]
    for name, rows in (("a", pairs()[:500]), ("b", turned[500:1000]), ("c", pairs()[1000:])):
        save("translate", rows, name)
    swapped = only(check("translate", [f"{name}.tsv" for name in order]), "swapped_file")
    assert swapped.severity == "error" and swapped.count == 500 and places(swapped) == [("b.tsv", None)]
    report = checked("translate", pairs()[:1200], turned[1200:])
    swapped = only(report, "validation swapped_file")
    assert swapped.severity == "error" and "swapped relative to the training data" in swapped.message


def test_the_score_of_a_row_does_not_count_the_row_itself() -> None:
    profile = count_trigrams(["the cat"] * 9 + ["zzyx"], ["die Katze"] * 9 + ["qqwv"])
    ((of_others, of_target),) = source_scores(profile, ["zzyx"], ["qqwv"], leave_one_out=True)
    ((also_own, also_target),) = source_scores(profile, ["zzyx"], ["qqwv"], leave_one_out=False)
    assert also_own - also_target > 1 > abs(of_others - of_target)


# -- guarantees


@pytest.mark.parametrize("kind", ["translate", "lm", "documents"])
def test_errors_of_reading_are_errors_of_the_check(folder: Path, kind: str) -> None:
    """For randomly damaged files: every error of training must be a finding of the check."""
    draw, stopped, count = random.Random(5), 0, 40
    clean, task, suffix, _ = KINDS[kind]
    whole = Path(save(kind, clean()[:250])).read_bytes()
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(draw.randrange(3)):
            content[draw.randrange(len(content))] = draw.choice(b'\t\n\xff\x00\xc3 a"')
        path = write(f"a{suffix}", bytes(content))
        refused = False
        try:
            list((PAIRS.samples if kind == "translate" else iterate_texts)([path]))
        except DataError:
            refused = True
        stopped += refused
        assert bool(check(task, path).errors) == refused
    assert count / 8 < stopped < count


def test_texts_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = PairSurvey([save("translate", pairs())])
    survey.read()
    assert sum(n.itemsize * len(n) for n in survey.numbers.values()) <= 64 * 1500
    assert not [value for value in vars(survey).values() if isinstance(value, list) and len(value) > 10]
    path = save("lm", story(1, 20_000))
    monkeypatch.setattr(documents, "MAX_LINE_HASHES", 2000)
    survey = TextSurvey([path])
    tracemalloc.start()
    survey.read()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert Path(path).stat().st_size > 1.4e6 and kept < 0.3e6


def test_a_sample_of_lines_represents_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE_HASHES", 1000)
    report = checked("lm", story(1, 20_000), [*story(2, 2000), *story(1, 2000)])
    leak = only(report, "validation leak_lines")
    assert "estimated from 1 in 32 lines" in leak.message and leak.count == pytest.approx(2000, rel=0.3)
    assert leak.fraction == pytest.approx(0.5, rel=0.3)


@pytest.mark.parametrize(("task", "path"), [("translate", "pipe.tsv"), ("lm", "pipe.txt")])
def test_a_pipe_is_refused_because_it_is_read_more_than_once(folder: Path, task: str, path: str) -> None:
    os.mkfifo(path)
    with pytest.raises(RegardError, match="pipe"):
        check(task, path)


# -- distributions and charts


def test_unanswerable_questions_are_counted_in_both_splits(folder: Path) -> None:
    report = checked("qa", unanswered(50)(questions()), unanswered(5)(questions(20, "b")))
    assert report.class_counts[0].train == {"answerable": 100, "unanswerable": 50}
    assert report.class_counts[0].valid == {"answerable": 15, "unanswerable": 5}
    assert "questions without an answer: 50 (33.3 %)" in str(report)


def test_distributions_are_drawn_and_printed(folder: Path) -> None:
    report = checked("tag", sentences(), [*sentences(5), "Rome B-C\n"])
    drawn = draw_class_counts(report.class_counts, Path("a.svg")).read_text()
    assert ">Entities by type<" in drawn and ">validation<" in drawn and ">50.0 %<" in drawn
    assert draw_class_counts(report.class_counts[:1], Path("a.png")).stat().st_size > 5_000
    lines = ClassCounts("classes", {"a": 3000, "b": 1}, {"a": 1, "c": 1}).lines()
    assert lines[1].split()[-6:] == ["3,000", "100.0", "%", "1", "50.0", "%"] and "█" * 24 in lines[1]
    assert "▏" in lines[2] and "< 0.05 %" in lines[2] and lines[3].startswith("c ")
    many = ClassCounts("classes", {f"c{n}": 100 - n for n in range(30)}).lines()
    assert len(many) == 22 and many[-1].startswith("… 10 others") and "755" in many[-1]


# -- the command


def test_the_exit_code_reports_errors_and_json_has_the_same_content(cli: Cli) -> None:
    save("translate", pairs()[:750], "a 1"), save("translate", [*pairs()[750:], pairs()[750]], "a 2")
    code, out, err = cli("check", "translate", "--data", "a *.tsv")
    assert code == 0 and err == "" and "warning  duplicate pairs: 1" in out
    assert "a 2.tsv:751" in out and out.endswith("Found no errors, 1 warning.\n")
    code, out, _ = cli("check", "translate", "--data", "a *.tsv", "--valid", "a 1.tsv")
    assert code == 1 and "error    validation: pairs also present in the training data: 750 (100.0 %)" in out
    assert "… and 745 more" in out and out.endswith("Found 1 error, 1 warning.\n")
    save("translate", [*pairs(), ("ü\x07", "ö")])
    code, out, _ = cli("check", "translate", "--data", "a.tsv", "--json")
    values = json.loads(out)
    assert code == 0 and values["counts"] == {"pairs": 1501, "files": 1}
    assert (values["errors"], values["warnings"]) == (0, 1) and values["lengths"]["source_words"]["min"] == 1
    assert values["findings"][0]["id"] == "control_character"
    assert values["findings"][0]["locations"] == [{"path": "a.tsv", "line": 1501, "text": "ü\\u0007"}]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("translte --data a.tsv", "Unknown task 'translte'. Did you mean 'translate'?"),
        ("translate", "No data given. Pass files with --data."),
        ("translate --data a.tsv --set data.longst=5", "data.max_length"),
        ("translate --data a.tsv --set train.steps=5", "only accepts data.* settings, not train.steps."),
        ("translate --data a.tsv --out a.jpg", ".png or .svg"),
    ],
)
def test_invalid_arguments_give_exit_code_2(cli: Cli, words: str, part: str) -> None:
    save("translate", pairs()[:20])
    code, out, err = cli("check", *words.split())
    assert code == 2 and out == "" and err.startswith("regard: ") and part in err
