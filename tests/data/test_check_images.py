"""Findings of `regard check` in images with classes, masks, depth maps or captions, with deliberate errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_files import kinds
from regard.data.check.files import CaptionSurvey, DepthSurvey, ImageSurvey, MaskSurvey, Survey, UnlabeledImageSurvey
from regard.data.check.report import Report
from regard.data.settings import DataSettings
from regard.runs.check import check


def picture(seed: int, height: int = 12, width: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def clean(folder: Path, count: int = 104, first: int = 0) -> Path:
    for number in range(count):
        path = folder / ("cat" if number % 2 else "dog") / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(first + number).save(path)
    return folder


def found(report: Report) -> dict[str, tuple[str, int]]:
    """Findings except statistics."""
    statistics = ("classes", "captions_per_image", "vocabulary")
    return {name: value for name, value in kinds(report).items() if name not in statistics}


def survey(kind: type[Survey], folder: Path | str, valid: Path | str | None = None, **settings: Any) -> Report:
    return kind.check([str(folder)], [] if valid is None else [str(valid)], None, DataSettings(**settings))


def test_clean_images_have_only_class_statistics(tmp_path: Path) -> None:
    report = survey(ImageSurvey, clean(tmp_path))
    assert found(report) == {} and report.counts == {"images": 104, "entries": 1, "classes": 2}
    assert report.class_counts[0].train == {"cat": 52, "dog": 52}
    said = str(report)
    assert "classes (cat: 52, dog: 52)" in said and said.splitlines()[-1].startswith("Found no errors")
    assert report.as_dict()["sizes"]["width"] == dict.fromkeys(("min", "q25", "median", "q75", "q99", "max"), 16)
    assert "height" in said and report.as_dict()["sizes"]["height"]["median"] == 12


def cut(folder: Path) -> None:
    path = folder / "cat/zz.png"
    picture(900, 60, 60).save(path)
    path.write_bytes(path.read_bytes()[:3000])


def save(image: Image.Image, name: str, **how: Any) -> Any:
    return lambda folder: image.save(folder / name, **how)


def sideways() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


SPOILT: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    ("cut off", cut, {"decode_error": ("error", 1)}),
    ("no picture", lambda folder: (folder / "dog/zz.jpg").write_text("<html>"), {"decode_error": ("error", 1)}),
    ("hidden", lambda folder: [(folder / name).write_text("x") for name in (".x.png", "dog/a.txt")], {"skipped": ("note", 2)}),
    ("beside", save(picture(901), "zz.png"), {"empty": ("warning", 1)}),
    ("one pixel", save(picture(902, 1, 1), "cat/zz.png"), {"small_image": ("warning", 1)}),
    ("stripe", save(picture(903, 9, 200), "cat/zz.png"), {"aspect_ratio": ("warning", 1)}),
    ("blank", save(Image.new("RGB", (20, 20), "red"), "cat/zz.png"), {"single_color": ("warning", 1)}),
    ("grey", save(picture(904).convert("L"), "cat/zz.png"), {"color_modes": ("note", 2)}),
    ("cmyk", save(picture(905).convert("CMYK"), "cat/zz.jpg"), {"color_modes": ("note", 2)}),
    ("sideways", save(picture(906), "cat/zz.png", exif=sideways()), {"exif_rotation": ("note", 1)}),
    ("again", lambda folder: picture(3).save(folder / "cat/zz.bmp"), {"duplicates": ("warning", 1)}),
    (
        "otherwise", lambda folder: picture(3).save(folder / "dog/zz.webp", lossless=True),
        {"conflicting_labels": ("warning", 1)},
    ),
    ("rare", lambda folder: ((folder / "cow").mkdir(), picture(907).save(folder / "cow/a.png")), {"rare": ("warning", 1)}),
    ("moving", save(picture(908), "cat/z.webp", save_all=True, append_images=[picture(909)]), {"animated": ("note", 1)}),
    ("clear", lambda folder: clear(folder), {"transparent": ("note", 1), "color_modes": ("note", 2)}),
]  # fmt: skip


def clear(folder: Path) -> None:
    image = picture(910)
    image.putalpha(90)
    image.save(folder / "dog/zz.png")


@pytest.mark.parametrize(("spoil", "wanted"), [case[1:] for case in SPOILT], ids=[case[0] for case in SPOILT])
def test_deliberate_errors_are_found_and_nothing_else(
    spoil: Any, wanted: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    spoil(clean(tmp_path))
    report = survey(ImageSurvey, tmp_path)
    assert found(report) == wanted
    for finding in report.findings:
        if finding.id not in ("classes", "color_modes", "rare"):
            place = str(finding.locations[0])
            assert "z" in place or finding.id == "skipped"


def test_the_number_of_further_rotated_images_is_printed(tmp_path: Path) -> None:
    clean(tmp_path)
    for number in range(7):
        picture(920 + number).save(tmp_path / f"cat/z{number}.png", exif=sideways())
    report = survey(ImageSurvey, tmp_path)
    assert found(report) == {"exif_rotation": ("note", 7)} and "… and 2 more" in str(report)


def test_positions_count_past_files_that_are_broken(tmp_path: Path) -> None:
    clean(tmp_path)
    (tmp_path / "cat/000.png").write_bytes(b"")
    picture(3).save(tmp_path / "dog/zz.png")
    report = survey(ImageSurvey, tmp_path)
    place = next(finding for finding in report.findings if finding.id == "conflicting_labels").locations[0]
    other = os.path.join(tmp_path, "cat", "003.png")
    assert place.text == f"dog/zz.png → dog  (also in {other})" and place.path == str(tmp_path)
    broken = next(finding for finding in report.findings if finding.id == "decode_error").locations[0]
    assert broken.path == str(tmp_path / "cat/000.png") and broken.text == "the file is empty."


def test_reading_again_for_positions_counts_nothing_twice(tmp_path: Path) -> None:
    (clean(tmp_path, 4) / "cat/notes.txt").write_text("x")
    survey = ImageSurvey([str(tmp_path)])
    survey.read()
    assert len(survey.locations([0, 3])) == 2 and survey.location_name(3).endswith("002.png")
    assert survey.tallies["skipped"] == 1


def test_images_in_both_sets_and_unknown_classes_are_found(tmp_path: Path) -> None:
    train, valid = clean(tmp_path / "train"), clean(tmp_path / "valid", 20, first=500)
    picture(4).save(valid / "dog/seen.bmp")
    picture(6).save(valid / "cat/seen.png")
    (valid / "cow").mkdir()
    picture(700).save(valid / "cow/a.png")
    report = survey(ImageSurvey, train, valid)
    assert found(report) == {
        "leak": ("error", 1), "leak_conflicting_labels": ("warning", 1), "unseen_classes": ("error", 1), "rare": ("warning", 1),
    }  # fmt: skip
    leak = next(finding for finding in report.findings if finding.id == "leak").locations[0]
    assert "seen.bmp" in leak.text and leak.text.endswith("004.png)") and report.counts["validation_images"] == 23


def test_rows_without_their_files_are_found(tmp_path: Path) -> None:
    clean(tmp_path / "p")
    rows = [f"p/{'cat' if n % 2 else 'dog'}/{n:03}.png,{n % 3}" for n in range(104)]
    (tmp_path / "t.csv").write_text("\n".join(["image,label", *rows, "p/gone.png,1", ",2"]) + "\n")
    report = survey(ImageSurvey, tmp_path / "t.csv")
    assert found(report) == {"missing": ("error", 1), "empty": ("warning", 1)}
    places = {finding.id: finding.locations[0] for finding in report.findings if finding.locations}
    assert places["missing"].line == 106 and places["empty"].line == 107 and report.counts["classes"] == 3


def test_images_alone_need_no_class(tmp_path: Path) -> None:
    report = survey(UnlabeledImageSurvey, clean(tmp_path))
    assert found(report) == {} and report.task == "draw" and not report.class_counts
    assert found(survey(UnlabeledImageSurvey, clean(tmp_path / "few", 1))) == {"few": ("error", 1)}


# -- masks


def masked(folder: Path, count: int = 104, values: tuple[int, ...] = (0, 1, 2)) -> Path:
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        picture(number).save(folder / f"images/{number:03}.png")
        mask(folder, number, values)
    return folder


def mask(folder: Path, number: int, values: tuple[int, ...], height: int = 12, width: int = 16) -> None:
    made = np.random.default_rng(number).choice(values, (height, width)).astype(np.uint8)
    Image.fromarray(made).save(folder / f"masks/{number:03}.png")


def test_clean_masks_have_class_and_void_statistics(tmp_path: Path) -> None:
    masked(tmp_path, values=(0, 1, 2, 255))
    report = survey(MaskSurvey, tmp_path)
    assert found(report) == {"void": ("note", 0)} and report.counts["classes"] == 3
    assert "void pixels (255): 2" in str(report) and set(report.class_counts[0].train) == {"0", "1", "2"}
    assert sum(report.class_counts[0].train.values()) < 104 * 12 * 16
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n255 x\n")
    assert "unknown_values" in found(survey(MaskSurvey, tmp_path))
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n2 tree\n3 bird\n255 void\n")
    report = survey(MaskSurvey, tmp_path)
    assert found(report) == {"void": ("note", 0), "classes_without_samples": ("warning", 1)} and "bird" in str(report)


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
        "mask_size_mismatch": ("error", 1), "unknown_values": ("error", 1), "unmatched_files": ("error", 1),
        "decode_error": ("error", 2),
        "conflicting_labels": ("warning", 1),
    }  # fmt: skip
    places = {finding.id: finding.locations for finding in report.findings if finding.locations}
    (mismatch,), (empty, colored) = places["mask_size_mismatch"], places["decode_error"]
    assert mismatch.text == "12 × 16, image 16 × 12" and "005.png" in mismatch.path
    assert places["unknown_values"][0].text == "9, 44"
    assert empty.text == "the file is empty." and "the mask is a color image" in colored.text


def test_numbers_that_only_validation_has_are_found(tmp_path: Path) -> None:
    train, valid = masked(tmp_path / "a"), masked(tmp_path / "b", 3, (0, 1, 2, 7))
    for number in range(3):
        picture(600 + number).save(valid / f"images/{number:03}.png")
    assert found(survey(MaskSurvey, train, valid)) == {"unseen_classes": ("error", 1)}
    alone = masked(tmp_path / "c", values=(4,))
    assert found(survey(MaskSurvey, alone)) == {"single_class": ("error", 1)}
    mostly = masked(tmp_path / "d", values=(0, 1, 255, 255, 255, 255))
    assert found(survey(MaskSurvey, mostly)) == {"void": ("warning", 0)}
    assert found(survey(MaskSurvey, masked(tmp_path / "e", values=tuple(range(256))))) == {
        "too_many_classes": ("error", 256)
    }


# -- depth


def deep(folder: Path, scale: int = 3000, known: float = 0.9) -> Path:
    for name in ("images", "depth"):
        (folder / name).mkdir(parents=True)
    for number in range(104):
        picture(number).save(folder / f"images/{number:03}.png")
        random = np.random.default_rng(number)
        made = random.integers(scale // 2, 2 * scale, (12, 16)) * (random.random((12, 16)) < known)
        Image.fromarray(made.astype(np.uint16)).save(folder / f"depth/{number:03}.png")
    return folder


def test_depth_is_reported_with_its_range_and_unknown_fraction(tmp_path: Path) -> None:
    report = survey(DepthSurvey, deep(tmp_path / "a"))
    assert found(report) == {"known_depth": ("note", 0), "depth_range": ("note", 0)}
    assert "pixels with known depth: 89.9 %" in str(report) and "meters" in str(report)
    odd = survey(DepthSurvey, tmp_path / "a", depth_scale=1.0)
    assert found(odd)["depth_range"] == ("warning", 0) and "Is the unit correct?" in str(odd)
    assert found(survey(DepthSurvey, deep(tmp_path / "b", known=0.3)))["known_depth"] == ("warning", 0)


def test_depth_maps_that_do_not_fit_are_found(tmp_path: Path) -> None:
    folder = deep(tmp_path)
    for number, (height, width) in enumerate([(24, 32), (16, 12)]):
        Image.fromarray(np.full((height, width), 900, np.uint16)).save(folder / f"depth/{number:03}.png")
    Image.fromarray(np.zeros((12, 16), np.uint16)).save(folder / "depth/003.png")
    picture(1).convert("L").save(folder / "depth/004.png")
    report = survey(DepthSurvey, folder)
    assert found(report) == {
        "depth_size_mismatch": ("note", 1), "depth_aspect_ratio_mismatch": ("error", 1),
        "empty_depth_map": ("warning", 1), "decode_error": ("error", 1),
        "known_depth": ("note", 0), "depth_range": ("note", 0),
    }  # fmt: skip


# -- captions

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def row(number: int, **more: Any) -> dict[str, Any]:
    first, second = WORDS[number % 12], WORDS[number // 12 % 12]
    told = [
        f"a thing called {first} of {second} in {number // 144}",
        f"this is number {first} and {second} of set {number // 144}",
    ]
    return {"image": f"{number:03}.png", "captions": told, **more}


def captioned(folder: Path, count: int = 104, first: int = 0) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(number).save(folder / f"{number:03}.png")
    return [row(number) for number in range(first, first + count)]


def write(folder: Path, rows: list[Any]) -> str:
    text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in rows)
    (folder / "captions.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


def test_clean_captions_have_only_statistics(tmp_path: Path) -> None:
    report = survey(CaptionSurvey, write(tmp_path, captioned(tmp_path)))
    assert found(report) == {} and report.counts == {"images": 104, "captions": 208, "files": 1}
    said = str(report)
    assert "captions (number of images with 2 captions: 104): 208" in said
    assert "different words (0 of the words occur once): 23" in said
    assert "caption words" in said and "height" in said and said.splitlines()[-1].startswith("Found no errors")
    assert report.as_dict()["lengths"]["caption_words"]["median"] == 9


def cut_image(folder: Path) -> None:
    (folder / "003.png").write_bytes((folder / "003.png").read_bytes()[:200])


def again(folder: Path) -> dict[str, Any]:
    picture(5).save(folder / "other.bmp")
    return {"image": "other.bmp", "captions": ["quite another thing"]}


SPOILED_CAPTIONS: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    ("cut off", lambda f, r: cut_image(f), {"decode_error": ("error", 1)}),
    ("missing", lambda f, r: r.append(row(1, image="none.png")), {"missing": ("error", 1)}),
    ("no JSON", lambda f, r: r.append("{oh\n"), {"format": ("error", 1)}),
    ("no key", lambda f, r: r.append({"image": "001.png"}), {"format": ("error", 1)}),
    ("blank", lambda f, r: r[3].update(captions=["a thing of its own", " "]), {"empty": ("warning", 1)}),
    ("blanks", lambda f, r: [one.update(captions=[""]) for one in r[:20]], {"empty": ("error", 20), "few": ("warning", 84)}),
    ("twice", lambda f, r: r[3].update(captions=["a thing of its own"] * 2), {"repeated_caption": ("warning", 1)}),
    ("shared", lambda f, r: r[3]["captions"].append("A thing called one, of one in 0!"), {"shared_caption": ("note", 2)}),
    ("all alike", lambda f, r: [one.update(captions=["a thing"]) for one in r[:40]], {"shared_caption": ("warning", 40)}),
    ("short", lambda f, r: r[3].update(captions=["dog"]), {"single_word": ("warning", 1)}),
    ("odd", lambda f, r: r[3].update(captions=["on and " * 20]), {"length_outliers": ("warning", 1)}),
    ("long", lambda f, r: r[3].update(captions=["on and " * 200]), {"length_outliers": ("warning", 1), "long": ("warning", 1)}),
    ("lost", lambda f, r: r[3].update(captions=["a f\ufffdr of its own"]), {"replacement_character": ("warning", 1)}),
    ("markup", lambda f, r: r[3].update(captions=["salt &amp; pepper"]), {"markup": ("note", 1)}),
    ("again", lambda f, r: r.append(again(f)), {"repeated_image": ("warning", 1)}),
    ("grey", lambda f, r: picture(900).convert("L").save(f / "003.png"), {"color_modes": ("note", 2)}),
    ("few", lambda f, r: r.__delitem__(slice(9, None)), {"few": ("warning", 9)}),
    ("one", lambda f, r: r.__delitem__(slice(1, None)), {"few": ("error", 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "spoil", "right"), SPOILED_CAPTIONS, ids=[one[0] for one in SPOILED_CAPTIONS])
def test_deliberate_errors_of_captions_are_found_and_nothing_else(
    name: str, spoil: Any, right: Any, tmp_path: Path
) -> None:
    rows = captioned(tmp_path)
    spoil(tmp_path, rows)
    assert found(survey(CaptionSurvey, write(tmp_path, rows))) == right


def test_leaked_images_are_reported_with_their_line(tmp_path: Path) -> None:
    rows = captioned(tmp_path)
    rows[3]["captions"].append("A thing called one, of one in 0!")
    said = str(survey(CaptionSurvey, write(tmp_path, rows)))
    assert f"{tmp_path}/captions.jsonl:4  003.png → A thing called one, of one in 0!" in said


def test_leaked_images_and_captions_are_found(tmp_path: Path) -> None:
    train, valid = tmp_path / "a b", tmp_path / "valid"
    rows, held = captioned(train), captioned(valid, 12, first=200)
    picture(7).save(valid / "200.png")
    picture(8).save(valid / "201.png")
    held[0]["captions"] = rows[7]["captions"]
    held[5]["captions"] = ["This is number one and one of set 0 !"]
    report = survey(CaptionSurvey, write(train, rows), write(valid, held))
    leaks = [(one.severity, one.count, one.message) for one in report.findings if one.id == "leak"]
    assert [leak[:2] for leak in leaks] == [("error", 1)] * 2 and "other captions" in leaks[1][2]
    known = next(one for one in report.findings if one.id == "leak_caption")
    assert (known.severity, known.count) == ("warning", 3) and report.counts["validation_images"] == 12


def test_documents_count_captions_and_splits_are_checked_separately(tmp_path: Path) -> None:
    rows = captioned(tmp_path, 12)
    images = [{"id": n, "file_name": one["image"]} for n, one in enumerate(rows)]
    told = [{"image_id": n, "caption": text} for n, one in enumerate(rows) for text in one["captions"]]
    told[4]["caption"] = told[5]["caption"] = "a thing of its own"
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": told}))
    report = check("caption", str(tmp_path / "coco.json"))
    assert found(report) == {"repeated_caption": ("warning", 1), "few": ("warning", 12)}
    assert f"{tmp_path}/coco.json, caption 5  a thing of its own" in str(report)
    for number, one in enumerate(rows):
        one["split"] = "train" if number < 8 else "dev"
    folder = write(tmp_path, rows)
    report = check("caption", f"{folder}#train", valid=f"{folder}#dev", out=tmp_path / "out")
    assert report.counts["images"] == 8 and report.counts["validation_images"] == 4
    assert [Path(path).name for path in report.figures] == ["lengths.png"]
    report_text = str(check("caption", folder))
    assert "several splits (train 8, dev 4)" in report_text and "#train" in report_text
    assert "unknown split 'dve'. Available splits: train, dev." in str(check("caption", f"{folder}#dve"))
