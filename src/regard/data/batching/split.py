"""Which samples are held out, and whether the data is still the same: both decided by content alone."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

import numpy as np

from regard.errors import DataError, SettingError

VALID_FRACTION, MAX_VALID_KEYS = 0.02, 2000
"""How many of the keys are held out, and how many at most, unless another number is asked for."""
SMALL_VALID_KEYS = 20
"""Of small data so many are held out, up to a third of it."""
_CHUNK_KEYS = 1_000_000


class HeldOutKeys:
    """The keys that are held out: the distinct ones with the lowest hashes, a share of all.

    All samples of one key fall on one side, and neither the order of the files nor most of what is added to them changes
    the choice. At least one key stays on either side. Of each key the first 64 bits of its hash are kept, and only of
    those that may still be chosen: keys are told apart by them (a million have one in common once in 37 million times).

    Unless another share is asked for, `least` are held out where they are a tenth of the data at most, and of smaller data
    a few: a score of one sample says nothing.
    """

    def __init__(
        self,
        keys: Iterable[str],
        fraction: float = VALID_FRACTION,
        max_keys: int = MAX_VALID_KEYS,
        salt: str = "",
        min_keys: int = 1,
    ) -> None:
        if not 0 < fraction < 1 or max_keys < 1:
            raise SettingError(
                "Held-out data needs a fraction between 0 and 1 and a maximum of at least 1 sample, "
                f"got fraction {fraction} and maximum {max_keys}."
            )
        self.salt = salt
        hashes = map(self._hash, keys)
        lowest, enough = np.empty(0, np.uint64), False
        # A part is as long as what is known already, so that this is sorted few times.
        while len(part := np.fromiter(islice(hashes, max(_CHUNK_KEYS, len(lowest))), np.uint64)):
            lowest = np.unique(np.concatenate([lowest, part]))
            # The tiny surplus keeps 0.29 * 100 = 28.999… at 29.
            enough = enough or (int(fraction * len(lowest) + 1e-9) >= max_keys and len(lowest) > max_keys)
            lowest = lowest[:max_keys] if enough else lowest
        if len(lowest) < 2 and not enough:
            problem = f"Holding out samples needs at least 2 distinct samples, got {len(lowest)}."
            raise DataError(problem, advice="Add data, or pass separate validation data: --valid PATH.")
        wanted = int(fraction * len(lowest) + 1e-9)
        if fraction == VALID_FRACTION:
            wanted = max(wanted, min(min_keys, len(lowest) // 10), min(min_keys, SMALL_VALID_KEYS, len(lowest) // 3))
        count = max_keys if enough else max(1, min(wanted, max_keys, len(lowest) - 1))
        self._hashes = frozenset(lowest[:count].tolist())

    def __contains__(self, key: str) -> bool:
        return self._hash(key) in self._hashes

    def _hash(self, key: str) -> int:
        content = f"{self.salt}\0{key}".encode("utf-8", "surrogatepass")
        # big-endian, so that numbers are ordered as the whole digests are
        return int.from_bytes(blake2b(content, digest_size=16).digest()[:8], "big")


class Fingerprint:
    """A name for texts in their order, to notice that data has changed."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=16)

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            content = text.encode("utf-8", "surrogatepass")
            # With its length in front, "ab", "c" is not taken for "a", "bc".
            self._digest.update(len(content).to_bytes(8, "little") + content)

    def __str__(self) -> str:
        return self._digest.hexdigest()


def compute_fingerprint(texts: Iterable[str]) -> str:
    total = Fingerprint()
    total.add(texts)
    return str(total)
