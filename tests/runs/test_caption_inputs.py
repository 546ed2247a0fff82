"""Inputs of captioners: caption files for prediction, incomplete rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from test_captions import FORMS, SAID, coco, each, karpathy, lines
from test_captions import place as place

from caption_album import PRESET, SETTINGS, SIZES, album_in, captioner
from conftest import Cli, Done
from regard.data.images.captions import CAPTIONED, read_captions
from regard.data.text.tables import SkippedRow


@pytest.fixture
def model(tmp_path: Path) -> str:
    """Checkpoint of an untrained model."""
    return str(captioner(["a red thing"], **{**SIZES, "max_length": 4}).save(tmp_path / "a model"))


def named(path: Path) -> list[str]:
    found = CAPTIONED.inputs(str(path), None)
    return [Path(item.source).name for item in found if not isinstance(item, SkippedRow)]


def answered(done: Done) -> list[str]:
    """Names of the images with a prediction, in output order."""
    assert done.code == 0, done.err
    return [Path(json.loads(line)["input"]).name for line in done.out.split("\n")[:-1]]


@pytest.mark.parametrize("form", FORMS)
def test_every_image_of_a_file_is_captioned_once(form: str, place: Path, model: str, cli: Cli) -> None:
    FORMS[form](place / form)
    assert sorted(named(place / form)) == sorted(SAID)
    assert sorted(answered(cli("predict", model, str(place / form), "--json"))) == sorted(SAID)


def test_a_split_is_predicted_and_without_one_all_rows_are(place: Path, model: str, cli: Cli) -> None:
    whole = karpathy()
    for image, part in zip(whole["images"], ("train", "val", "val"), strict=True):
        image["split"] = part
    (place / "k.json").write_text(json.dumps(whole))
    for part, count in (("", 3), ("#val", 2), ("#train", 1), ("#train+val", 3)):
        assert len(answered(cli("predict", model, f"{place}/k.json{part}", "--json"))) == count, part
    done = cli("predict", model, f"{place}/k.json#trian")
    assert done.code == 2 and "unknown split 'trian'. Available splits: train, val." in done.err and not done.out
    (place / "captions.json").write_text(json.dumps(whole))
    assert len(answered(cli("predict", model, f"{place}#val", "--json"))) == 2
    done = cli("predict", model, f"{place}/none.json#val")
    assert done.code == 2 and "none.json: file not found" in done.err


def test_captions_are_optional_for_prediction(place: Path, model: str, cli: Cli) -> None:
    asked = {**coco(), "annotations": [{"image_id": 10, "bbox": [1, 2, 3, 4]}]}
    (place / "info.json").write_text(json.dumps(asked))
    assert named(place / "info.json") == list(SAID), "in the order of the images"
    rows = ({"image": "d.png"}, {"image": "a.png", "captions": []}, "\n", {"image": "d.png", "caption": 3})
    lines(place / "x.jsonl", *rows)
    assert named(place / "x.jsonl") == ["d.png", "a.png"]
    lines(place / "x.csv", "image,split\n", "d.png,val\n", "a.png,train\n")
    assert named(place / "x.csv") == ["d.png", "a.png"] and named(Path(f"{place}/x.csv#val")) == ["d.png"]
    lines(place / "y.tsv", "file\tmore\tcaption\n", "d.png\t1\tx\n", "d.png\t1\ty\n")
    assert named(place / "y.tsv") == ["d.png"]
    assert answered(cli("predict", model, str(place / "y.tsv"), "--columns", "image=file", "--json")) == ["d.png"]
    done = cli("predict", model, str(place / "images" / "a.png"), "--columns", "image=file")
    assert done.code == 2 and "requires an input file" in done.err


def test_an_invalid_row_keeps_its_position_and_stops_nothing(place: Path, model: str, cli: Cli) -> None:
    lines(place / "x.jsonl", {"image": "gone.png", "caption": "x"}, *each(), {"image": "broken.jpg", "caption": "x"})
    (place / "images" / "broken.jpg").write_bytes(b"\xff\xd8 not much")
    done = cli("predict", model, str(place / "x.jsonl"), "--json")
    values = [json.loads(line)["value"] for line in done.out.split("\n")[:-1]]
    assert done.code == 2 and [value is None for value in values] == [True, False, False, False, True]
    assert "line 1: image 'gone.png' not found" in done.err and "broken.jpg" in done.err
    for entry in (place / "images", place / "images" / "*"):
        done = cli("predict", model, str(entry), "--json")
        assert done.code == 2 and done.out.count('"value": null') == 1 and "1 of 4 inputs failed" in done.err


def test_images_of_one_pixel_or_column_are_captioned_and_explained(tmp_path: Path, model: str, cli: Cli) -> None:
    for mode, size in (("RGB", (1, 1)), ("P", (1, 200)), ("CMYK", (40, 33))):
        image = tmp_path / f"{mode}.JPG"
        Image.new(mode, size).save(image, "GIF" if mode == "P" else "JPEG")
        assert answered(cli("predict", model, str(image), "--json")) == [image.name]
        assert cli("explain", model, str(image), "--out", str(tmp_path / "explanation.html")).code == 0


def trained(data: Path, out: Path) -> list[str]:
    words = ["train", "caption", "--data", str(data), "--model", PRESET, "--out", str(out), "--device", "cpu"]
    return [*words, "--set", *SETTINGS, "train.steps=4", "train.eval_every=2", "data.valid_fraction=0.3"]


def test_rows_that_lack_something_are_named(tmp_path: Path, cli: Cli) -> None:
    album = album_in(tmp_path / "my album")
    good = (album / "captions.jsonl").read_text()
    path = lines(album / "x.jsonl", good, {"image": "n 0.png", "captions": []}, {"image": "n 1.png", "captions": [""]})
    assert "2 entries skipped" in "".join(cli(*trained(path, tmp_path / "left"))[1:])
    for right, row in (
        ("line 31: image 'gone.png' not found", {"image": "gone.png", "caption": "x"}),
        ("line 31: expected text in 'captions'", {"image": "n 0.png", "captions": [["x"]]}),
    ):
        done = cli(*trained(lines(album / "wrong.jsonl", good, row), tmp_path / "no"))
        assert done.code == 2 and right in done.err and not (tmp_path / "no").exists()
    # images of one name from two folders are two
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (9, 9), (folder == "a" and "red") or "blue").save(tmp_path / folder / "same.png")
    rows: list[Any] = [{"image": f"{folder}/same.png", "caption": folder} for folder in "abab"]
    found = list(read_captions(str(lines(tmp_path / "same.jsonl", *rows))))
    assert [item.captions for item in found if not isinstance(item, SkippedRow)] == [("a", "a"), ("b", "b")]
