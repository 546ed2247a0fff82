"""Image folders and tables: accepted layouts, labels, and messages for invalid data."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_files import parquet
from regard.data.images.image_io import read_image, read_mask
from regard.data.images.labeled import (
    VOID,
    ClassMap,
    ImageSample,
    find_classes,
    infer_classes,
    iterate_depth_images,
    iterate_images,
    iterate_segmented,
    iterate_unlabeled,
    read_classes,
    read_images,
    read_segmented,
)
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, RegardError


def draw(path: Path, shade: int = 100, size: tuple[int, int] = (12, 9)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 255 - shade, shade)).save(path)
    return path


def kept(items: Any) -> list[ImageSample]:
    return [item for item in items if isinstance(item, ImageSample)]


def left(items: Any) -> list[str]:
    return [item.reason for item in items if isinstance(item, SkippedRow)]


def refused(read: Any, entry: object, problem: str, columns: Any = None, error: type[Exception] = DataError) -> None:
    with pytest.raises(error, match=problem):
        list(read([str(entry)], columns))


# -- folders


def test_the_class_of_an_image_is_its_folder(tmp_path: Path) -> None:
    for name in ("dog/b.png", "dog/a.JPG", "cat/old/deep/x.webp", "cat/1.jpeg", "cat/z.tiff"):
        draw(tmp_path / name)
    found = list(iterate_images([str(tmp_path)]))
    names = [(os.path.relpath(item.source, tmp_path), item.label) for item in kept(found)]
    assert names == [
        ("cat/1.jpeg", "cat"), ("cat/old/deep/x.webp", "cat"), ("cat/z.tiff", "cat"), ("dog/a.JPG", "dog"),
        ("dog/b.png", "dog"),
    ]  # fmt: skip
    assert [(item.path, item.line) for item in kept(found)] == [(str(tmp_path), line) for line in range(1, 6)]


def test_hidden_files_and_other_files_are_skipped_and_counted(tmp_path: Path) -> None:
    draw(tmp_path / "cat/a.png")
    draw(tmp_path / "dog/b.png")
    draw(tmp_path / ".trash/c.png")
    draw(tmp_path / "lost.png")
    for name in ("cat/.DS_Store", "cat/notes.txt", "README.md", "classes.txt", "cat/Thumbs.db", "dog/noending"):
        (tmp_path / name).write_text("x")
    found = list(iterate_images([str(tmp_path)]))
    assert [item.label for item in kept(found)] == ["cat", "dog"]
    assert left(found) == [
        "hidden: .trash", "not an image: README.md", "hidden: cat/.DS_Store", "hidden: cat/Thumbs.db",
        "not an image: cat/notes.txt", "not an image: dog/noending", "not in a class folder: lost.png",
    ]  # fmt: skip
    names = [os.path.basename(item.source) for item in kept(iterate_unlabeled([str(tmp_path)]))]
    assert names == ["a.png", "b.png", "lost.png"]


def test_folders_that_cannot_mean_classes_are_refused_and_links_are_followed_once(tmp_path: Path) -> None:
    draw(tmp_path / "flat/a.png")
    refused(iterate_images, tmp_path / "flat", "class folders")
    for name in ("train/cat/a.png", "val/cat/b.png"):
        draw(tmp_path / "parts" / name)
    refused(iterate_images, tmp_path / "parts", "--valid")
    (tmp_path / "none/cat").mkdir(parents=True)
    refused(iterate_images, tmp_path / "none", "no images")
    refused(iterate_images, f"{tmp_path / 'flat'}:{tmp_path / 'none'}", "one folder")
    draw(tmp_path / "elsewhere/a.png")
    draw(tmp_path / "data/dog/b.png")
    (tmp_path / "data/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/dog/round").symlink_to(tmp_path / "data")
    found = kept(iterate_images([str(tmp_path / "data")]))
    assert [(item.label, os.path.basename(item.source)) for item in found] == [("cat", "a.png"), ("dog", "b.png")]


# -- tables


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.csv", "image,label\np/a.png,cat\np/b.png,3\n", None),
        ("a.tsv", "Label\tid\tfile_name\ncat\t1\tp/a.png\n3\t2\tp/b.png\n", None),
        ("a.tsv", "p/a.png\tcat\np/b.png\t3\n", None),
        ("a.tsv", "cat\tp/a.png\n3\tp/b.png\n", {"image": "1", "label": "0"}),
        ("a.csv", "where,kind,path\np/a.png,cat,x\np/b.png,3,y\n", {"image": "where", "label": "kind"}),
        ("a.csv", "image,kind\np/a.png,cat\np/b.png,3\n", {"label": "kind"}),
        ("a.jsonl", '{"image": "p/a.png", "label": "cat"}\n{"label": 3, "image": "p/b.png"}\n', None),
    ],
)
def test_paths_of_a_table_are_relative_to_its_folder(name: str, text: str, columns: Any, tmp_path: Path) -> None:
    for picture in ("a", "b"):
        draw(tmp_path / f"p/{picture}.png")
    (tmp_path / name).write_text(text)
    found = kept(iterate_images([str(tmp_path / name)], columns))
    assert [(item.source, item.label) for item in found] == [
        (str(tmp_path / "p/a.png"), "cat"), (str(tmp_path / "p/b.png"), "3"),
    ]  # fmt: skip
    first = 1 if name == "a.jsonl" or text.startswith(("p/", "cat\tp")) else 2
    assert [(item.path, item.line) for item in found] == [(str(tmp_path / name), first + n) for n in (0, 1)]


def test_a_path_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    draw(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("image,label\na.png,x\ngone.png,y\nhttps://host/b.png,y\n,y\na.png,\n")
    refused(iterate_images, tmp_path / "t.csv", "line 3")
    heard: list[tuple[str, int | None]] = []
    found = list(read_images(str(tmp_path / "t.csv"), None, lambda kind, error: heard.append((kind, error.line))))
    assert heard == [("missing", 3), ("missing", 4)]
    assert len(kept(found)) == 1 and left(found) == ["missing image for: y", "missing label for: a.png"]
    (tmp_path / "u.csv").write_text("bild,art\na.png,x\n")
    refused(iterate_images, tmp_path / "u.csv", "line 1")
    refused(iterate_images, tmp_path / "t.csv", "'imgae'", {"imgae": "image"}, error=RegardError)


def test_parquet_holds_paths_or_bytes_or_both(tmp_path: Path) -> None:
    one, two = draw(tmp_path / "a.png", 10), draw(tmp_path / "b.png", 200)
    paths = parquet(tmp_path / "paths.parquet", {"image": ["a.png", "b.png", None], "label": [0, 1, 1]})
    found = list(iterate_images([paths]))
    assert [(item.source, item.label) for item in kept(found)] == [(str(one), "0"), (str(two), "1")]
    assert left(found) == ["missing image for: 1"]
    raw = parquet(tmp_path / "raw.parquet", {"image": [one.read_bytes(), two.read_bytes()], "label": ["x", "y"]})
    found = kept(iterate_images([raw]))
    assert [(item.source, item.label, item.line) for item in found] == [("", "x", 1), ("", "y", 2)]
    assert np.array_equal(read_image(found[1].content), read_image(str(two))) and found[0].location == (raw, 1)
    names = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    cells = [{"bytes": one.read_bytes(), "path": "old.png"}, {"bytes": None, "path": "b.png"}]
    metadata = {"huggingface": json.dumps(names)}
    both = parquet(tmp_path / "both.parquet", {"image": cells, "label": [1, 0]}, metadata)
    found = kept(iterate_images([both]))
    assert [(item.source, item.label) for item in found] == [("old.png", "dog"), (str(two), "cat")]
    assert found[0].content == one.read_bytes() and not found[1].content


def test_parquet_may_contain_masks_too_and_missing_ones_are_reported(tmp_path: Path) -> None:
    one = draw(tmp_path / "a.png")
    mask = tmp_path / "m.png"
    Image.fromarray(np.arange(108, dtype=np.uint8).reshape(9, 12)).save(mask)
    cells = [[{"bytes": file.read_bytes(), "path": None}] for file in (one, mask)]
    path = parquet(tmp_path / "a.parquet", {"image": cells[0], "annotation": cells[1]})
    (found,) = kept(iterate_segmented([path]))
    assert np.array_equal(read_mask(found.target_content), np.arange(108).reshape(9, 12))
    path = parquet(tmp_path / "b.parquet", {"bild": [b"x"], "art": ["y"]})
    refused(iterate_images, path, "--columns")
    refused(iterate_images, path, "'bild'", {"image": "bold", "label": "art"}, error=RegardError)
    path = parquet(tmp_path / "c.parquet", {"image": [[1, 2]], "label": ["y"]})
    refused(iterate_images, path, "line 1")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and no more")
    refused(iterate_images, tmp_path / "d.parquet", r"d\.parquet", {"image": "a", "label": "b"})


# -- masks and depth


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
        found = kept(iterate_segmented([data]))
        assert [os.path.relpath(item.source, tmp_path / "images") for item in found] == ["3.jpg", "x/1.jpg", "x/2.jpg"]
        wanted = [f"3{word}.png", f"x/1{word}.png", f"x/2{word}.png"]
        assert [os.path.relpath(item.mask, tmp_path / "masks") for item in found] == wanted
        assert not any(item.depth or item.label for item in found)


def test_images_without_a_mask_are_named_and_depth_maps_may_be_arrays(tmp_path: Path) -> None:
    entry = pairs(tmp_path)
    draw(tmp_path / "images/4.jpg")
    (tmp_path / "masks/x/2.png").rename(tmp_path / "masks/x/9.png")
    refused(iterate_segmented, entry, "2 images")
    heard: list[str] = []
    found = list(read_segmented(entry, None, lambda kind, error: heard.append(f"{kind} {Path(str(error.path)).name}")))
    assert heard == [f"unmatched_files {name}" for name in ("4.jpg", "2.jpg", "9.png")] and len(kept(found)) == 2
    refused(iterate_segmented, f"{tmp_path / 'images'}:{tmp_path / 'mask'}", "folder")
    refused(iterate_segmented, tmp_path / "images", "'images'")
    draw(tmp_path / "masks/3.tif")
    refused(iterate_segmented, entry, r"3\.png")
    tmp_path = tmp_path / "rooms"
    draw(tmp_path / "rgb/1.png")
    (tmp_path / "depth").mkdir()
    np.save(tmp_path / "depth/1.npy", np.ones((9, 12)))
    (found,) = kept(iterate_depth_images([str(tmp_path)]))
    assert found.depth == str(tmp_path / "depth/1.npy") and found.source == str(tmp_path / "rgb/1.png")
    (tmp_path / "t.csv").write_text("image,depth\nrgb/1.png,depth/1.npy\nrgb/1.png,depth/2.npy\n")
    refused(iterate_depth_images, tmp_path / "t.csv", "line 3")


# -- classes of masks

ROADS = ClassMap(("sky", "road"), (0, 1), (2,))
COLORS = {"road": [1, 2, 3], "sky": [10, 20, 30], "z": [0, 0, 0]}
PAINTED = ClassMap(("sky", "road"), (0, 1), (2,), (((10, 20, 30), 0), ((1, 2, 3), 1), ((0, 0, 0), 2)))


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("classes.txt", "sky\nroad\n\n# more\nvoid\n", ROADS),
        ("classes.txt", "0 sky\n1: road\n2 = Ignore\n", ROADS),
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
    ],
)  # fmt: skip
def test_a_small_file_names_the_classes(name: str, text: str, wanted: ClassMap, tmp_path: Path) -> None:
    entry = pairs(tmp_path / "set/train")
    for place in ("set/train/masks", "set/train", "set"):
        (tmp_path / place / name).write_text(text)
        assert find_classes([entry]) == find_classes([str(tmp_path / "set/train")]) == wanted
        (tmp_path / place / name).unlink()
    assert find_classes([entry]) is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("classes.txt", "sky\nsky\n", "'sky'"),
        ("classes.txt", "# nothing\n", "class"),
        ("classes.txt", "1 2 300 sky\n", "300"),
        ("classes.txt", "1 2 3 sky\n1 2 3 road\n", "color"),
        ("classes.txt", "70000 sky\n1 road\n", "65,535"),
        ("classes.json", "{", "JSON"),
        ("classes.json", '{"names": []}', "classes"),
        ("classes.json", '{"classes": ["a"], "colours": [[1,2,3],[4,5,6]]}', "classes"),
        ("classes.json", '{"classes": ["a"], "void": "b"}', "void"),
        ("classes.json", '{"classes": ["a"], "viod": 3}', "'viod'"),
        ("classes.json", json.dumps([str(n) for n in range(300)]), "300"),
    ],
)  # fmt: skip
def test_an_invalid_file_of_classes_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RegardError, match=said) as error:
        read_classes(tmp_path / name)
    assert name in str(error.value)


def test_numbers_in_masks_become_classes_void_or_an_error() -> None:
    classes = ClassMap(("x", "sky"), (4, 1000), (0, 255))
    mask = np.array([[4, 1000, 0], [255, 4, 4]], dtype=np.uint16)
    assert classes.to_indices(mask).tolist() == [[0, 1, VOID], [VOID, 0, 0]]
    with pytest.raises(DataError, match=r"m\.png"):
        classes.to_indices(np.array([[9, 7, 4]], dtype=np.uint8), "m.png")
    assert classes.unknown_values([4, 3, 255]) == [3]
    assert infer_classes([3, 0, 255, 0]) == ClassMap(("0", "3"), (0, 3), (255,))
    assert infer_classes(range(250, 256)).void == () and infer_classes([0, 1]).void == ()
    assert infer_classes([0, 255, 256]).void == () and infer_classes([0, 1, 65535]).void == (65535,)
    assert infer_classes([0, 255]) == ClassMap(("0", "255"), (0, 255))
