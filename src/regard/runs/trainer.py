"""One run from its first step to its card."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from rich.console import Console

from regard import __version__
from regard.data.batching.loader import Clocked, feed, forks
from regard.errors import Interrupted, RunError
from regard.files import write_json
from regard.model import Model, load
from regard.runs.card import write_card
from regard.runs.folder import RunFolder
from regard.runs.preprocess import Prepared
from regard.runs.progress import Reporter, glimpse, own_command, tell
from regard.runs.scoring import validation_sums
from regard.runs.signals import Signals
from regard.runs.spec import Order
from regard.runs.terminal import clock
from regard.runs.throughput import Window
from regard.tasks.base import Terms
from regard.training.checkpoint import mean_weights, newest_state, prune, save_state, tidy
from regard.training.distributed import World
from regard.training.execution import Chooser, Compute, Loss
from regard.training.loop import Step, Watchman, loop, numbers
from regard.training.optimizer import (
    Average,
    autocasts,
    freeze,
    make_optimiser,
    optimiser_tensors,
    restore_optimiser,
    swapped,
)
from regard.training.settings import Train
from regard.types import Batch

UNCHANGING = ("sentences", "samples", "signature")
"""Scores that are the same each time."""
CURVE = 20
"""Points that the curve of a short run has at least."""


class Trainer:
    def __init__(
        self, model: Model, folder: RunFolder, prepared: Prepared, order: Order, console: Console, world: World,
        packed: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.folder, self.prepared, self.order, self.console = model, folder, prepared, order, console
        self.world = world
        self.settings = order.settings
        self.task, self.config = model.task, order.settings.train
        self.plan = self.task.plan(
            prepared.train, model.config, self.task.budget(self.config), self.config.seed, packed
        )
        if self.config.passes:
            steps = math.ceil(self.config.passes * len(self.plan.epoch(0)) / self.config.accumulate)
            self.config = replace(self.config, steps=max(steps, 1))
        self.frozen = freeze(model, self.config.freeze)
        self.optimiser = make_optimiser(model, self.config)
        self.average = Average(model, self.config.average) if self.config.average else None
        self.watchman = Watchman(model.device)
        self.signals = Signals()
        self.clocked = Clocked(iter(()))
        self.best: dict[str, Any] = {}
        self.pending: list[float] = []
        self.done = self.stale = 0
        self.saved, self.way = -1, ""
        self.begun = self.saved_at = time.perf_counter()

    def begin(self) -> None:
        try:
            self.task.keep(self.prepared.reader, self.prepared.config, self.folder.path)
            write_json(self.folder.path / "regard.json", self._facts())
        except OSError:  # a tokenizer alone is no run, and would be in the way of one
            for name in self.task.reader_files:
                (self.folder.path / name).unlink(missing_ok=True)
            raise

    def resume(self) -> None:
        """Take up the newest whole checkpoint, with the same settings and data."""
        old = self.folder.facts()
        for name, key in (("training", "fingerprint"), ("validation", "valid_fingerprint")):
            if old["found"][key] != self.prepared.facts[key]:
                count = {"training": "train", "validation": "valid"}[name]
                before, now = old["found"][count], self.prepared.facts[count]
                unit = self.task.unit
                changed = f"{before:,} {unit} then, {now:,} now" if before != now else f"{now:,} {unit}, but others"
                raise RunError(
                    f"{self.folder.path}: the {name} data is not what the run was started with ({changed}). Put it back as it "
                    f"was, or start a new run from this one: --model {shlex.quote(str(self.folder.path))} and another --out."
                )
        saved, problems = newest_state(self.folder.checkpoints)
        for problem in problems:
            self._say(f"  {problem}")
        if saved is None:
            if self.order.brought is not None and not self.order.brought.is_dir():
                raise RunError(f"{self.order.brought}: the folder that the run starts from is not there any more.")
            self._say("  there is no whole checkpoint; starting at step 0")
        else:
            groups = saved.tensors()
            self.model.put(groups["model"])
            restore_optimiser(self.model, self.optimiser, groups.get("optimiser", {}))
            if self.average is not None:
                self.average.restore(groups["average"])
            self.best, self.pending = saved.facts.get("best", {}), saved.facts.get("pending", [])
            self.stale, self.way = saved.facts.get("stale", 0), saved.facts.get("way", "")
            self.done = self.saved = saved.step
            over = self._over()
            self._say(f"  {'the run is finished:' if over else 'going on after step'} {saved.step:,}{' steps' * over}")
        if self.world.first:
            tidy(self.folder.checkpoints)
            prune(self.folder.checkpoints, self.done, self._kept, self._regular)
            self.folder.cut_back(self.done)

    def run(self) -> Model | None:
        """Train to the end. The first process returns the best model, the others nothing."""
        done = self.done
        loss = Loss(self.model, self.task, Terms(self.config.smoothing, self.config.auxiliary))
        compute = Compute(loss, self.config, self.model.device, self.world, self.plan.steady, self.plan.few)
        self._announce()
        if self.world.first and not any(row["kind"] == "plan" for row in self.folder.rows()):
            self.folder.log({"kind": "plan", "step": 0, "padding": self.padding})
        self.window = Window(self._tokens, done, self.pending, self.task.counted, lambda: self.clocked.seconds)
        if not self._over():
            self._steps(compute)
        elif (self.folder.path / "README.md").exists():  # the card is the last thing written: nothing is left to do
            return None
        if not self.world.first:
            return None
        if self.done > done:
            self._say(f"trained {self.done - done:,} steps in {clock(time.perf_counter() - self.begun)}")
        with self.signals.noted(self._left):
            return self._finish()

    def _steps(self, compute: Compute) -> None:
        chooser = Chooser(compute, self.config, self._say, self.way)
        with Reporter(self.config.steps, self.done, self.console, self.task.counted) as reporter, self.signals.noted():
            self.clocked = grains = Clocked(self._grains())
            steps = loop(
                self.model, compute, grains, self.optimiser, self.config, self.done, self.average, self.watchman
            )
            try:
                for step in steps:
                    self.done, self.way = step.number, "" if chooser.trying else compute.way
                    self._note(step, reporter)
                    chooser.step(self.config.steps - step.number, disturbed=self._regular(step.number))
                    if self._stops():
                        break
            finally:
                grains.close()

    def grain(self, number: int) -> Batch:
        """The batch of a grain, a pure function of its number."""
        _, rows = self.plan.grain(number)
        return self.task.collate(self.prepared.train, rows, self.model.config, self.plan.shape_of(rows))

    def _grains(self) -> Generator[Batch]:
        cuda = self.model.device.type == "cuda"
        return feed(self.grain, numbers(self.done, self.config, self.world), self._workers(), pin=cuda)

    def _workers(self) -> int:
        asked = self.settings.data.workers
        return asked if asked >= 0 else 2 * (self.model.device.type == "cuda")

    def _note(self, step: Step, reporter: Reporter) -> None:
        """What is due after a step: a line of the log, a validation, a checkpoint."""
        window = self.window
        window.add(step)
        reporter.advance(step, *window.glance(self.config.steps))
        last = step.number == self.config.steps
        often = self.config.log
        if often == Train.log:  # it was not set
            often = min(often, max(self.config.steps // CURVE, 1))
        if step.number % often == 0 or last or step.number == 1:
            row = window.row()
            self._check()
            if self.world.first:
                self.folder.log(row)
            reporter.trained(row, window.left(self.config.steps), due=self._regular(step.number))
        if self._regular(step.number):
            self._check()
            with window.paused():
                if self.world.first:
                    self._validate(step.number, reporter)
                    self._save(step.number)
                self.world.wait()
        elif self.world.first and time.perf_counter() - self.saved_at > 60 * self.config.minutes:
            with window.paused():
                if int(self.watchman.first) < 0:  # as far as this process knows; the others are not asked for it
                    self._save(step.number)

    def _stops(self) -> bool:
        """Signals leave by an exception, patience by itself."""
        if number := self.world.highest(self.signals.number):
            self._leave(number)
        if not self.config.patience or not self._regular(self.done):
            return False
        tired = bool(self.world.highest(int(self._tired())))
        if tired:
            self._say(f"no better score in {self.config.patience} validations: stopping after step {self.done:,}")
        return tired

    def _over(self) -> bool:
        return self.done >= self.config.steps or self._tired()

    def _tired(self) -> bool:
        return 0 < self.config.patience <= self.stale

    def _regular(self, step: int) -> bool:
        return step % self.config.every == 0 or step == self.config.steps

    def _tokens(self, step: int) -> int:
        first = (step - 1) * self.config.accumulate
        return sum(self.plan.tokens(grain) for grain in range(first, first + self.config.accumulate))

    def _validate(self, step: int, reporter: Reporter) -> None:
        with swapped(self.model, None if self.average is None else self.average.tensors):
            row, answers, better = self._scored(step)
        shown = dict(row)
        for name in UNCHANGING:
            row.pop(name, None)
        self.folder.log({**row, "elapsed": time.perf_counter() - self.begun})
        self.folder.draw(f"{self.task.name}: {self.folder.path.name}")
        reporter.validated(shown, self.task.line(shown), better)
        some = [self.task.show(*both) for both in zip(self.prepared.valid.samples, answers, strict=False)][:5]
        for text in some[:1]:
            reporter.say(glimpse(text))
        with self.folder.samples.open("a", encoding="utf-8") as file:
            file.write(f"step {step}\n" + "\n".join(some) + "\n")

    def _scored(self, step: int, **more: Any) -> tuple[dict[str, Any], list[Any], bool]:
        """Loss on all validation samples, score on some; the best model so far is what the run folder holds."""
        self.model.eval()
        valid, data = self.prepared.valid, self.settings.data
        sums = validation_sums(self.model, valid, self.settings)
        quick = self.task.quick(self.settings.decode)
        scores, answers = self.task.score(self.model, valid, quick, data, sums, data.score)
        row = {"kind": "valid", "step": step, "loss": sums.mean, **scores, **more}
        better = not self.best or self._rank(row) > self._rank(self.best)
        self.stale = 0 if better else self.stale + 1
        if better:
            self.best = {name: value for name, value in row.items() if name not in UNCHANGING}
            self.model.save(self.folder.path, self._facts())
        return row, answers, better

    def _rank(self, row: dict[str, Any]) -> tuple[float, float]:
        sign = -1 if self.task.lowest else 1
        return sign * row[self.task.deciding(row)], -row["loss"]

    def _save(self, step: int) -> None:
        if self.saved == step or not self.world.first:
            return
        groups = {"model": self.model.weights(), "optimiser": optimiser_tensors(self.model, self.optimiser)}
        if self.average is not None:
            groups["average"] = self.average.tensors
        facts = {
            "best": self.best, "pending": [float(loss) for loss in self.window.losses], "stale": self.stale,
            "way": self.way, "world": self.world.size, "torch": torch.__version__, "regard": __version__,
        }  # fmt: skip
        save_state(self.folder.checkpoints, step, groups, facts, self._kept, self._regular)
        self.saved = step

    @property
    def _kept(self) -> int:
        return max(self.config.keep, self.config.last)

    def disk_told(self) -> AbstractContextManager[None]:
        """Around whatever is written. A checkpoint holds the weights, two averages of their gradients, perhaps their own."""
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return self.folder.disk_told(weights * (4 if self.average else 3), self.resume_command())

    def _merge(self) -> None:
        """`train.last`: the mean of the weights of the last checkpoints, kept if it scores better than the best of them."""
        every = self.config.every
        regular = list(range(every, self.done + 1, every))
        regular += [self.done] * (self.done % every != 0 and self.done == self.config.steps)
        steps = regular[-self.config.last :]
        if self.config.last < 2 or len(steps) < 2 or self.best.get("merged"):
            return
        mean = mean_weights(self.folder.checkpoints, steps)
        if mean is None:
            self._say("  a checkpoint is missing: their weights are not averaged")
            return
        stale = self.stale
        with swapped(self.model, mean):
            row, _, better = self._scored(self.done, merged=len(steps))
        self.stale = stale
        kept, metric = "and is kept" if better else "which is no better", self.task.deciding(row)
        self._say(f"the mean of the last {len(steps)} checkpoints has {metric} {row[metric]}, {kept}")

    def _finish(self) -> Model:
        self._merge()
        self.folder.close()
        best = load(self.folder.path, device=self.model.device)
        decode = self.settings.decode
        how = f", beam {decode.beam}" if decode.beam > 1 else "" if decode.sample else ", greedy"
        how = how if self.task.generates else ""
        self._say(f"scoring the best model (step {self.best['step']:,}) on all validation {self.task.unit}{how}")
        valid = self.prepared.valid
        sums = validation_sums(best, valid, self.settings)
        scores, answers = self.task.score(best, valid, self.settings.decode, self.settings.data, sums)
        write_json(self.folder.path / "regard.json", {**self.folder.facts(), "best": self.best, "scores": scores})
        pictures = self.task.draw(self.folder.path, valid.samples, answers)
        write_card(self.folder, valid.samples, answers, pictures)
        shown = ", ".join(f"{k} {v}" for k, v in scores.items() if not isinstance(v, str))
        self._say(f"validation: {shown}\nthe run is in {self.folder.path}")
        return best

    def _facts(self) -> dict[str, Any]:
        identity = self.model.identity
        return {
            "regard": __version__,
            "system": identity.system.name,
            "task": self.task.name,
            "preset": self.order.preset,
            "model": {**identity.config.__dict__},
            "decode": {**identity.decode.__dict__},
            "sources": self.order.sources.as_dict(),
            "found": self.prepared.facts,
            "packed": self.plan.shape is not None,
            "rows": self.plan.about.rstrip(","),
            "padding": self.padding,
            "labels": list(identity.labels),
            "settings": self.settings.as_dict(),
            "best": self.best,
        }

    @cached_property
    def padding(self) -> float:
        """The share of padding in the batches of an epoch."""
        return round(self.plan.padding(), 6)

    def _announce(self) -> None:
        count = sum(p.numel() for p in self.model.parameters())
        where, config, passes = self.model.device, self.config, self._passes()
        precision = "bfloat16 autocast" if autocasts(where, config) else "float32"
        frozen = f" ({self.frozen:,} frozen)" if self.frozen else ""
        together = f", {self.world.size} processes" if self.world.size > 1 else ""
        often = f"{passes:,.{int(passes < 1)}f}"
        often += " pass" if often == "1" else " passes"
        rows = self.plan.about or ("packed rows" if self.plan.shape is not None else "rows")
        self._say(
            f"{self.order.preset}: {count:,} parameters{frozen} on {where}{together}, {precision}; "
            f"steps {self.done:,} to {config.steps:,}, {often} over the data, "
            f"{rows}" + (f" with {100 * self.padding:.1f} % padding" if self.task.reads == "text" else "")
        )
        if self._workers() and not forks(self._workers()):
            self._say("  data.workers has no effect: worker processes need fork, which this platform does not have")
        if passes > 200:
            few = max(round(100 * config.steps / passes, -2), 100)
            self._say(f"  that is many passes for so little data; 100 would be train.steps={few:.0f}")
        if config.warm >= config.steps:
            self._say(
                f"  train.warmup={config.warmup:,} is not over before train.steps={config.steps:,}: the rate never "
                f"reaches train.rate={config.rate:g}. For a short run set train.warmup={max(config.steps // 10, 1)}."
            )

    def _passes(self) -> float:
        return self.config.steps * self.config.accumulate / len(self.plan.epoch(0))

    def _leave(self, number: int) -> None:
        self._check()
        self._save(self.done)
        self.folder.close()
        self.world.wait()  # nobody leaves while the first process writes: the others' end would end it too
        self._left(number)

    def _left(self, number: int) -> None:
        again = f"stopped and saved after step {self.done:,}. Go on with:\n  {self.resume_command()}"
        raise Interrupted(again if self.world.first else "", number)

    def _check(self) -> None:
        try:
            self.watchman.check(self.config.accumulate, self.world)
        except RunError as error:
            saved, _ = newest_state(self.folder.checkpoints)
            raise RunError(f"{error} The last good checkpoint is {saved.path.name if saved else 'none'}.") from error

    def resume_command(self) -> str:
        command = own_command()
        if self.world.size > 1:
            command = f"torchrun --nproc-per-node {self.world.size} -m regard"
        return f"{command} train {self.task.name} --out {shlex.quote(str(self.folder.path))} --resume"

    def _say(self, text: str) -> None:
        tell(self.console, text)
