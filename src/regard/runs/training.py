"""`train`: from a person's files to a run folder, in one call."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from regard import __version__
from regard.data.plan import Plan
from regard.errors import Interrupted, RunError, SettingError, UnknownName
from regard.learn.loop import Watchman, loop
from regard.learn.optimiser import Average, autocast, make_optimiser, optimiser_tensors, restore_optimiser
from regard.learn.state import newest_state, save_state
from regard.model import Model, assemble, load, write_json
from regard.runs.card import write_card
from regard.runs.folder import RunFolder
from regard.runs.order import Asked, Order, Sources, listed, new_order, old_order, start_from
from regard.runs.prepare import Prepared, prepare
from regard.runs.progress import Reporter, clock, own_command, tell
from regard.runs.scoring import validation_loss
from regard.runs.settings import gather
from regard.runs.window import Window
from regard.tasks import find_task
from regard.waists import Batch


def train(
    task: str, data: str | Sequence[str] = (), *, out: str | os.PathLike[str], model: str | None = None,
    valid: str | Sequence[str] = (), columns: Mapping[str, str] | None = None, settings: Sequence[str] | Mapping[str, Any] = (),
    config: str | os.PathLike[str] | None = None, device: str = "auto", resume: bool = False,
    console: Console | None = None,
) -> Model:  # fmt: skip
    """Train `model` (a preset or a folder) on files and leave a run in `out`. Returns the best model.

    With `resume` an existing run goes on as it was started: it remembers its data, model and settings."""
    console = console or Console()
    folder, chosen = RunFolder(out), find_task(task)
    sources = Sources(listed(data), listed(valid), tuple(sorted((columns or {}).items())))
    asked = Asked(chosen, model, sources, gather(settings, config))
    going_on = resume and folder.exists()
    if not going_on:
        folder.refuse_if_taken()
        if resume and not sources.data:
            near = [str(path) for path in folder.path.parent.glob("*") if RunFolder(path).exists()]
            raise UnknownName("run", str(folder.path), near)
        if resume:
            tell(console, f"{folder.path}: there is no run to resume; starting at step 0")
    order = old_order(asked, folder) if going_on else new_order(asked)
    where = pick_device(device)
    tell(console, f"reading {', '.join(order.sources.data)}")
    prepared = prepare(order, lambda line: tell(console, line))
    torch.manual_seed(order.settings.train.seed)
    fresh = assemble(replace(order.identity, config=prepared.config), prepared.text)
    if order.start is not None and order.start.is_dir():
        start_from(fresh, order.start, order.settings.model)
    run = Training(fresh.to(where), folder, prepared, order, console)
    return run.resume() if going_on else run.begin()


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.partition(":")[0]
    if kind not in available:
        raise SettingError(f"unknown device '{name}'. There is: auto, cpu, cuda, mps.")
    if not available[kind]:
        raise SettingError(f"there is no {kind} device on this machine. Use --device auto or cpu.")
    return torch.device(name)


class Training:
    """One run from its first step to its card."""

    def __init__(self, model: Model, folder: RunFolder, prepared: Prepared, order: Order, console: Console) -> None:
        self.model, self.folder, self.prepared, self.order, self.console = model, folder, prepared, order, console
        self.settings = order.settings
        self.task, self.config = model.task, order.settings.train
        self.plan = Plan(prepared.train.lengths(), self.config.tokens, self.config.seed)
        self.optimiser = make_optimiser(model, self.config)
        self.average = Average(model, self.config.average) if self.config.average else None
        self.watchman = Watchman(model.device)
        self.best: dict[str, Any] = {}
        self.pending: list[float] = []
        self.stop_signal = self.saved = 0

    def begin(self) -> Model:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.folder.path}: cannot be made ({error.strerror}). Choose another --out.") from error
        self.prepared.text.save(self.folder.path / "tokenizer.json")
        write_json(self.folder.path / "regard.json", self._facts())
        return self._run(0)

    def resume(self) -> Model:
        """Go on after the newest whole checkpoint, with the same settings and data."""
        old = self.folder.facts()
        for name, key in (("training", "fingerprint"), ("validation", "valid_fingerprint")):
            if old["found"][key] != self.prepared.facts[key]:
                raise RunError(f"{self.folder.path}: the {name} data is not what the run was started with.")
        saved, problems = newest_state(self.folder.checkpoints)
        for problem in problems:
            self._say(f"  {problem}")
        if saved is None:
            if self.order.start is not None and not self.order.start.is_dir():
                raise RunError(f"{self.order.start}: the folder that the run starts from is not there any more.")
            self._say("  there is no whole checkpoint; starting at step 0")
            self.folder.cut_back(0)
            return self._run(0)
        groups = saved.tensors()
        self.model.body.load_state_dict(groups["model"])
        restore_optimiser(self.model, self.optimiser, groups.get("optimiser", {}))
        if self.average is not None:
            self.average.tensors = {n: t.to(self.model.device) for n, t in groups["average"].items()}
        self.best, self.pending = saved.facts.get("best", {}), saved.facts.get("pending", [])
        self.folder.cut_back(saved.step)
        finished = saved.step >= self.config.steps
        self._say(
            f"  the run is finished: {saved.step:,} steps" if finished else f"  going on after step {saved.step:,}"
        )
        return self._run(saved.step)

    def grain(self, number: int) -> Batch:
        _, rows = self.plan.grain(number)
        return self.task.collate(self.prepared.train, rows, self.model.config)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return self.task.loss(self.model, batch, self.config.smoothing)

    def _run(self, done: int) -> Model:
        self._announce(done)
        begun = time.perf_counter()
        with Reporter(self.config.steps, done, self.console) as reporter, self._signals():
            window = self.window = Window(self.task, done, self.pending)
            steps = loop(
                self.model,
                self.loss,
                window.counted(self.grain),
                self.optimiser,
                self.config,
                done,
                self.average,
                self.watchman,
            )
            for step in steps:
                window.add(step)
                reporter.advance(step)
                last = step.number == self.config.steps
                if step.number % self.config.log == 0 or last or step.number == 1:
                    row = window.row()
                    self._check()
                    self.folder.log(row)
                    reporter.trained(row, window.left(self.config.steps))
                if step.number % self.config.every == 0 or last:
                    self._check()
                    with window.paused():
                        self._validate(step.number, reporter)
                        self._save(step.number)
                if self.stop_signal:
                    self._leave(step.number)
        self._say(f"trained {self.config.steps - done:,} steps in {clock(time.perf_counter() - begun)}")
        return self._finish()

    def _validate(self, step: int, reporter: Reporter) -> None:
        """Loss on all validation pairs, score on some; the best model so far is what the run folder holds."""
        with self._averaged():
            self.model.eval()
            loss = validation_loss(self.model, self.prepared.valid, self.settings)
            samples = self.prepared.valid.samples[: self.settings.data.score]
            quick = replace(self.settings.decode, beam=1, best=1, sample=False)
            scores, answers = self.task.score(self.model, samples, quick, self.settings.data)
            row = {"kind": "valid", "step": step, "loss": loss, **scores}
            shown = dict(row)
            del row["sentences"], row["signature"]  # the same each time
            better = not self.best or (row[self.task.metric], -loss) > (self.best[self.task.metric], -self.best["loss"])
            if better:
                self.best = row
                self.model.save(self.folder.path, self._facts())
        self.folder.log(row)
        self.folder.draw(f"{self.task.name}: {self.folder.path.name}")
        reporter.validated(shown, better)
        first = samples[0]
        reporter.say(f"    {first.source}\n    → {answers[0].value}\n    = {first.target}")
        with self.folder.samples.open("a", encoding="utf-8") as file:
            file.write(f"step {step}\n")
            for sample, answer in list(zip(samples, answers, strict=True))[:5]:
                file.write(f"  {sample.source}\n  → {answer.value}\n  = {sample.target}\n\n")

    def _save(self, step: int) -> None:
        if self.saved == step:
            return
        groups = {"model": self.model.body.state_dict(), "optimiser": optimiser_tensors(self.model, self.optimiser)}
        if self.average is not None:
            groups["average"] = self.average.tensors
        pending = [float(loss) for loss in self.window.losses]
        facts = {"best": self.best, "pending": pending, "torch": torch.__version__, "regard": __version__}
        save_state(self.folder.checkpoints, step, groups, facts, self.config.keep)
        self.saved = step

    def _finish(self) -> Model:
        self.folder.close()
        best = load(self.folder.path, device=self.model.device)
        how = f"beam {self.settings.decode.beam}" if self.settings.decode.beam > 1 else "greedy"
        self._say(f"scoring the best model (step {self.best['step']:,}) on all validation pairs, {how}")
        scores, answers = self.task.score(best, self.prepared.valid.samples, self.settings.decode, self.settings.data)
        write_json(self.folder.path / "regard.json", {**self.folder.facts(), "best": self.best, "scores": scores})
        write_card(self.folder, self.prepared.valid.samples, answers)
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
            "settings": self.settings.as_dict(),
            "best": self.best,
        }

    def _announce(self, done: int) -> None:
        count = sum(p.numel() for p in self.model.parameters())
        where = self.model.device
        with autocast(where, self.config):
            fast = torch.is_autocast_enabled(where.type)
        self._say(
            f"{self.order.preset}: {count:,} parameters on {where}, {'bfloat16 autocast' if fast else 'float32'}; "
            f"steps {done:,} to {self.config.steps:,}, {self._passes():.0f} passes over the data, "
            f"{100 * self.plan.padding():.1f} % padding"
        )
        if self._passes() > 200:
            few = max(round(100 * self.config.steps / self._passes(), -2), 100)
            self._say(f"  that is many passes for so little data; 100 would be train.steps={few:.0f}")
        if self.config.warmup >= self.config.steps:
            self._say(
                f"  train.warmup={self.config.warmup:,} is not over before train.steps={self.config.steps:,}: the rate never "
                f"reaches train.rate={self.config.rate:g}. For a short run set train.warmup={max(self.config.steps // 10, 1)}."
            )

    def _passes(self) -> float:
        return self.config.steps * self.config.accumulate / len(self.plan.epoch(0))

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The averaged weights in place of the trained ones, where there is an average."""
        if self.average is None:
            yield
            return
        self.average.swap(self.model)
        try:
            yield
        finally:
            self.average.swap(self.model)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM are noted and obeyed after the step; outside of the main thread they are not ours."""

        def note(number: int, _: FrameType | None) -> None:
            if self.stop_signal:  # asked a second time: at once, and what was saved before stays
                raise KeyboardInterrupt
            self.stop_signal = number

        try:
            before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _leave(self, step: int) -> None:
        self._check()
        self._save(step)
        self.folder.close()
        raise Interrupted(
            f"stopped and saved after step {step:,}. Go on with:\n  {self.resume_command()}", self.stop_signal
        )

    def _check(self) -> None:
        try:
            self.watchman.check(self.config.accumulate)
        except RunError as error:
            saved, _ = newest_state(self.folder.checkpoints)
            raise RunError(f"{error} The last good checkpoint is {saved.path.name if saved else 'none'}.") from error

    def resume_command(self) -> str:
        return f"{own_command()} train {self.task.name} --out {shlex.quote(str(self.folder.path))} --resume"

    def _say(self, text: str) -> None:
        tell(self.console, text)
