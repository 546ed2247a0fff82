"""Dense predictions drawn over the image: class colors, transparent pixels and legends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.draw import panels
from regard.draw.colors import DEPTH_COLORS, UNKNOWN_COLOR, apply_colormap, class_colors
from regard.draw.panels import (
    DenseSample,
    OverlayMap,
    depth_image,
    draw_depths,
    draw_heatmap_overlays,
    draw_segmentations,
    fit_to_sheet,
    overlay_classes,
    overlay_heatmap,
)
from regard.types import IGNORE

RANDOM = np.random.default_rng(3)
PICTURE = RANDOM.integers(0, 256, (30, 40, 3)).astype(np.uint8)
CLASSES = np.repeat(np.arange(4), 10)[None].repeat(30, 0)
NAMES = ("a <class>", "road $5_a^2", "道路", "a very long name of a class that nobody would like to read")


def color(text: str) -> list[int]:
    return [int(text[at : at + 2], 16) for at in (1, 3, 5)]


# -- colors


def test_class_colors_differ_and_stay_when_there_are_more() -> None:
    many = class_colors(60)
    assert len(set(many)) == 60 and class_colors(7) == many[:7] and class_colors(0) == ()
    first = np.array(many[:12], dtype=float)
    apart = np.abs(first[:, None] - first[None]).sum(-1) + 999 * np.eye(12)
    assert apart.min() > 60
    assert all(max(c) - min(c) > 20 for c in many), "a gray would look like the image"


def test_ramps_begin_and_end_with_their_stops() -> None:
    found = apply_colormap(np.array([0.0, 1.0, 2.0, -1.0, np.nan]), DEPTH_COLORS)
    assert found.tolist() == [color(DEPTH_COLORS[at]) for at in (0, -1, -1, 0, 0)]
    between = apply_colormap(np.array([0.1]), ("#000000", "#0a1464", "#ffffff"))  # a fifth of the way to the first stop
    assert between.tolist() == [[2, 4, 20]]


# -- images


def test_pixels_have_the_color_of_their_class_and_void_ones_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = CLASSES.copy()
    classes[:5] = 11
    mixed = overlay_classes(PICTURE, classes, 4)
    monkeypatch.setattr(panels, "CLASS_OPACITY", 1.0)
    found = overlay_classes(PICTURE, classes, 4)
    assert found.dtype == np.uint8 and found.shape == PICTURE.shape
    np.testing.assert_array_equal(found[:4], PICTURE[:4])
    for name in range(4):  # the last column of a class is its edge
        inner = found[6:-1, 10 * name : 10 * name + 9].reshape(-1, 3)
        assert {tuple(map(int, pixel)) for pixel in inner} == {class_colors(4)[name]}
    assert not np.array_equal(mixed, found), "the overlay is semi-transparent"
    unnamed = np.full((30, 40), IGNORE)
    unnamed[3, 3] = 9
    np.testing.assert_array_equal(overlay_classes(PICTURE, unnamed, 4), PICTURE)


def test_near_is_light_far_is_dark_and_unknown_is_gray() -> None:
    near, far, unknown = color(DEPTH_COLORS[0]), color(DEPTH_COLORS[-1]), list(UNKNOWN_COLOR)
    found = depth_image(np.array([[1.0, 3.0, 0.0, np.nan, 9.0]]), near=1.0, far=3.0)
    assert found[0].tolist() == [near, far, unknown, unknown, far]
    turned = depth_image(np.array([[1.0, 0.0, np.nan]]), near=1.0, far=0.0)  # inverse depth: 0 is the farthest
    assert turned[0].tolist() == [near, far, unknown]
    assert depth_image(np.ones((2, 2)), near=1.0, far=1.0).shape == (2, 2, 3)


def test_attended_patches_are_bright_where_they_are() -> None:
    weights = np.zeros((3, 4))
    weights[2, 1] = 0.5
    dark, found = (overlay_heatmap(PICTURE, values).astype(int) for values in (np.zeros((3, 4)), weights))
    np.testing.assert_array_equal(overlay_heatmap(PICTURE, 2 * weights), found)  # relative to the largest weight
    lit = np.abs(found - dark).sum(-1)
    assert lit[22:28, 12:18].min() > 100 and lit[:9].max() < 10 and lit[:, 29:].max() < 10
    assert lit[20:, 10:20].mean() > 4 * lit[:10].mean()


def test_gray_arrays_are_accepted_as_images_too(tmp_path: Path) -> None:
    gray = PICTURE[..., 0]
    assert overlay_classes(gray, CLASSES, 4).shape == overlay_heatmap(gray, np.ones((2, 2))).shape == (30, 40, 3)
    assert draw_segmentations([DenseSample(gray, CLASSES)], NAMES, tmp_path / "a.png").exists()


def test_predictions_of_a_large_image_are_drawn_at_display_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "MAX_IMAGE_SIDE", 20)
    large = CLASSES.repeat(2, 0).repeat(2, 1)  # the image was decoded at half of its size
    small = fit_to_sheet(DenseSample(PICTURE, large, None, "a"))
    assert small.image.shape == (15, 20, 3) and small.target is None and small.name == "a"
    assert np.array_equal(small.prediction, CLASSES[::2, ::2])
    monkeypatch.setattr(panels, "MAX_IMAGE_SIDE", 40)
    same = fit_to_sheet(DenseSample(PICTURE, CLASSES, large))
    assert same.image is PICTURE and same.prediction is CLASSES and np.array_equal(same.target, CLASSES)


# -- sheets


def test_a_sheet_has_the_colors_of_the_visible_classes_and_of_no_others(tmp_path: Path) -> None:
    visible = np.where(CLASSES == 3, 1, CLASSES)
    path = draw_segmentations([DenseSample(PICTURE, visible)], NAMES, tmp_path / "a.png")
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB")).astype(int)
    counts = [(np.abs(sheet - np.array(wanted)).sum(-1) <= 3).sum() for wanted in class_colors(4)]
    assert [count > 100 for count in counts] == [True, True, True, False]


def test_sheets_are_written_as_svg_too_and_nothing_else(tmp_path: Path) -> None:
    sample = DenseSample(PICTURE, CLASSES, CLASSES, "first.jpg")
    text = draw_segmentations([sample], NAMES, tmp_path / "a.svg").read_text("utf-8")
    words = "road $5_a^2", "道路", "first.jpg", "prediction", "label", "a &lt;class&gt;", "…"
    assert all(word in text for word in words)
    assert "nobody would like to read" not in text
    classes = np.arange(1200).reshape(30, 40) % 150  # of very many classes, those that cover most are named
    classes[:10] = 7
    names = [f"class number {n}" for n in range(150)]
    text = draw_segmentations([DenseSample(PICTURE, classes)], names, tmp_path / "a.svg").read_text("utf-8")
    assert text.count("class number ") == 36 and "class number 7<" in text and "114 smaller classes" in text


def test_depths_have_one_scale_with_its_unit_and_unknown_pixels_are_labeled(tmp_path: Path) -> None:
    right = np.linspace(1, 5, 1200).reshape(30, 40)
    sample = DenseSample(PICTURE, right + 0.5, right)
    text = draw_depths([sample], tmp_path / "a.svg").read_text("utf-8")
    least, most = np.percentile([right, right + 0.5], (1, 99))
    assert all(f">{word}<" in text for word in (f"{least:.3g}", f"{most:.3g}", "m")) and "unknown" not in text
    right[3] = 0
    assert "unknown" in draw_depths([DenseSample(PICTURE, right + 0.5, right)], tmp_path / "b.svg").read_text("utf-8")
    near = draw_depths([DenseSample(PICTURE, right)], tmp_path / "c.svg", relative=True).read_text("utf-8")
    assert ">near<" in near and ">far<" in near and "unknown" not in near
    empty = DenseSample(PICTURE, np.zeros((30, 40)))
    assert draw_depths([empty], tmp_path / "d.png").exists() and draw_depths([empty], tmp_path / "e.png", relative=True)


def test_a_map_with_its_own_scale_has_the_maximum_above_it(tmp_path: Path) -> None:
    heads = [OverlayMap(f"head {n}", np.array([[share, 0.0]])) for n, share in enumerate((0.25, 0.034))]
    text = draw_heatmap_overlays(PICTURE, heads, tmp_path / "a.svg").read_text("utf-8")
    assert "head 0 · 25 %" in text and "head 1 · 3.4 %" in text
    assert ">maximum,<" in text and "given above each image" in text
    assert ">25<" in draw_heatmap_overlays(PICTURE, heads[:1], tmp_path / "b.svg").read_text("utf-8")
    sizes = []
    for some in (heads * 3, heads * 2, [OverlayMap("", np.zeros((2, 2)))]):  # four maps per row
        with Image.open(draw_heatmap_overlays(PICTURE, some, tmp_path / "a.png")) as image:
            sizes.append(image.size)
    assert sizes[1][1] < sizes[0][1] < sizes[0][0]
