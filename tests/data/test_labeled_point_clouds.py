"""Point clouds from folders, tables and generator names, with classes of point clouds and of points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import parquet
from regard.data.images.labeled import ClassMap
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.data.points.labeled import (
    IGNORE_LABEL,
    CloudSample,
    classes_from_cloud,
    find_cloud_classes,
    is_cloud_data,
    iterate_clouds,
    iterate_labeled_clouds,
    read_labeled_clouds,
    read_unlabeled_clouds,
)
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError, UnknownNameError
from regard.runs.spec import resolve_task


def save(path: Path, seed: int = 0, labels: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    places = random.normal(size=(20, 3)).astype(np.float32)
    if path.suffix == ".npy":
        np.save(path, places)
    else:
        write_ply(path, PointCloud(places), random.integers(0, 3, 20) if labels else None)
    return path


def found(items: Any) -> list[tuple[str, str]]:
    return [(Path(item.source).name, item.label) for item in items if not isinstance(item, SkippedRow)]


def refused(read: Any, entry: object, problem: str, columns: Any = None, error: type[Exception] = DataError) -> None:
    with pytest.raises(error, match=problem):
        list(read([str(entry)], columns))


@pytest.fixture
def classed(tmp_path: Path) -> Path:
    for number, name in enumerate(("chair/a.ply", "chair/deep/er/b.npy", "table/c.ply")):
        save(tmp_path / "data" / name, number)
    return tmp_path / "data"


# -- folders


def test_a_folder_for_each_class(classed: Path) -> None:
    (classed / ".hidden.ply").write_text("x")
    (classed / "chair/notes.md").write_text("x")
    (classed / "classes.txt").write_text("chair\ntable\n")
    (classed / "table/README.txt").write_text("what this is")
    save(classed / "stray.ply")
    items = list(iterate_clouds([str(classed)]))
    assert found(items) == [("a.ply", "chair"), ("b.npy", "chair"), ("c.ply", "table")]
    assert [item.reason.partition(":")[0] for item in items if isinstance(item, SkippedRow)] == [
        "hidden", "not a point cloud", "not in a class folder", "not a point cloud",
    ]  # fmt: skip
    first = next(item for item in items if isinstance(item, CloudSample))
    assert first.path == str(classed) and len(first.read()) == 20 and first.location is None


def test_folders_that_are_not_classes_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "flat/a.ply")
    refused(iterate_clouds, tmp_path / "flat", "no class folders")
    for part in ("train", "test"):
        save(tmp_path / "parts" / part / "chair/a.ply")
    for read in (iterate_clouds, iterate_labeled_clouds):
        refused(read, tmp_path / "parts", "--valid")
    (tmp_path / "none").mkdir()
    refused(iterate_clouds, tmp_path / "none", "clouds")


def test_point_clouds_with_labeled_points_may_be_nested_deeply(tmp_path: Path) -> None:
    for name in ("a.ply", "one/b.ply", "one/two/c.ply"):
        save(tmp_path / name, labels=True)
    items = list(iterate_labeled_clouds([str(tmp_path)], {"label": "thing"}))
    assert found(items) == [("a.ply", ""), ("b.ply", ""), ("c.ply", "")]
    assert all(item.columns == (("label", "thing"),) for item in items if isinstance(item, CloudSample))
    with pytest.raises(DataError, match="'thing'"):
        items[0].read()  # type: ignore[union-attr]
    (one,) = iterate_labeled_clouds([str(tmp_path / "a.ply")])
    assert isinstance(one, CloudSample) and one.read().labels is not None
    assert len(list(iterate_labeled_clouds([str(tmp_path / "one/**/*.ply")]))) == 2


# -- tables


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.txt"])
def test_a_table_names_point_clouds_and_classes(name: str, classed: Path) -> None:
    rows = [("chair/a.ply", "seat"), ("table/c.ply", "board")]
    table = classed / name
    if name.endswith("jsonl"):
        table.write_text("".join(json.dumps({"cloud": cloud, "label": label}) + "\n" for cloud, label in rows))
    else:
        sign = "," if name.endswith("csv") else "\t"
        table.write_text("".join(sign.join(row) + "\n" for row in (("cloud", "label"), *rows)))
    items = list(iterate_clouds([str(table)]))
    assert found(items) == [("a.ply", "seat"), ("c.ply", "board")]
    assert [item.line for item in items] == ([1, 2] if name.endswith("jsonl") else [2, 3])
    for read in (read_unlabeled_clouds, read_labeled_clouds):
        assert found(read(str(table))) == [("a.ply", ""), ("c.ply", "")]


def test_columns_of_a_table_are_chosen_and_incomplete_rows_are_reported(tmp_path: Path, classed: Path) -> None:
    save(tmp_path / "clouds/a.ply")
    (tmp_path / "t.csv").write_text("art,was\nx,a.ply\n")
    (item,) = iterate_clouds([str(tmp_path / "t.csv")], {"cloud": "was", "label": "art"})
    assert isinstance(item, CloudSample) and item.label == "x" and item.columns == () and len(item.read()) == 20
    refused(iterate_clouds, tmp_path / "t.csv", "'cloud'", {"colud": "was"}, error=UnknownNameError)
    table = classed / "t.csv"
    table.write_text("cloud,label\nchair/a.ply,\n,seat\nchair/a.ply,seat\n")
    items = list(iterate_clouds([str(table)]))
    assert [item.reason for item in items if isinstance(item, SkippedRow)] == [
        "missing label for: chair/a.ply",
        "missing point cloud for: seat",
    ]
    table.write_text("cloud,label\nchair/z.ply,seat\n")
    refused(iterate_clouds, table, "line 2")
    table.write_text("cloud,label\nhttps://a/b.ply,seat\n")
    refused(iterate_clouds, table, "URL")


def test_point_clouds_may_be_in_a_parquet_table(tmp_path: Path) -> None:
    content = save(tmp_path / "a.npy").read_bytes()
    named = [{"bytes": content, "path": "a.npy"}, {"bytes": b"solid", "path": "b.stl"}]
    first, second = iterate_clouds([parquet(tmp_path / "t.parquet", {"cloud": named, "label": ["x", "y"]})])
    assert isinstance(first, CloudSample) and isinstance(second, CloudSample)
    assert len(first.read()) == 20 and first.label == "x" and first.location == (str(tmp_path / "t.parquet"), 1)
    with pytest.raises(DataError, match="line 2"):
        second.read()  # identified by its file extension
    refused(iterate_clouds, parquet(tmp_path / "u.parquet", {"was": ["a"], "art": ["x"]}), "--columns")


# -- names


def test_sets_that_are_made_are_named_as_data(tmp_path: Path) -> None:
    items = list(iterate_clouds(["solids#part=test,samples=12"]))
    assert len(items) == 12 and [item.label for item in items[:2]] == ["angle", "ball"]  # type: ignore[union-attr]
    assert isinstance(items[5], CloudSample) and len(items[5].read()) == 1024
    (scene,) = iterate_labeled_clouds(["rooms#samples=1,points=300"])
    assert isinstance(scene, CloudSample) and scene.label == "" and scene.read().labels is not None
    refused(iterate_clouds, "rooms", "classify")
    refused(iterate_labeled_clouds, "solids", "classify")
    assert [len(list(read_unlabeled_clouds(f"{name}#samples=2"))) for name in ("rooms", "solids")] == [2, 2]
    sample = CloudSample("a.ply", "x", "d", 3, columns=(("label", "thing"),))
    said = json.loads(json.dumps({"source": "a.ply", "label": "x", "path": "d", "line": 3, "columns": sample.columns}))
    assert CloudSample(**said) == sample and hash(sample)
    for entry in ("nowhere", str(tmp_path / "none.csv"), "solids#part=none"):
        for read in (iterate_clouds, iterate_labeled_clouds):
            with pytest.raises(RegardError):
                list(read([entry]))


def test_point_cloud_data_is_recognized_before_reading(classed: Path, tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "pictures/cat").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "pictures/cat/a.png")
    (tmp_path / "pictures/notes.txt").write_text("about cats")
    np.save(tmp_path / "pictures/depth.npy", np.zeros((9, 9)))
    tables = {
        "clouds.csv": "cloud,label\na.ply,x\n", "files.csv": "file,class\nparts/a.obj,x\n",
        "files.jsonl": '{"path": "a.ply", "label": "x"}\n', "texts.csv": "text,label\nhello,x\n",
        "images.csv": "image,label\na.png,x\n", "photos.csv": "file,class\na.png,x\n",
        "texts.jsonl": '{"text": "hello", "label": "x"}\n',
    }  # fmt: skip
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    save(tmp_path / "numbers/one/a.npy")
    here = [str(tmp_path / name) for name in (*tables, "numbers", "pictures", "none")]
    yes = ("solids", "rooms#part=test", str(classed), str(classed / "chair/a.ply"), *here[:3], here[7])
    assert all(map(is_cloud_data, yes)) and not any(map(is_cloud_data, (*here[3:7], *here[8:], "copy#longest=3")))
    assert is_cloud_data(str(tmp_path / "texts.csv"), {"cloud": "text"})
    assert resolve_task("classify", None, [str(tmp_path / "photos.csv")], None).input == "image"
    assert resolve_task("classify", None, [str(tmp_path / "texts.jsonl")], None).input == "text"


# -- classes of points


def test_classes_are_named_by_a_file_next_to_or_above_the_point_clouds_or_by_the_point_cloud(tmp_path: Path) -> None:
    path = save(tmp_path / "scans/one/a.ply", labels=True)
    assert find_cloud_classes([str(tmp_path / "scans")]) is None
    (tmp_path / "classes.txt").write_text("floor\nwall\nvoid\n")
    right = ClassMap(("floor", "wall"), (0, 1), (2,))
    assert find_cloud_classes([str(tmp_path / "scans")]) == right == find_cloud_classes([str(path)])
    rooms = find_cloud_classes(["rooms#part=valid"])
    assert rooms == ClassMap(("floor", "wall", "table", "chair", "lamp"), (0, 1, 2, 3, 4))
    assert find_cloud_classes(["rooms-1#number=3"]) == rooms
    cloud = PointCloud(np.eye(3, dtype=np.float32))
    write_ply(tmp_path / "a.ply", cloud, np.array([0, 1, 2]), classes=("floor", "1", "wall"))
    assert classes_from_cloud(read_cloud(str(tmp_path / "a.ply"))) == ClassMap(("floor", "wall"), (0, 2))
    assert classes_from_cloud(cloud) is None


def test_labels_become_class_indices() -> None:
    classes = ClassMap(("floor", "wall"), (3, 70), (2, 255))
    labels = np.array([3, 70, 2, 255, -1, -100, 3])
    assert classes.to_indices(labels, void=IGNORE_LABEL).tolist() == [0, 1, *[IGNORE_LABEL] * 4, 0]
    for strange in ([4, 3], [70_000, 3], [2**40, 65535]):
        with pytest.raises(DataError, match=rf"{max(strange)}|{strange[0]}"):
            classes.to_indices(np.array(strange), "a.ply", IGNORE_LABEL, "labels")
