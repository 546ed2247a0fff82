"""`regard predict --top-k`: the most likely classes in the terminal, in JSON and in tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_predict_files import made
from test_prediction_tables import rows_of

from conftest import Cli, Trained
from encoders import encoder
from regard.data.points.cloud_files import write_ply
from regard.model import Model
from regard.tasks.base import HeadOptions
from tiny_point_models import cloud
from tiny_point_models import made as gatherer
from tiny_vision_models import fresh
from tokenizer_files import STORY

LABELS = tuple("abcdefgh")


def classifier(kind: str) -> tuple[Model, str]:
    """A model with classes, and an input."""
    if kind == "image":
        Image.fromarray(np.random.default_rng(1).integers(0, 256, (9, 8, 3), dtype=np.uint8)).save("a.png")
        return fresh("vit", "classify", LABELS), "a.png"
    if kind == "points":
        write_ply("a.ply", cloud(60))
        return gatherer("classify").float(), "a.ply"
    return encoder("classify", [STORY], LABELS, vocab_size=200), "the cat sat"


@pytest.mark.parametrize("kind", ["text", "image", "points"])
def test_the_most_likely_classes_come_first_everywhere(kind: str, cli: Cli) -> None:
    model, one = classifier(kind)
    model.save("model")
    right = sorted(model.predict(one).extra["probabilities"].items(), key=lambda item: -item[1])
    for count in (1, 2, 7, 99):
        done = cli("predict", "model", one, "--top-k", count)
        some = right[:count]
        name, *shown = done.out.strip().split("\t")[kind != "text" :]
        assert done.code == 0 and name == right[0][0]
        assert shown == [f"{label} {chance:.4f}" for label, chance in some]
        found = json.loads(cli("predict", "model", one, "--top-k", count, "--json").out)
        assert [item["value"] for item in found["top_k"]] == [label for label, _ in some]
        assert found["score"] == pytest.approx([chance for _, chance in some], abs=1e-5)
        assert found["value"] == right[0][0] and "probabilities" not in found
        (row,) = rows_of(cli, "model", one, "--top-k", count)
        values = [value for label, chance in some for value in (label, pytest.approx(chance, abs=1e-5))]
        assert list(row.values())[1:] == values
        names = [
            f"{name}{f'_{n}' if n > 1 else ''}"
            for n in range(1, len(some) + 1)
            for name in ("prediction", "probability")
        ]
        assert list(row)[1:] == names
    done = cli("predict", "model", one)
    assert len(done.out.split("\t")) == 1 + (kind != "text") + min(len(right), 5)
    assert "probabilities" in json.loads(cli("predict", "model", one, "--json").out)


def test_of_several_labels_the_most_likely_ones_are_predicted(cli: Cli, tmp_path: Path) -> None:
    model = encoder("classify", [STORY], vocab_size=200, options=HeadOptions(LABELS, multi_label=True))
    model.save("model")
    right = sorted(model.predict("the cat").extra["probabilities"].items(), key=lambda item: -item[1])
    done = json.loads(cli("predict", "model", "the cat", "--top-k", 3, "--json").out)
    assert done["value"] == [label for label, _ in right[:3]] and len(done["top_k"]) == 3
    (row,) = rows_of(cli, "model", "the cat", "--top-k", 3, out="out.csv")
    assert row["prediction"] == "|".join(label for label, _ in right[:3]) and row["probability"].count("|") == 2


@pytest.mark.parametrize("task", ["tag", "qa", "mlm", "embed"])
def test_tasks_without_classes_of_an_input_refuse_it(task: str, cli: Cli, tmp_path: Path) -> None:
    folder, _ = made(task, tmp_path, ("O", "B-X") if task == "tag" else ())
    done = cli("predict", folder, "the cat", "--top-k", 2)
    assert done.code == 2 and "--top-k" in done.err and not done.out


def test_generating_tasks_refuse_it_too(cli: Cli, trained: Trained) -> None:
    done = cli("predict", trained.path, "the cat", "--top-k", 2, "--out", "a.csv")
    assert done.code == 2 and "--top-k" in done.err and not Path("a.csv").exists()
    assert "--top-k" in cli("predict", trained.path, "the cat", "--choices", "a|b", "--top-k", 2).err
