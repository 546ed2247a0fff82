"""What a person may ask of the search, and what it means beside what a preset brought along."""

from __future__ import annotations

import math
from typing import Any

import pytest

from regard.decode.settings import Decode, told
from regard.errors import SettingError


def test_what_has_no_meaning_is_refused() -> None:
    alone = {
        "beam": 0,
        "best": 0,
        "top_k": -1,
        "top_p": 0.0,
        "longer": -1,
        "length": -1,
        "min_p": 1.5,
        "repetition": 0.0,
    }
    pairs: list[dict[str, Any]] = [{"best": 2}, {"beam": 2, "best": 3}, {"sample": True, "beam": 2}, {"top_p": 1.1}]
    strange = [{"temperature": value} for value in (-0.1, math.inf, math.nan)]
    strange += [{"min_p": -0.1}, {"repetition": math.inf}, {"until": ("a", "")}, {"best": 4097, "sample": True}]
    for wrong in [*pairs, *strange, *({name: value} for name, value in alone.items())]:
        with pytest.raises(SettingError, match=next(iter(wrong))):
            Decode(**wrong)
    with pytest.raises(SettingError, match=r"decode\.best"):
        Decode(sample=True, temperature=0, best=2)


def test_who_asks_for_samples_does_not_mean_the_beam_of_a_preset() -> None:
    preset = Decode(beam=4, best=2)
    assert told(preset, {"sample": "true"}) == Decode(beam=1, best=1, sample=True)
    assert told(preset, {"sample": True, "best": 3}).best == 3
    assert told(preset, {"best": 3}).beam == 4
    drawing = Decode(sample=True, best=3, top_k=7)
    assert told(drawing, {"sample": True}).best == 3
    assert told(drawing, {"beam": 4}) == Decode(beam=4, best=3, top_k=7)
    assert told(drawing, {"sample": False}) == Decode(top_k=7)
    with pytest.raises(SettingError, match="exclude"):
        told(preset, {"sample": True, "beam": 4})


@pytest.mark.parametrize("word", [{"temperature": "0.5"}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_who_says_how_to_draw_wants_to_draw(word: dict[str, Any]) -> None:
    """Otherwise the word would mean nothing, without a sound."""
    for preset in (Decode(), Decode(beam=4, best=2)):
        made = told(preset, word)
        assert made.sample and made.drawn and (made.beam, made.best) == (1, 1)
    assert not told(Decode(), {**word, "sample": "false"}).sample
    with pytest.raises(SettingError, match="exclude"):
        told(Decode(), {**word, "beam": 4})


def test_a_temperature_of_zero_is_greedy() -> None:
    for preset in (Decode(), Decode(beam=4, best=2), Decode(sample=True, best=5)):
        cold = told(preset, {"temperature": "0"})
        assert not cold.drawn and (cold.beam, cold.best) == (1, 1)


def test_texts_that_end_an_answer_are_taken_as_they_are() -> None:
    assert told(Decode(), {"until": ["\n", " a, b "]}).until == ("\n", " a, b ")
    assert told(Decode(), {"until": "\\n\\n,Q:"}).until == ("\n\n", "Q:"), "as a command line writes it"
    assert told(Decode(until=("a",)), {"until": ""}).until == () and told(Decode(until=("a",)), {}).until == ("a",)
    for wrong in (["a", ""], "a,,b", [3], 3):
        with pytest.raises(SettingError, match="until"):
            told(Decode(), {"until": wrong})
