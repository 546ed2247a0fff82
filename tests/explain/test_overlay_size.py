"""Overlays have the size of the image of the user, and the position of the part that the model reads."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_caption_attention import SENTENCE, speaker

from conftest import Cli
from data_files import refused
from page_data import page_data
from regard.draw import panels
from regard.draw.colors import class_colors
from regard.draw.panels import OverlayMap, overlay_classes, overlay_heatmap, resize_grid, spotlight
from regard.errors import InputError
from regard.explain.images import ImageExplanation
from regard.processors.image import ImageProcessor
from tiny_vision_models import fresh, made

RANDOM = np.random.default_rng(11)
PHOTO = RANDOM.integers(0, 256, (90, 160, 3), dtype=np.uint8)

PROCESSORS: dict[str, ImageProcessor] = {
    "exact": ImageProcessor((16, 24)), "crop": ImageProcessor((16, 16), "shortest", 18, crop=True),
    "crop without a margin": ImageProcessor((16, 16), "shortest", 0, crop=True),
    "square, then crop": ImageProcessor((16, 16), "exact", 20, crop=True), "none": ImageProcessor((16, 16), "none"),
    "padded": ImageProcessor((200, 200), "none", crop=True), "shortest": ImageProcessor((16, 16), "shortest"),
    "ratio": ImageProcessor((16, 16), "ratio", multiple=4), "crop of a part": ImageProcessor((50, 70), "none", crop=True),
}  # fmt: skip
SIZES = ((90, 160), (160, 90), (40, 40), (3, 400), (7, 5))


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", SIZES)
def test_the_visible_part_is_where_the_pixels_come_from(name: str, size: tuple[int, int]) -> None:
    pixels, (high, wide) = PROCESSORS[name], size
    top, left, bottom, right = pixels.visible_box(high, wide)
    rows, columns = np.mgrid[:high, :wide].astype(np.float64)
    for values, start, end, count, axis in ((rows, top, bottom, high, 0), (columns, left, right, wide, 1)):
        found = pixels.prepare_map(values, fill=-1)
        found = found.max(1 - axis)
        places = (start + (np.arange(len(found)) + 0.5) / len(found) * (end - start)) * count - 0.5
        inside = (places > -0.5) & (places < count - 0.5)
        step = (end - start) * count / len(found)
        assert np.abs(found[inside] - places[inside]).max() <= 0.5 + 0.5 * step + 1e-9
        assert (found[~inside] == -1).all()
    assert pixels.prepare(np.zeros((*size, 3), np.uint8)).shape[:2] == pixels.prepare_map(rows).shape


# -- heatmaps


def test_a_grid_covers_its_part_of_the_image() -> None:
    grid = np.arange(1.0, 7.0).reshape(2, 3)
    full = resize_grid(grid, (20, 30))
    assert full.shape == (20, 30) and np.allclose(resize_grid(grid, (20, 30), (0.0, 0.0, 1.0, 1.0)), full)
    part = resize_grid(grid, (40, 60), (0.25, 0.5, 0.75, 1.0))
    assert np.allclose(part[10:30, 30:], full) and part[:10].sum() == part[30:].sum() == part[:, :30].sum() == 0
    larger = resize_grid(grid, (10, 15), (-0.5, -0.5, 1.5, 1.5))  # the image is the center of the grid
    assert np.allclose(larger, full[5:15, 7:22], atol=0.3)
    swin = resize_grid(grid, (10, 10), (0.0, 0.0, 2.0, 1.0))  # padding below the image
    assert np.allclose(swin, resize_grid(grid, (20, 10))[:10], atol=0.3)


def test_the_image_outside_of_the_visible_part_is_dark() -> None:
    light = np.full((40, 60, 3), 200, np.uint8)
    heat = overlay_heatmap(light, np.ones((2, 2)), (0.0, 0.25, 1.0, 0.75)).astype(int)
    assert heat.shape == light.shape and heat[:, 15:45].mean() != heat[:, :15].mean()
    unlit = overlay_heatmap(light, np.zeros((2, 2)), (0.0, 0.25, 1.0, 0.75)).astype(int)
    assert unlit[:, :15].max() < unlit[:, 15:45].min() and np.array_equal(heat[:, :15], unlit[:, :15])
    spot = spotlight(light, np.ones((2, 2)) / 4, 0.25, (0.0, 0.25, 1.0, 0.75)).astype(int)
    assert spot[:, :15].max() < spot[:, 15:45].min()


def test_large_images_are_drawn_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, classes = RANDOM.random((5, 7)), RANDOM.integers(0, 4, (90, 160))
    box = (0.1, 0.2, 0.9, 1.1)
    whole = overlay_heatmap(PHOTO, weights, box), overlay_classes(PHOTO, classes, 3)
    monkeypatch.setattr(panels, "BAND_PIXELS", 160 * 7)
    assert np.abs(overlay_heatmap(PHOTO, weights, box).astype(int) - whole[0]).max() <= 1
    assert np.array_equal(overlay_classes(PHOTO, classes, 3), whole[1])


# -- explanations of images


def cropping(system: str = "vit", task: str = "classify") -> Any:
    model = made(system, task)
    model.processor = ImageProcessor((16, 16), "shortest", 16, crop=True)
    return model


def decoded(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


@pytest.mark.parametrize("system", ["vit", "swin", "resnet"])
def test_an_image_is_explained_at_its_own_size(system: str, tmp_path: Path) -> None:
    model = cropping(system)
    found = model.explain(PHOTO)
    assert isinstance(found, ImageExplanation) and np.array_equal(found.image, PHOTO)
    left = 6 / 28  # the image is resized to 16 × 28 pixels
    assert found.region == pytest.approx((0, left, 1, 1 - left))
    assert "57 %" in found.facts["center crop"]
    data = page_data(found.save(tmp_path / "a.html"))
    assert np.array_equal(decoded(data["picture"]), PHOTO) and data["size"] == [90, 160]
    for way in data["ways"].values():
        assert way["box"][:2] == pytest.approx([0, left]) and way["box"][3] >= 1 - left - 1e-9
    path = found.save(tmp_path / "b.png")
    extra = [one for one in found.extra_paths(path) if one.stem == "b-overlay"]
    overlay = pixels_of(extra[0])
    grid = found.method_maps["grad-cam" if system == "resnet" else "gradient × attention"]
    assert np.array_equal(overlay, overlay_heatmap(PHOTO, grid, tuple(next(iter(data["ways"].values()))["box"])))
    assert json.loads(found.save(tmp_path / "c.json").read_text())["region"] == pytest.approx(found.region)
    same = model.explain(model.processor.prepare(PHOTO))
    assert all(np.allclose(same.method_maps[name], found.method_maps[name]) for name in found.method_maps)


def test_a_pixel_is_one_of_the_image() -> None:
    model, stretched = cropping(), made("dpt", "segment")
    small = model.processor.prepare(PHOTO)
    right, found = model.explain(small, at=(5, 9)), model.explain(PHOTO, at=(30, 35 + 52))
    assert np.allclose(found.layers[0].weights, right.layers[0].weights) and found.query_pixel == (30, 87)
    assert found.query_name == "row 30, column 87"
    for at in ((0, 33), (89, 126), (90, 80), (-1, 80)):
        refused("Pixel", model.explain, PHOTO, at=at, error=InputError)
    model.explain(PHOTO, at=(0, 35))
    stretched.processor = ImageProcessor((16, 16))
    small = stretched.processor.prepare(PHOTO)
    for at, own in (((0, 0), (0, 0)), ((89, 159), (15, 15)), ((45, 100), (8, 10))):
        one, other = stretched.explain(PHOTO, at=at), stretched.explain(small, at=own)
        assert np.allclose(one.method_maps["gradient × attention"], other.method_maps["gradient × attention"])
        assert one.facts == other.facts


def test_positions_are_marked_in_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, marks = cropping().explain(PHOTO, at=(30, 87)), list[Any]()
    data = page_data(found.save(tmp_path / "a.html"))
    assert data["asked"]["mark"] == pytest.approx([30.5 / 90, 87.5 / 160]) and data["region"] == pytest.approx(
        found.region
    )
    monkeypatch.setattr(
        "regard.explain.images.draw_heatmap_overlays", lambda *given: marks.append(given[-1]) or given[2]
    )
    found.save(tmp_path / "a.png")
    assert marks[0] == pytest.approx((30.5 / 90, 87.5 / 160))


def test_pages_of_large_images_have_a_limit_and_overlays_have_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "MAX_IMAGE_SIDE", 80)
    found = made("vit", "classify").explain(PHOTO)
    data = page_data(found.save(tmp_path / "a.html"))
    assert decoded(data["picture"]).shape == (45, 80, 3) and data["size"] == [90, 160]
    path = found.save(tmp_path / "a.png")
    assert pixels_of(path.with_name("a-overlay.png")).shape == (90, 160, 3)


def test_the_overlay_of_a_layer_is_written_if_a_layer_is_chosen(tmp_path: Path) -> None:
    found = made("vit", "classify").explain(PHOTO)
    for layer, head, weights in ((2, None, found.attention[1].mean(0)), (1, 2, found.attention[0][1])):
        path = found.save(tmp_path / f"{layer}.svg", layer, head)
        overlay = pixels_of(path.with_name(f"{layer}-overlay.png"))
        assert np.array_equal(overlay, overlay_heatmap(PHOTO, weights))


def test_generated_images_keep_the_size_of_the_model(tmp_path: Path) -> None:
    found = made("imagegpt", "draw").explain(PHOTO)
    assert isinstance(found, ImageExplanation) and found.image.shape == (5, 5, 3)


# -- captions


@pytest.mark.parametrize("name", ["caption-attend", "caption-fixed"])
def test_captions_are_explained_at_the_size_of_the_image(name: str, tmp_path: Path) -> None:
    model = speaker(name, image_size=24)
    model.processor = replace(model.processor, pixels=ImageProcessor((24, 24), "shortest", 24, crop=True))
    found = model.explain(PHOTO, SENTENCE)
    assert np.array_equal(found.attention.image, PHOTO)
    assert found.attention.region == pytest.approx((0, 9 / 42, 1, 33 / 42))
    data = page_data(found.save(tmp_path / "a.html"))
    assert data["size"] == [90, 160] and data["region"] == pytest.approx(found.attention.region)
    same = model.explain(model.processor.pixels.prepare(PHOTO), SENTENCE)
    assert np.allclose(same.attention.maps(), found.attention.maps())
    assert found.save(tmp_path / "a.png").exists()


# -- segmentation and depth


def test_segmentation_and_depth_are_pictures_of_the_size_of_the_image(cli: Cli, tmp_path: Path) -> None:
    Image.fromarray(PHOTO).save("a.png")
    for task, name in (("segment", "overlay"), ("depth", "colors")):
        model = fresh("dpt", task)
        model.save(task)
        done = cli("predict", task, "a.png", "--out", f"{task}-files", "--json")
        files = json.loads(done.out)["files"]
        with Image.open(files[name]) as image:
            assert image.size == (160, 90) and image.mode == "RGB"
            found = np.asarray(image)
        answer = model.predict("a.png")
        if task == "segment":
            mask = answer.extra["mask"]
            assert np.array_equal(found, overlay_classes(PHOTO, mask, 3))
            inner = (mask[:-1, :-1] == mask[1:, :-1]) & (mask[:-1, :-1] == mask[:-1, 1:])
            assert inner.any() and len(class_colors(3)) == 3
        else:
            assert len(np.unique(found.reshape(-1, 3), axis=0)) > 5
    assert OverlayMap("a", np.eye(2)).box == (0.0, 0.0, 1.0, 1.0)
