"""`regard predict --out FILE`: a table with the columns of the input and the predictions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_card import MADE, captioner
from test_predict_files import FILES, KINDS, SQUAD, TEXTS, made
from test_table_writer import SUFFIXES, table

import regard
from conftest import Cli, Trained, write_pairs
from data_files import jsonl, parquet
from regard.data.points.cloud_files import write_ply
from regard.runs import predictions as output
from regard.tasks.base import HeadOptions
from tiny_point_models import cloud
from tiny_vision_models import fresh
from tokenizer_files import STORY

Rows = list[dict[str, Any]]


def rows_of(cli: Cli, *words: object, out: str = "out.jsonl", code: int = 0, stdin: Any = "") -> Rows:
    """Rows of the table written by `predict`."""
    Path(out).unlink(missing_ok=True)
    done = cli("predict", *words, "--out", out, stdin=stdin)
    assert done.code == code and done.out == f"{out}\n", done
    return table(Path(out))


def rendered(value: Any, separator: str) -> str:
    """A value of a prediction in CSV."""
    if isinstance(value, list) and not any(isinstance(item, dict) for item in value):
        return separator.join(rendered(item, "") for item in value)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@pytest.mark.every(3)
@pytest.mark.parametrize(("kind", "name", "content", "columns"), FILES)
def test_rows_have_their_own_columns_and_a_prediction(
    cli: Cli, tmp_path: Path, kind: str, name: str, content: str, columns: str
) -> None:
    task, labels, pair, _ = KINDS[kind]
    folder, _ = made(task, tmp_path, labels, pair)
    Path(name).write_text(content)
    words = (folder, name, *(("--columns", *columns.split()) if columns else ()))
    right = [json.loads(line) for line in cli("predict", *words, "--json").out.splitlines()]
    separator = "|" if task == "classify" else " "
    for suffix in SUFFIXES:
        found = rows_of(cli, *words, out=f"out{suffix}")
        names = list(found[0])
        assert len(found) == len(right) and 0 < names.index("prediction") < len(names), names
        for row, one in zip(found, right, strict=True):
            value = row["prediction"]
            expected = rendered(one["value"], separator) if suffix in (".csv", ".tsv") else one["value"]
            assert value == (
                pytest.approx(expected) if kind == "vector" and suffix in (".jsonl", ".parquet") else expected
            )
            assert "error" not in row


def test_ids_and_columns_are_carried_along(cli: Cli, tmp_path: Path) -> None:
    folder, model = made("classify", tmp_path, ("bad", "good"))
    right = model.predict(TEXTS)
    rows = [{"id": 7 + n, "text": text, "meta": {"x": [n]}, "label": "?"} for n, text in enumerate(TEXTS)]
    jsonl("a.jsonl", *rows)
    for row, own, one in zip(rows_of(cli, folder, "a.jsonl"), rows, right, strict=True):
        assert list(row) == [*own, "prediction", "probability"] and {**row, **own} == row
        assert (row["prediction"], row["probability"]) == (one.value, pytest.approx(max(one.score), abs=1e-6))
    Path("a.csv").write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS)))
    found = rows_of(cli, folder, "a.csv", out="new/out.csv")
    assert [list(row.values())[:3] for row in found] == [
        [str(n), t, one.value] for n, (t, one) in enumerate(zip(TEXTS, right, strict=True))
    ]
    both = rows_of(cli, folder, "a.csv", "a.jsonl", "the cat", out="out.csv")  # files and texts of different columns
    assert list(both[0]) == ["id", "text", "meta", "label", "prediction", "probability"]
    assert [row["id"] for row in both] == ["0", "1", "2", "7", "8", "9", ""] and both[6]["text"] == "the cat"
    assert both[3]["meta"] == '{"x": [0]}' and both[0]["label"] == ""
    stream = rows_of(cli, folder, "-", "--format", "csv", stdin=Path("a.csv").read_bytes())
    assert [row["id"] for row in stream] == ["0", "1", "2"]
    parquet("a.parquet", {"id": [1, 2, 3], "text": TEXTS})
    assert [row["id"] for row in rows_of(cli, folder, "a.parquet", out="out.parquet")] == [1, 2, 3]
    assert [row["id"] for row in rows_of(cli, folder, "out.parquet", "--columns", "text=text")] == [1, 2, 3]


def test_rows_with_errors_keep_their_place(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("classify", tmp_path, ("same", "other"), "ordered")
    Path("a.txt").write_bytes(b"the cat\ta dog\nonly one\n\ncaf\xe9\tx\nthe cat\ta dog\n")
    found = rows_of(cli, folder, "a.txt", code=2)
    assert [bool(row["prediction"]) for row in found] == [True, False, False, False, True]
    assert ["error" in row for row in found] == [False, True, False, True, False]
    assert found[1]["text"] == "only one" and "a.txt, line 4" in found[3]["error"]
    found = rows_of(cli, folder, "a.txt", code=2, out="out.csv")
    assert list(found[0]) == ["text", "prediction", "probability", "error"] and found[0]["error"] == ""
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.csv").write_text("id,text\n1,the cat\n2\n\n4,the mat\n")
    found = rows_of(cli, folder, "a.csv", code=2, out="out.tsv")
    assert [row["id"] for row in found] == ["1", "2", "", "4"] and [bool(row["error"]) for row in found] == [
        False,
        True,
        False,
        False,
    ]


def test_questions_keep_their_ids_and_contexts(cli: Cli, tmp_path: Path) -> None:
    folder, model = made("qa", tmp_path)
    questions = SQUAD["data"][0]["paragraphs"][0]["qas"]
    named = [{**one, "id": f"q{n}"} for n, one in enumerate(questions)]
    content = {"version": "1", "data": [{"title": "x", "paragraphs": [{"context": TEXTS[1], "qas": named}]}]}
    Path("a.json").write_text(json.dumps(content))
    found = rows_of(cli, folder, "a.json", out="out.csv")
    columns = ["id", "title", "context", "question", "prediction", "probability", "prediction_start"]
    assert list(found[0]) == columns and [row["id"] for row in found] == ["q0", "q1"]
    for row, question in zip(found, questions, strict=True):
        answer = model.predict((question["question"], TEXTS[1]))
        assert row["prediction"] == answer.value and int(row["prediction_start"]) == answer.extra["start"]
    Path("list.json").write_text(
        json.dumps([{"id": "r", "question": "who", "context": TEXTS[1], "extra": 1}], indent=1)
    )
    assert rows_of(cli, folder, "list.json")[0]["extra"] == 1
    assert rows_of(cli, folder, f"who\t{TEXTS[1]}")[0]["text"] == f"who\t{TEXTS[1]}"


def test_tags_are_as_many_as_words(cli: Cli, tmp_path: Path) -> None:
    folder, model = made("tag", tmp_path, ("O", "B-X", "I-X"))
    Path("a.conll").write_text("the O\ncat B-X\n\na O\ndog I-X\n")
    found = rows_of(cli, folder, "a.conll", out="out.csv")
    assert [row["words"] for row in found] == ["the cat", "a dog"]
    assert list(found[0])[:2] == ["words", "prediction"] and len(found[0]["prediction"].split()) == 2
    jsonl("a.jsonl", {"id": 3, "tokens": ["the", "cat"]})
    (row,) = rows_of(cli, folder, "a.jsonl")
    answer = model.predict(("the", "cat"))
    assert list(row) == ["id", "tokens", "prediction", "probability", "words", "entities"]
    assert row["prediction"] == answer.value and row["entities"] == json.loads(json.dumps(answer.extra["entities"]))
    (row,) = rows_of(cli, folder, "Hello, cat", out="out.tsv")
    assert row["words"] == "Hello , cat" and row["text"] == "Hello, cat"


def test_texts_and_files_without_columns_get_one(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    Path("a.txt").write_text("the cat danced\n\na horse ran\n")
    found = rows_of(cli, trained.path, "a.txt", out="out.csv")
    assert [row["text"] for row in found] == ["the cat danced", "", "a horse ran"]
    assert list(found[0]) == ["text", "prediction", "score"]
    Image.new("RGB", (9, 8)).save("a.png")
    fresh("vit", "classify").save("vit")
    write_ply("a.ply", cloud(40))
    MADE["discern"]().float().save("point")
    captioner([STORY], "caption-fixed", "", max_length=6).float().save("caption")
    for name, file in (("vit", "a.png"), ("caption", "a.png"), ("point", "a.ply")):
        Path("files").mkdir(exist_ok=True)
        shutil.copy(file, Path("files", file))
        column = "cloud" if name == "point" else "image"
        assert [row[column] for row in rows_of(cli, name, file, "files")] == [file, f"files/{file}"]
        shutil.rmtree("files")
        found = rows_of(cli, name, "-", stdin=Path(file).read_bytes())
        assert found[0][column] == "stdin" and found[0]["prediction"] is not None
        jsonl("a.jsonl", {"id": 4, column: file, "label": "x", "caption": "y"})
        (row,) = rows_of(cli, name, "a.jsonl")
        assert (row["id"], row[column]) == (4, file)


def test_rows_without_an_image_keep_their_place(cli: Cli, tmp_path: Path) -> None:
    fresh("vit", "classify").save("vit")
    Image.new("RGB", (9, 8)).save("a.png")
    jsonl("a.jsonl", *({"id": n, "image": "" if n == 1 else "a.png"} for n in range(3)))
    assert [bool(line) for line in cli("predict", "vit", "a.jsonl").out.splitlines()] == [True, False, True]
    found = rows_of(cli, "vit", "a.jsonl")
    assert [(row["id"], row["prediction"] is None) for row in found] == [(0, False), (1, True), (2, False)]


def test_no_input_gives_an_empty_table(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    for suffix in SUFFIXES:
        assert rows_of(cli, folder, "-", out=f"out{suffix}") == []


def test_embedded_images_are_carried_as_names(cli: Cli, tmp_path: Path) -> None:
    fresh("vit", "classify").save("vit")
    Image.new("RGB", (9, 8)).save("a.png")
    content = Path("a.png").read_bytes()
    parquet(
        "a.parquet", {"id": [5, 6], "image": [{"bytes": content, "path": "x.png"}, {"bytes": content, "path": None}]}
    )
    found = rows_of(cli, "vit", "a.parquet", out="out.parquet")
    assert [(row["id"], row["image"]) for row in found] == [(5, "a-1"), (6, "a-2")]


def test_images_of_coco_keep_their_ids(cli: Cli, tmp_path: Path) -> None:
    captioner([STORY], "caption-fixed", "", max_length=6).float().save("caption")
    for number in range(2):
        Image.new("RGB", (9, 8), (99 * number, 0, 0)).save(f"{number}.png")
    images = [{"id": 40 + n, "file_name": f"{n}.png", "width": 9} for n in range(2)]
    Path("captions.json").write_text(json.dumps({"images": images, "annotations": [{"image_id": 40, "caption": "a"}]}))
    found = rows_of(cli, "caption", "captions.json", out="out.csv")
    assert [(row["id"], row["file_name"]) for row in found] == [("40", "0.png"), ("41", "1.png")]


def test_other_predictions_have_columns_of_their_own(cli: Cli, trained: Trained, tmp_path: Path) -> None:
    several = ("--set", "decode.num_beams=3", "decode.num_return_sequences=2")
    (row,) = rows_of(cli, trained.path, "the cat danced", *several)
    model = regard.load(trained.path)
    options = model.predict("the cat danced", num_beams=3, num_return_sequences=2).extra["alternatives"]
    assert list(row) == ["text", "prediction", "score", "prediction_2", "score_2"]
    assert row["prediction_2"] == options[1]["value"] and row["score_2"] == pytest.approx(options[1]["score"], abs=1e-5)
    folder, model = made("choose", tmp_path)
    jsonl("a.jsonl", {"context": "the cat", "choices": ["sat", "is"]})
    (row,) = rows_of(cli, folder, "a.jsonl")
    assert row["prediction"] == model.rank("the cat", ["sat", "is"]).value and row["prediction_index"] in (0, 1)
    (row,) = rows_of(cli, folder, "the cat", "--choices", "sat|is")
    assert row["prediction"] in ("sat", "is") and 0.5 <= row["probability"] <= 1
    folder, model = made("mlm", tmp_path)
    (row,) = rows_of(cli, folder, "the [MASK] sat [MASK]", out="out.csv")
    answer = model.predict("the [MASK] sat [MASK]")
    assert row["prediction"] == answer.value and row["words"] == " ".join(
        gap[0]["word"] for gap in answer.extra["masks"]
    )
    folder, _ = made("embed", tmp_path)
    Path("texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    jsonl("a.jsonl", {"id": 1, "text": TEXTS[1]})
    (row,) = rows_of(cli, folder, "a.jsonl", "--search", "texts.txt", "--top-k", 2)
    assert list(row) == ["id", "text", "prediction", "score", "line", "prediction_2", "score_2", "line_2"]
    assert (row["id"], row["prediction"], row["line"]) == (1, TEXTS[1], 2)


def test_several_labels_are_a_list(cli: Cli, tmp_path: Path) -> None:
    from encoders import encoder

    model = encoder("classify", [STORY], vocab_size=200, options=HeadOptions(("a", "b", "c"), multi_label=True))
    folder = model.save(tmp_path / "several")
    words = (folder, "the cat", "--set", "decode.threshold=0")
    answer = model.predict("the cat", threshold=0)
    (row,) = rows_of(cli, *words)
    assert row["prediction"] == answer.value and len(row["probability"]) == 3
    assert rows_of(cli, *words, out="out.csv")[0]["prediction"] == "|".join(answer.value)
    (row,) = rows_of(cli, folder, "the cat", "--set", "decode.threshold=1", out="out.csv")
    assert row["prediction"] == row["probability"] == ""


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "existing file": (("--out", "there.csv"), "exists"), "other format": (("--out", "a.xlsx"), ".csv"),
    "folder": (("--out", "a"), ".csv"), "JSON": (("--out", "a.csv", "--json"), "--json"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_outputs_are_refused_before_predictions(what: str, cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("there.csv").write_text("mine")
    words, key = WRONG[what]
    before = sorted(Path().rglob("*"))
    done = cli("predict", folder, "the cat", *words)
    assert done.code == 2 and key in done.err and not done.out and sorted(Path().rglob("*")) == before
    assert Path("there.csv").read_text() == "mine"


def test_a_failed_run_leaves_no_file_and_rows_are_written_in_chunks(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.txt").write_text("the cat\n" * 10)
    monkeypatch.setattr("regard.cli.PREDICT_CHUNK", 4)
    sizes, rows = list[int](), list[int]()
    predict, write = regard.model.Model.predict, output.TableOutput.write  # noqa: F841
    from regard.tasks.classify import Classify

    real = Classify.predict
    monkeypatch.setattr(
        Classify, "predict", lambda *given: sizes.append(len(given[2])) or rows.append(-1) or real(*given)
    )
    monkeypatch.setattr(output.TableOutput, "write", lambda self, *given: rows.append(1) or write(self, *given))
    assert len(rows_of(cli, folder, "a.txt")) == 10
    assert sizes == [4, 4, 2] and rows == [-1, *[1] * 4, -1, *[1] * 4, -1, 1, 1]

    def fail(*given: Any) -> Any:
        if len(sizes) > 4:
            raise KeyboardInterrupt
        return sizes.append(0) or real(*given)

    monkeypatch.setattr(Classify, "predict", fail)
    before = sorted(Path().rglob("*"))
    assert cli("predict", folder, "a.txt", "--out", "new.csv").code == 130 and sorted(Path().rglob("*")) == before


def test_progress_is_shown_in_a_terminal_only(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.txt").write_text("the cat\n" * 6)
    monkeypatch.setattr("regard.cli.PREDICT_CHUNK", 2)
    monkeypatch.setattr("regard.runs.progress.PRINT_INTERVAL", -1.0)
    assert cli("predict", folder, "a.txt", "--out", "a.csv").err == ""
    monkeypatch.setattr("regard.runs.predictions.is_terminal", lambda stream: stream == "stderr")
    done = cli("predict", folder, "a.txt", "--out", "b.csv")
    assert "4 inputs" in done.err and "per second" in done.err and done.out == "b.csv\n"
    assert "4 inputs" in cli("predict", folder, "a.txt").err
    monkeypatch.setattr("regard.runs.predictions.is_terminal", lambda stream: True)
    assert cli("predict", folder, "a.txt").err == ""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_evaluation_writes_the_same_formats(suffix: str, cli: Cli, trained: Trained) -> None:
    pairs = [("the cat danced", 'die "Katze"'), ("a horse, ran", "ein Pferd")]
    write_pairs(Path("mine.tsv"), pairs)
    words = ("evaluate", trained.path, "--data", "mine.tsv", "--predictions", f"new/a{suffix}")
    assert cli(*words).code == 0
    found = table(Path(f"new/a{suffix}"))
    assert [(row["source"], row["reference"]) for row in found] == pairs and all("prediction" in row for row in found)
    done = cli(*words)
    assert done.code == 2 and "exists" in done.err
    assert "supported" in cli(*words[:-1], "a.xlsx").err


def test_probabilities_of_an_evaluation_are_numbers(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.tsv").write_text("text\tlabel\nthe cat\tgood\na dog\tbad\n")
    cli("evaluate", folder, "--data", "a.tsv", "--predictions", "a.parquet")
    assert all(isinstance(row["probability"], float) for row in table(Path("a.parquet")))
    assert np.isfinite([row["probability"] for row in table(Path("a.parquet"))]).all()
