"""Padding and packing: sequences of different lengths -> one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.data.batching.samplers import BatchShape
from regard.types import Packing


def pad(
    rows: Sequence[Sequence[int] | np.ndarray], pad_value: int, length: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """(B, L) rows padded on the right with `pad_value`, and the lengths (B,); None if no row needs padding.

    With `length`, every batch has this length, and the lengths are always returned."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    longest = int(lengths.max(initial=0)) if length is None else length
    table = np.full((len(rows), longest), pad_value, dtype=np.int64)
    if len(rows):
        table[np.arange(longest) < lengths[:, None]] = np.concatenate(rows)
    equal = length is None and bool((lengths == longest).all())
    return torch.from_numpy(table), None if equal else torch.from_numpy(lengths)


def pack(
    rows: Sequence[Sequence[int] | np.ndarray],
    length: int = 0,
    max_document_length: int = 0,
    num_documents: int = 0,
    pad_value: int = 0,
) -> tuple[Tensor, Packing]:
    """Documents concatenated to one row (1, length), and the start of each document in this row.

    With `length`, the shape is constant: `num_documents` documents in a row of `length` tokens. The remainder is padding in
    documents of at most `max_document_length` tokens, then empty documents. Compiled code needs constant shapes.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.concatenate(rows).astype(np.int64)
    if not length:
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return torch.from_numpy(ids)[None], Packing(torch.from_numpy(starts), int(lengths.max()))
    row = np.full(length, pad_value, dtype=np.int64)
    row[: len(ids)] = ids
    ends = np.full(num_documents + 1, length, dtype=np.int64)
    ends[0] = 0
    ends[1 : len(lengths) + 1] = np.cumsum(lengths)
    filling = np.arange(len(ids) + max_document_length, length, max_document_length)
    ends[len(lengths) + 1 : len(lengths) + 1 + len(filling)] = filling
    if (
        len(ids) > length
        or len(lengths) + len(filling) >= num_documents
        or (len(lengths) and lengths.max() > max_document_length)
    ):
        raise ValueError(
            f"Cannot pack {len(rows)} rows ({len(ids)} tokens) into a row of {length} tokens with "
            f"{num_documents} documents of at most {max_document_length} tokens."
        )
    return torch.from_numpy(row)[None], Packing(torch.from_numpy(ends), max_document_length)


def pad_or_pack(
    rows: Sequence[Any], fill: int, shape: BatchShape | None = None, side: int = 0
) -> tuple[Tensor, Tensor | None, Packing | None]:
    """Padded rows with their lengths, or one packed row with its offsets."""
    if shape is None:
        return (*pad(rows, fill), None)
    x, offsets = pack(rows, shape.row_lengths[side], shape.max_lengths[side], shape.num_documents, fill)
    return x, None, offsets
