"""Findings of `regard check` in caption files with deliberate errors, without false findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.data.check.files import CaptionSurvey
from regard.data.check.report import Report
from regard.data.settings import DataSettings
from regard.runs.check import check

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def picture(seed: int, height: int = 12, width: int = 16) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8))


def row(number: int, **more: Any) -> dict[str, Any]:
    first, second = WORDS[number % 12], WORDS[number // 12 % 12]
    told = [
        f"a thing called {first} of {second} in {number // 144}",
        f"this is number {first} and {second} of set {number // 144}",
    ]
    return {"image": f"{number:03}.png", "captions": told, **more}


def clean(folder: Path, count: int = 104, first: int = 0) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        picture(number).save(folder / f"{number:03}.png")
    return [row(number) for number in range(first, first + count)]


def write(folder: Path, rows: list[Any]) -> str:
    text = "".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in rows)
    (folder / "captions.jsonl").write_text(text, encoding="utf-8")
    return str(folder)


def found(report: Report) -> dict[str, tuple[str, int]]:
    facts = ("captions_per_image", "vocabulary")
    return {one.id: (one.severity, one.count) for one in report.findings if one.id not in facts}


def looked(data: str, valid: str | None = None) -> Report:
    return CaptionSurvey.check([data], [valid] if valid else [], None, DataSettings())


def test_clean_captions_have_only_statistics(tmp_path: Path) -> None:
    report = looked(write(tmp_path, clean(tmp_path)))
    assert found(report) == {} and report.counts == {"images": 104, "captions": 208, "files": 1}
    said = str(report)
    assert (
        "captions (number of images with 2 captions: 104): 208" in said
        and "different words (0 of the words occur once): 23" in said
    )
    assert "caption words" in said and "height" in said and said.splitlines()[-1].startswith("Found no errors")
    assert report.as_dict()["lengths"]["caption_words"]["median"] == 9


def cut(folder: Path) -> None:
    (folder / "003.png").write_bytes((folder / "003.png").read_bytes()[:200])


def again(folder: Path) -> dict[str, Any]:
    picture(5).save(folder / "other.bmp")
    return {"image": "other.bmp", "captions": ["quite another thing"]}


SPOILT: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    ("cut off", lambda f, r: cut(f), {"decode_error": ("error", 1)}),
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


@pytest.mark.parametrize(("name", "spoil", "right"), SPOILT, ids=[one[0] for one in SPOILT])
def test_deliberate_errors_are_found_and_nothing_else(name: str, spoil: Any, right: Any, tmp_path: Path) -> None:
    rows = clean(tmp_path)
    spoil(tmp_path, rows)
    assert found(looked(write(tmp_path, rows))) == right


def test_leaked_images_are_reported_with_their_line(tmp_path: Path) -> None:
    rows = clean(tmp_path)
    rows[3]["captions"].append("A thing called one, of one in 0!")
    said = str(looked(write(tmp_path, rows)))
    assert f"{tmp_path}/captions.jsonl:4  003.png → A thing called one, of one in 0!" in said


def test_training_data_in_the_validation_set_is_found(tmp_path: Path) -> None:
    train, valid = tmp_path / "a b", tmp_path / "valid"
    rows, held = clean(train), clean(valid, 12, first=200)
    picture(7).save(valid / "200.png")
    picture(8).save(valid / "201.png")
    held[0]["captions"] = rows[7]["captions"]
    held[5]["captions"] = ["This is number one and one of set 0 !"]
    report = looked(write(train, rows), write(valid, held))
    leaks = [(one.severity, one.count, one.message) for one in report.findings if one.id == "leak"]
    assert [(severity, count) for severity, count, _ in leaks] == [
        ("error", 1),
        ("error", 1),
    ] and "other captions" in leaks[1][2]
    known = next(one for one in report.findings if one.id == "leak_caption")
    assert (known.severity, known.count) == ("warning", 3) and report.counts["validation_images"] == 12


def test_documents_count_captions_and_splits_are_checked_separately(tmp_path: Path) -> None:
    rows = clean(tmp_path, 12)
    images = [{"id": n, "file_name": one["image"]} for n, one in enumerate(rows)]
    told = [{"image_id": n, "caption": text} for n, one in enumerate(rows) for text in one["captions"]]
    told[4]["caption"] = told[5]["caption"] = "a thing of its own"
    (tmp_path / "coco.json").write_text(json.dumps({"images": images, "annotations": told}))
    report = check("caption", str(tmp_path / "coco.json"))
    assert found(report) == {"repeated_caption": ("warning", 1), "few": ("warning", 12)}  # type: ignore[arg-type]
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
