"""CIDEr-D against pycocoevalcap and calculations by hand; and tokenization into words."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from regard.data.settings import DataSettings
from regard.tasks.caption import caption_scores
from regard.tasks.metrics.cider import cider, tokenize_words

SAID = ["a brown dog runs on the beach", "two children play in the snow", "a man", "the the the the dog dog"]
MEANT = [
    ["a brown dog is running on the beach", "the dog runs along the sand", "a dog on a beach"],
    ["two children are playing in the snow"],
    ["a man rides a red bicycle down the street", "a man on a bicycle"],
    ["the dog sleeps", "a black dog sleeps on the sofa in the house"],
]
RIGHT = [2.248870229938892, 3.422065396748824, 1.8947884562531119, 0.4405575650663055]
"""Scores of pycocoevalcap 1.2."""


def of(said: list[str], meant: list[list[str]]) -> list[float]:
    return cider([text.split() for text in said], [[text.split() for text in texts] for texts in meant]).tolist()


def test_scores_equal_pycocoevalcap() -> None:
    assert of(SAID, MEANT) == pytest.approx(RIGHT, rel=1e-12)
    scores = caption_scores(SAID, MEANT, DataSettings(pretokenized=True))
    assert scores["cider"] == round(100 * float(np.mean(RIGHT)), 2)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("a b", 10 * 2 / 4),  # equal unigrams and bigrams, without trigrams and 4-grams
        ("a a", 10 / (2 * math.sqrt(2)) / 4),  # the second a is clipped to the reference count
        ("a", 10 / math.sqrt(2) / 4 * math.exp(-1 / 72)),  # one word too short
        ("c d", 0.0),
        ("", 0.0),
        ("x y z", 0.0),
    ],
)
def test_sums_by_hand(said: str, right: float) -> None:
    assert of([said, "c d"], [["a b"], ["c d"]])[0] == pytest.approx(right, rel=1e-12)


def test_words_of_all_images_have_weight_0() -> None:
    assert of(["a b", "a b"], [["a b"], ["a b"]]) == [0.0, 0.0] and of(["a b"], [["a b"]]) == [0.0]


def test_images_may_have_different_numbers_of_references_and_no_order() -> None:
    turned = of(SAID[::-1], [texts[::-1] for texts in MEANT[::-1]])
    assert turned[::-1] == pytest.approx(RIGHT, rel=1e-12)
    with pytest.raises(ValueError, match="reference"):
        cider([["a"]], [[]])


@pytest.mark.slow
def test_five_thousand_images_take_seconds() -> None:
    random = np.random.default_rng(0)

    def text() -> list[str]:
        return [f"w{int(number)}" for number in random.integers(3000, size=11)]

    said, meant = [text() for _ in range(5000)], [[text() for _ in range(5)] for _ in range(5000)]
    begun = time.perf_counter()
    assert cider(said, meant).shape == (5000,)
    assert time.perf_counter() - begun < 20


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A man doesn't like the dog's toy .", "a man does n't like the dog 's toy"),
        ("It's 3.5 meters, or 1,000 feet & 50% off!", "it 's 3.5 meters or 1,000 feet & 50 % off"),
        ('"Hello," she said -- a well-known T-shirt costs $5.', "hello she said a well-known t-shirt costs $ 5"),
        ("They can't; we'll go... isn't it?", "they ca n't we 'll go is n't it"),
        ("at 5:30 two/three dogs' bowls", "at 5:30 two/three dogs bowls"),
        ("Ein Mädchen läuft – schnell", "ein mädchen läuft schnell"),
        (" . ", ""),
    ],
)
def test_words_are_those_of_penns_treebank_without_punctuation(text: str, found: str) -> None:
    assert " ".join(tokenize_words(text)) == found


def test_scores_are_of_all_references_and_of_plain_words() -> None:
    scores = caption_scores(
        ["A dog !", "Two cats sit ."], [["a cat", "the dog", "a dog"], ["two cats sit"]], DataSettings()
    )
    assert scores["exact_match"] == 100.0 and scores["bleu1"] == scores["bleu4"] == 100.0 and scores["samples"] == 2
    assert str(scores["signature"]).startswith("nrefs:var|case:mixed|eff:yes|tok:none")
    assert caption_scores(["A dog !"], [["a dog"]], DataSettings(pretokenized=True))["exact_match"] == 0.0
    assert "cider" not in caption_scores(["a"], [["a"]], DataSettings())
