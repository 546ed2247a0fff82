"""`evaluate`: the task's own metrics, on the data that a run remembers or on other files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from regard.config import override
from regard.data.batching.split import fingerprint
from regard.data.settings import Pairing
from regard.decode.settings import told
from regard.errors import RunError, SettingError
from regard.folders import read_identity
from regard.model import Model, load
from regard.runs.devices import pick_device
from regard.runs.preprocess import Say, read_samples, validation_samples
from regard.runs.scoring import rough, validation_sums
from regard.runs.settings import Settings, gather, resolve
from regard.runs.spec import Sources
from regard.tasks.multilabel import pairing_of
from regard.types import Answer

SETTABLE = (
    "data.tokenized", "data.detokenise", "data.stride", "data.score", "data.unit", "train.tokens", "train.precision",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    scores: dict[str, Any]
    answers: list[Answer]
    rows: list[dict[str, str]]
    """samples with their answers"""


def evaluate(
    folder: str | os.PathLike[str], data: Sequence[str] = (), *, columns: Mapping[str, str] | None = None,
    settings: Sequence[str] = (), device: str = "auto", dtype: str | None = None, say: Say = lambda line: None,
) -> Evaluation:  # fmt: skip
    """Score a model on files, or a run on the validation data it remembers."""
    folder = Path(folder)
    _, own = read_identity(folder)
    said = gather(settings)
    for named in (f"{group}.{key}" for group, values in said.items() for key in values):
        if not named.startswith("decode.") and named not in SETTABLE:
            raise SettingError(f"{named} cannot be set here: evaluation takes decode.*, {', '.join(SETTABLE)}.")
    made = resolve(own.get("settings", {"decode": own.get("decode", {})}), said)
    model = load(folder, device=pick_device(device), dtype=dtype)
    decode = told(model.identity.decode, said.get("decode", {}))
    if data:
        samples = read_samples(model.task, data, columns or own.get("sources", {}).get("columns", {}), say)
    elif "sources" in own:
        samples = validation_samples(model.task, Sources.from_dict(own["sources"]), made, say)
        if fingerprint(model.task.texts(samples)) != own["found"]["valid_fingerprint"]:
            raise RunError(f"{folder}: its validation data is not what it was in training. Name files with --data.")
    else:
        raise RunError(f"{folder}: remembers no data, as it is no run of regard. Name files with --data.")
    for note in filter(None, (*model.notes, model.precision)):
        say(f"  {note}")
    task, reader = model.task, model.reader_or_refuse()
    say(f"  {rough(task, len(samples)) or task.some(len(samples))}")
    made = _as_trained(made, model)
    encoded = task.encode(samples, reader, model.config, 10**9, made.data, model.identity.labels)
    if encoded.too_long:
        fate = f"cut {task.cut}" if task.cuts else "the loss is without them"
        what = f"{len(encoded.too_long):,} {task.rows or task.unit}"
        say(f"  {what} are longer than {model.config.length:,} tokens: {fate}")
    sums = validation_sums(model, encoded, made)
    scores, answers = task.score(model, encoded, decode, made.data, sums)
    rows = [task.example(*both) for both in zip(encoded.samples, answers, strict=False)]
    return Evaluation({"loss": round(sums.mean, 4), **scores}, answers, rows)


def _as_trained(settings: Settings, model: Model) -> Settings:
    """A head reads pairs in the way that it has learnt."""
    pair = pairing_of(model.identity.pair)
    known = pair in get_args(Pairing)  # a tagger's says how entities are spelt
    return replace(settings, data=override(settings.data, {"pair": pair}, "data.")) if known else settings


def _numbers(row: Mapping[str, str]) -> dict[str, Any]:
    """What is a number in a row that is written for people."""
    single = row.get("probability", "").replace(".", "", 1).isdecimal()  # of several labels there are several
    return {name: float(value) if name == "probability" and single else value for name, value in row.items()}


def write_answers(result: Evaluation, path: str | os.PathLike[str]) -> None:
    """One JSON object a line: the sample and its answer."""
    with Path(path).open("w", encoding="utf-8") as file:
        for row in map(_numbers, result.rows):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
