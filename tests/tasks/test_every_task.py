"""Laws of all tasks: runs on tiny data with the settings of the golden record, predictions, files and commands."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from test_python import documented

import regard
from conftest import Cli, facts
from data_files import refused
from golden import names, record
from golden.compute import Workshop
from regard.errors import RegardError
from regard.runs.evaluate import evaluate, write_predictions
from regard.tasks import TASKS, find_task
from regard.types import Prediction

SYSTEM = {
    **dict.fromkeys(("t01", "t02"), "s01"), **dict.fromkeys(("t03", "t08"), "s04"),
    **dict.fromkeys(("t04", "t05", "t06", "t07", "t09"), "s06"), **dict.fromkeys(("t10", "t12"), "s09"), "t11": "s15",
    "t13": "s14", "t14": "s22", **dict.fromkeys(("t15", "t16"), "s25"),
}  # fmt: skip
FIGURES = {
    "t05": ["confusion.png"], "t10": ["confusion.png"], "t15": ["confusion.png"], "t06": ["tags.png"], "t07": ["questions.png"],
    "t08": ["confusion.png"], "t11": ["masks.png"], "t12": ["depths.png"], "t13": ["completions.png", "drawn.png"],
    "t14": ["captions.png"], "t16": ["clouds.png"],
}  # fmt: skip
FILES = {
    "t11": {"image", "mask", "overlay"},
    "t12": {"array", "colors", "image", "millimeters"},
    "t13": {"image", "sheet"},
    "t16": {"cloud", "page"},
}
ASKED: dict[str, list[Any]] = {
    "t01": ["cat eats fish", "", "the dog and the cow"], "t02": ["1 2 3", "7", "4 0 4 1"], "t03": ["the cat", "", "a"],
    "t04": ["the cat [MASK] fish .", "[MASK]", "the [MASK] cat sees [MASK]"], "t05": ["dog finds milk", "", "cat " * 9],
    "t06": [("dog", "finds", "milk"), "owl", "the hen, the fox"],
    "t07": [("what does the cat eat ?", "today cat eats fish here"), ("who ?", "a cow"), "what\tcorn " + "and milk " * 20],
    "t08": [{"context": "a cow came", "choices": ["cow", "hen", "fox"]}, {"context": "a", "choices": ["b", "a cow"]}],
    "t09": ["cat eats fish", "", "owl " * 9],
}  # fmt: skip
"""Inputs of text tasks; inputs of other tasks are the files of their data."""
tasks = pytest.mark.parametrize("key", names.TASKS)


class Runs(Workshop):
    def trained_on(self, key: str) -> Path:
        """Run folder of a task."""
        out, (preset, changes) = self.folder / key, names.TINY[SYSTEM[key]]
        if not out.exists():
            settings = names.TRAINING | names.STEP_SIZE["float32"] | names.TASK_SETTINGS[key]
            settings |= {f"model.{name}": value for name, value in changes.items()} | {"train.eval_every": 2}
            settings |= names.CASE_SETTINGS.get(f"{SYSTEM[key]}.{key}", {})
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)
                more: Any = {"console": Console(file=io.StringIO()), "device": "cpu", "settings": settings}
                regard.train(names.TASKS[key][0], self.data(key), model=preset, out=out, **more)
        return out

    def asked(self, key: str) -> list[Any]:
        kinds = (".png",) if names.TASKS[key][1] == "image" else (".npy", ".csv")
        files = sorted(path for path in Path(self.data(key)).rglob("*") if path.suffix in kinds)
        return ASKED.get(key) or [str(path) for path in files[:3]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs of all tasks"))


def same(one: list[Prediction], other: list[Prediction]) -> bool:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, np.ndarray) else vars(value)

    return record.gap(*(json.loads(json.dumps(answers, default=plain)) for answers in (one, other))) < 1e-6


def test_every_task_is_tested_here() -> None:
    assert {find_task(*pair) for pair in names.TASKS.values()} == set(TASKS)
    refused("image", find_task, "translate", "image", error=RegardError)


@tasks
def test_a_run_is_scored_drawn_and_described(key: str, runs: Runs, tmp_path: Path) -> None:
    run, task = runs.trained_on(key), find_task(*names.TASKS[key])
    known, card = facts(run), (run / "README.md").read_text("utf-8")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    speed = f"{task.modality.batch_unit}_per_s"
    assert all(row[speed] > 0 and 0 <= row["data_wait"] <= 1 for row in lines if row["kind"] == "train")
    found = evaluate(run)
    assert found.scores == {"loss": pytest.approx(known["best"]["loss"], abs=1e-4), **known["scores"]}
    assert any(name in known["best"] for name in task.objective.metrics) and (run / "samples.txt").read_text("utf-8")
    assert {path.name for path in run.glob("*.png")} == {*FIGURES.get(key, ())}
    assert (
        all(f"({name})" in card for name in FIGURES.get(key, ())) and "regard explain" in card and "| train.lr" in card
    )
    assert {key for one in found.predictions for key in one.extra} <= documented(task.name)
    write_predictions(found, tmp_path / "rows.jsonl")
    assert len((tmp_path / "rows.jsonl").read_text("utf-8").splitlines()) == len(found.rows)


@tasks
def test_a_prediction_depends_on_its_input_only_and_is_kept_with_the_model(
    key: str, runs: Runs, tmp_path: Path
) -> None:
    model, asked = regard.load(runs.trained_on(key), dtype=torch.float64), runs.asked(key)
    together = model.predict(asked)
    assert same(model.predict(asked[:1]), together[:1]) and model.predict([]) == []
    if not model.spec.decode.do_sample:  # samples depend on the number of the input
        assert same([model.predict(item) for item in asked], together)
    if model.task.input == "image":
        path, picture = Path(asked[0]), Image.open(asked[0])
        for form in (path, path.read_bytes(), picture, np.asarray(picture)):
            found = model.predict(form)
            assert found.value == together[0].value and found.score == pytest.approx(together[0].score, abs=1e-9)
    model.save(tmp_path / "it")
    again = regard.load(tmp_path / "it", dtype=torch.float64)
    assert same(again.predict(asked), together) and again.task is model.task and again.config == model.config


@tasks
def test_the_commands_print_predictions_or_save_files(key: str, runs: Runs, cli: Cli) -> None:
    run, source = runs.trained_on(key), runs.asked(key)[0]
    model, words = regard.load(run), (source,)
    right = model.predict(source)
    if key in ("t06", "t07"):
        words = ((" " if key == "t06" else "\t").join(source),)
    elif key == "t08":
        words = (source["context"], "--choices", "|".join(source["choices"]))
    done = cli("predict", run, *words, *(("--out", "files") if key in FILES else ()))
    assert done.code == 0 and (key == "t08" or model.objective.format_prediction(words[0], right) in done.out), done
    row = json.loads(cli("predict", run, *words, "--json").out)
    assert row["input"] == words[0] and (key == "t09" or row["value"] == right.value)
    files = row.get("files", {})
    assert files.keys() == FILES.get(key, set()) and all(Path(path).exists() for path in files.values())
    if "millimeters" in files:
        assert np.abs(1000 * np.load(files["array"]) - np.asarray(Image.open(files["millimeters"]))).max() <= 0.5
    if model.objective.allows_empty_prompt:
        alone = json.loads(cli("predict", run, "--json").out)
        assert alone["value"] == model.predict("").value and "sheet" not in alone.get("files", {})
    assert cli("explain", run, *words, "--out", "why.json").code == 0
    assert json.loads(Path("why.json").read_text("utf-8"))
