"""Image data of users: classes of masks, split folders, empty and nested class folders, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import regard
from data_files import found, refused
from regard.data.images.labeled import ImageSample, folder_classes
from regard.data.points.cloud import PointCloud
from regard.data.settings import DataSettings
from regard.errors import DataError
from regard.runs.check import check
from regard.runs.evaluate import evaluate
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions
from regard.tasks.segment_points import point_label_ids

SIZES = (
    "model.image_size=16", "model.width=8", "model.depth=2", "model.heads=1", "model.ffn_dim=8", "train.steps=1",
    "train.batch_size=4", "data.num_workers=0",
)  # fmt: skip
SEGMENT = find_task("segment", "image").objective
NAMES = "0 void\n3 sky\n7 road\n"


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def write(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def masked(folder: Path, values: tuple[int, ...] = (0, 3, 7, 255), count: int = 6, names: str = "") -> Path:
    """Images with masks of these values, and a class file if there are names."""
    for number in range(count):
        write(folder / f"images/{number}.png", noise(number, 16, 16, 3))
        mask = np.random.default_rng(number).choice(values, (16, 16)).astype(np.uint8)
        write(folder / f"masks/{number}.png", mask)
    if names:
        (folder / "masks/classes.txt").write_text(names)
    return folder


def train(data: Path, out: Path, task: str = "segment", *settings: str, **more: Any) -> Any:
    return regard.train(task, str(data), model="vit-tiny", out=out, settings=[*SIZES, *settings], **more)


# -- classes of masks


def test_masks_without_a_class_file_have_the_classes_of_the_run(tmp_path: Path) -> None:
    data, valid = masked(tmp_path / "train", names=NAMES), masked(tmp_path / "valid")
    model = train(data, tmp_path / "run", valid=str(valid))
    options = regard.load(tmp_path / "run").spec.options
    assert options == model.spec.options and options.labels == ("sky", "road") and options.class_ids == (3, 7)
    context = EncodingContext(model.processor, data=DataSettings(), options=options)
    sample = ImageSample(str(valid / "images/0.png"), target=str(valid / "masks/0.png"))
    mask = SEGMENT._target(SEGMENT.encode([sample], model.config, context), 0)
    values = np.asarray(Image.open(sample.target))
    assert np.array_equal(mask, np.select([values == 3, values == 7], [0, 1], 255))
    write(valid / "masks/0.png", np.full((16, 16), 9, np.uint8))
    refused("9", SEGMENT._target, SEGMENT.encode([sample], model.config, context), 0)


def test_colors_of_classes_are_saved_too(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        for number in range(4):
            write(tmp_path / name / f"images/{number}.png", noise(number, 16, 16, 3))
            colors = np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]], np.uint8)
            write(tmp_path / name / f"masks/{number}.png", colors[noise(number, 16, 16) % 3])
    (tmp_path / "train/masks/classes.txt").write_text("void 0 0 0\nroof 255 0 0\nwater 0 0 255\n")
    train(tmp_path / "train", tmp_path / "run", valid=str(tmp_path / "valid"))
    scores = evaluate(tmp_path / "run", [str(tmp_path / "valid")]).scores
    assert scores["samples"] == 4 and 0 <= scores["miou"] <= 100


def test_labels_of_points_without_a_class_file_have_the_values_of_the_run() -> None:
    cloud = PointCloud(np.zeros((4, 3), np.float32), labels=np.array([3, 7, 0, 255]))
    options = HeadOptions(("sky", "road"), class_ids=(3, 7), void_ids=(0,))
    assert point_label_ids(cloud, "", options).tolist() == [0, 1, -100, -100]


def test_255_is_ignored_unless_it_is_one_of_two_values(tmp_path: Path) -> None:
    options = find_task("segment", "image").objective.options
    for labels, wanted in ((("0", "254", "255"), ("0", "254")), (("0", "255"), ("0", "255"))):
        assert options.fit(HeadOptions(labels), [], DataSettings()).labels == wanted
    folder = masked(tmp_path, (0, 1, 255), names="sky\nroad\n")
    report = check("segment", str(folder))
    assert "unknown_values" not in found(report) and "void pixels (255" in str(report)


def test_colored_masks_have_one_remedy_in_the_check_and_in_training(tmp_path: Path) -> None:
    folder = masked(tmp_path / "data", (0, 1))
    for path in (folder / "masks").iterdir():
        write(path, noise(1, 16, 16, 3))
    folder_classes.cache_clear()
    with pytest.raises(DataError, match=r"classes\.json") as error:
        train(folder, tmp_path / "run")
    assert error.value.advice in str(check("segment", str(folder)))
