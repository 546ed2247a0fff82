"""Explanations of a named class instead of the predicted one, for texts, words, images and point clouds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_card import MADE
from test_text_decisions import TAGS, classifier, counted, encoder
from torch import Tensor

from conftest import Cli
from data_files import refused
from regard.errors import InputError, RegardError, UnknownNameError
from regard.explain.images import ImageExplanation
from regard.explain.points import CloudExplanation
from regard.model import Model
from regard.nn.recording import record_attention
from regard.types import Batch
from tiny_point_models import cloud
from tiny_point_models import made as made_points
from tiny_text_models import translator
from tiny_vision_models import made

PICTURE = np.random.default_rng(7).integers(0, 256, (20, 28, 3), dtype=np.uint8)


# -- texts


@pytest.mark.parametrize("system", ["bert", "gpt2"])
def test_a_class_of_a_text_is_explained_as_its_strongest_competitor_is(system: str) -> None:
    model, text = classifier(system)
    first, second = counted(model.explain(text))
    for one in (first, second):
        found = model.explain(text, class_name=one.title)
        assert counted(found)[0].title == one.title
        assert np.allclose(counted(found)[0].fractions, one.fractions)
    (third,) = {*model.spec.options.labels} - {first.title, second.title}
    assert third in model.explain(text, class_name=third).title


def test_a_class_of_a_pair_of_texts_is_explained_however_the_pair_is_given() -> None:
    model = encoder("classify", ("same", "other", "so"), "ordered")
    name = counted(model.explain("the cat", "a dog"))[1].title
    right = counted(model.explain("the cat", "a dog"))[1].fractions
    for given in (("the cat", "a dog"), ("the cat\ta dog",), (("the cat", "a dog"),)):
        found = counted(model.explain(*given, class_name=name))[0]
        assert found.title == name and np.allclose(found.fractions, right)


def test_a_tag_of_words_is_explained() -> None:
    model, sentence = encoder("tag", TAGS), "the cat sat on the mat"
    (entity,) = counted(model.explain(sentence, "cat"))
    for name in TAGS:
        (found,) = counted(model.explain(sentence, "cat", class_name=name))
        assert found.title == f"cat: {name}"
        assert (found.title == entity.title) == np.allclose(found.fractions, entity.fractions)
    assert all(one.title.endswith(": B-LOC") for one in counted(model.explain(sentence, class_name="B-LOC")))


# -- images


def methods(model: Model, *given: Any, **more: Any) -> dict[str, Any]:
    found = model.explain(PICTURE, *given, **more)
    assert isinstance(found, ImageExplanation)
    return found.method_maps


@pytest.mark.parametrize(
    ("system", "task"), [("vit", "classify"), ("resnet", "classify"), ("imagegpt", "classify"), ("dpt", "segment")]
)
def test_a_class_of_an_image_is_explained_instead_of_the_predicted_one(system: str, task: str) -> None:
    model, maps = made(system, task), []
    for name in model.spec.options.labels:
        found = methods(model, class_name=name)
        named = methods(model, name)
        assert all(np.array_equal(found[way], named[way]) for way in found)
        maps.append(found["grad-cam" if system == "resnet" else "gradient × attention"])
    predicted = methods(model)["grad-cam" if system == "resnet" else "gradient × attention"]
    assert sum(np.allclose(one, predicted) for one in maps) == 1 and not np.allclose(maps[0], maps[1])
    if task == "segment":
        assert not np.allclose(methods(model, class_name="a", at=(3, 4))["gradient × attention"], maps[0])


# -- point clouds


def score(model: Model, x: Tensor, query: int, label: int, layer: int, entry: tuple[int, ...], step: float) -> float:
    """Margin of a class after a change of one attention weight (channel, point, neighbor) of a layer."""
    calls = iter(range(99))

    def edit(name: str, weights: Tensor, keys: Tensor | None) -> Tensor:
        if next(calls) != layer:
            return weights
        weights = weights.clone()
        weights[(0, *entry)] += step
        return weights

    with torch.no_grad(), record_attention(model.body, edits=[edit]):
        logits = model.objective.logits(model, Batch(x))
    own = logits[0] if logits.ndim == 2 else logits[0, query]
    return float(own[label] - own.mean())


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_a_class_of_a_point_cloud_is_explained_by_gradients_of_each_weight(task: str) -> None:
    model, whole = made_points(task), cloud(40)
    label, point = model.spec.options.labels[1], 11
    found = model.explain(whole, at=point, class_name=label)
    plain = model.explain(whole, at=point)
    assert isinstance(found, CloudExplanation) and isinstance(plain, CloudExplanation)
    assert label in found.title and label in found.facts["explained class"]
    x = torch.from_numpy(model.processor.prepare(whole)[0])[None].double()
    order = found.attention.file_index
    assert order is not None
    query = int(np.flatnonzero(order == point)[0])
    with torch.no_grad(), record_attention(model.body) as seen:
        model.objective.logits(model, Batch(x))
    total = 0.0
    for number in (0, 2, 3):
        weights = seen.records[number].weights[0]
        layer = found.attention.layers[number]
        row = found.attention.nearest_query(layer)
        right = np.zeros(weights.shape[2])
        for channel, column in np.ndindex(weights.shape[0], weights.shape[2]):
            entry = channel, row, column
            up, down = (score(model, x, query, 1, number, entry, step) for step in (1e-5, -1e-5))
            right[column] += max((up - down) / 2e-5 * float(weights[entry]), 0) / weights.shape[0]
        total += right.sum()
        assert np.allclose(layer.weights[row], right / (right.sum() or 1.0), atol=1e-4)
        assert not np.allclose(layer.weights, plain.attention.layers[number].weights, atol=1e-3)
    assert total > 0
    values = found.values
    assert values["class"] == label and "class" not in plain.values


def test_pages_and_figures_of_point_clouds_name_the_class(tmp_path: Path) -> None:
    found = made_points("classify").explain(cloud(60), class_name="box")
    for ending in ("html", "svg", "json"):
        text = found.save(tmp_path / f"a.{ending}").read_text("utf-8")
        assert "box" in text and ("gradient" in text.lower() or ending == "json")


# -- errors and the command


def test_unknown_classes_are_refused_with_the_classes() -> None:
    for model, one in (
        (classifier("bert")[0], "the cat"), (encoder("tag", TAGS), "the cat"), (made("vit", "classify"), PICTURE),
        (made("dpt", "segment"), PICTURE), (made_points("classify"), cloud()), (made_points("segment"), cloud()),
    ):  # fmt: skip
        labels = model.spec.options.labels
        with pytest.raises(UnknownNameError) as caught:
            model.explain(one, class_name="1234567")
        assert all(label in str(caught.value) for label in labels)
    refused("one class", made("vit", "classify").explain, PICTURE, "a", class_name="b", error=InputError)
    refused("one class", classifier("bert")[0].explain, "the cat", "bad", class_name="good", error=InputError)


@pytest.mark.parametrize("name", ["translate", "lm", "mlm", "qa", "choose", "embed", "depth", "draw", "caption-fixed"])
def test_tasks_without_classes_refuse_a_class(name: str) -> None:
    model = translator("transformer") if name == "translate" else MADE[name]()
    one = {"qa": ("who", "the cat"), "choose": {"context": "a", "choices": ["b", "c"]}}.get(name, "the [MASK] cat")
    refused("class", model.explain, PICTURE if model.task.input == "image" else one, class_name="a", error=RegardError)


def test_the_command_takes_a_class(cli: Cli, tmp_path: Path) -> None:
    model, text = classifier("bert")
    model.float().save(tmp_path / "run")
    name = counted(model.explain(text))[1].title
    done = cli("explain", "run", text, "--class", name, "--out", "a.json")
    assert done.code == 0 and json.loads(Path("a.json").read_text())["attributions"][0]["target"] == name
    done = cli("explain", "run", text, "--class", "1234567", "--out", "b.json")
    assert done.code == 2 and all(label in done.err for label in model.spec.options.labels)
    assert not Path("b.json").exists()
