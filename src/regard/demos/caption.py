"""The embedded scenes, those of one object or two: a captioner that looks at the picture anew for each word."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.demos import scenes
from regard.demos.demo import Demo, Rows, Say, quoted
from regard.explain.captioning import explain_caption
from regard.explain.grounding import TOTAL, Regard, regards_of, scored
from regard.model import Model

SIDE = 48
"""pixels of a picture"""
MOST = 2
"""objects of a scene"""
ASKED = 4
"""scenes that are captioned for a person to see"""
LOOKS = 100
"""scenes whose attention is measured"""
KINDS = ("size", "colour", "shape", "relation", TOTAL)
"""what words tell"""


class Captioner(Demo):
    name = task = "caption"
    out = "runs/demo-caption"
    settings = (
        f"model.size={SIDE}", "model.tap=2", "model.penalty=0", "data.vocabulary=400", "train.steps=1000", "train.images=64",
        "train.rate=1e-3", "train.smoothing=0", "train.every=500", "train.log=20", "data.score=280", "decode.beam=1",
    )  # fmt: skip
    """caption-attend-tiny without the last stage of what it sees through, which has 3 x 3 places of such small pictures, and
    the one before it 6 x 6. Most of a scene is empty: that every place be looked at is not demanded."""
    given = "picture"
    titles = {  # noqa: RUF012
        "corpus": "The pictures: scenes of coloured shapes drawn by regard, with captions",
        "train": "Training a captioner on them: before each word it looks at the picture anew",
        "score": "Scoring it on 575 scenes it has never seen",
        "answer": "Asking it",
        "explain": "What it looked at",
    }

    def write(self, folder: Path) -> dict[str, str]:
        return {name: str(path) for name, path in scenes.write(folder, SIDE, most=MOST).items()}

    def ask(self, model: Model, rows: Rows, say: Say) -> None:
        """Scenes from all over the test part: those of two objects are many more."""
        pictures = [row["picture"] for row in rows[:: max(len(rows) // ASKED, 1)]][:ASKED]
        for picture, answer in zip(pictures, model.answer(pictures), strict=True):
            say(f"{picture}  →  {answer.value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: Rows, say: Say) -> dict[str, Any]:
        right = [row for row in rows if row["answer"] == row["reference"]]
        longest = max(right or rows, key=lambda row: len(row["reference"]))
        found = model.explain(longest["picture"], longest["answer"] or longest["reference"])
        for suffix in ("html", "png"):
            say(f"{found.save(run / f'attention.{suffix}')}")
        looked = scored(regards(model, Path(data["test"])))
        say("Share of its attention on the objects that a word names; beside it that of an even look:")
        for kind in (kind for kind in KINDS if kind in looked):
            say(f"  {kind:8} {100 * looked[kind].share:4.1f} %   {100 * looked[kind].even_share:4.1f} %")
        hit, even = (f"{100 * part:.1f} %" for part in (looked[TOTAL].hit, looked[TOTAL].even_hit))
        say(f"The place that it looks at most is one of theirs for {hit} of these words; by chance for {even}.")
        say("A relation is between two objects, and may have been told from what was seen before.")
        return {"looked": {kind: asdict(score) for kind, score in looked.items()}}

    def further(self, regard: str, run: Path, data: Path) -> str:
        return f"""
Your own pictures: a file with {{"image": "beach.jpg", "captions": ["a dog on the sand"]}} on each line (or a CSV), then

  {regard} train caption --data photos/captions.jsonl --model caption-attend-tiny --out runs/mine
  {regard} evaluate runs/mine
  {regard} run runs/mine beach.jpg
  {regard} explain runs/mine beach.jpg --out looked.html

What the demo made is in {run}. Ask it more; colours with shapes that it has never seen together are much harder for it:

  {regard} run {quoted(run)} {quoted(data / "test" / "images")}
  {regard} evaluate {quoted(run)} --data {quoted(data / "test-pairs" / "captions.jsonl")}
"""


def regards(model: Model, captions: Path) -> Iterator[Regard]:
    """What was looked at while the right captions are read, of scenes from all over a part."""
    lines = captions.read_text("utf-8").splitlines()
    for line in lines[:: max(len(lines) // LOOKS, 1)][:LOOKS]:
        row = json.loads(line)
        told = explain_caption(model, str(captions.parent / row["image"]), row["captions"][0]).told
        yield from regards_of(told.maps(), row["words"], [one["box"] for one in row["objects"]], (SIDE, SIDE))
