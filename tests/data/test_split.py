"""Held-out part of the data, which does not depend on how the data is read, and the fingerprint."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from regard.data import training_files
from regard.data.training_files import DataSources, HeldOutKeys, TrainingFiles, add_texts
from regard.errors import DataError, SettingError
from regard.tasks import find_task


def as_ever(keys: list[str], share: float, most: int, salt: str) -> set[str]:
    """Definition of the split: the lowest digests of all distinct keys."""
    distinct = set(keys)
    count = max(1, min(int(share * len(distinct) + 1e-9), most, len(distinct) - 1))

    def digest(text: str) -> bytes:
        return blake2b(f"{salt}\0{text}".encode(), digest_size=16).digest()

    return set(heapq.nsmallest(count, distinct, key=digest))


@pytest.mark.parametrize("part", [7, 100, 10**6])
@pytest.mark.parametrize(("share", "most"), [(0.02, 2000), (0.3, 50), (0.29, 10**6), (0.9, 3), (1e-4, 5)])
def test_held_out_rows_do_not_depend_on_the_chunk_size(part: int, share: float, most: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(training_files, "_CHUNK_KEYS", part)
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


def test_too_little_data_and_invalid_fractions_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match="--valid"):
        HeldOutKeys(["one sentence"] * 5)
    with pytest.raises(SettingError, match="between 0 and 1"):
        HeldOutKeys(["one", "two"], fraction=1.0)


def test_a_fingerprint_notices_content_order_and_borders() -> None:
    def fingerprint(texts: Iterable[str]) -> str:
        add_texts(total := blake2b(digest_size=16), texts)
        return total.hexdigest()

    seen = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["abc"], ["ab", "c", ""], []]
    assert len(set(map(fingerprint, seen))) == len(seen)
    assert fingerprint(iter(("ab", "c"))) == "4826ed043ab3cdec576d8541fa5d5a80"


def test_a_second_run_takes_the_held_out_samples_from_the_cache_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = ({"question": "Which?", "choices": [f"{n}", f"{n + 1}"], "answer": 0} for n in range(30))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = DataSources((str(path),))
    first, again = (TrainingFiles(find_task("choose"), sources, 0.2, [].append).scan() for _ in range(2))
    assert first == again and first is not again and isinstance(again.held[0].choices, tuple)
