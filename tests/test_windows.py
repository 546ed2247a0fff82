"""Windows of long texts: which stretches of a stream of tokens are learnt from."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.plan import Packs
from regard.data.windows import Pieces, Windows, cut, in_turn, plan_windows
from regard.errors import DataError

DOCUMENTS = np.array([[0, 100], [101, 500], [501, 2000]])


def said(stretches: np.ndarray) -> list[int]:
    """The places of all that is to be said."""
    return [place for first, last in stretches.tolist() for place in range(first + 1, last + 1)]


def inside(stretches: np.ndarray, documents: np.ndarray) -> bool:
    return all(any(a <= first < last <= b for a, b in documents.tolist()) for first, last in stretches.tolist())


def test_long_documents_are_full_windows_of_one_shape_none_across_two_documents() -> None:
    plan = plan_windows(DOCUMENTS, 16, 64, seed=1, packed=False)
    assert isinstance(plan, Windows) and plan.steady and plan.shape is None and plan.padding() == 0
    for number in range(60):
        _, grain = plan.grain(number)
        assert grain.shape == (4, 2) and plan.tokens(number) == plan.size(grain) == 64
        assert set((grain[:, 1] - grain[:, 0]).tolist()) == {16} and inside(grain, DOCUMENTS)


def test_an_epoch_says_each_token_at_most_once_and_epochs_say_all_of_them() -> None:
    plan = Windows(DOCUMENTS, 16, 64, seed=3)
    everything: set[int] = set()
    for epoch in range(200):
        places = [place for grain in plan.epoch(epoch) for place in said(grain)]
        assert len(places) == len(set(places))
        everything |= set(places)
    assert everything == set(said(DOCUMENTS))


def test_windows_begin_at_other_places_in_each_epoch_and_are_a_function_of_seed_and_epoch() -> None:
    one, again, other = (Windows(DOCUMENTS, 16, 64, seed) for seed in (3, 3, 4))
    starts = [sorted(np.concatenate(one.epoch(epoch))[:, 0].tolist()) for epoch in range(3)]
    assert starts[0] != starts[1] != starts[2]
    assert all(np.array_equal(a, b) for a, b in zip(one.epoch(7), again.epoch(7), strict=True))
    assert not np.array_equal(one.epoch(7)[0], other.epoch(7)[0])


def test_short_documents_are_pieces_that_say_everything_once() -> None:
    documents = np.array([[0, 5], [6, 46], [47, 48], [48, 48]])
    plan = plan_windows(documents, 16, 64, seed=1, packed=False)
    assert isinstance(plan, Pieces) and not plan.steady
    pieces = np.concatenate(plan.epoch(0))
    assert sorted(said(pieces)) == said(documents) and inside(pieces, documents)
    assert int((pieces[:, 1] - pieces[:, 0]).max()) <= 16
    _, first = plan.grain(0)
    assert plan.tokens(0) == len(said(first))


def test_short_documents_can_be_packed_into_rows_of_one_shape() -> None:
    documents = np.stack([np.arange(0, 900, 9), np.arange(0, 900, 9) + 8], axis=1)
    plan = plan_windows(documents, 16, 64, seed=1, packed=True)
    assert isinstance(plan, Pieces) and isinstance(plan.inner, Packs) and plan.steady and plan.shape is not None
    assert plan.shape.rooms == (64,) and sorted(said(np.concatenate(plan.epoch(2)))) == said(documents)


@pytest.mark.parametrize(("size", "length", "pieces"), [(16, 16, 1), (17, 16, 2), (33, 16, 3), (1, 16, 1)])
def test_a_document_is_cut_into_few_pieces_of_like_length(size: int, length: int, pieces: int) -> None:
    found = cut(np.array([[10, 10 + size]]), length)
    sizes = found[:, 1] - found[:, 0]
    assert len(found) == pieces and int(sizes.max()) - int(sizes.min()) <= 1 and int(sizes.sum()) == size


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_in_turn_every_token_is_said_once_and_after_enough_of_its_past(stride: int) -> None:
    documents = np.array([[0, 30], [31, 36]])
    places = []
    for first, last, scored in in_turn(documents, 8, stride):
        assert last - first <= 8 and first <= scored < last
        if scored > first:
            assert scored - first >= 8 - stride or last in (30, 36)
        places += list(range(scored + 1, last + 1))
    assert places == said(documents)


def test_nothing_to_say_is_refused() -> None:
    with pytest.raises(DataError, match="no text"):
        plan_windows(np.array([[3, 3]]), 16, 64, seed=1, packed=False)
