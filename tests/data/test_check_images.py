"""Findings of `regard check` in image folders with deliberate errors, without false findings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.check.files import DepthSurvey, ImageSurvey, MaskSurvey, UnlabeledImageSurvey
from regard.data.check.report import Report
from regard.data.settings import DataSettings


def picture(seed: int, height: int = 12, width: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def clean(folder: Path, count: int = 104, first: int = 0) -> Path:
    for number in range(count):
        path = folder / ("cat" if number % 2 else "dog") / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(first + number).save(path)
    return folder


def found(report: Report) -> dict[str, tuple[str, int]]:
    return {finding.id: (finding.severity, finding.count) for finding in report.findings if finding.id != "classes"}


def classify(folder: Path, valid: Path | None = None) -> Report:
    return ImageSurvey.check([str(folder)], [] if valid is None else [str(valid)], None, DataSettings())


def test_clean_images_have_only_class_statistics(tmp_path: Path) -> None:
    report = classify(clean(tmp_path))
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
    report = classify(tmp_path)
    assert found(report) == wanted
    for finding in report.findings:
        if finding.id not in ("classes", "color_modes", "rare"):
            place = str(finding.locations[0])
            assert "z" in place or finding.id == "skipped"


def test_the_number_of_further_rotated_images_is_printed(tmp_path: Path) -> None:
    clean(tmp_path)
    for number in range(7):
        picture(920 + number).save(tmp_path / f"cat/z{number}.png", exif=sideways())
    report = classify(tmp_path)
    assert found(report) == {"exif_rotation": ("note", 7)} and "… and 2 more" in str(report)


def test_positions_count_past_files_that_are_broken(tmp_path: Path) -> None:
    clean(tmp_path)
    (tmp_path / "cat/000.png").write_bytes(b"")
    picture(3).save(tmp_path / "dog/zz.png")
    report = classify(tmp_path)
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
    assert survey.tallies["skipped"].count == 1


def test_images_in_both_sets_and_unknown_classes_are_found(tmp_path: Path) -> None:
    train, valid = clean(tmp_path / "train"), clean(tmp_path / "valid", 20, first=500)
    picture(4).save(valid / "dog/seen.bmp")
    picture(6).save(valid / "cat/seen.png")
    (valid / "cow").mkdir()
    picture(700).save(valid / "cow/a.png")
    report = classify(train, valid)
    assert found(report) == {
        "leak": ("error", 1), "leak_conflicting_labels": ("warning", 1), "unseen_classes": ("error", 1), "rare": ("warning", 1),
    }  # fmt: skip
    leak = next(finding for finding in report.findings if finding.id == "leak").locations[0]
    assert "seen.bmp" in leak.text and leak.text.endswith("004.png)") and report.counts["validation_images"] == 23


def test_rows_without_their_files_are_found(tmp_path: Path) -> None:
    clean(tmp_path / "p")
    rows = [f"p/{'cat' if n % 2 else 'dog'}/{n:03}.png,{n % 3}" for n in range(104)]
    (tmp_path / "t.csv").write_text("\n".join(["image,label", *rows, "p/gone.png,1", ",2"]) + "\n")
    report = ImageSurvey.check([str(tmp_path / "t.csv")], [], None, DataSettings())
    assert found(report) == {"missing": ("error", 1), "empty": ("warning", 1)}
    places = {finding.id: finding.locations[0] for finding in report.findings if finding.locations}
    assert places["missing"].line == 106 and places["empty"].line == 107 and report.counts["classes"] == 3


def test_images_alone_need_no_class(tmp_path: Path) -> None:
    report = UnlabeledImageSurvey.check([str(clean(tmp_path))], [], None, DataSettings())
    assert found(report) == {} and report.task == "draw" and not report.class_counts
    assert found(UnlabeledImageSurvey.check([str(clean(tmp_path / "few", 1))], [], None, DataSettings())) == {
        "few": ("error", 1)
    }


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


def segment(folder: Path, valid: Path | None = None) -> Report:
    return MaskSurvey.check([str(folder)], [] if valid is None else [str(valid)], None, DataSettings())


def test_clean_masks_have_class_and_void_statistics(tmp_path: Path) -> None:
    masked(tmp_path, values=(0, 1, 2, 255))
    report = segment(tmp_path)
    assert found(report) == {"void": ("note", 0)} and report.counts["classes"] == 3
    assert "void pixels (255): 2" in str(report) and set(report.class_counts[0].train) == {"0", "1", "2"}
    assert sum(report.class_counts[0].train.values()) < 104 * 12 * 16
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n255 x\n")
    assert "unknown_values" in found(segment(tmp_path))
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n2 tree\n3 bird\n255 void\n")
    report = segment(tmp_path)
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
    report = segment(tmp_path)
    assert found(report) == {
        "mask_size_mismatch": ("error", 1), "unknown_values": ("error", 1), "unmatched_files": ("error", 1),
        "decode_error": ("error", 2),
        "conflicting_labels": ("warning", 1),
    }  # fmt: skip
    places = {finding.id: finding.locations for finding in report.findings if finding.locations}
    assert (
        places["mask_size_mismatch"][0].text == "12 × 16, image 16 × 12"
        and "005.png" in places["mask_size_mismatch"][0].path
    )
    assert places["unknown_values"][0].text == "9, 44"
    assert (
        places["decode_error"][0].text == "the file is empty."
        and "the mask is a color image" in places["decode_error"][1].text
    )


def test_numbers_that_only_validation_has_are_found(tmp_path: Path) -> None:
    train, valid = masked(tmp_path / "a"), masked(tmp_path / "b", 3, (0, 1, 2, 7))
    for number in range(3):
        picture(600 + number).save(valid / f"images/{number:03}.png")
    assert found(segment(train, valid)) == {"unseen_classes": ("error", 1)}
    alone = masked(tmp_path / "c", values=(4,))
    assert found(segment(alone)) == {"single_class": ("error", 1)}
    mostly = masked(tmp_path / "d", values=(0, 1, 255, 255, 255, 255))
    assert found(segment(mostly)) == {"void": ("warning", 0)}
    assert found(segment(masked(tmp_path / "e", values=tuple(range(256))))) == {"too_many_classes": ("error", 256)}


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
    report = DepthSurvey.check([str(deep(tmp_path / "a"))], [], None, DataSettings())
    assert found(report) == {"known_depth": ("note", 0), "depth_range": ("note", 0)}
    assert "pixels with known depth: 89.9 %" in str(report) and "meters" in str(report)
    odd = DepthSurvey.check([str(tmp_path / "a")], [], None, DataSettings(depth_scale=1.0))
    assert found(odd)["depth_range"] == ("warning", 0) and "Is the unit correct?" in str(odd)
    assert found(DepthSurvey.check([str(deep(tmp_path / "b", known=0.3))], [], None, DataSettings()))[
        "known_depth"
    ] == (
        "warning",
        0,
    )


def test_depth_maps_that_do_not_fit_are_found(tmp_path: Path) -> None:
    folder = deep(tmp_path)
    for number, (height, width) in enumerate([(24, 32), (16, 12)]):
        Image.fromarray(np.full((height, width), 900, np.uint16)).save(folder / f"depth/{number:03}.png")
    Image.fromarray(np.zeros((12, 16), np.uint16)).save(folder / "depth/003.png")
    picture(1).convert("L").save(folder / "depth/004.png")
    report = DepthSurvey.check([str(folder)], [], None, DataSettings())
    assert found(report) == {
        "depth_size_mismatch": ("note", 1), "depth_aspect_ratio_mismatch": ("error", 1),
        "empty_depth_map": ("warning", 1), "decode_error": ("error", 1),
        "known_depth": ("note", 0), "depth_range": ("note", 0),
    }  # fmt: skip
