"""Laws of all pages and figures: any text is shown as text, pages are self-contained, only supported files are written."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import refused
from page_data import page_data, page_tags
from regard.draw import panels, point_cloud, token_data
from regard.draw.attention import draw_heatmaps
from regard.draw.charts import LabelScore, draw_confusion, draw_layer_scores, draw_per_label, draw_training_curves
from regard.draw.page import write_attention_page, write_caption_page, write_image_page
from regard.errors import RegardError

Write = Callable[[Path, str], Path]
WILD = "</script><!--data--><b onclick='x'>& $x_{ 😀 漢字"

IMAGE = np.random.default_rng(3).integers(0, 256, (30, 40, 3)).astype(np.uint8)
POINTS = np.random.default_rng(4).normal(size=(20, 3)).astype(np.float32)


def token_parts(text: str) -> dict[str, Any]:
    """Everything drawn above attention maps."""
    tokens = tuple(token_data.TokenLikelihood(piece, -0.5, 1, ((text, 0.5),)) for piece in (text, "␣b"))
    one = token_data.TokenAttribution(
        text, token_data.GRADIENT, (text, "␣b"), np.array([0.5, 0.5]), (False, False), (0, 1), 0, (0,)
    )
    decision = token_data.DecisionAttribution(text, ((text, 1.0),), (one,), text)
    return {
        "likelihood": token_data.TextLikelihood(tokens, 16, 40), "decision": decision,
        "act_steps": [token_data.ActSteps(text, (text, "b"), (1, 2), 3)],
    }  # fmt: skip


def attention(text: str) -> list[token_data.AttentionMap]:
    return [
        token_data.AttentionMap("cross", text, (text, "b"), ("a", text), np.full((2, 2, 2, 2), 0.5), description=text)
    ]


def caption(text: str) -> panels.CaptionAttention:
    return panels.CaptionAttention(
        IMAGE, (panels.CaptionWord(text, 1.0, ((text, 1.0),)),), (panels.CaptionLayer("l", np.ones((1, 1, 2, 2)) / 4),)
    )


def cloud(text: str) -> point_cloud.PredictedCloud:
    return point_cloud.PredictedCloud(POINTS, np.arange(20) % 2, (text, "b"), name=text)


def neighbors(text: str) -> point_cloud.CloudAttention:
    layer = point_cloud.NeighborAttention(text, text, 0, np.zeros((20, 1), np.int64), np.ones((20, 1)))
    return point_cloud.CloudAttention(
        POINTS, (np.arange(20),), (layer,), 3, predictions=np.zeros(20, np.int64), labels=(text,)
    )


def overlay(text: str) -> list[panels.OverlayMap]:
    return [panels.OverlayMap(text, np.eye(3))]


HEAT = panels.OverlayMap("head 1", np.ones((2, 2, 2)) / 4)
SCORE = LabelScore("b", 0.5, 0.5, 0.5, 3)

PAGES: dict[str, Write] = {
    "attention": lambda path, text: write_attention_page(
        attention(text), path, title=text, note=text, facts={text: text}, **token_parts(text)
    ),
    "caption": lambda path, text: write_caption_page(caption(text), path, text, text, {text: text}),
    "image": lambda path, text: write_image_page(
        IMAGE, [HEAT._replace(name=text)], overlay(text), path, text, {text: text}, (text, None)
    ),
    "cloud": lambda path, text: point_cloud.write_cloud_page(cloud(text), path, text, text, {text: text}),
    "neighbors": lambda path, text: point_cloud.write_neighbors_page(neighbors(text), path, text, text, {text: text}),
}
FIGURES: dict[str, Write] = {
    "attention": lambda path, text: draw_heatmaps(attention(text), path, title=text, **token_parts(text)),
    "one head": lambda path, text: draw_heatmaps(attention(text), path, title=text, layer=1, head=2),
    "curves": lambda path, text: draw_training_curves([{"kind": "valid", "step": 1, text: 2.0}], path, text),
    "layers": lambda path, text: draw_layer_scores([10, 20], path, text, text, [text, "b"]),
    "scores": lambda path, text: draw_per_label([SCORE._replace(name=text)], SCORE, text, path),
    "confusion": lambda path, text: draw_confusion((text, "b"), np.eye(2, dtype=int), path),
    "caption attention": lambda path, text: panels.draw_caption_attention(caption(text), path, text, text),
    "captions": lambda path, text: panels.draw_captions([(IMAGE, text, text)], path),
    "segmentation": lambda path, text: panels.draw_segmentations(
        [panels.DenseSample(IMAGE, np.zeros((30, 40), int), name=text)], [text], path
    ),
    "depth": lambda path, text: panels.draw_depths([panels.DenseSample(IMAGE, np.ones((30, 40)), name=text)], path),
    "heatmap": lambda path, text: panels.draw_heatmap_overlays(IMAGE, overlay(text), path, text, text),
    "clouds": lambda path, text: point_cloud.draw_clouds([cloud(text)], path),
    "neighbors": lambda path, text: point_cloud.draw_neighbors(neighbors(text), path, text, text),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_self_contained_and_show_any_text(name: str, tmp_path: Path) -> None:
    plain, wild = (PAGES[name](tmp_path / "new" / f"{n}.html", text) for n, text in enumerate(("a", WILD)))
    assert page_tags(plain) == page_tags(wild) and page_data(plain).keys() == page_data(wild).keys()
    assert repr(WILD) in repr(page_data(wild)) and (name == "image" or "default-src 'none'" in wild.read_text("utf-8"))
    assert {path.name for path in wild.parent.iterdir()} == {"0.html", "1.html"}
    refused(r"\.html", PAGES[name], tmp_path / "a.png", "a", error=RegardError)
    (tmp_path / "file").write_text("")
    refused("write", PAGES[name], tmp_path / "file" / "a.html", "a", error=RegardError)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", FIGURES)
def test_figures_show_any_text_and_have_the_same_bytes_every_time(name: str, tmp_path: Path) -> None:
    paths = [FIGURES[name](tmp_path / "new" / f"{n}.svg", WILD) for n in range(2)]
    text = "".join(ElementTree.fromstring(paths[0].read_bytes()).itertext())
    assert paths[0].read_bytes() == paths[1].read_bytes() and ("</script" in text or name in ("curves", "depth"))
    assert FIGURES[name](tmp_path / "new" / "a.PNG", "b").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in paths[0].parent.iterdir()} == {"0.svg", "1.svg", "a.PNG"}
    for wrong in ("a.gif", "a", "a.pdf"):
        refused(r"\.png.*\.svg.*\.html", FIGURES[name], tmp_path / wrong, "b", error=RegardError)


def test_images_are_saved_pixel_by_pixel(tmp_path: Path) -> None:
    from PIL import Image

    with Image.open(panels.save_image(IMAGE, tmp_path / "new" / "a.png")) as picture:
        np.testing.assert_array_equal(np.asarray(picture), IMAGE)
