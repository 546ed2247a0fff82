"""Attention maps of point clouds against the attention weights, and the commands of a user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_cli import Cli
from test_cli import cli as cli

import regard
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.errors import RegardError
from regard.explain.points import CloudExplanation, query_index
from regard.nn.recording import record_attention
from regard.processors.points import PointProcessor
from regard.runs.explain import parse_position
from regard.tasks.modality.points import require_point_processor
from regard.types import Batch
from tiny_point_models import LABELS, cloud, made

both = pytest.mark.parametrize("task", ["classify", "segment"])


def explained(model: Any, item: Any, at: Any = None) -> CloudExplanation:
    found = model.explain(item, at=at)
    assert isinstance(found, CloudExplanation)
    return found


@both
def test_fractions_are_attention_weights_averaged_over_channels(task: str) -> None:
    model, whole = made(task), cloud(70)
    found = explained(model, whole, at=11)
    points: PointProcessor = require_point_processor(model)
    with torch.no_grad(), record_attention(model.body) as seen:
        states = model.body(Batch(torch.from_numpy(points.prepare(whole)[0])[None]))
    levels = [states.aux_losses[f"level{n}"].numpy() for n in range(3)]
    assert len(found.attention.layers) == len(seen.records) == (4 if task == "classify" else 7)
    for look, layer in zip(seen.records, found.attention.layers, strict=True):
        level = levels[layer.level]
        assert look.weights.shape[2] == len(level), look.name
        point = int(((whole.coordinates[level] - whole.coordinates[11]) ** 2).sum(1).argmin())
        right = np.zeros(70)
        assert look.key_index is not None
        np.add.at(right, level[look.key_index[0, 0, point].numpy()], look.weights[0, :, point].mean(0).float().numpy())
        assert np.allclose(found.attention.point_weights(layer), right, atol=1e-6) and abs(right.sum() - 1) < 1e-5


def test_a_point_is_chosen_by_number_or_by_position() -> None:
    whole = PointCloud(np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0]], np.float32), origin=np.array([100.0, 0, 0]))
    assert query_index(whole, 2) == query_index(whole, np.int64(2)) == 2 and query_index(whole, (101.2, 0.1, 0)) == 1
    assert query_index(whole, None) == 0, "the point in the center"
    for at, said in ((3, "between 0 and 2, got 3"), ((1, 2), "got \\(1, 2\\)")):
        with pytest.raises(RegardError, match=said):
            query_index(whole, at)
    assert parse_position("512", "points") == 512 and parse_position("1.5,-2,3e-1", "points") == (1.5, -2.0, 0.3)
    for wrong in ("1,2", "a", "nan,0,0", ""):
        with pytest.raises(RegardError, match="--at"):
            parse_position(wrong, "points")


def test_only_requested_rows_of_a_large_level_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("regard.explain.points.MAX_STORED_QUERIES", 30)
    model, whole = made("segment"), cloud(90)
    found = explained(model, whole, at=5)
    kept = [layer.queries is None for layer in found.attention.layers]
    assert kept == [layer.level > 0 for layer in found.attention.layers] and len(found.attention.layers[0].keys) == 1
    assert found.attention.nearest_query(found.attention.layers[0]) == int(found.attention.layers[0].queries[0])
    assert found.save(tmp_path / "it.html").exists()


def test_an_explanation_is_saved_as_page_image_or_numbers(tmp_path: Path) -> None:
    found = explained(made("classify", PointProcessor(40, "unit_sphere")), cloud(80), at=3)
    assert len(found.attention.coordinates) == 40
    for ending in ("html", "png", "svg"):
        assert found.save(tmp_path / f"it.{ending}").stat().st_size > 1000
    said = json.loads(found.save(tmp_path / "it.json").read_text())
    assert len(said["layers"]) == 4 and abs(sum(row["weight"] for row in said["layers"][0]["attention"]) - 1) < 1e-4
    for wrong, words in (({"layer": 9}, "Layer.*got 9"), ({"head": 1}, "--head")):
        with pytest.raises(RegardError, match=words):
            found.save(tmp_path / "no.png", **wrong)
    with pytest.raises(RegardError, match="'ball'"):
        made("classify").explain(cloud(), "ball")


# -- commands


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A checkpoint of each task, and point cloud files."""
    for task in ("classify", "segment"):
        made(task, PointProcessor(64, "unit_sphere")).float().save(tmp_path / task)
    (tmp_path / "scans").mkdir()
    for number in range(2):
        write_ply(tmp_path / "scans" / f"room{number}.ply", read_cloud(f"rooms#part=test,points=150,number={number}"))
    return tmp_path


def test_the_page_of_a_scene_has_a_plain_name_and_tables_list_point_clouds(folders: Path, cli: Cli) -> None:
    answer = json.loads(cli("predict", folders / "segment", "rooms#part=test,points=90,number=4", "--json").out)
    page = answer["files"]["page"]
    assert "#" not in page and Path(page).exists() and abs(sum(answer["value"].values()) - 1) < 0.01
    (folders / "table.csv").write_text("cloud,other\nscans/room1.ply,x\n")
    assert cli("predict", folders / "classify", folders / "table.csv").out.split("\t")[1] in LABELS["classify"]
    assert "point cloud of 1,024 points" in cli("info", "point-tiny").out


@pytest.mark.parametrize(
    "words, said",
    [
        ("predict classify scans/rom0.ply", "file not found. Did you mean 'room0.ply'"),
        ("predict classify a.png", "not a point cloud: the file is an image"),
        ("predict classify scans/room0.ply --out x", "--out is only for predictions that are files"),
        ("explain classify scans/room0.ply box", "start from a point (--at INDEX or --at X,Y,Z), not from a class"),
        ("train depth --data scans --model point-tiny --out r", "'point-tiny' does not support task 'depth'"),
        ("train classify --data rooms --out r", "for task 'segment', not for 'classify'"),
        ("train segment --data solids#many=3 --out r", "Unknown solids setting 'many'"),
        ("train classify --data scans --out r", "no class folders"),
        ("train classify --data solids --model vit-tiny --out r", "solids"),
    ],
)
def test_invalid_uses_are_reported_in_one_paragraph(
    words: str, said: str, folders: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    Path("a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    done = cli(*words.split())
    assert done.code == 2 and said in done.err and "Traceback" not in done.err, done.err


def test_text_and_image_models_report_the_expected_input_for_a_point_cloud(folders: Path, cli: Cli) -> None:
    model = regard.build("vit-tiny", task="classify", image_size=8, width=12, depth=1, heads=2, ffn_dim=12)
    model.save(folders / "vit")
    done = cli("predict", folders / "vit", folders / "scans/room0.ply")
    assert done.code == 2 and "room0.ply" in done.err and "Traceback" not in done.err
