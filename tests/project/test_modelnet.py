"""ModelNet10 as point files: every shape in its split and class, one point per voxel."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.points.labeled import CloudSample, iterate_clouds


@pytest.fixture(scope="module")
def modelnet() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        return importlib.import_module("modelnet")


def shapes(many: int, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((many, 6, 6, 6)) < 0.4).astype(np.int32)


def test_every_shape_is_written_once_in_its_part_and_class(modelnet: Any, tmp_path: Path) -> None:
    train, test = shapes(60, 0), shapes(20, 1)
    train[7], test[3] = 0, 0
    train[8:12] = train[4:8]  # duplicates, one of them empty
    labels = np.arange(60) % 10, np.arange(20) % 10
    np.savez(tmp_path / "m.npz", X_train=train, y_train=labels[0], X_test=test, y_test=labels[1])
    counts = modelnet.prepare(tmp_path / "m.npz", tmp_path / "out")
    assert counts["train"] + counts["valid"] == 58 and counts["test"] == 19 and counts["valid"] > 0
    parts: dict[int, str] = {}
    for part in counts:
        for item in iterate_clouds([str(tmp_path / "out" / part)]):
            assert isinstance(item, CloudSample)
            given, number = Path(item.source).stem.split("-")
            source, label = (train, labels[0]) if given == "train" else (test, labels[1])
            right = np.argwhere(source[int(number)])
            np.testing.assert_array_equal(item.read().coordinates, right)
            assert item.label == modelnet.CLASSES[label[int(number)]]
            if given == "train":
                parts[int(number)] = part
    assert [parts[n] for n in (4, 5, 6)] == [parts[n] for n in (8, 9, 10)]  # duplicates are in the same split


def test_the_surface_is_the_set_of_voxels_with_a_free_side(modelnet: Any) -> None:
    cells = shapes(1, 2)[0].astype(bool)
    cells[1:5, 1:5, 1:5] = True
    found = modelnet.surface(cells)
    around = np.pad(cells, 1)
    for x, y, z in np.ndindex(6, 6, 6):
        near = [around[x, y + 1, z + 1], around[x + 2, y + 1, z + 1], around[x + 1, y, z + 1], around[x + 1, y + 2, z + 1],
                around[x + 1, y + 1, z], around[x + 1, y + 1, z + 2]]  # fmt: skip
        assert found[x, y, z] == (cells[x, y, z] and not all(near))


def test_points_are_spread_evenly_in_the_cells_and_normals_point_out_of_the_body(modelnet: Any, tmp_path: Path) -> None:
    body = np.zeros((1, 12, 12, 12), dtype=np.int32)
    body[0, 2:10, 2:10, 2:10] = 1
    np.savez(tmp_path / "m.npz", X_train=body, y_train=[0], X_test=body, y_test=[0])
    modelnet.prepare(tmp_path / "m.npz", tmp_path / "out", modelnet.Wanted(surface=True, points=1000, normals=True))
    [item] = iterate_clouds([str(tmp_path / "out" / "test")])
    assert isinstance(item, CloudSample)
    cloud = item.read()
    assert len(cloud.coordinates) == 1000 and cloud.normals is not None
    cells = np.argwhere(modelnet.surface(body[0].astype(bool)))
    far = np.abs(cloud.coordinates[:, None] - cells[None]).max(-1)
    assert len(cells) == 8**3 - 6**3 and far.min(1).max() < 0.51  # rounding of float16
    many = np.bincount(far.argmin(1), minlength=len(cells))
    assert many.min() >= 2 and many.max() <= 5 and np.isin(many, (3, 4)).mean() > 0.9
    outwards = cloud.coordinates - 5.5
    assert ((outwards * cloud.normals).sum(1) > 0).all()
    np.testing.assert_allclose(np.sqrt((cloud.normals**2).sum(1)), 1, atol=2e-3)
    top = cloud.coordinates[:, 2] > 9.4
    inner = top & (np.abs(cloud.coordinates[:, :2] - 5.5) < 2).all(1)
    assert inner.any()
    np.testing.assert_allclose(cloud.normals[inner], np.broadcast_to([0, 0, 1], (inner.sum(), 3)), atol=1e-6)


def test_held_out_shapes_may_be_trained_on_too(modelnet: Any, tmp_path: Path) -> None:
    train = shapes(60, 3)
    np.savez(tmp_path / "m.npz", X_train=train, y_train=np.zeros(60), X_test=train[:1], y_test=[0])
    few = modelnet.prepare(tmp_path / "m.npz", tmp_path / "few", modelnet.Wanted(held_out=3))
    whole = modelnet.prepare(tmp_path / "m.npz", tmp_path / "whole", modelnet.Wanted(held_out=3, all=True))
    assert few["train"] + few["valid"] == whole["train"] == 60 and few["valid"] == whole["valid"] > 10
