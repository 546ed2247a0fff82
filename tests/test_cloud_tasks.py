"""classify and segment, asked of clouds: batches, answers, scores and runs, on the embedded sets and on files."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from conftest import facts, rows, same_tensors, stopped_in
from gatherers import LABELS, RANDOM, cloud, made
from regard.data.points.cache import Shelf, bytes_of
from regard.data.points.cloud import Cloud
from regard.data.points.cloud_files import read_cloud
from regard.data.points.labeled import CloudFile
from regard.data.points.ply import write_ply
from regard.data.settings import Data
from regard.decode.settings import Decode
from regard.errors import DataError, RegardError, SettingError
from regard.model import Model
from regard.processors.points import Points
from regard.runs.evaluate import evaluate
from regard.runs.modality import task_for
from regard.systems import find_system
from regard.tasks import GATHERING, find_task, means
from regard.tasks.base import Sums
from regard.tasks.point_classification import VOTES
from regard.tasks.point_segmentation import right_of
from regard.tasks.point_task import Clouded, file_of, packed, packs, row_of_cloud
from regard.types import IGNORE, Batch
from tiny import near

ROOM = "rooms#part=test,points=700,number=1"
SMALL = (
    "model.widths=8,16", "model.blocks=1,1", "model.rates=1,4", "model.neighbours=4,4", "model.shares=4", "train.passes=0",
    "train.steps=6", "train.every=3", "train.log=1", "train.clouds=4", "data.points=64", "train.rate=2e-3",
    "train.precision=float32",
)  # fmt: skip
both = pytest.mark.parametrize("task", GATHERING)


def train(task: str, data: str, out: Path, *settings: str, **more: Any) -> Model:
    said = io.StringIO()
    model = regard.train(
        task, data, out=out, settings=[*SMALL, *settings], console=Console(file=said), device="cpu", **more
    )
    (out / "said.txt").write_text(said.getvalue())
    return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each task on clouds that are made by their names."""
    folder = tmp_path_factory.mktemp("runs")
    train(
        "classify", "solids#samples=40,points=96", folder / "classify", valid="solids#part=valid,samples=20,points=96"
    )
    train("segment", "rooms#samples=8,points=300", folder / "segment", valid="rooms#part=valid,samples=3,points=300")
    return {"classify": folder / "classify", "segment": folder / "segment"}


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Files of two classes, and with labels of two classes of points."""
    for number in range(12):
        kind = ("flat", "round")[number % 2]
        points = RANDOM.normal(size=(40, 3)).astype(np.float32)
        points = points * (1, 1, 0.05) if kind == "flat" else points / np.linalg.norm(points, axis=1, keepdims=True)
        labels = (points[:, 0] > 0).astype(np.int64)
        folder = tmp_path / "scans" / kind
        folder.mkdir(parents=True, exist_ok=True)
        write_ply(folder / f"{number:02}.ply", Cloud(points.astype(np.float32)), labels)
    return tmp_path / "scans"


# -- what kind of data it is


def test_clouds_are_known_by_the_model_by_names_and_by_their_files(scans: Path, tmp_path: Path) -> None:
    assert task_for("classify", "point-tiny", ["x.tsv"], None).reads == "points"
    assert task_for("classify", "vit-tiny", ["solids"], None).reads == "pictures"
    for name, data in (("classify", "solids"), ("segment", "rooms#samples=3"), ("classify", str(scans))):
        assert task_for(name, None, [data], None) is GATHERING[name]
    (tmp_path / "table.csv").write_text("cloud,label\nscans/flat/00.ply,flat\n")
    assert task_for("classify", None, [str(tmp_path / "table.csv")], None).reads == "points"
    assert task_for("classify", None, ["a.csv"], {"cloud": "file"}).reads == "points"
    assert task_for("segment", None, ["nothing.csv"], None).reads == "pictures"
    for name, text in (("texts.tsv", "text\tlabel\na\tb\n"), ("texts.jsonl", '{"text": "a", "label": "b"}\n')):
        (tmp_path / name).write_text(text)
        assert task_for("classify", None, [str(tmp_path / name)], None).reads == "text"


def test_settings_of_clouds_mean_something_to_clouds_alone() -> None:
    for task in GATHERING.values():
        for name in ("data.points", "data.voxel", "data.turn", "data.drop", "train.clouds"):
            assert means(task, name) and not means(find_task(task.name, "pictures"), name), name
        assert not means(task, "train.images") and not means(task, "decode.beam") and not means(task, "data.crop")


@pytest.mark.parametrize(
    "setting, said",
    [
        ("data.points=-2", r"data\.points"),
        ("data.voxel=-2", r"data\.voxel"),
        ("data.scale=2,1", r"data\.scale"),
        ("data.drop=1", r"data\.drop"),
        ("data.features=weight", "features"),
        ("data.frame=inside", "inside"),
        ("train.clouds=0", r"train\.clouds"),
    ],
)
def test_settings_that_cannot_be_are_told_before_anything_is_read(setting: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=said):
        train("classify", "solids#samples=4", tmp_path / "run", setting)
    assert not (tmp_path / "run" / "regard.json").exists()


# -- batches


def encoded(task: str, data: str, points: Points, **settings: Any) -> tuple[Any, Any, Any]:
    chosen: Any = find_task(task, "points")
    samples = list(chosen.stream([data]))
    config = chosen.fit(find_system("point").config(), points)
    labels = sorted({label for sample in samples for label in chosen.labels(sample)})
    return chosen, chosen.encode(samples, points, config, 10**9, Data(**settings), labels), config


@both
def test_a_batch_is_a_pure_function_of_its_rows(task: str) -> None:
    data = {"classify": "solids#samples=6,points=80", "segment": "rooms#samples=6,points=80"}[task]
    points = Points(50, "centred", features=("normals",))
    shaken = {"turn": "any", "scale": (0.8, 1.2), "jitter": 0.02, "drop": 0.3, "shift": 0.1}
    chosen, some, config = encoded(task, data, points, **shaken)
    _, again, _ = encoded(task, data, points, **shaken)
    plan = chosen.plan(some, config, 4, 1, False)
    _, rows_of = plan.grain(3)
    one, two = chosen.collate(some, rows_of, config), chosen.collate(again, rows_of, config)
    assert torch.equal(one.x, two.x) and torch.equal(one.labels, two.labels)
    other = chosen.collate(some, np.stack([rows_of[:, 0], rows_of[:, 1] + 1], 1), config)
    assert one.x.shape != other.x.shape or not torch.equal(one.x, other.x)
    starts = one.offsets.starts
    assert len(starts) == 5 and int(starts[-1]) == one.x.shape[1] and one.x.shape[-1] == 6
    assert not plan.steady and one.offsets.longest >= int(starts.diff().max())
    if task == "segment":
        assert one.labels.shape == (one.x.shape[1],)


def test_grains_have_one_shape_where_every_cloud_has_enough_points() -> None:
    for many, steady in ((80, True), (81, False)):
        chosen, some, config = encoded("classify", "solids#samples=6,points=80", Points(many))
        plan = chosen.plan(some, config, 3, 1, False)
        assert plan.steady == steady and plan.about == "3 clouds a grain"
        batch = chosen.collate(some, plan.grain(0)[1], config)
        assert batch.x.shape == (1, 240, 3) and batch.offsets.longest == 80


def test_labels_go_with_their_points_through_all_that_is_done_to_a_cloud() -> None:
    """What is read of a point lies where the point of the cloud does, and has its label."""
    chosen, some, config = encoded("segment", "rooms#samples=2,points=200", Points(60, "centred", voxel=0.1), drop=0.5)
    (_, rows_of) = chosen.plan(some, config, 2, 1, False).grain(0)
    batch = chosen.collate(some, rows_of, config)
    for whole, x, at in chosen.gathered(some, rows_of):
        moved = x[:, :3] - whole.places[at]
        assert np.abs(moved - moved[0]).max() < 1e-5 and 0 < len(at) < 60
    found = zip(rows_of[:, 0], chosen.gathered(some, rows_of), strict=True)
    right = [chosen.right(some, int(n), whole)[at] for n, (whole, _, at) in found]
    assert torch.equal(batch.labels, torch.from_numpy(np.concatenate(right)))


def test_a_mesh_has_more_points_than_are_looked_at_and_is_asked_as_it_was_learnt_from(tmp_path: Path) -> None:
    (tmp_path / "it.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 2 3 4\n")
    points = Points(2000)
    chosen: Any = find_task("classify", "points")
    some = chosen.encode(
        [CloudFile(str(tmp_path / "it.obj"), "a")], points, find_system("point").config(), 1, None, ("a", "b")
    )
    whole = chosen.opened(some, 0)
    assert len(whole) == 8000 and (chosen.asked(str(tmp_path / "it.obj"), points).places == whole.places).all()


def test_clouds_are_turned_about_the_axis_that_their_reader_calls_upwards() -> None:
    chosen, some, config = encoded("classify", "solids#samples=2,points=40", Points(0, "centred", up="y"), turn="up")
    rows_of = chosen.plan(some, config, 2, 1, False).grain(0)[1]
    found = zip(chosen.gathered(some, rows_of), chosen.gathered(some, rows_of[:, 0]), strict=True)
    for (_, turned, _), (_, still, _) in found:
        assert np.allclose(turned[:, 1], still[:, 1], atol=1e-6) and not np.allclose(
            turned[:, 0], still[:, 0], atol=1e-2
        )


def test_normals_turn_with_their_points(tmp_path: Path) -> None:
    """Of a ball they point where the points are."""
    places = RANDOM.normal(size=(50, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    places = np.concatenate([places, -places]).astype(np.float32)  # its middle is its mean
    write_ply(tmp_path / "ball.ply", Cloud(places, normals=places))
    chosen: Any = find_task("classify", "points")
    sample, config = CloudFile(str(tmp_path / "ball.ply"), "a"), replace(find_system("point").config(), inputs=3)
    some = chosen.encode([sample], Points(0, features=("normals",)), config, 1, Data(turn="any"), ("a", "b"))
    ((_, x, _),) = chosen.gathered(some, np.array([[0, 7]]))
    assert np.allclose(x[:, :3], x[:, 3:], atol=1e-5) and not np.allclose(x[:, :3], places, atol=0.1)


def test_scans_of_one_name_and_size_are_told_apart(tmp_path: Path) -> None:
    chosen, places = find_task("segment", "points"), RANDOM.normal(size=(2, 20, 3)).astype(np.float32)
    for number, folder in enumerate(("one", "two", "copy")):
        (tmp_path / folder).mkdir()
        write_ply(tmp_path / folder / "points.ply", Cloud(places[number % 2]))
    one, two, copy = (chosen.key(CloudFile(str(tmp_path / name / "points.ply"))) for name in ("one", "two", "copy"))
    assert one == copy != two


def test_clouds_that_fit_are_read_once() -> None:
    read: list[int] = []
    small = cloud(10)
    shelf = Shelf(2 * bytes_of(small))

    def of(number: int) -> Cloud:
        read.append(number)
        return small

    for number in (1, 2, 3, 1, 2, 3):
        shelf(number, lambda number=number: of(number))  # type: ignore[misc]
    assert read == [1, 2, 3, 3], "the third has no room"


def test_workers_share_the_room_that_clouds_may_take() -> None:
    small = cloud(10)
    shelf = Shelf(4 * bytes_of(small), workers=2)
    shelf.maker = -1  # as seen by a process that was forked
    for number in range(4):
        shelf(number, lambda: small)
    assert list(shelf.clouds) == [0, 1], "each of two keeps half"


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_tensors_are_asked_whatever_they_are_made_of(kind: torch.dtype) -> None:
    model = made("classify")
    x = (8 * torch.rand(60, 3)).to(kind)
    asked = x.clone().requires_grad_() if kind.is_floating_point else x
    assert model.answer(asked).scores == model.answer(x.double().numpy()).scores


def test_points_that_are_nowhere_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).random((60, 3))
    x[[3, 7]] = np.nan
    assert len(made("segment").answer(x).extra["classes"]) == 58
    assert "a cloud: 2 points are nowhere" in capsys.readouterr().err


def test_where_a_cloud_lies_is_kept_with_what_is_called_how_in_it() -> None:
    for sample in (
        CloudFile("a/b ü.ply"), CloudFile("x.npz", columns=(("label", "scalar_Kind"),)),
        CloudFile("", content=b"ply\xff\x00", columns=(("label", "c"),)),
    ):  # fmt: skip
        found = file_of(row_of_cloud(sample))
        assert (found.source, found.content, found.columns) == (sample.source, sample.content, sample.columns)


def test_clouds_are_looked_at_together_as_far_as_there_is_room() -> None:
    assert [(some.start, some.stop) for some in packs([4, 4, 9, 1, 1], 8)] == [(0, 2), (2, 3), (3, 5)]
    assert not list(packs([]))


# -- what is said


@both
def test_an_answer_is_the_same_alone_and_among_others(task: str) -> None:
    model = made(task)
    asked = [cloud(many) for many in (60, 31, 90)]
    together = model.answer(asked)
    for one, item in zip(together, asked, strict=True):
        alone = model.answer(item)
        assert alone.value == one.value
        if task == "classify":
            assert np.allclose(alone.scores, one.scores, atol=1e-6)
        else:
            assert (alone.extra["classes"] == one.extra["classes"]).all() and len(one.extra["sure"]) == len(item)
            assert np.allclose(alone.extra["sure"], one.extra["sure"], atol=1e-6) and one.extra["sure"].std() > 1e-3


@both
def test_permuted_points_permute_the_answer(task: str) -> None:
    model, whole = made(task), cloud(80)
    order = RANDOM.permutation(len(whole))
    one, other = model.answer(whole), model.answer(whole.taken(order))
    assert one.value == other.value
    if task == "classify":
        assert np.allclose(one.scores, other.scores, atol=1e-6)
    else:
        assert (one.extra["classes"][order] == other.extra["classes"]).all()
        assert np.allclose(one.extra["sure"][order], other.extra["sure"], atol=1e-6) and one.extra["sure"].std() > 1e-3


def test_a_cloud_of_more_points_than_are_drawn_is_looked_at_until_each_was_seen(tmp_path: Path) -> None:
    """What is said is the mean of what is said of each draw; also where a folder is scored."""
    torch.manual_seed(0)  # weights whose predictions differ between draws
    model, points = made("classify", Points(32, "unit")), Points(32, "unit")
    asked = [cloud(90), cloud(20), cloud(32), cloud(33)]
    each = [points.draws(one, 1, VOTES) for one in asked]
    assert [len(draws) for draws in each] == [3, 1, 1, 2]
    more = [points.draws(one, 10, 10) for one in asked]
    assert [len(draws) for draws in more] == [10] * 4
    said = [*zip(model.answer(asked), each, strict=True), *zip(model.answer(asked, votes=10), more, strict=True)]
    for answer, draws in said:
        right = [model.logits(torch.from_numpy(x).double()[None]).softmax(-1)[0].detach().numpy() for x in draws]
        assert np.allclose(answer.scores, np.mean(right, axis=0), atol=1e-5)
    apart = np.abs(np.subtract(*(model.answer(one).scores for one in (asked[0], asked[0].taken(np.arange(32))))))
    assert apart.max() > 1e-3
    for number, one in enumerate(asked):
        write_ply(tmp_path / f"{number}.ply", one)
    samples = [CloudFile(str(tmp_path / f"{number}.ply"), "ball") for number in range(len(asked))]
    encoded = model.task.encode(samples, points, model.config, 0, None, LABELS["classify"])
    scored = model.task.score(model, encoded, Decode(), Data(), Sums(1.0, 4.0))[1]
    assert np.allclose([a.scores for a in scored], [a.scores for a in model.answer(asked)], atol=1e-5)


@both
def test_logits_are_of_rows_of_clouds_or_of_packed_ones(task: str) -> None:
    model = made(task)
    x = torch.from_numpy(RANDOM.normal(size=(3, 40, 3)))
    whole = model.logits(x)
    assert whole.shape == ((3, 3) if task == "classify" else (3, 40, 5))
    line, offsets = packed([one.numpy() for one in x])
    near(model.task.logits(model, Batch(line, offsets=offsets)).reshape(whole.shape), whole, 1e-10)


def test_arrays_files_and_clouds_are_answered_alike(tmp_path: Path) -> None:
    points = Points(0, "unit", features=("colours",))
    model, whole = made("classify", points), cloud(50, colours=True)
    assert whole.colours is not None
    write_ply(tmp_path / "it.ply", whole)
    array = np.concatenate([whole.places, whole.colours / 255], 1)
    right = model.answer(whole).scores
    for item in (
        str(tmp_path / "it.ply"),
        tmp_path / "it.ply",
        (tmp_path / "it.ply").read_bytes(),
        array,
        torch.tensor(array),
    ):
        assert np.allclose(model.answer(item).scores, right, atol=1e-5), type(item)
    assert len(model.answer([whole, whole])) == 2


def test_colours_that_a_cloud_does_not_have_are_zeros_and_that_is_told_once(capsys: Any) -> None:
    model, plain = made("classify", Points(0, "unit", features=("colours",))), cloud(30)
    black = replace(plain, colours=np.zeros((30, 3), np.uint8))
    assert model.answer(plain).scores == model.answer(plain).scores == model.answer(black).scores
    assert capsys.readouterr().err.count("has no colours, which this model reads: it is given zeros") == 1


@pytest.mark.parametrize(
    "item, said",
    [
        (np.zeros((4, 5)), "wanted"),
        (np.full((4, 3), np.nan), "nowhere"),
        (np.zeros((0, 3)), "points"),
        ("nothing.ply", "file"),
        ("solids#part=test", "clouds"),
    ],
)
def test_what_is_no_cloud_is_told(item: Any, said: str) -> None:
    with pytest.raises(RegardError, match=said):
        made("classify").answer(item)


def test_every_point_of_a_scene_has_a_class_however_it_is_cut_up() -> None:
    scene = read_cloud(ROOM)
    for points in (Points(0, "floor"), Points(100, "floor"), Points(90, "floor", voxel=0.25, block=2.0)):
        model = made("segment", points)
        answer = model.answer(scene)
        said, sure = answer.extra["classes"], answer.extra["sure"]
        assert len(said) == len(sure) == len(scene) and said.min() >= 0 and said.max() < 5
        assert abs(sum(answer.value.values()) - 1) < 1e-3 and float(sure.min()) >= 0.2 - 1e-6


def test_a_scene_in_one_piece_is_what_the_model_says_of_it() -> None:
    scene, points = read_cloud(ROOM), Points(0, "floor")
    model = made("segment", points)
    x = torch.from_numpy(points.prepare(scene)[0])[None]
    right = model.task.logits(model, Batch(x))[0].softmax(-1).detach().numpy()
    found = model.answer(scene).extra
    assert np.allclose(found["sure"], right.max(-1), atol=1e-6) and right.max(-1).std() > 0.01
    assert (found["classes"] == right.argmax(-1)).all()


def test_without_a_reader_or_a_head_it_is_said_what_is_missing() -> None:
    model = regard.build("point-tiny", task="segment")
    with pytest.raises(RegardError, match="segment"):
        model.logits(torch.rand(1, 64, 3))
    with pytest.raises(RegardError, match=r"points\.json"):
        model.answer(cloud())
    with pytest.raises(RegardError, match="numbers"):
        made("classify").logits(torch.rand(1, 9, 4).double())


# -- classes of points


def test_labels_are_numbers_of_classes_by_their_names() -> None:
    labels = ("chair", "floor")
    whole = replace(cloud(4), labels=np.array([0, 2, -1, 2]), classes=("floor", "wall", "chair"))
    assert right_of(whole, "", labels).tolist() == [1, 0, IGNORE, 0]
    with pytest.raises(DataError, match="'wall'"):
        right_of(replace(whole, labels=np.array([0, 1, 1, 1])), "a.ply", labels)
    bare = replace(whole, classes=())
    assert right_of(bare, "", ("0", "2")).tolist() == [0, 1, IGNORE, 1]
    with pytest.raises(DataError, match="labels"):
        right_of(bare, "", ("0", "1"))
    with pytest.raises(DataError, match="classes"):
        right_of(cloud(), "a.ply", labels)


def test_a_file_beside_the_clouds_names_their_classes(scans: Path, tmp_path: Path) -> None:
    (scans / "classes.txt").write_text("0 left\n1 right\n")
    model = train("segment", str(scans), tmp_path / "run", "data.share=0.2")
    assert model.identity.labels == ("left", "right") and model.reader.features == ()
    bare = train("segment", str(scans / "flat"), tmp_path / "two", "data.share=0.4", "train.steps=1")
    assert bare.identity.labels == ("left", "right")


# -- runs


@pytest.mark.every(2)
@both
def test_a_run_learns_from_clouds_that_are_made(task: str, runs: dict[str, Path]) -> None:
    run = runs[task]
    scores, model = facts(run)["scores"], regard.load(run)
    assert scores["samples"] == {"classify": 20, "segment": 3}[task] and model.task is GATHERING[task]
    assert {"classify": "accuracy", "segment": "miou"}[task] in scores and model.config.decodes == (task == "segment")
    assert Points.load(run) == model.reader and model.config.inputs == 3 * len(model.reader.features) > 0
    assert (run / {"classify": "confusion.png", "segment": "clouds.png"}[task]).exists()
    card = (run / "README.md").read_text()
    assert (
        "| data.points" in card and "| train.clouds" in card and "| data.crop" not in card and "regard explain" in card
    )
    assert evaluate(run, device="cpu").scores == {"loss": pytest.approx(facts(run)["best"]["loss"], abs=1e-4), **scores}
    said = (run / "said.txt").read_text()
    assert "up to 64 points of each are read with" in said and "4 clouds a grain" in said


@both
def test_a_saved_model_answers_as_before(task: str, runs: dict[str, Path], tmp_path: Path) -> None:
    model = regard.load(runs[task])
    model.save(tmp_path / "it")
    again = regard.load(tmp_path / "it")
    asked = {"classify": "solids#part=test,number=3", "segment": ROOM}[task]
    assert again.answer(asked).value == model.answer(asked).value and again.reader == model.reader


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    data, more = "rooms#samples=6,points=200", {"valid": "rooms#part=valid,samples=2,points=200"}
    shaken = ("data.turn=up", "data.jitter=0.01", "data.drop=0.2", "data.scale=0.9,1.1")
    train("segment", data, tmp_path / "whole", *shaken, **more)
    with stopped_in(5):
        train("segment", data, tmp_path / "halved", *shaken, **more)
    regard.train("segment", out=tmp_path / "halved", resume=True, device="cpu", console=Console(file=io.StringIO()))
    same_tensors(tmp_path / "whole/model.safetensors", tmp_path / "halved/model.safetensors")
    logs = [[{**row, "clouds_per_s": 0} for row in rows(tmp_path / name)] for name in ("whole", "halved")]
    assert logs[0] == logs[1]


def test_training_goes_on_from_a_run_with_its_own_points(runs: dict[str, Path], tmp_path: Path) -> None:
    more = {"valid": "solids#part=valid,samples=10,points=96", "model": str(runs["classify"])}
    model = train("classify", "solids#samples=10,points=96", tmp_path / "on", "train.steps=1", "data.points=32", **more)
    assert model.reader == replace(Points.load(runs["classify"]), count=32)
    with pytest.raises(RegardError, match="together"):
        train("classify", "solids#samples=10,points=96", tmp_path / "no", "data.features=none", **more)


def test_one_bad_cloud_ends_no_training_and_is_named(scans: Path, tmp_path: Path, capfd: Any) -> None:
    valid = shutil.copytree(scans, tmp_path / "valid")
    clouds = sorted(scans.glob("*/*.ply"))
    clouds[0].write_bytes(b"ply\nnonsense")
    train("classify", str(scans), tmp_path / "first", "data.points=20", valid=str(valid))
    assert f"left out: {clouds[0]}" in capfd.readouterr().err
    for path in clouds:
        path.write_bytes(b"ply\nnonsense")
    with pytest.raises(DataError, match="ply"):
        train("classify", str(scans), tmp_path / "second", "data.points=20", valid=str(valid))


def test_answers_to_files_are_left_as_labelled_clouds_and_pages(runs: dict[str, Path], tmp_path: Path) -> None:
    model = regard.load(runs["segment"])
    scene = read_cloud(ROOM)
    answer = model.answer(ROOM)
    left = model.task.leave("it", answer, tmp_path)
    found = read_cloud(left["cloud"])
    assert (
        found.labels is not None
        and (found.labels == answer.extra["classes"]).all()
        and found.classes == LABELS["segment"]
    )
    assert np.allclose(found.places, scene.places, atol=1e-6) and "point accuracy" in Path(left["page"]).read_text()
    strange = model.answer(replace(scene, labels=np.full(len(scene), 77), classes=()))
    assert "right" not in strange.extra, "labels that mean something else are no truth"
    json.dumps(answer.value)


def test_what_a_folder_brings_stays_until_something_else_is_said() -> None:
    """Also back to what a new model has: all points, whole clouds, z upwards."""
    task, brought = find_task("segment", "points"), Points(2048, "floor", voxel=0.04, block=4.0, up="y")
    assert isinstance(task, Clouded)
    assert task.suited(brought, None, Data()) == brought
    said = task.suited(brought, None, Data(voxel=0.0, block=0.0, up="z", points=0, frame="centred", features=("none",)))
    assert said == Points(0, "centred")


def test_cells_that_leave_nothing_are_told_of(tmp_path: Path) -> None:
    """Their edge is in the unit of the files, which is easily mistaken."""
    said = io.StringIO()
    for edge in (0.2, 50.0):
        regard.train(
            "segment", data=["rooms#samples=8,points=400"], valid=["rooms#part=valid,samples=2,points=400"], model="point-tiny",
            out=tmp_path / str(edge),
            settings=[f"data.voxel={edge}", "data.crop=0.5", "train.passes=0", "train.steps=1", "train.clouds=2"],
            console=Console(file=said, width=200),
        )  # fmt: skip
    told = [line for line in said.getvalue().splitlines() if "data.voxel and data.block leave" in line]
    assert len(told) == 2 and "too few" not in told[0] and "leave 1 point of one: too few" in told[1]
    idle = [line for line in said.getvalue().splitlines() if "means nothing to" in line]
    assert idle == ["data.crop means nothing to segment of points, and changes nothing"] * 2
