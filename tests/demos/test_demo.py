"""Demos from built-in data to figures: started, interrupted and shown again."""

from __future__ import annotations

import io
import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.demos import DEMOS, scenes
from regard.demos.run import CaptionDemo, PointCloudDemo, TranslateDemo, demo, measure_attention
from regard.errors import Interrupted, UnknownNameError
from regard.model import load
from regard.runs.progress import ProgressReporter

pytestmark = pytest.mark.slow


SMALL = {"train": (4, 12, 0, 0, 0), "valid": (2, 4, 2, 0, 0), "test": (2, 6, 0, 0, 0), "test-pairs": (0, 2, 0, 0, 0)}
FEW = (
    "model.image_size=48", "model.feature_level=2", "model.width=16", "model.embedding_dim=8", "model.attention_dim=8",
    "data.vocab_size=300", "train.steps=4", "train.eval_every=2", "train.batch_size=4", "train.warmup_steps=1",
    "train.precision=float32", "data.eval_samples=4", "decode.num_beams=1", "decode.max_new_tokens=8", "train.log_every=1",
)  # fmt: skip

Shown = Callable[..., str]


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shown:
    """Output of a captioning demo with few scenes, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    drawn = scenes.generate_splits
    monkeypatch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)
    monkeypatch.setattr("regard.tasks.caption.Caption.save_figures", lambda *_: [])
    monkeypatch.setattr("regard.demos.run.program_command", lambda: "regard")
    monkeypatch.setattr(scenes, "SPLIT_SIZES", SMALL)
    monkeypatch.setattr(scenes, "generate_splits", lambda: drawn(sizes=SMALL))
    monkeypatch.setattr("regard.demos.run.CaptionDemo.settings", FEW)

    def call(what: str = "caption", out: str | None = None, again: bool = False) -> str:
        told = io.StringIO()
        demo(what, out, again, Console(file=told, width=80))
        return told.getvalue()

    return call


def test_the_captioners_demo_runs_from_scenes_to_figures_and_is_shown_again(show: Shown) -> None:
    printed = show()
    run, data = Path("runs/demo-caption"), Path("runs/demo-caption-data")
    pictures = ["test-00000", "test-00002", "test-00004", "test-00006"]  # spread over all scenes
    assert all(f"{data}/test/images/{name}.png  →" in printed for name in pictures)
    assert "also in the validation data" not in printed and "exact_match" in printed
    assert "\n5  Attention per word" in printed and all((run / f"attention.{e}").exists() for e in ("html", "png"))
    kept = json.loads((run / "demo.json").read_text())
    assert kept["test"]["samples"] == 8 and list(kept["seconds"]) == ["corpus", "train", "score", "predict", "explain"]
    score = kept["attention"]["all"]
    inside, uniform = score["inside_fraction"], score["uniform_fraction"]
    assert f"    all      {100 * inside:4.1f} %   {100 * uniform:4.1f} %\n" in printed and 0 < uniform < 0.2
    assert f"named object for {100 * score['hit_rate']:.1f} % of these words (chance: " in printed
    assert set(kept["attention"]) == {"all", "color", "relation", "shape", "size"}
    lines = Path(data / "valid/captions.jsonl").read_text().splitlines()
    # none with three objects
    assert [len(json.loads(line)["objects"]) for line in lines].count(2) == 4 and len(lines) == 6
    weights, stamp = (run / "model.safetensors").read_bytes(), (data / "scenes.json").stat().st_mtime_ns
    shown = show()
    assert "regard demo caption --overwrite" in shown and "step " not in shown and "  →  " in shown
    assert (data / "scenes.json").stat().st_mtime_ns == stamp
    assert "step " in show(again=True) and (run / "model.safetensors").read_bytes() == weights


def test_an_interrupted_demo_resumes_in_a_folder_with_spaces(show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = ProgressReporter.advance

    def stopped(self: ProgressReporter, *told: Any) -> None:
        advance(self, *told)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as meanwhile, pytest.raises(Interrupted, match="--out"):
        meanwhile.setattr(ProgressReporter, "advance", stopped)
        show(out="my runs/one")
    told = show(out="my runs/one")
    assert "Resuming after step 1.\n" in told
    commands = [shlex.split(line) for line in told.splitlines() if line.startswith("  regard ")]
    assert ["regard", "predict", "my runs/one", "my runs/one-data/test/images"] in commands
    assert ["regard", "evaluate", "my runs/one", "--data", "my runs/one-data/test-pairs/captions.jsonl"] in commands
    assert "regard demo caption --out 'my runs/one' --overwrite" in show(out="my runs/one")


def test_attention_is_measured_in_scenes_of_the_whole_set(show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    show()
    model, place = load("runs/demo-caption"), Path("runs/demo-caption-data/test/captions.jsonl")
    rows = [json.loads(line) for line in place.read_text().splitlines()]
    named = [[word for word in row["words"] if word[1]] for row in rows]
    assert [found.kind for found in measure_attention(model, place)] == [word[1] for words in named for word in words]
    monkeypatch.setattr("regard.demos.run.ATTENTION_SAMPLES", 2)
    found = list(measure_attention(model, place))
    assert len(found) == len(named[0]) + len(named[4])
    assert all(one.weights.shape == (6, 6) and one.weights.sum() == pytest.approx(1, rel=1e-5) for one in found)
    assert {tuple(box) for box in found[0].boxes} == {tuple(rows[0]["objects"][0]["box"])}


def test_the_demo_of_point_clouds_runs_from_rooms_to_pages(show: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.demos.run.ROOM_COUNTS", {"train": 4, "valid": 2, "test": 3})
    few = "epochs=0 steps=2 eval_every=2 batch_size=2 log_every=1 precision=float32"
    settings = ("data.num_points=128", *(f"train.{setting}" for setting in few.split()))
    monkeypatch.setattr("regard.demos.run.PointCloudDemo.settings", settings)
    printed = show("clouds")
    run, data = Path("runs/demo-clouds"), Path("runs/demo-clouds-data")
    assert "miou" in printed and "Attention of a point" in printed and len(list((data / "train").glob("*.ply"))) == 4
    assert [path.name for path in sorted((run / "answers").glob("*.html"))] == [f"room-00{n}.html" for n in range(3)]
    assert (run / "attention.html").exists() and json.loads((run / "demo.json").read_text())["test"]["samples"] == 3
    (data / "test" / "room-001.ply").write_bytes(b"ply\nbroken off")
    shown = show("clouds")
    assert "regard demo clouds --overwrite" in shown and "step " not in shown and "room-001" in shown


def test_demos_have_separate_folders_and_an_unknown_one_is_refused_by_name() -> None:
    kinds = (TranslateDemo, CaptionDemo, PointCloudDemo)
    assert [kind.name for kind in kinds] == list(DEMOS)
    assert [kind.out for kind in kinds] == ["runs/demo", "runs/demo-caption", "runs/demo-clouds"]
    for name, message in (("paint", "'paint'"), ("captions", "'caption'")):
        with pytest.raises(UnknownNameError, match=message):
            demo(name)
