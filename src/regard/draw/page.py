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

from regard.draw.act_steps import Thought
from regard.draw.attention_maps import AttentionMap, cross_first
from regard.draw.attribution import BARS, GRADIENT, ROLLED, Counted, Decided
from regard.draw.colormap import COOL_DARK, COOL_LIGHT, DARK, LIGHT, WARM_DARK, WARM_LIGHT
from regard.draw.figure import check_ending, write_whole
from regard.draw.surprisal import Reading

SCALE: Final = 10_000  # weights are stored as whole ten-thousandths: four decimals at half the bytes
TOKENS: Final = 4096  # of a longer text the page holds the passages that counted most
ANSWERS: Final = 12


def page(
    maps: Sequence[AttentionMap], path: Path, *, title: str, note: str = "", facts: Mapping[str, str] | None = None,
    reading: Reading | None = None, decided: Decided | None = None, thoughts: Sequence[Thought] = (),
) -> Path:  # fmt: skip
    """Write the interactive page: a grid and arcs for every layer and head of every map, cross-attention first.

    With `reading` the text stands above them, on the colours of how surprising each of its tokens was; with `decided` on the
    colours of how much each counted; `thoughts` on those of how many steps each took."""
    check_ending(path, (".html", ".htm"))
    ordered = cross_first(tuple(maps))
    parts = {
        "note": html.escape(note),
        "style": part("page.css"),
        "body": part("page.html"),
        "script": part("views.js") + part("strip.js") + part("counted.js") + part("thoughts.js") + part("page.js"),
    }
    data = {**_data(ordered, reading, decided), "thoughts": [_thought(one) for one in thoughts]}
    return write_page(path, title, facts or {}, data, parts)


def write_page(
    path: Path, title: str, facts: Mapping[str, str], data: Mapping[str, object], parts: Mapping[str, str],
    frame: str = "frame.html",
) -> Path:  # fmt: skip
    """The frame of a page, its places filled by these and by further `parts`, which are HTML already. One pass: what is put in
    is never searched for further places."""
    filled = {"title": html.escape(title), "facts": _listed(facts), "data": _embedded(data), **parts}
    whole = re.sub(r"<!--(\w+)-->", lambda place: filled[place[1]], part(frame))
    return write_whole(path, lambda to: to.write_bytes(whole.encode("utf-8", "replace")))


def _listed(facts: Mapping[str, str]) -> str:
    pairs = [(html.escape(name), html.escape(value)) for name, value in facts.items()]
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)


def part(name: str) -> str:
    """A file that pages are made of."""
    return resources.files("regard.draw").joinpath(name).read_text(encoding="utf-8")


def _data(maps: tuple[AttentionMap, ...], reading: Reading | None, decided: Decided | None) -> dict[str, object]:
    return {
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
                "by": item.by,
                "cuts": item.cuts,
                "rooted": item.rooted,
                "depends": item.depends,
                "weights": np.rint(np.asarray(item.weights, dtype=np.float64) * SCALE).astype(int).tolist(),
            }
            for item in maps
        ],
        "reading": None if reading is None else _expected(reading),
        "decided": None if decided is None else _decided(decided),
    }


def _embedded(data: Mapping[str, object]) -> str:
    """JSON that no HTML parser can take for a tag: plain ASCII, and every angle bracket and ampersand escaped."""
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
                "chance": brief(guess.chance),
                "bits": round(guess.surprise, 3),
                "rank": guess.rank,
                "likeliest": [[piece, brief(chance)] for piece, chance in guess.likeliest],
            }
            for guess in reading.guesses
        ],
    }


def _thought(one: Thought) -> dict[str, object]:
    tokens = [[piece, steps] for piece, steps in zip(one.pieces, one.steps, strict=True)]
    said = {"title": one.title, "note": one.note(), "most": one.most, "tokens": tokens}
    return {**said, "light": WARM_LIGHT, "dark": WARM_DARK}


def _decided(decided: Decided) -> dict[str, object]:
    likely, rest = decided.chances[:ANSWERS], decided.chances[ANSWERS:]
    return {
        "said": decided.said,
        "asked": decided.asked,
        "chances": [[name, round(chance, 6)] for name, chance in likely],
        "more": f"{len(rest)} others: {100 * sum(chance for _, chance in rest):.1f} %" if rest else "",
        "ramps": {
            GRADIENT: {"light": WARM_LIGHT, "dark": WARM_DARK},
            ROLLED: {"light": COOL_LIGHT, "dark": COOL_DARK},
        },
        "counted": [_counted(one) for one in decided.counted],
    }


def _counted(one: Counted) -> dict[str, object]:
    """Tokens as [piece, share, special, word, place, share of the whole word]; a number for so many left out; null before
    the second text."""
    tokens: list[list[object] | int | None] = []
    last, lost = 0, dict(one.seams)
    for begin, end in [*one.passages(TOKENS), (len(one.pieces), len(one.pieces))]:
        if begin > last:
            tokens.append(begin - last)
        for at in range(begin, end):
            if at and at == one.second:
                tokens.append(None)
            if at in lost:
                tokens.append(lost[at])
            shares = brief(float(one.shares[at])), brief(float(one.whole[at]))
            tokens.append([one.pieces[at], shares[0], one.special[at], one.words[at], at, shares[1]])
        last = end
    long = len(one.pieces) > TOKENS
    return {
        "title": one.title,
        "way": one.way,
        "heading": one.heading,
        "note": one.note(),
        "unit": one.unit,
        "most": brief(one.most),
        "at": one.at,
        "map": one.map,
        "all": len(one.pieces),
        "tokens": tokens,
        "profile": [brief(value) for value in one.profile(BARS).tolist()] if long else None,
        "stretch": -(-len(one.pieces) // BARS),
    }


def brief(number: float) -> float:
    """As a page holds it: six digits."""
    return float(f"{number:.6g}")
