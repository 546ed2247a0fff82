"""Tag schemes and metrics: equal to `seqeval` on every sequence, including invalid sequences."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest

from regard.data.text import tagged
from regard.errors import RegardError
from regard.tasks.metrics.per_class import tagging_metrics

KINDS = ("PER", "LOC", "A-B")
SAME = {"L": "E", "U": "S"}


def noise(draw: random.Random, letters: str, length: int) -> list[str]:
    """Random tags."""
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in KINDS), *letters]
    return [draw.choice(tags) for _ in range(length)]


def some_entities(draw: random.Random, length: int) -> list[tagged.Entity]:
    found, at = [], 0
    while at < length:
        size = draw.randrange(1, 4)
        if draw.random() < 0.6 and at + size <= length:
            found.append(tagged.Entity(draw.choice(KINDS), at, at + size - 1))
        at += size if draw.random() < 0.6 else size + 1
    return found


def theirs(tags: list[str]) -> list[str]:
    """Tags in the letters of BIOES, which are the only letters supported by `seqeval`."""
    return [SAME.get(tag[0], tag[0]) + tag[1:] for tag in tags]


@pytest.mark.parametrize("letters", ["I", "BI", "IE", "BIES", "BILU", "BIESLU"])
def test_entities_of_any_tags_are_those_of_seqeval(letters: str) -> None:
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.metrics.sequence_labeling import get_entities

    draw = random.Random(letters)
    for _ in range(1500):
        tags = noise(draw, letters, draw.randrange(12))
        ours = [(entity.type or "_", entity.first, entity.last) for entity in tagged.extract_entities(tags)]
        assert ours == get_entities(theirs(tags)), tags


@pytest.mark.parametrize("scheme", list(tagged.SCHEME_LETTERS))
def test_every_scheme_gives_back_the_entities_it_was_given(scheme: tagged.TagScheme) -> None:
    draw = random.Random(1)
    seen, detector, entities = set[str](), tagged.SchemeDetector(), 0
    for _ in range(400):
        length = draw.randrange(1, 12)
        found = some_entities(draw, length)
        entities += len(found)
        tags = tagged.entities_to_tags(found, length, scheme)
        seen.update(tags)
        assert tagged.extract_entities(tags) == found and tagged.convert_tags(tags, scheme) == tags
        for other in tagged.SCHEME_LETTERS:
            assert tagged.convert_tags(tagged.convert_tags(tags, other), scheme) == tags
        detector.update(tags)
    assert seen == set(tagged.scheme_tags(KINDS, scheme))
    assert tagged.scheme_tags(["Y", "X"], "IOB2") == ["O", "B-X", "I-X", "B-Y", "I-Y"]
    assert tagged.scheme_tags([""], "BIOES") == ["O", "B", "E", "I", "S"]
    assert detector.scheme == scheme and not detector.num_invalid and not detector.ambiguity
    assert sum(detector.type_counts.values()) == entities


def test_strict_seqeval_reads_our_tags() -> None:
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities

    draw = random.Random(2)
    for scheme, its in {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES, "BILOU": BILOU}.items():
        for _ in range(100):
            found = some_entities(draw, 9)
            read = Entities([tagged.entities_to_tags(found, 9, scheme)], its).entities[0]  # type: ignore[arg-type]
            assert [(entity.tag, entity.start, entity.end - 1) for entity in read] == [tuple(e) for e in found]


@pytest.mark.parametrize("letters", ["BI", "BIES", "BILU"])
def test_measures_are_those_of_seqeval(letters: str) -> None:
    """Precision, recall, F1 and support, overall and per entity type, bit for bit."""
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.metrics import sequence_labeling as metrics

    draw = random.Random(letters)
    for round_ in range(150):
        right, said = [], []
        for _ in range(draw.randrange(1, 20)):
            length = draw.randrange(1, 10)
            tags = noise(draw, letters, length)
            right.append(tags)
            others = noise(draw, letters, length)
            said.append([tag if draw.random() < 0.8 else other for tag, other in zip(tags, others, strict=True)])
        if round_ == 0:
            right, said = [["O"] * 3], [["O"] * 3]  # division by zero
        found = tagging_metrics(right, said, "IOB2")
        ours, its = [list(map(theirs, side)) for side in (right, said)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            each = metrics.precision_recall_fscore_support(ours, its, average=None)
            whole = metrics.precision_recall_fscore_support(ours, its, average="micro")
        by_kind = [hits for _, hits in sorted((kind or "_", hits) for kind, hits in found.by_class.items())]
        assert [(h.precision, h.recall, h.f1, h.actual) for h in by_kind] == list(zip(*each, strict=True))
        assert (found.micro.precision, found.micro.recall, found.micro.f1, found.micro.actual) == whole
        if not set("LU") & set(letters):
            assert found.accuracy == metrics.accuracy_score(ours, its)


def test_measures_by_hand() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    said = [["B-PER", "I-PER", "B-LOC", "O"], ["B-LOC", "O"]]
    found = tagging_metrics(right, said, "IOB2")
    assert found.scores() == {"f1": 66.67, "precision": 66.67, "recall": 66.67, "accuracy": 66.67, "macro_f1": 75.0}
    assert found.table().splitlines()[2:] == [
        "| LOC  |    50 |        50 |     50 |       2 |         2 |",
        "| PER  |   100 |       100 |    100 |       1 |         1 |",
        "| all  | 66.67 |     66.67 |  66.67 |       3 |         3 |",
    ]
    found = tagging_metrics([["B-X", "I-X", "I-X"]], [["B-X", "I-X", "O"]], "IOB2")
    assert found.micro.correct == 0 and found.accuracy == pytest.approx(2 / 3)  # half an entity is not correct


def test_plain_tags_are_measured_by_word() -> None:
    found = tagging_metrics([["NN", "VB", "NN"], ["DT"]], [["NN", "NN", "NN"], ["DT"]], "plain")
    assert found.scores() == {"f1": 75.0, "accuracy": 75.0, "macro_f1": 60.0}
    assert found.by_class["NN"].precision == 2 / 3
    assert found.by_class["NN"].recall == 1.0
    assert found.by_class["VB"].f1 == 0.0
    assert [row.split()[1] for row in found.table().splitlines()[2:]] == ["NN", "DT", "VB", "all"]
    assert found.micro.f1 == found.accuracy


def test_a_figure_of_every_kind_is_drawn(tmp_path: Path) -> None:
    found = tagging_metrics([["B-PER", "O", "B-猫"]], [["B-PER", "O", "O"]], "IOB2")
    assert found.save_figure(tmp_path / "a.png").stat().st_size > 10_000
    drawn = found.save_figure(tmp_path / "a.svg").read_text()
    assert ">PER<" in drawn and ">66.7<" in drawn and ">entities<" in drawn


def test_uneven_sentences_and_strange_tags_are_refused() -> None:
    with pytest.raises(RegardError, match="predicted tags do not match"):
        tagging_metrics([["O", "O"]], [["O"]], "IOB2")
    with pytest.raises(RegardError, match="'NN'"):
        tagged.extract_entities(["NN"])


SPELLINGS: list[tuple[str, tuple[str, ...], str, int, str]] = [
    ("IOB1", ("I-X I-X O I-Y", "I-X B-X O"), "IOB1", 0, ""),
    ("IOB2", ("B-X I-X O B-Y", "B-X B-X O"), "IOB2", 0, ""),
    ("BIOES", ("B-X E-X O S-Y", "B-X I-X E-X"), "BIOES", 0, ""),
    ("BILOU", ("B-X L-X O U-Y", "B-X I-X L-X"), "BILOU", 0, ""),
    ("plain", ("NN VB", "DT NN S B"), "plain", 0, ""),
    ("letters", ("B I O", "B O"), "IOB2", 0, ""),
    ("one slip", (*["B-X I-X O"] * 20, "O I-X I-X"), "IOB2", 1, ""),
    ("many slips", ("B-X O", "B-X I-X", "I-X O"), "IOB2", 1, "(IOB2: 1, IOB1: 2)"),
    ("no entity", ("O O O",), "IOB2", 0, "no word is part of an entity"),
    ("as many", ("B-X O", "I-X O"), "IOB2", 1, "match IOB1 equally well"),
    ("E without B", (*["B-X E-X O S-X"] * 9, "O E-X O"), "BIOES", 1, ""),
    ("behind", ("PER-B PER-I O",), "plain", 0, "'PER-B' resembles an entity tag in an unsupported format"),
    ("two forms", ("B-X O", "NN VB"), "plain", 0, "'B-X' is an entity tag and 'NN' is not"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentences", "scheme", "repaired", "doubt"), [case[1:] for case in SPELLINGS], ids=[case[0] for case in SPELLINGS]
)
def test_the_scheme_is_recognized_by_its_tags(
    sentences: tuple[str, ...], scheme: str, repaired: int, doubt: str
) -> None:
    found = tagged.SchemeDetector()
    for sentence in sentences:
        found.update(sentence.split())
    assert (found.scheme, found.num_invalid) == (scheme, repaired)
    assert doubt in found.ambiguity and bool(doubt) == bool(found.ambiguity)
