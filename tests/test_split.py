"""What is held out is one choice, however the data is read."""

from __future__ import annotations

import heapq
from hashlib import blake2b

import pytest

from regard.data import split
from regard.data.split import Held


def as_ever(keys: list[str], share: float, most: int, salt: str) -> set[str]:
    """The choice as it is defined: the lowest digests of all distinct keys."""
    distinct = set(keys)
    count = max(1, min(int(share * len(distinct) + 1e-9), most, len(distinct) - 1))

    def digest(text: str) -> bytes:
        return blake2b(f"{salt}\0{text}".encode(), digest_size=16).digest()

    return set(heapq.nsmallest(count, distinct, key=digest))


@pytest.mark.parametrize("part", [7, 100, 10**6])
@pytest.mark.parametrize(("share", "most"), [(0.02, 2000), (0.3, 50), (0.29, 10**6), (0.9, 3), (1e-4, 5)])
def test_the_held_out_are_the_same_however_few_are_looked_at_together(
    part: int, share: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "_PART", part)
    for count in (2, 3, 100, 1000):
        keys = [f"sentence {number % (2 * count // 3 + 1)}" for number in range(count)]
        held = Held(iter(keys), share, most, "salt")
        assert {key for key in keys if key in held} == as_ever(keys, share, most, "salt")
