"""Every attention mask against a Python predicate at each (row, head, query, key)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from regard.nn.attention.masks import (
    AttentionMask,
    Causal,
    GlobalTokens,
    PackedDocuments,
    Padding,
    SlidingWindow,
    and_masks,
    materialize,
)
from regard.types import Packing

B, H, L = 3, 2, 8
LENGTHS = [5, 8, 0]
MARKS = [[1, 1, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1]]
STARTS, OTHERS = [0, 3, 3, 7, 8], [0, 2, 2, 7, 8]
"""Offsets of four documents; the second is empty."""
SPECIAL = [[1, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0]]

Predicate = Callable[[int, int, int, int], bool]


class HeadsApart(AttentionMask):
    """Custom mask that depends on the head: head 0 attends to earlier keys, the others to later keys."""

    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((h == 0) & (k <= q)) | ((h > 0) & (k >= q))


def steps(q: int, k: int, left: int, right: int, wide: int) -> bool:
    """Whether k is reached from q by an integer number of dilated steps."""
    return k in {q + wide * step for step in range(-left, right + 1)}


CASES: dict[str, tuple[AttentionMask, Predicate]] = {
    "causal": (Causal(), lambda b, h, q, k: k <= q),
    "window": (SlidingWindow(2, 2), lambda b, h, q, k: abs(q - k) <= 2),
    "window back only": (SlidingWindow(3, 0), lambda b, h, q, k: q - 3 <= k <= q),
    "window ahead only": (SlidingWindow(0, 1), lambda b, h, q, k: k in (q, q + 1)),
    "window of oneself": (SlidingWindow(0, 0), lambda b, h, q, k: k == q),
    "window uneven": (SlidingWindow(1, 4), lambda b, h, q, k: -1 <= k - q <= 4),
    "window dilated": (SlidingWindow(2, 1, 2), lambda b, h, q, k: steps(q, k, 2, 1, 2)),
    "window dilated by 3": (SlidingWindow(1, 2, 3), lambda b, h, q, k: steps(q, k, 1, 2, 3)),
    "window dilated per head": (SlidingWindow(1, 2, (1, 3)), lambda b, h, q, k: steps(q, k, 1, 2, (1, 3)[h])),
    "real by lengths": (Padding(torch.tensor(LENGTHS)), lambda b, h, q, k: k < LENGTHS[b]),
    "real by marks": (Padding(torch.tensor(MARKS).bool()), lambda b, h, q, k: bool(MARKS[b][k])),
    "packed": (
        PackedDocuments(Packing(torch.tensor(STARTS), 4), Packing(torch.tensor(OTHERS), 6)),
        lambda b, h, q, k: owner(q, STARTS) == owner(k, OTHERS),
    ),
    "global": (GlobalTokens(torch.tensor(SPECIAL).bool()), lambda b, h, q, k: bool(SPECIAL[b][q] or SPECIAL[b][k])),
    "both": (Causal() & Padding(torch.tensor(LENGTHS)), lambda b, h, q, k: k <= q and k < LENGTHS[b]),
    "either": (
        SlidingWindow(1, 1) | GlobalTokens(torch.tensor(SPECIAL).bool()),
        lambda b, h, q, k: abs(q - k) <= 1 or bool(SPECIAL[b][q] or SPECIAL[b][k]),
    ),
    "both of either": (
        (SlidingWindow(1, 0) | GlobalTokens(torch.tensor(SPECIAL).bool())) & Padding(torch.tensor(MARKS).bool()) & Causal(),
        lambda b, h, q, k: (k in (q - 1, q) or bool(SPECIAL[b][q] or SPECIAL[b][k])) and bool(MARKS[b][k]) and k <= q,
    ),
    "either of both": (
        (Causal() & Padding(torch.tensor(MARKS).bool())) | (SlidingWindow(0, 2) & Padding(torch.tensor(LENGTHS))),
        lambda b, h, q, k: (k <= q and bool(MARKS[b][k])) or (q <= k <= q + 2 and k < LENGTHS[b]),
    ),
    "heads apart": (HeadsApart() & SlidingWindow(2, 2), lambda b, h, q, k: (k <= q if h == 0 else k >= q) and abs(q - k) <= 2),
}  # fmt: skip


def written_out(predicate: Predicate, queries: list[list[int]]) -> Tensor:
    """Dense mask (B, H, Q, L) from the predicate; the queries of row b have positions `queries[b]`."""
    table = torch.zeros(B, H, len(queries[0]), L, dtype=torch.bool)
    for b, h, i, k in product(range(B), range(H), range(len(queries[0])), range(L)):
        table[b, h, i, k] = predicate(b, h, queries[b][i], k)
    return table


@pytest.mark.parametrize("name", CASES)
def test_a_mask_equals_its_predicate_at_each_query_and_key(name: str) -> None:
    rule, predicate = CASES[name]
    b, h, q, k = torch.meshgrid(torch.arange(B), torch.arange(H), torch.arange(L), torch.arange(L), indexing="ij")
    whole = written_out(predicate, [list(range(L))] * B)
    assert torch.equal(rule(b, h, q, k), whole)
    assert torch.equal(create_mask(rule, B, H, L, L, device="cpu"), whole), "flex attention accepts the mask unchanged"
    # the same for all rows, or one list per row
    for places in (list(range(L)), [6, 7], [[0, 1, 2], [5, 6, 7], [4, 4, 0]]):
        table = materialize(rule, B, H, torch.tensor(places), torch.arange(L))
        rows = places if isinstance(places[0], list) else [places] * B
        assert torch.equal(table.expand(B, H, -1, L), written_out(predicate, rows))  # type: ignore[arg-type]


@pytest.mark.parametrize("dilation", [0, (), (1, 0)])
def test_a_dilation_is_at_least_one(dilation: Any) -> None:
    with pytest.raises(ValueError, match="dilation at least 1"):
        SlidingWindow(1, 1, dilation)


@pytest.mark.parametrize(
    ("rule", "shape"),
    [
        (Causal(), (1, 1, L, L)),
        (SlidingWindow(1, 1), (1, 1, L, L)),
        (Padding(torch.tensor(LENGTHS)), (B, 1, L, L)),
        (GlobalTokens(torch.tensor(SPECIAL).bool()), (B, 1, L, L)),
        (HeadsApart(), (1, H, L, L)),
        (HeadsApart() & Padding(torch.tensor(LENGTHS)), (B, H, L, L)),
    ],
)
def test_axes_that_a_rule_does_not_use_stay_one_wide(rule: AttentionMask, shape: tuple[int, ...]) -> None:
    assert materialize(rule, B, H, torch.arange(L), torch.arange(L)).shape == shape


def owner(at: int, starts: list[int]) -> int:
    return next(i for i in range(len(starts) - 1) if starts[i] <= at < starts[i + 1])


def test_positions_after_the_last_document_belong_to_none_of_them() -> None:
    documents = Packing(torch.tensor([0, 2, 5]), 4).document_ids(torch.arange(7)).tolist()
    assert documents[:5] == [0, 0, 1, 1, 1]
    assert not {0, 1} & set(documents[5:])


def test_single_masks_are_returned_unchanged() -> None:
    causal = Causal()
    assert and_masks() is None and and_masks(None, None) is None
    assert and_masks(None, causal, None) is causal
