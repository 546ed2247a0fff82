"""Findings of `regard check` in images and point clouds with deliberate errors, without false findings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_files import found
from regard.data.check.files import CaptionSurvey, DepthSurvey, ImageSurvey, MaskSurvey, Survey, UnlabeledImageSurvey
from regard.data.check.point_clouds import CloudSurvey, LabeledCloudSurvey, count_outliers, degenerate_shape
from regard.data.check.report import Finding, Report
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import write_ply
from regard.data.settings import DataSettings
from regard.runs.check import check

Expected = dict[str, tuple[str, int]]
ONCE, NOTE, ERROR = ("warning", 1), ("note", 1), ("error", 1)
MANY = 104


def survey(
    kind: type[Survey], folder: Path | str, valid: Path | None = None, columns: Any = None, **settings: Any
) -> Report:
    return kind.check([str(folder)], [] if valid is None else [str(valid)], columns, DataSettings(**settings))


def finding(report: Report, name: str) -> Finding:
    return next(one for one in report.findings if one.id == name)


# -- clean data


def picture(seed: int, height: int = 12, width: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def points(seed: int, many: int = 80) -> np.ndarray:
    return np.random.default_rng(seed).random((many, 3)).astype(np.float32)


def put(path: Path, content: Any, **more: Any) -> None:
    """Write an image, or a point cloud with its labels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Image.Image):
        content.save(path, **more)
    else:
        labels = more.pop("labels", None)
        write_ply(path, PointCloud(content, **more), labels)


def images(folder: Path, count: int = MANY, first: int = 0) -> Path:
    for number in range(count):
        put(folder / ("cat" if number % 2 else "dog") / f"{number:03}.png", picture(first + number))
    return folder


def clouds(folder: Path, count: int = MANY, first: int = 0) -> Path:
    for number in range(count):
        put(folder / ("cube" if number % 2 else "ball") / f"{number:03}.ply", points(first + number))
    return folder


def labelled(folder: Path, count: int = MANY, first: int = 0) -> Path:
    for number in range(count):
        put(folder / f"{number:03}.ply", points(first + number), labels=np.arange(80) % 3)
    return folder


def mask(folder: Path, number: int, values: tuple[int, ...], height: int = 12, width: int = 16) -> None:
    made = np.random.default_rng(number).choice(values, (height, width)).astype(np.uint8)
    put(folder / f"masks/{number:03}.png", Image.fromarray(made))


def masked(folder: Path, count: int = MANY, values: tuple[int, ...] = (0, 1, 2), first: int = 0) -> Path:
    for number in range(count):
        put(folder / f"images/{number:03}.png", picture(first + number))
        mask(folder, number, values)
    return folder


def deep(folder: Path, scale: int = 3000, known: float = 0.9) -> Path:
    for number in range(MANY):
        random = np.random.default_rng(number)
        made = random.integers(scale // 2, 2 * scale, (12, 16)) * (random.random((12, 16)) < known)
        put(folder / f"images/{number:03}.png", picture(number))
        put(folder / f"depth/{number:03}.png", Image.fromarray(made.astype(np.uint16)))
    return folder


WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def row(number: int, **more: Any) -> dict[str, Any]:
    first, second, third = WORDS[number % 12], WORDS[number // 12 % 12], number // 144
    told = [f"a thing called {first} of {second} in {third}", f"this is number {first} and {second} of set {third}"]
    return {"image": f"{number:03}.png", "captions": told, **more}


def captioned(folder: Path, count: int = MANY, first: int = 0) -> list[dict[str, Any]]:
    for number in range(first, first + count):
        put(folder / f"{number:03}.png", picture(number))
    return [row(number) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("kind", "build", "counts", "classes", "sizes", "parts"),
    [
        (ImageSurvey, images, {"images": MANY, "entries": 1, "classes": 2}, {"cat": 52, "dog": 52}, {"width": 16, "height": 12},
         ("classes (cat: 52, dog: 52)",)),
        (UnlabeledImageSurvey, images, {"images": MANY, "entries": 1}, {}, {"width": 16, "height": 12}, ("draw: images 104",)),
        (CloudSurvey, clouds, {"point_clouds": MANY, "entries": 1, "classes": 2}, {"ball": 52, "cube": 52}, {"points": 80},
         ("classes (ball: 52, cube: 52)", "longest side")),
        (LabeledCloudSurvey, labelled, {"point_clouds": MANY, "entries": 1, "classes": 3},
         {"0": 27 * MANY, "1": 27 * MANY, "2": 26 * MANY}, {"points": 80}, ()),
        (CaptionSurvey, lambda f: write_rows(f, captioned(f)), {"images": MANY, "captions": 2 * MANY, "files": 1}, {},
         {"width": 16, "height": 12},
         ("captions (number of images with 2 captions: 104): 208", "different words (0 of the words occur once): 23",
          "caption words")),
    ],
)  # fmt: skip
def test_clean_files_have_only_statistics(
    kind: type[Survey], build: Any, counts: Any, classes: Any, sizes: Any, parts: tuple[str, ...], tmp_path: Path
) -> None:
    report = survey(kind, build(tmp_path))
    assert found(report) == {} and report.counts == counts
    assert [counted.train for counted in report.class_counts] == ([classes] if classes else [])
    assert all(part in str(report) for part in parts) and not report.errors
    measured = report.as_dict()["sizes"]
    for name, size in sizes.items():
        assert measured[name] == dict.fromkeys(("min", "q25", "median", "q75", "q99", "max"), size)
    assert 0.8 < measured.get("longest_side", {"max": 0.9})["max"] < 1


def test_generated_datasets_are_clean_and_have_a_validation_split() -> None:
    report = survey(CloudSurvey, "solids#samples=120,points=100")
    assert found(report) == {} and report.counts["validation_point_clouds"] == 500
    rooms = survey(LabeledCloudSurvey, "rooms#samples=101,points=400", Path("rooms#part=test,samples=9,points=400"))
    assert found(rooms) == {} and rooms.counts == {
        "point_clouds": 101, "entries": 1, "classes": 5, "validation_point_clouds": 9, "validation_entries": 1,
    }  # fmt: skip


# -- deliberate errors


def cut(folder: Path, name: str) -> None:
    picture(900, 60, 60).save(folder / name)
    (folder / name).write_bytes((folder / name).read_bytes()[:3000])


def sideways() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def clear() -> Image.Image:
    image = picture(910)
    image.putalpha(90)
    return image


def changed(seed: int, change: Callable[[np.ndarray], None]) -> np.ndarray:
    made = points(seed)
    change(made)
    return made


def flatten(made: np.ndarray) -> None:
    made[:, 2] = 0.5 * made[:, 0] - 0.2 * made[:, 1]


def saved(content: Any, name: str, **more: Any) -> Callable[[Path], None]:
    return lambda folder: put(folder / name, content, **more)


def relabel(folder: Path, labels: Callable[[int], np.ndarray]) -> None:
    for number in range(MANY):
        put(folder / f"{number:03}.ply", points(number), labels=labels(number))


def again(folder: Path) -> dict[str, Any]:
    picture(5).save(folder / "other.bmp")
    return {"image": "other.bmp", "captions": ["quite another thing"]}


SPOILED: list[tuple[type[Survey], str, Callable[[Path], Any], Expected]] = [
    (ImageSurvey, "cut off", lambda f: cut(f, "cat/zz.png"), {"decode_error": ERROR}),
    (ImageSurvey, "properties", lambda f: [put(f / name, content, **more) for name, content, more in (
        ("z.png", picture(901), {}), ("cat/z1.png", picture(902, 1, 1), {}), ("cat/z2.png", picture(903, 9, 200), {}),
        ("cat/z3.png", Image.new("RGB", (20, 20), "red"), {}), ("cat/z4.png", picture(904).convert("L"), {}),
        ("cat/z5.jpg", picture(905).convert("CMYK"), {}), ("cow/z.png", picture(907), {}), ("dog/z6.png", clear(), {}),
        ("cat/z7.webp", picture(908), {"save_all": True, "append_images": [picture(909)]}))],
     {"empty": ONCE, "small_image": ONCE, "aspect_ratio": ONCE, "single_color": ONCE, "rare": ONCE, "animated": NOTE,
      "transparent": NOTE, "color_modes": ("note", 4)}),
    (ImageSurvey, "no picture, hidden", lambda f: [(f / x).write_text("<html>") for x in ("dog/zz.jpg", ".x.png", "dog/a.txt")],
     {"decode_error": ERROR, "skipped": ("note", 2)}),
    (ImageSurvey, "sideways", lambda f: [saved(picture(920 + n), f"cat/z{n}.png", exif=sideways())(f) for n in range(7)],
     {"exif_rotation": ("note", 7)}),
    (ImageSurvey, "again", lambda f: [put(f / "cat/zz.bmp", picture(3)), put(f / "dog/zz.webp", picture(5), lossless=True)],
     {"duplicates": ONCE, "conflicting_labels": ONCE}),
    (CloudSurvey, "cut off", lambda f: (f / "cube/z.ply").write_bytes((f / "cube/001.ply").read_bytes()[:-5]),
     {"decode_error": ERROR}),
    (CloudSurvey, "no cloud", lambda f: ((f / "cube/z.xyz").write_text("<html>"), np.save(f / "cube/z.npy", np.zeros((0, 3)))),
     {"decode_error": ("error", 2)}),
    (CloudSurvey, "hidden", lambda f: [(f / x).write_text("x") for x in (".x.ply", "cube/a.md")], {"skipped": ("note", 2)}),
    (CloudSurvey, "properties", lambda f: [put(f / name, content, **more) for name, content, more in (
        ("z.ply", points(903), {}), ("cube/z.ply", points(904, 20), {}), ("cone/z.ply", points(910), {}),
        ("ball/z1.ply", changed(900, lambda made: made[:7].fill(np.nan)), {}), ("ball/z2.ply", changed(901, flatten), {}),
        ("ball/z3.ply", points(905)[:, :1].repeat(3, 1), {}), ("ball/z4.ply", np.full((80, 3), 7, np.float32), {}),
        ("ball/z5.ply", points(908), {"colors": np.zeros((80, 3), np.uint8)}),
        ("ball/z6.ply", points(909), {"normals": np.eye(3, dtype=np.float32)[np.arange(80) % 3]}))],
     {"empty": ONCE, "few_points": ONCE, "rare": ONCE, "non_finite": ONCE, "coplanar": ONCE, "collinear": ONCE,
      "single_location": ONCE, "partial_colors": ONCE, "partial_normals": ONCE}),
    (CloudSurvey, "many with few points", lambda f: [saved(points(500 + n, 9), f"cube/z{n}.ply")(f) for n in range(30)],
     {"few_points": ("error", 30)}),
    (CloudSurvey, "outside", saved(changed(902, lambda made: made[3].put([0, 1, 2], [40, 0, 0])), "ball/z.ply"),
     {"outliers": ONCE, "scale_outliers": ONCE}),
    (CloudSurvey, "units", lambda f: [put(f / f"ball/z{power}.ply", 10**power * points(906 + power)) for power in (3, -3)],
     {"scale_outliers": ("warning", 2)}),
    (CloudSurvey, "again", lambda f: [np.save(f / "cube/z.npy", points(3)), put(f / "cube/z.ply", points(5)[::-1]),
                                      put(f / "ball/z.ply", points(7))],
     {"duplicates": ("warning", 2), "conflicting_labels": ONCE}),
    (MaskSurvey, "one value", lambda f: masked(f, values=(4,)), {"single_class": ERROR}),
    (MaskSurvey, "mostly void", lambda f: masked(f, values=(0, 1, *[255] * 4)), {"void": ("warning", 0)}),
    (MaskSurvey, "photographs", lambda f: masked(f, values=tuple(range(256))), {"too_many_classes": ("error", 256)}),
    (DepthSurvey, "unknown", lambda f: deep(f, known=0.3), {"known_depth": ("warning", 0), "depth_range": ("note", 0)}),
    (DepthSurvey, "sizes", lambda f: [put(f / f"depth/{n:03}.png", Image.fromarray(np.full(size, value, np.uint16)))
                                      for n, (size, value) in enumerate([((24, 32), 9), ((16, 12), 9), ((12, 16), 0)])]
     + [put(f / "depth/004.png", picture(1).convert("L"))],
     {"depth_size_mismatch": NOTE, "depth_aspect_ratio_mismatch": ERROR, "empty_depth_map": ONCE, "decode_error": ERROR,
      "known_depth": ("note", 0), "depth_range": ("note", 0)}),
    (LabeledCloudSurvey, "a class file", lambda f: [
        (f / "classes.txt").write_text("floor\nwall\nlamp\nchair\nvoid\n"), put(f / "z.ply", points(902)),
        *(put(f / f"z{n}.ply", points(n), labels=np.array([n // 100, -1] * 40)) for n in (400, 900))],
     {"unknown_values": ERROR, "unlabeled": ERROR, "void": ("note", 0), "classes_without_samples": ONCE}),
    (LabeledCloudSurvey, "instances", lambda f: relabel(f, lambda n: np.arange(80) + 80 * n),
     {"too_many_classes": ("error", 80 * MANY)}),
    (LabeledCloudSurvey, "one label", lambda f: relabel(f, lambda n: np.zeros(80)), {"single_class": ERROR}),
    (LabeledCloudSurvey, "no labels", lambda f: relabel(f, lambda n: np.full(80, -1)), {"unlabeled": ("error", MANY)}),
]  # fmt: skip
BUILDERS: dict[type[Survey], Callable[[Path], Path]] = {
    ImageSurvey: images, CloudSurvey: clouds, MaskSurvey: masked, DepthSurvey: deep, LabeledCloudSurvey: labelled,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "spoil", "expected"), [(c[0], *c[2:]) for c in SPOILED], ids=[f"{c[0].__name__}-{c[1]}" for c in SPOILED]
)
def test_deliberate_errors_are_found_and_nothing_else(kind: Any, spoil: Any, expected: Any, tmp_path: Path) -> None:
    spoil(BUILDERS[kind](tmp_path))
    report = survey(kind, tmp_path)
    assert found(report) == expected
    for one in report.findings:
        if one.locations and one.id != "skipped" and kind in (ImageSurvey, CloudSurvey):
            assert "z" in str(one.locations[0])
    assert "exif_rotation" not in expected or "… and 2 more" in str(report)


SPOILED_CAPTIONS: list[tuple[str, Callable[[Path, list[Any]], Any], Expected]] = [
    ("cut off", lambda f, r: cut(f, "003.png"), {"decode_error": ERROR}),
    ("invalid rows", lambda f, r: r.extend([row(1, image="none.png"), "{oh\n", {"image": "001.png"}]),
     {"missing": ERROR, "format": ("error", 2)}),
    ("single captions", lambda f, r: [r[n].update(captions=captions) for n, captions in enumerate([
        ["a thing of its own", " "], ["a thing of itself"] * 2, ["dog"], ["on and " * 20], ["on and " * 200],
        ["a f\ufffdr of its own"], ["salt &amp; pepper"]])],
     {"empty": ONCE, "repeated_caption": ONCE, "single_word": ONCE, "length_outliers": ("warning", 2), "long": ONCE,
      "replacement_character": ONCE, "markup": NOTE}),
    ("blanks", lambda f, r: [one.update(captions=[""]) for one in r[:20]], {"empty": ("error", 20), "few": ("warning", 84)}),
    ("shared", lambda f, r: r[3]["captions"].append("A thing called one, of one in 0!"), {"shared_caption": ("note", 2)}),
    ("all alike", lambda f, r: [one.update(captions=["a thing"]) for one in r[:40]], {"shared_caption": ("warning", 40)}),
    ("again", lambda f, r: r.append(again(f)), {"repeated_image": ONCE}),
    ("grey", lambda f, r: picture(900).convert("L").save(f / "003.png"), {"color_modes": ("note", 2)}),
    ("few", lambda f, r: r.__delitem__(slice(9, None)), {"few": ("warning", 9)}),
    ("one", lambda f, r: r.__delitem__(slice(1, None)), {"few": ERROR}),
]  # fmt: skip


def write_rows(folder: Path, rows: list[Any]) -> str:
    lines = [one if isinstance(one, str) else json.dumps(one) + "\n" for one in rows]
    (folder / "captions.jsonl").write_text("".join(lines))
    return str(folder)


@pytest.mark.parametrize(
    ("spoil", "expected"), [case[1:] for case in SPOILED_CAPTIONS], ids=[case[0] for case in SPOILED_CAPTIONS]
)
def test_deliberate_errors_of_captions_are_found_and_nothing_else(spoil: Any, expected: Any, tmp_path: Path) -> None:
    rows = captioned(tmp_path)
    spoil(tmp_path, rows)
    report = survey(CaptionSurvey, write_rows(tmp_path, rows))
    assert found(report) == expected
    if expected.get("shared_caption") == ("note", 2):
        assert f"{tmp_path}/captions.jsonl:4  003.png → A thing called one, of one in 0!" in str(report)


def test_positions_count_past_files_that_are_broken_and_nothing_is_counted_twice(tmp_path: Path) -> None:
    images(tmp_path)
    (tmp_path / "cat/000.png").write_bytes(b"")
    (tmp_path / "cat/notes.txt").write_text("x")
    picture(3).save(tmp_path / "dog/zz.png")
    report = survey(ImageSurvey, tmp_path)
    place = finding(report, "conflicting_labels").locations[0]
    other = os.path.join(tmp_path, "cat", "003.png")
    assert place.text == f"dog/zz.png → dog  (also in {other})" and place.path == str(tmp_path)
    broken = finding(report, "decode_error").locations[0]
    assert broken.path == str(tmp_path / "cat/000.png") and broken.text == "the file is empty."
    assert finding(report, "skipped").count == 1  # though files are read again for previews


def test_rows_without_their_files_are_found(tmp_path: Path) -> None:
    images(tmp_path / "p")
    rows = [f"p/{'cat' if n % 2 else 'dog'}/{n:03}.png,{n % 3}" for n in range(MANY)]
    (tmp_path / "t.csv").write_text("\n".join(["image,label", *rows, "p/gone.png,1", ",2"]) + "\n")
    report = survey(ImageSurvey, tmp_path / "t.csv")
    assert found(report) == {"missing": ERROR, "empty": ONCE} and report.counts["classes"] == 3
    assert [finding(report, name).locations[0].line for name in ("missing", "empty")] == [106, 107]


def test_images_and_point_clouds_in_both_sets_and_unknown_classes_are_found(tmp_path: Path) -> None:
    train, valid = images(tmp_path / "train"), images(tmp_path / "valid", 20, first=500)
    for name, seed in (("dog/seen.bmp", 4), ("cat/seen.png", 6), ("cow/a.png", 700)):
        put(valid / name, picture(seed))
    report = survey(ImageSurvey, train, valid)
    expected = {"leak": ERROR, "leak_conflicting_labels": ONCE, "unseen_classes": ERROR, "rare": ONCE}
    assert found(report) == expected
    leak = finding(report, "leak").locations[0]
    assert "seen.bmp" in leak.text and leak.text.endswith("004.png)") and report.counts["validation_images"] == 23
    train, valid = clouds(tmp_path / "clouds"), clouds(tmp_path / "more", 20, first=1000)
    put(valid / "ball/same.ply", points(2)[::-1]), put(valid / "ball/other.ply", points(3))
    put(valid / "cone/new.ply", points(5000))
    assert found(survey(CloudSurvey, train, valid)) == expected


# -- masks and depth maps


def test_clean_masks_have_class_and_void_statistics(tmp_path: Path) -> None:
    masked(tmp_path, values=(0, 1, 2, 255))
    report = survey(MaskSurvey, tmp_path)
    assert found(report) == {"void": ("note", 0)} and report.counts["classes"] == 3
    assert "void pixels (255): 2" in str(report) and set(report.class_counts[0].train) == {"0", "1", "2"}
    assert sum(report.class_counts[0].train.values()) < MANY * 12 * 16
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n255 x\n")
    assert found(survey(MaskSurvey, tmp_path)) == {"void": ("note", 0), "classes_without_samples": ONCE}
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n2 tree\n3 bird\n255 void\n")
    report = survey(MaskSurvey, tmp_path)
    assert found(report) == {"void": ("note", 0), "classes_without_samples": ONCE} and "bird" in str(report)


def test_masks_that_do_not_fit_are_found(tmp_path: Path) -> None:
    masked(tmp_path)
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    mask(tmp_path, 5, (0, 1), height=16, width=12)
    mask(tmp_path, 6, (0, 9, 44))
    (tmp_path / "masks/007.png").unlink()
    (tmp_path / "masks/008.png").write_bytes(b"")
    picture(3).save(tmp_path / "masks/009.png")
    picture(10).save(tmp_path / "images/011.png")
    report = survey(MaskSurvey, tmp_path)
    assert found(report) == {
        "mask_size_mismatch": ERROR, "unknown_values": ERROR, "unmatched_files": ERROR, "decode_error": ("error", 2),
        "conflicting_labels": ONCE,
    }  # fmt: skip
    places = {one.id: one.locations for one in report.findings if one.locations}
    (mismatch,), (empty, colored) = places["mask_size_mismatch"], places["decode_error"]
    assert mismatch.text == "12 × 16, image 16 × 12" and "005.png" in mismatch.path
    assert places["unknown_values"][0].text == "9, 44"
    assert empty.text == "the file is empty." and "the mask is a color image" in colored.text


def test_depth_is_reported_with_its_range_and_unknown_fraction(tmp_path: Path) -> None:
    report = survey(DepthSurvey, deep(tmp_path / "a"))
    assert found(report) == {"known_depth": ("note", 0), "depth_range": ("note", 0)}
    assert "pixels with known depth: 89.9 %" in str(report) and "meters" in str(report)
    odd = survey(DepthSurvey, tmp_path / "a", depth_scale=1.0)
    assert found(odd)["depth_range"] == ("warning", 0) and "Is the unit correct?" in str(odd)


# -- captions


def test_leaked_images_and_captions_are_found(tmp_path: Path) -> None:
    train, valid = tmp_path / "a b", tmp_path / "valid"
    rows, held = captioned(train), captioned(valid, 12, first=200)
    picture(7).save(valid / "200.png")
    picture(8).save(valid / "201.png")
    held[0]["captions"] = rows[7]["captions"]
    held[5]["captions"] = ["This is number one and one of set 0 !"]
    report = survey(CaptionSurvey, write_rows(train, rows), Path(write_rows(valid, held)))
    leaks = [(one.severity, one.count, one.message) for one in report.findings if one.id == "leak"]
    assert [leak[:2] for leak in leaks] == [ERROR] * 2 and "other captions" in leaks[1][2]
    assert found(report)["leak_caption"] == ("warning", 3) and report.counts["validation_images"] == 12


def test_documents_count_captions_and_splits_are_checked_separately(tmp_path: Path) -> None:
    rows = captioned(tmp_path, 12)
    listed = [{"id": n, "file_name": one["image"]} for n, one in enumerate(rows)]
    told = [{"image_id": n, "caption": text} for n, one in enumerate(rows) for text in one["captions"]]
    told[4]["caption"] = told[5]["caption"] = "a thing of its own"
    (tmp_path / "coco.json").write_text(json.dumps({"images": listed, "annotations": told}))
    report = check("caption", str(tmp_path / "coco.json"))
    assert found(report) == {"repeated_caption": ONCE, "few": ("warning", 12)}
    assert f"{tmp_path}/coco.json, caption 5  a thing of its own" in str(report)
    for number, one in enumerate(rows):
        one["split"] = "train" if number < 8 else "dev"
    folder = write_rows(tmp_path, rows)
    report = check("caption", f"{folder}#train", valid=f"{folder}#dev", out=tmp_path / "out")
    assert report.counts["images"] == 8 and report.counts["validation_images"] == 4
    assert [Path(path).name for path in report.figures] == ["lengths.png"]
    report_text = str(check("caption", folder))
    assert "several splits (train 8, dev 4)" in report_text and "#train" in report_text
    assert "unknown split 'dve'. Available splits: train, dev." in str(check("caption", f"{folder}#dve"))


# -- points with labels, and shapes


def test_the_same_points_with_other_labels_are_a_contradiction(tmp_path: Path) -> None:
    train, valid = labelled(tmp_path / "train"), labelled(tmp_path / "valid", 9, first=1000)
    put(train / "z.ply", points(5), labels=np.arange(80) % 2)
    order = np.random.default_rng(0).permutation(80)
    put(train / "zz.ply", points(6)[order], labels=(np.arange(80) % 3)[order])
    put(valid / "z.ply", points(7), labels=np.arange(80) % 2 + 3)
    assert found(survey(LabeledCloudSurvey, train, valid)) == {
        "conflicting_labels": ONCE, "duplicates": ONCE, "leak_conflicting_labels": ONCE, "unseen_classes": ("error", 2),
    }  # fmt: skip


def test_a_column_named_by_the_user_is_checked(tmp_path: Path) -> None:
    for number in range(3):
        rows = np.concatenate([points(number), np.full((80, 6), 0.5), np.arange(80)[:, None] % 2], axis=1)
        np.savetxt(tmp_path / f"{number}.txt", rows, fmt="%.5f")
    assert found(survey(LabeledCloudSurvey, tmp_path))["decode_error"] == ("error", 3)  # unnamed columns are ambiguous
    report = survey(LabeledCloudSurvey, tmp_path, columns={"label": "9"})
    assert report.class_counts[0].train == {"0": 120, "1": 120}


def test_statistics_do_not_depend_on_size_and_position() -> None:
    for factor, shift in ((1, 0), (1e-3, 0), (1e4, 0), (1, 30)):
        cube = factor * points(1, 500) + np.float32(shift)
        assert degenerate_shape(cube) == ""
        flat_one = cube.copy()
        flat_one[:, 1] = shift
        assert degenerate_shape(flat_one) == "coplanar"
        assert degenerate_shape(cube[:, :1].repeat(3, axis=1)) == "collinear"
        assert degenerate_shape(np.full((10, 3), shift + factor, np.float32)) == "single_location"
    assert count_outliers(points(1, 1000) * np.float32([50, 1, 1])) == 0  # elongated
    assert count_outliers(np.concatenate([points(1, 1000), [[20, 0, 0], [0, 30, 0]]]).astype(np.float32)) == 2
    assert count_outliers(np.zeros((5, 3), np.float32)) == 0
