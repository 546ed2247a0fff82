"""Tables in memory are read as files of rows: lists of dicts, frames, Arrow tables and datasets of Hugging Face."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_card import MADE

import regard
from conftest import TINY, Cli, Pairs, facts
from data_files import jsonl, kinds, refused
from regard.errors import DataError, RegardError, RunError, UnknownColumnError
from tiny import noisy

arrow = pytest.importorskip("pyarrow", reason="Arrow tables need pyarrow")
pandas = pytest.importorskip("pandas", reason="frames need pandas")

Rows = list[dict[str, Any]]
CLASSES = ("poor", "fine", "great")


class Dataset:
    """The methods of a dataset of the `datasets` library that are used."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("rows would be decoded")

    def with_format(self, type: str | None) -> Dataset:
        assert type == "arrow"
        return self

    def iter(self, batch_size: int) -> Iterator[Any]:
        return (self.table.slice(start, batch_size) for start in range(0, len(self.table), batch_size))


class Polars:
    """The method of a polars frame that is used."""

    columns = ("text", "label")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter(self.rows)


FORMS: dict[str, Any] = {
    "list": list, "tuple": tuple, "generator": iter, "pandas": pandas.DataFrame, "polars": Polars,
    "Arrow table": arrow.Table.from_pylist, "Arrow batch": arrow.RecordBatch.from_pylist,
    "dataset": lambda rows: Dataset(arrow.Table.from_pylist(rows)),
    "several": lambda rows: [rows[:2], pandas.DataFrame(rows[2:])],
}  # fmt: skip


def class_labels(columns: dict[str, Any], **names: Sequence[str]) -> Any:
    """Arrow table with the metadata of the `datasets` library."""
    features = {
        name: {"names": list(labels), "_type": "ClassLabel"} if not isinstance(columns[name][0], list)
        else {"feature": {"names": list(labels), "_type": "ClassLabel"}, "_type": "List"}
        for name, labels in names.items()
    }  # fmt: skip
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return arrow.table(columns).replace_schema_metadata(metadata)


def reviews(count: int = 24) -> Rows:
    return [{"text": f"film {number} was seen", "label": CLASSES[number % 3]} for number in range(count)]


def summary(report: Any) -> Any:
    return {**report.counts, "files": 1}, kinds(report), report.lengths.words.tolist()


TASKS: dict[str, tuple[Rows, dict[str, str] | None]] = {
    "classify": (reviews(), None),
    "classify labels": ([{"text": f"t {n}", "labels": ["a", "b"][: n % 3]} for n in range(9)], None),
    "classify pairs": ([{"review": f"t {n}", "pair": "a b", "label": n % 2} for n in range(9)], {"text": "review"}),
    "translate": ([{"en": f"a {n}", "de": f"ein {n}"} for n in range(9)], {"source": "en", "target": "de"}),
    "translate nested": (
        [{"translation": {"en": f"a {n}", "de": f"ein {n}"}} for n in range(9)], {"source": "en", "target": "de"}
    ),
    "embed": ([{"anchor": f"a {n}", "positive": f"b {n}"} for n in range(9)], None),
    "tag": ([{"tokens": ["Rome", f"{n}"], "ner_tags": ["B-LOC", "O"]} for n in range(9)], None),
    "qa": (
        [{"id": f"{n}", "title": "", "question": "who?", "context": f"{n} did",
          "answers": {"text": [f"{n}"], "answer_start": [0]}} for n in range(9)], None
    ),
    "choose": ([{"context": f"c {n}", "choices": ["a", "b"], "label": n % 2} for n in range(9)], None),
    "lm": ([{"text": f"a\nb {n}"} for n in range(9)], None),
    "mlm": ([{"body": f"a\nb {n}"} for n in range(9)], {"text": "body"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_rows_in_memory_are_checked_as_rows_of_a_file(name: str, folder: Path) -> None:
    (rows, columns), task = TASKS[name], name.partition(" ")[0]
    expected = summary(regard.check(task, jsonl("a.jsonl", *rows), columns=columns))
    for table in (rows, pandas.DataFrame(rows), arrow.Table.from_pylist(rows)):
        assert summary(regard.check(task, table, columns=columns)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_table_may_have_any_form(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.memory_tables.BATCH_ROWS", 10)
    rows, make = reviews(), FORMS[form]
    expected = regard.check("classify", jsonl("a.jsonl", *rows), valid=jsonl("b.jsonl", *rows[:3]))
    report = regard.check("classify", make(rows), valid=make(rows[:3]))
    assert kinds(report) == kinds(expected) and "leak" in kinds(report)
    if form in ("generator", "several"):
        return
    model = noisy(MADE["classify"]())
    right = [one.score for one in model.predict([row["text"] for row in rows])]
    assert [one.score for one in model.predict(make(rows))] == right


def test_numbers_of_class_labels_become_their_names() -> None:
    single = class_labels({"text": ["a", "b", "c", "d"], "label": [2, 0, 1, -1]}, label=CLASSES)
    several = class_labels({"text": ["a", "b"], "labels": [[0, 2], [1]]}, labels=CLASSES)
    tags = class_labels({"tokens": [["a", "b"]], "ner_tags": [[0, 1]]}, ner_tags=("O", "B-x"))
    for table in (single, Dataset(single)):
        report = regard.check("classify", table)
        assert set(report.class_counts[0].train) == {*CLASSES} and kinds(report)["empty"][1] == 1
    assert set(regard.check("classify", several).class_counts[0].train) == {*CLASSES}
    assert regard.check("tag", tags).counts["words"] == 2


def test_missing_cells_are_skipped_with_their_row() -> None:
    frame = pandas.DataFrame({"text": ["a", None, "c", math.nan, pandas.NA, "f"], "label": [1, 2, None, 3, 4, 5]})
    listed = [
        {"text": "a", "label": np.int64(1)}, {"text": None, "label": 2}, {"text": "c", "label": pandas.NA},
        {"text": math.nan, "label": np.float32(3)}, {"text": pandas.NaT, "label": 1}, {"text": "f", "label": 1},
    ]  # fmt: skip
    for table in (frame, frame.astype({"label": "Int64"}), listed):
        report = regard.check("classify", table)
        assert report.counts["texts"] == 2 and kinds(report)["empty"][1] == 4
        assert "row 3 of data  missing label for: c" in str(report)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ([{"text": "a", "label": "x"}, {"text": 3, "label": "y"}], "row 2 of data"),
        ([{"text": "a", "label": "x"}, {"text": b"b", "label": "y"}], "row 2 of data"),
        ([{"text": "a", "label": "x"}, ["b", "y"]], "row 2 of data"),
        ([{"text": "a", "label": "x"}, {"text": "b", "label": len}], "row 2 of data, column 'label'"),
        ([{"text": "a", "label": "x"}, {"text": "\ud800", "label": "y"}], "row 2 of data"),
        (([{"text": "a", "label": "x"}], [{"text": "a"}]), r"row 1 of data\[1\]"),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), "duplicate column"),
        (pandas.DataFrame({"text": [], "label": []}), "no rows"),
        ({"train": [], "test": []}, "train, test"),
        (3, "int"),
        ([3], r"data\[0\]"),
        (pandas.Series(["a", "b"]).to_frame(), "'text'"),
    ],
)
def test_invalid_tables_name_the_row(table: Any, key: str, folder: Path) -> None:
    refused(key, regard.train, "classify", table, out="run", error=RegardError)
    assert not Path("run").exists()


def test_an_unknown_column_lists_the_columns() -> None:
    refused(
        "row 1 of data: text, label",
        regard.check,
        "classify",
        reviews(),
        columns={"text": "body"},
        error=UnknownColumnError,
    )


def test_invalid_utf8_of_arrow_names_the_row() -> None:
    buffers = arrow.array([b"cat", b"M\xe4dchen"], arrow.binary()).buffers()
    table = arrow.table({"text": arrow.Array.from_buffers(arrow.string(), 2, buffers), "label": ["a", "b"]})
    refused("row 2", regard.check, "classify", table)


# -- training


def start(data: Any, out: Path | str, **more: Any) -> None:
    settings = (*TINY, "train.steps=1", "data.eval_samples=2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)
        regard.train("translate", data, out=out, settings=settings, device="cpu", **more)


@pytest.fixture
def translations(pairs: Pairs) -> Rows:
    return [{"source": source, "target": target} for source, target in pairs[:40]]


@pytest.fixture
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    return folder / "cache" / "tables"


def test_a_run_on_tables_is_resumed_and_evaluated(cache: Path, folder: Path, translations: Rows, cli: Cli) -> None:
    data, valid, run = pandas.DataFrame(translations[8:]), arrow.Table.from_pylist(translations[:8]), folder / "run"
    start(data, run, valid=valid)
    card, said = (run / "README.md").read_text("utf-8"), facts(run)
    assert "in-memory table" in card and "32 rows" in card and "8 rows" in card and str(cache) not in card
    assert said["data_stats"]["train"] == 32 and said["data_stats"]["valid"] == 8
    assert regard.evaluate(run).scores == regard.evaluate(run, valid).scores
    start(data, run, valid=valid, resume=True)
    refused("in-memory table", start, translations[9:], run, valid=valid, resume=True, error=RunError)
    refused("in-memory table", start, data, run, valid=translations[:7], resume=True, error=RunError)
    shutil.rmtree(cache)
    for words in (("train", "translate", "--out", run, "--resume"), ("evaluate", run)):
        done = cli(*words)
        assert done.code == 2 and "in-memory table" in done.err and "Python" in done.err
    start(translations[8:], run, valid=translations[:8], resume=True)  # the same content in another form
    assert cli("evaluate", run).code == 0


def test_rows_of_a_table_are_held_out_as_rows_of_a_file(folder: Path, translations: Rows) -> None:
    start(translations, "memory")
    start(jsonl("a.jsonl", *translations), "file")
    assert facts(Path("memory"))["data_stats"] == facts(Path("file"))["data_stats"]


def test_tables_in_use_stay_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.data import memory_tables

    monkeypatch.setenv("REGARD_CACHE_GB", "0")
    monkeypatch.setattr(memory_tables, "_locks", {})
    for count in (3, 4, 4):
        regard.check("classify", reviews(count))
    assert len(list(cache.iterdir())) == 2  # the same table is saved once
    memory_tables._locks.clear()  # as at the end of the process
    regard.check("classify", reviews(5))
    assert len(list(cache.iterdir())) == 1


# -- predictions

PIXELS = np.random.default_rng(3).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


POINTS = np.random.default_rng(5).normal(size=(3, 90, 3))
ASKED: dict[str, tuple[Rows, list[Any], dict[str, str] | None]] = {
    "classify": ([{"text": "a day", "label": "x"}, {"text": "the cat", "label": None}], ["a day", "the cat"], None),
    "classify pairs": ([{"text": "a", "pair": "b"}, {"text": "c", "pair": "d"}], [("a", "b"), ("c", "d")], None),
    "lm": ([{"prompt": "a day", "id": 3}], ["a day"], {"text": "prompt"}),
    "mlm": ([{"text": "a [MASK]"}], ["a [MASK]"], None),
    "tag": ([{"tokens": ["a", "day"]}], [["a", "day"]], None),
    "qa": ([{"query": "who?", "context": "a cat"}], [("who?", "a cat")], {"question": "query"}),
    "choose": ([{"start": "a", "choices": ["b", "c"]}], [{"context": "a", "choices": ["b", "c"]}], {"context": "start"}),
    "embed": ([{"first": "a day", "positive": "b"}], ["a day"], {"source": "first"}),
    "recognise": ([{"image": png(PIXELS[0]), "label": 3}, {"image": png(PIXELS[1])}], list(PIXELS[:2]), None),
    "segment": ([{"photo": png(PIXELS[0])}], [PIXELS[0]], None),
    "caption-attend": ([{"image": png(PIXELS[0]), "caption": "x"}] * 2, [PIXELS[0]] * 2, None),
    "discern": ([{"cloud": places} for places in POINTS], list(POINTS), None),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_each_row_of_a_table_is_an_input(name: str) -> None:
    rows, inputs, columns = ASKED[name]
    model = noisy(MADE[name.partition(" ")[0]]())
    settings = {"max_new_tokens": 3} if model.objective.generates else {}

    def values(*arguments: Any, **more: Any) -> list[Any]:
        return [(np.asarray(one.value).tolist(), one.score) for one in model.predict(*arguments, **more, **settings)]

    right = values(inputs)
    for table in (rows, pandas.DataFrame(rows)):
        assert values(table, columns=columns) == right
    one = model.predict(rows[0], columns=columns, **settings)
    assert (np.asarray(one.value).tolist(), one.score) == right[0]


def test_a_row_without_input_is_refused_with_its_number(folder: Path) -> None:
    model, images = noisy(MADE["classify"]()), noisy(MADE["recognise"]())
    for text in (None, "", 3, math.nan):
        refused("row 2 of inputs", model.predict, [{"text": "a"}, {"text": text}])
        refused("row 2 of inputs", model.predict, [{"text": "a"}, {"text": text}, {"text": "b"}])
    for image in (None, "none.png", b"no image"):
        refused("row 2 of inputs", images.predict, [{"image": PIXELS[0]}, {"image": image}])
    refused("columns", model.predict, ["a"], columns={"text": "b"}, error=RegardError)
    assert model.predict([]) == []


# -- images and point clouds

FORMS_OF_IMAGES: dict[str, Any] = {
    "channels first": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
    "Pillow": Image.fromarray, "bytes": png, "array": lambda pixels: pixels, "tensor": torch.from_numpy,
    "embedded": lambda pixels: {"bytes": png(pixels), "path": "a.png"},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS_OF_IMAGES)
def test_images_are_cells(form: str, folder: Path) -> None:
    """Pixels are saved without a loss, and errors in their content have a row."""
    rows = [{"image": FORMS_OF_IMAGES[form](pixels), "label": f"{n}"} for n, pixels in enumerate(PIXELS)]
    model = noisy(MADE["recognise"]())
    assert [one.score for one in model.predict(rows)] == [one.score for one in model.predict(list(PIXELS))]
    report = regard.check("classify", [*rows, {"image": b"no image", "label": "0"}])
    assert report.counts["images"] == 3 and set(report.class_counts[0].train) == {"0", "1", "2"}
    assert "row 4 of data" in str(report)
    leak = str(regard.check("classify", rows, valid=rows[1:]))
    assert "row 2 of data" in leak and "embedded file" in leak and os.environ["REGARD_CACHE"] not in leak


def test_images_of_pillow_are_upright() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(out, "JPEG", exif=turned)
    model = noisy(MADE["recognise"]())
    right = model.predict(out.getvalue()).score
    assert model.predict([{"image": Image.open(out)}])[0].score == right


def test_paths_of_images_are_relative_to_the_working_directory(folder: Path) -> None:
    Path("images").mkdir()
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(f"images/{number}.png")
    for make in (str, Path, os.path.abspath, lambda path: {"bytes": None, "path": path}, os.path.basename):
        rows = [{"image": make(f"images/{number}.png"), "label": number} for number in range(3)]
        assert regard.check("classify", rows).counts["images"] == 3
    refused(
        "row 2 of data",
        regard.train,
        "classify",
        [rows[0], {"image": "none.png", "label": "a"}],
        out="run",
        model="vit-tiny",
    )


def test_masks_depth_maps_and_points_are_arrays() -> None:
    def images(name: str, *values: Any) -> Any:
        return regard.check(name, [{"image": PIXELS[0], "depth" if name == "depth" else "mask": one} for one in values])

    mask = (np.arange(600) % 3).reshape(20, 30)
    report = images("segment", mask, mask.astype(np.uint8), Image.fromarray(mask.astype(np.uint8)))
    assert report.class_counts[0].train.total() == 3 * mask.size
    with pytest.raises(DataError, match="row 1 of data, column 'mask'"):
        images("segment", mask - 1)
    depth = np.linspace(1, 4, 600).reshape(20, 30)
    millimeters, floats = (50 * depth).astype(np.uint16), depth.astype(np.float32)
    report = images("depth", depth, floats, Image.fromarray(floats), millimeters, Image.fromarray(millimeters))
    assert report.counts["images"] == 5 and "decode_error" not in kinds(report)
    clouds = [{"cloud": make(places), "label": "a"} for places in POINTS for make in (np.array, torch.tensor)]
    assert regard.check("classify", clouds).counts["point_clouds"] == 6


def test_captions_of_one_image_are_merged() -> None:
    rows = [{"image": PIXELS[number % 2], "caption": f"a {number}"} for number in range(4)]
    lists = {"image": [png(pixels) for pixels in PIXELS[:2]], "captions": [["a 0", "a 2"], ["a 1", "a 3"]]}
    assert regard.check("caption", rows).counts == regard.check("caption", pandas.DataFrame(lists)).counts


def test_errors_of_the_cache_and_of_the_rows_are_distinguished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(folder / "file"))
    Path("file").write_text("")

    def broken() -> Iterator[dict[str, Any]]:
        yield from reviews()
        raise FileNotFoundError("a file of the user")

    refused("REGARD_CACHE", regard.check, "classify", reviews())
    monkeypatch.setenv("REGARD_CACHE", str(folder / "cache"))
    refused("a file of the user", regard.check, "classify", broken(), error=FileNotFoundError)
    assert not list((folder / "cache" / "tables").iterdir())
