"""Rows of point clouds against plain loops: downsampling, sampling, normalization, augmentation and blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import refused
from regard.data.points.cloud import PointCloud
from regard.errors import SettingError
from regard.processors.points import (
    FILE,
    PointAugment,
    PointProcessor,
    augment_points,
    axis_rotation,
    overlapping_blocks,
    sample_kept_points,
    sample_rounds,
    scene_block_indices,
    split_scene,
    voxel_downsample,
)


def cloud(many: int = 300, seed: int = 0, scale: float = 1.0) -> PointCloud:
    random = np.random.default_rng(seed)
    normals = random.normal(size=(many, 3)).astype(np.float32)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    places = (scale * random.random((many, 3)) + [3, -2, 7]).astype(np.float32)
    return PointCloud(places, random.integers(0, 256, (many, 3)).astype(np.uint8), normals)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def thinned_plainly(places: np.ndarray, edge: float) -> tuple[list[int], list[int]]:
    """Voxel downsampling in a loop over points."""
    low, first, cell = places.min(axis=0).astype(np.float64), dict[tuple[int, ...], int](), []
    for number, place in enumerate(places):
        key = tuple(int(side) for side in np.floor((place - low) / edge))
        cell.append(first.setdefault(key, number))
    keep = sorted(first.values())
    return keep, [keep.index(number) for number in cell]


@pytest.mark.parametrize("edge", [0.01, 0.13, 0.5, 3.0])
def test_downsampling_equals_a_plain_loop(edge: float) -> None:
    places = cloud(400).coordinates
    places[100:120] = places[:20]  # duplicates
    keep, cell = voxel_downsample(places, edge)
    right, owner = thinned_plainly(places, edge)
    np.testing.assert_array_equal(keep, right)
    np.testing.assert_array_equal(cell, owner)


def test_random_downsampling_keeps_one_point_per_voxel_uniformly_and_any_size_of_grid_is_possible() -> None:
    places = np.array([[0, 0, 0.1], [5, 0, 0], [0, 0, 0.2], [0, 0, 0.3]], np.float32)
    seen = np.zeros(4)
    random = generator()
    for _ in range(3000):
        keep, cell = voxel_downsample(places, 1.0, random)
        assert len(keep) == 2 and (np.diff(keep) > 0).all()
        assert (keep[cell[[0, 2, 3]]] == keep[cell[0]]).all() and keep[cell[1]] == 1
        seen[keep] += 1
    assert seen[1] == 3000 and np.abs(seen[[0, 2, 3]] - 1000).max() < 110
    places = np.array([[0, 0, 0], [1e14, 0, 0], [0, 1e14, 0], [0, 0, 1e14], [0.2, 0.2, 0.2], [1e14, 0, 0]], np.float32)
    keep, cell = voxel_downsample(places, 0.5)
    assert keep.tolist() == [0, 1, 2, 3] and cell.tolist() == [0, 1, 2, 3, 0, 1]
    places = cloud(5).coordinates
    assert voxel_downsample(places, 0.0)[0].tolist() == list(range(5)) == voxel_downsample(places, 0.0)[1].tolist()
    assert len(voxel_downsample(places[:0], 0.1)[0]) == 0


def test_rows_contain_coordinates_then_colors_then_normals_and_zeros_for_missing_ones() -> None:
    made = cloud(20)
    points = PointProcessor(count=0, frame="center", features=("colors", "normals"))
    x, chosen = points.prepare(made)
    assert x.shape == (20, 9) == (20, points.width) and x.dtype == np.float32 and points.normals_column == 6
    np.testing.assert_array_equal(chosen, np.arange(20))
    np.testing.assert_allclose(x[:, :3], made.coordinates - made.coordinates.astype(np.float64).mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(x[:, 3:6], made.colors / 255, atol=1e-7)
    np.testing.assert_array_equal(x[:, 6:], made.normals)
    x, _ = PointProcessor(features=("colors", "normals")).prepare(PointCloud(cloud(20).coordinates))
    assert x.shape == (20, 9) and not x[:, 3:].any()
    assert PointProcessor(features=("normals",)).normals_column == 3 and PointProcessor().normals_column is None


def test_normalizations_match_their_names_and_stay_finite() -> None:
    made = cloud(200, scale=4)
    unit, centred, floor = (
        PointProcessor(0, frame).prepare(made)[0].astype(np.float64) for frame in ("unit_sphere", "center", "floor")
    )
    np.testing.assert_allclose(unit.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1).max(), 1, rtol=1e-6)
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(floor[:, :2], centred[:, :2], atol=1e-6)
    assert floor[:, 2].min() == 0 and PointProcessor(0, "floor", up="y").prepare(made)[0][:, 1].min() == 0
    for framed in (centred, floor):  # meters stay meters
        np.testing.assert_allclose(np.ptp(framed, axis=0), np.ptp(made.coordinates, axis=0), rtol=1e-5)
    for places in (np.array([[5, 6, 7]], np.float32), np.full((9, 3), 4, np.float32)):
        for frame in ("unit_sphere", "center", "floor"):
            x, _ = PointProcessor(4, frame).prepare(PointCloud(places))
            np.testing.assert_array_equal(x, 0)


def test_points_are_drawn_once_each_and_the_same_without_chance() -> None:
    made = cloud(300)
    points = PointProcessor(count=64)
    x, chosen = points.prepare(made)
    again, same = points.prepare(made)
    np.testing.assert_array_equal(chosen, same)
    np.testing.assert_array_equal(x, again)
    assert len(set(chosen.tolist())) == 64
    first, other = (points.prepare(made, generator(seed))[1] for seed in (1, 2))
    assert len(set(first.tolist())) == 64 and (first != other).any()
    np.testing.assert_array_equal(first, points.prepare(made, generator(1))[1])
    assert len(points.prepare(cloud(10))[0]) == 10  # a smaller point cloud keeps all points


def test_downsampled_and_cropped_points_are_points_of_the_point_cloud() -> None:
    made = cloud(2000, scale=6)
    points = PointProcessor(100, "floor", voxel=0.4, block=2.0, features=("colors",))
    for random in (None, generator(3)):
        x, chosen = points.prepare(made, random)
        assert 5 < len(x) <= 100
        np.testing.assert_allclose(np.ptp(x[:, :3], axis=0), np.ptp(made.coordinates[chosen], axis=0), atol=1e-5)
        assert (np.ptp(x[:, :2], axis=0) <= 2.0 + 1e-5).all() and np.ptp(x[:, 2]) > 4  # a block is as high as the scene
        np.testing.assert_allclose(x[:, 3:], made.colors[chosen] / 255, atol=1e-7)
        cells = np.floor((made.coordinates[chosen] - made.coordinates.min(axis=0)).astype(np.float64) / 0.4)
        assert len(np.unique(cells, axis=0)) == len(x)


def test_the_processor_of_point_clouds_is_saved_and_invalid_files_are_refused(tmp_path: Path) -> None:
    assert PointProcessor.load(tmp_path) is None
    points = PointProcessor(512, "floor", 0.04, 2.5, ("colors", "normals"), "y")
    points.save(tmp_path)
    assert PointProcessor.load(tmp_path) == points
    wrong = {"{": "read", "[]": "object", '{"counts": 3}': "'counts'", '{"frame": "upside"}': "values"}
    for text, said in {**wrong, '{"count": -1}': "values"}.items():
        (tmp_path / FILE).write_text(text)
        refused(said, PointProcessor.load, tmp_path)


@pytest.mark.parametrize("kind, settings", [
    *((PointProcessor, values) for values in (
        {"count": -1}, {"voxel": -0.1}, {"voxel": float("nan")}, {"block": 1.0}, {"features": ("normals", "colors")},
        {"features": ("heat",)}, {"frame": "floor", "block": 0.1, "voxel": 0.2}, {"up": "w"}, {"frame": "none"},
    )),
    *((PointAugment, values) for values in (
        {"rotate": "left"}, {"scale": (2.0, 1.0)}, {"scale": (0.0, 1.0)}, {"scale": (1.0,)}, {"shift": -1},
        {"point_dropout": 1.0},
    )),
])  # fmt: skip
def test_invalid_settings_are_refused(kind: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        kind(**settings)


@pytest.mark.parametrize(("turn", "axis"), [("up", "x"), ("up", "y"), ("up", "z"), ("any", "z")])
def test_a_rotation_keeps_distances_and_its_axis_and_rotates_normals(turn: Any, axis: Any) -> None:
    points = PointProcessor(0, "center", features=("colors", "normals"))
    x, _ = points.prepare(cloud(50))
    found = augment_points(x, generator(5), PointAugment(rotate=turn, up=axis), points.normals_column)
    assert not np.allclose(found[:, :3], x[:, :3])
    # the rotation of the coordinates is also the rotation of the normals
    rotation, *_ = np.linalg.lstsq(x[:, :3].astype(np.float64), found[:, :3].astype(np.float64), rcond=None)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(np.linalg.det(rotation), 1, atol=1e-4)  # not a reflection
    np.testing.assert_allclose(x[:, 6:] @ rotation, found[:, 6:], atol=1e-4)
    np.testing.assert_array_equal(found[:, 3:6], x[:, 3:6])
    up = "xyz".index(axis)
    if turn == "up":
        np.testing.assert_allclose(found[:, up], x[:, up], atol=1e-5)
    np.testing.assert_allclose(axis_rotation(np.pi / 2, axis) @ np.eye(3)[up - 2], np.eye(3)[up - 1], atol=1e-12)


def test_scale_shift_and_jitter_are_within_their_bounds_and_every_direction_is_as_likely() -> None:
    x = cloud(500).coordinates
    size = np.linalg.norm(np.ptp(x, axis=0))
    scaled = [augment_points(x, generator(n), PointAugment(scale=(0.5, 2))) for n in range(200)]
    factors = [np.linalg.norm(np.ptp(one, axis=0)) / size for one in scaled]
    assert 0.5 <= min(factors) < 0.6 and 1.9 < max(factors) <= 2.0
    moved = np.stack([augment_points(x, generator(n), PointAugment(shift=0.2)) - x for n in range(50)])
    assert np.ptp(moved, axis=1).max() < 1e-5 and 0.15 < np.abs(moved).max() < 0.2 + 1e-5
    blurred = augment_points(x, generator(), PointAugment(jitter=0.1)) - x
    assert 0.08 < blurred.std() < 0.12 and np.abs(blurred).max() <= 0.3 + 1e-5
    random = generator()
    axes, turn = np.eye(3, dtype=np.float32), PointAugment(rotate="any")
    found = np.stack([augment_points(axes, random, turn)[0] for _ in range(4000)])
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=0.04)
    np.testing.assert_allclose(found.T @ found / 4000, np.eye(3) / 3, atol=0.03)


def test_dropping_leaves_some_out_and_never_all() -> None:
    random = generator()
    sizes = []
    for _ in range(300):
        stay = sample_kept_points(200, random, PointAugment(point_dropout=0.5))
        assert (np.diff(stay) > 0).all()
        sizes.append(len(stay))
    assert min(sizes) < 120 and max(sizes) > 190 and np.mean(sizes) == pytest.approx(150, abs=6)
    assert all(len(sample_kept_points(1, random, PointAugment(point_dropout=0.99))) == 1 for _ in range(50))
    np.testing.assert_array_equal(sample_kept_points(9, random, PointAugment()), np.arange(9))


def test_augmentation_is_a_pure_function_of_its_generator_and_of_the_enabled_augmentations() -> None:
    x = cloud(40).coordinates
    before = x.copy()
    how = PointAugment("any", (0.8, 1.25), 0.1, 0.02, 0.3)
    one, two = (augment_points(x, generator(9), how) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(x, before)
    assert one.dtype == np.float32 and (one != augment_points(x, generator(10), how)).any()
    np.testing.assert_array_equal(augment_points(x, generator(1), PointAugment()), x)
    turned = augment_points(x, generator(4), PointAugment("up"))
    both = augment_points(x, generator(4), PointAugment("up", shift=0.5))
    assert np.ptp(both - turned, axis=0).max() < 1e-5 and np.abs(both - turned).max() > 0.01


def columns_plainly(places: np.ndarray, side: float) -> list[list[int]]:
    """Points of every block with a stride of half a side."""
    low = places.min(axis=0)[:2].astype(np.float64)
    halves = [tuple(int(h) for h in np.floor((place[:2] - low) / (side / 2))) for place in places]
    last = [max(max(h[axis] for h in halves) - 1, 0) for axis in (0, 1)]
    found = []
    for across in range(last[0] + 1):
        for along in range(last[1] + 1):
            inside = [n for n, h in enumerate(halves) if across <= h[0] <= across + 1 and along <= h[1] <= along + 1]
            found += [inside] if inside else []
    return found


@pytest.mark.parametrize("side", [0.7, 1.5, 3.0, 40.0])
def test_columns_are_those_of_a_plain_loop(side: float) -> None:
    places = cloud(300, scale=6).coordinates
    found = overlapping_blocks(places, PointProcessor(0, "floor", block=side))
    assert sorted(column.tolist() for column in found) == sorted(columns_plainly(places, side))


def test_pieces_cover_every_point_evenly_and_are_no_larger_than_set() -> None:
    places = cloud(3000, scale=6).coordinates
    points = PointProcessor(100, "floor", block=2.0)
    found = scene_block_indices(places, points)
    counts = np.bincount(np.concatenate(found), minlength=3000)
    assert max(map(len, found)) <= 100 and counts.min() >= 1
    inner = ((places[:, :2] > places.min(axis=0)[:2] + 1) & (places[:, :2] < places.max(axis=0)[:2] - 1)).all(axis=1)
    assert (counts[inner] == 4).all() and counts.max() == 4  # covered by four overlapping blocks
    for piece in found:
        assert (np.ptp(places[piece][:, :2], axis=0) <= 2.0 + 1e-5).all() and len(set(piece.tolist())) == len(piece)
    flat = scene_block_indices(places, PointProcessor(100, "floor", block=2.0, up="x"))
    assert all((np.ptp(places[piece][:, 1:], axis=0) <= 2.0 + 1e-5).all() for piece in flat)
    found = scene_block_indices(cloud(1000).coordinates, PointProcessor(300))
    assert [len(piece) for piece in found] == [250] * 4
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(1000))
    for piece in found:  # each piece is an even sample of the whole: its thirds have equal counts
        assert np.histogram(piece, bins=3, range=(0, 1000))[0].min() > 55
    for many, limit in ((300, 300), (1000, 0)):
        assert len(scene_block_indices(cloud(many).coordinates, PointProcessor(limit))) == 1
    assert scene_block_indices(cloud(1).coordinates[:0], PointProcessor(300)) == []


def test_the_blocks_of_a_scene_contain_every_voxel() -> None:
    made = cloud(3000, scale=5)
    points = PointProcessor(64, "floor", voxel=0.3, block=1.5, features=("colors",))
    found = split_scene(made, points)
    for chosen, x in zip(found.block_indices, found.rows, strict=True):
        assert x.shape == (len(chosen), 6) and len(chosen) <= 64 and x[:, 2].min() == 0
        np.testing.assert_allclose(x[:, 3:], made.colors[found.point_indices[chosen]] / 255, atol=1e-7)
    assert set(np.concatenate(found.block_indices)) == set(range(len(found.point_indices)))
    keep, cell = thinned_plainly(made.coordinates, 0.3)
    np.testing.assert_array_equal(found.point_indices, keep)
    np.testing.assert_array_equal(found.voxel_index, cell)


def test_tilts_flips_and_scales_match_their_names() -> None:
    x = np.eye(3, dtype=np.float32)
    # rows are the images of the axes
    turns = np.stack([augment_points(x, generator(n), PointAugment(tilt=10)) for n in range(2000)])
    np.testing.assert_allclose(turns @ turns.transpose(0, 2, 1), np.broadcast_to(x, turns.shape), atol=1e-6)
    angles = np.degrees(np.arccos(np.clip((np.trace(turns, axis1=1, axis2=2) - 1) / 2, -1, 1)))
    assert 9 < np.sqrt((angles**2).mean()) < 11 and angles.max() <= 30.01
    assert np.abs((turns - x).mean(0)).max() < 0.02, "no preferred direction"
    flip = PointAugment(flip=True, up="y")
    mirrored = [augment_points(x, generator(n), flip).diagonal().tolist() for n in range(300)]
    assert {tuple(one) for one in mirrored} == {(1, 1, 1), (-1, 1, 1), (1, 1, -1)}
    assert 0.4 < np.mean([min(one) == 1 for one in mirrored]) < 0.6
    stretched = np.stack([augment_points(x, generator(n), PointAugment(stretch=0.25)) for n in range(500)])
    assert not (stretched * (1 - x)).any()
    factors = stretched.diagonal(axis1=1, axis2=2)
    assert 0.8 <= factors.min() < 0.82 and 1.23 < factors.max() <= 1.25
    assert np.abs(np.corrcoef(factors.T) - x).max() < 0.15


def test_normals_of_scaled_surfaces_stay_perpendicular() -> None:
    random = np.random.default_rng(3)
    ball = random.standard_normal((200, 3))
    ball /= np.sqrt((ball**2).sum(1, keepdims=True))
    x = np.concatenate([ball, ball], 1).astype(np.float32)  # the normal of a sphere is the position
    found = augment_points(x, generator(2), PointAugment("any", stretch=0.5, flip=True, tilt=20), 3).astype(np.float64)
    np.testing.assert_allclose((found[:, 3:] ** 2).sum(1), 1, atol=1e-6)
    form = np.linalg.lstsq(ball, found[:, :3], rcond=None)[0]
    along = np.cross(ball, random.standard_normal((200, 3))) @ form  # a tangent, transformed with the points
    assert np.abs((along * found[:, 3:]).sum(1)).max() < 1e-5 * np.abs(along).max() + 1e-5
    assert ((found[:, :3] * found[:, 3:]).sum(1) > 0).all(), "outwards"


def test_points_come_round_until_each_was_drawn_or_left_out() -> None:
    for many, count in ((10, 4), (8, 4), (9, 8), (4, 4), (3, 4), (7, 0)):
        some = sample_rounds(many, count, 1, 99)
        assert set(np.concatenate(some)) == set(range(many)), "each"
        # no point twice in one draw
        assert all(len(set(one)) == len(one) == (min(count, many) or many) for one in some)
        assert len(some) == (-(-many // count) if count else 1)
    assert len(sample_rounds(1000, 4, 1, 3)) == 3 and len(sample_rounds(10, 8, 5, 5)) == 5
    looks = sample_rounds(40, 20, 8, 8)
    assert len({tuple(sorted(look)) for look in looks}) == 8, "after a full cycle the groups change"
    assert all(set(a) | set(b) == set(range(40)) for a, b in zip(looks[::2], looks[1::2], strict=True))
    cloud = PointCloud(np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32))
    points = PointProcessor(20, "unit_sphere")
    first, *others = points.prepare_views(cloud, 1, 8)
    assert np.array_equal(first, points.prepare(cloud)[0]) and [len(one) for one in others] == [20, 20]
    for many, count in ((40, 0), (40, 64), (10, 10), (2, 0)):
        looks = sample_rounds(many, count, 10, 10)
        left = [set(range(many)) - set(look) for look in looks]
        assert all(len(one) == max(many // 10, 1) for one in left) and len(looks) == 10
        assert set.union(*left) == set(range(many)), "each point is left out once"
    assert [one.tolist() for one in sample_rounds(1, 0, 5, 5)] == [[0]]
