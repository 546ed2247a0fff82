"""Computed values equal the golden record, which has neutral ids: see tests/golden/README.md."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch

from golden import names, record
from golden.compute import CASES, Workshop
from regard.systems import SYSTEMS

RECORD, TENSORS = record.read()
ENTRIES = record.entries()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.disable()  # each garbage collection would scan all imported modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Workshop(tmp_path_factory.mktemp("golden"))
    gc.enable()
    gc.collect()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def without_shape_checks() -> None:
    """Disable shape checks: other tests check shapes, and the checks would take longer than the models."""
    jaxtyping.config.update("jaxtyping_disable", True)


def test_the_record_has_all_architectures_tasks_presets_and_exports_and_is_small() -> None:
    known = {name: key for key, name in names.SYSTEMS.items()}
    tasks = {pair: key for key, pair in names.TASKS.items()}
    pairs = {f"{known[name]}.{tasks[task, one.modality]}" for name, one in SYSTEMS.items() for task in one.tasks}
    presets = {preset for system in SYSTEMS.values() for preset in system.presets}
    assert pairs == set(CASES) and presets == set(names.PRESETS) - {""}
    exported = {entry.split(".")[0] for entry in ENTRIES if "/export/" in entry}
    assert exported == {known[name] for name, system in SYSTEMS.items() if system.published.model_type}
    assert set(RECORD["values"]) == set(ENTRIES) and set(RECORD["tolerances"]) <= set(ENTRIES)
    # a stopped and resumed run is recorded as equal to an uninterrupted one
    assert all(RECORD["values"][f"{name}/training/float64"]["as uninterrupted"] is True for name in names.STOPPED)
    assert set(TENSORS) == {entry for entry in ENTRIES if "/logits/" in entry}
    assert sum(path.stat().st_size for path in record.HERE.iterdir() if path.is_file()) < 2_000_000


DIFFERENT: list[tuple[Any, Any]] = [
    ([1.0, 2.0], [1.0, 2.0 + 4e-6]), ({"a1": "cat"}, {"a1": "dog"}), ({"a3": [1, 2]}, {"a3": [1, 3]}),
    ([0.5], [float("nan")]), (7, 7.0), ([1.0], [1.0, 2.0]),
]  # fmt: skip


def test_different_values_are_distinguished() -> None:
    for expected, found in DIFFERENT:
        assert record.gap(expected, found) > record.TOLERANCES["float32"] and record.gap(expected, expected) == 0


def check(workshop: Workshop, entry: str) -> None:
    found, row = record.value(workshop, entry, RECORD["salts"])
    expected = RECORD["values"][entry]
    allowed = RECORD["tolerances"].get(entry, record.TOLERANCES[entry.rsplit("/", 1)[1]])
    gap = record.gap(expected, found)
    assert gap <= allowed, f"{entry}: expected {expected}, got {found}: relative difference {gap:.3g} > {allowed:.3g}"
    if row is not None:
        gap = record.gap(TENSORS[entry], row)
        assert gap <= allowed, f"{entry}: the logits have a relative difference of {gap:.3g} > {allowed:.3g}"


@pytest.mark.every(2)
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if "/training/" in entry])
def test_four_steps_of_training_have_the_recorded_losses(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if "/training/" not in entry])
def test_logits_gradients_predictions_sequences_exports_and_sizes_are_recorded(workshop: Workshop, entry: str) -> None:
    check(workshop, entry)


UNRECORDED = (
    *names.RUNS,
    *{case.split(".")[1]: case for case in CASES if case.split(".")[1] not in ("t01", "t10")}.values(),
)


@pytest.mark.parametrize("name", UNRECORDED)
def test_a_stopped_run_of_every_task_resumes_to_the_same_numbers(workshop: Workshop, name: str) -> None:
    case, more = names.RUNS.get(name, (name, None))
    runs = (workshop.run(case, "float64", more, stop) for stop in (record.STOP, 0))
    stopped, whole = (workshop.training(run, "float64", case) for run in runs)
    assert stopped == whole
