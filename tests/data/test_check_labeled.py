"""Findings of `regard check classify` and `choose` in rows with deliberate errors, without false findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.check.report import Report
from regard.runs.check import check

Rows = list[tuple[str, ...]]


def clean(count: int = 200) -> Rows:
    return [
        (f"the film number {number} was {'fine' if number % 2 else 'dull'}", str(number % 2)) for number in range(count)
    ]


def table(folder: Path, samples: Rows, name: str = "a.tsv", header: str = "sentence\tlabel") -> str:
    (folder / name).write_text("\n".join([header, *("\t".join(sample) for sample in samples)]) + "\n")
    return str(folder / name)


def kinds(report: Report) -> dict[str, tuple[str, int]]:
    return {found.id: (found.severity, found.count) for found in report.findings}


def test_clean_rows_have_only_class_statistics(tmp_path: Path) -> None:
    report = check("classify", table(tmp_path, clean()), out=tmp_path)
    assert kinds(report) == {"classes": ("note", 2)} and report.counts["classes"] == 2
    assert "classes (0: 100, 1: 100)" in str(report) and (tmp_path / "lengths.png").stat().st_size > 10_000
    assert report.lengths.names == ("text",) and report.as_dict()["errors"] == 0


SPOILT: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    ("twice", lambda rows: [*rows, rows[3], rows[4]], {"duplicates": ("warning", 2)}),
    ("another label", lambda rows: [*rows, (rows[3][0], "0")], {"conflicting_labels": ("warning", 1)}),
    ("many others", lambda rows: [*rows, *((text, "2") for text, _ in rows[:60])], {"conflicting_labels": ("error", 60)}),
    ("no label", lambda rows: [*rows, ("a text", "")], {"empty": ("warning", 1)}),
    ("no text", lambda rows: [*rows, *[("", "1")] * 40], {"empty": ("error", 40)}),
    ("mojibake", lambda rows: [*rows, ("schÃ¶n und gut", "1")], {"mojibake": ("warning", 1)}),
    ("lost", lambda rows: [*rows, ("lost � here", "0")], {"replacement_character": ("warning", 1)}),
    (
        "markup", lambda rows: [*rows, ("a &amp; b", "1"), ("a\x07b", "0")],
        {"markup": ("note", 1), "control_character": ("warning", 1)},
    ),
    ("one class", lambda rows: [(text, "x") for text, _ in rows], {"single_class": ("error", 1)}),
    ("rare", lambda rows: [*rows, ("so so", "middling")], {"rare": ("warning", 1)}),
    ("uneven", lambda rows: [*((text, "0") for text, _ in rows[10:]), *rows[:10]], {"imbalance": ("warning", 195)}),
    ("texts as labels", lambda rows: [(text, f"{text} indeed") for text, _ in rows], {"too_many_classes": ("error", 200)}),
    ("few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("long", lambda rows: [*rows, ("fine " * 300, "1")], {"long": ("warning", 1)}),
    ("columns", lambda rows: [*rows, ("one", "two", "three")], {"format": ("error", 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "found"), [case[1:] for case in SPOILT], ids=[case[0] for case in SPOILT])
def test_deliberate_errors_are_found_and_nothing_else(
    spoil: Any, found: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    report = check("classify", table(tmp_path, spoil(clean())))
    said = {kind: what for kind, what in kinds(report).items() if kind != "classes"}
    assert said == found
    for finding in report.findings:
        if finding.locations:
            assert finding.locations[0].path == str(tmp_path / "a.tsv") and finding.locations[0].line


def test_findings_name_the_first_and_the_other_line(tmp_path: Path) -> None:
    rows = clean()
    report = check("classify", table(tmp_path, [*rows, (rows[3][0], "0")]))
    place = next(finding for finding in report.findings if finding.id == "conflicting_labels").locations[0]
    assert place.line == 202 and "also in line 5" in place.text and "→ 0" in place.text


def test_leaks_and_unknown_classes_of_the_validation_set(tmp_path: Path) -> None:
    rows = clean()
    held = [rows[0], (rows[1][0], "0"), (rows[2][0].upper() + "!", "0"), ("something else", "2"), ("and more", "1")]
    report = check("classify", table(tmp_path, rows), valid=table(tmp_path, held, "b.tsv"))
    found = kinds(report)
    assert (
        found["leak"] == ("error", 1)
        and found["leak_conflicting_labels"] == ("warning", 1)
        and found["leak_near_duplicate"] == ("warning", 1)
    )
    assert found["unseen_classes"] == ("error", 1) and report.counts["validation_texts"] == 5


def test_pairs_have_two_lengths(tmp_path: Path) -> None:
    path = table(tmp_path, [(a, "and the other", b) for a, b in clean()], header="text\tpair\tlabel")
    report = check("classify", path, out=tmp_path / "x.png")
    assert report.lengths.names == ("text", "pair") and kinds(report) == {"classes": ("note", 2)}


def questions(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "a.jsonl")


def some(count: int = 120) -> list[dict[str, Any]]:
    return [
        {"context": f"case {n}", "choices": [f"answer {n}", "another", "a third"], "label": n % 3} for n in range(count)
    ]


def test_questions_are_checked_for_invalid_rows_and_for_one_position(tmp_path: Path) -> None:
    rows = some()
    report = check("choose", questions(tmp_path, rows), out=tmp_path / "x.svg")
    assert set(report.as_dict()["class_counts"]) == {"correct_choice_positions"}
    assert {"context_words", "longest_choice_words"} <= report.as_dict()["lengths"].keys()
    assert "longest choice tokens (estimated)" in (tmp_path / "x.svg").read_text()
    assert kinds(report) == {"correct_choice_positions": ("note", 3)} and "correct choice positions" in str(report)
    report = check("choose", questions(tmp_path, [*rows, {**rows[0], "label": 7}, rows[1], {**rows[2], "label": 0}]))
    assert kinds(report) == {
        "format": ("error", 1), "correct_choice_positions": ("note", 3), "duplicates": ("warning", 1),
        "conflicting_labels": ("warning", 1),
    }  # fmt: skip
    assert "label must be between 0 and 2, got 7" in str(report)
    always = [{**row, "label": 0} for row in rows]
    assert kinds(check("choose", questions(tmp_path, always)))["imbalance"] == ("warning", 120)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").write_bytes(b"\x1f\x8b broken")
    report = check("classify", str(tmp_path / "a.tsv.gz"))
    assert kinds(report)["unreadable"][0] == "error" and kinds(report)["few"][0] == "error"
