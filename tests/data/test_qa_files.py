"""Questions with answers in contexts: file formats, messages for invalid rows, and metrics."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import jsonl, parquet, write
from regard.data.text.qa import LocatedAnswer, QASample, iterate_qa, locate_answer, read_qa
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError
from regard.tasks.metrics.squad import best_threshold, normalize_answer, squad_scores

CONTEXT = "In 1889 the tower rose in Paris.  Paris paid for the tower."


def squad(*asked: dict[str, Any], context: str = CONTEXT, title: str = "Tower") -> dict[str, Any]:
    return {"version": "x", "data": [{"title": title, "paragraphs": [{"context": context, "qas": list(asked)}]}]}


def plain(items: Any) -> list[tuple[Any, ...]]:
    return [(s.question, s.answers, s.starts, s.is_answerable) for s in items if isinstance(s, QASample)]


WHERE = {
    "id": "q1",
    "question": "Where?",
    "answers": [{"text": "Paris", "answer_start": 26}, {"text": "in Paris", "answer_start": 23}],
}
WHEN = {"id": "q2", "question": "When?", "answers": [{"text": "1889", "answer_start": 3}]}
WHY = {
    "id": "q3",
    "question": "Why?",
    "answers": [],
    "is_impossible": True,
    "plausible_answers": [{"text": "tower", "answer_start": 12}],
}
TOLD = [("Where?", ("Paris", "in Paris"), (26, 23), True), ("When?", ("1889",), (3,), True), ("Why?", (), (), False)]


def flat(answers: Any, question: str = "Where?", **more: Any) -> dict[str, Any]:
    return {"question": question, "context": CONTEXT, "answers": answers, **more}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_squad_is_read_with_and_without_answers(name: str, indent: int | None, folder: Path) -> None:
    path = write(name, json.dumps(squad(WHERE, WHEN, WHY), indent=indent))
    found = list(iterate_qa([path]))
    assert plain(found) == TOLD
    assert [(s.id, s.title, s.path, s.line, s.context) for s in found] == [
        (f"q{n}", "Tower", path, n, CONTEXT) for n in (1, 2, 3)
    ]
    assert {s.split_key for s in found} == {"Tower"} and QASample(**json.loads(json.dumps(asdict(found[0])))) == found[
        0
    ]


ANSWERS: list[Any] = [
    {"text": ["Paris", "in Paris"], "answer_start": [26, 23]},
    [{"text": "Paris", "answer_start": 26}, {"text": "in Paris", "answer_start": 23}],
    ["Paris", "in Paris"],
]


@pytest.mark.parametrize("answers", ANSWERS)
def test_answers_have_several_forms_in_json(answers: Any, folder: Path) -> None:
    rows = [flat(answers), {"context": CONTEXT, "question": "When?", "answer": "1889", "start": 3}, flat(None, "Why?")]
    for name, text in (("a.jsonl", "\n".join(map(json.dumps, rows))), ("b.json", json.dumps(rows))):
        found = list(iterate_qa([write(name, text)]))
        assert plain(found) == TOLD and found[1].line == 2 and found[0].split_key == CONTEXT
    rows = [flat(answers, id="x"), flat(None, "Why?", id=None)]
    path = parquet("a.parquet", {name: [row[name] for row in rows] for name in rows[0]})
    assert plain(iterate_qa([path])) == [TOLD[0], TOLD[2]]


def test_questions_marked_as_impossible_have_no_answer(folder: Path) -> None:
    rows = [flat("Paris", is_impossible=True), flat("Paris", is_impossible=False, start=-1)]
    found = list(iterate_qa([jsonl("a.jsonl", *rows)]))
    assert plain(found) == [("Where?", (), (), False), ("Where?", ("Paris",), (26,), True)]
    assert [span.num_relocated for span in found] == [0, 0]  # -1 is not a position


def test_tables_have_one_answer_per_row(folder: Path) -> None:
    rows = f"Id,Passage,Question,Answer_Start,Answer\n7,{CONTEXT},Where?,26,Paris\n"
    rows += f"8,{CONTEXT},When?,,1889\n9,{CONTEXT},Why?,,\n"
    found = list(iterate_qa([write("a.csv", rows)]))
    assert plain(found) == [("Where?", ("Paris",), (26,), True), *TOLD[1:]] and found[0].id == "7"
    named = f"asked\tread\tsaid\nWhere?\t{CONTEXT}\tParis\n"
    path = write("a.tsv", named)
    columns = {"question": "asked", "context": "read", "answer": "said"}
    assert plain(iterate_qa([path], columns)) == [("Where?", ("Paris",), (26,), True)]
    places = write("b.tsv", named.partition("\n")[2])
    assert plain(iterate_qa([places], {"question": "0", "context": "1", "answer": "2"}))[0][1] == ("Paris",)
    with pytest.raises(DataError, match="--columns"):
        list(iterate_qa([path]))
    with pytest.raises(RegardError, match="'answers'"):
        list(iterate_qa([path], {"answers": "said"}))
    with pytest.raises(RegardError, match="'reads'"):
        list(iterate_qa([path], {**columns, "context": "reads"}))
    path = write("a.jsonl", json.dumps({"asked": "Where?", "read": CONTEXT, "said": "Paris"}))
    assert plain(iterate_qa([path], columns)) == [("Where?", ("Paris",), (26,), True)]


PLACES: list[tuple[str, str, int | None, LocatedAnswer | None]] = [
    ("where it is said", "Paris", 34, LocatedAnswer("Paris", 34, False)),
    ("off by one", "Paris", 33, LocatedAnswer("Paris", 34, True)),
    ("off by some", "Paris", 28, LocatedAnswer("Paris", 26, True)),
    ("behind the end", "Paris", 999, LocatedAnswer("Paris", 34, True)),
    ("nowhere said", "Paris", None, LocatedAnswer("Paris", 26, False)),
    ("blanks around", " Paris ", 25, LocatedAnswer("Paris", 26, False)),
    ("blanks and a wrong place", "\nParis", 26, LocatedAnswer("Paris", 26, True)),
    ("blanks inside", "Paris. Paris", 26, LocatedAnswer("Paris.  Paris", 26, True)),
    ("a line end inside", "rose\nin", None, LocatedAnswer("rose in", 18, True)),
    ("inside a word", "ow", None, LocatedAnswer("ow", 13, False)),
    ("another case", "paris", 26, None),
    ("not there", "London", 26, None),
    ("signs of patterns", "P.ris", 26, None),
]


@pytest.mark.parametrize(("text", "start", "found"), [case[1:] for case in PLACES], ids=[case[0] for case in PLACES])
def test_an_answer_is_searched_near_its_position(text: str, start: int | None, found: LocatedAnswer | None) -> None:
    assert locate_answer(CONTEXT, text, start) == found


def test_whole_words_go_before_parts_of_words() -> None:
    assert locate_answer("a party of art", "art", None) == LocatedAnswer("art", 11, False)
    assert locate_answer("a party of art", "art", 4) == LocatedAnswer("art", 11, True)
    assert locate_answer("東京都は東京", "東京", 3) == LocatedAnswer("東京", 4, True)


def test_a_context_is_kept_as_it_is_written(folder: Path) -> None:
    row = {"question": " Where? ", "context": f"\n  {CONTEXT} ", "answer": "Paris", "start": 29}
    (found,) = iterate_qa([jsonl("a.jsonl", row)])
    assert isinstance(found, QASample) and found.context == row["context"] and found.question == "Where?"
    assert found.starts == (29,) and not found.num_relocated


def test_relocated_answers_are_counted(folder: Path) -> None:
    moved = {**WHERE, "answers": [{"text": "Paris", "answer_start": 25}, {"text": "in Paris", "answer_start": 23}]}
    found = list(iterate_qa([write("a.json", json.dumps(squad(moved, WHEN)))]))
    assert [s.num_relocated for s in found] == [1, 0] and found[0].starts == (26, 23)


BAD: list[tuple[str, str, Any, str, str]] = [
    ("elsewhere", "a.json", squad({**WHEN, "answers": [{"text": "1890", "answer_start": 3}]}, WHERE), "answer_not_in_context",
     r"a.json: question 1 \('q2'\): answer not found in the context: '1890'"),
    ("elsewhere in a row", "a.jsonl", [flat("London"), flat("Paris")], "answer_not_in_context", r"line 1: answer not found"),
    ("no context", "a.json", {"data": [{"paragraphs": [{"qas": []}]}, *squad(WHERE)["data"]]}, "format",
     r"paragraph 1 of article 1 has no key 'context'. Expected SQuAD format"),
    ("no paragraphs", "a.json", {"data": [{"title": "x"}, *squad(WHERE)["data"]]}, "format",
     r"article 1 \('x'\) has no list 'paragraphs'"),
    ("no question", "a.jsonl", [{"context": "x", "asked": "y"}, flat("Paris")], "format",
     r"line 1: missing key 'question' \(keys: context, asked\)"),
    ("a number", "a.jsonl", [flat(7), flat("Paris")], "format", r"line 1: expected text as the answer, got 7"),
    ("no place", "a.jsonl", [flat("Paris", start="far"), flat("Paris")], "format",
     r"line 1: answer start must be an integer, got 'far'"),
    ("too far a place", "a.jsonl", [flat("Paris", start=float("inf")), flat("Paris")], "format",  # 1e400
     r"line 1: answer start must be an integer, got inf"),
    ("half a place", "a.jsonl", [flat("Paris", start=2.5), flat("Paris")], "format", r"must be an integer, got 2.5"),
    ("uneven", "a.jsonl", [flat(["Paris", "1889"], starts=[1]), flat("Paris")], "format",
     r"answer starts \(1\) must equal the number of answers \(2\)"),
    ("a context of numbers", "a.jsonl", [{**flat("1"), "context": 12}, flat("Paris")], "format", r"expected text in 'context'"),
    ("half a character", "a.jsonl", [{**flat("1"), "context": "\ud800 1"}, flat("Paris")], "format", r"contains \\ud800, half"),
    ("not an object", "a.json", [["x"], flat("Paris")], "format", r"line 1: expected a JSON object, got list"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "kind", "said"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_questions_are_refused_by_name_or_noted(
    name: str, content: Any, kind: str, said: str, folder: Path
) -> None:
    text = "\n".join(map(json.dumps, content)) if name.endswith("l") else json.dumps(content)
    path = write(name, text)
    with pytest.raises(DataError, match=said):
        list(iterate_qa([path]))
    heard: list[str] = []
    found = list(read_qa(path, on_error=lambda kind, error: heard.append(kind)))
    assert heard == [kind] and [span.question for span in found if isinstance(span, QASample)] == ["Where?"]


def test_files_that_are_none_are_refused(folder: Path) -> None:
    for text, said in (
        ('{"data": 7}', "'data'"),
        ('{\n"data": [\n', "line 3"),
        ('{"question": "x"\n', "JSON"),
    ):
        with pytest.raises(DataError, match=said):
            list(iterate_qa([write("a.json", text)]))
    pytest.importorskip("pyarrow", reason="Parquet is read by pyarrow")
    with pytest.raises(DataError, match="Parquet"):
        list(iterate_qa([write("a.parquet", "nothing")]))


def test_empty_rows_are_skipped_by_line(folder: Path) -> None:
    rows = [flat("Paris", ""), {**flat("x"), "context": " "}, flat([{"text": "", "answer_start": 0}])]
    found = list(iterate_qa([write("a.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")]))
    assert [item.reason[:22] for item in found if isinstance(item, SkippedRow)] == [
        "missing question for: ", "missing context for: W",
    ]  # fmt: skip
    assert plain(found) == [("Where?", (), (), False)]
    with pytest.raises(DataError, match="questions"):
        list(iterate_qa([write("a.jsonl", json.dumps(flat("Paris", "")))]))


# -- metrics


def asked(*answers: str) -> QASample:
    return QASample("?", "…", answers, (0,) * len(answers), bool(answers))


HAND: list[tuple[str, str, tuple[str, ...], float, float]] = [
    ("articles and marks", "The Eiffel Tower!", ("eiffel tower",), 1, 1),
    ("case and blanks", "  eiffel   TOWER ", ("the Eiffel Tower",), 1, 1),
    ("a word more", "Eiffel Tower in Paris", ("Eiffel Tower",), 0, 2 / 3),
    ("a word less", "Tower", ("Eiffel Tower",), 0, 2 / 3),
    ("counted as often as there", "very very high", ("very high high",), 0, 2 / 3),
    ("the best of several", "Paris", ("London", "in Paris", "Paris, France"), 0, 2 / 3),
    ("a hyphen joins", "well-known", ("wellknown",), 1, 1),
    ("an article inside a word", "theatre", ("atre",), 0, 0),
    ("nothing said", "", ("Paris",), 0, 0),
    ("other marks stay", "“Paris”", ("Paris",), 0, 0),
    ("in 1.1 an article alone has no words", "the", ("a",), 1, 0),
]


@pytest.mark.parametrize(
    ("said", "answers", "exact_match", "f1"), [case[1:] for case in HAND], ids=[case[0] for case in HAND]
)
def test_answers_by_hand(said: str, answers: tuple[str, ...], exact_match: float, f1: float) -> None:
    found = squad_scores([asked(*answers)], [said])
    assert found == {"exact_match": 100 * exact_match, "f1": pytest.approx(100 * f1)}


def test_unanswerable_questions_accept_only_an_empty_answer() -> None:
    spans = [asked("Paris"), asked("1889"), asked(), asked()]
    found = squad_scores(spans, ["Paris now", "", "", "tower"])
    assert found["exact_match"] == 25 and found["f1"] == pytest.approx(100 * (2 / 3 + 1) / 4)
    assert found["answerable_exact_match"] == 0 and found["answerable_f1"] == pytest.approx(100 / 3)
    assert found["unanswerable_exact_match"] == found["unanswerable_f1"] == 50 and "best_f1" not in found


def test_scores_beyond_the_threshold_give_no_answer() -> None:
    spans = [asked("Paris"), asked("1889"), asked(), asked()]
    said, doubts = ["Paris", "1889", "tower", "tower"], [-3.0, 1.0, 0.5, 2.0]
    found = squad_scores(spans, said, doubts)
    assert (
        found["exact_match"] == 75
        and found["unanswerable_exact_match"] == 100
        and found["answerable_exact_match"] == 50
    )
    assert (found["best_exact_match"], found["best_exact_match_threshold"]) == (75, -1.25)
    assert squad_scores(spans, said, doubts, threshold=1.0)["exact_match"] == 75
    assert squad_scores(spans, said, doubts, threshold=9.0)["exact_match"] == 50
    never = squad_scores([asked("a b"), asked(), asked()], ["x", "y", "z"], [-5.0, -7.0, -6.0])
    assert never["best_f1"] == pytest.approx(200 / 3) and never["best_f1_threshold"] < -7.0


def words(text: str) -> list[str]:
    """Normalized words of SQuAD, character by character."""
    kept = "".join(letter for letter in text.lower() if letter not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def by_the_rules(said: str, answers: tuple[str, ...], second: bool) -> tuple[float, float]:
    if second:
        answers = tuple(one for one in answers if words(one)) or ("",)
    exact, f1 = 0.0, 0.0
    for one in answers:
        ours, left, same = words(said), words(one), 0
        exact = max(exact, float(ours == left))
        size = len(left)
        for word in ours:
            if word in left:
                left.remove(word)
                same += 1
        here = 2 * same / (len(ours) + size) if same else 0.0
        f1 = max(f1, float(not ours and not size) if second and not (ours and size) else here)
    return exact, f1


def test_measures_follow_the_rules_on_any_texts() -> None:
    draw = random.Random(5)
    pool = ["the", "a", "Tower,", "tower", "Paris", "in", "(1889)", "!", "An", "rose-red", "naïve"]

    def text() -> str:
        return " ".join(draw.choice(pool) for _ in range(draw.randrange(5)))

    for _ in range(300):
        second = draw.random() < 0.5
        spans = [asked(*(text() or "x" for _ in range(draw.randrange(1, 4)))) for _ in range(6)]
        spans += [asked()] * (second * draw.randrange(1, 4))
        said = [draw.choice([text(), *span.answers, ""]) for span in spans]
        right = np.array([by_the_rules(text, span.answers, second) for span, text in zip(spans, said, strict=True)])
        found = squad_scores(spans, said)
        assert [found["exact_match"], found["f1"]] == pytest.approx(list(100 * right.mean(0)))
        if not second:
            assert list(found) == ["exact_match", "f1"]
            continue
        possible = np.array([span.is_answerable for span in spans])
        assert found["answerable_f1"] == pytest.approx(100 * right[possible, 1].mean())
        assert found["unanswerable_exact_match"] == pytest.approx(100 * right[~possible, 0].mean())
        doubts = [float(draw.randrange(-3, 4)) for _ in spans]  # with many ties
        found = squad_scores(spans, said, doubts, threshold=1.0)
        for place, name in enumerate(("exact_match", "f1")):
            at = {t: np.where(np.array(doubts) > t, ~possible, right[:, place]).mean() for t in [-9.0, *sorted(doubts)]}
            assert found[name] == pytest.approx(100 * at.get(1.0, at[max(t for t in at if t <= 1)]))
            assert found[f"best_{name}"] == pytest.approx(100 * max(at.values()))
            best = found[f"best_{name}_threshold"]
            lowest = min(t for t, value in at.items() if np.isclose(value, max(at.values())))
            assert max([-9.0, *(t for t in doubts if t <= best)]) == lowest
            assert squad_scores(spans, said, doubts, best)[name] == pytest.approx(found[f"best_{name}"])


def test_a_threshold_never_divides_equal_doubts() -> None:
    scores, possible = np.array([1.0, 0.0, 1.0]), np.array([True, False, True])
    assert best_threshold(scores, [2.0, 2.0, 2.0], possible) == (pytest.approx(2 / 3), 2.5)


@pytest.mark.parametrize("doubts", [(1.234, 3.0), (1.2341, 1.2342), (1.0, np.nextafter(1.0, 2.0)), (-7e5, 1e-9)])
def test_scores_at_the_reported_best_threshold_are_correct(doubts: tuple[float, float]) -> None:
    spans, said = [asked("Paris"), asked()], ["Paris", "Paris"]
    found = squad_scores(spans, said, doubts)
    assert found["best_exact_match"] == 100
    assert squad_scores(spans, said, doubts, found["best_exact_match_threshold"])["exact_match"] == 100


def test_an_empty_answer_is_wrong_if_every_question_has_an_answer() -> None:
    spans = [asked("Paris"), asked("1889")]
    found = squad_scores(spans, ["Paris", "1889"], [5.0, -1.0])
    assert found["exact_match"] == found["f1"] == found["answerable_f1"] == 50
    assert (
        squad_scores(spans, ["Paris", "1889"], [5.0, -1.0], found["best_f1_threshold"])["f1"] == found["best_f1"] == 100
    )


def test_invalid_predictions_are_refused() -> None:
    with pytest.raises(RegardError, match="questions"):
        squad_scores([asked("x")], [])
    with pytest.raises(RegardError, match="questions"):
        squad_scores([], [])
    with pytest.raises(RegardError, match="NaN"):
        squad_scores([asked("x"), asked()], ["x", ""], [0.0, float("nan")])
    assert normalize_answer("A man, a plan: the canal") == "man plan canal"
