"""Image caches between runs: never reused for other images with the same names and sizes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.images.labeled import folder_classes
from regard.data.training_files import DataSources
from regard.runs.spec import new_spec
from regard.tasks import find_task
from regard.tasks.preparation import PreparedData, prepare
from regard.types import Batch


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(task: str, entry: str, preset: str, **model: Any) -> PreparedData:
    sources = DataSources((entry,))
    order = new_spec(find_task(task, "image"), preset, sources, {"model": model})
    return prepare(order.identity, None, sources, order.settings, lambda line: None)


def first(task: str, made: PreparedData) -> Batch:
    return find_task(task, "image").objective.collate(made.train, np.arange(2), made.config)


def bitmaps(folder: Path, *shades: int) -> None:
    """Files of equal byte size whatever their content, with alternating shades."""
    for number in range(20):
        path = folder / "xy"[number % 2] / f"{number}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (shades[number % len(shades)],) * 3).save(path)


def album(folder: Path, high: int = 1) -> str:
    """Twelve images and masks with the values 0 and `high`."""
    for name, mode in (("images", "RGB"), ("masks", "L")):
        (folder / name).mkdir(parents=True)
        for number in range(12):
            color = (number, 0, 0) if mode == "RGB" else high * (number % 2)
            Image.new(mode, (32, 32), color).save(folder / name / f"{number}.png")
    return f"{folder}/images:{folder}/masks"


def test_the_same_images_with_other_depth_maps_are_other_data(tmp_path: Path) -> None:
    album(tmp_path)
    for name, metres in (("near", 1.0), ("far", 5.0)):
        (tmp_path / name).mkdir()
        for number in range(12):
            np.save(tmp_path / name / f"{number}.npy", np.full((32, 32), metres, np.float32))
        made = prepared("depth", f"{tmp_path}/images:{tmp_path / name}", "dpt-small", image_size=32)
        labels = first("depth", made).labels
        assert labels is not None and labels.unique().tolist() == [metres]


def test_moved_images_are_found_at_their_new_path(tmp_path: Path) -> None:
    bitmaps(tmp_path / "old", 7)
    first("classify", prepared("classify", str(tmp_path / "old"), "vit-tiny", image_size=32))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    shutil.rmtree(tmp_path / "old")
    first("classify", prepared("classify", str(tmp_path / "new"), "vit-tiny", image_size=32))


@pytest.mark.parametrize("table", [False, True])
def test_colors_are_those_of_the_current_images(table: bool, tmp_path: Path) -> None:
    def look() -> list[int]:
        made = prepared("draw", entry, "imagegpt-mini", image_size=8, num_colors=2)
        return [int(made.processor.decode(row)[0, 0, 0]) for row in made.train.fields["colors"]]

    bitmaps(tmp_path / "all", 10, 200)
    entry = str(tmp_path / "all")
    if table:
        entry = str(tmp_path / "table.csv")
        names = [f"all/{'xy'[number % 2]}/{number}.bmp" for number in range(20)]
        Path(entry).write_text("\n".join(["image", *names]), encoding="utf-8")
    before = look()
    bitmaps(tmp_path / "all", 200, 10)  # the palette is unchanged
    assert set(before) == {10, 200} and look() == [210 - shade for shade in before]


def test_renamed_classes_are_read_again_and_masks_of_two_numbers_have_two_classes(tmp_path: Path) -> None:
    entry = album(tmp_path)
    for names in ("road sky", "street sky"):
        (tmp_path / "classes.txt").write_text("\n".join(names.split()), encoding="utf-8")
        folder_classes.cache_clear()  # as in a new process
        made = prepared("segment", entry, "dpt-small", image_size=32)
        assert " ".join(made.options.labels) == names
        labels = first("segment", made).labels
        assert labels is not None and labels.max() < 2
    made = prepared("segment", album(tmp_path / "other/set", 255), "dpt-small", image_size=32)
    labels = find_task("segment", "image").objective.collate(made.train, np.arange(8), made.config).labels
    assert made.options.labels == ("0", "255") and labels is not None and labels.unique().tolist() == [0, 1]
