"""Attention as one HTML file that needs nothing else: no network, no library, no folder beside it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np

from regard.draw.colour import DARK, LIGHT, WARM_DARK, WARM_LIGHT
from regard.draw.guesses import Reading
from regard.draw.maps import AttentionMap, cross_first
from regard.draw.paper import check_ending, write_whole

SCALE: Final = 10_000  # weights are stored as whole ten-thousandths: four decimals at half the bytes


def page(
    maps: Sequence[AttentionMap], path: Path, *, title: str, note: str = "", facts: Mapping[str, str] | None = None,
    reading: Reading | None = None,
) -> Path:  # fmt: skip
    """Write the interactive page: a grid and arcs for every layer and head of every map, cross-attention first.

    With `reading` the text stands above them, on the colours of how surprising each of its tokens was."""
    check_ending(path, (".html", ".htm"))
    ordered = cross_first(tuple(maps))
    pairs = [(html.escape(name), html.escape(value)) for name, value in (facts or {}).items()]
    parts = {
        "title": html.escape(title),
        "note": html.escape(note),
        "facts": "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs),
        "style": _part("page.css"),
        "script": _part("views.js") + _part("strip.js") + _part("page.js"),
        "data": _embedded(ordered, reading),
    }
    # One pass: what is put in is never searched for further places.
    whole = re.sub(r"<!--(\w+)-->", lambda place: parts[place[1]], _part("page.html"))
    return write_whole(path, lambda to: to.write_bytes(whole.encode("utf-8", "replace")))


def _part(name: str) -> str:
    return resources.files("regard.draw").joinpath(name).read_text(encoding="utf-8")


def _embedded(maps: tuple[AttentionMap, ...], reading: Reading | None) -> str:
    """JSON that no HTML parser can take for a tag: plain ASCII, and every angle bracket and ampersand escaped."""
    data = {
        "scale": SCALE,
        "light": LIGHT,
        "dark": DARK,
        "maps": [
            {
                "name": item.name,
                "title": item.title,
                "queries": item.queries,
                "keys": item.keys,
                "gathered": item.gathered,
                "weights": np.rint(np.asarray(item.weights, dtype=np.float64) * SCALE).astype(int).tolist(),
            }
            for item in maps
        ],
        "reading": None if reading is None else _expected(reading),
    }
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _expected(reading: Reading) -> dict[str, object]:
    return {
        "light": WARM_LIGHT,
        "dark": WARM_DARK,
        "vocabulary": reading.vocabulary,
        "evenly": reading.evenly,
        "given": reading.given,
        "row": reading.row,
        "tokens": [
            {
                "piece": guess.piece,
                "chance": _brief(guess.chance),
                "bits": round(guess.surprise, 3),
                "rank": guess.rank,
                "likeliest": [[piece, _brief(chance)] for piece, chance in guess.likeliest],
            }
            for guess in reading.guesses
        ],
    }


def _brief(chance: float) -> float:
    return float(f"{chance:.4g}")
