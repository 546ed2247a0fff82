"""Computed values equal the golden record, which has neutral ids: see tests/golden/README.md."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch

from golden import names, product, record
from golden.compute import CASES, Workshop

RECORD, TENSORS = record.read()
ENTRIES = record.entries()


def of_kind(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.split("/")[1] == kind])


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.disable()  # each garbage collection would scan all imported modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, names.CACHE, str(tmp_path_factory.mktemp("cache")))
        yield Workshop(tmp_path_factory.mktemp("golden"))
    gc.enable()
    gc.collect()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def without_shape_checks() -> None:
    """Disable shape checks: other tests check shapes, and the checks would take longer than the models."""
    jaxtyping.config.update("jaxtyping_disable", True)


def check(workshop: Workshop, entry: str) -> None:
    found, row = record.value(workshop, entry, RECORD["salts"])
    expected, allowed = RECORD["values"][entry], record.tolerance(RECORD, entry)
    gap = record.gap(expected, found)
    assert gap <= allowed, f"{entry}: expected {expected}, got {found}: relative difference {gap:.3g} > {allowed:.3g}"
    if row is not None:
        gap = record.gap(TENSORS[entry], row)
        assert gap <= allowed, f"{entry}: the logits have a relative difference of {gap:.3g} > {allowed:.3g}"


# -- the record is complete


def test_every_architecture_task_and_preset_has_an_id() -> None:
    known = {name: key for key, name in names.SYSTEMS.items()}
    tasks = {pair: key for key, pair in names.TASKS.items()}
    pairs, presets = set(), set()
    for name, (reads, _, offered, sizes) in product.systems().items():
        pairs |= {f"{known[name]}.{tasks[task, reads]}" for task in offered}
        presets |= set(sizes)
    assert pairs == set(CASES) and presets == set(names.PRESETS) - {""}


def test_every_architecture_with_a_published_layout_has_an_exported_config() -> None:
    exported = {entry.split(".")[0] for entry in ENTRIES if "/export/" in entry}
    assert {names.SYSTEMS[key] for key in exported} == {
        name for name, (_, layout, _, _) in product.systems().items() if layout
    }


def test_the_record_holds_exactly_the_entries_and_is_small() -> None:
    assert set(RECORD["values"]) == set(ENTRIES) and set(RECORD["tolerances"]) <= set(ENTRIES)
    assert set(TENSORS) == {entry for entry in ENTRIES if "/logits/" in entry}
    assert sum(path.stat().st_size for path in record.HERE.iterdir() if path.is_file()) < 2_000_000


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 4e-6]),
        ({"a1": "cat"}, {"a1": "dog"}),
        ({"a3": [1, 2]}, {"a3": [1, 3]}),
        ([0.5], [float("nan")]),
        (7, 7.0),
        ([1.0], [1.0, 2.0]),
    ],
)
def test_different_values_are_distinguished(expected: Any, found: Any) -> None:
    assert record.gap(expected, found) > record.TOLERANCES["float32"] and record.gap(expected, expected) == 0


# -- values


@pytest.mark.every(2)
@of_kind("training")
def test_four_steps_of_training_have_the_recorded_losses(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@of_kind("logits")
def test_filled_parameters_give_the_recorded_logits_and_gradients(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@of_kind("prediction")
def test_filled_parameters_give_the_recorded_prediction(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@of_kind("sequences")
def test_greedy_beam_and_sampled_sequences_are_those_of_the_record(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@of_kind("export")
def test_the_exported_config_and_tensors_are_those_of_the_record(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@of_kind("parameters")
def test_every_preset_has_the_recorded_number_of_parameters(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@pytest.mark.parametrize("name", names.STOPPED)
def test_a_stopped_and_resumed_run_is_recorded_as_equal_to_an_uninterrupted_one(name: str) -> None:
    assert RECORD["values"][f"{name}/training/float64"]["as uninterrupted"] is True
