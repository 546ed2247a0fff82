"""Built-in point cloud sets: reproducible, disjoint splits, shapes that match their names."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from data_files import refused
from regard.data.points.cloud_files import read_cloud
from regard.data.synthetic.point_clouds import SPLITS, parse_cloud_recipe
from regard.data.synthetic.rooms import room_cloud, sample_room
from regard.data.synthetic.solids import SOLIDS, class_name, solid_cloud, solid_mesh
from regard.errors import DataError, SettingError, UnknownNameError

SOLIDS_HASH = "cb575aece46aac7f34199d85078a18e064e7d906074e7e65dba11b0acfe53682"
ROOMS_HASH = "7b534b87044f58a33a91e4906abc373f1092c3cef24e920dde9bc6760009af97"
CORRUPTED_HASH = "a6b956fbd5c647f3133811f1a656fbc4ea7d8de2b300a6e5b4ccda83191ad4c2"
"""Hashes of the sets. Changed samples are another set, which needs another name: solids-2."""


def told(*arrays: np.ndarray | None) -> bytes:
    """Bytes of all arrays, rounded to a tenth of a millimeter because last digits differ between machines."""
    numbers = [np.rint(10_000 * a) if a.dtype.kind == "f" else a for a in arrays if a is not None]
    return b"".join(array.astype(np.int64).tobytes() for array in numbers)


def solids() -> Iterable[bytes]:
    for part, number in itertools.product(SPLITS, range(100)):
        yield class_name(number).encode() + told(solid_mesh(part, number).vertices)
    for part, number in itertools.product(SPLITS, range(20)):
        made = solid_cloud(part, number)
        yield told(made.coordinates, made.normals)


def corrupted() -> Iterable[bytes]:
    for make, turn, holes in itertools.product((solid_cloud, room_cloud), ("none", "up", "any"), (0, 5)):
        made = make("test", 7, 300, noise=0.0 if holes else 0.05, holes=holes, turn=turn)
        yield told(made.coordinates, made.normals, made.colors, made.labels)


def rooms() -> Iterable[bytes]:
    for part, number in itertools.product(SPLITS, range(50)):
        _, mesh, owners = sample_room(part, number)
        yield told(mesh.vertices, mesh.faces, owners)
    for part, number in itertools.product(SPLITS, range(4)):
        scene = room_cloud(part, number)
        yield told(scene.coordinates, scene.normals, scene.colors, scene.labels)


def test_the_sets_are_the_same_everywhere() -> None:
    for parts, wanted in ((solids(), SOLIDS_HASH), (rooms(), ROOMS_HASH), (corrupted(), CORRUPTED_HASH)):
        assert hashlib.sha256(b"".join(parts)).hexdigest() == wanted


def test_a_name_is_read_as_it_is_written() -> None:
    for name, whole in (
        ("solids", "solids-1"), ("rooms-1", "rooms-1"), ("solids#samples=500,part=test", "solids-1#part=test,samples=500"),
        ("rooms#noise=0.05,holes=0,turn=none,points=100", "rooms-1#points=100,noise=0.05,holes=0,turn=none"),
    ):  # fmt: skip
        recipe = parse_cloud_recipe(name)
        assert str(recipe) == whole and parse_cloud_recipe(str(recipe)) == recipe
    assert parse_cloud_recipe("data/solids") is None and parse_cloud_recipe("solids.ply") is None
    solids = parse_cloud_recipe("solids#samples=30,noise=0")
    assert solids is not None and str(solids.for_split("valid")) == "solids-1#part=valid,noise=0.0"
    assert solids.count == 30 and solids.for_split("test").count == 500 and solids.classes == SOLIDS


@pytest.mark.parametrize("name, kind, said", [
    ("solids#noisy=1", UnknownNameError, "'noise'"), ("solids#part", DataError, "'part'"),
    ("solids#part=exam", SettingError, "train"), ("solids#holes=9", SettingError, "holes"),
    ("rooms#noise=-0.5", SettingError, "least"), ("rooms#turn=left", SettingError, "turn"),
    ("rooms#points=few", SettingError, "integer"),
])  # fmt: skip
def test_an_invalid_name_is_refused(name: str, kind: type[Exception], said: str) -> None:
    refused(said, parse_cloud_recipe, name, error=kind)


def test_one_of_them_is_read_by_its_number() -> None:
    recipe = parse_cloud_recipe("solids#part=test,samples=3,points=77")
    made = list(recipe.clouds())
    assert [(number, label) for number, _, label in made] == [(0, "angle"), (1, "ball"), (2, "box")]
    np.testing.assert_array_equal(read_cloud(made[2][1]).coordinates, solid_cloud("test", 2, 77).coordinates)
    assert len(read_cloud("rooms#number=0,points=50")) == 50
    refused("expected one point cloud", read_cloud, "rooms#part=test")
