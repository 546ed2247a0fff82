"""Batch sampler: every sample once, within the budget, and reproducible micro-batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from data_files import refused
from regard.data.batching.samplers import FixedShape, LengthBucketed, SortedUniform
from regard.errors import SettingError

Lengths = npt.NDArray[np.int64]


def some_lengths(count: int, sides: int = 2, seed: int = 0) -> Lengths:
    """Random sentence lengths, correlated between sides."""
    random = np.random.default_rng(seed)
    first = random.lognormal(3, 0.6, (count, 1))
    return np.clip(first * random.lognormal(0, 0.2, (count, sides)), 1, 200).astype(np.int64)


def padded(lengths: Lengths, grain: Lengths) -> int:
    return len(grain) * int(lengths[grain].max(0).sum())


def same(some: list[Lengths], others: list[Lengths]) -> bool:
    return len(some) == len(others) and all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("sides", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 7, 3000])
@pytest.mark.parametrize("budget", [600, 4096, 10**7])
def test_every_sample_comes_once_and_no_micro_batch_exceeds_the_budget(sides: int, count: int, budget: int) -> None:
    lengths = some_lengths(count, sides)
    plan = LengthBucketed(lengths, budget, seed=3)
    for grains in (plan.epoch(0), plan.epoch(1), plan.sequential()):
        assert np.array_equal(np.sort(np.concatenate(grains)), np.arange(count))
        assert max(padded(lengths, grain) for grain in grains) <= budget


def test_sorted_micro_batches_are_full_before_the_next_begins() -> None:
    lengths = some_lengths(2000)
    grains = LengthBucketed(lengths, 1024, 0).sequential()
    for grain, following in pairwise(grains):
        assert padded(lengths, np.append(grain, following[0])) > 1024
    assert (np.diff(lengths[np.concatenate(grains)].sum(1)) >= 0).all()


def test_an_epoch_depends_on_lengths_budget_seed_and_number_alone() -> None:
    lengths = some_lengths(2000)
    plan = LengthBucketed(lengths, 1024, seed=5)
    plan.micro_batch(1000)
    assert same(plan.epoch(4), LengthBucketed(lengths.copy(), 1024, seed=5).epoch(4))
    assert not same(plan.epoch(4), LengthBucketed(lengths, 1024, seed=6).epoch(4))
    assert not same(plan.epoch(4), plan.epoch(5))
    lengths = some_lengths(500, 1)
    assert same(LengthBucketed(lengths[:, 0], 512, 0).epoch(2), LengthBucketed(lengths, 512, 0).epoch(2))
    means = np.array([lengths[grain].sum(1).mean() for grain in LengthBucketed(lengths, 1024, 0).epoch(0)])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3
    grains = LengthBucketed(np.array([5, 3, 8, 1, 9, 2]), 16, seed=7).epoch(0)
    assert [grain.tolist() for grain in grains] == [[3, 5, 1], [4], [0, 2]]  # on every machine


@pytest.mark.parametrize("lengths", [some_lengths(2000), np.full(2000, 9)], ids=["different", "equal"])
def test_other_samples_meet_in_another_epoch(lengths: Lengths) -> None:
    plan = LengthBucketed(lengths, 1024, 0)
    first, second = ({frozenset(grain.tolist()) for grain in plan.epoch(number)} for number in (0, 1))
    assert len(first & second) < 0.1 * len(first)


def test_the_nth_micro_batch_is_found_by_iterating_jumping_and_going_back() -> None:
    lengths = some_lengths(300)
    plan = LengthBucketed(lengths, 512, seed=1)
    walked = [(number, grain) for number in range(6) for grain in plan.epoch(number)]
    assert len({len(plan.epoch(number)) for number in range(6)}) > 1  # the number of micro-batches per epoch varies
    for order in (range(len(walked)), [len(walked) - 1, 0, 100, 41, len(walked) - 1]):
        fresh = LengthBucketed(lengths, 512, seed=1)
        for place in order:
            epoch, grain = fresh.micro_batch(place)
            assert epoch == walked[place][0] and np.array_equal(grain, walked[place][1])
    plan = LengthBucketed(some_lengths(50), 512, seed=1)
    plan.micro_batch(0)[1][:] = -1
    assert plan.micro_batch(0)[1].min() >= 0


def test_walking_plans_each_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    epoch = LengthBucketed.epoch

    def counted(plan: LengthBucketed, number: int) -> list[Lengths]:
        asked.append(number)
        return epoch(plan, number)

    monkeypatch.setattr(LengthBucketed, "epoch", counted)
    plan = LengthBucketed(some_lengths(300), 512, seed=1)
    reached = [plan.micro_batch(place)[0] for place in range(150)]
    assert asked == list(range(reached[-1] + 1)) and reached[-1] > 2


def test_padding_is_the_fraction_of_padded_positions_and_small() -> None:
    lengths = some_lengths(20_000)
    plan = LengthBucketed(lengths, 2048, 0)
    assert plan.padding_fraction() == pytest.approx(1 - lengths.sum() / sum(padded(lengths, g) for g in plan.epoch(0)))
    assert plan.padding_fraction() < 0.1
    assert LengthBucketed(np.full(64, 8), 64, 0).padding_fraction() == 0
    assert LengthBucketed(np.array([3, 1]), 6, 0).padding_fraction() == pytest.approx(1 - 4 / 6)
    grains = LengthBucketed(np.zeros((10, 2), dtype=np.int64), 4, 0).epoch(0)
    assert sorted(len(grain) for grain in grains) == [2, 4, 4]


def test_samples_that_cannot_be_batched_are_named() -> None:
    refused("20", LengthBucketed, np.array([[3, 4], [10, 20]]), 20, 0)
    refused("samples", LengthBucketed, np.zeros(0), 20, 0)
    refused("at least 1", LengthBucketed, np.ones(3), 0, 0, error=SettingError)
    refused("negative", LengthBucketed, np.array([1, -1]), 9, 0, error=ValueError)


def test_like_lengths_go_together_and_every_sample_is_there_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 1003)
    plan = SortedUniform(lengths, 10, seed=3)
    first, second = plan.epoch(0), plan.epoch(1)
    for epoch in (first, second):
        numbers = np.concatenate([grain[:, 0] for grain in epoch])
        assert {len(grain) for grain in epoch} == {10}
        assert set(numbers.tolist()) == set(range(1003)) and len(numbers) == 1010
        assert np.median([np.ptp(lengths[grain[:, 0]]) for grain in epoch]) < 5
    assert same(first, SortedUniform(lengths, 10, seed=3).epoch(0)) and not same(first, second)
    means = np.array([lengths[grain[:, 0]].mean() for grain in first])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.3, "micro-batches are shuffled"
    assert plan.padding_fraction() < 0.12 and plan.num_tokens(5) == 10 and not plan.static_shape


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("count", [1, 7, 3000])
@pytest.mark.parametrize("budget", [600, 4096, 10**7])
def test_padded_micro_batches_have_few_shapes(sides: int, count: int, budget: int) -> None:
    lengths = some_lengths(count, sides)
    plan = FixedShape(lengths, budget, seed=3)
    for epoch in (0, 1):
        grains = plan.epoch(epoch)
        assert np.array_equal(np.sort(np.concatenate(grains)), np.arange(count))
        for grain in grains:
            block = plan.shape_of(grain)
            assert len(grain) <= block.num_documents and (lengths[grain] <= block.max_lengths).all()
            assert block.num_documents * sum(block.max_lengths) <= budget and plan.padded_size(grain) <= budget
            assert (np.array(block.max_lengths) <= lengths.max(0)).all()
    assert len(plan.bucket_shapes) < 64 and plan.bucketed and not plan.static_shape and plan.shape in plan.bucket_shapes
    assert same(plan.epoch(1), FixedShape(lengths.copy(), budget, 3).epoch(1))
    assert count == 1 or not same(plan.epoch(1), plan.epoch(2))


def test_sizes_that_few_samples_have_join_larger_ones_and_long_texts_are_rounded_by_more() -> None:
    plan = FixedShape([8] * 50 + [16] * 3 + [24] * 50, budget=240, seed=0)
    assert [(block.max_lengths, block.num_documents) for block in plan.bucket_shapes] == [((8,), 30), ((24,), 10)]
    assert plan.shape_of(np.array([51])).max_lengths == (24,)
    plan = FixedShape(np.arange(1, 513), budget=10**4, seed=0)
    steps = {block.max_lengths[0] for block in plan.bucket_shapes}
    assert steps <= {*range(8, 65, 8), *range(80, 129, 16), *range(160, 257, 32), *range(320, 513, 64)} and 512 in steps
    lengths = np.repeat(some_lengths(3000), 10, axis=0)
    plan = FixedShape(lengths, 16384, seed=0)
    assert plan.padding_fraction() < 0.35 and 8 < len(plan.bucket_shapes) < 64
