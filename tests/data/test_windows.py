"""Windows of long texts: training spans of a token stream."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.batching.padding import pack
from regard.data.batching.windows import (
    FixedWindows,
    VariableWindows,
    expected_padding,
    make_window_sampler,
    sliding_windows,
)
from regard.errors import DataError

LONG = np.array([[0, 200], [201, 800], [801, 4000]])


def said(stretches: np.ndarray) -> list[int]:
    """Positions of all labels."""
    return [place for first, last in stretches.tolist() for place in range(first + 1, last + 1)]


def inside(stretches: np.ndarray, documents: np.ndarray) -> bool:
    return all(any(a <= first < last <= b for a, b in documents.tolist()) for first, last in stretches.tolist())


def labels(grains: list[np.ndarray]) -> list[int]:
    """Positions of all labels of the micro-batches."""
    rows = np.concatenate(grains)
    return said(rows[:, [2, 1]] if rows.shape[1] > 2 else rows)


def test_long_documents_are_windows_of_one_shape_none_across_two_documents() -> None:
    plan = make_window_sampler(LONG, 16, 64, seed=1, packed=False)
    assert isinstance(plan, FixedWindows) and plan.static_shape and plan.shape is None
    assert 0 < plan.padding_fraction() < 0.1 and "windows of 16 tokens" in plan.description
    for number in range(300):
        _, grain = plan.micro_batch(number)
        assert grain.shape == (4, 4) and plan.padded_size(grain) == 64
        assert plan.num_tokens(number) == len(labels([grain]))
        assert set(grain[:, 3].tolist()) == {16} and int((grain[:, 1] - grain[:, 0]).max()) <= 16
        assert (grain[:, 0] <= grain[:, 2]).all() and (grain[:, 2] < grain[:, 1]).all() and inside(grain[:, :2], LONG)
        # a padded row begins a document or is a whole document
        assert all(first in LONG[:, 0] for first, last, *_ in grain.tolist() if last - first < 16)


def test_an_epoch_has_each_token_once_except_for_incomplete_micro_batches() -> None:
    plan = FixedWindows(LONG, 16, 64, seed=3)
    counts = np.zeros(int(LONG.max()) + 1, dtype=np.int64)
    epochs = 400
    for epoch in range(epochs):
        places = labels(plan.epoch(epoch))
        assert len(places) == len(set(places)) and len(said(LONG)) - len(places) < 64
        counts[places] += 1
    share = counts[said(LONG)] / epochs
    assert share.min() > 0.93 and share.max() <= 1  # uniformly, including the first and the last token of each document
    alone = FixedWindows(LONG, 16, 16, seed=3)
    assert all(sorted(labels(alone.epoch(epoch))) == said(LONG) for epoch in range(20))


def test_a_few_short_stretches_leave_a_corpus_its_windows() -> None:
    """With held-out passages, some spans between two passages are short."""
    documents = np.array([[0, 5], [6, 4000], [4001, 4011], [4012, 4013], [4014, 9000]])
    for packed in (False, True):
        plan = make_window_sampler(documents, 16, 16, seed=1, packed=packed)
        assert isinstance(plan, FixedWindows) and plan.static_shape
        assert all(sorted(labels(plan.epoch(epoch))) == said(documents) for epoch in range(5))


def test_expected_padding_equals_the_average_padding() -> None:
    for documents in (LONG, np.array([[0, 5], [6, 46], [47, 63], [64, 81]])):
        plan = FixedWindows(documents, 16, 16, seed=1)
        rows = np.mean([len(plan.epoch(epoch)) for epoch in range(2000)])
        assert expected_padding(documents, 16) == pytest.approx(1 - len(said(documents)) / 16 / rows, abs=5e-3)


@pytest.mark.parametrize("packed", [False, True])
def test_short_documents_are_pieces_with_each_label_once(packed: bool) -> None:
    documents = np.array([[0, 5], [6, 46], [47, 48], [48, 48], [49, 65]])
    plan = make_window_sampler(documents, 16, 64, seed=1, packed=packed)
    assert isinstance(plan, VariableWindows) and plan.static_shape is packed
    for epoch in range(20):
        pieces = np.concatenate(plan.epoch(epoch))
        assert sorted(said(pieces)) == said(documents) and inside(pieces, documents)
        assert int((pieces[:, 1] - pieces[:, 0]).max()) <= 16
        assert [49, 65] in pieces.tolist()  # documents that fit are not split
    _, first = plan.micro_batch(0)
    assert plan.num_tokens(0) == len(said(first))


def test_documents_of_all_lengths_can_be_packed_into_rows_of_one_shape() -> None:
    draw = np.random.default_rng(0)
    ends = np.cumsum(draw.integers(2, 70, 300))
    documents = np.stack([ends[:-1], ends[1:] - 1], axis=1)
    plan = make_window_sampler(documents, 16, 64, seed=1, packed=True)
    assert isinstance(plan, VariableWindows) and plan.static_shape and plan.shape is not None
    assert "packed rows" in plan.description and plan.shape.row_lengths == (64,) and 0 < plan.padding_fraction() < 0.2
    for epoch in range(10):
        grains = plan.epoch(epoch)
        assert sorted(labels(grains)) == said(documents)
        for grain in grains:  # else an error is raised
            rows = [np.zeros(last - first, np.int64) for first, last in grain.tolist()]
            pack(rows, plan.shape.row_lengths[0], plan.shape.max_lengths[0], plan.shape.num_documents)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_in_sequence_every_token_is_a_label_once_with_enough_context(stride: int) -> None:
    documents = np.array([[0, 30], [31, 36]])
    places = []
    for first, last, scored in sliding_windows(documents, 8, stride):
        assert last - first <= 8 and first <= scored < last
        if scored > first:
            assert scored - first >= 8 - stride or last in (30, 36)
        places += list(range(scored + 1, last + 1))
    assert places == said(documents)


def test_data_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match="text"):
        make_window_sampler(np.array([[3, 3]]), 16, 64, seed=1, packed=False)
