"""The public interface is equal to the record in outside.json: see tests/outside.py."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_card import ASKED, MADE

import regard
from conftest import Cli, Trained
from outside import FILE, collect, key_paths, update
from regard.data.points.cloud_files import write_ply
from regard.errors import RunError
from regard.model import Model
from regard.tasks import TASKS
from tiny_point_models import cloud

INPUTS: dict[str, Any] = {
    "lm": "the cat", "choose": {"context": "a cow came", "question": "who ?", "choices": ["cow", "hen"]},
    "mlm": "the [MASK] sat", "classify": "a fine day", "tag": "a fine day", "qa": ("who sat ?", "the cat sat"),
    "embed": {"query": "the cat", "corpus": ["a dog", "a cat"], "top_k": 1},
}  # fmt: skip
EXPLAINED: dict[str, tuple[str, ...]] = {
    "choose": ("a cow came", "cow|hen"), "qa": ("who sat ?", "the cat sat"), "embed": ("the cat", "a dog")
}  # fmt: skip
"""Arguments of `explain` for tasks with two inputs."""
INTERFACE = collect()


def compare(section: str, found: Any) -> None:
    if os.environ.get("REGARD_UPDATE_OUTSIDE"):
        update({section: found})
    assert json.loads(json.dumps(found)) == json.loads(FILE.read_text("utf-8"))[section]


@pytest.mark.parametrize("section", INTERFACE)
def test_commands_settings_signatures_findings_and_extensions(section: str) -> None:
    compare(section, INTERFACE[section])


def test_files_and_keys_of_a_run(trained: Trained) -> None:
    files = {path.relative_to(trained.path).as_posix() for path in trained.path.rglob("*") if path.is_file()}
    compare("files of a run", sorted({re.sub(r"[^/]*(step-|events\.)[^/]*", "*", file) for file in files}))
    rows = [json.loads(line) for line in (trained.path / "log.jsonl").read_text("utf-8").splitlines()]
    kinds = ("plan", "train", "valid")
    log = {kind: sorted({key for row in rows if row["kind"] == kind for key in row}) for kind in kinds}
    metadata = json.loads((trained.path / "regard.json").read_text("utf-8"))
    top = sorted(key for key in key_paths(metadata) if not key.startswith(("settings.", "model.", "decode.")))
    card = (trained.path / "README.md").read_text("utf-8").splitlines()
    front = card[1 : card.index("---", 1)]
    sections = [line for line in card if line.startswith("#")][1:]
    compare("keys of a run", {"log.jsonl": log, "regard.json": top, "README.md": [*front, *sections]})


def test_keys_of_commands(trained: Trained, cli: Cli) -> None:
    commands: dict[str, tuple[Any, ...]] = {
        "predict": (trained.path, "the cat"),
        "check": ("translate", "--data", trained.data),
        "evaluate": (trained.path,),
    }
    printed = {name: json.loads(cli(name, *words, "--json").out) for name, words in commands.items()}
    compare("keys of commands", {f"{name} --json": sorted(key_paths(row)) for name, row in printed.items()})


def test_keys_of_predictions_and_explanations(folder: Path) -> None:
    Image.linear_gradient("L").convert("RGB").resize((40, 30)).save("image.png")
    write_ply("cloud.ply", cloud())
    found: dict[str, Any] = {}
    for name, make in MADE.items():
        model: Model = make().float()
        one = INPUTS.get(name, "cloud.ply" if model.task.input == "points" else "image.png")
        one = ASKED[name][0].source if name in ASKED else one
        prediction = model.predict(one)
        value: Any = type(prediction.value).__name__
        if isinstance(prediction.value, dict):
            value = "fraction by class" if model.task.name == "segment" else sorted(key_paths(prediction.value))
        extra = dict(prediction.extra)
        if not isinstance(extra.get("probabilities"), np.ndarray):
            extra.pop("probabilities", None)
        values = model.explain(*EXPLAINED.get(name, (one,))).values
        found[f"{model.task.name} ({model.task.input})"] = {
            "value": value,
            "extra": sorted({*key_paths(extra), *prediction.extra}),
            "explanation": sorted(key for key in key_paths(values) if not key.startswith(("facts.", "attention."))),
        }
    assert {*found, "translate (text)"} == {f"{task.name} ({task.input})" for task in TASKS}
    compare("keys of predictions", found)


def test_a_run_of_another_format_is_refused_in_one_line(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.path, tmp_path / "run")
    metadata = json.loads((run / "regard.json").read_text("utf-8"))
    for other in (2, None):
        (run / "regard.json").write_text(json.dumps({**metadata, "format": other}))
        with pytest.raises(RunError, match=r"format") as caught:
            regard.load(run)
        assert "\n" not in str(caught.value) and str(run) in str(caught.value) and f"got {other}" in str(caught.value)
