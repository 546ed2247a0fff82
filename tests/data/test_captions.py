"""Caption files: all formats give the same samples, and errors contain the file and the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data_files import parquet, refused
from regard.data.images.captions import CAPTIONED, CaptionedImage, parse_splits, read_captions
from regard.data.text.tables import SkippedRow
from regard.errors import RegardError

SAID = {"a.png": ["a red thing", "something red"], "b c.png": ["a green thing"], "d.png": ["blue", "a blue one", "sky"]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three images in a folder images inside a folder with a space in its name."""
    folder = tmp_path / "my captions"
    (folder / "images").mkdir(parents=True)
    for name, colour in zip(SAID, ("red", "green", "blue"), strict=True):
        Image.new("RGB", (9, 8), colour).save(folder / "images" / name)
    return folder


def samples(entry: Path | str, **columns: str) -> dict[str, list[str]]:
    found = list(CAPTIONED.samples([str(entry)], columns or None))
    assert all(isinstance(item, CaptionedImage) for item in found)
    return {Path(item.source).name: list(item.captions) for item in found if isinstance(item, CaptionedImage)}


def lines(path: Path, *rows: Any) -> Path:
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def each(name: str = "caption") -> list[dict[str, str]]:
    """One row per caption, with the captions of an image in separate places."""
    rows = [{"image": image, name: text} for image, texts in SAID.items() for text in texts]
    return rows[::2] + rows[1::2]


def coco() -> dict[str, Any]:
    ids = {name: 10 + number for number, name in enumerate(SAID)}
    told = [{"image_id": ids[row["image"]], "caption": row["caption"], "id": n} for n, row in enumerate(each())]
    return {"info": {}, "images": [{"id": i, "file_name": name} for name, i in ids.items()], "annotations": told}


def karpathy() -> dict[str, Any]:
    images = [
        {"imgid": n, "filename": name, "split": "train", "sentences": [{"raw": text, "tokens": []} for text in texts]}
        for n, (name, texts) in enumerate(SAID.items())
    ]
    return {"images": images, "dataset": "flickr8k"}


FORMS: dict[str, Any] = {
    "lists.jsonl": lambda path: lines(path, *({"image": name, "captions": texts} for name, texts in SAID.items())),
    "each.jsonl": lambda path: lines(path, *each()),
    "inside.jsonl": lambda path: lines(path, *({**row, "image": f"images/{row['image']}"} for row in each())),
    "list.json": lambda path: path.write_text(json.dumps(each("text"), indent=1)),
    "lines.json": lambda path: lines(path, *each()),
    "coco.json": lambda path: path.write_text(json.dumps(coco())),
    "spread.json": lambda path: path.write_text(json.dumps(coco(), indent=2)),
    "karpathy.json": lambda path: path.write_text(json.dumps(karpathy())),
    "named.csv": lambda path: lines(path, "image,caption\n", *(f"{row['image']},{row['caption']}\n" for row in each())),
    "named.tsv": lambda path: lines(path, "id\tfile_name\ttext\n", *(f"1\t{r['image']}\t{r['caption']}\n" for r in each())),
    "flickr.token.txt": lambda path: lines(path, *(f"{r['image']}#{n}\t{r['caption']}  \n" for n, r in enumerate(each()))),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(form: str, place: Path) -> None:
    FORMS[form](place / form)
    found = samples(place / form)
    assert {name: sorted(texts) for name, texts in found.items()} == {n: sorted(texts) for n, texts in SAID.items()}


def test_parquet_may_contain_the_images_themselves(place: Path) -> None:
    files = {name: (place / "images" / name).read_bytes() for name in SAID}
    images = [{"bytes": files[name], "path": name} for name, all_ in SAID.items() for _ in all_]
    columns = {"image": images, "caption": [text for all_ in SAID.values() for text in all_]}
    found = list(read_captions(parquet(place / "inside.parquet", columns)))
    assert [(item.source, list(item.captions)) for item in found] == list(SAID.items())  # type: ignore[union-attr]
    assert all(item.content == files[item.source] for item in found)  # type: ignore[union-attr]
    columns = {"image": list(SAID), "captions": list(SAID.values())}
    assert samples(parquet(place / "paths.parquet", columns)) == SAID


def test_images_of_coco_are_in_a_folder_beside_the_annotations(place: Path) -> None:
    (place / "annotations").mkdir()
    (place / "images").rename(place / "val2017")
    (place / "annotations/captions_val2017.json").write_text(json.dumps(coco()))
    assert samples(place / "annotations/captions_val2017.json").keys() == SAID.keys()


def test_columns_may_have_other_names(place: Path) -> None:
    lines(place / "x.jsonl", *({"bild": row["image"], "satz": row["caption"], "text": "no"} for row in each()))
    assert samples(place / "x.jsonl", image="bild", captions="satz").keys() == SAID.keys()
    refused("'satzz'", samples, place / "x.jsonl", image="bild", captions="satzz", error=RegardError)
    refused("'captions'", samples, place / "x.jsonl", caption="satz", error=RegardError)
    lines(place / "x.csv", *(f"{row['caption']},{row['image']}\n" for row in each()))
    assert samples(place / "x.csv", image="1", captions="0").keys() == SAID.keys()


def test_a_folder_is_recognized_by_its_file_and_a_split_by_its_name(place: Path) -> None:
    parts = dict(zip(SAID, ("train", "train", "test"), strict=True))
    rows = [{"image": name, "captions": texts, "split": parts[name]} for name, texts in SAID.items()]
    lines(place / "captions.jsonl", *rows)
    assert samples(f"{place}#train").keys() == {"a.png", "b c.png"} and samples(f"{place}#test").keys() == {"d.png"}
    assert samples(f"{place}/captions.jsonl#train+test") == SAID
    refused("--valid", samples, place)
    refused("'trian'", samples, f"{place}#trian")
    refused(r"Did you mean 'captions\.jsonl'", samples, place / "caption.jsonl")
    (place / "odd#name.jsonl").write_text((place / "captions.jsonl").read_text())
    assert parse_splits(f"{place}/odd#name.jsonl") == (f"{place}/odd#name.jsonl", ())
    lines(place / "plain.jsonl", *each())
    refused("split", samples, f"{place}/plain.jsonl#train")
    (place / "captions.jsonl").unlink()
    refused(r"plain\.jsonl", samples, place)
    (place / "bare").mkdir()
    refused("caption file", samples, place / "bare")


def test_empty_captions_are_skipped_and_named(place: Path) -> None:
    path = lines(
        place / "x.jsonl", {"image": "a.png", "captions": ["  one\n two ", " "]}, {"image": "b c.png", "caption": ""}, "\n",
        {"image": "", "caption": "of nothing"}, {"image": "d.png", "caption": None}, {"image": "d.png", "caption": "sky"}, "\n",
        {"image": "a.png", "captions": []},
    )  # fmt: skip
    found = list(read_captions(str(path)))
    told = [(item.line, item.reason) for item in found if isinstance(item, SkippedRow)]
    missing = {1: "a.png", 2: "b c.png", 5: "d.png", 8: "a.png"}
    right = {number: f"missing caption for: {name}" for number, name in missing.items()}
    assert told == sorted({**right, 3: "", 4: "missing image for: of nothing", 7: ""}.items())
    kept = [(item.line, item.captions) for item in found if isinstance(item, CaptionedImage)]
    assert kept == [(1, ("one two",)), (6, ("sky",))]


WRONG: list[tuple[str, Any, str]] = [
    ("x.jsonl", ['{"image": "a.png", "caption": "x"}\n', "{broken\n"], "line 2"),
    ("x.jsonl", [{"image": "a.png", "says": "x"}], "line 1"),
    ("x.jsonl", [{"image": "e.png", "caption": "x"}], "line 1"),
    ("x.jsonl", [{"image": "http://a/b.png", "caption": "x"}], "line 1"),
    ("x.jsonl", [{"image": "a.png", "caption": 3}], "line 1"),
    ("x.jsonl", ["\n", {"image": "a.png", "caption": ""}], "captions"),
    ("x.json", ['{"images": 3, "annotations": []}'], "images"),
    ("x.json", ['{"images": [], "annotations": [{"image_id": 1, "caption": "x"}]}'], "annotation"),
    ("x.json", ['{"images": [{"id": 1}], "annotations": []}'], "image"),
    ("x.json", ['{"images": [{"id": 1, "file_name": "e.png"}], "annotations": [{"image_id": 1, "caption": "x"}]}'],
     r"'e\.png'"),
    ("x.json", ['{"images": [{"id": [1], "file_name": "a.png"}], "annotations": []}'],
     "image"),
    ("x.json", ['{"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "d.png"}]}'],
     "image"),
    ("x.json", ['{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": {"a": 1}, "caption": "x"}]}'],
     "annotation"),
    ("x.txt", ["image,caption\n", "a.png,x\n"], "columns"),
    ("x.csv", ["picture,says,by\n", "a.png,x,y\n"], "--columns"), ("x.csv", ["image,caption\n", "a.png\n"], "line 2"),
    ("x.csv", ["bild,satz\n", "a.png,x\n"], "line 1"), ("x.xml", ["<a/>"], r"'\.xml'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "rows", "right"), WRONG)
def test_errors_are_reported_with_file_and_line(name: str, rows: list[Any], right: str, place: Path) -> None:
    refused(right, list, CAPTIONED.samples([str(lines(place / name, *rows))]), error=RegardError)
