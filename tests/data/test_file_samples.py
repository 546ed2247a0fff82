"""Folders and tables of images and point clouds: accepted layouts, labels, classes, and messages for invalid data."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_files import parquet
from regard.data.images import labeled as images
from regard.data.images.image_io import read_mask
from regard.data.images.labeled import ClassMap, ImageSample
from regard.data.points import labeled as clouds
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError
from regard.runs.spec import resolve_task


def draw(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 9), (100, 155, 100)).save(path)
    return path


def scan(path: Path, labels: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    cloud = PointCloud(random.normal(size=(20, 3)).astype(np.float32))
    if path.suffix == ".npy":
        np.save(path, cloud.coordinates)
    else:
        write_ply(path, cloud, random.integers(0, 3, 20) if labels else None)
    return path


def refused(read: Any, entry: object, problem: str, columns: Any = None, error: type[Exception] = DataError) -> None:
    with pytest.raises(error, match=problem):
        list(read([str(entry)], columns))


@dataclass(frozen=True)
class Kind:
    column: str
    noun: str
    suffix: str
    readers: tuple[Any, Any, Any]
    """all entries, one entry, one entry without labels"""
    save: Callable[[Path], Path]

    def write(self, folder: Path, *names: str) -> None:
        for name in names:
            self.save(folder / name.replace("<s>", self.suffix).replace("<S>", self.suffix.upper()))

    def text(self, text: str) -> str:
        return text.replace("<c>", self.column).replace("<s>", self.suffix)

    def samples(self, entry: Any, columns: Any = None) -> tuple[list[Any], list[str]]:
        """Samples, and reasons of skipped rows."""
        items = list(self.readers[0]([str(entry)], columns))
        reasons = [item.reason for item in items if isinstance(item, SkippedRow)]
        return [item for item in items if not isinstance(item, SkippedRow)], reasons

    def refuses(self, entry: Any, problem: str, columns: Any = None, error: type[Exception] = DataError) -> None:
        refused(self.readers[0], entry, problem, columns, error)


KINDS = [
    Kind("image", "an image", ".png", (images.iterate_images, images.read_images, images.read_unlabeled), draw),
    Kind(
        "cloud", "a point cloud", ".ply", (clouds.CLOUDS.samples, clouds.read_clouds, clouds.read_unlabeled_clouds), scan
    ),
]  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS, ids=[kind.column for kind in KINDS])


@kinds
def test_the_class_of_a_file_is_its_folder_and_other_files_are_skipped(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path, "dog/b<s>", "dog/a<S>", "cat/old/deep/x<s>", "cat/1<s>", "lost<s>", ".trash/c<s>")
    others = "cat/.DS_Store cat/notes.md README.md classes.txt cat/Thumbs.db dog/README.txt dog/no"
    for name in others.split():
        (tmp_path / name).write_text("x")
    found, left = kind.samples(tmp_path)
    names = [(os.path.splitext(os.path.relpath(item.source, tmp_path))[0], item.label) for item in found]
    assert names == [("cat/1", "cat"), ("cat/old/deep/x", "cat"), ("dog/a", "dog"), ("dog/b", "dog")]
    assert {item.path for item in found} == {str(tmp_path)} and found[0].location is None
    assert left == [
        "hidden: .trash", f"not {kind.noun}: README.md", "hidden: cat/.DS_Store", "hidden: cat/Thumbs.db",
        f"not {kind.noun}: cat/notes.md", f"not {kind.noun}: dog/README.txt", f"not {kind.noun}: dog/no",
        f"not in a class folder: lost{kind.suffix}",
    ]  # fmt: skip
    all_files = [item for item in kind.readers[2](str(tmp_path)) if not isinstance(item, SkippedRow)]
    assert len(all_files) == 5 and not any(item.label for item in all_files)


@kinds
def test_folders_that_cannot_mean_classes_are_refused_and_links_are_followed_once(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path, "flat/a<s>", "parts/train/cat/a<s>", "parts/val/cat/b<s>", "elsewhere/a<s>", "data/dog/b<s>")
    (tmp_path / "none/cat").mkdir(parents=True)
    for name, problem in (("flat", "class folders"), ("parts", "--valid"), ("none", f"no {kind.column}s")):
        kind.refuses(tmp_path / name, problem)
    refused(clouds.LABELED_CLOUDS.samples, tmp_path / "parts", "--valid")
    (tmp_path / "data/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/dog/round").symlink_to(tmp_path / "data")
    found, _ = kind.samples(tmp_path / "data")
    names = [(item.label, os.path.basename(item.source)) for item in found]
    assert names == [("cat", f"a{kind.suffix}"), ("dog", f"b{kind.suffix}")]


@kinds
@pytest.mark.parametrize(("name", "text", "columns", "first"), [
    ("a.csv", "<c>,label\np/a<s>,cat\np/b<s>,3\n", None, 2),
    ("a.tsv", "Label\tid\tfile_name\ncat\t1\tp/a<s>\n3\t2\tp/b<s>\n", None, 2),
    ("a.txt", "<c>\tlabel\np/a<s>\tcat\np/b<s>\t3\n", None, 2), ("a.tsv", "p/a<s>\tcat\np/b<s>\t3\n", None, 1),
    ("a.tsv", "cat\tp/a<s>\n3\tp/b<s>\n", {"<c>": "1", "label": "0"}, 1),
    ("a.csv", "where,kind,path\na<s>,cat,x\nb<s>,3,y\n", {"<c>": "where", "label": "kind"}, 2),
    ("a.csv", "<c>,kind\np/a<s>,cat\np/b<s>,3\n", {"label": "kind"}, 2),
    ("a.jsonl", '{"<c>": "p/a<s>", "label": "cat"}\n{"label": 3, "<c>": "p/b<s>"}\n', None, 1),
])  # fmt: skip
def test_paths_of_a_table_are_relative_to_its_folder(
    kind: Kind, name: str, text: str, columns: Any, first: int, tmp_path: Path
) -> None:
    inside = f"{kind.column}s" if "where" in text else "p"  # or relative to a folder with the usual name
    kind.write(tmp_path / inside, "a<s>", "b<s>")
    table = tmp_path / name
    table.write_text(kind.text(text))
    chosen = columns and {kind.text(column): where for column, where in columns.items()}
    found, _ = kind.samples(table, chosen)
    paths = [str(tmp_path / inside / f"{letter}{kind.suffix}") for letter in "ab"]
    assert [(item.source, item.label) for item in found] == list(zip(paths, ("cat", "3"), strict=True))
    assert [(item.path, item.line) for item in found] == [(str(table), first), (str(table), first + 1)]
    if columns is None and first == 2:
        assert [(item.source, item.label) for item in kind.readers[2](str(table))] == [(path, "") for path in paths]


@kinds
def test_a_path_that_is_not_there_is_named_with_its_line(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path, "a<s>")
    table = tmp_path / "t.csv"
    table.write_text(kind.text("<c>,label\na<s>,x\ngone<s>,y\nhttps://host/b<s>,y\n,y\na<s>,\n"))
    kind.refuses(table, "line 3")
    found = list(kind.readers[1](str(table)))
    heard = [(item.kind, item.line) for item in found if isinstance(item, DataError)]
    found = [item for item in found if not isinstance(item, DataError)]
    assert heard == [("missing", 3), ("missing", 4)]
    noun = kind.noun.partition(" ")[2]
    reasons = [item.reason for item in found if isinstance(item, SkippedRow)]
    assert reasons == [f"missing {noun} for: y", f"missing label for: a{kind.suffix}"] and len(found) == 3
    (tmp_path / "u.csv").write_text(kind.text("bild,art\na<s>,x\n"))
    kind.refuses(tmp_path / "u.csv", "line 1")
    kind.refuses(table, f"'{kind.column}", {f"{kind.column}z": "image"}, error=RegardError)


@kinds
def test_parquet_holds_paths_or_bytes_or_both(kind: Kind, tmp_path: Path) -> None:
    kind.write(tmp_path, "a<s>", "b<s>")
    one, two = (tmp_path / f"{letter}{kind.suffix}" for letter in "ab")
    paths = parquet(tmp_path / "paths.parquet", {kind.column: [one.name, two.name, None], "label": [0, 1, 1]})
    found, left = kind.samples(paths)
    assert [(item.source, item.label) for item in found] == [(str(one), "0"), (str(two), "1")]
    assert left == [f"missing {kind.noun.partition(' ')[2]} for: 1"]
    contents = [one.read_bytes(), two.read_bytes()]
    raw = parquet(tmp_path / "raw.parquet", {kind.column: contents, "label": ["x", "y"]})
    found, _ = kind.samples(raw)
    assert [(item.source, item.label, item.line) for item in found] == [("", "x", 1), ("", "y", 2)]
    assert [item.content for item in found] == contents and found[0].location == (raw, 1)
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    cells = [{"bytes": contents[0], "path": "old"}, {"bytes": None, "path": two.name}]
    columns = {kind.column: cells, "label": [1, 0]}
    found, _ = kind.samples(parquet(tmp_path / "both.parquet", columns, {"huggingface": json.dumps(names)}))
    assert [(item.source, item.label) for item in found] == [("old", "dog"), (str(two), "cat")]
    assert found[0].content == contents[0] and not found[1].content
    other = parquet(tmp_path / "b.parquet", {"bild": [b"x"], "art": ["y"]})
    kind.refuses(other, "--columns")
    kind.refuses(other, "'bild'", {kind.column: "bold", "label": "art"}, error=RegardError)
    kind.refuses(parquet(tmp_path / "c.parquet", {kind.column: [[1, 2]], "label": ["y"]}), "line 1")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and no more")
    kind.refuses(tmp_path / "d.parquet", r"d\.parquet", {kind.column: "a", "label": "b"})


def kept(items: Any) -> list[ImageSample]:
    return [item for item in items if isinstance(item, ImageSample)]


def test_parquet_may_contain_masks_too(tmp_path: Path) -> None:
    one = draw(tmp_path / "a.png")
    mask = tmp_path / "m.png"
    Image.fromarray(np.arange(108, dtype=np.uint8).reshape(9, 12)).save(mask)
    cells = [[{"bytes": file.read_bytes(), "path": None}] for file in (one, mask)]
    path = parquet(tmp_path / "a.parquet", {"image": cells[0], "annotation": cells[1]})
    (found,) = kept(images.iterate_segmented([path]))
    assert np.array_equal(read_mask(found.target_content), np.arange(108).reshape(9, 12))
    refused(images.iterate_images, f"{tmp_path}:{tmp_path}", "one folder")


def pairs(folder: Path, names: tuple[str, ...] = ("x/1", "x/2", "3"), masks: str = "masks", word: str = "") -> str:
    for name in names:
        draw(folder / "images" / f"{name}.jpg")
        path = folder / masks / f"{name}{word}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((9, 12), np.uint8)).save(path)
    return f"{folder / 'images'}:{folder / masks}"


@pytest.mark.parametrize("word", ["", "_L"])
def test_an_image_and_its_mask_have_one_name(word: str, tmp_path: Path) -> None:
    entry = pairs(tmp_path, word=word)
    for data in (entry, str(tmp_path)):
        found = kept(images.iterate_segmented([data]))
        assert [os.path.relpath(item.source, tmp_path / "images") for item in found] == ["3.jpg", "x/1.jpg", "x/2.jpg"]
        wanted = [f"3{word}.png", f"x/1{word}.png", f"x/2{word}.png"]
        assert [os.path.relpath(item.target, tmp_path / "masks") for item in found] == wanted
        assert not any(item.label for item in found)


def test_images_without_a_mask_are_named_and_depth_maps_may_be_arrays(tmp_path: Path) -> None:
    entry = pairs(tmp_path)
    draw(tmp_path / "images/4.jpg")
    (tmp_path / "masks/x/2.png").rename(tmp_path / "masks/x/9.png")
    refused(images.iterate_segmented, entry, "2 images")
    found = list(images.read_segmented(entry))
    heard = [f"{item.kind} {Path(str(item.path)).name}" for item in found if isinstance(item, DataError)]
    assert heard == [f"unmatched_files {name}" for name in ("4.jpg", "2.jpg", "9.png")] and len(kept(found)) == 2
    refused(images.iterate_segmented, f"{tmp_path / 'images'}:{tmp_path / 'mask'}", "folder")
    refused(images.iterate_segmented, tmp_path / "images", "'images'")
    draw(tmp_path / "masks/3.tif")
    refused(images.iterate_segmented, entry, r"3\.png")
    tmp_path = tmp_path / "rooms"
    draw(tmp_path / "rgb/1.png")
    (tmp_path / "depth").mkdir()
    np.save(tmp_path / "depth/1.npy", np.ones((9, 12)))
    (found,) = kept(images.iterate_depth_images([str(tmp_path)]))
    assert found.target == str(tmp_path / "depth/1.npy") and found.source == str(tmp_path / "rgb/1.png")
    (tmp_path / "t.csv").write_text("image,depth\nrgb/1.png,depth/1.npy\nrgb/1.png,depth/2.npy\n")
    refused(images.iterate_depth_images, tmp_path / "t.csv", "line 3")


ROADS = ClassMap(("sky", "road"), (0, 1), (2,))
COLORS = {"road": [1, 2, 3], "sky": [10, 20, 30], "z": [0, 0, 0]}
PAINTED = ClassMap(("sky", "road"), (0, 1), (2,), (((10, 20, 30), 0), ((1, 2, 3), 1), ((0, 0, 0), 2)))


@pytest.mark.parametrize(("name", "text", "wanted"), [
    ("classes.txt", "sky\nroad\n\n# more\nvoid\n", ROADS), ("classes.txt", "0 sky\n1: road\n2 = Ignore\n", ROADS),
    ("classes.txt", "7 sky\n33 road way\n", ClassMap(("sky", "road way"), (7, 33))),
    ("classes.txt", "3 wheeler\ncar\n", ClassMap(("3 wheeler", "car"), (0, 1))),
    ("classes.txt", "10 20 30\tsky\n1 2 3 road\n0 0 0 void\n", PAINTED),
    ("classes.txt", "sky 10 20 30\nroad, 1, 2, 3\nvoid 0 0 0\n", PAINTED),
    ("classes.json", '["sky", "road", "void"]', ROADS),
    ("classes.json", '{"1": "road", "0": "sky", "2": "unlabelled"}', ROADS),
    ("classes.json", '{"classes": ["sky", "road"], "void": 2}', ROADS),
    ("classes.json", '{"classes": {"5": "sky", "4": "x"}, "void": [0, 255]}', ClassMap(("x", "sky"), (4, 5), (0, 255))),
    ("classes.json", '{"classes": ["sky", "road", "void"], "colours": [[10,20,30],[1,2,3],[0,0,0]]}', PAINTED),
    ("classes.json", json.dumps({"classes": ["sky", "road", "z"], "void": "z", "colors": COLORS}), PAINTED),
])  # fmt: skip
def test_a_small_file_names_the_classes(name: str, text: str, wanted: ClassMap, tmp_path: Path) -> None:
    entry = pairs(tmp_path / "set/train")
    for place in ("set/train/masks", "set/train", "set"):
        (tmp_path / place / name).write_text(text)
        assert images.find_classes([entry]) == images.find_classes([str(tmp_path / "set/train")]) == wanted
        (tmp_path / place / name).unlink()
    assert images.find_classes([entry]) is None


@pytest.mark.parametrize(("name", "text", "said"), [
    ("classes.txt", "sky\nsky\n", "'sky'"), ("classes.txt", "# nothing\n", "class"),
    ("classes.txt", "1 2 300 sky\n", "300"), ("classes.txt", "1 2 3 sky\n1 2 3 road\n", "color"),
    ("classes.txt", "70000 sky\n1 road\n", "65,535"), ("classes.json", "{", "JSON"),
    ("classes.json", '{"names": []}', "classes"),
    ("classes.json", '{"classes": ["a"], "colours": [[1,2,3],[4,5,6]]}', "classes"),
    ("classes.json", '{"classes": ["a"], "void": "b"}', "void"),
    ("classes.json", '{"classes": ["a"], "viod": 3}', "'viod'"),
    ("classes.json", json.dumps([str(n) for n in range(300)]), "300"),
])  # fmt: skip
def test_an_invalid_file_of_classes_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RegardError, match=said) as error:
        images.find_classes_above(str(tmp_path))
    assert name in str(error.value)


def test_numbers_in_masks_and_labels_of_points_become_classes_void_or_an_error() -> None:
    classes = ClassMap(("x", "sky"), (4, 1000), (0, 255))
    mask = np.array([[4, 1000, 0], [255, 4, 4]], dtype=np.uint16)
    assert classes.to_indices(mask).tolist() == [[0, 1, images.VOID], [images.VOID, 0, 0]]
    with pytest.raises(DataError, match=r"m\.png"):
        classes.to_indices(np.array([[9, 7, 4]], dtype=np.uint8), "m.png")
    assert classes.unknown_values([4, 3, 255]) == [3]
    assert images.infer_classes([3, 0, 255, 0]) == ClassMap(("0", "3"), (0, 3), (255,))
    assert images.infer_classes(range(250, 256)).void == (255,) and images.infer_classes([0, 1]).void == ()
    assert images.infer_classes([0, 255, 256]).void == () and images.infer_classes([0, 1, 65535]).void == (65535,)
    assert images.infer_classes([0, 255]) == ClassMap(("0", "255"), (0, 255))
    classes = ClassMap(("floor", "wall"), (3, 70), (2, 255))
    labels = np.array([3, 70, 2, 255, -1, -100, 3])
    assert classes.to_indices(labels, void=clouds.IGNORE_LABEL).tolist() == [0, 1, *[clouds.IGNORE_LABEL] * 4, 0]
    for strange in ([4, 3], [70_000, 3], [2**40, 65535]):
        with pytest.raises(DataError, match=rf"{max(strange)}|{strange[0]}"):
            classes.to_indices(np.array(strange), "a.ply", clouds.IGNORE_LABEL, "labels")


def test_point_clouds_with_labeled_points_may_be_nested_deeply(tmp_path: Path) -> None:
    for name in ("a.ply", "one/b.ply", "one/two/c.ply"):
        scan(tmp_path / name, labels=True)
    items = list(clouds.LABELED_CLOUDS.samples([str(tmp_path)], {"label": "thing"}))
    assert [(Path(item.source).name, item.label) for item in items] == [("a.ply", ""), ("b.ply", ""), ("c.ply", "")]
    assert all(item.columns == (("label", "thing"),) for item in items)
    with pytest.raises(DataError, match="'thing'"):
        items[0].read()
    (one,) = clouds.LABELED_CLOUDS.samples([str(tmp_path / "a.ply")])
    assert one.read().labels is not None
    assert len(list(clouds.LABELED_CLOUDS.samples([str(tmp_path / "one/**/*.ply")]))) == 2


def test_point_clouds_may_be_in_a_parquet_table(tmp_path: Path) -> None:
    content = scan(tmp_path / "a.npy").read_bytes()
    named = [{"bytes": content, "path": "a.npy"}, {"bytes": b"solid", "path": "b.stl"}]
    first, second = clouds.CLOUDS.samples([parquet(tmp_path / "t.parquet", {"cloud": named, "label": ["x", "y"]})])
    assert len(first.read()) == 20 and first.label == "x" and first.location == (str(tmp_path / "t.parquet"), 1)
    with pytest.raises(DataError, match="line 2"):
        second.read()  # identified by its file extension


def test_sets_that_are_made_are_named_as_data(tmp_path: Path) -> None:
    items = list(clouds.CLOUDS.samples(["solids#part=test,samples=12"]))
    assert len(items) == 12 and [item.label for item in items[:2]] == ["angle", "ball"]
    assert len(items[5].read()) == 1024
    (scene,) = clouds.LABELED_CLOUDS.samples(["rooms#samples=1,points=300"])
    assert scene.label == "" and scene.read().labels is not None
    refused(clouds.CLOUDS.samples, "rooms", "classify")
    refused(clouds.LABELED_CLOUDS.samples, "solids", "classify")
    assert [len(list(clouds.read_unlabeled_clouds(f"{name}#samples=2"))) for name in ("rooms", "solids")] == [2, 2]
    for entry in ("nowhere", str(tmp_path / "none.csv"), "solids#part=none"):
        for read in (clouds.CLOUDS.samples, clouds.LABELED_CLOUDS.samples):
            refused(read, entry, ".", error=RegardError)


def test_point_cloud_data_is_recognized_before_reading(tmp_path: Path) -> None:
    draw(tmp_path / "pictures/cat/a.png")
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
    scan(tmp_path / "numbers/one/a.npy")
    scan(tmp_path / "data/chair/a.ply")
    here = [str(tmp_path / name) for name in (*tables, "pictures", "none", "numbers", "data", "data/chair/a.ply")]
    yes, no = (*here[:3], *here[9:], "solids", "rooms#part=test"), (*here[3:9], "copy#longest=3")
    assert all(map(clouds.is_cloud_data, yes)) and not any(map(clouds.is_cloud_data, no))
    assert clouds.is_cloud_data(str(tmp_path / "texts.csv"), {"cloud": "text"})
    assert resolve_task("classify", None, [str(tmp_path / "photos.csv")], None).input == "image"
    assert resolve_task("classify", None, [str(tmp_path / "texts.jsonl")], None).input == "text"


def test_classes_are_named_by_a_file_next_to_or_above_the_point_clouds_or_by_the_point_cloud(tmp_path: Path) -> None:
    path = scan(tmp_path / "scans/one/a.ply", labels=True)
    assert clouds.find_cloud_classes([str(tmp_path / "scans")]) is None
    (tmp_path / "classes.txt").write_text("floor\nwall\nvoid\n")
    right = ClassMap(("floor", "wall"), (0, 1), (2,))
    assert clouds.find_cloud_classes([str(tmp_path / "scans")]) == right == clouds.find_cloud_classes([str(path)])
    rooms = clouds.find_cloud_classes(["rooms#part=valid"])
    assert rooms == ClassMap(("floor", "wall", "table", "chair", "lamp"), (0, 1, 2, 3, 4))
    assert clouds.find_cloud_classes(["rooms-1#number=3"]) == rooms
    cloud = PointCloud(np.eye(3, dtype=np.float32))
    write_ply(tmp_path / "a.ply", cloud, np.array([0, 1, 2]), classes=("floor", "1", "wall"))
    assert clouds.classes_from_cloud(read_cloud(str(tmp_path / "a.ply"))) == ClassMap(("floor", "wall"), (0, 2))
    assert clouds.classes_from_cloud(cloud) is None
