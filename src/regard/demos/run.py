"""`regard demo`: train, evaluate, predict and explain on generated data, in a few minutes; the runner and the three demos."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from rich.console import Console

from regard.data.points.cloud_files import read_cloud, write_ply
from regard.data.synthetic.point_clouds import parse_cloud_recipe
from regard.demos import scenes
from regard.demos.grammar import generate_corpus
from regard.errors import Interrupted, RegardError, UnknownNameError
from regard.explain import Explanation
from regard.explain.captioning import ALL_KINDS, CaptionExplanation, WordAttention, score_by_kind, word_attentions
from regard.files import write_json
from regard.model import Model, load
from regard.runs.evaluate import evaluate
from regard.runs.folder import RunFolder
from regard.runs.progress import PipeSafeConsole, format_duration, print_line, program_command
from regard.runs.train import train

LogFn = Callable[[str], None]
Item = TypeVar("Item")
ResultRows = Sequence[Mapping[str, str]]  # Test samples with predictions and references.


class Demo(ABC):
    name: ClassVar[str]  # argument of `regard demo`
    task: ClassVar[str]
    metric: ClassVar[str] = "exact_match"  # test score that `demo` returns
    out: ClassVar[str]  # default run folder
    settings: ClassVar[tuple[str, ...]]
    input_key: ClassVar[str]  # key of the input in a test sample
    titles: ClassVar[Mapping[str, str]]  # titles of the stages: corpus, train, score, explain
    next_steps: ClassVar[str]
    """text with commands to try next, for {program}, {folder}, and for a shell {run} and {data}"""

    @abstractmethod
    def write_data(self, folder: Path) -> dict[str, str]:
        """Write the data in a file format for users' own data; return the paths of train, valid and test."""

    @abstractmethod
    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None: ...

    @abstractmethod
    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        """Save figures and pages in the run folder; return measurements for demo.json."""


def evenly_spaced(items: Sequence[Item], count: int) -> Sequence[Item]:
    """At most `count` of the items, evenly spaced."""
    return items[:: max(len(items) // count, 1)][:count]


def save_explanation(explanation: Explanation, path: Path, log: LogFn) -> None:
    """Save page and figure, and print the paths."""
    for suffix in (".html", ".png"):
        log(f"{explanation.save(path.with_name(path.name + suffix))}")


def demo(
    what: str = "translate",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> float:
    """Run a demo and return the test score in percent: exact match, or mIoU for point clouds.

    An interrupted demo is resumed. A finished demo is not trained again, unless `overwrite` is set."""
    kinds: dict[str, type[Demo]] = {kind.name: kind for kind in (TranslateDemo, CaptionDemo, PointCloudDemo)}
    if what not in kinds:
        raise UnknownNameError("demo", what, kinds)
    spec, console = kinds[what](), console or PipeSafeConsole()
    folder = Path(spec.out if out is None else out)
    data_folder = folder.with_name(folder.name + "-data")
    times: dict[str, float] = {}

    def stage(name: str, title: str = "") -> None:
        times[name] = time.perf_counter()
        console.print(f"\n[bold]{len(times)}  {title or spec.titles[name]}[/bold]", highlight=False, soft_wrap=True)

    def log(line: str) -> None:
        print_line(console, f"  {line}")

    stage("corpus")
    data = spec.write_data(data_folder)
    stage("train")
    model = train_or_load(spec, folder, data, overwrite, console)
    stage("score")
    result = evaluate(folder, [data["test"]], device="cpu")
    log(", ".join(f"{k} {v}" for k, v in result.scores.items() if k != "signature" and "\n" not in str(v)))
    wrong = [row for row in result.rows if "reference" in row and row["prediction"] != row["reference"]]
    if wrong:
        log(f"Predictions that differ from the reference: {len(wrong)} of {len(result.rows)}, for example:")
        row = wrong[0]
        log(f"  {row[spec.input_key]}\n    prediction: {row['prediction']}\n    reference:  {row['reference']}")
    stage("predict", "Predictions")
    spec.show_predictions(model, result.rows, log)
    stage("explain")
    measured = spec.explain(model, folder, data, result.rows, log)
    times["end"] = time.perf_counter()
    seconds = {a: round(times[b] - times[a], 1) for a, b in pairwise(times)}
    write_json(folder / "demo.json", {"seconds": seconds, "test": result.scores, **measured})
    spent = ", ".join(f"{name} {value} s" for name, value in seconds.items())
    print_line(console, f"\nDone in {format_duration(times['end'] - times['corpus'])} ({spent}).")
    run, data_name = shlex.quote(str(folder)), shlex.quote(str(data_folder))
    steps = spec.next_steps.format(program=program_command(), folder=folder, run=run, data=data_name)
    print_line(console, steps)
    return float(result.scores[spec.metric])


def train_or_load(spec: Demo, folder: Path, data: dict[str, str], overwrite: bool, console: Console) -> Model:
    """Train, resume, or load the model of an earlier demo; `train` rejects a folder with other content."""
    run = RunFolder(folder)
    # the shortest command line of this demo
    command = "regard demo" + ("" if spec.name == "translate" else f" {spec.name}")
    command += "" if folder == Path(spec.out) else f" --out {shlex.quote(str(folder))}"
    facts = run.read_metadata() if run.exists() else {}
    ours = facts.get("sources", {}).get("data") == [os.path.abspath(data["train"])]
    if ours and overwrite:
        shutil.rmtree(folder)
    elif ours and "scores" in facts:
        again = f"To train again, run: {command} --overwrite"
        print_line(console, f"  note: {folder} was trained by an earlier demo. {again}")
        return load(folder)
    try:
        return train(
            spec.task,
            [data["train"]],
            valid=[data["valid"]],
            out=folder,
            settings=spec.settings,
            console=console,
            resume=ours and not overwrite,
        )
    except Interrupted as stopped:  # the demo command resumes training and runs the remaining stages
        stopped.args = (f"Interrupted; checkpoint saved. Resume with:\n  {command}",)
        raise


# -- demos

SENTENCE = "the cat danced"
REORDERED_SENTENCE = "the man said that the woman bought the red book"
"""The German verb is at the end of the sentence: the cross-attention must reach back to the middle of the source."""


class TranslateDemo(Demo):
    """An encoder-decoder Transformer on a generated English–German corpus."""

    name = task = "translate"
    out = "runs/demo"
    settings = (
        "model.depth=2", "model.decoder_depth=2", "model.ffn_dim=512", "model.dropout=0", "data.vocab_size=1000",
        "train.steps=1200", "train.batch_tokens=2048", "train.lr=3e-3", "train.warmup_steps=100",
        "train.lr_schedule=linear", "train.label_smoothing=0", "train.ema_decay=0", "train.eval_every=400",
        "train.log_every=20", "data.eval_samples=300", "decode.num_beams=1",
    )  # fmt: skip
    """A smaller transformer-tiny: the grammar has about 200 words per language."""
    input_key = "source"
    titles = {  # noqa: RUF012
        "corpus": "Data: sentence pairs generated from an English–German grammar",
        "train": "Training: a Transformer for translation",
        "score": "Evaluation: 2,000 sentences with unseen word combinations",
        "explain": "Attention",
    }
    next_steps = """
To train on your own data, write a sentence, a tab and the translation on each line of a file (or use CSV, JSONL, or two
files SRC:TGT):

  {program} train translate --data pairs.tsv --model transformer-tiny --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine "a sentence"
  {program} explain runs/mine "a sentence" --out attention.html

The results of the demo are in {folder}. To translate more sentences:

  {program} predict {run} "the old woman does not buy a red bicycle"
"""

    def write_data(self, folder: Path) -> dict[str, str]:
        """Write tab-separated files, as an example of the format for users' own data."""
        folder.mkdir(parents=True, exist_ok=True)
        corpus = generate_corpus()
        paths = {}
        for name, pairs in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test)):
            path = folder / f"{name}.tsv"
            path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
            paths[name] = str(path)
        return paths

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        for text in (SENTENCE, REORDERED_SENTENCE):
            log(f"{text}  →  {model.predict(text).value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        for name, text in (("cat", SENTENCE), ("moved", REORDERED_SENTENCE)):
            save_explanation(model.explain(text), run / f"attention-{name}", log)
        log("In the second sentence, the German verb comes last and attends to the middle of the source sentence.")
        return {}


IMAGE_SIZE = 48  # image height and width in pixels
MAX_OBJECTS = 2  # maximum number of objects in a scene
ATTENTION_SAMPLES = 100  # scenes in the measurement of attention


class CaptionDemo(Demo):
    """A captioning model with attention over the image, on generated scenes of one or two objects."""

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
        "explain": "Attention per word",
    }
    next_steps = """
To train on your own images, write {{"image": "beach.jpg", "captions": ["a dog on the sand"]}} on each line of a file
(or use CSV):

  {program} train caption --data photos/captions.jsonl --model caption-attend-tiny --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine beach.jpg
  {program} explain runs/mine beach.jpg --out attention.html

The results of the demo are in {folder}. To caption more images (combinations of color and shape that are missing
from the training data are much harder):

  {program} predict {run} {data}/test/images
  {program} evaluate {run} --data {data}/test-pairs/captions.jsonl
"""

    def write_data(self, folder: Path) -> dict[str, str]:
        paths = scenes.write_dataset(folder, IMAGE_SIZE, max_objects=MAX_OBJECTS)
        return {name: str(path) for name, path in paths.items()}

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        """Print captions of evenly spaced test scenes; scenes with a single object occur only among the first."""
        images = [row["image"] for row in evenly_spaced(rows, 4)]
        for image, answer in zip(images, model.predict(images), strict=True):
            log(f"{image}  →  {answer.value}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        right = [row for row in rows if row["prediction"] == row["reference"]]
        longest = max(right or rows, key=lambda row: len(row["reference"]))
        explanation = model.explain(longest["image"], longest["prediction"] or longest["reference"])
        save_explanation(explanation, run / "attention", log)
        scores = score_by_kind(measure_attention(model, Path(data["test"])))
        log("Attention on the objects that a word names (second column: uniform attention):")
        for kind in ("size", "color", "shape", "relation", ALL_KINDS):
            if kind in scores:
                inside, uniform = scores[kind].inside_fraction, scores[kind].uniform_fraction
                log(f"  {kind:8} {100 * inside:4.1f} %   {100 * uniform:4.1f} %")
        hit, even = (f"{100 * part:.1f} %" for part in (scores[ALL_KINDS].hit_rate, scores[ALL_KINDS].uniform_hit_rate))
        log(f"The region with the highest attention is on a named object for {hit} of these words (chance: {even}).")
        log("A relation word names two objects, and may depend on regions attended to before.")
        return {"attention": {kind: asdict(score) for kind, score in scores.items()}}


def measure_attention(model: Model, captions: Path) -> Iterator[WordAttention]:
    """Attention of each word, with the reference captions as inputs, for evenly spaced samples of a split."""
    for row in map(json.loads, evenly_spaced(captions.read_text("utf-8").splitlines(), ATTENTION_SAMPLES)):
        explanation = model.explain(str(captions.parent / row["image"]), row["captions"][0])
        assert isinstance(explanation, CaptionExplanation)
        boxes = [item["box"] for item in row["objects"]]
        yield from word_attentions(explanation.attention.maps(), row["words"], boxes, (IMAGE_SIZE, IMAGE_SIZE))


ROOM_COUNTS = {"train": 160, "valid": 16, "test": 32}  # number of rooms per split


class PointCloudDemo(Demo):
    """A Point Transformer segments generated rooms into floor, wall, table, chair and lamp."""

    name = "clouds"
    task = "segment"
    out = "runs/demo-clouds"
    metric = "miou"
    settings = (
        "data.point_features=none",
        "data.num_points=2048",
        "data.rotate=up",
        "data.jitter=0.005",
        "train.epochs=0",
        "train.steps=300",
        "train.batch_size=4",
        "train.lr=4e-3",
        "train.eval_every=100",
        "train.log_every=10",
        "data.eval_samples=16",
    )
    input_key = "cloud"
    titles = {  # noqa: RUF012
        "corpus": "Data: generated point clouds of rooms, 8,192 points each, with noise and holes",
        "train": "Training: a Point Transformer, in which each point attends to the nearest neighbors",
        "score": f"Evaluation: all points of {ROOM_COUNTS['test']} unseen rooms",
        "explain": "Attention of a point",
    }
    next_steps = """
To train on your own point clouds, use PLY files whose points have a property 'label' (or .npz, .xyz, .txt with a label
column):

  {program} train segment --data scans/ --model point-tiny --set data.voxel_size=0.04 data.block_size=4 --out runs/mine
  {program} evaluate runs/mine
  {program} predict runs/mine office.ply --out predictions/
  {program} explain runs/mine office.ply --at 1.2,0.5,0.8 --out attention.html

To classify point clouds or meshes, with one folder per class:

  {program} train classify --data parts/ --model point-tiny --out runs/parts

The results of the demo are in {folder}. To segment more rooms:

  {program} predict {run} {data}/test --out predictions/
"""

    def write_data(self, folder: Path) -> dict[str, str]:
        """Write PLY files with a property `label` per point, as an example of the format for users' own data."""
        paths = {}
        for part, many in ROOM_COUNTS.items():
            recipe = parse_cloud_recipe(f"rooms#part={part}")
            assert recipe is not None
            paths[part] = str(folder / part)
            (folder / part).mkdir(parents=True, exist_ok=True)
            for number in range(many):
                path = folder / part / f"room-{number:03}.ply"
                try:
                    is_complete = path.exists() and len(read_cloud(str(path))) > 0
                except RegardError:  # an earlier demo was interrupted while writing the file
                    is_complete = False
                if not is_complete:
                    write_ply(path, recipe.generate(number))
        return paths

    def show_predictions(self, model: Model, rows: ResultRows, log: LogFn) -> None:
        """Write predictions of some rooms, with an interactive page for each."""
        folder = Path(model.spec.source) / "answers"
        folder.mkdir(exist_ok=True)
        for path in (row["cloud"] for row in evenly_spaced(rows, 3)):
            answer = model.predict(path)
            objective: Any = model.objective
            files = objective.write_files(Path(path).stem, answer, folder)
            log(objective.format_prediction(path, answer).replace("\t", "  "))
            log(f"  {files['page']}")

    def explain(self, model: Model, run: Path, data: Mapping[str, str], rows: ResultRows, log: LogFn) -> dict[str, Any]:
        path = rows[0]["cloud"]
        cloud = read_cloud(path)
        chairs = np.flatnonzero(cloud.labels == cloud.classes.index("chair"))
        at = int(chairs[cloud.coordinates[chairs, 2].argmax()])  # highest point of a backrest
        explanation = model.explain(path, at=at)
        log(f"Point {at} of {path}: {explanation.title}")
        save_explanation(explanation, run / "attention", log)
        return {}
