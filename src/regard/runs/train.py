"""`train`: from data files to a run folder, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

from regard.capabilities import is_available, retain_freed_memory
from regard.data.training_files import DataSources, LogFn
from regard.errors import SettingError, UnknownFolderError
from regard.model import Model, assemble, load
from regard.runs import spec
from regard.runs.evaluate import small_sample_warning
from regard.runs.folder import RunFolder
from regard.runs.progress import PipeSafeConsole, print_line
from regard.runs.settings import collect_overrides
from regard.runs.trainer import Trainer
from regard.tasks import uses_setting
from regard.tasks.modality.base import batch_budget
from regard.tasks.preparation import PreparedData, prepare
from regard.training.distributed import init_distributed, pick_device
from regard.training.optimizer import uses_autocast
from regard.training.settings import TrainSettings


def train(
    task: str,
    data: str | Sequence[str] = (),
    *,
    out: str | os.PathLike[str],
    model: str | None = None,
    valid: str | Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    config: str | os.PathLike[str] | None = None,
    device: str = "auto",
    resume: bool = False,
    console: Console | None = None,
) -> Model:
    """Train `model` (a preset or a checkpoint folder) on files and write a run folder `out`. Returns the best model.

    With `resume` an existing run continues with the data, model and settings of its regard.json. Under `torchrun` the
    micro-batches of each step are divided among the processes; only the first process prints and writes."""
    folder, overrides = RunFolder(out), collect_overrides(settings, config)
    going_on = resume and folder.exists()
    paths = [data] if isinstance(data, str | os.PathLike) else data
    found = spec.resolve_task(task, model, [os.fspath(path) for path in paths], columns, folder if resume else None)
    reader, named = found.reader, (f"{group}.{name}" for group, values in overrides.items() for name in values)
    unused = [setting for setting in named if not uses_setting(found, setting)]
    files = spec.expand_paths(found, data)
    valid_files = spec.expand_paths(found, valid or reader.validation_entries(files))
    asked = found, model, DataSources(files, valid_files, columns or {}), overrides
    where = pick_device(device)
    with ExitStack() as stack:
        world = stack.enter_context(init_distributed(where))
        first = world.is_main
        console = (console or PipeSafeConsole()) if first else Console(quiet=True)
        log = partial(print_line, console)
        for setting in unused:
            log(f"note: {setting} has no effect for task '{found.name}' ({reader.unit}).")
        if first and going_on:
            stack.enter_context(folder.lock())
        elif first:
            folder.check_available()
            if resume and not files:
                runs = [path for path in folder.path.parent.glob("*") if RunFolder(path).exists()]
                advice = "--resume without --data needs an existing run. To start a new run, add --data."
                raise UnknownFolderError("run", folder.path, runs, advice)
            if resume:
                log(f"note: {folder.path} contains no run to resume; starting at step 0.")
        else:  # the first process creates the folder, the tokenizer and the token store
            world.all_reduce_max(0)
        order = spec.resume_spec(*asked, folder) if going_on or not first else spec.new_spec(*asked)
        budget = batch_budget(found.objective.modality, order.settings.train)
        found.objective.check_settings(order.identity.config, budget, order.settings.data)
        if world.size > 1:
            world.check_divides(order.settings.train.grad_accum)
        if order.settings.train.deterministic:
            stack.enter_context(deterministic_algorithms())
        shown, others = ", ".join(order.sources.data[:5]), len(order.sources.data) - 5
        log(f"Reading {shown}" + (f" and {others:,} more" if others > 0 else ""))
        prepared = prepare(order.identity, order.processor, order.sources, order.settings, log)
        if few := small_sample_warning(found, prepared.stats["valid"]):
            log(f"warning: {few}. Add validation data with --valid, or raise data.valid_fraction.")
        begun = folder.read_metadata().get("packed") if going_on or not first else None
        packed = _use_packing(order, prepared, where, log, begun)
        if where.type == "cpu" and is_available("malloc_thresholds"):
            retain_freed_memory()
        fresh, notes = _initial_model(order, prepared)
        for line in () if going_on else notes:
            log(f"note: {line}")
        trainer = Trainer(fresh.to(where), folder, prepared, order, console, world, packed)
        stack.callback(folder.close)
        stack.enter_context(folder.report_disk_errors(trainer.checkpoint_bytes, trainer.resume_command))
        if going_on:
            trainer.resume()
        elif first:  # no folder is left behind if preparation fails
            stack.enter_context(folder.lock())
            folder.check_available()
            trainer.write_initial_files()
        if first:
            world.all_reduce_max(0)
        best = trainer.run()
        world.all_reduce_max(0)  # the other processes load the model that the first process has written
        return best or load(folder.path, device=where)


def _initial_model(order: spec.TrainSpec, prepared: PreparedData) -> tuple[Model, list[str]]:
    """The model with its initial weights, and notes about new and unused parts."""
    torch.manual_seed(order.settings.train.seed)
    fresh = assemble(replace(order.identity, config=prepared.config, options=prepared.options), prepared.processor)
    if order.init_folder is not None and order.init_folder.is_dir():
        return fresh, spec.load_initial_weights(fresh, order.init_folder, order.settings.model)
    part = order.identity.system.part
    if part is None:
        return fresh, []
    if order.weights_folder is not None:
        return fresh, part.load(fresh.body, fresh.config) if order.weights_folder.is_dir() else []
    return fresh, part.describe_random(order.settings.model)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Context with deterministic algorithms; the previous choice is restored at exit."""
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)


def _use_packing(
    order: spec.TrainSpec, prepared: PreparedData, where: torch.device, log: LogFn, begun: bool | None
) -> bool:
    """True if samples are packed, or padded to a few fixed shapes: `train.packing`, by default if packing is faster.

    A resumed run keeps the choice of its start (`begun`), because a micro-batch must contain the same samples."""
    settings: TrainSettings = order.settings.train
    traits = prepared.config.traits
    alone = not traits.packs  # recurrent systems process padded rows of a few fixed shapes instead
    if alone and settings.packing == "on":
        raise SettingError(
            "train.packing=on: this model processes one token after another and needs padded rows. Use train.packing=auto."
        )
    kernel = uses_autocast(where, settings) and is_available("varlen_attention") and traits.packs_efficiently
    able = where.type == "cuda" and (alone or kernel)
    packed = settings.packing == "on" or (settings.packing == "auto" and able)
    packed = packed if begun is None else begun
    if packed:  # full windows of long texts have no padding
        objective = order.identity.task.objective
        tokens = batch_budget(objective.modality, settings)
        packed = objective.sampler(prepared.train, prepared.config, tokens, settings.seed, True).shape is not None
    if packed and not able and not alone:
        log(f"warning: {where} has no kernel for packed rows; attention uses explicit masks, which is slow.")
    return packed
