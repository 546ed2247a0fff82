"""Every script in benchmarks/ runs from end to end at its `--smoke` size and prints figures; ModelNet10 as point files."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.points.labeled import CLOUDS, CloudSample

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXTS = {path.stem: path.read_text("utf-8") for path in sorted(BENCHMARKS.glob("*.py"))}
SCRIPTS = [name for name, text in TEXTS.items() if "__main__" in text]
HELPERS = TEXTS.keys() - SCRIPTS
"""Modules that scripts import and that are not run."""
FIGURE = re.compile(r"(?<![\w.+-])-?\d[\d,]*(\.\d+)?(e-?\d+)?(?![\w.+])")
"""A separate number: "1,024", "0.5", and not the parts of a version such as "2.13.0"."""
NO_FIGURE = ("left out: ", "not installed: ")


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Put the benchmarks on `sys.path`: scripts import each other by plain names."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in {*SCRIPTS, *HELPERS} & sys.modules.keys():
        del sys.modules[name]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_from_end_to_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import harness

    script = importlib.import_module(name)
    for function in ("main", "smoke"):
        assert callable(getattr(script, function, None)), f"benchmarks/{name}.py defines no {function}()"
    harness.run(script.main, script.smoke, ["--smoke"])
    lines = capsys.readouterr().out.splitlines()
    unmarked = [line for line in lines if not line.startswith(harness.MARK)]
    assert not unmarked, f"benchmarks/{name}.py --smoke prints lines without the mark '{harness.MARK}': {unmarked[:3]}"
    lines = [line.removeprefix(harness.MARK) for line in lines]
    found = any(FIGURE.search(line) for line in lines if not line.startswith(NO_FIGURE))
    assert found, f"benchmarks/{name}.py --smoke prints no figure: {lines}"


def test_a_helper_is_imported() -> None:
    scripts = "\n".join(TEXTS[script] for script in SCRIPTS)
    for name in HELPERS:
        assert re.search(rf"^\s*(import|from) {name}\b", scripts, re.MULTILINE), name


def test_the_smoke_mode_takes_no_arguments_and_leaves_the_process_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    import harness
    import torch

    torch.manual_seed(1)
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_rng_state().tolist())

    def smoke(folder: Path) -> None:
        assert folder.is_dir() and not any(folder.iterdir())
        assert (harness.mode(), harness.device(), harness.pick(cuda=1, cpu=2, smoke=3)) == ("smoke", "cpu", 3)
        torch.set_float32_matmul_precision("medium")
        print(torch.rand(1), end=" 1\n2\n")

    harness.run(print, smoke, ["--smoke"])
    assert capsys.readouterr().out.splitlines()[1] == "smoke: 2"
    assert before == (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_rng_state().tolist())
    assert not harness.is_smoke()
    with pytest.raises(SystemExit, match="--smoke"):
        harness.run(print, print, ["--smoke", "--steps", "3"])


def modelnet() -> Any:
    return importlib.import_module("modelnet")


def shapes(many: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((many, 6, 6, 6)) < 0.4).astype(np.int32)


def test_every_shape_is_written_once_in_its_part_and_class(tmp_path: Path) -> None:
    train, test = shapes(60, 0), shapes(20, 1)
    train[7], test[3] = 0, 0
    train[8:12] = train[4:8]  # duplicates, one of them empty
    labels = np.arange(60) % 10, np.arange(20) % 10
    np.savez(tmp_path / "m.npz", X_train=train, y_train=labels[0], X_test=test, y_test=labels[1])
    counts = modelnet().prepare(tmp_path / "m.npz", tmp_path / "out")
    assert counts["train"] + counts["valid"] == 58 and counts["test"] == 19 and counts["valid"] > 0
    parts: dict[int, str] = {}
    for part in counts:
        for item in CLOUDS.samples([str(tmp_path / "out" / part)]):
            assert isinstance(item, CloudSample)
            given, number = Path(item.source).stem.split("-")
            source, label = (train, labels[0]) if given == "train" else (test, labels[1])
            right = np.argwhere(source[int(number)])
            np.testing.assert_array_equal(item.read().coordinates, right)
            assert item.label == modelnet().CLASSES[label[int(number)]]
            if given == "train":
                parts[int(number)] = part
    assert [parts[n] for n in (4, 5, 6)] == [parts[n] for n in (8, 9, 10)]  # duplicates are in the same split
    train = shapes(60, 3)  # held-out shapes may be trained on too
    np.savez(tmp_path / "m.npz", X_train=train, y_train=np.zeros(60), X_test=train[:1], y_test=[0])
    few = modelnet().prepare(tmp_path / "m.npz", tmp_path / "few", modelnet().Wanted(held_out=3))
    whole = modelnet().prepare(tmp_path / "m.npz", tmp_path / "whole", modelnet().Wanted(held_out=3, all=True))
    assert few["train"] + few["valid"] == whole["train"] == 60 and few["valid"] == whole["valid"] > 10


def test_points_are_spread_evenly_in_the_cells_and_normals_point_out_of_the_body(tmp_path: Path) -> None:
    body = np.zeros((1, 12, 12, 12), dtype=np.int32)
    body[0, 2:10, 2:10, 2:10] = 1
    np.savez(tmp_path / "m.npz", X_train=body, y_train=[0], X_test=body, y_test=[0])
    modelnet().prepare(tmp_path / "m.npz", tmp_path / "out", modelnet().Wanted(surface=True, points=1000, normals=True))
    [item] = CLOUDS.samples([str(tmp_path / "out" / "test")])
    assert isinstance(item, CloudSample)
    cloud = item.read()
    assert len(cloud.coordinates) == 1000 and cloud.normals is not None
    cells = np.argwhere(modelnet().surface(body[0].astype(bool)))
    far = np.abs(cloud.coordinates[:, None] - cells[None]).max(-1)
    assert len(cells) == 8**3 - 6**3 and far.min(1).max() < 0.51  # rounding of float16
    many = np.bincount(far.argmin(1), minlength=len(cells))
    assert many.min() >= 2 and many.max() <= 5 and np.isin(many, (3, 4)).mean() > 0.9
    outwards = cloud.coordinates - 5.5
    assert ((outwards * cloud.normals).sum(1) > 0).all()
    np.testing.assert_allclose(np.sqrt((cloud.normals**2).sum(1)), 1, atol=2e-3)
    inner = (cloud.coordinates[:, 2] > 9.4) & (np.abs(cloud.coordinates[:, :2] - 5.5) < 2).all(1)
    assert inner.any() and np.allclose(cloud.normals[inner], [0, 0, 1], atol=1e-6)
