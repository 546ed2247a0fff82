"""`train`: from a person's files to a run folder, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from regard.errors import SettingError, UnknownFolder
from regard.loading import open_eyes
from regard.model import Model, assemble, load
from regard.nn.attention.relative_positions import packs
from regard.nn.kernels.dispatch import packed_kernel
from regard.runs.devices import pick_device
from regard.runs.folder import RunFolder
from regard.runs.modality import task_for
from regard.runs.preprocess import Prepared, prepare
from regard.runs.progress import Screen, quiet, tell
from regard.runs.scoring import rough
from regard.runs.settings import gather
from regard.runs.spec import Asked, Order, Sources, listed, new_order, old_order, start_from
from regard.runs.trainer import Trainer
from regard.tasks import idle
from regard.training.distributed import asked_world, together
from regard.training.optimizer import autocasts
from regard.training.settings import Train


def train(
    task: str, data: str | Sequence[str] = (), *, out: str | os.PathLike[str], model: str | None = None,
    valid: str | Sequence[str] = (), columns: Mapping[str, str] | None = None, settings: Sequence[str] | Mapping[str, Any] = (),
    config: str | os.PathLike[str] | None = None, device: str = "auto", resume: bool = False,
    console: Console | None = None,
) -> Model:  # fmt: skip
    """Train `model` (a preset or a folder) on files and leave a run in `out`. Returns the best model.

    With `resume` an existing run goes on as it was started: it remembers its data, model and settings. Under `torchrun`
    the processes share the grains of each step, and the first of them speaks and writes."""
    folder = RunFolder(out)
    paths = [data] if isinstance(data, str | os.PathLike) else data
    found = task_for(task, model, [os.fspath(path) for path in paths], columns, folder if resume else None)
    files = listed(found, data)
    sources = Sources(files, listed(found, valid or found.validated(files)), tuple(sorted((columns or {}).items())))
    asked = Asked(found, model, sources, gather(settings, config))
    where = pick_device(device)
    first = asked_world().first
    console = (console or Screen()) if first else quiet()
    for setting in idle(found, asked.said):
        tell(console, f"{setting} means nothing to {found.name} of {found.reads}, and changes nothing")
    going_on = resume and folder.exists()
    if first and not going_on:
        _begin(folder, sources, resume, console)
    with ExitStack() as stack:
        if first and going_on:
            stack.enter_context(folder.held())
        world = stack.enter_context(together(where))
        if not first:  # the first process makes the folder, the tokenizer and the tokens; the others find them there
            world.wait()
        order = old_order(asked, folder) if going_on or not first else new_order(asked)
        world.check(order.settings.train.accumulate)
        if order.settings.train.deterministic:
            stack.enter_context(deterministic())
        tell(console, f"reading {named(order.sources.data)}")
        prepared = prepare(order, lambda line: tell(console, line))
        if few := rough(found, prepared.facts["valid"]):
            tell(console, f"  {few}. Give more by --valid, or set data.share")
        begun = folder.facts().get("packed") if going_on or not first else None
        packed = _packs(order, prepared, where, console, begun)
        torch.manual_seed(order.settings.train.seed)
        identity = replace(order.identity, config=prepared.config, labels=prepared.labels, pair=prepared.pair)
        fresh = assemble(identity, prepared.reader)
        made = _taken_over(fresh, order)
        for line in made if not going_on else ():
            tell(console, f"  {line}")
        trainer = Trainer(fresh.to(where), folder, prepared, order, console, world, packed)
        stack.callback(folder.close)
        stack.enter_context(trainer.disk_told())
        if going_on:
            trainer.resume()
        elif first:  # nothing is left behind by what could not even begin
            stack.enter_context(folder.held())
            folder.refuse_if_taken()
            trainer.begin()
        if first:
            world.wait()
        best = trainer.run()
        world.wait()  # the others load what the first has finished
        return best or load(folder.path, device=where)


def _taken_over(fresh: Model, order: Order) -> list[str]:
    """Weights of the folders that the run starts from come into the model; what is to be said of that."""
    if order.start is not None and order.start.is_dir():
        return start_from(fresh, order.start, order.settings.model)
    if order.brought is not None:
        return open_eyes(fresh) if order.brought.is_dir() else []
    preset = order.settings.model.get("encoder")  # whoever names one may think that it has learnt
    return [f"it sees through {preset}, made anew: what has learnt is a folder"] if preset else []


def _begin(folder: RunFolder, sources: Sources, resume: bool, console: Console) -> None:
    folder.refuse_if_taken()
    if resume and not sources.data:
        runs = [path for path in folder.path.parent.glob("*") if RunFolder(path).exists()]
        raise UnknownFolder(
            "run", folder.path, runs, "With --resume and without --data a run goes on, and there is none."
        )
    if resume:
        tell(console, f"{folder.path}: there is no run to resume; starting at step 0")


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms inside of the context; the caller's choice of algorithms after it."""
    before, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warns)


def named(paths: Sequence[str]) -> str:
    """Some files by their names; of a folder with thousands the first."""
    more = f" and {len(paths) - 5:,} more" if len(paths) > 5 else ""
    return ", ".join(paths[:5]) + more


def _packs(order: Order, prepared: Prepared, where: torch.device, console: Console, begun: bool | None) -> bool:
    """Whether samples are packed, or filled up to few sizes: where that is faster, unless a person said otherwise.

    A run that goes on does as it has `begun`, wherever: a grain means the same samples to its end."""
    settings: Train = order.settings.train
    alone = not getattr(
        prepared.config, "packs", True
    )  # it reads rows of one text each, filled up to few sizes instead
    if alone and settings.packed == "on":
        raise SettingError(
            "train.packed=on: this system goes from token to token and reads padded rows. Leave it at auto."
        )
    kernel = autocasts(where, settings) and packed_kernel() and packs(prepared.config)
    able = where.type == "cuda" and (alone or kernel)
    packed = settings.packed == "on" or (settings.packed == "auto" and able)
    packed = packed if begun is None else begun
    if packed:  # full windows of long texts need no packing
        task = order.identity.task
        packed = (
            task.plan(prepared.train, prepared.config, task.budget(settings), settings.seed, True).shape is not None
        )
    if packed and not able and not alone:
        tell(console, f"  {where} has no kernel for packed rows here: masks are written out, which is slow")
    return packed
