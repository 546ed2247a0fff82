"""Tagged sentences: file formats, messages for invalid rows, and data checks."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from regard.data.check.report import ClassCounts, Report
from regard.data.check.texts import ChoiceSurvey, LabeledSurvey, TagSurvey
from regard.data.settings import DataSettings
from regard.data.text.tables import SkippedRow
from regard.data.text.tagged import TaggedSentence, iterate_tagged, read_tagged
from regard.draw.charts import draw_class_counts
from regard.errors import DataError, RegardError

REAL = Path(__file__).parents[3] / "shared/data/conll2003"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def plain(items: Any) -> list[tuple[str, str]]:
    return [(" ".join(item.words), " ".join(item.tags)) for item in items if isinstance(item, TaggedSentence)]


WANTED = [("EU rejects German lamb", "I-ORG O I-MISC O"), ("Peter Blackburn", "I-PER I-PER")]
WORDS = "EU NNP I-ORG\nrejects VBZ O\nGerman JJ I-MISC\nlamb NN O\n\nPeter NNP I-PER\nBlackburn NNP I-PER\n"
TABS = WORDS.replace(" ", "\t")
ROWS = "EU rejects German lamb{0}I-ORG O I-MISC O\nPeter Blackburn{0}I-PER I-PER\n"


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.conll", WORDS, None),
        ("a.iob", f"\n\n{WORDS}\n\n\n", None),
        ("a.bio.gz", TABS, None),
        ("a.txt", WORDS, None),
        ("a.tsv", TABS, None),
        ("a.tsv", TABS.replace("\n", "\r\n"), None),
        ("a.tsv", f"token\tpos\tner\n{TABS}", None),
        ("a.tsv", f"say\tpos\tkind\n{TABS}", {"words": "say", "tags": "kind"}),
        ("a.conll", f"-DOCSTART- -X- O\n\n{WORDS}", None),
        ("a.conll", WORDS.replace("\n\n", "\n\n-DOCSTART- -X- O\n"), None),
        ("a.conll", f"# id = 1\n# EU rejects\n{WORDS}", None),
        ("a.conll", "# id 7\tdomain=train\n" + WORDS.replace("\n\n", "\n\n# 8\tdomain=train\n"), None),
        ("a.conll", WORDS, {"words": "0", "tags": "2"}),
        ("a.conllu", "1\tEU\teu\tI-ORG\t_\n2-3\tx\t_\t_\t_\n2\trejects\t_\tO\t_\n2.1\ty\t_\t_\t_\n3\tGerman\t_\tI-MISC\t_\n"
         "4\tlamb\t_\tO\t_\n\n1\tPeter\t_\tI-PER\t_\n2\tBlackburn\t_\tI-PER\t_\n", None),
        ("a.csv", "words,tags\n" + ROWS.format(","), None),
        ("a.csv", "Sentence,id,NER_Tags\n" + ROWS.format(",3,"), None),
        ("a.csv", "said,kind\n" + ROWS.format(","), {"words": "said", "tags": "kind"}),
        ("a.tsv", ROWS.format("\t"), None),
        ("a.tsv", "tokens\ttags\n" + ROWS.format("\t"), None),
        ("a.tsv", "tokens\ttags\tid\n" + ROWS.format("\t").replace("\n", "\t7\n"), None),
        ("a.tsv", "tokens\tkind\tid\n" + ROWS.format("\t").replace("\n", "\t7\n"), {"tags": "kind"}),
        ("a.txt.gz", ROWS.format("\t7\t"), {"words": "0", "tags": "2"}),
        ("a.jsonl", "".join(json.dumps({"tokens": a.split(), "id": 1, "ner_tags": b.split()}) + "\n" for a, b in WANTED), None),
        ("a.jsonl", "".join(json.dumps({"words": a, "labels": b}) + "\n\n" for a, b in WANTED), None),
    ],
)  # fmt: skip
def test_sentences_are_read_from_every_form(name: str, text: str, columns: Any, tmp_path: Path) -> None:
    assert plain(iterate_tagged([write(tmp_path, name, text)], columns)) == WANTED


def test_rows_may_have_several_widths_where_columns_were_chosen(tmp_path: Path) -> None:
    wide = "EU x I-ORG y z\nrejects x O\nGerman x I-MISC y\nlamb x O\n\nPeter x I-PER\nBlackburn x I-PER z\n"
    path = write(tmp_path, "a.conll", wide)
    assert plain(iterate_tagged([path], {"words": "0", "tags": "2"})) == WANTED
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))


def parquet(folder: Path, names: list[str] | None = None, **columns: Any) -> str:
    arrow = pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    from pyarrow import parquet as files

    table = arrow.table(columns)
    if names:
        kind = {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"}
        kept = json.dumps({"info": {"features": {"ner_tags": kind}}})
        table = table.replace_schema_metadata({"huggingface": kept})
    files.write_table(table, folder / "a.parquet")
    return str(folder / "a.parquet")


def test_parquet_has_lists_and_may_name_its_numbers(tmp_path: Path) -> None:
    tokens = [words.split() for words, _ in WANTED]
    assert plain(iterate_tagged([parquet(tmp_path, tokens=tokens, ner_tags=[t.split() for _, t in WANTED])])) == WANTED
    names = ["O", "I-ORG", "I-MISC", "I-PER"]
    numbers = [[1, 0, 2, 0], [3, 3]]
    path = parquet(tmp_path, names, tokens=tokens, ner_tags=numbers)
    assert plain(iterate_tagged([path])) == WANTED
    path = parquet(tmp_path, None, tokens=tokens, ner_tags=numbers)
    with pytest.raises(DataError, match="'ner_tags'"):
        list(iterate_tagged([path]))
    path = parquet(tmp_path, names[:3], tokens=tokens, ner_tags=numbers)
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))


def test_numbers_are_not_tags_unless_they_have_names(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '\n{"words": ["a", "b"], "tags": [0, 1]}\n')
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([path]))
    path = write(tmp_path, "b.jsonl", '{"words": ["a", "b"], "tags": ["0", "1"]}\n')
    assert plain(iterate_tagged([path])) == [("a b", "0 1")]


def test_a_sentence_has_its_line_and_comes_back_from_json(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", f"-DOCSTART- -X- O\n\n{WORDS}")
    found = list(iterate_tagged([path]))
    assert [(item.path, item.line) for item in found] == [(path, 3), (path, 8)]
    assert TaggedSentence(**json.loads(json.dumps(asdict(found[0])))) == found[0]


def test_other_columns_are_other_tags(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", WORDS)
    assert plain(iterate_tagged([path], {"tags": "1"}))[1] == ("Peter Blackburn", "NNP NNP")
    with pytest.raises(DataError, match="line 1"):
        list(iterate_tagged([path], {"tags": "3"}))
    with pytest.raises(RegardError, match="line 1"):
        list(iterate_tagged([path], {"tags": "ner"}))
    with pytest.raises(RegardError, match="'tags'"):
        list(iterate_tagged([path], {"tag": "1"}))


def test_a_number_sign_as_a_word_is_not_a_comment(tmp_path: Path) -> None:
    path = write(tmp_path, "a.conll", "One CD O\n\n# # O\n1 CD O\n\n# text=a O\n#tag NN B-X\n# # O\n")
    assert plain(iterate_tagged([path])) == [("One", "O"), ("# 1", "O O"), ("#tag #", "B-X O")]
    path = write(tmp_path, "a.tsv", "#\tO\nb\tO\n\n# a comment\n# \tO\nx\tO\n")
    assert plain(iterate_tagged([path])) == [("# b", "O O"), ("# x", "O O")]


def test_non_breaking_spaces_do_not_split_a_word(tmp_path: Path) -> None:
    assert plain(iterate_tagged([write(tmp_path, "a.conll", "1\u00a0000 O\nkm O\n")])) == [("1\u00a0000 km", "O O")]
    assert plain(iterate_tagged([write(tmp_path, "a.tsv", "New York\tB-LOC\nis\tO\n")])) == [("New York is", "B-LOC O")]


BAD: list[tuple[str, str, str, str]] = [
    ("one column", "a.conll", "a O\nb\nc O\n\nd O\n", "line 2: expected 2 columns, got 1. In the first line, spaces"),
    ("too many", "a.conll", "a O\nb c O\n\nd O\n", "line 2: expected 2 columns, got 3"),
    ("blanks for a tab", "a.tsv", "a\tO\nb O\n\nd\tO\n", "line 2: expected 2 columns, got 1.*tabs separate"),
    ("no word", "a.tsv", "a\tO\n\tO\n\nd\tO\n", "line 2: tag 'O' has no word"),
    ("no tag", "a.tsv", "a\tO\nb\t\n\nd\tO\n", "line 2: word 'b' has no tag"),
    ("another scheme", "a.conll", "a B-X\n\nb NN\n\nd O\n", "line 3: inconsistent tag schemes: 'NN' here, 'B-X' on line 1"),
    ("uneven", "a.jsonl", '{"words": ["a", "b"], "tags": ["O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: expected one tag per word, got 2 words and 1 tag: a b"),
    ("blank word", "a.jsonl", '{"words": ["a", "\u00a0"], "tags": ["O", "O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: word 1 is empty"),
    ("a number", "a.jsonl", '{"words": ["a", 1], "tags": ["O", "O"]}\n{"words": ["d"], "tags": ["O"]}\n',
     "line 1: expected text in 'words', got 1"),
    ("not UTF-8", "a.conll", "a O\nb\udcff O\n\nd O\n", "line 2: invalid UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_lines_are_refused_by_name_or_noted(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=f"{name}, {said}"):
        list(iterate_tagged([str(tmp_path / name)]))
    heard: list[str] = []
    found = list(read_tagged(str(tmp_path / name), on_error=lambda kind, error: heard.append(kind)))
    assert len(heard) == 1 and plain(found)[-1] == ("d", "O") and ("b" not in plain(found)[0][0])


def test_single_letters_may_be_classes(tmp_path: Path) -> None:
    letters = write(tmp_path, "b.conll", "a NN\nb O\nc S\n")
    assert plain(iterate_tagged([letters])) == [("a b c", "NN O S")]


def test_rows_that_lack_something_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "words,tags\na b,\n,O O\n\nx,O\n\n")
    found = list(iterate_tagged([path]))
    assert [item.reason for item in found if isinstance(item, SkippedRow)] == [
        "missing tags for: a b",
        "missing words for: O O",
        "",
    ]
    with pytest.raises(DataError, match="sentences"):
        list(iterate_tagged([write(tmp_path, "b.csv", "words,tags\na,\n")]))
    with pytest.raises(DataError, match="sentences"):
        list(iterate_tagged([write(tmp_path, "b.conll", "\n\n")]))


def test_files_of_other_forms_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'\.xml'"):
        list(iterate_tagged([write(tmp_path, "a.xml", "<a/>")]))
    with pytest.raises(DataError, match="--columns"):
        list(iterate_tagged([write(tmp_path, "a.jsonl", '{"words": ["a"], "kind": ["O"]}')]))
    with pytest.raises(DataError, match="line 1"):
        list(iterate_tagged([write(tmp_path, "a.conll", "a sentence\nword\n".replace(" ", ""))]))


@pytest.mark.skipif(not REAL.exists(), reason="CoNLL-2003 is not there")
def test_real_sentences() -> None:
    report = TagSurvey.check([str(REAL / "dev.conll.gz")], [], None, DataSettings())
    assert report.counts == {"sentences": 3250, "files": 1, "words": 51362, "entities": 5942}
    assert report.class_counts[0].train == {"PER": 1842, "LOC": 1837, "ORG": 1341, "MISC": 922}
    assert "tags use the IOB1 scheme\n" in str(report) and not report.errors


# -- findings of a check


def clean(count: int = 200) -> list[str]:
    return [f"number B-{'A' if n % 2 else 'B'}\n{n} I-{'A' if n % 2 else 'B'}\nis O\nhere O\n" for n in range(count)]


def checked(folder: Path, sentences: list[str], held: list[str] | None = None, **settings: Any) -> Report:
    data = write(folder, "a.conll", "\n".join(sentences))
    valid = [write(folder, "b.conll", "\n".join(held))] if held else []
    return TagSurvey.check([data], valid, None, DataSettings(**settings))


def kinds(report: Report) -> dict[str, tuple[str, int]]:
    said = {found.id: (found.severity, found.count) for found in report.findings}
    return {kind: what for kind, what in said.items() if what[0] != "note"}


def test_clean_sentences_have_only_tag_statistics(tmp_path: Path) -> None:
    report = checked(tmp_path, clean())
    assert kinds(report) == {} and report.counts["entities"] == 200
    text = str(report)
    for said in (
        "tags use the IOB2 scheme",
        "entity types (B: 100, A: 100)",
        "words tagged O (outside of entities): 400 (50.0 %)",
    ):
        assert said in text
    assert text.index("sentence words") < text.index("entities by type") < text.index("Found no errors")
    assert report.lengths.words.tolist() == [[4]] * 200 and report.lengths.names == ("sentence",)
    assert report.as_dict()["class_counts"]["entities_by_type"]["training"] == {"A": 100, "B": 100}


def begins_otherwise(count: int) -> list[str]:
    return [f"x{n} O\ny I-A\n" for n in range(count)]


SPOILT: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    ("twice", lambda rows: [*rows, rows[3]], {"duplicates": ("warning", 1)}),
    ("other tags", lambda rows: [*rows, rows[3].replace("-A", "-B")], {"conflicting_labels": ("warning", 1)}),
    ("I after O", lambda rows: [*rows, "some O\nother I-A\n"], {"invalid_tags": ("warning", 1)}),
    (
        "both ways", lambda rows: [*rows, *begins_otherwise(60)],
        {"invalid_tags": ("error", 60), "tag_scheme": ("warning", 0)},
    ),
    ("rare", lambda rows: [*rows, "Rome B-C\n"], {"rare": ("warning", 1)}),
    (
        "no entity", lambda rows: [f"x{n} O\n" for n in range(len(rows))],
        {"no_entities": ("error", 0), "tag_scheme": ("warning", 0)},
    ),
    (
        "hardly any", lambda rows: [*rows[:100], *(f"{n} O\n" * 400 for n in range(60))],
        {"imbalance": ("warning", 200), "long": ("warning", 60)},
    ),
    (
        "one kind", lambda rows: [*(row.replace("-B", "-A") for row in rows), *(f"x{n} B-C\n" for n in range(9))],
        {"imbalance": ("warning", 200)},
    ),
    ("one column", lambda rows: [*rows, "a O\nb\n"], {"format": ("error", 1)}),
    ("mojibake", lambda rows: [*rows, "schÃ¶n O\n"], {"mojibake": ("warning", 1)}),
    ("few", lambda rows: rows[:20], {"few": ("warning", 20)}),
    ("long", lambda rows: [*rows, "fine O\n" * 300], {"long": ("warning", 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "found"), [case[1:] for case in SPOILT], ids=[case[0] for case in SPOILT])
def test_deliberate_errors_are_found_and_nothing_else(
    spoil: Any, found: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    report = checked(tmp_path, spoil(clean()))
    assert kinds(report) == found
    for finding in report.findings:
        if finding.locations:
            assert finding.locations[0].path == str(tmp_path / "a.conll") and finding.locations[0].line


def test_the_tag_that_was_repaired_is_named(tmp_path: Path) -> None:
    report = checked(tmp_path, [*clean(), "some O\nother I-A\n"])
    place = next(finding for finding in report.findings if finding.id == "invalid_tags").locations[0]
    assert place.line == 1001 and place.text == "some other/I-A  ('other' is tagged I-A, expected B-A)"


def test_plain_tags_are_checked_as_classes(tmp_path: Path) -> None:
    rows = [f"the DT\nword NN\n{n} CD\n" for n in range(100)]
    report = checked(tmp_path, rows)
    assert kinds(report) == {} and "tags are classes of single words" in str(report)
    assert kinds(checked(tmp_path, [*rows, "x FW\n"])) == {"rare": ("warning", 1)}
    assert kinds(checked(tmp_path, [f"a{n} NN\n" for n in range(100)])) == {"single_class": ("error", 0)}
    every = checked(tmp_path, [f"a{n} t{n}\n" for n in range(100)])
    assert kinds(every) == {"too_many_classes": ("error", 100)}
    most = checked(tmp_path, [*(f"a{n} NN\n" for n in range(200)), *(f"b{n} DT\n" for n in range(6))])
    assert kinds(most) == {"imbalance": ("warning", 200)}


def test_leaks_and_unknown_kinds_of_the_validation_set(tmp_path: Path) -> None:
    rows = clean()
    fresh = [f"fresh{n} B-{'A' if n % 2 else 'B'}\n" for n in range(40)]
    held = [rows[0], rows[1].replace("-A", "-B"), rows[2].replace("is", "IS"), "Rome B-C\n", *fresh]
    report = checked(tmp_path, rows, held)
    assert kinds(report) == {
        "leak": ("warning", 1), "leak_conflicting_labels": ("warning", 1), "leak_near_duplicate": ("warning", 1),
        "unseen_classes": ("error", 1),
    }  # fmt: skip
    assert "validation: entity types absent from the training data (C: 1)" in str(report)
    assert kinds(checked(tmp_path, rows, rows[:50])) == {"leak": ("error", 50)}


def test_classes_of_texts_and_positions_of_choices_have_distributions_too(tmp_path: Path) -> None:
    rows = "".join(f"film {n}\t{'good' if n % 4 else 'bad'}\n" for n in range(200))
    report = LabeledSurvey.check([write(tmp_path, "a.tsv", f"text\tlabel\n{rows}")], [], None, DataSettings())
    assert report.class_counts == (ClassCounts("classes", {"bad": 50, "good": 150}),)
    assert "75.0 %" in str(report) and str(report).endswith("Found no errors, 1 note.")
    asked = [{"context": f"{n}", "choices": ["a", "b"], "label": n % 2} for n in range(120)]
    report = ChoiceSurvey.check(
        [write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, asked)))], [], None, DataSettings()
    )
    assert report.class_counts[0].train == {"0": 60, "1": 60}


def test_distributions_are_drawn_and_reported(tmp_path: Path) -> None:
    report = checked(tmp_path, clean(), [*clean(5), "Rome B-C\n"])
    drawn = draw_class_counts(report.class_counts, tmp_path / "a.svg").read_text()
    assert ">Entities by type<" in drawn and ">validation<" in drawn and ">50.0 %<" in drawn
    assert draw_class_counts(report.class_counts[:1], tmp_path / "a.png").stat().st_size > 5_000
    lines = ClassCounts("classes", {"a": 3000, "b": 1}, {"a": 1, "c": 1}).lines()
    assert lines[1].split()[-6:] == ["3,000", "100.0", "%", "1", "50.0", "%"] and "█" * 24 in lines[1]
    assert "▏" in lines[2] and "< 0.05 %" in lines[2] and lines[3].startswith("c ")
    many = ClassCounts("classes", {f"c{n}": 100 - n for n in range(30)}).lines()
    assert len(many) == 22 and many[-1].startswith("… 10 others") and "755" in many[-1]


def test_a_file_of_whole_sentences_is_reported_as_not_pretokenized(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("sentence\tlabel\n" + "a whole sentence\t1\nand another one\t0\n" * 3)
    with pytest.raises(DataError, match="line 2"):
        list(iterate_tagged([str(path)]))
    path.write_text("# a note\there\nword\tO\nanother\tO\n\nNew York\tB-LOC\n")
    assert len(list(iterate_tagged([str(path)]))) == 2
