"""Attention of tokens, images and captions as one self-contained HTML file, without network access or other files."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from regard.draw import panels, token_data
from regard.draw.colors import COOL_DARK, COOL_LIGHT, DARK, HEAT_COLORS, LIGHT, WARM_DARK, WARM_LIGHT
from regard.draw.figure import check_suffix, write_atomic

WEIGHT_SCALE: Final = 10_000  # weights are stored as integers: four decimals with half the bytes
MAX_TOKENS: Final = 4096  # longer texts are reduced to the passages with the largest attribution
MAX_ANSWERS: Final = 12
WARM_SCALE: Final = {"light": WARM_LIGHT, "dark": WARM_DARK}  # colors by the theme of the browser


def write_attention_page(
    maps: Sequence[token_data.AttentionMap],
    path: Path,
    title: str,
    note: str = "",
    facts: Mapping[str, str] | None = None,
    likelihood: token_data.TextLikelihood | None = None,
    decision: token_data.DecisionAttribution | None = None,
    act_steps: Sequence[token_data.ActSteps] = (),
) -> Path:
    """Write the interactive page: a grid and arcs for every layer and head of every map, cross-attention first.

    Above the maps: tokens colored by surprisal (`likelihood`), attribution (`decision`) and computation steps (`act_steps`)."""
    reading = None
    if likelihood is not None:
        reading = {
            **WARM_SCALE,
            "vocabulary": likelihood.vocab_size,
            "evenly": likelihood.uniform_surprisal,
            "given": likelihood.prompt_length,
            "row": likelihood.first_row,
            "tokens": [
                {
                    "piece": token.piece,
                    "chance": round_digits(token.probability),
                    "bits": round(token.surprisal, 3),
                    "rank": token.rank,
                    "likeliest": [[piece, round_digits(chance)] for piece, chance in token.top_k],
                }
                for token in likelihood.tokens
            ],
        }
    data = {
        "scale": WEIGHT_SCALE,
        "light": LIGHT,
        "dark": DARK,
        "maps": [
            {
                "name": item.name,
                "title": item.title,
                "description": item.description,
                "queries": item.queries,
                "keys": item.keys,
                "gathered": item.has_rest_column,
                "by": item.row_kind,
                "cuts": item.boundaries,
                "rooted": item.sqrt_scale,
                "depends": item.is_gradient,
                "weights": np.rint(np.asarray(item.weights, dtype=np.float64) * WEIGHT_SCALE).astype(int).tolist(),
            }
            for item in token_data.sort_cross_first(tuple(maps))
        ],
        "reading": reading,
        "decided": None if decision is None else _decision_data(decision),
        "thoughts": [
            {
                "title": one.title,
                "note": one.note(),
                "most": one.max_steps,
                "tokens": list(zip(one.pieces, one.steps, strict=True)),
                **WARM_SCALE,
            }
            for one in act_steps
        ],
    }
    scripts = ("views.js", "strip.js", "counted.js", "thoughts.js", "page.js")
    return write_page(path, title, note, facts or {}, data, ("page.css",), "page.html", scripts)


def write_page(
    path: Path,
    title: str,
    note: str,
    facts: Mapping[str, str],
    data: Mapping[str, object],
    styles: Sequence[str],
    body: str,
    scripts: Sequence[str],
    template: str = "frame.html",
) -> Path:
    """Fill the placeholders of the template by escaped texts, JSON data, and the content of the assets `styles`, `body` and
    `scripts`. Only one substitution pass: placeholders in inserted values are not replaced."""
    check_suffix(path, (".html", ".htm"))
    escaped = ((html.escape(name), html.escape(value)) for name, value in facts.items())
    # JSON without HTML tags: plain ASCII, with escaped angle brackets and ampersands
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    for character in "&<>":
        text = text.replace(character, f"\\u{ord(character):04x}")
    filled = {
        "title": html.escape(title),
        "note": html.escape(note),
        "facts": "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in escaped),
        "data": text,
        "style": "".join(map(read_asset, styles)),
        "body": read_asset(body) if body else "",
        "script": "".join(map(read_asset, scripts)),
    }
    whole = re.sub(r"<!--(\w+)-->", lambda place: filled[place[1]], read_asset(template))
    return write_atomic(path, lambda to: to.write_bytes(whole.encode("utf-8", "replace")))


def read_asset(name: str) -> str:
    """Content of a page asset: template, style sheet or script."""
    return resources.files("regard.draw").joinpath(name).read_text(encoding="utf-8")


def _decision_data(decision: token_data.DecisionAttribution) -> dict[str, object]:
    """Page data of a prediction. Tokens: [piece, fraction, special, word, position, fraction of the word]; an integer is the
    number of omitted tokens, null precedes the second text."""
    likely, rest = decision.probabilities[:MAX_ANSWERS], decision.probabilities[MAX_ANSWERS:]
    counted = []
    for one in decision.attributions:
        tokens: list[list[object] | int | None] = []
        for kind, at in one.layout(MAX_TOKENS):
            if kind == "token":
                own, of_word = (round_digits(float(values[at])) for values in (one.fractions, one.word_fractions))
                tokens.append([one.pieces[at], own, one.special[at], one.words[at], at, of_word])
            else:
                tokens.append(None if kind == "second text" else at)
        profile = one.profile(token_data.PROFILE_BINS).tolist() if len(one.pieces) > MAX_TOKENS else []
        counted.append(
            {
                "title": one.title,
                "way": one.method,
                "heading": one.heading,
                "description": one.description,
                "note": one.note(),
                "unit": one.unit,
                "most": round_digits(one.max_fraction),
                "at": one.output_positions,
                "map": one.map_index,
                "all": len(one.pieces),
                "tokens": tokens,
                "profile": [round_digits(value) for value in profile] or None,
                "stretch": -(-len(one.pieces) // token_data.PROFILE_BINS),
            }
        )
    return {
        "said": decision.prediction,
        "asked": decision.probabilities_title,
        "chances": [[name, round(chance, 6)] for name, chance in likely],
        "more": f"{len(rest)} others: {100 * sum(chance for _, chance in rest):.1f} %" if rest else "",
        "ramps": {token_data.GRADIENT: WARM_SCALE, token_data.ROLLOUT: {"light": COOL_LIGHT, "dark": COOL_DARK}},
        "counted": counted,
    }


def round_digits(number: float) -> float:
    """The number with six significant digits, to save space."""
    return float(f"{number:.6g}")


# -- images


def write_image_page(
    image: np.ndarray,
    layers: Sequence[panels.OverlayMap],
    methods: Sequence[panels.OverlayMap],
    path: Path,
    title: str,
    facts: Mapping[str, str],
    query: tuple[str, tuple[float, float] | None] = ("", None),
    query_grid: tuple[int, int] = (0, 0),
    positions: Any = None,
    descriptions: Mapping[str, str] | None = None,
    region: panels.Box = panels.WHOLE,
) -> Path:
    """Write a page with heatmaps over the image: `methods`, and each layer and head for any stored query. `region`: part of
    the image that the model reads."""
    data: dict[str, object] = {
        "picture": data_uri(panels.fit_image(image)),
        "size": image.shape[:2],
        "region": region,
        "dark": panels.OUTSIDE_BRIGHTNESS,
        "ways": {way.name: _quantized_grid(way.weights, way.box) for way in methods},
        "attention": [[_quantized_grid(grid, layer.box) for grid in layer.weights] for layer in layers],
        "layers": [layer.name for layer in layers],
        "each": [pack_maps(layer.weights_per_query) for layer in layers if layer.weights_per_query is not None],
        "asked": {"name": query[0], "mark": query[1]},
        "lattice": query_grid,
        "positions": None if positions is None else data_uri(panels.position_similarity_image(positions)),
        "glow": list(HEAT_COLORS),
        "about": {name: (descriptions or {}).get(name, "") for name in (*(way.name for way in methods), "attention")},
        "unit": "cell" if not layers else "pixel" if layers[0].weights.shape[-2:] == image.shape[:2] else "patch",
    }
    return write_page(path, title, "", facts, data, (), "", (), "gaze.html")


def _quantized_grid(grid: np.ndarray, box: panels.Box) -> dict[str, Any]:
    most = float(grid.max()) or 1.0
    values = np.rint(WEIGHT_SCALE * grid / most).astype(int).ravel().tolist()
    return {"most": most, "shape": list(grid.shape), "box": box, "values": values}


def pack_maps(maps: np.ndarray) -> dict[str, object]:
    """Maximum of each of (m, n) maps, and all weights as bytes relative to the maximum."""
    most, shares = relative_bytes(maps, (2, 3))
    return {"most": [round_digits(value) for value in most.ravel().tolist()], "bytes": to_base64(shares)}


def relative_bytes(values: np.ndarray, axes: int | tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The maxima over `axes`, and all values as bytes relative to the maximum."""
    most = values.max(axes, keepdims=True, initial=0.0)
    return most, np.rint(255 * values / np.where(most > 0, most, 1)).clip(0, 255).astype(np.uint8)


def to_base64(values: np.ndarray) -> str:
    """Bytes of the array in base64."""
    return base64.b64encode(values.tobytes()).decode()


def data_uri(image: np.ndarray) -> str:
    """The image as a PNG data URI."""
    from PIL import Image

    to = io.BytesIO()
    Image.fromarray(image).save(to, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(to.getvalue()).decode()}"


def write_caption_page(
    attention: panels.CaptionAttention, path: Path, title: str, note: str, facts: Mapping[str, str]
) -> Path:
    """Write a page that shows the image with the attention of one word at a time, for selected layers and heads."""
    data: dict[str, object] = {
        "picture": data_uri(panels.fit_image(attention.image)),
        "size": attention.image.shape[:2],
        "region": attention.region,
        "outside": panels.OUTSIDE_BRIGHTNESS,
        "grid": attention.grid,
        "words": [
            {
                "word": word.word,
                "chance": round_digits(word.probability),
                "likely": [[other, round_digits(chance)] for other, chance in word.top_k],
            }
            for word in attention.words
        ],
        "layers": [
            {"name": layer.name, "heads": len(layer.weights), **pack_maps(layer.weights)} for layer in attention.layers
        ],
        "how": attention.method,
        "look": {
            "dark": panels.MIN_BRIGHTNESS,
            "warm": panels.LIGHT_COLOR,
            "tint": round_digits(panels.tint_strength(attention.image)),
            "even": token_data.MIN_UNIFORM_MULTIPLE,
        },
    }
    return write_page(path, title, note, facts, data, ("page.css", "wordwise.css"), "wordwise.html", ("wordwise.js",))
