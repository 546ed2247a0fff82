"""Captioning demo: a captioning model with attention over the image, on generated scenes of one or two objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.demos import scenes
from regard.demos.run import Demo, LogFn, ResultRows, quote_path
from regard.explain.captioning import ALL_KINDS, CaptionExplanation, WordAttention, score_by_kind, word_attentions
from regard.model import Model

IMAGE_SIZE = 48
"""image height and width in pixels"""
MAX_OBJECTS = 2
"""maximum number of objects in a scene"""
NUM_EXAMPLES = 4
"""scenes with printed captions"""
ATTENTION_SAMPLES = 100
"""scenes in the measurement of attention"""
WORD_KINDS = ("size", "color", "shape", "relation", ALL_KINDS)
"""kinds of words with a printed score"""


class CaptionDemo(Demo):
    name = task = "caption"
    out = "runs/demo-caption"
    settings = (
        f"model.image_size={IMAGE_SIZE}",
        "model.feature_level=2",
        "model.attention_penalty=0",
        "data.vocab_size=400",
        "train.steps=1000",
        "train.batch_size=64",
        "train.lr=1e-3",
        "train.label_smoothing=0",
        "train.eval_every=500",
        "train.log_every=20",
        "data.eval_samples=280",
        "decode.num_beams=1",
    )
    """caption-attend-tiny without the last encoder stage, whose feature map of such small images is 3×3; the stage before has
    6×6. Most of a scene is empty, so the penalty for regions without attention is 0."""
    input_key = "image"
    titles = {  # noqa: RUF012
        "corpus": "Data: generated images of colored shapes, with captions",
        "train": "Training: a captioning model with attention over the image for each word",
        "score": "Evaluation: 575 unseen scenes",
        "predict": "Predictions",
        "explain": "Attention per word",
    }

    def write_data(self, folder: Path) -> dict[str, str]:
        return {
            name: str(path) for name, path in scenes.write_dataset(folder, IMAGE_SIZE, max_objects=MAX_OBJECTS).items()
        }

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        """Print captions of evenly spaced test scenes; scenes with a single object occur only among the first."""
        pictures = [row["image"] for row in rows[:: max(len(rows) // NUM_EXAMPLES, 1)]][:NUM_EXAMPLES]
        for picture, answer in zip(pictures, model.predict(pictures), strict=True):
            log(f"{picture}  →  {answer.value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        right = [row for row in rows if row["prediction"] == row["reference"]]
        longest = max(right or rows, key=lambda row: len(row["reference"]))
        found = model.explain(longest["image"], longest["prediction"] or longest["reference"])
        for suffix in ("html", "png"):
            log(f"{found.save(run / f'attention.{suffix}')}")
        looked = score_by_kind(measure_attention(model, Path(data["test"])))
        log("Attention on the objects that a word names (second column: uniform attention):")
        for kind in (kind for kind in WORD_KINDS if kind in looked):
            log(
                f"  {kind:8} {100 * looked[kind].inside_fraction:4.1f} %   {100 * looked[kind].uniform_fraction:4.1f} %"
            )
        hit, even = (f"{100 * part:.1f} %" for part in (looked[ALL_KINDS].hit_rate, looked[ALL_KINDS].uniform_hit_rate))
        log(f"The region with the highest attention is on a named object for {hit} of these words (chance: {even}).")
        log("A relation word names two objects, and may depend on regions attended to before.")
        return {"attention": {kind: asdict(score) for kind, score in looked.items()}}

    def next_steps(self, program: str, run: Path, data: Path) -> str:
        return f"""
To train on your own images, write {{"image": "beach.jpg", "captions": ["a dog on the sand"]}} on each line of a file
(or use CSV):

  {program} train caption --data photos/captions.jsonl --model caption-attend-tiny --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine beach.jpg
  {program} explain runs/mine beach.jpg --out attention.html

The results of the demo are in {run}. To caption more images (combinations of color and shape that are missing
from the training data are much harder):

  {program} predict {quote_path(run)} {quote_path(data / "test" / "images")}
  {program} evaluate {quote_path(run)} --data {quote_path(data / "test-pairs" / "captions.jsonl")}
"""


def measure_attention(model: Model, captions: Path) -> Iterator[WordAttention]:
    """Attention of each word, with the reference captions as inputs, for evenly spaced samples of a split."""
    lines = captions.read_text("utf-8").splitlines()
    for line in lines[:: max(len(lines) // ATTENTION_SAMPLES, 1)][:ATTENTION_SAMPLES]:
        row = json.loads(line)
        explanation = model.explain(str(captions.parent / row["image"]), row["captions"][0])
        assert isinstance(explanation, CaptionExplanation)
        boxes = [item["box"] for item in row["objects"]]
        yield from word_attentions(explanation.attention.maps(), row["words"], boxes, (IMAGE_SIZE, IMAGE_SIZE))
