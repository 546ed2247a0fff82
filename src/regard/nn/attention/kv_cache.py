"""KV caches. Modules have no state: the caller owns the cache, and each decoding step updates the cache in place.

DynamicCache   keys and values of all steps so far; each step appends columns
StaticCache    buffers of constant size, so that compiled code has a single shape
CrossCache     keys and values of the context, computed once (cross-attention)

The key of position p is in column p, so rows may have different lengths and can be removed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

KeyValue = tuple[Tensor, Tensor]


class KVCache:
    """Keys and values (B, H, K, d); None: none yet."""

    k: Tensor | None
    v: Tensor | None

    def extend(self, k: Tensor, v: Tensor, at: Tensor | None) -> KeyValue:
        """Add keys and values of new tokens, and return all keys and values for the queries.

        `at`: the columns of the new keys, (Q,) or (B, Q); None: from column 0 if the cache is empty, else after the
        existing keys."""
        raise NotImplementedError

    def select_rows(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)


@dataclass
class DynamicCache(KVCache):
    k: Tensor | None = None
    v: Tensor | None = None
    buffers: KeyValue | None = None
    """Buffers with spare columns; `k` and `v` are views of their first columns, so appending does not copy old keys."""
    aligned: bool = True
    """All rows end in the same column, and new keys follow there. If False, new keys are written at `at`."""

    def extend(self, k: Tensor, v: Tensor, at: Tensor | None) -> KeyValue:
        if self.k is None or self.v is None or not self.k.shape[-2]:
            self.k, self.v = k, v
            return k, v
        used, now = self.k.shape[-2], self.k.shape[-2] + k.shape[-2]
        if self.buffers is None or self.buffers[0].shape[-2] < now:
            room = max(2 * now, 32 * k.shape[-2])
            buffers = [x.new_empty(*x.shape[:-2], room, x.shape[-1]) for x in (self.k, self.v)]
            for buffer, old in zip(buffers, (self.k, self.v), strict=True):
                buffer[..., :used, :] = old
            self.buffers = buffers[0], buffers[1]
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            if self.aligned or at is None:
                buffer[..., used:now, :] = new
            else:
                buffer[..., used:now, :] = 0.0  # masked for shorter rows, but must be finite: 0 · NaN is NaN
                _write(buffer, at, new)
        self.k, self.v = self.buffers[0][..., :now, :], self.buffers[1][..., :now, :]
        return self.k, self.v

    def select_rows(self, rows: Tensor) -> None:
        super().select_rows(rows)
        self.buffers = None

    def trim(self, length: int, aligned: bool) -> None:
        """Truncate all rows to `length`. `aligned`: all rows have exactly that length."""
        self.aligned = aligned
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[..., :length, :], self.v[..., :length, :]


def _write(buffer: Tensor, where: Tensor, new: Tensor) -> None:
    """Write `new` (B, H, Q, d) into the columns `where`, (Q,) or (B, Q)."""
    if where.ndim == 1:
        buffer.index_copy_(-2, where, new)
    else:
        buffer.scatter_(-2, where[:, None, :, None].expand_as(new), new)


@dataclass
class StaticCache(KVCache):
    """KV cache of fixed shape for `max_positions` positions per row. Columns after the position of a row are masked.

    Steps write at their positions, or at `write_columns` if set (beams write side by side)."""

    max_positions: int
    k: Tensor | None = None
    v: Tensor | None = None
    write_columns: Tensor | None = None
    kernel_counters: Tensor | None = None  # Zeros that a kernel increments and resets to 0.

    def extend(self, k: Tensor, v: Tensor, at: Tensor | None) -> KeyValue:
        if self.k is None or self.v is None:
            self.allocate(k, v)
        assert self.k is not None and self.v is not None
        at = self.write_columns if at is None else at
        if at is None:  # without earlier columns, the new keys are all keys
            self.k[..., : k.shape[-2], :], self.v[..., : k.shape[-2], :] = k, v
            return k, v
        _write(self.k, at, k)
        _write(self.v, at, v)
        return self.k, self.v

    def allocate(self, k: Tensor, v: Tensor) -> StaticCache:
        """Allocate zeroed buffers for keys and values like k and v (B, H, K, d): CUDA graph capture needs fixed addresses."""
        self.k, self.v = (like.new_zeros(*like.shape[:-2], self.max_positions, like.shape[-1]) for like in (k, v))
        return self

    def grow(self, write_columns: Tensor, max_positions: int) -> None:
        """Enlarge the cache to `max_positions` columns; later steps write at `write_columns`."""
        self.write_columns, self.max_positions = write_columns, max_positions
        if self.k is not None and self.v is not None:
            more = max_positions - self.k.shape[-2]
            self.k, self.v = F.pad(self.k, (0, 0, 0, more)), F.pad(self.v, (0, 0, 0, more))


@dataclass
class CrossCache(KVCache):
    """Keys and values of the context; None: not yet computed."""

    k: Tensor | None = None
    v: Tensor | None = None


@dataclass
class LayerCache:
    """Caches of one decoder block: self-attention and cross-attention."""

    self_cache: KVCache = field(default_factory=DynamicCache)
    cross_cache: CrossCache = field(default_factory=CrossCache)
