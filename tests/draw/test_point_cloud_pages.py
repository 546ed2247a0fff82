"""Pages and images of point clouds: a page contains the given points, and images show the nearest points."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from page_data import page_data
from regard.draw import point_cloud
from regard.draw.figure import ColorScale
from regard.draw.panels import draw_panels
from regard.types import IGNORE

RANDOM = np.random.default_rng(8)
LABELS = ("floor", "wall", "lamp")


def classed(many: int = 300, **more: Any) -> point_cloud.PredictedCloud:
    places = (RANDOM.normal(size=(many, 3)) * (3, 2, 1)).astype(np.float32)
    return point_cloud.PredictedCloud(places, RANDOM.integers(0, 3, many), LABELS, **more)


def numbers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def test_a_page_contains_the_point_cloud_quantized_by_its_longest_side(tmp_path: Path) -> None:
    right = RANDOM.integers(0, 3, 300)
    right[::7] = IGNORE
    colors, confidence = RANDOM.integers(0, 256, (300, 3), dtype=np.uint8), RANDOM.random(300)
    cloud = classed(confidence=confidence, targets=right, colors=colors, origin=(1e6, 0.0, -5.0))
    data = page_data(point_cloud.write_cloud_page(cloud, tmp_path / "it.html", "it", "", {"a": "b"}, [0.5, None, 1.0]))
    places = np.array(data["low"]) + data["step"] * numbers(data["places"], "<u2").reshape(-1, 3)
    off = np.abs(places - cloud.origin - cloud.coordinates).max()
    assert off <= data["step"] / 2 + 1e-9 + 1e-9 * 1e6, off
    assert (numbers(data["said"], "<u2") == cloud.predictions).all() and data["labels"] == list(LABELS)
    assert (numbers(data["right"], "<u2") == np.where(right < 0, point_cloud.NO_CLASS, right)).all()
    assert (numbers(data["colours"], "u1") == colors.ravel()).all()
    assert np.abs(numbers(data["sure"], "u1") / 255 - confidence).max() <= 0.5 / 255 + 1e-9
    assert data["ways"] == ["class", "truth", "wrong", "colours", "height", "certainty"]
    assert data["overlap"] == [0.5, None, 1.0] and abs(sum(share for _, share in data["shares"]) - 1) < 1e-5
    data = page_data(point_cloud.write_cloud_page(classed(), tmp_path / "it.html", "it"))
    # unknown fields are not offered
    assert data["ways"] == ["class", "height"]
    assert data["sure"] is data["right"] is data["colours"] is data["truths"] is None


def test_of_more_points_than_a_page_holds_some_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    cloud = classed(point_cloud.MAX_PAGE_POINTS + 50)
    page, fractions = point_cloud.write_cloud_page(cloud, tmp_path / "it.html", "it"), cloud.fractions()[0]
    data = page_data(page)
    assert len(numbers(data["said"], "<u2")) == point_cloud.MAX_PAGE_POINTS
    assert "200,050 (200,000 shown)" in page.read_text()
    assert data["shares"] == [[n, float(f"{fractions[n]:.6g}")] for n in np.argsort(-fractions, kind="stable").tolist()]
    first, second = (cloud.subsample(100).coordinates for _ in range(2))
    assert len(first) == 100 and (first == second).all()


@pytest.mark.parametrize("many", [1, 2])
def test_the_smallest_point_clouds_are_drawn_too(many: int, tmp_path: Path) -> None:
    places = np.zeros((many, 3), np.float32)
    cloud = point_cloud.PredictedCloud(places, np.zeros(many, np.int64), LABELS)
    assert point_cloud.cloud_data(cloud)["step"] > 0 and point_cloud.point_spacing(places, 1.0) > 0
    assert point_cloud.write_cloud_page(cloud, tmp_path / "it.html", "it").exists()
    assert point_cloud.draw_clouds([cloud], tmp_path / "it.png").exists()


def test_a_class_that_was_missed_wholly_is_named_too(tmp_path: Path) -> None:
    right, labels = np.array([2] * 60 + [0] * 20 + [IGNORE] * 20), ("floor", "nowhere", "lamp")
    cloud = point_cloud.PredictedCloud(classed(100).coordinates, np.zeros(100, np.int64), labels, targets=right)
    data = page_data(point_cloud.write_cloud_page(cloud, tmp_path / "it.html", "it"))
    assert data["shares"] == [[0, 1.0], [2, 0.0]], "classes in neither labels nor predictions are not listed"
    assert data["truths"] == [0.25, 0.0, 0.75] and data["mistakes"] == "60 errors in 100 points shown"
    other = replace(classed(name="two", colors=np.zeros((300, 3), np.uint8)), predictions=np.zeros(300, np.int64))
    text = point_cloud.draw_clouds([replace(cloud, name="one"), other], tmp_path / "it.svg").read_text()
    assert all(word in text for word in ("one: prediction", "two: prediction", "label", "lamp", "label together"))
    assert "nowhere" not in text


def test_frames_of_panels_are_whole_on_all_sides(tmp_path: Path) -> None:
    scale = ColorScale(np.zeros((1, 8, 3), np.uint8), ("0", "", "1"))
    images = [np.full((40, 40, 3), 255, np.uint8)] * 3
    with Image.open(draw_panels([images], [["a", "b", "c"]], tmp_path / "it.png", legend=scale)) as picture:
        row = np.asarray(picture.convert("L"))[int(160 * 1.5)].astype(int)
    sides = np.flatnonzero(row < 250)
    starts = sides[np.flatnonzero(np.diff(sides, prepend=-9) > 1)]
    assert len(starts) == 6, starts
    ink = [int((255 - row[start : start + 4]).sum()) for start in starts]
    assert max(ink) <= 1.5 * min(ink), ink


def test_in_an_image_the_nearer_point_covers_the_farther() -> None:
    """From above: the camera is on the upward axis."""
    for up, axis in (("z", 2), ("y", 1), ("x", 0)):
        places = np.zeros((2, 3))
        places[1, axis] = 1.0
        colours = np.array([[255, 0, 0], [0, 0, 255]], np.uint8)
        for order in ([0, 1], [1, 0]):
            seen = point_cloud.render_points(places[order], colours[order], up, tilt=np.pi / 2, size=40)
            middle = seen[np.any(seen != 255, axis=-1)]
            assert (middle[:, 2] > middle[:, 0]).mean() > 0.5, up
    flat, cube = (point_cloud.default_tilt(np.array(sides), "z") for sides in ([4.0, 5.0, 2.5], [1.0, 1.0, 1.0]))
    assert flat > cube


def test_colors_of_an_image_are_those_of_the_points() -> None:
    places = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0), [0.0]), -1).reshape(-1, 3)
    color = np.array([10, 200, 30], np.uint8)
    seen = point_cloud.render_points(places, np.tile(color, (len(places), 1)), tilt=np.pi / 2, size=120)
    drawn = seen[np.any(seen != 255, axis=-1)]
    assert len(drawn) > 0.1 * 120**2 and (drawn.max(0) <= color).all() and (drawn == color).all(-1).mean() > 0.5


# -- attention of a point


def gazing(**more: Any) -> point_cloud.CloudAttention:
    """Attention of all points of a fine level, and of one point of a coarse level."""
    places = RANDOM.normal(size=(60, 3)).astype(np.float32)
    weights, keys = RANDOM.random((60, 5)), RANDOM.integers(0, 60, (60, 5))
    coarse = np.array([[0, 3, 3, -1]]), np.array([[0.2, 0.3, 0.5, 0.0]]), np.array([2])
    layers = (
        point_cloud.NeighborAttention("level 1, block 1", "block 1", 0, keys, weights / weights.sum(1, keepdims=True)),
        point_cloud.NeighborAttention("level 2, block 1", "block 1", 1, *coarse),
    )
    return point_cloud.CloudAttention(places, (np.arange(60), np.arange(0, 60, 4)), layers, 9, **more)


def test_fractions_are_of_input_points_and_add_up() -> None:
    found = gazing()
    right = np.bincount(found.layers[0].keys[9], found.layers[0].weights[9], 60)
    own, coarse = (found.point_weights(layer) for layer in found.layers)
    assert np.allclose(own, right) and np.allclose(coarse[[0, 12]], [0.2, 0.8])
    assert abs(own.sum() - 1) < 1e-9 and abs(coarse.sum() - 1) < 1e-9 and found.nearest_query(found.layers[1]) == 2


def test_a_page_of_neighbors_contains_every_known_row(tmp_path: Path) -> None:
    found = gazing(file_index=np.arange(100, 160), predictions=RANDOM.integers(0, 3, 60), labels=LABELS)
    data = page_data(point_cloud.write_neighbors_page(found, tmp_path / "it.html", "it"))
    first, second = data["layers"]
    keys, most = numbers(first["keys"], "<u4").reshape(60, 5), numbers(first["most"], "<f4")
    assert (keys == found.layers[0].keys).all() and first["queries"] is None
    shares = numbers(first["shares"], "u1").reshape(60, 5) / 255 * most[:, None]
    assert np.abs(shares - found.layers[0].weights).max() < 0.003
    assert [numbers(second[name], "<u4").tolist() for name in ("keys", "queries")] == [[0, 3, 3, 2**32 - 1], [2]]
    assert data["chosen"] == 9 and numbers(data["origins"], "<u4")[9] == 109 and data["choosing"]
    assert numbers(data["levels"][1], "<u4").tolist() == list(range(0, 60, 4))


def test_colors_of_each_panel_end_at_its_largest_fraction(tmp_path: Path) -> None:
    text = point_cloud.draw_neighbors(gazing(), tmp_path / "it.svg").read_text()
    assert "level 2, block 1 · max 80 %" in text and "given above each image" in text
    chosen = point_cloud.draw_neighbors(gazing(), tmp_path / "it.svg", layer=2).read_text()
    assert "level 2, block 1" in chosen and "level 1" not in chosen
    alone = point_cloud.NeighborAttention("level 1, block 1", "block 1", 0, np.zeros((1, 1), np.int64), np.ones((1, 1)))
    one = point_cloud.CloudAttention(np.ones((1, 3), np.float32), (np.arange(1),), (alone,), 0)
    assert "block 1 · max 100 %" in point_cloud.draw_neighbors(one, tmp_path / "it.svg").read_text()
    assert point_cloud.write_neighbors_page(one, tmp_path / "it.html", "it").exists()
