"""Figures, pages and numbers of attributions: long texts, whole words, hostile tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page_data import page_data
from regard.draw.token_data import GRADIENT, ROLLOUT, AttentionMap, DecisionAttribution, TokenAttribution
from regard.explain import Explanation


def long_text(many: int = 3000, second: int = 0) -> TokenAttribution:
    """Long text whose tokens at 2000 to 2009 have high attributions."""
    shares = np.full(many, 1e-6)
    shares[2000:2010] = 0.05
    shares[0] = 0.4
    special = (True, *[False] * (many - 1))
    pieces = ("[CLS]", *(f"␣word{n}" for n in range(1, many)))
    return TokenAttribution("good", GRADIENT, pieces, shares / shares.sum(), special, tuple(range(many)), second, (0,))


def test_a_long_text_shows_its_beginning_and_the_highest_attributions() -> None:
    one = long_text()
    passages = one.top_passages(480)
    assert passages[0][0] == 0 and any(begin <= 2000 and end >= 2010 for begin, end in passages)
    assert sum(end - begin for begin, end in passages) <= 480
    assert all(a[1] < b[0] for a, b in pairwise(passages))
    assert one.top_passages(3000) == [(0, 3000)]
    assert one.max_fraction == one.fractions[2000] < one.fractions[0]  # special tokens do not set the color scale
    assert one.profile(100).argmax() == 2000 // 30 and one.profile(100).sum() < 0.6
    assert one.top_words(1)[0][0] == "word2000"


def attributed(
    pieces: Sequence[str], fractions: Sequence[float], words: Sequence[int] = (), **more: Any
) -> TokenAttribution:
    """Attribution of tokens; tokens in brackets are special."""
    special, numbers = tuple("[" in piece for piece in pieces), tuple(words) or tuple(range(len(pieces)))
    values = {"output_positions": (0,), **more}
    return TokenAttribution("x", GRADIENT, tuple(pieces), np.array(fractions), special, numbers, **values)


def with_attribution(explanation: Explanation, one: TokenAttribution) -> Explanation:
    return replace(explanation, decision=DecisionAttribution("good", (("good", 1.0),), (one,)))


def size_of(path: Path) -> list[float]:
    """Width and height of an .svg figure in inches."""
    found = dict(re.findall(r'(width|height)="([\d.]+)pt"', path.read_text("utf-8")))
    return [float(found[name]) / 72 for name in ("width", "height")]


def test_pieces_of_a_word_count_together_and_special_tokens_have_no_color() -> None:
    pieces = ("[CLS]", "␣un", "believ", "able", "␣moon")
    one = attributed(pieces, (0.1, 0.2, 0.3, 0.1, 0.3), (1, 2, 2, 2, 3), output_positions=(1,))
    assert one.top_words(2) == [("unbelievable", pytest.approx(0.6)), ("moon", pytest.approx(0.3))]
    assert one.output_names == "‘unbelievable’" and "special tokens: 10 % (hatched)" in one.note()
    assert one.word_fractions == pytest.approx([0, 0.6, 0.6, 0.6, 0.3])
    assert one.top_words(1)[0][1] == pytest.approx(one.max_fraction)  # the listed value equals the drawn value


@pytest.fixture(scope="module")
def explained() -> Explanation:
    """Two layers of three heads over two texts."""
    words = ("[CLS]", "the", "un", "·believable", "cat", "[SEP]", "it", "was", "sleeping", "[SEP]")
    pieces = ("[CLS]", "␣the", "␣un", "believable", "␣cat", "␣[SEP]", "␣it", "␣was", "␣sleeping", "␣[SEP]")
    special, numbers = tuple(word.startswith("[") for word in words), (1, 2, 3, 3, 4, 5, 6, 7, 8, 9)
    raw = np.random.default_rng(1).exponential(size=(2, 3, 10, 10)) ** 2
    raw /= raw.sum(-1, keepdims=True)
    layers, asked = ("layer 1", "layer 2"), raw[None, :, :, 0].swapaxes(1, 2)
    maps = (
        AttentionMap("text", "Self-attention", words, words, raw, boundaries=(6,)),
        AttentionMap("asked", "Attention from [CLS] by layer", layers, words, asked, row_kind="layers"),
    )
    counted = [
        TokenAttribution("good", way, pieces, row, special, numbers, 6, (0,))
        for way, row in zip((GRADIENT, ROLLOUT), raw.mean(1)[:, 0], strict=True)
    ]
    decided = DecisionAttribution("good", (("good", 0.612), ("bad", 0.388)), tuple(counted))
    return Explanation("the unbelievable cat ▸ it was sleeping → good", maps, {"tokens": "10"}, decision=decided)


def test_the_figure_contains_predictions_texts_and_both_legends(explained: Explanation, tmp_path: Path) -> None:
    drawn = explained.save(tmp_path / "a.svg").read_text("utf-8")
    assert all(text in drawn for text in ("good", "61.2 %", "bad", "38.8 %"))
    assert "of total attribution" in drawn and "of total rollout weight" in drawn
    assert "Attention from [CLS] by layer" in drawn and "All layers and heads" in drawn
    assert drawn.count(">sleeping<") >= 2 + 3  # in each text and in the attention maps
    alone = explained.save(tmp_path / "b.svg", layer=1, head=2).read_text("utf-8")
    assert "layer 1 of 2, head 2 of 3" in alone and "of total attribution" not in alone
    assert explained.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_page_and_json_contain_attributions(tmp_path: Path, explained: Explanation) -> None:
    data = page_data(explained.save(tmp_path / "a.html"))
    found = json.loads(explained.save(tmp_path / "a.json").read_text())
    assert found["probabilities"][0] == {"value": found["prediction"], "probability": 0.612}
    assert np.array(found["attention"]["text"]["weights"]).shape == explained.maps[0].weights.shape
    of_both = zip(data["decided"]["counted"], found["attributions"], explained.decision.attributions, strict=True)
    for shown, saved, one in of_both:
        assert saved["method"] == one.method and saved["tokens"] == list(one.pieces)
        np.testing.assert_allclose(saved["weights"], one.fractions)
        tokens = [token for token in shown["tokens"] if token is not None]
        assert shown["tokens"].index(None) == one.second_start and [token[0] for token in tokens] == list(one.pieces)
        np.testing.assert_allclose([token[1] for token in tokens], one.fractions, atol=1e-6)


@pytest.mark.slow
def test_long_texts_are_drawn_within_a_sheet(explained: Explanation, tmp_path: Path) -> None:
    path = with_attribution(explained, long_text(second=2004)).save(tmp_path / "a.svg")
    drawn = path.read_text("utf-8")
    assert max(size_of(path)) < 30  # inches
    assert "word2005" in drawn and "tokens …" in drawn and "maximum: " in drawn
    data = page_data(with_attribution(explained, long_text(9000)).save(tmp_path / "a.html"))
    (shown,) = data["decided"]["counted"]
    assert len(shown["tokens"]) < 4200 and len(shown["profile"]) <= 160 and shown["all"] == 9000


@pytest.mark.parametrize(("shares", "end"), [((0.0, 1.0), "100 % of total"), ((0.96, 0.04), "4 % of total")])
def test_the_end_of_a_scale_is_a_plain_number(
    explained: Explanation, tmp_path: Path, shares: tuple[float, float], end: str
) -> None:
    one = attributed(("[CLS]", "␣moon"), shares)
    drawn = with_attribution(explained, one).save(tmp_path / "a.svg").read_text("utf-8")
    assert end in drawn and "e+" not in " ".join(re.findall(r"<text[^>]*>([^<]*)<", drawn))
    assert f"[CLS] {100 * shares[0]:.0f} %" in drawn  # the percentage is printed, because special tokens have no color


def test_the_removed_part_of_a_text_is_between_its_halves(explained: Explanation, tmp_path: Path) -> None:
    one = attributed(("[CLS]", "␣the", "␣moon", "␣ing", "␣[SEP]"), (0.2,) * 5, truncations=((3, 1234),))
    assert "1,234 tokens removed" in one.note()
    cut = with_attribution(explained, one)
    assert "… 1,234 removed …" in cut.save(tmp_path / "a.svg").read_text("utf-8")
    assert page_data(cut.save(tmp_path / "a.html"))["decided"]["counted"][0]["tokens"][3] == 1234


@pytest.mark.slow
def test_short_texts_are_side_by_side(explained: Explanation, tmp_path: Path) -> None:
    width, height = size_of(explained.save(tmp_path / "a.svg"))
    assert explained.decision is not None and width < 13.5
    pieces = tuple(f"␣{'long' * 9}{n}" for n in range(10))
    long = tuple(replace(one, pieces=pieces) for one in explained.decision.attributions)
    below = replace(explained, decision=replace(explained.decision, attributions=long))
    assert size_of(below.save(tmp_path / "a.svg"))[1] > height + 2  # one below the other
