"""Typical mistakes with a user's image folder, and the messages."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import regard
from conftest import Cli, rows, stdin
from data_files import refused
from regard.data.images.labeled import ImageSample, iterate_images, iterate_unlabeled
from regard.data.settings import DataSettings
from regard.data.training_files import describe_empty_rows
from regard.draw.charts import draw_layer_scores
from regard.errors import RegardError, SettingError
from regard.explain.images import ImageExplanation
from regard.runs import progress
from regard.runs.check import check
from regard.runs.evaluate import small_sample_warning
from regard.runs.inputs import read_inputs
from regard.runs.predictions import open_output
from regard.runs.probe import split_images
from regard.runs.progress import ProgressReporter
from regard.systems import find_preset
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions
from regard.tasks.classify import label_ids
from regard.training.loop import TrainStep
from tiny_vision_models import fresh

CLASSIFY, SEGMENT = find_task("classify", "image"), find_task("segment")
SIZES = (
    "model.image_size=8", "model.width=8", "model.depth=1", "model.heads=1", "model.ffn_dim=8", "train.epochs=0",
    "train.batch_size=4",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six images each, in a folder with a space in its name."""
    for number in range(12):
        file = tmp_path / "my pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 8), (20 * number, 99, 255 * (number % 2))).save(file)
    return tmp_path / "my pictures"


def test_messages_name_images_entries_and_points(folder: Path) -> None:
    sample = SimpleNamespace(path=str(folder), line=7, source=f"{folder}/a/0.png")
    refused(r"0\.png", label_ids, [sample], ["a"], ["b"], error=RegardError)
    skipped = "note: 1 entry skipped: hidden, no image or without label"
    assert describe_empty_rows(CLASSIFY, 1, "x", 3).startswith(skipped)
    assert "line 3" in describe_empty_rows(find_task("classify"), 1, "x", 3)
    assert "points" not in small_sample_warning(SEGMENT, 13) and "points" in small_sample_warning(CLASSIFY, 13)
    with pytest.raises(SettingError, match=r"model\.out_layers"):  # layers that do not fit the depth
        replace(find_preset("dpt-small")[1].config, depth=6)


def test_charts_are_drawn_into_the_named_file(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from matplotlib.axes import Axes

    beside = folder.parent
    assert check("classify", str(folder), out=beside / "seen it.png").figures == (str(beside / "seen it.png"),)
    assert check("draw", str(folder), out=beside / "none.png").figures == ()
    assert "no chart written" in capsys.readouterr().err
    maps, image = {"rollout": np.ones((2, 2)) / 4}, np.zeros((4, 4, 3), np.uint8)
    explanation = ImageExplanation("x", (), image=image, method_maps=maps, position_similarity=np.eye(4))
    path = explanation.save(beside / "why it.png")
    extra = explanation.extra_paths(path)
    assert [one.name for one in extra] == ["why it-overlay.png", "why it-positions.png"]
    assert all(one.exists() for one in extra) and not explanation.extra_paths(Path("why.html"))
    limits, whole = list[Any](), Axes.set_ylim
    monkeypatch.setattr(Axes, "set_ylim", lambda *two, **more: limits.append(two[1:]) or whole(*two, **more))
    draw_layer_scores([100.0, 100.0], beside / "probe.png", "", "", ["1", "2"])
    assert limits[-1][1] == 102.0


def test_inputs_and_folders_of_other_kinds_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for task, out, message in ((SEGMENT, "seen.png", "--out"), (CLASSIFY, ".", "exists"), (CLASSIFY, "a", "supported")):
        model: Any = SimpleNamespace(task=task, objective=task.objective)
        refused(message, open_output, model, ["x.png"], False, tmp_path / out, error=RegardError)
    monkeypatch.setattr("sys.stdin", stdin("a.png\n\n"))  # an empty line is not an image
    assert [one.value for one in read_inputs(CLASSIFY, [])] == ["a.png", None]


def test_long_steps_are_reported_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(progress, "PLAIN_LINE_SECONDS", -1.0)
    reporter = ProgressReporter(9, 0, Console())
    reporter.start_time -= 30.0  # ten seconds per step
    for number in (1, 2, 3):
        reporter.advance(TrainStep(number, torch.tensor(0.5), torch.tensor(1.0), 0.1, torch.tensor(-1)), 40)
    assert capsys.readouterr().out.endswith("step       3/9  loss  0.5000  lr 1.00e-01          4 tok/s  ETA 0:01:00\n")
    assert reporter.num_steps == 3, "printing does not reset the averages"


def test_depth_maps_without_known_values_are_reported(folder: Path, tmp_path: Path) -> None:
    """Reported before the first step; the data check names the files if only some are affected."""
    (tmp_path / "depth").mkdir()
    for file in (folder / "a").iterdir():
        Image.fromarray(np.zeros((8, 9), np.uint16)).save(tmp_path / "depth" / file.name)
    more: Any = {"model": "vit-tiny", "out": tmp_path / "run"}
    more["settings"] = [*SIZES, "train.steps=2", "data.valid_fraction=0.3"]
    data = f"{folder}/a:{tmp_path}/depth"
    told = r"depth/\d+\.png: every depth is 0 .* all 5 training maps.* 'regard check depth'"
    refused(told, regard.train, "depth", data, **more)
    assert not (tmp_path / "run").exists()
    shutil.copytree(tmp_path / "depth", tmp_path / "known")
    Image.fromarray(np.full((8, 9), 900, np.uint16)).save(tmp_path / "known" / "10.png")
    known = f"{folder}/a:{tmp_path}/known"
    refused("all 6 validation maps", regard.train, "depth", known, valid=data, **more)
    (named,) = (finding for finding in check("depth", known).findings if finding.id == "empty_depth_map")
    assert named.severity == "error" and named.count == 5
    assert "/a/0.png  depth map 0.png" in str(named.locations[0])
    assert all("10.png" not in str(place) for place in named.locations)


@pytest.mark.slow
def test_the_curve_of_a_short_run_has_points(folder: Path, tmp_path: Path) -> None:
    regard.train("classify", str(folder), model="vit-tiny", out=tmp_path / "run", settings=[*SIZES, "train.steps=8"])
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == list(range(1, 9))
    card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert "padding" not in card
    told = {name: f"| {name} " in card for name in ("data.crop_scale", "train.batch_size", "train.lr", "model.width")}
    assert all(told.values()), told
    unused = ("data.vocab_size", "data.max_length", "data.mask_prob", "data.detokenize", "train.batch_tokens")
    assert not any(f"| {name} " in card for name in (*unused, "decode.num_beams"))


def test_tables_of_images_are_predicted_row_by_row(tmp_path: Path, cli: Cli) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fresh("vit", "classify").save(tmp_path / "run")
    files = []
    for number, grey in enumerate((10, 200)):
        Image.fromarray(np.full((9, 9, 3), grey, np.uint8)).save(tmp_path / f"{number}.png")
        files.append((tmp_path / f"{number}.png").read_bytes())
    (tmp_path / "list.csv").write_text("image,label\n0.png,a\nnone.png,b\n1.png,c\n")
    pq.write_table(pa.table({"image": files}), tmp_path / "list.parquet")
    said = {}
    for name, code in (("list.csv", 2), ("list.parquet", 0)):
        done = cli("predict", "run", name, "--json")
        assert done.code == code
        said[name] = [json.loads(line) for line in done.out.splitlines()]
    assert [Path(str(row["input"])).name for row in said["list.parquet"]] == ["list-1", "list-2"]
    told = [row["score"] for row in said["list.csv"] if row["score"]]
    assert told == [row["score"] for row in said["list.parquet"]]


def test_a_broken_image_is_skipped_and_many_stop(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(data: Path, valid: Path, out: str) -> None:
        some = [*SIZES, "train.steps=6", "train.eval_every=6", "data.num_workers=0"]
        regard.train("classify", str(data), valid=str(valid), model="vit-tiny", out=tmp_path / out, settings=some)

    valid = shutil.copytree(folder, tmp_path / "valid")
    broken = folder / "a" / "4.png"
    broken.write_bytes(broken.read_bytes()[:40])
    train(folder, valid, "run")
    with pytest.raises(RegardError, match="folder"):  # data read as images is not cached as texts
        regard.train("classify", data=str(folder), model="bert-mini", out=tmp_path / "other")
    said = capsys.readouterr().err
    assert said.count("warning: skipped:") == 1 and str(broken) in said
    with pytest.raises(RegardError, match=r"4\.png"):  # before the first step, not at the first validation
        train(valid, folder, "b")
    assert not (tmp_path / "b" / "checkpoints").exists()
    for file in sorted(folder.glob("*/*.png"))[:10]:
        file.write_bytes(b"")
    refused("classify", train, folder, valid, "c", error=RegardError)


def test_another_image_replaces_a_broken_one(folder: Path) -> None:
    samples = [ImageSample(str(file), file.parent.name) for file in sorted(folder.glob("*/*.png"))[4:8]]
    config = replace(find_preset("vit-tiny")[1].config, image_size=8)
    processor, options = CLASSIFY.modality.default_processor(config, DataSettings()), HeadOptions(("a", "b"))
    context = EncodingContext(processor, 1, DataSettings(flip=True), options)
    encoded = CLASSIFY.objective.encode(samples, config, context)
    rows = np.array([[0, 5], [1, 6], [2, 7], [3, 8]])
    whole = CLASSIFY.objective.collate(encoded, rows, config)
    Path(samples[2].source).write_bytes(b"no picture")
    less = CLASSIFY.objective.collate(encoded, rows, config)
    assert torch.equal(less.inputs, whole.inputs[[0, 1, 3, 3]]) and torch.equal(less.labels, whole.labels[[0, 1, 3, 3]])
    assert torch.equal(less.augmentation.params, whole.augmentation.params)


MASKED = [(("images", "masks"), "segment"), (("RGB", "depth", "labels"), "segment or depth")]


@pytest.mark.parametrize(("names", "task"), MASKED)
def test_images_next_to_their_masks_are_not_read_as_classes(names: tuple[str, ...], task: str, tmp_path: Path) -> None:
    for name in (*names, ".hidden"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (9, 8), (20 * number, 99, 255)).save(tmp_path / "data" / name / f"{number}.png")
    told = rf"expected classes, found data for the task {task} \({', '.join(sorted(names))}\)"
    refused(told, regard.train, "classify", data=str(tmp_path / "data"), model="vit-tiny", out=tmp_path / "run")
    refused(told, split_images, (str(tmp_path / "data"),), (), (), {}, {}, 10, print)
    assert "found data for the task" in str(check("classify", str(tmp_path / "data")))
    refused(f"/{names[0]}", list, iterate_unlabeled([str(tmp_path / "data")]))
    # a third folder makes every folder a class
    shutil.copytree(tmp_path / "data" / names[0], tmp_path / "data" / "table")
    found = [sample for sample in iterate_images([str(tmp_path / "data")]) if isinstance(sample, ImageSample)]
    assert {sample.label for sample in found} == {*names, "table"}
