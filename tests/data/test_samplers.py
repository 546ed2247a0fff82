"""Batch sampler: every sample once, within the budget, and reproducible micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from data_files import refused
from regard.data.batching.samplers import (
    BatchSampler,
    FixedShape,
    LengthBucketed,
    PackedSampler,
    SortedUniform,
    Uniform,
)
from regard.data.batching.windows import FixedWindows, PretrainingSampler, VariableWindows
from regard.errors import SettingError

Lengths = npt.NDArray[np.int64]


def some_lengths(count: int, sides: int = 2, seed: int = 0) -> Lengths:
    """Random sentence lengths, correlated between sides."""
    random = np.random.default_rng(seed)
    first = random.lognormal(3, 0.6, (count, 1))
    return np.clip(first * random.lognormal(0, 0.2, (count, sides)), 1, 200).astype(np.int64)


PARTS = np.array([[0, 200, 1], [230, 300, 1], [300, 420, 2], [420, 424, 3], [424, 425, 4], [500, 900, 5]])
SAMPLERS: dict[str, Callable[[int], BatchSampler]] = {
    **{f"{kind.__name__}, {count} samples": partial(kind, some_lengths(count, sides), 512)
       for kind in (LengthBucketed, FixedShape) for count, sides in ((1, 2), (7, 1), (300, 2), (2000, 3))},
    "PackedSampler": partial(PackedSampler, some_lengths(300, 2), 512),
    "Uniform": partial(Uniform, 103, 10), "SortedUniform": partial(SortedUniform, some_lengths(1003, 1)[:, 0], 10),
    "FixedWindows": partial(FixedWindows, PARTS[:, :2], 16, 64),
    **{f"VariableWindows, {packed}": partial(VariableWindows, PARTS[:, :2], 16, 64, packed=packed) for packed in (False, True)},
    **{f"PretrainingSampler, {packed}, {paired}": partial(
           PretrainingSampler, PARTS, 33, 3 if paired else 2, 132, packed=packed, paired=paired)
       for packed in (False, True) for paired in (False, True)},
}  # fmt: skip
"""Samplers by seed."""
KEPT = (LengthBucketed, FixedShape, PackedSampler)
"""Samplers whose micro-batches are the numbers of the samples."""


@pytest.mark.parametrize("name", SAMPLERS)
def test_micro_batches_are_a_function_of_seed_and_number_within_the_budget(name: str) -> None:
    plan, again, other = (SAMPLERS[name](seed) for seed in (3, 3, 4))
    walked = [(number, grain) for number in range(3) for grain in plan.epoch(number)]
    samples, changed = len(plan.total_lengths), []
    for place in np.random.default_rng(1).permutation(len(walked))[:30].tolist():  # by jumping and going back
        epoch, grain = again.micro_batch(place)
        own = walked[place][1]
        assert epoch == walked[place][0] and np.array_equal(grain[:, : own.shape[1]] if own.ndim > 1 else grain, own)
        used, padded_size = int(again.row_lengths(grain).sum()), again.padded_size(grain)
        assert used <= padded_size <= (plan.budget if not isinstance(plan, Uniform) else padded_size)
        assert again.num_tokens(place) == (len(grain) if isinstance(plan, Uniform) else used)
        grain[:] = -1
        assert again.micro_batch(place)[1].min() >= 0, "micro-batches are copies"
        changed.append(not np.array_equal(own, other.micro_batch(place)[1][..., : own.shape[-1]]))
    drawn = (np.concatenate(plan.epoch(number)) for number in range(3))
    # without the random seeds
    epochs = [(rows[:, 0] if isinstance(plan, Uniform) else rows).tolist() for rows in drawn]
    if isinstance(plan, KEPT):
        assert all(sorted(epoch) == list(range(samples)) for epoch in epochs)
    if len(walked) > 9:
        assert sum(changed) > 0.5 * len(changed) and epochs[0] != epochs[1] != epochs[2]
    total = sum(plan.row_lengths(grain).sum() for grain in plan.epoch(0))
    assert plan.padding_fraction() == pytest.approx(1 - total / sum(map(plan.padded_size, plan.epoch(0))))


def test_sorted_micro_batches_are_full_before_the_next_begins() -> None:
    lengths = some_lengths(2000)
    grains = LengthBucketed(lengths, 1024, 0).sequential()
    for grain, following in pairwise(grains):
        more = lengths[np.append(grain, following[0])]
        assert len(more) * more.max(0).sum() > 1024
    assert (np.diff(lengths[np.concatenate(grains)].sum(1)) >= 0).all()


def test_micro_batches_are_shuffled_and_the_same_on_every_machine() -> None:
    lengths = some_lengths(500, 1)
    some, others = (LengthBucketed(given, 512, 0).epoch(2) for given in (lengths[:, 0], lengths))
    assert all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))
    means = np.array([lengths[grain].sum(1).mean() for grain in LengthBucketed(lengths, 1024, 0).epoch(0)])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3
    grains = LengthBucketed(np.array([5, 3, 8, 1, 9, 2]), 16, seed=7).epoch(0)
    assert [grain.tolist() for grain in grains] == [[3, 5, 1], [4], [0, 2]]


@pytest.mark.parametrize("lengths", [some_lengths(2000), np.full(2000, 9)], ids=["different", "equal"])
def test_other_samples_meet_in_another_epoch(lengths: Lengths) -> None:
    plan = LengthBucketed(lengths, 1024, 0)
    first, second = ({frozenset(grain.tolist()) for grain in plan.epoch(number)} for number in (0, 1))
    assert len(first & second) < 0.1 * len(first)


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
    assert LengthBucketed(some_lengths(20_000), 2048, 0).padding_fraction() < 0.1
    assert LengthBucketed(np.array([3, 1]), 6, 0).padding_fraction() == pytest.approx(1 - 4 / 6)
    grains = LengthBucketed(np.zeros((10, 2), dtype=np.int64), 4, 0).epoch(0)
    assert sorted(len(grain) for grain in grains) == [2, 4, 4]


def test_samples_that_cannot_be_batched_are_named() -> None:
    refused("20", LengthBucketed, np.array([[3, 4], [10, 20]]), 20, 0)
    refused("samples", LengthBucketed, np.zeros(0), 20, 0)
    refused("at least 1", LengthBucketed, np.ones(3), 0, 0, error=SettingError)
    refused("negative", LengthBucketed, np.array([1, -1]), 9, 0, error=ValueError)


def test_like_lengths_go_together_and_every_sample_is_there() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 1003)
    plan = SortedUniform(lengths, 10, seed=3)
    for epoch in (plan.epoch(0), plan.epoch(1)):
        numbers = np.concatenate([grain[:, 0] for grain in epoch])
        assert {len(grain) for grain in epoch} == {10}
        assert set(numbers.tolist()) == set(range(1003)) and len(numbers) == 1010
        assert np.median([np.ptp(lengths[grain[:, 0]]) for grain in epoch]) < 5
    means = np.array([lengths[grain[:, 0]].mean() for grain in plan.epoch(0)])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.3, "micro-batches are shuffled"
    assert plan.padding_fraction() < 0.12 and not plan.static_shape


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("budget", [600, 4096, 10**7])
def test_padded_micro_batches_have_few_shapes(sides: int, budget: int) -> None:
    lengths = some_lengths(3000, sides)
    plan = FixedShape(lengths, budget, seed=3)
    for grain in plan.epoch(0):
        block = plan.shape_of(grain)
        assert len(grain) <= block.num_documents and (lengths[grain] <= block.max_lengths).all()
        assert block.num_documents * sum(block.max_lengths) <= budget
        assert (np.array(block.max_lengths) <= lengths.max(0)).all()
    assert len(plan.bucket_shapes) < 64 and plan.bucketed and not plan.static_shape and plan.shape in plan.bucket_shapes


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
