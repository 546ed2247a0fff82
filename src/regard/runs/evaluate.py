"""`evaluate`: metrics of a model on the validation data of its run or on other files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from regard.config import override
from regard.data.batching.split import compute_fingerprint
from regard.data.settings import PairOrder
from regard.decode.settings import apply_overrides
from regard.errors import DataError, RunError, SettingError
from regard.folders import read_config_files
from regard.model import Model, load
from regard.nn.kernels.linear import recheck_packed
from regard.runs.preprocess import LogFn, read_samples, validation_samples
from regard.runs.settings import Settings, collect_overrides, resolve
from regard.runs.spec import DataSources
from regard.tasks.base import Encoded, LossSum, Task
from regard.tasks.multilabel import pair_order
from regard.training.distributed import pick_device
from regard.training.optimizer import autocast
from regard.types import Prediction

ALLOWED_SETTINGS = (
    "data.pretokenized",
    "data.detokenize",
    "data.stride",
    "data.eval_samples",
    "data.depth_scale",
    "train.batch_tokens",
    "train.precision",
)


@dataclass(frozen=True)
class Evaluation:
    scores: dict[str, Any]
    predictions: list[Prediction]
    rows: list[dict[str, str]]
    """samples with their predictions"""


def evaluate(
    folder: str | os.PathLike[str], data: Sequence[str] = (), *, columns: Mapping[str, str] | None = None,
    settings: Sequence[str] = (), device: str = "auto", dtype: str | None = None, log: LogFn = lambda line: None,
) -> Evaluation:  # fmt: skip
    """Evaluate a model on files, or a run on its own validation data."""
    folder = Path(folder)
    _, own = read_config_files(folder)
    said = collect_overrides(settings)
    for named in (f"{group}.{key}" for group, values in said.items() for key in values):
        if not named.startswith("decode.") and named not in ALLOWED_SETTINGS:
            raise SettingError(
                f"{named} has no effect on evaluation. Supported: decode.*, {', '.join(ALLOWED_SETTINGS)}."
            )
    made = resolve(own.get("settings", {"decode": own.get("decode", {})}), said)
    model = load(folder, device=pick_device(device), dtype=dtype)
    decode = apply_overrides(model.spec.decode, said.get("decode", {}))
    if data:
        samples = read_samples(model.task, data, columns or own.get("sources", {}).get("columns", {}), log)
    elif "sources" in own:
        samples = validation_samples(model.task, DataSources.from_dict(own["sources"]), made, log)
        if compute_fingerprint(model.task.fingerprint_texts(samples)) != own["data_stats"]["valid_fingerprint"]:
            raise RunError(
                f"{folder}: the validation data of this run has changed since training. Pass files with --data."
            )
    else:
        raise RunError(f"{folder} is not a run folder, so it has no validation data. Pass files with --data.")
    for note in filter(None, (*model.notes, model.dtype_note)):
        log(note)
    task, reader = model.task, model.require_processor()
    few = small_sample_warning(task, len(samples))
    log(f"warning: {few}." if few else task.format_count(len(samples)))
    made = _with_trained_pairing(made, model)
    encoded = task.encode(samples, reader, model.config, 10**9, made.data, model.spec.labels)
    if encoded.too_long:
        fate = f"truncated {task.truncation_side}" if task.truncates else "excluded from the loss"
        what = f"{len(encoded.too_long):,} {task.row_unit or task.unit}"
        log(f"warning: {what} have more than {model.config.max_length:,} tokens and are {fate}.")
    sums = validation_loss(model, encoded, made)
    scores, answers = task.evaluate(model, encoded, decode, made.data, sums)
    rows = [task.example_row(*both) for both in zip(encoded.samples, answers, strict=False)]
    return Evaluation({"loss": round(sums.mean, 4), **scores}, answers, rows)


def _with_trained_pairing(settings: Settings, model: Model) -> Settings:
    """Settings with the pair order of the trained head."""
    pair = pair_order(model.spec.head_options)
    known = pair in get_args(PairOrder)  # head_options of other tasks have other meanings, for example a tag scheme
    return replace(settings, data=override(settings.data, {"pair_order": pair}, "data.")) if known else settings


def _parse_numbers(row: Mapping[str, str]) -> dict[str, Any]:
    """Row for JSON with the probability as a number."""
    single = row.get("probability", "").replace(".", "", 1).isdecimal()  # multi-label rows have several probabilities
    return {name: float(value) if name == "probability" and single else value for name, value in row.items()}


def write_predictions(result: Evaluation, path: str | os.PathLike[str]) -> None:
    """Write samples with predictions, one JSON object per line."""
    with Path(path).open("w", encoding="utf-8") as file:
        for row in map(_parse_numbers, result.rows):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


MIN_RELIABLE_SAMPLES = 100
"""Minimum number of samples for reliable scores."""

MIN_BATCH_TOKENS = 8192
"""Minimum tokens per validation batch: without gradients more tokens fit into memory than in training."""


def validation_loss(model: Model, encoded: Encoded, settings: Settings) -> LossSum:
    """Sum of the negative log-likelihood without label smoothing, and count."""
    total = count = 0.0
    recheck_packed()  # the weights have changed since the last validation
    with torch.no_grad(), autocast(model.device, settings.train):
        tokens = max(settings.train.batch_tokens, MIN_BATCH_TOKENS)
        for batch in model.task.eval_batches(encoded, model.config, tokens, settings.data):
            part, number = model.task.loss(model, batch.to(model.device))
            total, count = total + float(part), count + float(number)
    if not count:
        advice = f"'regard check {model.task.name}' lists missing labels; add validation data with --valid PATH."
        raise DataError("No validation sample has a usable label.", advice=advice)
    return LossSum(total, count)


def small_sample_warning(task: Task, num_samples: int) -> str:
    """Warning about imprecise scores on few samples, or an empty string."""
    if task.min_valid_samples == 1 or num_samples >= MIN_RELIABLE_SAMPLES:
        return ""
    worth = (
        ""
        if task.lower_is_better or task.has_file_output
        else f": each sample counts {100 / max(num_samples, 1):.1f} points"
    )
    return f"scores on {task.format_count(num_samples)} are imprecise{worth}"
