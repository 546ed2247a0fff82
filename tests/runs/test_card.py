"""The commands in a model card work."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import regard
from caption_album import captioner
from conftest import Cli, Trained
from encoders import encoder
from regard.data.points.cloud_files import write_ply
from regard.data.synthetic.algorithmic import AlgorithmicQuestion
from regard.model import Model, ModelSpec, assemble
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.card import usage
from regard.systems import SYSTEMS, gpt2, universal
from regard.tasks import Task, find_task
from tiny_point_models import cloud
from tiny_point_models import made as gatherer
from tiny_text_models import SIZES
from tiny_vision_models import fresh
from tokenizer_files import STORY


def speaker(name: str) -> Model:
    task = find_task(name, "text")
    text = task.modality.build_processor(TextTokenizer.train_lm_bpe([STORY], 300), gpt2.Config())
    return assemble(ModelSpec(SYSTEMS["gpt2"], task.modality.fit_config(gpt2.Config(**SIZES), text), task), text)


ASKED: dict[str, Sequence[Any]] = {
    "algorithmic": [AlgorithmicQuestion("31415", "51413", "", 0), AlgorithmicQuestion("2", "2", "", 0)]
}
"""Samples of runs whose cards use training samples."""


def questioned() -> Model:
    """Model with a vocabulary of some digits."""
    task, text = find_task("algorithmic", "text"), TextTokenizer.from_words(["31415", "2"])
    config = task.modality.fit_config(universal.Config(width=8, heads=2, ffn_dim=8), text)
    return assemble(ModelSpec(SYSTEMS["universal"], config, task), text)


MADE: dict[str, Any] = {
    "lm": lambda: speaker("lm"), "choose": lambda: speaker("choose"),
    "mlm": lambda: encoder("mlm", [STORY], vocab_size=300),
    "classify": lambda: encoder("classify", [STORY], ("no", "yes"), vocab_size=300),
    "tag": lambda: encoder("tag", [STORY], ("O", "B-x"), vocab_size=300),
    "qa": lambda: encoder("qa", [STORY], vocab_size=300), "embed": lambda: encoder("embed", [STORY], vocab_size=300),
    "algorithmic": questioned, "recognise": lambda: fresh("vit", "classify"),
    "segment": lambda: fresh("dpt", "segment"), "depth": lambda: fresh("dpt", "depth"),
    "draw": lambda: fresh("imagegpt", "draw"), "discern": lambda: gatherer("classify"),
    "partition": lambda: gatherer("segment"),
    **{name: lambda name=name: captioner([STORY], name, "", max_length=6) for name in SYSTEMS if name.startswith("caption-")},
}  # fmt: skip


def commands(name: str, task: Task, samples: Sequence[Any] = ()) -> list[list[str]]:
    """Arguments of each command, parsed by a shell."""
    found = []
    for line in usage(name, task, samples).splitlines()[1:-1]:
        done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
        found.append(done.stdout.decode().split("\0")[1:-1])
    return found


@pytest.mark.every(6)
@pytest.mark.parametrize("name", MADE)
def test_a_card_names_commands_that_work(name: str, cli: Cli, folder: Path) -> None:
    model: Model = MADE[name]().float()
    model.save("run")
    Image.linear_gradient("L").convert("RGB").resize((40, 30)).save("image.jpg")
    write_ply("cloud.ply", cloud())
    words = commands("run", model.task, ASKED.get(name, ()))
    assert [line[0] for line in words] == ["predict", "explain", "evaluate"]
    for line in words[:-1]:
        done = cli(*line)
        assert done.code == 0, (line, done.err)
    assert Path("explanation.html").exists()


def test_the_card_of_a_run_names_them(trained: Trained, cli: Cli, folder: Path) -> None:
    card = (trained.path / "README.md").read_text("utf-8")
    words = commands(str(trained.path), regard.load(trained.path).task)
    assert all(f"regard {line[0]} {trained.path.name}" in card for line in words)
    assert [cli(*line).code for line in words] == [0, 0, 0]
