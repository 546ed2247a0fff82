"""Attention inside annotated regions, by small cases with known results."""

from __future__ import annotations

import numpy as np
import pytest

from regard.explain.captioning import ALL_KINDS, PointingScore, cell_coverage, region_mask, score_by_kind

BOX = (0, 0, 4, 2)
"""A quarter of an image of 4 × 8 pixels."""


def test_cells_count_by_how_much_of_them_the_region_covers() -> None:
    cover = cell_coverage(region_mask([BOX], (4, 8)), (2, 2))
    assert cover.tolist() == [[1, 0], [0, 0]]
    cover = cell_coverage(region_mask([(1, 1, 5, 3)], (4, 8)), (2, 2))
    assert cover.tolist() == [[3 / 8, 1 / 8], [3 / 8, 1 / 8]]
    cover = cell_coverage(region_mask([BOX], (4, 8)), (1, 1))
    assert cover.tolist() == [[0.25]]


def test_borders_of_cells_may_be_within_pixels() -> None:
    """Three cells over eight pixels: the second extends from 2 2/3 to 5 1/3."""
    cover = cell_coverage(region_mask([(0, 0, 4, 1)], (1, 8)), (1, 3))
    assert cover[0] == pytest.approx([1, 0.5, 0])
    fine = cell_coverage(region_mask([(1, 0, 2, 1)], (1, 3)), (1, 6))  # cells smaller than pixels
    assert fine[0] == pytest.approx([0, 0, 1, 1, 0, 0])
    mask = np.random.default_rng(0).random((29, 31)) < 0.3
    for grid in ((7, 5), (29, 31), (40, 3)):
        assert cell_coverage(mask, grid).mean() == pytest.approx(mask.mean())  # cells have equal areas


def test_boxes_are_joined_and_cut_at_the_border() -> None:
    mask = region_mask([(0, 0, 2, 2), (1, 1, 3, 3), (-2, 3, 1, 9)], (4, 4))
    assert mask.astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
    assert not region_mask([(-3, 0, -1, 4)], (4, 4)).any()


@pytest.mark.parametrize(
    "weights, inside, hits",
    [
        ([[0.4, 0.2], [0.3, 0.1]], 0.5, 1),
        ([[2.8, 1.4], [2.1, 0.7]], 0.5, 1),  # relative to the total attention
        ([[0.1, 0.3], [0.5, 0.1]], 0.25, 0),
        ([[1, 1], [1, 1]], 0.375, 0.5),  # uniform attention; ties count as chance
        ([[0, 0], [0, 0]], 0, 0.5),
    ],
)
def test_attention_inside_a_region_and_hits(weights: list[list[float]], inside: float, hits: float) -> None:
    """The cells are covered by 1, 0.5 and 0: cells with at least half of the largest coverage are in the region."""
    score = score_by_kind([("shape", np.array(weights), region_mask([(0, 0, 6, 2)], (4, 8)))])["shape"]
    assert (score.inside_fraction, score.hit_rate) == (pytest.approx(inside), hits)
    assert (score.uniform_fraction, score.uniform_hit_rate) == (0.375, 0.5)


def test_scores_are_means_by_kind_next_to_chance() -> None:
    on, off = np.array([[0.7, 0.1], [0.1, 0.1]]), np.array([[0.1, 0.1], [0.2, 0.6]])
    words = [("color", on, [BOX]), ("color", off, [BOX]), ("shape", on, [(0, 0, 8, 2)]), ("shape", on, [])]
    found = score_by_kind((kind, weights, region_mask(boxes, (4, 8))) for kind, weights, boxes in words)
    assert list(found) == [ALL_KINDS, "color", "shape"]
    assert found["color"] == PointingScore(2, pytest.approx(0.4), 0.25, 0.5, 0.25)  # type: ignore[arg-type]
    assert found["shape"] == PointingScore(1, pytest.approx(0.8), 0.5, 1.0, 0.5)  # type: ignore[arg-type]
    assert found[ALL_KINDS].num_words == 3 and found[ALL_KINDS].inside_fraction == pytest.approx((0.7 + 0.1 + 0.8) / 3)
    assert score_by_kind([]) == {}


def test_uniform_attention_is_chance() -> None:
    boxes = [(3, 5, 20, 22), (40, 41, 60, 59)]
    for grid in ((8, 8), (7, 7), (14, 10)):
        (one, _) = score_by_kind([("shape", np.ones(grid), region_mask(boxes, (64, 64)))]).values()
        assert one.inside_fraction == pytest.approx(one.uniform_fraction) == pytest.approx((17 * 17 + 20 * 18) / 64**2)
        assert one.hit_rate == pytest.approx(one.uniform_hit_rate)
