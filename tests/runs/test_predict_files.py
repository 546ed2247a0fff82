"""`regard predict` on files: tables in the format of training data, empty and invalid lines, truncated texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cli, stdin
from encoders import encoder
from regard.errors import RegardError
from regard.model import Model
from regard.runs.inputs import expand_files, read_inputs
from regard.tasks import find_task
from regard.tasks.base import HeadOptions
from tokenizer_files import STORY

TEXTS = ["the cat sat", "a dog is on the mat", "cats on the mat"]


def made(task: str, tmp: Path, labels: tuple[str, ...] = (), pair: str = "") -> tuple[Path, Model]:
    model = encoder(task, [STORY, *TEXTS], vocab_size=200, options=HeadOptions(labels, pair_order=pair))
    return model.save(tmp / task), model


def rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


KINDS: dict[str, tuple[str, tuple[str, ...], str, list[Any]]] = {
    "text": ("classify", ("bad", "good"), "", [*TEXTS]),
    "pair": ("classify", ("same", "other"), "ordered", [("the cat", "a dog")]),
    "words": ("tag", ("O", "B-X", "I-X"), "", [["the", "cat"], ["a", "dog"]]),
    "question": ("qa", (), "", [("who sat", TEXTS[1]), ("where", TEXTS[1])]),
    "choice": ("choose", (), "", [{"context": "the cat", "question": "", "choices": ["sat", "is"]}]),
    "vector": ("embed", (), "", ["the cat"]),
}
"""Task, labels, order of pairs, and the inputs in every file."""
ASKED = {"question": "who sat", "answers": [{"text": "not there", "answer_start": 3}]}
SQUAD = {"data": [{"title": "x", "paragraphs": [{"context": TEXTS[1], "qas": [ASKED, {"question": "where"}]}]}]}
FILES: list[tuple[str, str, str, str]] = [
    ("text", "a.tsv", "sentence\tlabel\n" + "".join(f"{t}\tgood\n" for t in TEXTS), ""),
    ("text", "a.tsv", "".join(f"{t}\tgood\n" for t in TEXTS), ""),
    ("text", "a.tsv", "id\ttext\n" + "".join(f"7\t{t}\n" for t in TEXTS), ""),
    ("text", "a.csv", "text\n" + "".join(f'"{t}"\n' for t in TEXTS), ""),
    ("text", "a.csv", "what,body\n" + "".join(f'x,"{t}"\n' for t in TEXTS), "text=body"),
    ("text", "a.csv", "".join(f"{t},no\n" for t in TEXTS), "text=0 label=1"),
    ("text", "a.jsonl", "".join(json.dumps({"review": t, "label": 1}) + "\n" for t in TEXTS), ""),
    ("text", "a.jsonl", "".join(json.dumps({"review": t}) + "\n" for t in TEXTS), ""),
    ("text", "a.txt", "".join(f"{t}\tgood\n" for t in TEXTS), "text=0"),
    ("text", "a.txt", "".join(f"{t}\n" for t in TEXTS), ""),
    ("pair", "a.tsv", "text\tpair\tlabel\nthe cat\ta dog\tsame\n", ""),
    ("pair", "a.txt", "the cat\ta dog\n", ""),
    ("words", "a.conll", "the O\ncat B-X\n\n-DOCSTART- O\n\na O\ndog I-X\n", ""),
    ("words", "a.conll", "the\ncat\n\na\ndog\n", ""),
    ("words", "a.tsv", "the\tO\ncat\tO\n\na\tO\ndog\tO\n", ""),
    ("words", "a.tsv", "words\ttags\nthe cat\tO O\na dog\tO O\n", ""),
    ("words", "a.jsonl", '{"tokens": ["the", "cat"]}\n{"tokens": ["a", "dog"], "tags": 7}\n', ""),
    ("question", "a.json", json.dumps(SQUAD), ""),
    ("question", "a.tsv", f"question\tcontext\nwho sat\t{TEXTS[1]}\nwhere\t{TEXTS[1]}\n", ""),
    ("choice", "a.jsonl", '{"context": "the cat", "choices": ["sat", "is"]}\n', ""),
    ("choice", "a.csv", "context,choice0,choice1,label\nthe cat,sat,is,7\n", ""),
    *(("vector", "a.tsv", content, "") for content in (
        "source\ttarget\nthe cat\tx\n", "the cat\tx y\n", "Anchor\tpositive\nthe cat\tx\n"
    )),
]  # fmt: skip
"""Kind, file name, content and --columns of every form of training table, with and without labels."""


@pytest.mark.parametrize(("kind", "name", "content", "columns"), FILES)
def test_every_form_of_training_table_is_predicted_whatever_its_labels(
    cli: Cli, tmp_path: Path, kind: str, name: str, content: str, columns: str
) -> None:
    task, labels, pair, inputs = KINDS[kind]
    folder, model = made(task, tmp_path, labels, pair)
    Path(name).write_text(content)
    done = cli("predict", folder, name, "--json", *(("--columns", *columns.split()) if columns else ()))
    assert done.code == 0 and done.err == ""
    found = rows(done.out)
    assert kind in ("pair", "question") or [row["input"] for row in found] == inputs
    right = [model.rank("the cat", ["sat", "is"])] if kind == "choice" else model.predict(inputs)
    for row, answer in zip(found, right, strict=True):
        value, score = row["value"], row["score"]
        assert value == (pytest.approx(answer.value, abs=1e-6) if kind == "vector" else answer.value)
        assert kind not in ("text", "pair") or score == pytest.approx(answer.score, abs=1e-6)


def test_invalid_lines_and_rows_are_named_and_the_others_are_predicted(cli: Cli, tmp_path: Path) -> None:
    folder, model = made("classify", tmp_path, ("same", "other"), "ordered")
    pair = "the cat\ta dog"
    lines = pair.encode(), b"only one", b"", pair.encode(), b"caf\xe9\tx", pair.encode(), b"only two", b""
    Path("a.txt").write_bytes(b"\n".join(lines))
    done = cli("predict", folder, "a.txt")
    lines = done.out.splitlines()
    assert done.code == 2 and len(lines) == 7
    assert [bool(line) for line in lines] == [True, False, False, True, False, True, False]
    right = model.objective.format_prediction(pair, model.predict(("the cat", "a dog")))
    assert lines[0] == lines[3] == lines[5] == right
    assert "a.txt, line 2: " in done.err and "a.txt, line 5: invalid UTF-8" in done.err
    assert "same error at a.txt, line 7" in done.err and "3 of 7 inputs failed" in done.err
    found = rows(cli("predict", folder, "a.txt", "--json").out)
    assert [row["value"] is None for row in found] == [not line for line in lines]
    assert "error" in found[1] and "error" not in found[2] and "error" in found[4]
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    Path("a.csv").write_text("text,label\nthe cat,x\nthe dog\n\nthe mat,x\n")
    done = cli("predict", folder, "a.csv")
    assert done.code == 2 and [bool(line) for line in done.out.splitlines()] == [True, False, False, True]
    assert "a.csv, line 3: expected 2 columns, got 1" in done.err


def test_empty_lines_alone_are_not_an_error(cli: Cli, tmp_path: Path) -> None:
    for task, labels in (("classify", ("a", "b")), ("tag", ("O", "B-X")), ("embed", ()), ("mlm", ())):
        folder, _ = made(task, tmp_path, labels)
        done = cli("predict", folder, stdin="the [MASK] sat\n\n   \nthe [MASK]\n")
        assert done.code == 0 and "\n\n" in done.out, task


def test_remarks_about_heads_lengths_masks_and_tasks_are_printed_once(cli: Cli, tmp_path: Path) -> None:
    done = cli("predict", made("classify", tmp_path)[0], stdin="a\nb\nc\n")
    assert done.code == 2 and done.err.count("has no head for task 'classify'") == 1
    classifier, embedder = made("classify", tmp_path, ("bad", "good"))[0], made("embed", tmp_path)[0]
    done = cli("predict", classifier, "the cat", "the cat " * 40, "a dog " * 40)
    assert done.err == "warning: 2 of 3 inputs truncated at the end to the maximum length of the model.\n"
    assert "mask" in cli("predict", embedder, "the [MASK] sat", "a [MASK]").err
    assert cli("predict", embedder, "the cat").err == ""
    assert cli("predict", made("mlm", tmp_path)[0], "the [MASK] sat").err == ""
    Path("a.txt").write_text("the cat\n")
    assert "has the task 'classify'" in cli("predict", classifier, "x", "--search", "a.txt").err
    assert "has the task" not in cli("predict", embedder, "x", "--search", "a.txt").err


def test_images_are_paths_and_folders_give_images_in_order(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "notes.txt", "in/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    task: Any = find_task("classify", "image")
    found = [Path(path).name for path in expand_files(task, [str(tmp_path / "x.png"), str(tmp_path)])]
    assert found == ["x.png", "a.JPG", "b.png", "c.png"]
    assert [one.value for one in read_inputs(task, [str(tmp_path / "*.png")])] == [str(tmp_path / "b.png")]


def test_explain_takes_choices_and_only_where_something_is_chosen(cli: Cli, tmp_path: Path) -> None:
    folder, _ = made("choose", tmp_path)
    done = cli("explain", folder, "the cat", "--choices", "sat|is", "--out", "a.json")
    assert done.code == 0 and json.loads(Path("a.json").read_text())["probabilities"][1]["value"] in ("sat", "is")
    other, _ = made("embed", tmp_path)
    assert "multiple-choice" in cli("explain", other, "the cat", "--choices", "a|b").err
    assert '--choices "one answer|another"' in cli("predict", folder, "the cat").err


def test_lines_about_samples_are_short_and_few_samples_are_called_rough() -> None:
    from regard.runs.evaluate import small_sample_warning
    from regard.runs.progress import shorten_lines

    assert shorten_lines("a\n" + "b" * 300 + "\n") == "a\n" + "b" * 198 + " …"
    assert "scores on 1 text are imprecise" in small_sample_warning(find_task("classify", "text"), 1)
    assert "5.0 points" in small_sample_warning(find_task("tag", "text"), 20)
    for task, count in (("tag", 100), ("mlm", 3)):
        assert not small_sample_warning(find_task(task, "text"), count)


def test_standard_input_contains_paths_or_a_point_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = find_task("segment", "points")
    for words in ([], ["-"]):
        monkeypatch.setattr("sys.stdin", stdin(f"{tmp_path / 'a.ply'}\n{tmp_path / 'b.ply'}\n"))
        assert [Path(one.value).name for one in read_inputs(segment, words)] == ["a.ply", "b.ply"]
    for begins in ("ply\nformat ascii 1.0\n", "0.5 1.25 -3e-2\n1 2 3\n", "OFF\n8 6 0\n"):
        monkeypatch.setattr("sys.stdin", stdin(begins))
        assert [one.value for one in read_inputs(segment, [])] == [begins.encode()]


@pytest.mark.parametrize(("name", "kind"), [("room.ply", "point cloud"), ("cat.png", "image")])
def test_a_text_model_refuses_files_of_other_modalities(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"ply\n")
    with pytest.raises(RegardError, match=kind):
        list(read_inputs(find_task("algorithmic"), [str(tmp_path / name)]))
