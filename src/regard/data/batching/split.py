"""Selection of held-out samples and fingerprints of data, both computed from content hashes."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

import numpy as np

from regard.errors import DataError, SettingError

VALID_FRACTION, MAX_VALID_KEYS = 0.02, 2000
"""Default fraction and maximum number of held-out keys."""
SMALL_VALID_KEYS = 20
"""Minimum number of held-out keys for small data, but at most a third of the data."""
_CHUNK_KEYS = 1_000_000


class HeldOutKeys:
    """Set of held-out keys: the fraction of distinct keys with the lowest hashes.

    All samples of a key are on the same side of the split. The choice does not depend on the order of the files, and
    added data hardly changes it. Each side has at least one key. Only the first 64 bits of the lowest hashes are stored
    (collision probability for a million keys: 1 in 37 million).

    With the default fraction, at least `min_keys` are held out, but at most a tenth of the keys; for small data
    `SMALL_VALID_KEYS`, but at most a third, because a score on a single sample is meaningless.
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
        # Chunks grow with the number of stored hashes, so that the hashes are sorted only a few times.
        while len(part := np.fromiter(islice(hashes, max(_CHUNK_KEYS, len(lowest))), np.uint64)):
            lowest = np.unique(np.concatenate([lowest, part]))
            # 1e-9 compensates rounding: 0.29 * 100 = 28.999… counts as 29.
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
        # big-endian, so that integers sort like the digests
        return int.from_bytes(blake2b(content, digest_size=16).digest()[:8], "big")


class Fingerprint:
    """Hash of a sequence of texts, to detect changed data."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=16)

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            content = text.encode("utf-8", "surrogatepass")
            # The length prefix distinguishes "ab", "c" from "a", "bc".
            self._digest.update(len(content).to_bytes(8, "little") + content)

    def __str__(self) -> str:
        return self._digest.hexdigest()


def compute_fingerprint(texts: Iterable[str]) -> str:
    total = Fingerprint()
    total.add(texts)
    return str(total)
