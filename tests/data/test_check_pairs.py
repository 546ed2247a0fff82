"""Findings of `regard check` in damaged pairs, the report without findings, and the command."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard
from data_files import kinds, write
from regard.cli import main
from regard.data.check.engine import normalize_text
from regard.data.check.findings import find_mojibake, find_quality_issues
from regard.data.check.pairs import ContrastivePairSurvey, PairSurvey, TrigramProfile
from regard.data.check.report import Finding, Report
from regard.data.settings import DataSettings
from regard.data.text.samples import iterate_pairs
from regard.errors import DataError, RegardError
from regard.runs.check import check

Pairs = list[tuple[str, str]]


@pytest.fixture(scope="module")
def many() -> Pairs:
    """Enough different pairs for a report without findings."""
    from regard.demos.grammar import generate_corpus

    sources: dict[str, str] = {}
    for pair in dict.fromkeys((pair.source, pair.target) for pair in generate_corpus(count=3000).train):
        sources.setdefault(normalize_text(pair[0]), pair[1])
    return list(sources.items())[:1500]


def tsv(path: str, pairs: Pairs) -> str:
    return write(path, "".join(f"{source}\t{target}\n" for source, target in pairs))


def by_id(report: Report) -> dict[str, Finding]:
    return {("validation " if f.message.startswith("validation") else "") + f.id: f for f in report.findings}


def only(report: Report, *ids: str) -> Finding:
    """First finding, if exactly these ids were found."""
    assert set(by_id(report)) == set(ids), report
    return by_id(report)[ids[0]]


def place(finding: Finding) -> tuple[str, int | None]:
    return finding.locations[0].path, finding.locations[0].line


def test_clean_data_has_no_finding(folder: Path, many: Pairs) -> None:
    report = check("translate", tsv("a b.tsv.gz", many))
    assert not report.findings and str(report).endswith("No problems found.")
    assert report.counts == {"pairs": 1500, "files": 1} and len(report.lengths.words) == 1500
    assert "source words" in str(report) and regard.check is check


# -- deliberate errors


def copies(rows: Pairs, count: int) -> Pairs:
    return [(f"{a} {n}", f"{a} {n}") for n, (a, _) in enumerate(rows[:count])]


def joined(rows: Pairs, count: int) -> tuple[str, str]:
    return " ".join(a for a, _ in rows[:count]), " ".join(b for _, b in rows[:count])


def damaged(rows: Pairs) -> Pairs:
    first = [
        (rows[0][0], "die MÃ¤dchen tanzten"), ("the caf\ufffd closed", rows[1][1]),
        (rows[2][0] + " and\x07 so on", rows[2][1]), ("fish &amp; chips", "Fisch &amp; Chips"),
    ]  # fmt: skip
    return first + rows[4:]


Expected = dict[str, tuple[str, int, int, str]]
SPOILED: list[tuple[str, Callable[[Pairs], Pairs], Expected]] = [
    ("empty side", lambda rows: [*rows, ("no target", "")], {"empty": ("warning", 1, 1501, "no target")}),
    ("many empty", lambda rows: rows + [("x", "")] * 300, {"empty": ("error", 300, 1501, "x")}),
    ("header", lambda rows: [("english", "german"), *rows], {"header": ("error", 1, 1, "looks like a header")}),
    ("few", lambda rows: rows[:100], {"few": ("warning", 100, 0, "")}),
    ("damaged", damaged, {"mojibake": ("warning", 1, 1, "MÃ¤dchen"), "replacement_character": ("warning", 1, 2, ""),
                          "control_character": ("warning", 1, 3, "\\u0007"), "markup": ("note", 1, 4, "&amp;")}),
    ("twice", lambda rows: [*rows, rows[7], (rows[8][0], "etwas anderes ganz und gar")],
     {"duplicates": ("warning", 1, 1501, "(same as line 8)"), "multiple_targets": ("note", 1, 1502, "(also in line 9)")}),
    ("copy", lambda rows: [*rows, ("Adlon 1907",) * 2], {"identical_sides": ("note", 1, 1501, "Adlon")}),
    ("copies", lambda rows: rows + copies(rows, 50), {"identical_sides": ("warning", 50, 1501, "")}),
    ("long and uneven", lambda rows: [*rows, joined(rows, 80), (joined(rows, 9)[0], "ja")],
     {"long": ("warning", 1, 1501, "about"), "length_ratio": ("warning", 1, 1502, "vs. 1 words")}),
    ("untranslated", lambda rows: [*rows[:-1], (rows[-1][0], rows[-2][0])], {"same_language": ("warning", 1, 1500, "")}),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "expected"), [case[1:] for case in SPOILED], ids=[case[0] for case in SPOILED])
def test_deliberate_errors_are_found_and_nothing_else(
    spoil: Callable[[Pairs], Pairs], expected: Expected, folder: Path, many: Pairs
) -> None:
    report = check("translate", tsv("a.tsv", spoil(many)))
    assert kinds(report) == {name: values[:2] for name, values in expected.items()}
    for finding in report.findings:
        _, _, line, text = expected[finding.id]
        if line:
            assert place(finding) == ("a.tsv", line) and text in finding.locations[0].text


def test_limits_of_the_length_are_a_setting(folder: Path, many: Pairs) -> None:
    path = tsv("a.tsv", [*many, joined(many, 80), (joined(many, 9)[0], "ja")])
    report = check("translate", path, settings=["data.max_length=5000"])
    assert list(report.lengths.outliers) == [1501] and only(report, "length_ratio")
    short = by_id(check("translate", path, settings={"data.max_length": 12}))["long"]
    assert short.count > 100 and "estimate" in short.message


def test_no_pair_and_one_source_are_errors(folder: Path, many: Pairs) -> None:
    none = check("translate", tsv("a.tsv", [("a", ""), ("", "b")]))
    assert by_id(none)["few"].severity == "error" and "no usable pairs" in str(none)
    assert by_id(check("translate", tsv("a.tsv", [("a", "b"), ("a", "c")])))["few"].severity == "error"
    report = check("translate", [tsv("a.tsv", many), tsv("b.tsv", many[:1])])
    assert "(same as a.tsv:1)" in by_id(report)["duplicates"].locations[-1].text


# -- unreadable rows and files


def test_invalid_bytes_are_counted_and_reading_continues(folder: Path, many: Pairs) -> None:
    lines = [f"{a}\t{b}".encode() for a, b in many]
    lines[4], lines[9] = b"girls\tM\xe4dchen", b"zero\tn\0ull"
    bad = only(check("translate", write("a.tsv", b"\n".join(lines) + b"\n")), "encoding")
    assert (bad.severity, bad.count, bad.fraction) == ("error", 2, pytest.approx(2 / 1500))
    assert place(bad) == ("a.tsv", 5) and "byte 0xe4 at byte offset" in bad.locations[0].text
    assert "NUL" in bad.locations[1].text


def test_parallel_files_stay_aligned_and_are_paired_as_far_as_they_go(folder: Path, many: Pairs) -> None:
    english = [a.encode() for a, _ in many]
    write("a.de", "".join(f"{b}\n" for _, b in many[:1400]))
    write("b.de", "".join(f"{b}\n" for _, b in many))
    report = check("translate", f"{write('a.en', b''.join(line + bytes([10]) for line in english))}:a.de")
    odd = only(report, "line_count_mismatch")
    assert odd.severity == "error" and report.counts["pairs"] == 1400
    assert place(odd) == ("a.en", 1401) and "has 1500 lines" in odd.locations[0].text
    english[3] = b"caf\xe9"
    report = check("translate", f"{write('a.en.gz', bytes([10]).join(english))}:b.de")
    assert only(report, "encoding").locations[0].path == "a.en.gz" and len(report.lengths.words) == 1499


def test_broken_rows_of_every_format_are_counted(folder: Path, many: Pairs) -> None:
    rows = [f"{a}\t{b}" for a, b in many]
    objects = [json.dumps({"source": a, "target": b}) for a, b in many]
    quoted = [f'"{a}","{b}"' for a, b in many]
    rows[1], objects[2], objects[5], quoted[3] = "one column", "{", '{"source": "a"}', 'a,"b"c'
    for name, content, lines in (("a.tsv", rows, [2]), ("a.jsonl", objects, [3, 6]), ("a.csv", quoted, [4])):
        report = check("translate", write(name, "\n".join(content)))
        broken = only(report, "format")
        assert broken.severity == "error" and [location.line for location in broken.locations] == lines
        assert report.counts["pairs"] == 1500 - len(lines)


def test_a_file_that_cannot_be_read_is_a_finding_and_the_others_are_read(folder: Path, many: Pairs) -> None:
    whole = gzip.compress(b"".join(f"{a}\t{b}\n".encode() for a, b in many))
    files = [tsv("a.tsv", many), write("b.tsv", whole[: len(whole) // 2]), write("c.tsv", b"")]
    bad = by_id(check("translate", files))["unreadable"]
    assert bad.severity == "error" and bad.count == 2
    assert "damaged gzip" in bad.locations[0].text and bad.locations[1].text == "the file is empty."


@pytest.mark.parametrize("text", ["fÃ¼r", "gehtâ€™s", "Â©", "l'Ãªtre", "ÐŸÑ€Ð¸Ð²ÐµÑ‚", "Å“uvre"])
def test_twice_encoded_text_is_recognized(text: str) -> None:
    assert find_mojibake(text) >= 0


@pytest.mark.parametrize("text", ["für", "São", "NÃO", "déjà\u00a0» oui", "„Ä“", "Größe", "Привет", "naïve €5", "你好"])
def test_correct_text_is_not_taken_for_damaged(text: str) -> None:
    assert not list(find_quality_issues(text))


# -- languages


def test_swapped_rows_are_found_and_no_others(folder: Path, many: Pairs) -> None:
    turned = set(random.Random(0).sample(range(len(many)), 15))
    some = [(b, a) if n in turned else (a, b) for n, (a, b) in enumerate(many)]
    swapped = only(check("translate", tsv("a.tsv", some)), "swapped")
    assert swapped.severity == "warning" and swapped.count == 15
    assert [location.line for location in swapped.locations] == [n + 1 for n in sorted(turned)[:5]]
    some = [(b, a) if n % 4 == 0 else (a, b) for n, (a, b) in enumerate(many)]
    swapped = only(check("translate", tsv("a.tsv", some)), "swapped")
    assert swapped.severity == "error" and 365 <= swapped.count <= 375


@pytest.mark.parametrize("order", ["abc", "bac", "acb"])
def test_a_file_with_swapped_sides_is_named_wherever_it_is(folder: Path, many: Pairs, order: str) -> None:
    tsv("a.tsv", many[:500]), tsv("c.tsv", many[1000:]), tsv("b.tsv", [(b, a) for a, b in many[500:1000]])
    turned = only(check("translate", [f"{name}.tsv" for name in order]), "swapped_file")
    assert turned.severity == "error" and turned.count == 500 and [p.path for p in turned.locations] == ["b.tsv"]


def test_validation_data_the_other_way_round_is_an_error(folder: Path, many: Pairs) -> None:
    data, valid = tsv("a.tsv", many[:1200]), tsv("v.tsv", [(b, a) for a, b in many[1200:]])
    turned = only(check("translate", data, valid=valid), "validation swapped_file")
    assert turned.severity == "error" and "swapped relative to the training data" in turned.message
    straight = [(b, a) if n == 7 else (a, b) for n, (a, b) in enumerate(many[1200:])]
    assert only(check("translate", data, valid=tsv("v.tsv", straight)), "validation swapped").locations[0].line == 8


def test_the_score_of_a_row_does_not_count_the_row_itself() -> None:
    profile = TrigramProfile()
    profile.update(["the cat"] * 9 + ["zzyx"], ["die Katze"] * 9 + ["qqwv"])
    (of_others,), (of_target,) = profile.source_scores(["zzyx"], ["qqwv"], leave_one_out=True)
    (also_own,), (also_target,) = profile.source_scores(["zzyx"], ["qqwv"], leave_one_out=False)
    assert also_own - also_target > 1 > abs(of_others - of_target)


def test_two_sides_of_one_language_are_not_judged(folder: Path, many: Pairs) -> None:
    texts = [a for a, _ in many]
    other = random.Random(0).sample(texts, len(texts))
    ids = by_id(check("translate", tsv("a.tsv", list(zip(texts, other, strict=True)))))
    assert "indistinguishable_languages" in ids and not {"swapped", "swapped_file", "same_language"} & ids.keys()


# -- guarantees


def test_leaks_are_distinguished_by_overlap(folder: Path, many: Pairs) -> None:
    valid = [*many[1200:], many[0], (many[1][0], many[2][1]), (many[2][0].upper() + "!!", many[2][1])]
    report = check("translate", tsv("a.tsv", many[:1200]), valid=tsv("v.tsv", valid))
    only(report, "validation leak", "validation leak_source", "validation leak_near_duplicate")
    assert [(f.severity, f.count, f.locations[0].line) for f in report.findings] == [
        ("error", 1, 301), ("warning", 1, 302), ("warning", 1, 303),
    ]  # fmt: skip
    assert all(f"in training data: a.tsv:{n}" in f.locations[0].text for n, f in enumerate(report.findings, start=1))


def test_errors_of_reading_are_errors_of_the_check(folder: Path, many: Pairs) -> None:
    """For randomly damaged files: every error of training must be a finding of the check."""
    draw = random.Random(5)
    whole = "".join(f"{a}\t{b}\n" for a, b in many[:200]).encode()
    stopped = 0
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(draw.randrange(3)):
            content[draw.randrange(len(content))] = draw.choice(b"\t\n\xff\x00\xc3 a")
        write("a.tsv", bytes(content))
        refused = False
        try:
            list(iterate_pairs(["a.tsv"]))
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


def test_a_pipe_is_refused_because_it_is_read_more_than_once(folder: Path) -> None:
    os.mkfifo("pipe.tsv")
    with pytest.raises(RegardError, match=r"pipe\.tsv"):
        check("translate", "pipe.tsv")


# -- positive pairs of embeddings

POSITIVE = [(f"question number {n}", f"the answer to {n}") for n in range(1200)]


def check_positive(rows: Pairs, valid: Pairs = []) -> Report:  # noqa: B006
    files = [tsv(name, [("anchor", "positive"), *pairs]) for name, pairs in (("a.tsv", rows), ("v.tsv", valid))]
    return ContrastivePairSurvey.check(files[:1], files[1:] if valid else [], None, DataSettings(max_length=20))


def test_positive_pairs_in_one_language_or_two_have_no_findings(folder: Path) -> None:
    report = check_positive(POSITIVE)
    assert report.task == "embed" and kinds(report) == {} and report.counts == {"pairs": 1200, "files": 1}
    assert kinds(check_positive([(b, a) if n % 2 else (a, b) for n, (a, b) in enumerate(POSITIVE)])) == {}


def test_findings_of_positive_pairs(folder: Path) -> None:
    rows = [*POSITIVE, POSITIVE[7], ("the same", "the same"), ("", "no first"), ("long " * 30, "short")]
    valid = [POSITIVE[3], ("Question number 5!", "x"), (POSITIVE[4][0], "y"), ("new", "z")]
    report, once = check_positive(rows, valid), ("warning", 1)
    assert kinds(report) == {
        "duplicates": once, "identical_sides": once, "empty": once, "long": once, "leak": ("error", 1), "leak_anchor": once,
        "leak_near_duplicate": once,
    }  # fmt: skip
    assert report.errors[0].locations[0].line == 2 and "truncated at the end" in str(report)
    assert kinds(check_positive(POSITIVE + copies(POSITIVE, 200))) == {"identical_sides": ("error", 200)}


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


def test_json_has_the_same_content(cli: Callable[..., Any], many: Pairs) -> None:
    tsv("a.tsv", [*many, ("ü\x07", "ö")])
    code, out, _ = cli("translate", "--data", "a.tsv", "--json")
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
        ("translate --data b.tsv", "b.tsv: file not found. Did you mean 'a.tsv'?"),
        ("translate --data *.jsonl", "*.jsonl: no file matches this pattern."),
        ("translate --data a.tsv --columns sorce=en", "Did you mean 'source'?"),
        ("translate --data a.tsv --columns source=en target=de", "Unknown column 'en'"),
        ("translate --data a.tsv --set data.longst=5", "data.max_length"),
        ("translate --data a.tsv --set train.steps=5", "only accepts data.* settings, not train.steps."),
        ("translate --data a.tsv --out a.jpg", ".png or .svg"),
    ],
)
def test_invalid_arguments_give_exit_code_2(cli: Callable[..., Any], many: Pairs, words: str, part: str) -> None:
    tsv("a.tsv", many[:20])
    code, out, err = cli(*words.split())
    assert code == 2 and out == "" and err.startswith("regard: ") and part in err


def test_the_lengths_are_drawn(cli: Callable[..., Any], many: Pairs) -> None:
    tsv("a.tsv", [*many, (joined(many, 1000)[0], "kurz")])
    code, out, _ = cli("translate", "--data", "a.tsv", "--out", "my pictures")
    assert code == 0 and f"chart: {Path('my pictures/lengths.png')}" in out
    assert Path("my pictures/lengths.png").read_bytes().startswith(b"\x89PNG")
    report = check("translate", tsv("b.tsv", many), out="one.svg")
    assert report.figures == ("one.svg",) and "data.max_length" in Path("one.svg").read_text()
