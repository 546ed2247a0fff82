"""Tasks classify and segment on point clouds: batches, predictions, scores and runs, on built-in sets and on files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from objectives import encode, scores_of

import regard
from data_files import refused
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.data.points.labeled import CloudCache, CloudSample, cloud_bytes
from regard.data.settings import DataSettings
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.model import Model
from regard.processors.points import PointProcessor, split_scene
from regard.runs.spec import resolve_task
from regard.systems import find_system
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions, LossSum
from regard.tasks.modality.points import (
    MAX_VOTES,
    decode_cloud_source,
    encode_cloud_source,
    load_cloud,
    open_cloud,
    pack_slices,
    prepare_clouds,
)
from regard.tasks.segment_points import point_label_ids
from regard.types import IGNORE, Batch
from tiny_point_models import LABELS, RANDOM, cloud, made
from tiny_text_models import train as train_task

ROOM = "rooms#part=test,points=700,number=1"
SMALL = (
    "model.widths=8,16", "model.depths=1,1", "model.downsample=1,4", "model.num_neighbors=4,4", "model.share_planes=4",
    "train.epochs=0", "train.steps=6", "train.eval_every=3", "train.log_every=1", "train.batch_size=4",
    "data.num_points=64", "train.lr=2e-3", "train.precision=float32",
)  # fmt: skip
CLASSIFY: Any = find_task("classify", "points")


def train(task: str, data: str, out: Path, *settings: str, **more: Any) -> Model:
    train_task(task, data, out, *SMALL, *settings, **more)
    return regard.load(out)


@pytest.fixture(autouse=True)
def same_clouds() -> None:
    """Reset the random state, so that the point clouds of a test do not depend on earlier tests."""
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Files of two classes, with two classes of points."""
    for number in range(12):
        kind = ("flat", "round")[number % 2]
        points = RANDOM.normal(size=(40, 3)).astype(np.float32)
        points = points * (1, 1, 0.05) if kind == "flat" else points / np.linalg.norm(points, axis=1, keepdims=True)
        labels = (points[:, 0] > 0).astype(np.int64)
        folder = tmp_path / "scans" / kind
        folder.mkdir(parents=True, exist_ok=True)
        write_ply(folder / f"{number:02}.ply", PointCloud(points.astype(np.float32)), labels)
    return tmp_path / "scans"


# -- modality of the data


def test_point_clouds_are_recognized_by_model_name_and_files(scans: Path) -> None:
    assert resolve_task("classify", "point-tiny", ["x.tsv"], None).input == "points"
    assert resolve_task("classify", "vit-tiny", ["solids"], None).input == "image"
    for name, data in (("classify", "solids"), ("segment", "rooms#samples=3"), ("classify", str(scans))):
        assert resolve_task(name, None, [data], None) is find_task(name, "points")
    assert resolve_task("classify", None, ["a.csv"], {"cloud": "file"}).input == "points"
    assert resolve_task("segment", None, ["nothing.csv"], None).input == "image"


@pytest.mark.parametrize(
    "setting, said",
    [
        ("data.num_points=-2", "num_points"), ("data.voxel_size=-2", "voxel_size"), ("data.scale=2,1", "scale"),
        ("data.point_dropout=1", "point_dropout"), ("data.point_features=weight", "features"),
        ("data.point_norm=inside", "inside"), ("train.batch_size=0", "batch_size"),
    ],
)  # fmt: skip
def test_invalid_settings_are_reported_before_reading(setting: str, said: str, tmp_path: Path) -> None:
    refused(said, train, "classify", "solids#samples=4", tmp_path / "run", setting, error=SettingError)
    assert not (tmp_path / "run" / "regard.json").exists()


# -- batches


def encoded_samples(task: Any, samples: Any, points: PointProcessor, labels: Any, **settings: Any) -> tuple[Any, Any]:
    config = task.modality.fit_config(find_system("point").config(), points)
    data, options = DataSettings(**settings), HeadOptions(tuple(labels))
    return task.objective.encode(samples, config, EncodingContext(points, 10**9, data, options)), config


def encoded(name: str, data: str, points: PointProcessor, **settings: Any) -> tuple[Any, Any, Any]:
    task: Any = find_task(name, "points")
    samples = list(task.reader.samples([data]))
    labels = sorted({label for sample in samples for label in task.reader.labels(sample)})
    return task, *encoded_samples(task, samples, points, labels, **settings)


def test_micro_batches_have_one_shape_if_every_point_cloud_has_enough_points() -> None:
    for many, dropped, steady in ((80, 0.0, True), (81, 0.0, False), (80, 0.3, False)):
        data, points = "solids#samples=6,points=80", PointProcessor(many)
        chosen, some, config = encoded("classify", data, points, point_dropout=dropped)
        plan = chosen.objective.sampler(some, config, 3, 1, False)
        assert plan.static_shape == steady and plan.description == "3 point clouds per micro-batch"
        batch = chosen.objective.collate(some, plan.micro_batch(0)[1], config)
        assert dropped or (batch.inputs.shape == (1, 240, 3) and batch.packing.max_length == 80)


def test_labels_follow_their_points_through_all_transforms() -> None:
    """Every row keeps the coordinates and the label of its point."""
    points = PointProcessor(60, "center", voxel=0.1)
    chosen, some, config = encoded("segment", "rooms#samples=2,points=200", points, point_dropout=0.5)
    (_, rows_of) = chosen.objective.sampler(some, config, 2, 1, False).micro_batch(0)
    batch = chosen.objective.collate(some, rows_of, config)
    right = []
    for number, (x, at) in zip(rows_of[:, 0].tolist(), prepare_clouds(some, rows_of), strict=True):
        moved = x[:, :3] - load_cloud(some, number).coordinates[at]
        assert np.abs(moved - moved[0]).max() < 1e-5 and 0 < len(at) < 60
        right.append(chosen.objective._target(some, number)[at])
    assert torch.equal(batch.labels, torch.from_numpy(np.concatenate(right)))


def test_a_mesh_has_more_points_than_are_sampled_in_training_and_prediction(tmp_path: Path) -> None:
    (tmp_path / "it.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 2 3 4\n")
    points = PointProcessor(2000)
    some, _ = encoded_samples(CLASSIFY, [CloudSample(str(tmp_path / "it.obj"), "a")], points, "ab")
    whole = load_cloud(some, 0)
    assert len(whole) == 8000 and (open_cloud(str(tmp_path / "it.obj"), points).coordinates == whole.coordinates).all()


def test_points_and_their_normals_rotate_about_the_up_axis_of_the_processor(tmp_path: Path) -> None:
    """The normals of a sphere equal the coordinates."""
    places = RANDOM.normal(size=(50, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    places = np.concatenate([places, -places]).astype(np.float32)  # symmetric: the mean is 0
    write_ply(tmp_path / "ball.ply", PointCloud(places, normals=places))
    sample, points = CloudSample(str(tmp_path / "ball.ply"), "a"), PointProcessor(0, up="y", features=("normals",))
    some, _ = encoded_samples(CLASSIFY, [sample], points, "ab", rotate="up")
    ((x, _),) = prepare_clouds(some, np.array([[0, 7]]))
    assert np.allclose(x[:, :3], x[:, 3:], atol=1e-5) and np.allclose(x[:, 1], places[:, 1], atol=1e-5)
    assert not np.allclose(x[:, 0], places[:, 0], atol=0.1)


def test_scans_of_one_name_and_size_are_distinguished(tmp_path: Path) -> None:
    chosen, places = find_task("segment", "points"), RANDOM.normal(size=(2, 20, 3)).astype(np.float32)
    for number, folder in enumerate(("one", "two", "copy")):
        (tmp_path / folder).mkdir()
        write_ply(tmp_path / folder / "points.ply", PointCloud(places[number % 2]))
    samples = [CloudSample(str(tmp_path / name / "points.ply")) for name in ("one", "two", "copy")]
    one, two, copy = map(chosen.reader.split_key, samples)
    assert one == copy != two


def test_point_clouds_that_fit_are_read_once_and_workers_divide_the_memory() -> None:
    read: list[int] = []
    small = cloud(10)
    shelf = CloudCache(2 * cloud_bytes(small))
    for number in (1, 2, 3, 1, 2, 3):
        shelf(number, lambda number=number: read.append(number) or small)  # type: ignore[misc]
    assert read == [1, 2, 3, 3], "the third does not fit"
    shelf = CloudCache(4 * cloud_bytes(small), num_workers=2)
    shelf.owner_pid = -1  # as in a forked process
    for number in range(4):
        shelf(number, lambda: small)
    assert list(shelf.clouds) == [0, 1], "each of two keeps half"


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_tensors_are_predicted_whatever_their_type(kind: torch.dtype) -> None:
    model = made("classify")
    x = (8 * torch.rand(60, 3)).to(kind)
    asked = x.clone().requires_grad_() if kind.is_floating_point else x
    assert model.predict(asked).score == model.predict(x.double().numpy()).score


def test_points_at_nan_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).random((60, 3))
    x[[3, 7]] = np.nan
    assert len(made("segment").predict(x).extra["classes"]) == 58
    assert "point cloud: ignored 2 points with NaN" in capsys.readouterr().err


def test_sources_are_stored_as_numbers_and_batches_are_within_the_memory_limit() -> None:
    for sample in (
        CloudSample("a/b ü.ply"), CloudSample("x.npz", columns=(("label", "scalar_Kind"),)),
        CloudSample("", content=b"ply\xff\x00", columns=(("label", "c"),)),
    ):  # fmt: skip
        found = decode_cloud_source(encode_cloud_source(sample))
        assert (found.source, found.content, found.columns) == (sample.source, sample.content, sample.columns)
    assert [(some.start, some.stop) for some in pack_slices([4, 4, 9, 1, 1], 8)] == [(0, 2), (2, 3), (3, 5)]
    assert not list(pack_slices([]))


# -- predictions


def test_a_large_point_cloud_is_sampled_until_each_point_was_used(tmp_path: Path) -> None:
    """The prediction is the average over the draws, in prediction and in evaluation."""
    torch.manual_seed(0)  # weights whose predictions differ between draws
    model, points = made("classify", PointProcessor(32, "unit_sphere")), PointProcessor(32, "unit_sphere")
    asked = [cloud(90), cloud(20), cloud(32), cloud(33)]
    each = [points.prepare_views(one, 1, MAX_VOTES) for one in asked]
    assert [len(draws) for draws in each] == [3, 1, 1, 2]
    more = [points.prepare_views(one, 10, 10) for one in asked]
    assert [len(draws) for draws in more] == [10] * 4
    said = [*zip(model.predict(asked), each, strict=True), *zip(model.predict(asked, num_votes=10), more, strict=True)]
    for answer, draws in said:
        right = [model.logits(torch.from_numpy(x).double()[None]).softmax(-1)[0].detach().numpy() for x in draws]
        assert np.allclose(answer.score, np.mean(right, axis=0), atol=1e-5)
    whole, part = (model.predict(one).score for one in (asked[0], PointCloud(asked[0].coordinates[:32])))
    assert np.abs(np.subtract(whole, part)).max() > 1e-3
    for number, one in enumerate(asked):
        write_ply(tmp_path / f"{number}.ply", one)
    samples = [CloudSample(str(tmp_path / f"{number}.ply"), "ball") for number in range(len(asked))]
    encoded = encode(model, samples, options=HeadOptions(LABELS["classify"]))
    scored = scores_of(model, encoded, decode=DecodeSettings(), loss=LossSum(1.0, 4.0))[1]
    assert np.allclose([a.score for a in scored], [a.score for a in model.predict(asked)], atol=1e-5)


def test_arrays_files_and_point_clouds_give_equal_predictions(tmp_path: Path) -> None:
    points = PointProcessor(0, "unit_sphere", features=("colors",))
    model, whole = made("classify", points), cloud(50, colours=True)
    assert whole.colors is not None
    write_ply(tmp_path / "it.ply", whole)
    array = np.concatenate([whole.coordinates, whole.colors / 255], 1)
    right = model.predict(whole).score
    file = tmp_path / "it.ply"
    for item in (str(file), file, file.read_bytes(), array, torch.tensor(array)):
        assert np.allclose(model.predict(item).score, right, atol=1e-5), type(item)
    assert len(model.predict([whole, whole])) == 2


def test_missing_colors_are_zeros_and_reported_once(capsys: Any) -> None:
    model, plain = made("classify", PointProcessor(0, "unit_sphere", features=("colors",))), cloud(30)
    black = replace(plain, colors=np.zeros((30, 3), np.uint8))
    assert model.predict(plain).score == model.predict(plain).score == model.predict(black).score
    assert capsys.readouterr().err.count("has no colors, which this model uses; zeros are used instead") == 1


@pytest.mark.parametrize(
    "item, said",
    [
        (np.zeros((4, 5)), "Expected"), (np.full((4, 3), np.nan), "infinite"), (np.zeros((0, 3)), "points"),
        ("nothing.ply", "file"), ("solids#part=test", "one point cloud"),
    ],
)  # fmt: skip
def test_invalid_point_clouds_are_reported(item: Any, said: str) -> None:
    refused(said, made("classify").predict, item, error=RegardError)


@pytest.mark.parametrize("cut", [{}, {"count": 100}, {"count": 90, "voxel": 0.25, "block": 2.0}])
def test_every_point_of_a_scene_has_a_class_however_it_is_cut_up(cut: dict[str, Any]) -> None:
    scene, points = read_cloud(ROOM), replace(PointProcessor(0, "floor"), **cut)
    model = made("segment", points)
    answer = model.predict(scene)
    said, sure = answer.extra["classes"], answer.extra["probabilities"]
    assert len(said) == len(sure) == len(scene) and said.min() >= 0 and said.max() < 5
    assert abs(sum(answer.value.values()) - 1) < 1e-3 and float(sure.min()) >= 0.2 - 1e-6
    parts = split_scene(scene, points)
    assert model.logits(torch.rand(2, 40, points.width).double()).shape == (2, 40, 5)
    votes: list[list[np.ndarray]] = [[] for _ in parts.point_indices]
    for indices, x in zip(parts.block_indices, parts.rows, strict=True):
        chances = model.objective.logits(model, Batch(torch.from_numpy(x)[None]))[0].softmax(-1).detach().numpy()
        for place, row in zip(indices, chances, strict=True):
            votes[place].append(row)
    right = np.stack([np.mean(rows, axis=0) for rows in votes])[parts.voxel_index]
    assert np.allclose(sure, right.max(-1), atol=1e-6) and right.max(-1).std() > 0.01
    assert (said == right.argmax(-1)).mean() > 0.99


def test_without_a_processor_or_a_head_the_missing_part_is_reported() -> None:
    model = regard.build("point-tiny", task="segment")
    refused("segment", model.logits, torch.rand(1, 64, 3), error=RegardError)
    refused(r"points\.json", model.predict, cloud(), error=RegardError)


# -- classes of points


def test_labels_are_numbers_of_classes_by_their_names() -> None:
    labels = HeadOptions(("chair", "floor"))
    whole = replace(cloud(4), labels=np.array([0, 2, -1, 2]), classes=("floor", "wall", "chair"))
    assert point_label_ids(whole, "", labels).tolist() == [1, 0, IGNORE, 0]
    refused("'wall'", point_label_ids, replace(whole, labels=np.array([0, 1, 1, 1])), "a.ply", labels)
    bare = replace(whole, classes=())
    assert point_label_ids(bare, "", HeadOptions(("0", "2"))).tolist() == [0, 1, IGNORE, 1]
    refused("labels", point_label_ids, bare, "", HeadOptions(("0", "1")))
    refused("the points have no labels", point_label_ids, cloud(), "a.ply", labels)


def test_a_file_next_to_the_point_clouds_names_their_classes(scans: Path, tmp_path: Path) -> None:
    (scans / "classes.txt").write_text("0 left\n1 right\n")
    model = train("segment", str(scans), tmp_path / "run", "data.valid_fraction=0.2")
    assert model.spec.options.labels == ("left", "right") and model.processor.features == ()
    bare = train("segment", str(scans / "flat"), tmp_path / "two", "data.valid_fraction=0.4", "train.steps=1")
    assert bare.spec.options.labels == ("left", "right")


# -- runs


def test_training_continues_from_a_model_with_its_own_points(tmp_path: Path) -> None:
    points = PointProcessor(64, "unit_sphere", features=("normals",))
    made("classify", points).float().save(tmp_path / "first")
    more = {"valid": "solids#part=valid,samples=10,points=96", "model": str(tmp_path / "first")}
    data, steps = "solids#samples=10,points=96", ("train.steps=1", "train.batch_size=4", "train.precision=float32")
    said = train_task("classify", data, tmp_path / "on", *steps, "data.num_points=32", **more)
    assert "up to 32 points per point cloud with normals" in said
    assert regard.load(tmp_path / "on").processor == replace(points, count=32)
    with pytest.raises(RegardError, match="feature_dim"):
        train("classify", data, tmp_path / "no", "data.point_features=none", **more)


def test_one_invalid_point_cloud_does_not_stop_training_and_is_named(scans: Path, tmp_path: Path, capfd: Any) -> None:
    valid = shutil.copytree(scans, tmp_path / "valid")
    clouds = sorted(scans.glob("*/*.ply"))
    clouds[0].write_bytes(b"ply\nnonsense")
    train("classify", str(scans), tmp_path / "first", "data.num_points=20", valid=str(valid))
    assert f"warning: skipped: {clouds[0]}" in capfd.readouterr().err
    for path in clouds:
        path.write_bytes(b"ply\nnonsense")
    refused("ply", train, "classify", str(scans), tmp_path / "second", "data.num_points=20", valid=str(valid))


def test_predictions_for_files_are_saved_as_labeled_point_clouds_and_pages(tmp_path: Path) -> None:
    model, scene = made("segment"), read_cloud(ROOM)
    answer = model.predict(ROOM)
    left = model.objective.write_files("it", answer, tmp_path)
    found = read_cloud(left["cloud"])
    assert found.labels is not None and (found.labels == answer.extra["classes"]).all()
    assert found.classes == LABELS["segment"] and np.allclose(found.coordinates, scene.coordinates, atol=1e-6)
    assert "point accuracy" in Path(left["page"]).read_text()
    strange = model.predict(replace(scene, labels=np.full(len(scene), 77), classes=()))
    assert "right" not in strange.extra, "labels of other classes are not a reference"
    json.dumps(answer.value)


def test_settings_of_a_checkpoint_stay_until_overridden() -> None:
    """Includes a return to the defaults: all points, whole point clouds, z upwards."""
    task, brought = find_task("segment", "points"), PointProcessor(2048, "floor", voxel=0.04, block=4.0, up="y")
    assert task.modality.adapt_processor(brought, None, DataSettings()) == brought
    unset = {"voxel_size": 0.0, "block_size": 0.0, "up_axis": "z", "num_points": 0, "point_norm": "center"}
    said = task.modality.adapt_processor(brought, None, DataSettings(**unset, point_features=("none",)))
    assert said == PointProcessor(0, "center")


def test_voxels_that_leave_no_points_are_reported(tmp_path: Path) -> None:
    """The voxel size is in the unit of the files, and the unit is easily mistaken."""
    said, data = "", "rooms#samples=8,points=400"
    idle = ("data.crop_scale=0.5", "train.epochs=0", "train.steps=1", "train.batch_size=2")
    for edge in (0.2, 50.0):
        more = {"model": "point-tiny", "valid": "rooms#part=valid,samples=2,points=400"}
        said += train_task("segment", data, tmp_path / str(edge), f"data.voxel_size={edge}", *idle, **more)
    told = [line for line in said.splitlines() if "after voxel subsampling and blocking" in line]
    assert len(told) == 2 and "warning" not in told[0] and "warning" in told[1]
    assert "has only 1 point. Are data.voxel_size and data.block_size in the right unit?" in told[1]
    unused = [line for line in said.splitlines() if "has no effect" in line]
    assert unused == ["note: data.crop_scale has no effect for task 'segment' (point clouds)."] * 2
