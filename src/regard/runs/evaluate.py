"""`evaluate`: metrics of a model on the validation data of its run or on other files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.config import checked
from regard.data.memory_tables import Data, data_entries
from regard.data.text.table_writer import TableWriter, check_output
from regard.data.training_files import DataSources, LogFn, content_fingerprint, read_samples, validation_samples
from regard.decode.settings import apply_overrides
from regard.errors import DataError, RunError, SettingError
from regard.index import read_config_files
from regard.model import Model, load
from regard.runs.settings import Settings, collect_overrides, resolve
from regard.tasks import Task
from regard.tasks.base import Encoded, EncodingContext, EvalSpec, LossSum
from regard.training.distributed import pick_device
from regard.training.optimizer import uses_autocast
from regard.types import Prediction, shorten

ALLOWED_SETTINGS = (
    *(f"data.{name}" for name in ("pretokenized", "detokenize", "stride", "eval_samples", "depth_scale")),
    "data.split_special_tokens",
    "train.batch_tokens",
    "train.precision",
)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Scores, predictions, and rows of samples with predictions."""

    scores: dict[str, Any]
    predictions: list[Prediction]
    rows: list[dict[str, str]]

    def __repr__(self) -> str:
        numbers = {name: value for name, value in self.scores.items() if isinstance(value, int | float)}
        return f"Evaluation({shorten(numbers, 300)}, {len(self.predictions)} predictions)"


@checked
def evaluate(
    folder: str | os.PathLike[str],
    data: Data = (),
    *,
    columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    device: str | torch.device = "auto",
    dtype: str | None = None,
    log: LogFn = lambda line: None,
) -> Evaluation:
    """Scores and predictions of a model on files or tables in memory, or of a run on the validation data of the run.

    folder    run folder, or folder of a Hugging Face checkpoint
    data      path of a file or folder, several paths, or a table; may be missing for runs
    columns   names or indices of the columns in the files, such as {"text": "review"}
    settings  decode.* and some data.* settings: {"decode.num_beams": 5} or ["decode.num_beams=5"]
    device    auto, cpu, cuda or mps; `dtype`: name of a dtype, default as in `load`
    log       function that receives notes and warnings

    Raises DataError, SettingError, RunError, WeightsError or InputTypeError, subclasses of `regard.RegardError`."""
    folder, entries = Path(folder), data_entries(data)
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
    if entries:
        columns = columns or own.get("sources", {}).get("columns", {})
        samples = list(read_samples(model.task, entries, columns or {}, log))
    elif "sources" in own:
        samples = validation_samples(model.task, DataSources.from_dict(own["sources"]), made.data.valid_fraction, log)
        if content_fingerprint(model.task.reader, samples) != own["data_stats"]["valid_fingerprint"]:
            raise RunError(
                f"{folder}: the validation data of this run has changed since training. Pass files with --data."
            )
    else:
        raise RunError(f"{folder} is not a run folder, so it has no validation data. Pass files with --data.")
    for note in filter(None, (*model.notes, model.dtype_note)):
        log(note)
    task, objective, processor = model.task, model.objective, model.require_processor()
    if model.tokenizer is not None and made.data.split_special_tokens is not None:
        model.tokenizer.split_special_tokens = made.data.split_special_tokens
    few = small_sample_warning(task, len(samples))
    log(f"warning: {few}." if few else task.reader.format_count(len(samples)))
    context = EncodingContext(processor, data=made.data, options=model.spec.options)
    encoded = objective.encode(samples, model.config, context)
    if encoded.too_long:
        fate = f"truncated {objective.truncation}" if objective.truncation else "excluded from the loss"
        what = f"{len(encoded.too_long):,} {objective.row_unit or task.reader.unit}"
        log(f"warning: {what} have more than {model.config.max_length:,} tokens and are {fate}.")
    sums = validation_loss(model, encoded, made)
    scores, answers = objective.evaluate(model, encoded, EvalSpec(decode, made.data, sums))
    rows = [objective.example_row(*both) for both in zip(encoded.samples, answers, strict=False)]
    return Evaluation({"loss": round(sums.total / sums.count, 4), **scores}, answers, rows)


def write_predictions(result: Evaluation, path: str | os.PathLike[str]) -> None:
    """Write samples with predictions as a new CSV, TSV, JSONL or Parquet file, with the probability as a number."""
    check_output(Path(path))
    with TableWriter(Path(path)) as table:
        for row in result.rows:
            found: dict[str, Any] = dict(row)
            # multi-label rows have several probabilities
            if row.get("probability", "").replace(".", "", 1).isdecimal():
                found["probability"] = float(row["probability"])
            table.write(found, {})


MIN_RELIABLE_SAMPLES = 100  # Minimum number of samples for reliable scores.

MIN_BATCH_TOKENS = 8192
"""Minimum tokens per validation batch: without gradients more tokens fit into memory than in training."""


def validation_loss(model: Model, encoded: Encoded, settings: Settings) -> LossSum:
    """Sum of the negative log-likelihood without label smoothing, and count."""
    total = count = 0.0
    low = uses_autocast(model.device, settings.train)
    with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=low):
        tokens = max(settings.train.batch_tokens, MIN_BATCH_TOKENS)
        for batch in model.objective.eval_batches(encoded, model.config, tokens):
            part, number = model.objective.loss(model, batch.to(model.device))
            total, count = total + float(part), count + float(number)
    if not count:
        advice = f"'regard check {model.task.name}' lists missing labels; add validation data with --valid PATH."
        raise DataError("No validation sample has a usable label.", advice=advice)
    return LossSum(total, count)


def small_sample_warning(task: Task, num_samples: int) -> str:
    """Warning about imprecise scores on few samples, or an empty string."""
    if task.reader.min_valid_samples == 1 or num_samples >= MIN_RELIABLE_SAMPLES:
        return ""
    has_points = not (task.objective.lower_is_better or task.objective.has_file_output)
    worth = f": each sample counts {100 / max(num_samples, 1):.1f} points" if has_points else ""
    return f"scores on {task.reader.format_count(num_samples)} are imprecise{worth}"
