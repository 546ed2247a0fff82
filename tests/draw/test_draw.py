"""Figures of attention and of training: complete, legible and numerically correct."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data_files import refused
from page_data import page_data
from regard.draw.attention import CHAR_WIDTH, MAX_LINES, draw_heatmaps, inline_text, surprisal_strip, wrap_pieces
from regard.draw.charts import draw_training_curves
from regard.draw.colors import COOL_DARK, COOL_LIGHT, DARK, INK, LIGHT, WARM_DARK, WARM_LIGHT
from regard.draw.page import write_attention_page
from regard.draw.text import display_width, label, markdown_table
from regard.draw.token_data import AttentionMap, TextLikelihood, TokenLikelihood
from regard.errors import RegardError

SOURCE = ("he", "knows", "that", "the", "old", "man", "bought", "a", "red", "car", "</s>")
TARGET = ("er", "weiß", ",", "dass", "der", "alte", "Mann", "ein", "rotes", "Auto", "kaufte", "</s>")
UGLY = ("", "  ", "漢字", "\x00", "\ud800")
HOSTILE = ("</script><script>alert(1)", "$x_{", "'\"&amp;", "😀", "line\nbreak", "<!-- \u2028", *UGLY)

Row = dict[str, float | str | int]
TRAIN: list[Row] = [{"kind": "train", "step": s, "loss": 9 / s + 2, "lr": 1e-3 / s} for s in range(1, 200)]
VALID: list[Row] = [
    {"kind": "valid", "step": s, "loss": 8 / s + 3 + s / 500, "bleu": s / 8, "seconds": 1.0} for s in range(20, 200, 20)
]


def attention(name: str, queries: tuple[str, ...], keys: tuple[str, ...]) -> AttentionMap:
    raw = np.random.default_rng(7).exponential(size=(4, 4, len(queries), len(keys))) ** 3
    if name == "decoder":
        raw = raw * np.tri(len(queries), len(keys))
    return AttentionMap(name, f"What {name} looked at", queries, keys, raw / raw.sum(-1, keepdims=True))


def translation() -> list[AttentionMap]:
    sides = {"encoder": (SOURCE, SOURCE), "decoder": (TARGET, TARGET), "cross": (TARGET, SOURCE)}
    return [attention(name, *tokens) for name, tokens in sides.items()]


def pixels(path: Path) -> NDArray[np.float64]:
    from matplotlib.image import imread

    return np.asarray(imread(path), dtype=np.float64)[..., :3]


def test_the_figure_of_a_long_text_is_neither_empty_nor_huge(tmp_path: Path) -> None:
    words = tuple(f"word{at}" for at in range(60))
    picture = pixels(draw_heatmaps([attention("cross", words, words)], tmp_path / "long.png", title="long " * 200))
    assert all(600 < side < 3500 for side in picture.shape[:2])
    assert 0.02 < (picture.min(axis=2) < 0.9).mean() < 0.9


def test_the_large_panel_shows_the_weights_of_the_last_cross_layer(tmp_path: Path) -> None:
    maps = translation()
    drawn = draw_heatmaps(maps, tmp_path / "a.svg", title="t").read_bytes()
    text = "".join(ElementTree.fromstring(drawn).itertext())
    assert f"{maps[2].weights[-1].mean(axis=0).max():.2f}".removeprefix("0") in text.split()
    assert all(word in text for word in SOURCE + TARGET)


def test_layers_and_heads_count_from_one(tmp_path: Path) -> None:
    item = attention("cross", TARGET, SOURCE)
    assert np.array_equal(item.view(1, 4), item.weights[0, 3])
    assert np.allclose(item.view(None, 2), item.weights[:, 1].mean(axis=0))
    for layer, head, words in ((0, 1, "Layer.*got 0"), (5, None, "Layer.*got 5"), (1, 9, "Head.*got 9")):
        refused(words, draw_heatmaps, [item], tmp_path / "a.png", title="t", layer=layer, head=head, error=RegardError)
    for head, words in ((3, "layer 2 of 4, head 3 of 4"), (None, "layer 2 of 4, average over 4 heads")):
        assert words in draw_heatmaps([item], tmp_path / "a.svg", title="t", layer=2, head=head).read_text("utf-8")


def test_broken_weights_are_refused() -> None:
    refused("diverged", AttentionMap, "cross", "", ("a",), ("b",), np.full((1, 1, 1, 1), np.nan), error=RegardError)
    refused("empty", AttentionMap, "cross", "", (), ("b",), np.ones((1, 1, 0, 1)), error=RegardError)


def test_the_page_is_self_contained_and_shows_cross_attention_first(tmp_path: Path) -> None:
    maps = translation()
    path = write_attention_page(maps, tmp_path / "page.html", title="t", note="n", facts={"a": "b"})
    data = page_data(path)
    assert [item["name"] for item in data["maps"]] == ["cross", "encoder", "decoder"]
    for item, origin in zip(data["maps"], (maps[2], maps[0], maps[1]), strict=True):
        assert np.abs(np.array(item["weights"]) / data["scale"] - origin.weights).max() <= 1e-4
        assert (tuple(item["queries"]), tuple(item["keys"])) == (origin.queries, origin.keys)


def expected(*pieces: str, given: int = 0, row: int = 0) -> TextLikelihood:
    """Likelihoods that decrease with the position; the most likely token is always 'x'."""
    guesses = [TokenLikelihood(piece, -0.5 * at, at + 1, (("x", 0.5), ("y", 0.25))) for at, piece in enumerate(pieces)]
    return TextLikelihood(tuple(guesses), 16, 40, given, row)


PIECES = ("Be", "fore", "␣we", "␣", "pro", ",⏎", "␣any", "⏎", "漢")


def test_the_numbers_of_a_reading_are_those_of_its_product() -> None:
    reading = expected("a", "b", "c", "d", given=1)
    assert reading.log_prob == pytest.approx(-(0.5 + 1.0 + 1.5))
    assert reading.tokens[2].surprisal == pytest.approx(1 / math.log(2)) and reading.uniform_surprisal == 4
    assert list(reading.facts().values()) == ["3 after a prompt of 1", "-3.00", "2.72", "0.108"]
    refused("diverged", TextLikelihood, (TokenLikelihood("a", math.nan, 1, ()),), 16, 1, error=RegardError)


def test_lines_of_tokens_break_between_words_and_where_the_text_does() -> None:
    assert [inline_text(piece) for piece in PIECES[2:6]] == [" we", "␣", "pro", ",⏎"]
    narrow = wrap_pieces(PIECES, 11 * CHAR_WIDTH)
    assert [line for line, _ in narrow] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    wide = wrap_pieces(PIECES, 90 * CHAR_WIDTH)
    assert [line for line, _ in wide] == [0, 0, 0, 0, 0, 0, 1, 1, 2]
    for (line, left), (next_line, next_left), piece in zip(wide, wide[1:], PIECES, strict=False):
        assert next_line > line or next_left > left + display_width(inline_text(piece)) * CHAR_WIDTH
    assert len({line for line, _ in wrap_pieces(("a" * 9, "b" * 9, "c" * 9), 10 * CHAR_WIDTH)}) == 3


def test_the_text_is_drawn_above_the_maps_and_not_next_to_a_chosen_head(tmp_path: Path) -> None:
    maps = [attention("decoder", SOURCE, SOURCE)]
    reading = expected(*SOURCE)
    with_text = draw_heatmaps(maps, tmp_path / "a.svg", title="t", likelihood=reading).read_text("utf-8")
    assert "uniform over 16 tokens" in with_text and "perplexity" in with_text
    chosen = draw_heatmaps(maps, tmp_path / "b.svg", title="t", layer=1, likelihood=reading).read_text("utf-8")
    assert chosen == draw_heatmaps(maps, tmp_path / "c.svg", title="t", layer=1).read_text("utf-8")
    certain, beyond = (f"fill: {colour}" for colour in (WARM_LIGHT[0], WARM_LIGHT[-1]))
    assert certain in with_text and beyond in with_text and beyond not in chosen


def test_colors_are_not_stretched_to_a_column_that_gathers_many_keys(tmp_path: Path) -> None:
    weights = np.array([[[[0.9, 0.1, 0.0], [0.7, 0.1, 0.2]]]])
    one, many = (AttentionMap("text", "t", ("a", "b"), ("c", "a", "b"), weights, many) for many in (False, True))
    assert (one.color_max(weights), many.color_max(weights)) == (1.0, 0.2)
    even = np.full((1, 1, 2, 20), 0.05)
    spread = AttentionMap("text", "t", ("a", "b"), tuple("abcdefghijklmnopqrst"), even)
    assert spread.color_max(even) == pytest.approx(0.2)  # uniform weights have no peak
    even[0, 0, 0, 3] = 0.9
    assert spread.color_max(even) == pytest.approx(0.9)
    assert "attention weight (max 0.2)" in draw_heatmaps([many], tmp_path / "a.svg", title="t").read_text("utf-8")
    assert page_data(write_attention_page([many], tmp_path / "a.html", title="t"))["maps"][0]["gathered"] is True


def test_of_a_long_text_the_end_is_drawn() -> None:
    strip = surprisal_strip(expected(*(f"␣word{at}" for at in range(2000))), 8.0)
    assert len({box.middle for box in strip.boxes}) == MAX_LINES and strip.boxes[-1].text == " word1999"
    assert f"first {2000 - len(strip.boxes):,} tokens not shown" in strip.note
    assert strip.boxes[0].text == f" word{2000 - len(strip.boxes)}"


def test_the_page_contains_likelihoods_only_for_texts(tmp_path: Path) -> None:
    maps = [attention("decoder", HOSTILE, HOSTILE)]
    path = write_attention_page(maps, tmp_path / "a.html", title="t", likelihood=expected(*HOSTILE, given=2, row=-1))
    stored = page_data(path)["reading"]
    assert [item["piece"] for item in stored["tokens"]] == list(HOSTILE)
    assert (stored["given"], stored["row"], stored["evenly"], stored["vocabulary"]) == (2, -1, 4, 16)
    second = stored["tokens"][1]
    assert second["chance"] == pytest.approx(math.exp(-0.5), rel=1e-3) and second["rank"] == 2
    assert second["likeliest"] == [["x", 0.5], ["y", 0.25]] and second["bits"] == pytest.approx(0.721, abs=1e-3)
    assert page_data(write_attention_page(maps, tmp_path / "b.html", title="t"))["reading"] is None


def test_any_token_becomes_one_visible_line() -> None:
    assert [label(token) for token in ("a\nb", "", "  ", "\t", "\x07")] == ["a↵b", "∅", "␣␣", "⇥", "\ufffd"]
    assert label("a" * 40) == "a" * 15 + "…"
    assert label("漢" * 40) == "漢" * 7 + "…"


def linear(stops: Sequence[str]) -> np.ndarray:
    """Linear RGB of colors."""
    coded = np.array([[int(stop[at : at + 2], 16) / 255 for at in (1, 3, 5)] for stop in stops])
    return np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("stops", [LIGHT, DARK, WARM_LIGHT, WARM_DARK])
def test_equal_steps_of_weight_are_equal_steps_of_lightness(stops: tuple[str, ...]) -> None:
    cones = linear(stops) @ np.array([[0.4122, 0.2119, 0.0883], [0.5363, 0.6807, 0.2817], [0.0514, 0.1074, 0.6300]])
    steps = np.diff(np.cbrt(cones) @ np.array([0.2105, 0.7936, -0.0041]))
    assert np.abs(steps - steps.mean()).max() < 0.01


@pytest.mark.parametrize(("ink", "stops"), [(INK, COOL_LIGHT), ("#e7eaf0", COOL_DARK)])
def test_tokens_are_legible_on_every_color(ink: str, stops: Sequence[str]) -> None:
    text, *colors = linear((ink, *stops)) @ (0.2126, 0.7152, 0.0722)
    for low, high in map(sorted, ((text, color) for color in colors)):
        assert (high + 0.05) / (low + 0.05) > 4.5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"kind": "train", "step": 1, "loss": 3.0, "lr": 1e-3}],
        [{"kind": "valid", "step": 0, "loss": 3.0, "bleu": 1}],
        [{"kind": "train", "step": 5, "loss": float("nan")}, {"kind": "valid", "step": 5, "bleu": float("inf")}],
        [{"kind": "valid", "step": 5, "loss": float("nan"), "$x_{": 2.0}, {"kind": "other"}, {"kind": "train"}],
    ],
)
def test_curves_of_few_or_broken_rows_are_still_drawn(tmp_path: Path, rows: list[Row]) -> None:
    assert pixels(draw_training_curves(rows, tmp_path / "curves.png", "$ few_{")).min() < 0.9


def test_curves_mark_the_best_step_and_draw_every_metric(tmp_path: Path) -> None:
    path = draw_training_curves([*TRAIN, *({**row, "chr_f": 1.0} for row in VALID)], tmp_path / "curves.svg", "A run")
    text = "".join(ElementTree.fromstring(path.read_bytes()).itertext())
    best = min(VALID, key=lambda row: float(row["loss"]))
    assert f"best {best['loss']:.4g} at step {best['step']}" in text and "seconds" not in text
    assert all(name in text for name in ("A run", "loss", "bleu", "chr f", "learning rate", "validation"))
    again: list[Row] = [{"kind": "valid", "step": 100, "loss": loss} for loss in (1.5, 2.5)]  # after a resume
    assert "best 2.5 at step 100" in draw_training_curves(again, tmp_path / "curves.svg").read_text("utf-8")


def test_a_table_is_aligned_and_keeps_its_pipes() -> None:
    rows: list[dict[str, object]] = [
        {"name": "a|b", "bleu": 27.123456, "words": 1_234_567},
        {"name": "漢字\nx", "bleu": None, "other": True},
    ]
    assert markdown_table(rows).splitlines() == [
        "| name   |  bleu |   words | other |",
        "| ------ | ----: | ------: | ----- |",
        r"| a\|b   | 27.12 | 1234567 |       |",
        "| 漢字 x |       |         | True  |",
    ]
    assert markdown_table(rows, ["bleu"]).splitlines()[0] == "|  bleu |"
    assert markdown_table([]) == ""
    assert markdown_table([], ["a"]) == "| a   |\n| --- |"
