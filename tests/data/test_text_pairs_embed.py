"""Positive pairs of texts: reading and data checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.data.check.pairs import ContrastivePairSurvey
from regard.data.check.report import Report
from regard.data.settings import DataSettings
from regard.data.text.samples import iterate_positive_pairs
from regard.errors import DataError


@pytest.mark.parametrize("names", ["source target", "anchor positive", "Question Answer", "text pair", "a b", "b a"])
def test_columns_have_many_accepted_names(names: str, tmp_path: Path) -> None:
    first, second = names.split()
    rows = [("1", "one text", "its partner"), ("2", "another text", "another partner")]
    turned = {"b": 2, "a": 1}.get(first, 1) == 2
    data = tmp_path / "a.csv"
    data.write_text(f"id,{first},{second}\n" + "".join(",".join(row) + "\n" for row in rows))
    found = list(iterate_positive_pairs([str(data)]))
    assert [(p.source, p.target) for p in found] == [row[:0:-1] if turned else row[1:] for row in rows]
    lines = [json.dumps(dict(zip(["id", first, second], row, strict=True))) for row in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    again = iterate_positive_pairs([str(tmp_path / "a.jsonl")])
    assert [(p.source, p.target) for p in again] == [(p.source, p.target) for p in found]


def test_two_columns_need_no_names_and_others_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one text\tits partner\nanother text\tanother partner\n")
    (tmp_path / "b.tsv").write_text("x\ty\tz\none text\tno\tits partner\n")
    assert [p.target for p in iterate_positive_pairs([str(tmp_path / "a.tsv")])] == ["its partner", "another partner"]
    chosen = {"source": "x", "target": "z"}
    assert [p.target for p in iterate_positive_pairs([str(tmp_path / "b.tsv")], chosen)] == ["its partner"]


def test_pairs_that_may_not_belong_together_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text("text,pair,label\none text,no partner,0\n")
    with pytest.raises(DataError, match="--columns"):
        list(iterate_positive_pairs([str(data)]))
    assert len(list(iterate_positive_pairs([str(data)], {"source": "text", "target": "pair"}))) == 1


def test_files_side_by_side_are_pairs(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("source\na text\n")
    (tmp_path / "b").write_text("target\nits partner\n")
    found = list(iterate_positive_pairs([f"{tmp_path / 'a'}:{tmp_path / 'b'}"]))
    assert [(p.source, p.target) for p in found] == [("source", "target"), ("a text", "its partner")]


# -- findings


def checked(folder: Path, rows: list[tuple[str, str]], valid: list[tuple[str, str]] | None = None) -> Report:
    for name, pairs in (("a.tsv", rows), ("v.tsv", valid or [])):
        (folder / name).write_text("anchor\tpositive\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    return ContrastivePairSurvey.check(
        [str(folder / "a.tsv")], [str(folder / "v.tsv")] if valid else [], None, DataSettings(max_length=20)
    )


def kinds(report: Report) -> dict[str, tuple[str, int]]:
    return {finding.id: (finding.severity, finding.count) for finding in report.findings}


MANY = [(f"question number {n}", f"the answer to {n}") for n in range(1200)]


def test_good_pairs_have_no_flaw_in_one_language_or_two(tmp_path: Path) -> None:
    report = checked(tmp_path, MANY)
    assert report.task == "embed" and kinds(report) == {} and report.counts == {"pairs": 1200, "files": 1}
    mixed = [(b, a) if n % 2 else (a, b) for n, (a, b) in enumerate(MANY)]  # the languages of both sides are mixed
    assert kinds(checked(tmp_path, mixed)) == {}


def test_flaws_are_counted_and_named(tmp_path: Path) -> None:
    rows = [*MANY, MANY[7], ("the same", "the same"), ("", "no first"), ("long " * 30, "short")]
    report = checked(tmp_path, rows, [MANY[3], ("Question number 5!", "x"), (MANY[4][0], "y"), ("new", "z")])
    once = ("warning", 1)
    assert kinds(report) == {
        "duplicates": once, "identical_sides": once, "empty": once, "long": once, "leak": ("error", 1), "leak_anchor": once,
        "leak_near_duplicate": once,
    }  # fmt: skip
    assert report.errors[0].locations[0].line == 2 and "truncated at the end" in str(report)


def test_many_copies_must_be_put_right(tmp_path: Path) -> None:
    rows = MANY + [(f"copy {n}", f"copy {n}") for n in range(200)]
    assert kinds(checked(tmp_path, rows)) == {"identical_sides": ("error", 200)}
