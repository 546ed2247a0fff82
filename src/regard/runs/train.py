"""`train`: from data files to a run folder, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rich.console import Console

from regard.capabilities import is_available, retain_freed_memory
from regard.config import checked
from regard.data.memory_tables import Data, data_entries
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


@checked
def train(
    task: str,
    data: Data = (),
    *,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    valid: Data = (),
    columns: Mapping[str, str] | None = None,
    settings: Sequence[str] | Mapping[str, Any] = (),
    config: str | os.PathLike[str] | None = None,
    device: str | torch.device = "auto",
    resume: bool = False,
    console: Console | None = None,
) -> Model:
    """Train `model` on files or tables in memory and write a run folder `out`. Returns the best model.

    Under `torchrun`, the micro-batches of each step are divided among the processes, and only the first process prints and
    writes."""
    folder, overrides = RunFolder(out), collect_overrides(settings, config)
    model = None if model is None else os.fspath(model)
    going_on = resume and folder.exists()
    entries, valid_entries = data_entries(data), data_entries(valid, "valid")
    found = spec.resolve_task(task, model, entries, columns, folder if resume else None)
    reader, named = found.reader, (f"{group}.{name}" for group, values in overrides.items() for name in values)
    unused = [setting for setting in named if not uses_setting(found, setting)]
    files = reader.expand(entries)
    valid_files = reader.expand(valid_entries or reader.validation_entries(files))
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
            use_deterministic_algorithms(stack)
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


train.__doc__ = f"""{train.__doc__}

    task      name of a task, see below
    data      path of a file or folder, several paths or patterns, or a table; may be missing with `resume`
    out       new folder of the run
    model     preset (random weights), or folder of a run or Hugging Face checkpoint; default: see `regard list tasks`
    valid     validation data; default: a fraction of the training data (data.valid_fraction)
    columns   names or indices of the columns in the files by the names below, such as {{"text": "review"}}
    settings  {{"train.lr": 1e-4}} or ["train.lr=1e-4"], see below; `config`: YAML or JSON file of settings
    device    auto, cpu, cuda or mps
    resume    continue the run in `out` with the data, model and settings of its regard.json
    console   console of `rich` for the log

    Raises subclasses of `regard.RegardError`: DataError for files and rows, SettingError for settings and devices,
    UnknownNameError for names of tasks and presets, RunError for a folder that exists or is in use, WeightsError for
    checkpoints, InputTypeError for arguments of other types, and Interrupted after a signal, when the run is saved.
"""


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


def use_deterministic_algorithms(stack: ExitStack) -> None:
    """Use deterministic algorithms; the previous choice is restored when the stack is closed."""
    before = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    stack.callback(torch.use_deterministic_algorithms, before, warn_only=only_warns)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)


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
