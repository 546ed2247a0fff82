"""Captions explained word by word: sheets, pages and numbers show the attention weights."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from caption_album import captioner
from data_files import refused
from page_data import page_data
from regard.demos.scenes import ShapeScene, caption_words, generate_splits, render_scene
from regard.draw import panels
from regard.errors import RegardError
from regard.explain.captioning import ALL_KINDS, OCCLUSION_GRID, CaptionExplanation, score_by_kind, word_attentions
from regard.explain.images import image_batch
from regard.model import Model
from regard.nn.recording import named_attentions, record_attention
from regard.tasks.modality.image import require_image_processor
from regard.types import DecoderInputs, Prediction
from tiny import noisy

GRID = (3, 5)
RANDOM = np.random.RandomState(1)
PICTURE = RANDOM.randint(0, 256, (24, 40, 3)).astype(np.uint8)
SENTENCE = "a red dog sees the little cat"
TEXTS = ["a red star sees the cat above a blue ring"] * 3
"""The tokenizer of these texts splits "dog" and "little" into several tokens."""


def speaker(name: str = "caption-transformer", **changes: Any) -> Model:
    """A captioner with random weights for images of 24 x 40 pixels."""
    model = noisy(captioner(TEXTS, name, **{"image_size": 24, **changes}), 0.3)
    model.processor = replace(model.processor, pixels=replace(model.processor.pixels, size=(24, 40)))
    return model


@pytest.fixture(scope="module")
def found() -> CaptionExplanation:
    """An explanation with two layers of four heads."""
    return speaker().explain(PICTURE, SENTENCE)


def says(model: Model, ids: list[int]) -> Model:
    """The model with this prediction for every image."""
    model.predict = lambda *_, **__: Prediction("", extra={"token_ids": ids})  # type: ignore[method-assign]
    return model


@pytest.fixture(scope="module")
def scene() -> ShapeScene:
    sizes = {"train": (0, 0, 0, 1, 0)}
    return generate_splits(sizes=sizes)["train"][0]


@pytest.mark.parametrize("name", ["caption-attend", "caption-transformer", "caption-vit"])
def test_each_word_has_the_attention_weights_and_the_probability_of_its_tokens(name: str) -> None:
    model = speaker(name)
    text, explained = model.tokenizer, model.explain(PICTURE, SENTENCE)
    ids, found = text.encode([SENTENCE])[0], explained.attention
    counts = [len(text.encode([word])[0]) for word in SENTENCE.split()]
    assert [said.word for said in found.words] == SENTENCE.split() and sum(counts) == len(ids) > len(counts) == 7
    batch = image_batch(model, require_image_processor(model).prepare(PICTURE))
    batch = replace(batch, decoder=DecoderInputs(torch.tensor([[model.config.bos_id, *ids]])))
    crossing = [place for place in named_attentions(model.body) if place == "align" or place.endswith(".cross")]
    with record_attention(model.body, crossing) as seen, torch.no_grad():
        logs = model.body.to_logits(model.body(batch).sequence)[0].log_softmax(-1)
    words = np.split(np.arange(len(ids)), np.cumsum(counts)[:-1])
    assert len(found.layers) == len(crossing) == (1 if name == "caption-attend" else 2)
    for layer, place in zip(found.layers, crossing, strict=True):
        weights = seen.weights(place)[0, ..., model.body.first_image_position :].numpy()  # without the class token
        for number, steps in enumerate(words):
            right = weights[:, steps].mean(1).reshape(-1, *GRID)
            assert np.abs(layer.weights[:, number] - right).max() < 1e-6
    for said, steps in zip(found.words, words, strict=True):
        assert said.probability == pytest.approx(float(logs[steps, np.array(ids)[steps]].sum().exp()), rel=1e-4)
        assert said.top_k[0][1] == pytest.approx(float(logs[steps[0]].max().exp()), rel=1e-4) and len(said.top_k) == 5
    end = float(logs[-1, model.config.eos_id].exp())
    assert float(explained.facts["end token probability"]) == pytest.approx(end, rel=5e-3)
    assert ("attention outside the image grid" in explained.facts) == (name == "caption-vit")
    means = [layer.weights.mean(0) for layer in found.layers]
    assert np.allclose(found.maps(), np.mean(means, 0)) and np.allclose(found.maps(len(means)), means[-1])
    assert np.allclose(found.maps(None, 1), np.mean([layer.weights[0] for layer in found.layers], 0))
    assert np.allclose(found.maps(1, 1), found.layers[0].weights[0])


def test_a_caption_that_is_given_is_read() -> None:
    model = speaker()
    found = model.explain(PICTURE, " the cat")
    assert [said.word for said in found.attention.words] == ["the", "cat"]
    assert found.title == "image → the cat"
    for wrong, told in (("  ", "empty"), ("cat " * 80, "23")):
        refused(told, model.explain, PICTURE, wrong, error=RegardError)
    refused("position", model.explain, PICTURE, at=(1, 1), error=RegardError)
    refused("empty caption", says(model, []).explain, PICTURE, error=RegardError)


@pytest.mark.parametrize("name", ["caption-transformer", "caption-fixed"])
def test_a_truncated_caption_is_explained_as_far_as_it_goes(name: str) -> None:
    ids = speaker(name).tokenizer.encode([SENTENCE])[0]
    whole = speaker(name).explain(PICTURE, SENTENCE).attention.maps()
    # the maximum length: the last token is generated without an end token
    found = says(speaker(name, max_length=len(ids)), ids).explain(PICTURE)
    assert [word.word for word in found.attention.words] == SENTENCE.split()
    assert np.allclose(found.attention.maps(), whole, atol=1e-5)
    assert "truncated" in found.facts["end token probability"]


def test_without_attention_a_word_is_attributed_to_occluded_patches() -> None:
    """The decoder reads the pixel in the center only, which is light on a dark background."""
    picture = np.zeros((64, 64, 3), dtype=np.uint8)
    picture[28:37, 28:37] = 255
    model = speaker("caption-fixed", image_size=64)
    model.processor = replace(model.processor, pixels=replace(model.processor.pixels, size=(64, 64)))
    model.body.eyes.pooled = lambda x: x[:, :1, 32, 32].double().expand(-1, 12)
    attention = model.explain(picture, SENTENCE).attention
    right = np.zeros((OCCLUSION_GRID, OCCLUSION_GRID))
    right[3:5, 3:5] = 0.25  # the four patches whose occlusion window contains the pixel
    assert attention.layers[0].weights.shape == (1, 7, *right.shape) and attention.method == "occlusion sensitivity"
    # patches whose occlusion raises the probability have attribution 0
    falls = [bool(weights.any()) for weights in attention.layers[0].weights[0]]
    for weights, fell in zip(attention.layers[0].weights[0], falls, strict=True):
        assert np.allclose(weights, right * fell, atol=1e-6)
    assert len(attention.layers) == 1 and len(set(falls)) == 2


def spotted(scene: ShapeScene, side: int, grid: tuple[int, int]) -> np.ndarray:
    """Attention weights, (words, rows, columns): each word attends to its objects."""
    _, boxes = render_scene(scene, side)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    found = []
    for word in caption_words(scene.objects):
        map_ = np.full(grid, 0.02)
        for number in word.objects:
            left, top, right, bottom = boxes[number]
            y, x = (top + bottom) / 2 / side * grid[0] - 0.5, (left + right) / 2 / side * grid[1] - 0.5
            map_ += np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / 1.2)
        found.append(map_ / map_.sum())
    return np.stack(found)


def test_attention_to_named_objects_is_scored(scene: ShapeScene) -> None:
    _, boxes = render_scene(scene, 64)
    words = [tuple(word) for word in caption_words(scene.objects)]
    found = score_by_kind(word_attentions(spotted(scene, 64, (8, 8)), words, boxes, (64, 64)))
    assert set(found) - {ALL_KINDS} <= {"color", "shape", "relation", "size"}
    score = found[ALL_KINDS]
    assert score.num_words == sum(bool(kind) for _, kind, _ in words)
    assert score.inside_fraction > 3 * score.uniform_fraction and score.hit_rate > 0.9 > score.uniform_hit_rate
    refused("zip", word_attentions, np.ones((2, 8, 8)), words, boxes, (64, 64), error=ValueError)


# -- brightness


def test_attended_patches_stay_bright() -> None:
    picture = np.full((40, 40, 3), (200, 120, 40), dtype=np.uint8)
    weights = np.zeros((4, 4))
    weights[1, 2] = 0.5
    found = panels.spotlight(picture, weights, panels.brightness_max(weights)).astype(float)
    warm = picture + panels.tint_strength(picture) * (np.array([255, 178, 92]) - picture.astype(float))
    assert np.abs(found[14:16, 24:26] - warm[0, 0]).max() <= 2.5
    gray = picture[0, 0].mean()
    assert np.abs(found[35, 3] - panels.MIN_BRIGHTNESS * (0.6 * picture[0, 0] + 0.4 * gray)).max() <= 1
    assert found[14, 24].sum() > found[14, 17].sum() > found[35, 3].sum()  # brightness decreases with distance
    black, white = (np.full((2, 2, 3), value, dtype=np.uint8) for value in (0, 255))
    assert panels.tint_strength(black) > 0.4 and panels.tint_strength(white) == 0


def test_uniform_attention_is_not_bright_and_the_legend_explains_it(tmp_path: Path) -> None:
    even = np.full((4, 4), 1 / 16)
    limits = [panels.brightness_max(weights) for weights in (even, np.eye(4) / 2, np.ones((1, 1)))]
    assert limits == [panels.MIN_UNIFORM_MULTIPLE / 16, 0.5, 1]
    picture = np.full((8, 8, 3), 255, dtype=np.uint8)
    limit = 255 * (panels.MIN_BRIGHTNESS + (1 - panels.MIN_BRIGHTNESS) / 3)
    assert panels.spotlight(picture, even, panels.brightness_max(even)).max() < limit
    for weights, is_uniform in ((even, True), (np.eye(4) / 4, False)):
        layer = panels.CaptionLayer("one", np.broadcast_to(weights, (1, 5, 4, 4)))
        attention = panels.CaptionAttention(picture, (panels.CaptionWord("a", 0.5),) * 5, (layer,))
        sheet = panels.draw_caption_attention(attention, tmp_path / "sheet.svg").read_text()
        assert ("nearly uniform" in sheet) is is_uniform and "scaled per image" in sheet


# -- sheets, pages and numbers


def test_a_sheet_has_an_image_for_each_word(found: CaptionExplanation, tmp_path: Path) -> None:
    sheet = found.save(tmp_path / "sheet.svg", layer=2, head=1).read_text()
    assert sheet.count("<image") == 7 + 1 + 1  # the image itself and the legend
    assert all(f">{word}<" in sheet for word in SENTENCE.split()) and "layer 2 of 2, head 1 of 4" in sheet


def test_a_sheet_of_many_words_has_several_rows(tmp_path: Path) -> None:
    words = tuple(panels.CaptionWord(f"word{'s' * (30 * (n == 2))}", 0.5 / (n + 1)) for n in range(20))
    weights = RANDOM.dirichlet(np.ones(6), (1, 20)).reshape(1, 20, 2, 3)
    attention = panels.CaptionAttention(
        np.zeros((90, 30, 3), dtype=np.uint8), words, (panels.CaptionLayer("layer 1", weights),)
    )
    with Image.open(panels.draw_caption_attention(attention, tmp_path / "a.png", "a very long title " * 30)) as sheet:
        assert sheet.width <= 11.5 * 160


def test_page_and_numbers_contain_the_weights(found: CaptionExplanation, tmp_path: Path) -> None:
    data = page_data(found.save(tmp_path / "page.html"))
    assert data["picture"].startswith("data:image/png;base64,")
    assert data["grid"] == list(GRID) and [word["word"] for word in data["words"]] == SENTENCE.split()
    for layer, right in zip(data["layers"], found.attention.layers, strict=True):
        shares = np.frombuffer(base64.b64decode(layer["bytes"]), dtype=np.uint8).reshape(right.weights.shape)
        most = np.array(layer["most"]).reshape(right.weights.shape[:2])[..., None, None]
        assert np.abs(shares / 255 * most - right.weights).max() <= most.max() / 500
        assert layer["heads"] == len(right.weights)
    numbers = json.loads(found.save(tmp_path / "numbers.json").read_text())
    assert [word["word"] for word in numbers["words"]] == SENTENCE.split() and numbers["grid"] == list(GRID)
    assert np.allclose(numbers["weights"]["layer 1"], found.attention.layers[0].weights)


def test_layers_and_heads_that_are_not_there_are_refused(found: CaptionExplanation, tmp_path: Path) -> None:
    for layer, head, message in ((3, None, "Layer"), (1, 5, "Head"), (None, 5, "Head")):
        refused(message, found.save, tmp_path / "sheet.png", layer, head, error=RegardError)
