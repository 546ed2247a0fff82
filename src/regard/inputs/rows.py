"""Lists of different lengths -> one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.waists import Offsets


def pad(rows: Sequence[Sequence[int] | np.ndarray], value: int) -> tuple[Tensor, Tensor | None]:
    """(B, L) filled up with `value` on the right, and the lengths (B,); None when there is nothing to fill."""
    lengths = [len(row) for row in rows]
    table = np.full((len(rows), max(lengths, default=0)), value, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    equal = len(set(lengths)) <= 1
    return torch.from_numpy(table), None if equal else torch.tensor(lengths)


def pack(rows: Sequence[Sequence[int] | np.ndarray]) -> tuple[Tensor, Offsets]:
    """(1, sum of lengths): all rows one after another, and where each begins."""
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    longest = max((len(row) for row in rows), default=0)
    ids = torch.from_numpy(np.concatenate([np.asarray(row, dtype=np.int64) for row in rows]))
    return ids[None], Offsets(torch.from_numpy(starts), longest)
