"""Blocks of consecutive tokens, for attention maps too large for one row per token."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK_ROWS = 4096
"""Queries per chunk."""

MAX_NAMED_TOKENS = 8
"""Blocks up to this size are labeled with the tokens, larger blocks with the positions."""


@dataclass(frozen=True)
class TokenBlocks:
    """Block i contains the tokens from `starts[i]` up to, but not including, `starts[i + 1]`."""

    starts: tuple[int, ...]

    @classmethod
    def split(cls, length: int, max_blocks: int, isolated: Collection[int] = ()) -> TokenBlocks:
        """At most `max_blocks` blocks of similar size. Tokens in `isolated`, such as global tokens, share no block with others,
        so that attention to these tokens stays visible; ignored if more than half of the blocks would be needed."""
        flags = np.zeros(length + 2, dtype=bool)
        flags[1 + np.array(sorted(isolated), dtype=np.int64)] = True
        edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1])).tolist(), length]
        edges = sorted(set(edges))
        if length > max_blocks and len(edges) - 1 > max_blocks // 2:
            edges = [0, length]
        sizes = np.diff(edges)
        size = math.ceil(length / max_blocks)
        while np.ceil(sizes / size).sum() > max_blocks:
            size += 1
        starts = [begin + step for begin, wide in zip(edges, sizes, strict=False) for step in range(0, int(wide), size)]
        return cls((*starts, length))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def is_trivial(self) -> bool:
        """True if every block contains one token."""
        return len(self) == self.starts[-1]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(np.array(self.starts))

    @cached_property
    def block_ids(self) -> Tensor:
        """Block index of each token, (length,)."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.sizes))

    def names(self, pieces: Sequence[str]) -> tuple[str, ...]:
        found = []
        for begin, end in zip(self.starts, self.starts[1:], strict=False):
            numbered = f"{begin + 1:,}–{end:,}"
            found.append(" ".join(pieces[begin:end]) if end - begin <= MAX_NAMED_TOKENS else numbered)
        return tuple(found)

    def sum_tokens(self, values: Tensor) -> Tensor:
        """Sums over the tokens of each block: (…, length) -> (…, N)."""
        numbers = self.block_ids.to(values.device)
        return values.new_zeros(*values.shape[:-1], len(self)).index_add_(-1, numbers, values)

    def sum_attention(self, weights: Tensor, keys: Tensor | None = None, queries: Tensor | None = None) -> Tensor:
        """Attention between blocks, (H, N, N), from weights (H, R, C): sums over the queries and keys of the blocks.

        `keys` (R, C) or (H, R, C) are the tokens of the columns, `queries` (R,) the tokens of the rows; None: the indices."""
        many, numbers = len(self), self.block_ids.to(weights.device)
        wide = torch.float32 if weights.device.type == "mps" else torch.float64  # MPS has no float64
        found = torch.zeros(len(weights), many * many, dtype=wide, device=weights.device)
        rows = numbers[: weights.shape[1]] if queries is None else numbers[queries]
        for begin in range(0, len(rows), CHUNK_ROWS):
            cut = slice(begin, begin + CHUNK_ROWS)
            part, own = weights[:, cut].to(wide), rows[cut]
            if keys is None:
                part = self.sum_tokens(torch.nn.functional.pad(part, (0, len(numbers) - part.shape[-1])))
                found.view(-1, many, many).index_add_(1, own, part)
            else:
                to = own[:, None] * many + numbers[keys[..., cut, :]]
                found.scatter_add_(1, to.expand(part.shape).flatten(1), part.flatten(1))
        return found.view(-1, many, many)
