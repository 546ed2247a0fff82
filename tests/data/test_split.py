"""Held-out part of the data, which does not depend on how the data is read, and the fingerprint."""

from __future__ import annotations

import heapq
import random
from hashlib import blake2b
from typing import Any

import pytest

from regard.data.text.samples import Pair
from regard.errors import DataError, SettingError
from regard.runs import preprocess
from regard.runs.preprocess import HeldOutKeys, compute_fingerprint


def as_ever(keys: list[str], share: float, most: int, salt: str) -> set[str]:
    """Definition of the split: the lowest digests of all distinct keys."""
    distinct = set(keys)
    count = max(1, min(int(share * len(distinct) + 1e-9), most, len(distinct) - 1))

    def digest(text: str) -> bytes:
        return blake2b(f"{salt}\0{text}".encode(), digest_size=16).digest()

    return set(heapq.nsmallest(count, distinct, key=digest))


@pytest.mark.parametrize("part", [7, 100, 10**6])
@pytest.mark.parametrize(("share", "most"), [(0.02, 2000), (0.3, 50), (0.29, 10**6), (0.9, 3), (1e-4, 5)])
def test_the_held_out_rows_do_not_depend_on_the_chunk_size(
    part: int, share: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preprocess, "_CHUNK_KEYS", part)
    for count in (2, 3, 100, 1000):
        keys = [f"sentence {number % (2 * count // 3 + 1)}" for number in range(count)]
        held = HeldOutKeys(iter(keys), share, most, "salt")
        assert {key for key in keys if key in held} == as_ever(keys, share, most, "salt")


@pytest.mark.parametrize(
    ("count", "held"), [(2, 1), (3, 1), (30, 10), (60, 20), (150, 20), (300, 30), (1000, 100), (4000, 100), (6000, 120)]
)
def test_of_small_data_more_is_held_out_up_to_a_third(count: int, held: int) -> None:
    keys = [f"text {number}" for number in range(count)]

    def many(**more: Any) -> int:
        found = HeldOutKeys(keys, **more)
        return sum(key in found for key in keys)

    assert many(min_keys=100) == held
    assert many() == max(1, int(0.02 * count)) == many(min_keys=1)
    assert many(fraction=0.1, min_keys=100) == max(1, count // 10)  # an explicit fraction is kept
    assert many(min_keys=20) == max(min(20, count // 3), 1, int(0.02 * count))
    assert many(min_keys=100, max_keys=5) == min(5, held)


def numbered(count: int) -> list[Pair]:
    return [Pair(f"sentence {n}", f"Satz {n}", "a.tsv", n) for n in range(1, count + 1)]


def hold_out(pairs: list[Pair], **given: Any) -> tuple[list[Pair], list[Pair]]:
    held = HeldOutKeys((pair.source for pair in pairs), **given)
    return [pair for pair in pairs if pair.source not in held], [pair for pair in pairs if pair.source in held]


def test_two_percent_are_held_out_in_file_order() -> None:
    pairs = numbered(1000)
    train, valid = hold_out(pairs)
    assert len(valid) == 20
    assert sorted(train + valid, key=lambda pair: pair.line) == pairs
    assert [p.line for p in valid] == sorted(p.line for p in valid)
    assert [p.line for p in train] == sorted(p.line for p in train)
    assert len(hold_out(pairs, fraction=0.29)[1]) == 290
    assert len(hold_out(pairs, fraction=0.5, max_keys=7)[1]) == 7
    assert hold_out(pairs, salt="other")[1] != valid


def test_the_same_sentence_never_falls_on_both_sides() -> None:
    pairs = [Pair(f"sentence {n % 100}", str(n), "a.tsv", n) for n in range(1000)]
    train, valid = hold_out(pairs, fraction=0.1)
    assert len({pair.source for pair in valid}) == 10 and len(valid) == 100
    assert not {pair.source for pair in valid} & {pair.source for pair in train}


def test_order_does_not_change_the_held_out_rows_and_growth_changes_few() -> None:
    pairs = numbered(1000)
    held = set(hold_out(pairs, fraction=0.1)[1])
    random.Random(0).shuffle(pairs)
    assert set(hold_out(pairs, fraction=0.1)[1]) == held
    grown = set(hold_out(numbered(1100), fraction=0.1)[1])
    assert len(held & grown) >= 90


def test_something_stays_on_either_side_and_too_little_data_cannot_be_held_out() -> None:
    train, valid = hold_out(numbered(2))
    assert len(train) == len(valid) == 1
    assert len(hold_out(numbered(3), fraction=0.99)[0]) == 1
    with pytest.raises(DataError, match="--valid"):
        hold_out(numbered(1) * 5)
    with pytest.raises(SettingError, match="between 0 and 1"):
        hold_out(numbered(5), fraction=1.0)


def test_a_fingerprint_notices_content_order_and_borders() -> None:
    seen = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"], ["ab", "c", ""], []]
    assert len({compute_fingerprint(some) for some in seen}) == len(seen)
    assert compute_fingerprint(iter(("ab", "c"))) == "4826ed043ab3cdec576d8541fa5d5a80"
