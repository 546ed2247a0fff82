"""Stretches of tokens that stand together in a picture, where it cannot have a row for each."""

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
"""Queries that are counted at once."""

MAX_NAMED_TOKENS = 8
"""Tokens of a block that can still be named by them; a longer one has numbers."""


@dataclass(frozen=True)
class TokenBlocks:
    """Block i is the tokens from `starts[i]` to `starts[i + 1]`."""

    starts: tuple[int, ...]

    @classmethod
    def split(cls, length: int, max_blocks: int, isolated: Collection[int] = ()) -> TokenBlocks:
        """At most `most` blocks of like sizes. What stands `apart` shares a block with its like only, so that tokens that
        all see are seen; not where there are so many that nothing else would be."""
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
        """Whether every token has a block for itself."""
        return len(self) == self.starts[-1]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(np.array(self.starts))

    @cached_property
    def block_ids(self) -> Tensor:
        """(length,) the block of each token."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.sizes))

    def names(self, pieces: Sequence[str]) -> tuple[str, ...]:
        found = []
        for begin, end in zip(self.starts, self.starts[1:], strict=False):
            numbered = f"{begin + 1:,}–{end:,}"
            found.append(" ".join(pieces[begin:end]) if end - begin <= MAX_NAMED_TOKENS else numbered)
        return tuple(found)

    def sum_tokens(self, values: Tensor) -> Tensor:
        """(…, length) -> (…, N): sums over the tokens of each block."""
        numbers = self.block_ids.to(values.device)
        return values.new_zeros(*values.shape[:-1], len(self)).index_add_(-1, numbers, values)

    def sum_attention(self, weights: Tensor, keys: Tensor | None = None, queries: Tensor | None = None) -> Tensor:
        """(H, N, N) from weights (H, R, C): how much a token of a block looked at each block, summed over the block's tokens.

        `keys` (R, C) or (H, R, C) are the tokens of the columns, `queries` (R,) those of the rows; None: their numbers."""
        many, numbers = len(self), self.block_ids.to(weights.device)
        wide = torch.float32 if weights.device.type == "mps" else torch.float64  # which has no other
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
