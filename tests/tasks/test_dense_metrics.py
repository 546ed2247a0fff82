"""Losses and metrics of dense predictions, against plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from regard.nn.vision.dense import inverse_depth, metric_loss, relative_loss
from regard.tasks.metrics.segmentation_depth import SegmentationMetrics, align_depth, depth_scores
from regard.types import IGNORE
from tiny import near, noise

# -- losses: B images of H × W, the last without a known pixel

SAID, TARGET = noise(4, 11, 9, seed=1), noise(4, 11, 9, seed=2).abs() + 0.2
KNOWN = torch.rand(4, 11, 9, generator=torch.Generator().manual_seed(3)) < 0.7
KNOWN[3] = False
KNOWN[2] = False
KNOWN[2, 4, 5] = True
KNOWN[0, 0, 0] = not KNOWN[0].flatten()[1:].sum() % 2  # an odd number of pixels in one image, an even number in another
KNOWN[1, 0, 0] = bool(KNOWN[1].flatten()[1:].sum() % 2)


def looped_gradient(left: np.ndarray, known: np.ndarray) -> float:
    total = 0.0
    for step in (1, 2, 4, 8):
        rows, columns = range(0, left.shape[0], step), range(0, left.shape[1], step)
        for i in rows:
            for j in columns:
                if not known[i, j]:
                    continue
                if j + step < left.shape[1] and known[i, j + step]:
                    total += abs(left[i, j + step] - left[i, j])
                if i + step < left.shape[0] and known[i + step, j]:
                    total += abs(left[i + step, j] - left[i, j])
    return total


def looped(said: np.ndarray, target: np.ndarray, known: np.ndarray) -> float:
    """Loss of one image, pixel by pixel."""
    places = [(i, j) for i in range(said.shape[0]) for j in range(said.shape[1]) if known[i, j]]
    if not places:
        return 0.0
    many = len(places)

    def brought(x: np.ndarray) -> np.ndarray:
        values = sorted(x[place] for place in places)
        middle = values[(many - 1) // 2]
        spread = sum(abs(value - middle) for value in values) / many
        return (x - middle) / (spread if spread > 0 else 1.0)

    left = brought(said) - brought(target)
    sizes = sorted(abs(left[place]) for place in places)[: int(0.8 * many)]
    return sum(sizes) / (2 * many) + 0.5 * looped_gradient(left, known) / many


def test_the_relative_loss_is_that_of_plain_loops() -> None:
    total, count = relative_loss(SAID, TARGET, KNOWN)
    each = [
        looped(said, target, known)
        for said, target, known in zip(SAID.numpy(), TARGET.numpy(), KNOWN.numpy(), strict=True)
    ]
    assert int(count) == 3 and each[0] > 0.1 and each[3] == 0 and (KNOWN.sum((1, 2)) % 2).tolist() == [1, 0, 1, 0]
    near(total, torch.tensor(sum(each), dtype=torch.float64))
    for row in range(4):
        alone = relative_loss(SAID[row : row + 1], TARGET[row : row + 1], KNOWN[row : row + 1])[0]
        assert abs(float(alone) - each[row]) < 1e-12


def test_values_at_unknown_pixels_change_nothing() -> None:
    wild = torch.where(
        KNOWN, TARGET, torch.tensor([math.nan, math.inf, -1e300], dtype=torch.float64)[:, None, None][[0, 1, 2, 0]]
    )
    for loss in (relative_loss, metric_loss):
        said = SAID.abs().requires_grad_()
        total, count = loss(said, wild, KNOWN)
        near(total, loss(SAID.abs(), TARGET, KNOWN)[0])
        grad = torch.autograd.grad(total, said)[0]
        assert int(count) == 3 and bool(grad.isfinite().all()) and not bool(grad[~KNOWN].any()) and bool(grad.any())


@pytest.mark.parametrize("loss", [relative_loss, metric_loss])
def test_images_without_known_pixels_are_not_counted(loss: Any) -> None:
    said = SAID.abs().requires_grad_()
    total, count = loss(said, torch.full_like(TARGET, math.nan), torch.zeros_like(KNOWN))
    grad = torch.autograd.grad(total, said)[0]
    assert not bool(total) and int(count) == 0 and not bool(grad.any()) and bool(grad.isfinite().all())


def test_a_constant_prediction_has_a_loss_and_a_finite_gradient() -> None:
    said = torch.full_like(SAID, 0.3).requires_grad_()
    total, count = relative_loss(said, TARGET, KNOWN)
    grad = torch.autograd.grad(total, said)[0]
    assert int(count) == 3 and bool(total > 0) and bool(grad.isfinite().all())
    assert float(grad.abs().max()) < 10
    flat = torch.full_like(TARGET, 2.0)
    assert bool(relative_loss(SAID, flat, KNOWN)[0].isfinite())


def test_slopes_of_the_losses_are_those_of_small_changes() -> None:
    known = KNOWN[:2]
    for loss in (
        lambda said: relative_loss(said, TARGET[:2], known)[0],
        lambda said: metric_loss(said.abs() + 0.1, TARGET[:2], known)[0],
    ):
        assert torch.autograd.gradcheck(loss, (SAID[:2].clone().requires_grad_(),), eps=1e-7, atol=1e-6)


def test_the_metric_loss_is_that_of_plain_loops() -> None:
    said, share = SAID.abs() + 0.1, 0.85
    total, count = metric_loss(said, TARGET, KNOWN)
    expected = 0.0
    for row in range(3):
        ratios = [
            math.log(float(said[row, i, j])) - math.log(float(TARGET[row, i, j]))
            for i in range(11)
            for j in range(9)
            if KNOWN[row, i, j]
        ]
        mean = sum(ratios) / len(ratios)
        expected += math.sqrt(sum(r * r for r in ratios) / len(ratios) - share * mean**2)
    assert int(count) == 3
    near(total, torch.tensor(expected, dtype=torch.float64))
    near(
        metric_loss(3 * said, TARGET, KNOWN, variance_weight=1.0)[0],
        metric_loss(said, TARGET, KNOWN, variance_weight=1.0)[0],
        1e-9,
    )
    assert float(metric_loss(3 * TARGET, TARGET, KNOWN)[0]) > 0.1 > float(metric_loss(TARGET, TARGET, KNOWN)[0])
    exact = TARGET.clone().requires_grad_()
    assert not bool(torch.autograd.grad(metric_loss(exact, TARGET, KNOWN)[0], exact)[0].any())


def test_depth_of_0_is_not_measured() -> None:
    depth = torch.tensor([[[2.0, 0.0, math.inf, math.nan, 4.0]]])
    found, known = inverse_depth(depth, torch.tensor([[[True, True, True, True, False]]]))
    assert known.tolist() == [[[True, False, False, False, False]]] and found.tolist() == [[[0.5, 0, 0, 0, 0]]]


def test_sixteen_bits_are_summed_in_more() -> None:
    said, target = SAID.bfloat16(), TARGET.bfloat16()
    near(relative_loss(said, target, KNOWN)[0], relative_loss(said.float(), target.float(), KNOWN)[0])


# -- metrics


def test_overlaps_are_those_of_plain_loops() -> None:
    random = np.random.default_rng(4)
    right, said = random.integers(0, 4, (3, 7, 5)), random.integers(0, 4, (3, 7, 5))
    right[right == 2] = 3  # class 2 is predicted and never present
    right[0, :3] = 255
    found = SegmentationMetrics(5, ignore_index=255)  # class 4 is neither predicted nor present
    for one, other in zip(said, right, strict=True):
        found.add(one, other)
    places = [place for place in np.ndindex(3, 7, 5) if right[place] != 255]
    each: list[float | None] = []
    for name in range(5):
        both = sum(said[p] == name and right[p] == name for p in places)
        union = sum(said[p] == name or right[p] == name for p in places)
        each.append(both / union if union else None)
    assert each[2] == 0 and each[4] is None
    assert found.iou_by_name("abcde") == dict(zip("abcde", each, strict=True))
    there = [value for value in each if value is not None]
    right_ones = sum(said[p] == right[p] for p in places)
    assert found.mean_iou() == pytest.approx(sum(there) / len(there))
    assert found.accuracy() == pytest.approx(right_ones / len(places))


def test_void_pixels_and_wrong_maps() -> None:
    found = SegmentationMetrics(2)
    found.add(np.zeros((2, 2), int), np.full((2, 2), IGNORE))
    assert found.mean_iou() == found.accuracy() == 0.0
    with pytest.raises(ValueError, match="class ids"):
        found.add(np.zeros((2, 2), int), np.full((2, 2), 2))
    with pytest.raises(ValueError, match="does not match target shape"):
        found.add(np.zeros((2, 2), int), np.zeros((2, 3), int))
    found.add(np.array([0, 1, 255]), np.array([0, 1, IGNORE]))  # predictions at void pixels are ignored
    assert found.mean_iou() == 1


def test_distances_are_those_of_plain_loops() -> None:
    random = np.random.default_rng(6)
    said, right = random.uniform(0.5, 6, (6, 5)), random.uniform(0.5, 6, (6, 5))
    right[0, :2], right[1, 1] = 0.0, np.nan
    pairs = [(d, t) for d, t in zip(said.flat, right.flat, strict=True) if t > 0]
    assert len(pairs) == 27
    found = depth_scores(said, right)
    assert found == pytest.approx(
        {
            "abs_rel": sum(abs(d - t) / t for d, t in pairs) / 27,
            "rmse": math.sqrt(sum((d - t) ** 2 for d, t in pairs) / 27),
            "log10": sum(abs(math.log10(d) - math.log10(t)) for d, t in pairs) / 27,
            **{f"delta{n}": sum(max(d / t, t / d) < 1.25**n for d, t in pairs) / 27 for n in (1, 2, 3)},
        }
    )
    assert 0 < found["delta1"] < found["delta2"] < found["delta3"] < 1
    assert depth_scores(np.ones((2, 2)), np.zeros((2, 2))) == {}  # no known pixel


def test_a_relative_prediction_is_aligned_to_the_unit_of_the_reference() -> None:
    random = np.random.default_rng(7)
    right = random.uniform(1, 8, (6, 5))
    right[2:4] = 0
    said = 40 * (1 / np.where(right > 0, right, 1)) - 3
    said[3] = 1e6  # unknown depth: not used in the alignment
    said[3, 1] = -1e6
    depth = align_depth(said, right, 20.0)
    np.testing.assert_allclose(depth[right > 0], right[right > 0], rtol=1e-9)
    assert depth[3, 1] == pytest.approx(20.0)  # clipped, because the inverse would be below 0
    assert np.isnan(align_depth(said, np.zeros((6, 5)), 20.0)).all()


def test_a_relative_prediction_is_fitted_to_the_inverse_by_least_squares() -> None:
    random = np.random.default_rng(8)
    said, right = random.uniform(0, 1, (6, 5)), random.uniform(1, 2, (6, 5))
    matrix = np.stack([said.ravel(), np.ones(30)], 1)
    scale, shift = np.linalg.lstsq(matrix, 1 / right.ravel(), rcond=None)[0]
    expected = 1 / np.maximum(scale * said + shift, 1 / 1.6)
    np.testing.assert_allclose(align_depth(said, right, 1.6), expected, rtol=1e-10)
