"""KV caches. Modules have no state: the caller owns the cache, and each decoding step updates the cache in place.

DynamicCache   keys and values of all steps so far; each step appends columns
StaticCache    buffers of constant size, so that compiled code has a single shape
CrossCache     keys and values of the context, computed once (cross-attention)

The key of position p is in column p, so rows may have different lengths and can be added or removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

KeyValue = tuple[Tensor, Tensor]


class KVCache:
    """`extend` receives a function for the new keys and values, and returns all keys and values for the queries.

    `at`: the columns of the new keys, (Q,) or (B, Q); None: from column 0 if the cache is empty, else after the
    existing keys."""

    @property
    def has_past(self) -> bool:
        """Whether new keys come after existing keys if `at` is None."""
        raise NotImplementedError

    def extend(self, compute: Callable[[], KeyValue], at: Tensor | None) -> KeyValue:
        raise NotImplementedError

    def select_rows(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`."""
        raise NotImplementedError

    def append_rows(self, other: Any) -> None:
        """Append the rows of another cache of the same class."""
        raise NotImplementedError


@dataclass
class DynamicCache(KVCache):
    k: Tensor | None = None
    v: Tensor | None = None
    buffers: KeyValue | None = None
    """Buffers with spare columns; `k` and `v` are views of their first columns, so appending does not copy old keys."""
    aligned: bool = True
    """All rows end in the same column, and new keys follow there. If False, new keys are written at `at`."""

    @property
    def has_past(self) -> bool:
        return self.k is not None and self.k.shape[-2] > 0

    def extend(self, compute: Callable[[], KeyValue], at: Tensor | None) -> KeyValue:
        k, v = compute()
        if self.k is None or self.v is None or not self.k.shape[-2]:
            self.k, self.v = k, v
            return k, v
        used, now = self.k.shape[-2], self.k.shape[-2] + k.shape[-2]
        if self.buffers is None or self.buffers[0].shape[-2] < now:
            room = max(2 * now, 32 * k.shape[-2])
            self.buffers = _enlarge(self.k, room), _enlarge(self.v, room)
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            if self.aligned or at is None:
                buffer[..., used:now, :] = new
            else:
                buffer[..., used:now, :] = 0.0  # masked for shorter rows, but must be finite: 0 · NaN is NaN
                _write(buffer, at, new)
        self.k, self.v = self.buffers[0][..., :now, :], self.buffers[1][..., :now, :]
        return self.k, self.v

    def select_rows(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v, self.buffers = self.k.index_select(0, rows), self.v.index_select(0, rows), None

    def trim(self, length: int, aligned: bool) -> None:
        """Truncate all rows to `length`. `aligned`: all rows have exactly that length."""
        self.aligned = aligned
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[..., :length, :], self.v[..., :length, :]

    def append_rows(self, other: DynamicCache) -> None:
        self.k, self.v = _concat_padded(self.k, other.k), _concat_padded(self.v, other.v)
        self.buffers = None


def _enlarge(x: Tensor, room: int) -> Tensor:
    larger = x.new_empty(*x.shape[:-2], room, x.shape[-1])
    larger[..., : x.shape[-2], :] = x
    return larger


def _write(buffer: Tensor, where: Tensor, new: Tensor) -> None:
    """Write `new` (B, H, Q, d) into the columns `where`, (Q,) or (B, Q)."""
    if where.ndim == 1:
        buffer.index_copy_(-2, where, new)
    else:
        buffer.scatter_(-2, where[:, None, :, None].expand_as(new), new)


def _concat_padded(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    """Rows of x and y, (B, H, K, d), the shorter padded with zeros to the same K."""
    if x is None or y is None:
        assert x is None and y is None, "both caches must be allocated, or neither"
        return None
    room = max(x.shape[-2], y.shape[-2])
    return torch.cat([F.pad(part, (0, 0, 0, room - part.shape[-2])) for part in (x, y)])


@dataclass
class StaticCache(KVCache):
    """KV cache of fixed shape for `max_positions` positions per row. Columns after the position of a row are masked.

    Steps write at their positions, or at `write_columns` if set (beams write side by side)."""

    max_positions: int
    k: Tensor | None = None
    v: Tensor | None = None
    write_columns: Tensor | None = None
    kernel_counters: Tensor | None = None
    """Zeros that a kernel increments and resets to 0."""

    @property
    def has_past(self) -> bool:
        return self.write_columns is not None

    def get_counters(self, kernel: Any) -> Tensor:
        assert self.k is not None
        if self.kernel_counters is None or len(self.kernel_counters) != self.k.shape[0] * self.k.shape[1]:
            self.kernel_counters = kernel.make_counters(self.k)
        assert self.kernel_counters is not None
        return self.kernel_counters

    def extend(self, compute: Callable[[], KeyValue], at: Tensor | None) -> KeyValue:
        k, v = compute()
        if self.k is None or self.v is None:
            self.allocate(k, v)
        assert self.k is not None and self.v is not None
        first = at is None and self.write_columns is None
        if first:
            at = torch.arange(k.shape[-2], device=k.device)
        elif at is None:
            at = self.write_columns
        assert at is not None
        _write(self.k, at, k)
        _write(self.v, at, v)
        return (k, v) if first else (self.k, self.v)  # without earlier columns, the new keys are all keys

    def select_rows(self, rows: Tensor) -> None:
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

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

    def append_rows(self, other: StaticCache) -> None:
        self.max_positions = max(self.max_positions, other.max_positions)
        self.k, self.v = _concat_padded(self.k, other.k), _concat_padded(self.v, other.v)


@dataclass
class CrossCache(KVCache):
    kv: KeyValue | None = None

    @property
    def has_past(self) -> bool:
        return self.kv is not None

    def keys(self) -> Tensor:
        assert self.kv is not None
        return self.kv[0]

    def extend(self, compute: Callable[[], KeyValue], at: Tensor | None) -> KeyValue:
        if self.kv is None:
            self.kv = compute()
        return self.kv

    def select_rows(self, rows: Tensor) -> None:
        if self.kv is not None:
            self.kv = (self.kv[0].index_select(0, rows), self.kv[1].index_select(0, rows))

    def append_rows(self, other: CrossCache) -> None:
        k, v = (_concat_padded(*parts) for parts in zip(self.kv or (None, None), other.kv or (None, None), strict=True))
        self.kv = None if k is None or v is None else (k, v)


@dataclass
class LayerCache:
    """Caches of one decoder block: self-attention and cross-attention."""

    self_cache: KVCache = field(default_factory=DynamicCache)
    cross_cache: CrossCache = field(default_factory=CrossCache)

    @classmethod
    def allocate(cls, k: Tensor, v: Tensor, max_positions: int | None) -> LayerCache:
        """Empty caches for keys and values like k and v: growing, or of fixed shape with `max_positions`."""
        return cls(DynamicCache(k, v) if max_positions is None else StaticCache(max_positions).allocate(k, v))
