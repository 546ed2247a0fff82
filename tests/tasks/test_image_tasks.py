"""Image tasks end to end: training, evaluation, prediction, explanation and resume, on generated files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import cli as cli
from torch.nn import functional as F

import regard
from conftest import facts
from regard.data.batching.samplers import Uniform
from regard.data.images.image_io import ImageCache
from regard.errors import RegardError
from regard.processors.image import COLUMNS, Augment
from regard.tasks import find_task
from regard.tasks.base import LossWeights
from regard.types import Augmentation, Batch
from tiny_text_models import train
from tiny_vision_models import made

SMALL = (
    "model.image_size=16", "model.width=24", "model.depth=2", "model.heads=2", "model.ffn_dim=48", "train.precision=float32",
    "train.epochs=0", "data.num_workers=0",
)  # fmt: skip


def paint(folder: Path, count: int, side: int = 16, seed: int = 0) -> Path:
    """Images of squares on the left or on the right, in random colors."""
    random = np.random.default_rng(seed)
    for number in range(count):
        name = ("left", "right")[number % 2]
        picture = np.full((side, side, 3), random.integers(0, 60, 3), dtype=np.uint8)
        across = side // 4 + (side // 2) * (number % 2)
        top = random.integers(2, side - 6)
        picture[top : top + 4, across - 2 : across + 2] = random.integers(150, 255, 3)
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / name / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("a place")
    data = paint(place / "some pictures", 120)
    train(
        "classify", data, place / "run", *SMALL, "train.steps=90", "train.batch_size=32", "train.lr=3e-3",
        "train.warmup_steps=10", "train.eval_every=45", "data.valid_fraction=0.2", "data.crop_scale=0.8",
        "data.color_jitter=0.2", "model.pool=first", model="vit-tiny",
    )  # fmt: skip
    return place / "run"


def test_a_run_on_a_folder_of_folders_learns(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert facts(run)["scores"]["accuracy"] > 85
    assert all("images_per_s" in row and 0 <= row["data_wait"] <= 1 for row in rows if row["kind"] == "train")


def test_a_run_is_a_published_folder(run: Path) -> None:
    from transformers import AutoImageProcessor, ViTForImageClassification

    path = next((run.parent / "some pictures" / "left").iterdir())
    ours = regard.load(run).predict(str(path))
    model = ViTForImageClassification.from_pretrained(run)
    pixels = AutoImageProcessor.from_pretrained(run, use_fast=False)(Image.open(path), return_tensors="pt")
    chances = model(**pixels, interpolate_pos_encoding=True).logits.softmax(-1)[0]
    assert model.config.id2label[int(chances.argmax())] == ours.value == "left"
    assert torch.allclose(chances, torch.tensor(ours.score), atol=1e-5)


def test_mixed_images_have_the_mixture_of_their_losses() -> None:
    model, share = made("vit", "classify"), torch.tensor([0.3, 1.0, 0.6])
    labels, others = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1])
    x = torch.randint(0, 255, (3, 3, 16, 16), dtype=torch.uint8)
    changes = torch.zeros(3, len(COLUMNS))
    changes[:, [2, 3, 5, 6, 7]] = 1
    changes[:, 8], changes[:, 9] = share, others
    batch = Batch(x, labels=labels, augmentation=Augmentation(changes, settings=Augment(mixup=0.5)))
    total, count = model.objective.loss(model, batch, LossWeights(smoothing=0.1))
    mixed = torch.lerp(x[others].double(), x.double(), share.double().view(3, 1, 1, 1))
    logits = model.logits(model.processor.normalize(mixed / 255))
    each = [F.cross_entropy(logits, one, reduction="none", label_smoothing=0.15) for one in (labels, others)]
    right = (share * each[0] + (1 - share) * each[1]).sum()  # torch gives a third of 0.15 to the label too
    assert int(count) == 3 and float(total.detach()) == pytest.approx(float(right.detach()), rel=1e-5)


def test_every_micro_batch_has_equally_many_images_and_every_image_its_own_seed() -> None:
    plan = Uniform(10, 4, seed=3)
    grains = plan.epoch(0)
    assert [grain.shape for grain in grains] == [(4, 2)] * 3
    assert sorted(np.concatenate(grains)[:10, 0]) == list(range(10))
    assert len(set(np.concatenate(grains)[:, 1].tolist())) == 12
    assert not np.array_equal(plan.epoch(1)[0], grains[0]) and np.array_equal(Uniform(10, 4, 3).epoch(0)[0], grains[0])
    assert [len(part) for part in plan.sequential()] == [4, 4, 2] and plan.num_tokens(5) == 4
    assert Uniform(3, 8, 0).epoch(0)[0].shape == (3, 2)


def test_images_are_read_once_if_all_fit_and_other_sizes_are_not_cached() -> None:
    read: list[int] = []

    def picture(number: int) -> np.ndarray:
        read.append(number)
        return np.full((2, 3 if number == 4 else 2), number, dtype=np.uint8)

    album = ImageCache(6, (2, 2))
    for _ in range(2):
        found = album.get_many([5, 4, 1, 0], picture, threads=3)
        assert [int(one[0, 0]) for one in found] == [5, 4, 1, 0] and found[1].shape == (2, 3)
    assert sorted(read) == [0, 1, 4, 4, 5]
    small = ImageCache(6, (2, 2), max_bytes=8)  # too little memory: nothing is cached
    assert [int(small(1, lambda: picture(1))[0, 0]) for _ in range(2)] == [1, 1] and read.count(1) == 3


def test_a_task_has_a_class_per_modality() -> None:
    assert find_task("classify").input == "text" and find_task("classify", "image").input == "image"
    assert find_task("segment").input == "image"
    with pytest.raises(RegardError, match="image"):
        find_task("translate", "image")
