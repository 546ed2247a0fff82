"""Explanations of texts that were too long: what was left out is told, and no word reaches over it."""

from __future__ import annotations

import pytest

from encoders import encoder
from writings import STORY

WORDS = " ".join(["the cats", "sat on", "a mat"] * 12)


@pytest.mark.parametrize("pair", [False, True])
def test_the_seam_stands_where_the_middle_was_left_out(pair: bool) -> None:
    model = encoder("classify", [STORY, WORDS], ("bad", "good"), vocabulary=200)
    text = model.text_or_refuse()
    found = model.explain(WORDS, "the cat is a cat" if pair else None)
    assert found.decided is not None and "cut" in found.facts
    (whole,) = text.encode([WORDS])
    for one in found.decided.counted:
        ((at, lost),) = one.seams
        ids = whole[: at - 1], len(whole) - (at - 1) - lost
        kept = "".join(one.pieces[1:at]).replace("␣", " ").strip()
        assert kept == text.decode([ids[0]])[0].strip()
        end = one.second - 1 if pair else len(one.pieces) - 1
        rest = "".join(one.pieces[at:end]).replace("␣", " ").strip()
        assert rest == text.decode([whole[len(whole) - ids[1] :]])[0].strip()
        assert one.words[at] != one.words[at - 1]


def test_of_an_embedded_text_the_end_is_left_out_and_of_a_short_one_nothing() -> None:
    model = encoder("embed", [STORY, WORDS], vocabulary=200)
    (whole,) = model.text_or_refuse().encode([WORDS])
    long, short = (model.explain(text).decided for text in (WORDS, "the cats"))
    assert long is not None and short is not None
    assert [one.seams for one in long.counted] == [((23, len(whole) - 22),)] * len(long.counted)
    assert all(not one.seams for one in short.counted)


def test_the_title_says_which_class_was_asked_about() -> None:
    model = encoder("classify", [STORY], ("bad", "good"), vocabulary=200)
    said = model.answer("the cat").value
    other = {"bad": "good", "good": "bad"}[str(said)]
    assert model.explain("the cat", other).title == f"the cat → {said} (what counted for {other})"
    assert model.explain("the cat", said).title == f"the cat → {said}"


def test_no_word_reaches_over_what_was_left_out() -> None:
    model = encoder("classify", [" ".join("abcdefgh"), "abcdefgh"], ("bad", "good"), vocabulary=24)
    text, inside = model.text_or_refuse(), 0
    for more in range(4):
        source = " ".join(["abcdefgh"] * more + ["hgfedcba"] * 12)
        (whole,) = text.encode([source])
        found = model.explain(source).decided
        assert found is not None
        one = found.counted[0]
        ((at, lost),) = one.seams
        inside += not text.starts_word(whole)[at - 1 + lost]
        assert one.words[at] != one.words[at - 1] and one.pieces[at].startswith("␣")
    assert inside, "a seam must fall into a word for this to show"
