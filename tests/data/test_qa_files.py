"""Metrics of extractive question answering: SQuAD exact match, F1 and thresholds for unanswerable questions."""

from __future__ import annotations

import random

import numpy as np
import pytest

from data_files import refused
from regard.data.text.qa import QASample
from regard.errors import RegardError
from regard.tasks.metrics.squad import normalize_answer, squad_scores


def asked(*answers: str) -> QASample:
    return QASample("?", "…", answers, (0,) * len(answers), bool(answers))


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
    pool = ["the", "a", "Tower,", "tower", "Paris", "in", "(1889)", "!", "An", "rose-red", "naïve", "“Paris”"]

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


CLOSE = [(1.234, 3.0), (1.2341, 1.2342), (1.0, np.nextafter(1.0, 2.0)), (-7e5, 1e-9)]


def test_the_reported_best_threshold_gives_the_best_score() -> None:
    no_answer = [([asked("Paris"), asked()], ["Paris"] * 2, doubts) for doubts in CLOSE]
    all_answers = ([asked("Paris"), asked("1889")], ["Paris", "1889"], (5.0, -1.0))
    for spans, said, doubts in (*no_answer, all_answers):
        found = squad_scores(spans, said, doubts)
        assert found["best_exact_match"] == 100
        assert squad_scores(spans, said, doubts, found["best_exact_match_threshold"])["exact_match"] == 100
    assert found["exact_match"] == found["f1"] == found["answerable_f1"] == 50  # an empty answer is wrong
    found = squad_scores([asked("Paris"), asked("1889"), asked(), asked()], ["Paris"] * 4, [-3.0, 1.0, 0.5, 2.0])
    assert (found["best_exact_match"], found["best_exact_match_threshold"]) == (75, -1.25)  # halfway
    never = squad_scores([asked("a b"), asked(), asked()], ["x", "y", "z"], [-5.0, -7.0, -6.0])
    assert never["best_f1"] == pytest.approx(200 / 3) and never["best_f1_threshold"] < -7.0


def test_invalid_predictions_are_refused() -> None:
    refused("questions", squad_scores, [asked("x")], [], error=RegardError)
    refused("questions", squad_scores, [], [], error=RegardError)
    refused("NaN", squad_scores, [asked("x"), asked()], ["x", ""], [0.0, float("nan")], error=RegardError)
    assert normalize_answer("A man, a plan: the canal") == "man plan canal"
