"""Captions explained word by word: sheets, pages and numbers show the attention weights."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fixed_attention_captioner import Captioner, spotted
from page_data import page_data
from regard.demos.scenes import ShapeScene, caption, caption_words, generate_splits, render_scene
from regard.draw import panels
from regard.errors import RegardError
from regard.explain.captioning import ALL_KINDS, OCCLUSION_GRID, CaptionExplanation, score_by_kind, word_attentions
from regard.processors.tokenizer.tokenizer import TextTokenizer

GRID = (3, 5)
RANDOM = np.random.RandomState(1)
PICTURE = RANDOM.randint(0, 256, (20, 30, 3)).astype(np.uint8)
SENTENCE = "a red dog sees the little cat"


@pytest.fixture(scope="module")
def text() -> TextTokenizer:
    """Tokenizer that splits "dog" and "little" into several tokens."""
    return TextTokenizer.train_sentence_bpe(["a red star sees the cat above a blue ring"] * 3, 330)


@pytest.fixture(scope="module")
def scene() -> ShapeScene:
    sizes = {"train": (0, 0, 0, 1, 0)}
    return generate_splits(sizes=sizes)["train"][0]


def tokens_of(text: TextTokenizer, sentence: str) -> list[int]:
    """Number of tokens per word; words share no token."""
    return [len(text.encode([word])[0]) for word in sentence.split()]


def tables(text: TextTokenizer, *shapes: tuple[int, ...], aside: int = 0) -> list[np.ndarray]:
    """Random attention weights with the given numbers of heads; () is attention without a head dimension."""
    steps, places = len(text.encode([SENTENCE])[0]) + 1, GRID[0] * GRID[1] + aside
    return [RANDOM.dirichlet(np.ones(places), (*shape, steps)) for shape in shapes]


def explained(text: TextTokenizer, given: list[np.ndarray], **asked: str) -> CaptionExplanation:
    return Captioner(SENTENCE, given, GRID, 24, text).explain(PICTURE, **asked)


@pytest.mark.parametrize("aside", [0, 1])
def test_each_word_has_the_attention_weights_of_its_tokens(text: TextTokenizer, aside: int) -> None:
    # two layers of several heads, and one layer without a head dimension
    given = tables(text, (2,), (), (3,), aside=aside)
    found = explained(text, given).attention
    assert [said.word for said in found.words] == SENTENCE.split()
    assert [layer.weights.shape for layer in found.layers] == [(n, 7, *GRID) for n in (2, 1, 3)]
    ends = np.cumsum(tokens_of(text, SENTENCE))
    assert ends[-1] == len(text.encode([SENTENCE])[0]) > len(ends) == 7
    for layer, table in zip(found.layers, given, strict=True):
        table = table.reshape(-1, *table.shape[-2:])[:, :-1, aside:]  # without the end token and the class token
        for word, steps in enumerate(np.split(np.arange(table.shape[1]), ends[:-1])):
            right = table[:, steps].mean(1).reshape(-1, *GRID)
            assert np.abs(layer.weights[:, word] - right).max() < 1e-6
    means = [layer.weights.mean(0) for layer in found.layers]
    assert np.allclose(found.maps(), np.mean(means, 0))
    assert np.allclose(found.maps(3), means[2]) and np.allclose(found.maps(3, 2), found.layers[2].weights[1])
    assert np.allclose(found.maps(None, 1), np.mean([layer.weights[0] for layer in found.layers], 0))
    assert ("attention outside the image grid" in explained(text, given).facts) == bool(aside)


def test_words_have_the_probability_of_their_tokens(text: TextTokenizer) -> None:
    model = Captioner(SENTENCE, tables(text, (2,)), GRID, 24, text)
    found = model.explain(PICTURE)
    middle = model.require_image_processor().prepare(PICTURE)[12, 12]
    sure = np.exp(3 + (middle / 255 * 2 - 1).mean())
    token = sure / (sure + text.size - 1)
    for said, many in zip(found.attention.words, tokens_of(text, SENTENCE), strict=True):
        assert said.probability == pytest.approx(token**many, rel=1e-4)
        assert said.top_k[0][1] == pytest.approx(token, rel=1e-4) and len(said.top_k) == 5
    assert found.attention.words[1].top_k[0][0] == "red"
    assert float(found.facts["end token probability"]) == pytest.approx(token, rel=5e-3)


def test_a_caption_that_is_given_is_read(text: TextTokenizer) -> None:
    found = explained(text, tables(text, (2,)), target=" the cat")
    assert [said.word for said in found.attention.words] == ["the", "cat"]
    assert found.title == "image → the cat"
    for wrong, told in (("  ", "empty"), ("cat " * 80, "63")):
        with pytest.raises(RegardError, match=told):
            explained(text, tables(text, (2,)), target=wrong)
    model = Captioner(SENTENCE, tables(text, (2,)), GRID, 24, text)
    with pytest.raises(RegardError, match="position"):
        model.explain(PICTURE, at=(1, 1))
    model.said = []
    with pytest.raises(RegardError, match="empty caption"):
        model.explain(PICTURE)


def test_a_truncated_caption_is_explained_as_far_as_it_goes(text: TextTokenizer) -> None:
    for given in (tables(text, (2,)), []):
        model = Captioner(SENTENCE, given, GRID, 24, text)
        whole = model.explain(PICTURE).attention.maps()
        # the maximum length: the last token is generated without an end token
        model.config.max_length = model.body.most = len(model.said)
        found = model.explain(PICTURE)
        assert [word.word for word in found.attention.words] == SENTENCE.split()
        assert np.allclose(found.attention.maps(), whole, atol=1e-5)
        assert "truncated" in found.facts["end token probability"]


def test_without_attention_a_word_is_attributed_to_occluded_patches(text: TextTokenizer) -> None:
    """The substitute model reads the pixel in the center, which is light on a dark background."""
    picture = np.zeros((64, 64, 3), dtype=np.uint8)
    picture[28:37, 28:37] = 255
    model = Captioner("a red star", [], GRID, 64, text)
    attention = model.explain(picture).attention
    right = np.zeros((1, 3, OCCLUSION_GRID, OCCLUSION_GRID))
    right[..., 3:5, 3:5] = 0.25  # the four patches whose occlusion window contains the pixel
    assert attention.layers[0].weights.shape == right.shape and attention.method == "occlusion sensitivity"
    assert len(attention.layers) == 1 and np.allclose(attention.layers[0].weights, right, atol=1e-6)
    # patches whose occlusion raises the probability have attribution 0
    assert not model.explain(255 - picture).attention.layers[0].weights.any()


def test_attention_to_named_objects_is_scored(scene: ShapeScene) -> None:
    text = TextTokenizer.train_sentence_bpe([caption(scene.objects)] * 3, 330)
    picture, boxes = render_scene(scene, 64)
    model = Captioner(caption(scene.objects), [spotted(scene, 64, (8, 8), 2)], (8, 8), 64, text)
    words = [tuple(word) for word in caption_words(scene.objects)]
    found = score_by_kind(word_attentions(model.explain(picture).attention.maps(), words, boxes, (64, 64)))
    assert set(found) - {ALL_KINDS} <= {"color", "shape", "relation", "size"}
    score = found[ALL_KINDS]
    assert score.num_words == sum(bool(kind) for _, kind, _ in words)
    assert score.inside_fraction > 3 * score.uniform_fraction and score.hit_rate > 0.9 > score.uniform_hit_rate
    with pytest.raises(ValueError, match="zip"):
        word_attentions(np.ones((2, 8, 8)), words, boxes, (64, 64))


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
    assert panels.spotlight(picture, even, panels.brightness_max(even)).max() < 255 * (
        panels.MIN_BRIGHTNESS + (1 - panels.MIN_BRIGHTNESS) / 3
    )
    for weights, is_uniform in ((even, True), (np.eye(4) / 4, False)):
        layer = panels.CaptionLayer("one", np.broadcast_to(weights, (1, 5, 4, 4)))
        attention = panels.CaptionAttention(picture, (panels.CaptionWord("a", 0.5),) * 5, (layer,))
        sheet = panels.draw_caption_attention(attention, tmp_path / "sheet.svg").read_text()
        assert ("nearly uniform" in sheet) is is_uniform and "scaled per image" in sheet


# -- sheets, pages and numbers


def test_a_sheet_has_an_image_for_each_word(text: TextTokenizer, tmp_path: Path) -> None:
    found = explained(text, tables(text, (2,), (2,)))
    sheet = found.save(tmp_path / "sheet.svg", layer=2, head=1).read_text()
    assert sheet.count("<image") == 7 + 1 + 1  # the image itself and the legend
    assert all(f">{word}<" in sheet for word in SENTENCE.split()) and "layer 2 of 2, head 1 of 2" in sheet


def test_a_sheet_of_many_words_has_several_rows(tmp_path: Path) -> None:
    words = tuple(panels.CaptionWord(f"word{'s' * (30 * (n == 2))}", 0.5 / (n + 1)) for n in range(20))
    weights = RANDOM.dirichlet(np.ones(6), (1, 20)).reshape(1, 20, 2, 3)
    attention = panels.CaptionAttention(
        np.zeros((90, 30, 3), dtype=np.uint8), words, (panels.CaptionLayer("layer 1", weights),)
    )
    with Image.open(panels.draw_caption_attention(attention, tmp_path / "a.png", "a very long title " * 30)) as sheet:
        assert sheet.width <= 11.5 * 160


def test_page_and_numbers_contain_the_weights(text: TextTokenizer, tmp_path: Path) -> None:
    found = explained(text, tables(text, (2,), (3,)))
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


def test_layers_and_heads_that_are_not_there_are_refused(text: TextTokenizer, tmp_path: Path) -> None:
    found = explained(text, tables(text, (2,), (3,)))
    for layer, head, message in ((3, None, "Layer"), (1, 3, "Head"), (None, 3, "Head")):
        with pytest.raises(RegardError, match=message):
            found.save(tmp_path / "sheet.png", layer, head)
