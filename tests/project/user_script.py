"""A script of a user: `make check` checks the types with mypy --strict, and test_inputs.py runs the functions."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from PIL import Image

import regard
from regard import Prediction, RegardError


def generate(folder: Path) -> list[str]:
    model = regard.load(folder, device="cpu", dtype=torch.float32)
    one = model.predict("the cat", max_new_tokens=3, temperature=0.5)
    several = model.predict(["the cat", "a mat"], max_new_tokens=3)
    assert_type(one, Prediction)
    assert_type(several, list[Prediction])
    assert_type(model.predict((text for text in ("the cat", "a mat")), max_new_tokens=3), list[Prediction])
    assert_type(model.predict({"a": "the cat"}.values(), max_new_tokens=3), list[Prediction])
    best = model.rank("the cat", ["a", "the"])
    explanation = model.explain("the cat")
    explanation.save(folder / "map.json")
    try:
        model.predict("the cat", nothing=1)
    except (RegardError, ValueError) as error:
        print(error, file=sys.stderr)
    with regard.record_attention(model) as records:
        logits = model.logits(torch.tensor([[5, 6]]))
    assert_type(logits, torch.Tensor)
    regard.save(model, folder / "exported")
    parts = [*model.stream("the cat", max_new_tokens=3)]
    return [str(one.value), str(best.value), *(str(item.value) for item in several), *parts, *records.names()]


def classify_images(folder: str, file: Path) -> list[Prediction]:
    model, content = regard.load(folder), file.read_bytes()
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    found = [model.predict(file), model.predict(str(file)), model.predict(content), model.predict(io.BytesIO(content))]
    with Image.open(file) as image, file.open("rb") as stream:
        found += [model.predict(image), model.predict(stream)]
    found += [model.predict(pixels), model.predict(torch.from_numpy(pixels.copy()))]  # Any, because of batches
    found += model.predict([pixels, file, content])
    return found


def train(data: Path, out: Path) -> dict[str, object]:
    settings = {"train.steps": 2, "model.width": 8, "model.heads": 2, "model.ffn_dim": 8, "data.vocab_size": 300}
    errors = regard.check("translate", [data], settings={"data.max_length": 20}).errors
    model = regard.train("translate", data, out=out, model="transformer-tiny", settings=settings, device="cpu")
    untrained = regard.build("transformer-tiny", device="meta", depth=1)
    scores = regard.evaluate(out, str(data), settings={"decode.num_beams": 1}, device="cpu").scores
    return {
        **scores,
        "errors": errors,
        "parameters": sum(p.numel() for p in untrained.parameters()),
        "task": model.task.name,
    }
