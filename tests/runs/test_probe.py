"""Linear probes of every model body that reads images, through the commands."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_image_tasks import paint

import regard
from conftest import Cli, facts
from regard.data.settings import DataSettings
from regard.errors import DataError, RegardError, SettingError
from regard.processors.image import ImageProcessor
from regard.processors.palette import Palette
from regard.runs.probe import ImageList, extract_features, probe, probe_layers, split_images
from regard.systems import SYSTEMS
from regard.tasks.base import EncodingContext
from regard.tasks.draw import prepare_colors
from regard.tasks.modality.image import check_image_processor, train_processor
from regard.types import Batch
from tiny import near
from tiny_text_models import headed, train
from tiny_vision_models import SIZES, fresh, made

SMALL = (
    "model.image_size=8", "model.num_colors=6", "model.width=24", "model.depth=2", "model.heads=2", "model.ffn_dim=48",
    "train.precision=float32", "data.num_workers=0", "data.valid_fraction=0.2",
)  # fmt: skip
STAGES = ["stage 1", "stage 2", "stage 3", "stage 4"]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.runs.probe.MAX_STEPS", 10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, and an image generator trained on them for a moment."""
    place = tmp_path_factory.mktemp("a place")
    data = paint(place / "pictures", 60, side=12)
    steps = ("train.steps=30", "train.batch_size=16", "train.eval_every=30", "train.warmup_steps=5", "train.lr=1e-2")
    train("draw", data, place / "painter", *SMALL, *steps, model="imagegpt-mini")
    return place


def test_unsupported_augmentations_of_palettes_are_refused(place: Path, tmp_path: Path) -> None:
    for task, setting in (("classify", "data.mixup=0.2"), ("draw", "data.crop_scale=0.5"), ("draw", "data.shift=0.1")):
        with pytest.raises(SettingError, match=setting.partition("=")[0]):
            train(task, place / "pictures", tmp_path / "run", setting, model="imagegpt-mini")
    with pytest.raises(RegardError, match=r"model\.num_colors"):
        train("classify", place / "pictures", tmp_path / "run", "model.image_size=9", model=str(place / "painter"))
    assert not (tmp_path / "run").exists()
    large = Palette(np.zeros((2, 3)), 140)
    assert train_processor(EncodingContext(large, data=DataSettings(crop_scale=0.5))).size == (160, 160)
    assert train_processor(EncodingContext(large)) is large
    colours, pixels = Palette(np.zeros((4, 3)), 8), ImageProcessor((8, 8))
    painter, seer = (regard.build(name, device="meta").config for name in ("imagegpt-mini", "vit-tiny"))
    for reader, config in ((pixels, painter), (colours, seer), (colours, painter)):
        with pytest.raises(RegardError, match=r"does not match the model|palette of 4 colors"):
            check_image_processor(reader, config)
    model = fresh("imagegpt", "classify")
    model.processor = Palette(np.zeros((4, 3)), model.processor.side)
    with pytest.raises(RegardError, match="palette of 4 colors"):
        model.predict(np.zeros((6, 6, 3), np.uint8))


def saved(name: str, folder: Path) -> Path:
    """Untrained model of a system."""
    return fresh(name, SYSTEMS[name].tasks[0]).save(folder / name)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", SIZES)
def test_every_body_is_probed_at_all_its_layers(name: str, place: Path, tmp_path: Path) -> None:
    found = probe(saved(name, tmp_path), str(place / "pictures"), max_images=20, out=tmp_path / "it.svg")
    blocks = [f"block {number}" for number in range(1, 1 + SIZES[name].get("depth", 0))]
    stages = [] if name in ("vit", "dpt", "imagegpt") else STAGES
    assert [known.layer for known in found.layers] == [*stages[: 2 if blocks else 4], *blocks]
    assert found.counts == {"train": 20, "valid": 9, "test": 12} and found.classes == ("left", "right")
    assert all(0 <= known.accuracy <= 100 for known in found.layers) and found.best in found.layers
    assert f"{found.best.accuracy:.2f} at {found.best.layer}" in (tmp_path / "it.svg").read_text()


def test_features_are_class_tokens_and_means_and_means_of_feature_maps() -> None:
    x = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = Batch(x, labels=torch.arange(3))
    for name in ("hybrid", "swin"):
        model = made(name, "classify")
        layers = probe_layers(model.config)
        part = extract_features(model.body, [batch], layers)
        taps = model.body(batch, taps=[layer.tap for layer in layers]).hidden_states
        assert [found.shape[1] for found in part.features] == [layer.width for layer in layers]
        for found, tap in zip(part.features, taps, strict=True):
            if tap.ndim == 4:
                near(found, tap.mean((2, 3)))
                continue
            sized = tap / (tap.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            near(found, torch.cat([sized[:, 0], sized[:, 1:].mean(1)], 1))


def homes(parts: dict[str, ImageList]) -> list[set[str]]:
    return [{sample.source for sample in parts[name]} for name in ("train", "valid", "test")]


def division(place: Path, said: list[str], **more: Any) -> dict[str, ImageList]:
    given: dict[str, Any] = {"data": (str(place / "pictures"),), "valid": (), "test": (), "run_metadata": {}} | more
    return split_images(**{"max_images": 100, **given}, columns={}, log=said.append)[0]


def test_no_image_is_in_two_splits_and_training_images_are_excluded(place: Path, tmp_path: Path) -> None:
    said: list[str] = []
    for own in ({}, facts(place / "painter")):
        parts = division(place, said, run_metadata=own)
        train_, valid, test = homes(parts)
        assert len(train_ | valid | test) == 60 == sum(map(len, parts.values())) and min(map(len, parts.values())) > 5
    assert len(test) == facts(place / "painter")["data_stats"]["valid"] and "held out" in said[-1]
    picture = sorted((place / "pictures" / "left").iterdir())[0]
    (tmp_path / "table.csv").write_text(f"image,label\n{picture},left\n")
    for most in (100, 7):
        parts = division(place, said, test=(str(tmp_path / "table.csv"),), max_images=most)
        assert homes(parts)[2] == {str(picture)} and str(picture) not in homes(parts)[0] | homes(parts)[1]
        assert len(parts["train"]) == min(most, 48)
    assert "1 image of --data also in --test" in said[-2]
    shutil.copytree(place / "pictures", tmp_path / "strange")
    (tmp_path / "strange" / "left").rename(tmp_path / "strange" / "middle")
    with pytest.raises(DataError, match="--data"):
        division(place, said, valid=(str(tmp_path / "strange"),))


def test_an_image_generator_is_probed_on_its_own_data(place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.runs.progress.PRINT_INTERVAL", -1.0)
    monkeypatch.setattr("regard.runs.probe.EVAL_BATCH_SIZE", 10)
    done = cli("probe", place / "painter")
    lines = done.out.splitlines()
    assert done.code == 0 and [line.split()[:2] for line in lines[1:3]] == [["block", "1"], ["block", "2"]], done
    assert lines[-2].endswith(("at block 1", "at block 2")) and Path(lines[-1]).stat().st_size > 5000
    assert "of 60 images, " in done.err and "1 of 2 layers, " in done.err and "are imprecise" in done.err
    found = json.loads(cli("probe", place / "painter", "--data", place / "pictures", "--json", "--out", "a.svg").out)
    assert [f"{known['accuracy']:.2f}" for known in found["layers"]] == [line.split()[2] for line in lines[1:3]]
    assert found["figure"] == "a.svg" and found["test"] == facts(place / "painter")["data_stats"]["valid"]


def test_image_generators_are_probed_with_the_start_token(place: Path) -> None:
    model = regard.load(place / "painter")
    picture = np.asarray(Image.open(sorted((place / "pictures" / "left").iterdir())[0]))
    raw = torch.from_numpy(model.processor.prepare(picture).copy()).permute(2, 0, 1)[None]
    ids = torch.from_numpy(model.processor.encode(picture))
    x = prepare_colors(model, Batch(raw)).inputs[0]
    assert int(x[0]) == model.config.bos_id and torch.equal(x[1:], ids[:-1])


PROBE_ERRORS = {
    "flat": "no class folders", "one": "got 1 ('left')", "two --max-images 1": "--max-images must",
    "two --out it.gif": "it.gif", "nowhere": "not found",
    "two --test one --valid other": "class 'middle', which is not in --data",
}  # fmt: skip


def test_errors_of_a_probe_are_reported(cli: Cli, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flat", "one/left", "two/left", "two/right", "other/middle"):
        (tmp_path / name).mkdir(parents=True)
        for path in sorted((place / "pictures" / "left").iterdir())[:3]:
            shutil.copy(path, tmp_path / name)
    for words, said in PROBE_ERRORS.items():
        done = cli("probe", place / "painter", "--data", *words.split())
        assert done.code == 2 and "regard: " in done.err and said in done.err and not done.out, done
    headed("classify", labels="ab").save(tmp_path / "text")
    done = cli("probe", tmp_path / "text", "--data", place / "pictures")
    assert done.code == 2 and "text inputs" in done.err
    assert "is a preset (random weights)" in cli("probe", "vit-tiny", "--data", place / "pictures").err
    assert "has no data" in cli("probe", saved("vit", tmp_path)).err
    monkeypatch.setattr("regard.runs.probe.free_memory", lambda: 10_000)
    done = cli("probe", place / "painter", "--data", place / "pictures")
    assert done.code == 2 and "--max-images 5." in done.err and "GiB" in done.err


def test_images_of_many_sizes_are_encoded_one_by_one(place: Path, tmp_path: Path) -> None:
    folder = saved("vit", tmp_path)
    ImageProcessor((8, 8), "ratio", multiple=4).save(folder)
    for number, path in enumerate(sorted((place / "pictures" / "left").iterdir())[:10]):
        (tmp_path / "data" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        picture = Image.open(path).resize((12 + 4 * (number % 3), 12))
        picture.save(tmp_path / "data" / "ab"[number % 2] / path.name)
    assert len(probe(folder, tmp_path / "data").layers) == 2
    assert replace(ImageProcessor(), crop=True).scaled(2).size == (448, 448)
