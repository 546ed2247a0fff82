"""Findings of `regard check` in damaged data, and the report without findings."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.cli import main
from regard.data.check.pairs import PairSurvey, TrigramProfile
from regard.data.check.report import Finding, Report
from regard.data.check.text_quality import find_mojibake, find_quality_issues, normalize_text
from regard.data.text.samples import iterate_pairs
from regard.errors import DataError, RegardError
from regard.runs.check import TEXT_CHECKS, check
from regard.tasks import TEXT_TASKS

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def many() -> Pairs:
    """Enough different pairs for a report without findings."""
    from regard.demos.grammar import generate_corpus

    found = dict.fromkeys((pair.source, pair.target) for pair in generate_corpus(count=3000).train)
    sources: dict[str, str] = {}
    for source, target in found:
        sources.setdefault(normalize_text(source), target)
    return list(sources.items())[:1500]


def tsv(path: Path | str, pairs: Pairs) -> str:
    data = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)
    return str(path)


def found(report: Report) -> dict[str, Finding]:
    return {("validation " if f.message.startswith("validation") else "") + f.id: f for f in report.findings}


def only(report: Report, *kinds: str) -> Finding:
    """First finding, if exactly these kinds were found."""
    assert set(found(report)) == set(kinds), report
    return found(report)[kinds[0]]


# -- no findings


def test_every_task_defines_its_data_check() -> None:
    assert TEXT_CHECKS.keys() == TEXT_TASKS.keys()


def test_clean_data_has_no_finding(folder: Path, many: Pairs) -> None:
    report = check("translate", tsv("a b.tsv.gz", many))
    assert not report.findings
    assert str(report).endswith("No problems found.")
    assert report.counts == {"pairs": 1500, "files": 1} and len(report.lengths.words) == 1500
    assert "source words" in str(report) and regard.check is check


# -- unusable rows


def test_invalid_bytes_are_counted_and_reading_continues(folder: Path, many: Pairs) -> None:
    lines = [f"{a}\t{b}".encode() for a, b in many]
    lines[4] = b"girls\tM\xe4dchen"
    lines[9] = b"zero\tn\0ull"
    Path("a.tsv").write_bytes(b"\n".join(lines) + b"\n")
    bad = only(check("translate", "a.tsv"), "encoding")
    assert bad.severity == "error" and bad.count == 2 and bad.fraction == pytest.approx(2 / 1500)
    assert (bad.locations[0].path, bad.locations[0].line) == (
        "a.tsv",
        5,
    ) and "byte 0xe4 at byte offset" in bad.locations[0].text
    assert "NUL" in bad.locations[1].text


def test_bad_bytes_leave_parallel_files_aligned(folder: Path, many: Pairs) -> None:
    english = [a.encode() for a, _ in many]
    english[3] = b"caf\xe9"
    Path("a.en.gz").write_bytes(gzip.compress(b"\n".join(english)))
    Path("a.de").write_text("\n".join(b for _, b in many))
    report = check("translate", "a.en.gz:a.de")
    assert only(report, "encoding").locations[0].path == "a.en.gz" and len(report.lengths.words) == 1499


def test_parallel_files_of_different_length_are_reported_and_paired_as_far_as_they_go(
    folder: Path, many: Pairs
) -> None:
    Path("a.en").write_text("".join(f"{a}\n" for a, _ in many))
    Path("a.de").write_text("".join(f"{b}\n" for _, b in many[:1400]))
    report = check("translate", "a.en:a.de")
    odd = only(report, "line_count_mismatch")
    assert odd.severity == "error" and report.counts["pairs"] == 1400
    assert (odd.locations[0].path, odd.locations[0].line) == ("a.en", 1401) and "has 1500 lines" in odd.locations[
        0
    ].text


def test_broken_rows_of_every_format_are_counted(folder: Path, many: Pairs) -> None:
    rows = [f"{a}\t{b}" for a, b in many]
    rows[1] = "one column"
    Path("a.tsv").write_text("\n".join(rows))
    objects = [json.dumps({"source": a, "target": b}) for a, b in many]
    objects[2], objects[5] = "{", '{"source": "a"}'
    Path("a.jsonl").write_text("\n".join(objects))
    quoted = [f'"{a}","{b}"' for a, b in many]
    quoted[3] = 'a,"b"c'
    Path("a.csv").write_text("\n".join(quoted))
    for name, lines in (("a.tsv", [2]), ("a.jsonl", [3, 6]), ("a.csv", [4])):
        report = check("translate", name)
        broken = only(report, "format")
        assert broken.severity == "error" and [place.line for place in broken.locations] == lines
        assert report.counts["pairs"] == 1500 - len(lines)


def test_empty_sides_are_a_warning_and_many_an_error(folder: Path, many: Pairs) -> None:
    some = [*many, ("no target", "")]
    blank = only(check("translate", tsv("a.tsv", some)), "empty")
    assert blank.severity == "warning" and (blank.locations[0].path, blank.locations[0].line) == ("a.tsv", 1501)
    assert only(check("translate", tsv("a.tsv", many + [("x", "")] * 300)), "empty").severity == "error"


def test_a_file_that_cannot_be_read_is_a_finding_and_the_others_are_read(folder: Path, many: Pairs) -> None:
    whole = gzip.compress(b"".join(f"{a}\t{b}\n".encode() for a, b in many))
    Path("b.tsv.gz").write_bytes(whole[: len(whole) // 2])
    Path("c.tsv").write_bytes(b"")
    report = check("translate", [tsv("a.tsv", many), "b.tsv.gz", "c.tsv"])
    bad = found(report)["unreadable"]
    assert bad.severity == "error" and bad.count == 2
    assert "damaged gzip" in bad.locations[0].text and bad.locations[1].text == "the file is empty."


def test_a_header_is_detected(folder: Path, many: Pairs) -> None:
    head = only(check("translate", tsv("a.tsv", [("english", "german"), *many])), "header")
    assert head.severity == "error" and "looks like a header" in head.locations[0].text


def test_no_pair_one_source_and_few_pairs(folder: Path, many: Pairs) -> None:
    none = check("translate", tsv("a.tsv", [("a", ""), ("", "b")]))
    assert found(none)["few"].severity == "error" and "no usable pairs" in str(none)
    assert found(check("translate", tsv("a.tsv", [("a", "b"), ("a", "c")])))["few"].severity == "error"
    assert only(check("translate", tsv("a.tsv", many[:100])), "few").severity == "warning"


# -- damaged texts


def test_damaged_texts_are_found_on_either_side(folder: Path, many: Pairs) -> None:
    some = list(many)
    some[0] = some[0][0], "die MÃ¤dchen tanzten"
    some[1] = "the caf\ufffd closed", some[1][1]
    some[2] = some[2][0] + " and\x07 so on", some[2][1]
    some[3] = "fish &amp; chips", "Fisch &amp; Chips"
    report = check("translate", tsv("a.tsv", some))
    only(report, "mojibake", "replacement_character", "control_character", "markup")
    assert [(f.severity, f.count, f.locations[0].line) for f in report.findings] == [
        ("warning", 1, 1), ("warning", 1, 2), ("warning", 1, 3), ("note", 1, 4),
    ]  # fmt: skip
    assert "MÃ¤dchen" in found(report)["mojibake"].locations[0].text
    assert "\\u0007" in found(report)["control_character"].locations[0].text


@pytest.mark.parametrize("text", ["fÃ¼r", "gehtâ€™s", "Â©", "l'Ãªtre", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Å“uvre"])
def test_twice_encoded_text_is_recognised(text: str) -> None:
    assert find_mojibake(text) >= 0


@pytest.mark.parametrize("text", ["für", "São", "NÃO", "déjà\u00a0» oui", "„Ä“", "Größe", "Привет", "naïve €5", "你好"])
def test_right_text_is_not_taken_for_damaged(text: str) -> None:
    assert not list(find_quality_issues(text))


# -- duplicates and long texts


def test_duplicates_and_sources_with_several_targets(folder: Path, many: Pairs) -> None:
    some = [*many, many[7], (many[8][0], "etwas anderes ganz und gar")]
    report = check("translate", tsv("a.tsv", some))
    only(report, "duplicates", "multiple_targets")
    twice, other = found(report)["duplicates"], found(report)["multiple_targets"]
    assert (twice.severity, twice.count, twice.locations[0].line) == ("warning", 1, 1501)
    assert "(same as line 8)" in twice.locations[0].text
    assert (other.severity, other.count, other.locations[0].line) == ("note", 1, 1502)
    assert "(also in line 9)" in other.locations[0].text
    report = check("translate", ["a.tsv", tsv("b.tsv", many[:1])])
    assert "(same as a.tsv:1)" in found(report)["duplicates"].locations[-1].text


def test_copies_are_a_note_and_many_a_warning(folder: Path, many: Pairs) -> None:
    copy = ("Adlon 1907", "Adlon 1907")
    assert only(check("translate", tsv("a.tsv", [*many, copy])), "identical_sides").severity == "note"
    copies = [(f"{a} {n}", f"{a} {n}") for n, (a, _) in enumerate(many[:50])]
    assert only(check("translate", tsv("a.tsv", many + copies)), "identical_sides").severity == "warning"


def test_long_and_uneven_pairs_are_named_with_their_lengths(folder: Path, many: Pairs) -> None:
    long = " ".join(a for a, _ in many[:80]), " ".join(b for _, b in many[:80])
    uneven = " ".join(a for a, _ in many[:9]), "ja"
    path = tsv("a.tsv", [*many, long, uneven])
    report = check("translate", path)
    only(report, "long", "length_ratio")
    assert found(report)["long"].locations[0].line == 1501 and "estimate" in found(report)["long"].message
    assert (
        found(report)["length_ratio"].locations[0].line == 1502
        and "vs. 1 words" in found(report)["length_ratio"].locations[0].text
    )
    assert list(report.lengths.outliers) == [1501]
    only(check("translate", path, settings=["data.max_length=5000"]), "length_ratio")
    assert found(check("translate", path, settings={"data.max_length": 12}))["long"].count > 100


# -- languages


def test_exchanged_rows_are_found_and_no_others(folder: Path, many: Pairs) -> None:
    turned = set(random.Random(0).sample(range(len(many)), 15))
    some = [(b, a) if n in turned else (a, b) for n, (a, b) in enumerate(many)]
    swapped = only(check("translate", tsv("a.tsv", some)), "swapped")
    assert swapped.severity == "warning" and swapped.count == 15
    assert [place.line for place in swapped.locations] == [n + 1 for n in sorted(turned)[:5]]


def test_many_exchanged_rows_are_an_error(folder: Path, many: Pairs) -> None:
    some = [(b, a) if n % 4 == 0 else (a, b) for n, (a, b) in enumerate(many)]
    swapped = only(check("translate", tsv("a.tsv", some)), "swapped")
    assert swapped.severity == "error" and 365 <= swapped.count <= 375


@pytest.mark.parametrize("order", ["abc", "bac", "acb"])
def test_a_file_with_swapped_sides_is_named_wherever_it_is(folder: Path, many: Pairs, order: str) -> None:
    tsv("a.tsv", many[:500]), tsv("c.tsv", many[1000:])
    tsv("b.tsv", [(b, a) for a, b in many[500:1000]])
    turned = only(check("translate", [f"{name}.tsv" for name in order]), "swapped_file")
    assert turned.severity == "error" and turned.count == 500 and [p.path for p in turned.locations] == ["b.tsv"]


def test_validation_data_the_other_way_round_is_an_error(folder: Path, many: Pairs) -> None:
    data, valid = tsv("a.tsv", many[:1200]), tsv("v.tsv", [(b, a) for a, b in many[1200:]])
    turned = only(check("translate", data, valid=valid), "validation swapped_file")
    assert turned.severity == "error" and "swapped relative to the training data" in turned.message
    straight = [(b, a) if n == 7 else (a, b) for n, (a, b) in enumerate(many[1200:])]
    assert only(check("translate", data, valid=tsv("v.tsv", straight)), "validation swapped").locations[0].line == 8


def test_untranslated_rows_are_detected(folder: Path, many: Pairs) -> None:
    some = [*many[:-1], (many[-1][0], many[-2][0])]
    assert only(check("translate", tsv("a.tsv", some)), "same_language").locations[0].line == 1500


def test_a_row_does_not_vouch_for_itself() -> None:
    profile = TrigramProfile.empty()
    profile.update(["the cat"] * 9 + ["zzyx"], ["die Katze"] * 9 + ["qqwv"])
    (of_others,), (of_target,) = profile.source_scores(["zzyx"], ["qqwv"], leave_one_out=True)
    (also_own,), (also_target,) = profile.source_scores(["zzyx"], ["qqwv"], leave_one_out=False)
    assert also_own - also_target > 1 > abs(of_others - of_target)


def test_two_sides_of_one_language_are_not_judged(folder: Path, many: Pairs) -> None:
    texts = [a for a, _ in many]
    other = random.Random(0).sample(texts, len(texts))
    kinds = found(check("translate", tsv("a.tsv", list(zip(texts, other, strict=True)))))
    assert "indistinguishable_languages" in kinds and not {"swapped", "swapped_file", "same_language"} & kinds.keys()


# -- leaks


def test_leaks_are_distinguished_by_overlap(folder: Path, many: Pairs) -> None:
    data = tsv("a.tsv", many[:1200])
    valid = [*many[1200:], many[0], (many[1][0], many[2][1]), (many[2][0].upper() + "!!", many[2][1])]
    report = check("translate", data, valid=tsv("v.tsv", valid))
    only(report, "validation leak", "validation leak_source", "validation leak_near_duplicate")
    assert [(f.severity, f.count, f.locations[0].line) for f in report.findings] == [
        ("error", 1, 301), ("warning", 1, 302), ("warning", 1, 303),
    ]  # fmt: skip
    assert all(f"in training data: a.tsv:{n}" in f.locations[0].text for n, f in enumerate(report.findings, start=1))


# -- guarantees


def test_errors_of_reading_are_errors_of_the_check(folder: Path, many: Pairs) -> None:
    """For randomly damaged files: every error of training must be a finding of the check."""
    draw = random.Random(5)
    whole = "".join(f"{a}\t{b}\n" for a, b in many[:200]).encode()
    stopped = 0
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.randrange(3)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b"\t\n\xff\x00\xc3 a")
        Path("a.tsv").write_bytes(bytes(damaged))
        try:
            list(iterate_pairs(["a.tsv"]))
            refused = False
        except DataError:
            refused = True
        stopped += refused
        assert bool(check("translate", "a.tsv").errors) == refused
    assert 10 < stopped < 50


def test_texts_are_not_kept(folder: Path, many: Pairs) -> None:
    survey = PairSurvey([tsv("a.tsv", many)])
    survey.read()
    assert sum(n.itemsize * len(n) for n in survey.numbers.values()) <= 64 * len(many)
    assert not [value for value in vars(survey).values() if isinstance(value, list) and len(value) > 10]


# -- the command


@pytest.fixture
def cli(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regard", "check", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


def test_the_exit_code_reports_errors(cli: Callable[..., Any], many: Pairs) -> None:
    tsv("a 1.tsv", many[:750]), tsv("a 2.tsv", [*many[750:], many[750]])
    code, out, err = cli("translate", "--data", "a *.tsv")
    assert code == 0 and err == "" and "warning  duplicate pairs: 1" in out
    assert "a 2.tsv:751" in out and out.endswith("Found no errors, 1 warning.\n")
    code, out, _ = cli("translate", "--data", "a *.tsv", "--valid", "a 1.tsv")
    assert code == 1 and "error    validation: pairs also present in the training data: 750 (100.0 %)" in out
    assert "… and 745 more" in out and out.endswith("Found 1 error, 1 warning.\n")


def test_json_holds_the_same(cli: Callable[..., Any], many: Pairs) -> None:
    tsv("a.tsv", [*many, ("ü\x07", "ö")])
    code, out, _ = cli("translate", "--data", "a.tsv", "--json")
    said = json.loads(out)
    assert code == 0 and said["counts"] == {"pairs": 1501, "files": 1} and (said["errors"], said["warnings"]) == (0, 1)
    assert said["findings"][0]["id"] == "control_character"
    assert said["findings"][0]["locations"] == [{"path": "a.tsv", "line": 1501, "text": "ü\\u0007"}]
    assert said["lengths"]["source_words"]["min"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["translte", "--data", "a.tsv"], "Unknown task 'translte'. Did you mean 'translate'?"),
        (["translate"], "No data given. Pass files with --data."),
        (["translate", "--data", "b.tsv"], "b.tsv: file not found. Did you mean 'a.tsv'?"),
        (["translate", "--data", "*.jsonl"], "*.jsonl: no file matches this pattern."),
        (["translate", "--data", "a.tsv", "--columns", "sorce=en"], "Did you mean 'source'?"),
        (["translate", "--data", "a.tsv", "--columns", "source=en", "target=de"], "Unknown column 'en'"),
        (["translate", "--data", "a.tsv", "--set", "data.longst=5"], "data.max_length"),
        (["translate", "--data", "a.tsv", "--set", "train.steps=5"], "only accepts data.* settings, not train.steps."),
        (["translate", "--data", "a.tsv", "--out", "a.jpg"], ".png or .svg"),
    ],
)
def test_invalid_arguments_give_exit_code_2(cli: Callable[..., Any], many: Pairs, words: list[str], said: str) -> None:
    tsv("a.tsv", many[:20])
    code, out, err = cli(*words)
    assert code == 2 and out == "" and err.startswith("regard: ") and said in err


def test_the_lengths_are_drawn(cli: Callable[..., Any], many: Pairs) -> None:
    long = " ".join(a for a, _ in many[:1000]), "kurz"
    tsv("a.tsv", [*many, long])
    code, out, _ = cli("translate", "--data", "a.tsv", "--out", "my pictures")
    assert code == 0 and f"chart: {Path('my pictures/lengths.png')}" in out
    assert Path("my pictures/lengths.png").read_bytes().startswith(b"\x89PNG")
    report = check("translate", tsv("b.tsv", many), out="one.svg")
    assert report.figures == ("one.svg",) and "data.max_length" in Path("one.svg").read_text()


def test_a_pipe_is_refused_because_it_is_read_more_than_once(folder: Path) -> None:
    import os

    os.mkfifo("pipe.tsv")
    with pytest.raises(RegardError, match=r"pipe\.tsv"):
        check("translate", "pipe.tsv")
