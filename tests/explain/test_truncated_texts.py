"""Explanations of truncated texts: the removed part is reported, and no word extends over it."""

from __future__ import annotations

import pytest

from encoders import encoder
from tokenizer_texts import STORY

WORDS = " ".join(["the cats", "sat on", "a mat"] * 12)


@pytest.mark.parametrize("pair", [False, True])
def test_the_cut_is_where_the_middle_was_removed(pair: bool) -> None:
    model = encoder("classify", [STORY, WORDS], ("bad", "good"), vocab_size=200)
    text = model.require_tokenizer()
    found = model.explain(WORDS, "the cat is a cat" if pair else None)
    assert found.decision is not None and "truncated" in found.facts
    (whole,) = text.encode([WORDS])
    for one in found.decision.attributions:
        ((at, lost),) = one.truncations
        ids = whole[: at - 1], len(whole) - (at - 1) - lost
        kept = "".join(one.pieces[1:at]).replace("␣", " ").strip()
        assert kept == text.decode([ids[0]])[0].strip()
        end = one.second_start - 1 if pair else len(one.pieces) - 1
        rest = "".join(one.pieces[at:end]).replace("␣", " ").strip()
        assert rest == text.decode([whole[len(whole) - ids[1] :]])[0].strip()
        assert one.words[at] != one.words[at - 1]


def test_of_an_embedded_text_the_end_is_left_out_and_of_a_short_one_nothing() -> None:
    model = encoder("embed", [STORY, WORDS], vocab_size=200)
    (whole,) = model.require_tokenizer().encode([WORDS])
    long, short = (model.explain(text).decision for text in (WORDS, "the cats"))
    assert long is not None and short is not None
    assert [one.truncations for one in long.attributions] == [((23, len(whole) - 22),)] * len(long.attributions)
    assert all(not one.truncations for one in short.attributions)


def test_no_word_extends_over_the_removed_part() -> None:
    model = encoder("classify", [" ".join("abcdefgh"), "abcdefgh"], ("bad", "good"), vocab_size=24)
    text, inside = model.require_tokenizer(), 0
    for more in range(4):
        source = " ".join(["abcdefgh"] * more + ["hgfedcba"] * 12)
        (whole,) = text.encode([source])
        found = model.explain(source).decision
        assert found is not None
        one = found.attributions[0]
        ((at, lost),) = one.truncations
        inside += not text.starts_word(whole)[at - 1 + lost]
        assert one.words[at] != one.words[at - 1] and one.pieces[at].startswith("␣")
    assert inside, "the cut must be inside a word in this test"
