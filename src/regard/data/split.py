"""Which samples are held out, and whether the data is still the same: both decided by content alone."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TypeVar

from regard.errors import DataError, SettingError

S = TypeVar("S")


def hold_out(
    samples: Sequence[S], key: Callable[[S], str], share: float = 0.02, most: int = 2000, salt: str = ""
) -> tuple[list[S], list[S]]:
    """Training and validation samples, each in the order given.

    The distinct keys with the lowest hashes are held out: all samples of one key fall on one side, and neither the
    order of the files nor most of what is added to them changes the choice. At least one key stays on either side.
    """
    if not 0 < share < 1 or most < 1:
        raise SettingError(f"cannot hold out {share} of the data, at most {most}: a share lies between 0 and 1.")
    keys = [key(sample) for sample in samples]
    distinct = set(keys)
    if len(distinct) < 2:
        advice = "Add data, or give validation data of its own: --valid PATH."
        raise DataError(f"{len(distinct)} different samples are too few to hold some out.", advice=advice)
    # The tiny surplus keeps 0.29 * 100 = 28.999… at 29.
    count = max(1, min(int(share * len(distinct) + 1e-9), most, len(distinct) - 1))
    held = set(heapq.nsmallest(count, distinct, key=lambda text: _digest(salt, text)))
    train = [sample for sample, text in zip(samples, keys, strict=True) if text not in held]
    valid = [sample for sample, text in zip(samples, keys, strict=True) if text in held]
    return train, valid


def fingerprint(texts: Iterable[str]) -> str:
    """A name for these texts in this order, to notice that data has changed."""
    total = blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        # With its length in front, "ab", "c" is not taken for "a", "bc".
        total.update(len(content).to_bytes(8, "little"))
        total.update(content)
    return total.hexdigest()


def _digest(salt: str, text: str) -> bytes:
    return blake2b(f"{salt}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
