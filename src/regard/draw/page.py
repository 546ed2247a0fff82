"""Attention as one self-contained HTML file, without network access, libraries or other files."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from regard.draw.colors import COOL_DARK, COOL_LIGHT, DARK, LIGHT, WARM_DARK, WARM_LIGHT
from regard.draw.figure import check_suffix, write_atomic
from regard.draw.token_data import (
    GRADIENT,
    PROFILE_BINS,
    ROLLOUT,
    ActSteps,
    AttentionMap,
    DecisionAttribution,
    TextLikelihood,
    TokenAttribution,
    sort_cross_first,
)

WEIGHT_SCALE: Final = 10_000  # weights are stored as integers: four decimals with half the bytes
MAX_TOKENS: Final = 4096  # longer texts are reduced to the passages with the largest attribution
MAX_ANSWERS: Final = 12


def write_attention_page(
    maps: Sequence[AttentionMap], path: Path, *, title: str, note: str = "", facts: Mapping[str, str] | None = None,
    likelihood: TextLikelihood | None = None, decision: DecisionAttribution | None = None, act_steps: Sequence[ActSteps] = (),
) -> Path:  # fmt: skip
    """Write the interactive page: a grid and arcs for every layer and head of every map, cross-attention first.

    Above the maps: tokens colored by surprisal (`likelihood`), attribution (`decision`) and computation steps (`act_steps`)."""
    check_suffix(path, (".html", ".htm"))
    ordered = sort_cross_first(tuple(maps))
    parts = {
        "note": html.escape(note),
        "style": read_asset("page.css"),
        "body": read_asset("page.html"),
        "script": read_asset("views.js")
        + read_asset("strip.js")
        + read_asset("counted.js")
        + read_asset("thoughts.js")
        + read_asset("page.js"),
    }
    data = {**_page_data(ordered, likelihood, decision), "thoughts": [_act_steps_data(one) for one in act_steps]}
    return write_page(path, title, facts or {}, data, parts)


def write_page(
    path: Path, title: str, facts: Mapping[str, str], data: Mapping[str, object], parts: Mapping[str, str],
    template: str = "frame.html",
) -> Path:  # fmt: skip
    """Fill the placeholders of the template. `parts` are already HTML. Only one substitution pass: placeholders in inserted
    values are not replaced."""
    filled = {"title": html.escape(title), "facts": _facts_html(facts), "data": _escaped_json(data), **parts}
    whole = re.sub(r"<!--(\w+)-->", lambda place: filled[place[1]], read_asset(template))
    return write_atomic(path, lambda to: to.write_bytes(whole.encode("utf-8", "replace")))


def _facts_html(facts: Mapping[str, str]) -> str:
    pairs = [(html.escape(name), html.escape(value)) for name, value in facts.items()]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)


def read_asset(name: str) -> str:
    """Content of a page asset: template, style sheet or script."""
    return resources.files("regard.draw").joinpath(name).read_text(encoding="utf-8")


def _page_data(
    maps: tuple[AttentionMap, ...], reading: TextLikelihood | None, decided: DecisionAttribution | None
) -> dict[str, object]:
    return {
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
            for item in maps
        ],
        "reading": None if reading is None else _likelihood_data(reading),
        "decided": None if decided is None else _decision_data(decided),
    }


def _escaped_json(data: Mapping[str, object]) -> str:
    """JSON without HTML tags: plain ASCII, with escaped angle brackets and ampersands."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _likelihood_data(reading: TextLikelihood) -> dict[str, object]:
    return {
        "light": WARM_LIGHT,
        "dark": WARM_DARK,
        "vocabulary": reading.vocab_size,
        "evenly": reading.uniform_surprisal,
        "given": reading.prompt_length,
        "row": reading.first_row,
        "tokens": [
            {
                "piece": guess.piece,
                "chance": round_digits(guess.probability),
                "bits": round(guess.surprisal, 3),
                "rank": guess.rank,
                "likeliest": [[piece, round_digits(chance)] for piece, chance in guess.top_k],
            }
            for guess in reading.tokens
        ],
    }


def _act_steps_data(one: ActSteps) -> dict[str, object]:
    tokens = [[piece, steps] for piece, steps in zip(one.pieces, one.steps, strict=True)]
    said = {"title": one.title, "note": one.note(), "most": one.max_steps, "tokens": tokens}
    return {**said, "light": WARM_LIGHT, "dark": WARM_DARK}


def _decision_data(decided: DecisionAttribution) -> dict[str, object]:
    likely, rest = decided.probabilities[:MAX_ANSWERS], decided.probabilities[MAX_ANSWERS:]
    return {
        "said": decided.prediction,
        "asked": decided.probabilities_title,
        "chances": [[name, round(chance, 6)] for name, chance in likely],
        "more": f"{len(rest)} others: {100 * sum(chance for _, chance in rest):.1f} %" if rest else "",
        "ramps": {
            GRADIENT: {"light": WARM_LIGHT, "dark": WARM_DARK},
            ROLLOUT: {"light": COOL_LIGHT, "dark": COOL_DARK},
        },
        "counted": [_attribution_data(one) for one in decided.attributions],
    }


def _attribution_data(one: TokenAttribution) -> dict[str, object]:
    """Page data of one attribution. Tokens: [piece, fraction, special, word, position, fraction of the word]; an integer is the
    number of omitted tokens, null precedes the second text."""
    tokens: list[list[object] | int | None] = []
    for kind, value in one.layout(MAX_TOKENS):
        if kind == "token":
            fractions = round_digits(float(one.fractions[value])), round_digits(float(one.word_fractions[value]))
            tokens.append([one.pieces[value], fractions[0], one.special[value], one.words[value], value, fractions[1]])
        else:
            tokens.append(None if kind == "second text" else value)
    long = len(one.pieces) > MAX_TOKENS
    return {
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
        "profile": [round_digits(value) for value in one.profile(PROFILE_BINS).tolist()] if long else None,
        "stretch": -(-len(one.pieces) // PROFILE_BINS),
    }


def round_digits(number: float) -> float:
    """The number with six significant digits, to save space."""
    return float(f"{number:.6g}")
