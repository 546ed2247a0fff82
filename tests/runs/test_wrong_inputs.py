"""Folders, URLs and JSON documents in place of texts, files and rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_predict_files import SQUAD, TEXTS, made

from conftest import Cli
from data_files import refused
from regard.data.text.formats import read_header
from regard.errors import RegardError
from regard.runs.check import check
from regard.runs.explain import read_texts
from regard.runs.inputs import read_inputs
from regard.tasks import TASKS, Task, find_task

TEXT_TASKS = [task for task in TASKS if task.input == "text"]
URLS = (
    "https://host.example/a.txt",
    "https://host.example/words",
    "s3://bucket/a.csv",
    "HTTP://host.example/a.png?b=[1]",
)


def read_all(task: Task, *words: str) -> list[Any]:
    return list(read_inputs(task, words))


@pytest.mark.parametrize("task", TEXT_TASKS, ids=lambda task: task.name)
def test_a_folder_is_no_input_of_a_text_model(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words").mkdir()
    for name in ("words", str(tmp_path), "."):
        refused("folder", read_all, task, name)
        refused("folder", read_texts, task, [name])
        refused("folder", read_texts, task, ["a text", name])
    assert [one.value for one in read_all(task, "two words", "nofolder")] == ["two words", "nofolder"]
    Path("list").write_text("words\nhttps://host.example/a.txt\n")  # lines of a file are texts
    assert [one.value for one in read_all(task, "list")] == ["words", "https://host.example/a.txt"]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_input_and_no_data(url: str) -> None:
    for task in TASKS:
        refused("URL", read_all, task, url)
        if task.name != "algorithmic":
            refused("URL", lambda name=task.name: check(name, url))
    refused("URL", read_texts, find_task("classify"), [url])
    refused("URL", read_header, url)
    assert read_texts(find_task("classify"), [f"see {url}"]) == [f"see {url}"]


def test_python_names_a_url_as_such() -> None:
    from tiny_vision_models import fresh

    refused("URL", fresh("vit", "classify").predict, URLS[0])


DOCUMENTS: dict[str, Any] = {
    "one line": json.dumps({"version": "1.1", **SQUAD}),
    "indented": json.dumps({"version": "1.1", **SQUAD}, indent=2),
    "tabs": json.dumps({"version": "1.1", **SQUAD}, indent="\t"),
    "no paragraphs": json.dumps({"version": "1.1", "rows": [{"id": 1}]}, indent=1),
    "one string": json.dumps({"name": "reviews", "rows": [{"body": "good"}]}),
}  # fmt: skip
"""JSON documents without one object per line."""


@pytest.mark.parametrize("form", DOCUMENTS)
def test_a_json_document_that_is_no_table_is_refused_with_its_keys(
    form: str, cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = DOCUMENTS[form]
    keys = list(json.loads(content))
    for name in ("a.json", "a.jsonl"):
        Path(name).write_text(content)
        for task in TASKS:
            if task.name == "qa" and "data" in keys:
                continue
            with pytest.raises(RegardError) as caught:
                for one in read_all(task, name):
                    raise one.error or AssertionError(f"{task.name}: {one.value}")
            assert all(f"{key}" in str(caught.value) for key in keys), (task.name, str(caught.value))
    folder, _ = made("classify", tmp_path, ("bad", "good"))
    done = cli("predict", folder, "a.json")
    assert done.code == 2 and not done.out.strip() and len(done.err.splitlines()) == 1
    done = cli("check", "classify", "--data", "a.json")
    assert done.code == 1 or keys[0] in done.err


def test_rows_with_other_values_next_to_the_text_are_rows(tmp_path: Path) -> None:
    """Only a list of objects in place of the text makes a document."""
    rows = [{"review": text, "tags": ["x"], "meta": {"stars": 1}} for text in TEXTS]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [one.value for one in read_all(find_task("classify"), str(path))] == TEXTS
    path.write_text(json.dumps(rows[0], indent=1))  # one indented row
    refused("review", read_all, find_task("classify"), str(path))
