"""Findings of `regard check lm` in damaged text, and the report without findings."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from data_files import jsonl, write
from regard.data.check import texts as documents
from regard.data.check.report import Finding, Report
from regard.data.check.texts import TextSurvey
from regard.data.settings import DataSettings
from regard.data.text.documents import iterate_texts
from regard.draw.charts import draw_lengths
from regard.errors import DataError, RegardError, UnknownNameError

WORDS = [
    "king",
    "queen",
    "castle",
    "river",
    "mountain",
    "garden",
    "silver",
    "winter",
    "morning",
    "shadow",
    "candle",
    "sea",
]


def story(seed: int, lines: int = 4000) -> list[str]:
    """Enough different lines for a report without findings."""
    draw = random.Random(seed)
    return [f"The {' '.join(draw.choices(WORDS, k=9))} {draw.randrange(10**6)}." for _ in range(lines)]


def save(path: str, lines: list[str] | str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return write(path, lines if isinstance(lines, str) else "".join(f"{line}\n" for line in lines))


def objects(path: str, texts: list[str]) -> str:
    return jsonl(path, *({"text": text} for text in texts))


def check(*data: str, valid: tuple[str, ...] = (), **columns: str) -> Report:
    return TextSurvey.check(data, valid, columns or None, DataSettings())


def by_id(report: Report) -> dict[str, Finding]:
    return {("validation " if f.message.startswith("validation") else "") + f.id: f for f in report.findings}


def only(report: Report, *kinds: str) -> Finding:
    """First finding, if exactly these kinds were found."""
    assert set(by_id(report)) == set(kinds), report
    return by_id(report)[kinds[0]]


# -- no findings


def test_clean_text_has_no_finding_and_is_counted(folder: Path) -> None:
    report = check(save("a b.txt.gz", [*story(1), "", "Ende, schön."]))
    assert not report.findings and str(report).endswith("No problems found.")
    text = "".join(f"{line}\n" for line in [*story(1), "", "Ende, schön."])
    assert report.counts == {
        "documents": 1, "files": 1, "lines": 4001, "words": len(text.split()), "characters": len(text),
        "unique_characters": len(set(text)), "bytes": len(text) + 1,
    }  # fmt: skip
    assert "document words" in str(report) and report.as_dict()["lengths"]["document_words"]["max"] == len(text.split())


def test_folders_and_columns_are_read_as_training_reads_them(folder: Path) -> None:
    save("set/a.txt", story(1)), save("set/deep/b.md", story(2)), save("set/c.bin", "x")
    report = check("set")
    assert not report.findings and (report.counts["documents"], report.counts["files"]) == (2, 2)
    save("c.jsonl", [json.dumps({"body": line}) for line in story(3)])
    assert check("c.jsonl", text="body").counts["documents"] == 4000
    with pytest.raises(UnknownNameError, match="'body'"):
        check("c.jsonl", text="bdy")
    with pytest.raises(DataError, match="columns"):
        check("set/a.txt", text="body")
    with pytest.raises(DataError, match=r"'c\.jsonl'"):
        check("d.jsonl")


# -- unusable files


def test_invalid_bytes_are_counted_by_lines_and_reading_continues(folder: Path) -> None:
    lines = [line.encode() for line in story(1)]
    lines[10], lines[3000] = b"caf\xe9", b"n\0ull"
    Path("a.txt").write_bytes(b"\n".join(lines))
    report = check("a.txt")
    bad = only(report, "encoding")
    assert bad.severity == "error" and bad.count == 2 and [place.line for place in bad.locations] == [11, 3001]
    assert "byte 0xe9 at byte offset" in bad.locations[0].text and report.counts["lines"] == 3998


def test_files_and_rows_that_cannot_be_read_are_named_and_the_others_read(folder: Path) -> None:
    whole = gzip.compress("\n".join(story(2)).encode())
    Path("b.txt.gz").write_bytes(whole[: len(whole) // 2])
    rows = [json.dumps({"text": line}) for line in story(3)]
    rows[1], rows[4] = "{", '{"id": 5}'
    report = check(save("a.txt", story(1)), "b.txt.gz", save("c.jsonl", rows))
    broken, bad = only(report, "format", "unreadable"), by_id(report)["unreadable"]
    assert broken.severity == "error" and [place.line for place in broken.locations] == [2, 5]
    assert bad.severity == "error" and "damaged gzip" in bad.locations[0].text


def test_empty_documents_are_a_warning_and_many_an_error(folder: Path) -> None:
    path = objects("a.jsonl", [*story(1), " \n", "end"])
    blank = only(check(path, save("b.txt", "")), "empty")
    assert blank.severity == "warning" and [(p.path, p.line) for p in blank.locations] == [(path, 4001), ("b.txt", 1)]
    assert only(check(objects("c.jsonl", [*story(1), *[""] * 500, "end"])), "empty").severity == "error"


def test_too_little_text(folder: Path) -> None:
    none = check(save("a.txt", " \n"))
    assert by_id(none)["few"].severity == "error" and "no text found" in str(none)
    short = save("b.txt", "A short text.")
    assert "no validation split" in only(check(short), "few").message and check(short).errors
    assert only(check(short, valid=(save("v.txt", "Another."),)), "few").severity == "warning"
    assert only(check(save("c.txt", story(1)[:500])), "few").severity == "warning"


# -- damaged text


def test_damaged_lines_are_found_with_their_line_numbers(folder: Path) -> None:
    lines = story(1)
    lines[100], lines[1000], lines[2000], lines[3000] = "fÃ¼r", "caf\ufffd", "a\x07b", "fish &amp; chips"
    report = check(save("a.txt", lines))
    only(report, "mojibake", "replacement_character", "control_character", "markup")
    assert [(f.severity, f.count, f.locations[0].line) for f in report.findings] == [
        ("warning", 1, 101), ("warning", 1, 1001), ("warning", 1, 2001), ("note", 1, 3001),
    ]  # fmt: skip
    assert by_id(check(save("b.txt", [*lines, *["Ã¤Ã¶"] * 1000])))["mojibake"].severity == "error"
    in_row = objects("c.jsonl", ["\n".join(lines), "\n".join(story(2))])
    assert by_id(check(in_row))["control_character"].locations[0].line == 1


@pytest.mark.parametrize("size", [100_001, 300_000])
def test_text_without_a_space_is_reported_once(folder: Path, size: int) -> None:
    path = save("a.txt", "\n".join([*story(1), "x" * size, *story(2)]))
    solid = only(check(path), "no_whitespace")
    assert solid.severity == "warning" and solid.count == 1 and solid.locations[0].line >= 4001
    assert not check(save("b.txt", "\n".join([*story(1), "x" * 99_000, "y" * 99_000]))).findings


# -- duplicates


def test_repeated_documents_are_named_with_the_first(folder: Path) -> None:
    long = "\n".join(story(9, 500))
    texts = [*story(1), long, story(1)[7], long]
    twice = by_id(check(objects("a.jsonl", texts)))["duplicates"]
    assert (twice.severity, twice.count, [place.line for place in twice.locations]) == ("warning", 2, [4002, 4003])
    assert "(same as line 8)" in twice.locations[0].text and "(same as line 4001)" in twice.locations[1].text
    save("set/a.txt", story(1)), save("set/b.txt", story(1))
    assert "(same as set/a.txt:1)" in by_id(check("set"))["duplicates"].locations[0].text


def test_repeated_lines_are_weighted_by_their_fraction(folder: Path) -> None:
    notice = "This file is part of a library that must never be read aloud."
    assert not check(save("a.txt", [*story(1), *[notice] * 20])).findings
    some = only(check(save("b.txt", [*story(1), *[notice, notice.upper()] * 100])), "duplicate_lines")
    assert some.severity == "note" and some.count == 199 and 0.02 < some.fraction < 0.06
    assert some.locations[0].line == 4002 and "(same as line 4001)" in some.locations[0].text
    assert only(check(save("c.txt", [*story(1), *story(1)[:1000]])), "duplicate_lines").severity == "warning"
    assert not check(save("d.txt", [*story(1), *["- " * 40] * 900])).findings  # lines without letters do not count


# -- leaks


def test_leaked_documents_are_distinguished_by_similarity(folder: Path) -> None:
    train, valid = story(1), story(2, 400)
    long = "\n".join(story(9, 300))
    near = long.upper().replace(" ", "  ").replace(".", " !")
    data = objects("a.jsonl", [*train, long])
    report = check(data, valid=(objects("v.jsonl", [*valid, train[3], near]),))
    only(report, "validation leak", "validation leak_near_duplicate", "validation leak_lines")
    exact, alike = by_id(report)["validation leak"], by_id(report)["validation leak_near_duplicate"]
    assert (exact.severity, exact.count, exact.locations[0].line) == ("error", 1, 401)
    assert "in training data: a.jsonl:4" in exact.locations[0].text
    assert (alike.severity, alike.count, alike.locations[0].line) == ("warning", 1, 402)
    assert "in training data: a.jsonl:4001" in alike.locations[0].text


def test_leaked_passages_are_found_at_every_position(folder: Path) -> None:
    train, valid = story(1), story(2, 1000)
    data = save("a.txt", train)
    assert not check(data, valid=(save("v.txt", valid),)).findings
    for lines, severity in (([train[5]], "note"), (train[77:100], "warning"), (train[77:400], "error")):
        leak = only(check(data, valid=(save("v.txt", [*valid, *lines]),)), "validation leak_lines")
        assert leak.severity == severity and leak.count == len(lines) and leak.locations[0].line == 1001
        assert f"in training data: a.txt:{train.index(lines[0]) + 1}" in leak.locations[0].text
    loud = [line.upper() for line in train[:500]]
    assert only(check(data, valid=(save("v.txt", [*valid, *loud]),)), "validation leak_lines").count == 500


def test_a_sample_of_lines_represents_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE_HASHES", 1000)
    data, valid = save("a.txt", story(1, 20_000)), save("v.txt", [*story(2, 2000), *story(1, 2000)])
    leak = only(check(data, valid=(valid,)), "validation leak_lines")
    assert "estimated from 1 in 32 lines" in leak.message and leak.count == pytest.approx(2000, rel=0.3)
    assert leak.fraction == pytest.approx(0.5, rel=0.3)


# -- guarantees


def test_errors_of_reading_are_errors_of_the_check(folder: Path) -> None:
    """For randomly damaged files: every error of training must be a finding of the check."""
    draw = random.Random(5)
    plain = "".join(f"{line}\n" for line in story(1, 300)).encode()
    rows = "".join(json.dumps({"text": line}) + "\n" for line in story(2, 300)).encode()
    stopped = 0
    for number in range(60):
        name, whole = (("a.txt", plain), ("a.jsonl", rows))[number % 2]
        damaged = bytearray(whole)
        for _ in range(draw.randrange(3)):
            damaged[draw.randrange(len(damaged))] = draw.choice(b'\n\xff\x00\xc3 a"')
        Path(name).write_bytes(bytes(damaged))
        refused = False
        try:
            list(iterate_texts([name]))
        except DataError:
            refused = True
        stopped += refused
        assert bool(check(name).errors) == refused
    assert 10 < stopped < 50


def test_text_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save("a.txt", story(1, 20_000))
    monkeypatch.setattr(documents, "MAX_LINE_HASHES", 2000)
    survey = TextSurvey([path])
    tracemalloc.start()
    survey.read()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert Path(path).stat().st_size > 1.4e6 and kept < 0.3e6


def test_a_pipe_is_refused_because_it_is_read_more_than_once(folder: Path) -> None:
    os.mkfifo("pipe.txt")
    with pytest.raises(RegardError, match=r"pipe\.txt"):
        check("pipe.txt")


def test_the_lengths_of_documents_are_drawn(folder: Path) -> None:
    report = check(objects("a.jsonl", [*story(1), "\n".join(story(2))]))
    picture = draw_lengths(report.lengths, Path("one.svg"))
    said = picture.read_text()
    assert "Sequence lengths: documents" in said and "4,001 documents" in said and "max_length" not in said
    one = draw_lengths(check(save("b.txt", story(1))).lengths, Path("two.png"))
    assert one.read_bytes().startswith(b"\x89PNG")
