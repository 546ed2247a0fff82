"""Findings of `regard check classify`, `choose`, `tag` and `qa` in rows with deliberate errors, without false findings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_files import kinds, write
from regard.data.check.report import ClassCounts, Report
from regard.draw.charts import draw_class_counts, draw_lengths
from regard.runs.check import check

SHARED = Path(__file__).parents[3] / "shared/data"
Rows = list[Any]
Expected = dict[str, tuple[str, int]]


def texts(count: int = 200) -> Rows:
    return [(f"the film number {n} was {'fine' if n % 2 else 'dull'}", str(n % 2)) for n in range(count)]


def choices(count: int = 120) -> Rows:
    return [
        {"context": f"case {n}", "choices": [f"answer {n}", "another", "a third"], "label": n % 3} for n in range(count)
    ]


def sentences(count: int = 200) -> Rows:
    return [f"number B-{'A' if n % 2 else 'B'}\n{n} I-{'A' if n % 2 else 'B'}\nis O\nhere O\n" for n in range(count)]


def questions(count: int = 150, article: str = "a") -> Rows:
    return [
        {"context": f"{article} number {n} is a tower of {n} metres", "question": f"How high is {n}?", "answer": f"{n} metres",
         "start": len(f"{article} number {n} is a tower of "), "title": f"{article}{n // 3}"}
        for n in range(count)
    ]  # fmt: skip


def json_lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


CLEAN: dict[str, Callable[..., Rows]] = {"classify": texts, "choose": choices, "tag": sentences, "qa": questions}
FILES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "classify": (".tsv", lambda rows: "\n".join(["sentence\tlabel", *map("\t".join, rows), ""])),
    "choose": (".jsonl", json_lines),
    "tag": (".conll", lambda rows: "\n".join(rows)),
    "qa": (".jsonl", json_lines),
}


def checked(task: str, rows: Rows, held: Rows | None = None, **options: Any) -> Report:
    suffix, text = FILES[task]
    valid = write(f"b{suffix}", text(held)) if held else ()
    return check(task, write(f"a{suffix}", text(rows)), valid=valid, **options)


def findings(report: Report) -> Expected:
    """Findings except statistics of classes."""
    statistics = ("classes", "correct_choice_positions", "outside_words", "tag_scheme")
    return {name: value for name, value in kinds(report).items() if name not in statistics or value[0] != "note"}


# -- clean data


def test_clean_texts_have_only_class_statistics(folder: Path) -> None:
    report = checked("classify", texts(), out=folder)
    assert kinds(report) == {"classes": ("note", 2)} and report.counts["classes"] == 2
    assert "classes (0: 100, 1: 100)" in str(report) and (folder / "lengths.png").stat().st_size > 10_000
    assert report.lengths.names == ("text",) and report.as_dict()["errors"] == 0
    assert report.class_counts == (ClassCounts("classes", {"0": 100, "1": 100}),)
    assert "50.0 %" in str(report) and str(report).endswith("Found no errors, 1 note.")
    pairs = [(a, "and the other", b) for a, b in texts()]
    write("b.tsv", "\n".join(["text\tpair\tlabel", *map("\t".join, pairs), ""]))
    report = check("classify", "b.tsv", out="x.png")
    assert report.lengths.names == ("text", "pair") and kinds(report) == {"classes": ("note", 2)}


def test_clean_choices_have_only_positions(folder: Path) -> None:
    report = checked("choose", choices(), out="x.svg")
    assert report.as_dict()["class_counts"].keys() == {"correct_choice_positions"}
    assert report.class_counts[0].train == {"0": 40, "1": 40, "2": 40}
    assert {"context_words", "longest_choice_words"} <= report.as_dict()["lengths"].keys()
    assert "longest choice tokens (estimated)" in Path("x.svg").read_text()
    assert kinds(report) == {"correct_choice_positions": ("note", 3)} and "correct choice positions" in str(report)


def test_clean_sentences_have_only_tag_statistics(folder: Path) -> None:
    report = checked("tag", sentences())
    assert findings(report) == {} and report.counts["entities"] == 200
    text, outside = str(report), "words tagged O (outside of entities): 400 (50.0 %)"
    for part in ("tags use the IOB2 scheme", "entity types (B: 100, A: 100)", outside):
        assert part in text
    assert text.index("sentence words") < text.index("entities by type") < text.index("Found no errors")
    assert report.lengths.words.tolist() == [[4]] * 200 and report.lengths.names == ("sentence",)
    assert report.as_dict()["class_counts"]["entities_by_type"]["training"] == {"A": 100, "B": 100}


def test_clean_questions_have_no_findings(folder: Path) -> None:
    report = checked("qa", questions())
    assert kinds(report) == {} and report.class_counts == ()
    assert report.counts == {"questions": 150, "contexts": 150, "articles": 50, "files": 1}
    assert "context words" in str(report) and "No problems found." in str(report)


# -- deliberate errors


def unanswered(rows: Rows, count: int) -> Rows:
    return [{**row, "answer": ""} for row in rows[:count]] + rows[count:]


def more(*rows: Any) -> Callable[[Rows], Rows]:
    return lambda clean: [*clean, *rows]


def changed(index: int = 3, **values: Any) -> Callable[[Rows], Rows]:
    return lambda clean: [*clean, {**clean[index], **values}]


WARNING, ERROR = ("warning", 1), ("error", 1)
TOO_LONG = " x" * 300
SPOILED: list[tuple[str, str, Callable[[Rows], Rows], Expected]] = [
    ("classify", "twice", lambda rows: [*rows, rows[3], rows[4]], {"duplicates": ("warning", 2)}),
    ("classify", "another label", lambda rows: [*rows, (rows[3][0], "0")], {"conflicting_labels": WARNING}),
    ("classify", "many others", lambda rows: [*rows, *((text, "2") for text, _ in rows[:60])],
     {"conflicting_labels": ("error", 60)}),
    ("classify", "no label", more(("a text", "")), {"empty": WARNING}),
    ("classify", "no text", more(*[("", "1")] * 40), {"empty": ("error", 40)}),
    ("classify", "mojibake", more(("schÃ¶n und gut", "1")), {"mojibake": WARNING}),
    ("classify", "lost", more(("lost � here", "0")), {"replacement_character": WARNING}),
    ("classify", "markup", more(("a &amp; b", "1"), ("a\x07b", "0")), {"markup": ("note", 1), "control_character": WARNING}),
    ("classify", "one class", lambda rows: [(text, "x") for text, _ in rows], {"single_class": ERROR}),
    ("classify", "rare", more(("so so", "middling")), {"rare": WARNING}),
    ("classify", "uneven", lambda rows: [*((text, "0") for text, _ in rows[10:]), *rows[:10]], {"imbalance": ("warning", 195)}),
    ("classify", "texts as labels", lambda rows: [(text, f"{text} indeed") for text, _ in rows],
     {"too_many_classes": ("error", 200)}),
    ("classify", "few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("classify", "long", more(("fine " * 300, "1")), {"long": WARNING}),
    ("classify", "columns", more(("one", "two", "three")), {"format": ERROR}),
    ("choose", "several", lambda rows: [*rows, {**rows[0], "label": 7}, rows[1], {**rows[2], "label": 0}],
     {"format": ERROR, "duplicates": WARNING, "conflicting_labels": WARNING}),
    ("choose", "one position", lambda rows: [{**row, "label": 0} for row in rows], {"imbalance": ("warning", 120)}),
    ("tag", "twice", lambda rows: [*rows, rows[3]], {"duplicates": WARNING}),
    ("tag", "other tags", lambda rows: [*rows, rows[3].replace("-A", "-B")], {"conflicting_labels": WARNING}),
    ("tag", "I after O", more("some O\nother I-A\n"), {"invalid_tags": WARNING}),
    ("tag", "two schemes", more(*(f"x{n} O\ny I-A\n" for n in range(60))),
     {"invalid_tags": ("error", 60), "tag_scheme": ("warning", 0)}),
    ("tag", "rare", more("Rome B-C\n"), {"rare": WARNING}),
    ("tag", "no entity", lambda rows: [f"x{n} O\n" for n in range(200)],
     {"no_entities": ("error", 0), "tag_scheme": ("warning", 0)}),
    ("tag", "hardly any", lambda rows: [*rows[:100], *(f"{n} O\n" * 400 for n in range(60))],
     {"imbalance": ("warning", 200), "long": ("warning", 60)}),
    ("tag", "one type", lambda rows: [*(row.replace("-B", "-A") for row in rows), *(f"x{n} B-C\n" for n in range(9))],
     {"imbalance": ("warning", 200)}),
    ("tag", "one column", more("a O\nb\n"), {"format": ERROR}),
    ("tag", "mojibake", more("schÃ¶n O\n"), {"mojibake": WARNING}),
    ("tag", "few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("tag", "long", more("fine O\n" * 300), {"long": WARNING}),
    ("tag", "plain", lambda rows: [f"the DT\nword NN\n{n} CD\n" for n in range(100)], {}),
    ("tag", "plain and rare", lambda rows: [*(f"the DT\nword NN\n{n} CD\n" for n in range(100)), "x FW\n"], {"rare": WARNING}),
    ("tag", "one plain tag", lambda rows: [f"a{n} NN\n" for n in range(100)], {"single_class": ("error", 0)}),
    ("tag", "many plain tags", lambda rows: [f"a{n} t{n}\n" for n in range(100)], {"too_many_classes": ("error", 100)}),
    ("tag", "uneven plain tags", lambda rows: [*(f"a{n} NN\n" for n in range(200)), *(f"b{n} DT\n" for n in range(6))],
     {"imbalance": ("warning", 200)}),
    ("qa", "no such answer", changed(answer="7 feet"), {"answer_not_in_context": ERROR}),
    ("qa", "moved", lambda rows: [{**rows[0], "start": 1}, *rows[1:]], {"wrong_answer_offsets": WARNING}),
    ("qa", "many moved", lambda rows: [{**row, "start": 1} for row in rows], {"wrong_answer_offsets": ("error", 150)}),
    ("qa", "some unanswered", lambda rows: unanswered(rows, 50), {"unanswerable": ("note", 50)}),
    ("qa", "few unanswered", lambda rows: unanswered(rows, 3), {"unanswerable": ("note", 3), "imbalance": ("warning", 147)}),
    ("qa", "most unanswered", lambda rows: unanswered(rows, 145),
     {"unanswerable": ("note", 145), "imbalance": ("warning", 145)}),
    ("qa", "all unanswered", lambda rows: unanswered(rows, 150), {"unanswerable": ("note", 150), "no_answers": ("error", 0)}),
    ("qa", "twice", lambda rows: [*rows, rows[3]], {"duplicates": WARNING}),
    ("qa", "other answer", changed(answer="tower", start=""), {"conflicting_labels": WARNING}),
    ("qa", "no question", changed(question=""), {"empty": WARNING}),
    ("qa", "a number", changed(answer=3), {"format": ERROR}),
    ("qa", "long", changed(context=questions()[3]["context"] + TOO_LONG), {"long": ("note", 1)}),
    ("qa", "long answer", changed(context="x " * 40, answer="x " * 39, start=0), {"long_answer": WARNING}),
    ("qa", "few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("qa", "mojibake", changed(question="Wie schÃ¶n?"), {"mojibake": WARNING}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "spoil", "expected"), [(c[0], *c[2:]) for c in SPOILED], ids=[f"{c[0]}-{c[1]}" for c in SPOILED]
)
def test_deliberate_errors_are_found_and_nothing_else(
    task: str, spoil: Callable[[Rows], Rows], expected: Expected, folder: Path
) -> None:
    report = checked(task, spoil(CLEAN[task]()))
    assert findings(report) == expected
    for finding in report.findings:
        for location in finding.locations[:1]:
            assert location.path == f"a{FILES[task][0]}" and location.line


@pytest.mark.parametrize(
    ("task", "held", "expected"),
    [
        ("classify", lambda rows: [rows[0], (rows[1][0], "0"), (rows[2][0].upper() + "!", "0"), ("else", "2"), ("more", "1")],
         {"leak": ERROR, "leak_conflicting_labels": WARNING, "leak_near_duplicate": WARNING, "unseen_classes": ERROR,
          "rare": ("warning", 3)}),
        ("tag", lambda rows: [rows[0], rows[1].replace("-A", "-B"), rows[2].replace("is", "IS"), "Rome B-C\n",
                              *(f"fresh{n} B-{'A' if n % 2 else 'B'}\n" for n in range(40))],
         {"leak": WARNING, "leak_conflicting_labels": WARNING, "leak_near_duplicate": WARNING, "unseen_classes": ERROR}),
        ("tag", lambda rows: rows[:50], {"leak": ("error", 50)}),
        ("qa", lambda rows: [*questions(10, "b"), rows[0], {**rows[1], "answer": "tower", "start": ""},
                             {**rows[2], "question": "Is it?"}, {**questions(1, "c")[0], "title": "a7"}],
         {"leak": ERROR, "leak_question": ERROR, "leak_context": WARNING, "leak_article": ("note", 1)}),
    ],
)  # fmt: skip
def test_leaks_and_unseen_classes_of_the_validation_data(
    task: str, held: Callable[[Rows], Rows], expected: Expected, folder: Path
) -> None:
    rows = CLEAN[task]()
    report = checked(task, rows, held(rows))
    assert findings(report) == expected
    assert any(name.startswith("validation_") for name in report.counts)
    if task == "tag" and "unseen_classes" in expected:
        assert "validation: entity types absent from the training data (C: 1)" in str(report)


def test_locations_name_the_first_and_the_other_line(folder: Path) -> None:
    def location(report: Report, name: str) -> Any:
        return next(finding for finding in report.findings if finding.id == name).locations[0]

    place = location(checked("classify", [*texts(), (texts()[3][0], "0")]), "conflicting_labels")
    assert place.line == 202 and "also in line 5" in place.text and "→ 0" in place.text
    place = location(checked("tag", [*sentences(), "some O\nother I-A\n"]), "invalid_tags")
    assert place.line == 1001 and place.text == "some other/I-A  ('other' is tagged I-A, expected B-A)"
    report = checked("qa", changed(answer="7 feet")(questions()))
    assert report.findings[0].fraction == 1 / 151  # skipped questions count too
    assert "label must be between 0 and 2, got 7" in str(checked("choose", changed(label=7)(choices())))
    assert "tags are classes of single words" in str(checked("tag", [f"the DT\nword NN\n{n} CD\n" for n in range(100)]))


def test_an_unreadable_file_is_reported(folder: Path) -> None:
    Path("a.tsv.gz").write_bytes(b"\x1f\x8b broken")
    report = check("classify", "a.tsv.gz")
    assert kinds(report)["unreadable"][0] == "error" and kinds(report)["few"][0] == "error"


# -- distributions


def test_unanswerable_questions_are_counted_in_both_splits(folder: Path) -> None:
    report = checked("qa", unanswered(questions(), 50), unanswered(questions(20, "b"), 5))
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


# -- published data


@pytest.mark.skipif(not (SHARED / "conll2003").exists(), reason="CoNLL-2003 is not there")
def test_real_sentences() -> None:
    report = check("tag", SHARED / "conll2003/dev.conll.gz")
    assert report.counts == {"sentences": 3250, "files": 1, "words": 51362, "entities": 5942}
    assert report.class_counts[0].train == {"PER": 1842, "LOC": 1837, "ORG": 1341, "MISC": 922}
    assert "tags use the IOB1 scheme\n" in str(report) and not report.errors


@pytest.mark.skipif(not (SHARED / "squad-small").exists(), reason="squad-small is not there")
def test_real_questions(tmp_path: Path) -> None:
    report = check("qa", SHARED / "squad-small/dev.json.gz")
    assert report.counts == {"questions": 2261, "contexts": 485, "articles": 10, "files": 1} and not report.errors
    assert report.lengths.names == ("context", "answer", "question")
    assert draw_lengths(report.lengths, tmp_path / "a.png").stat().st_size > 10_000
