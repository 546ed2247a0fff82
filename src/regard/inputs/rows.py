"""Lists of different lengths -> one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from regard.waists import Offsets


def pad(rows: Sequence[Sequence[int] | np.ndarray], value: int) -> tuple[Tensor, Tensor | None]:
    """(B, L) filled up with `value` on the right, and the lengths (B,); None when there is nothing to fill."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    longest = int(lengths.max(initial=0))
    table = np.full((len(rows), longest), value, dtype=np.int64)
    if len(rows):
        table[np.arange(longest) < lengths[:, None]] = np.concatenate(rows)
    equal = bool((lengths == longest).all())
    return torch.from_numpy(table), None if equal else torch.from_numpy(lengths)


def pack(rows: Sequence[Sequence[int] | np.ndarray]) -> tuple[Tensor, Offsets]:
    """(1, sum of lengths): all rows one after another, and where each begins."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    return ids[None], Offsets(torch.from_numpy(starts), int(lengths.max()))
