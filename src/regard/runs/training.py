"""`train`: from a person's files to a run folder, in one call."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from regard import __version__
from regard.config import from_dict, override
from regard.data.plan import Plan
from regard.decode.settings import Decode
from regard.errors import Interrupted, RunError, SettingError
from regard.inputs.text import Text
from regard.learn.loop import Step, Watchman, loop
from regard.learn.optimiser import Average, autocast, make_optimiser, optimiser_tensors, restore_optimiser
from regard.learn.state import newest_state, save_state
from regard.model import Identity, Model, assemble, load, write_json
from regard.runs.card import write_card
from regard.runs.folder import RunFolder
from regard.runs.prepare import Prepared, Sources, prepare
from regard.runs.progress import Reporter, clock
from regard.runs.settings import Settings, differences, gather, resolve
from regard.systems import SYSTEMS, find_preset
from regard.tasks import Task, find_task
from regard.waists import Batch


def train(
    task: str, data: str | Sequence[str] = (), *, out: str | os.PathLike[str], model: str | None = None,
    valid: str | Sequence[str] = (), columns: Mapping[str, str] | None = None, settings: Sequence[str] = (),
    config: str | os.PathLike[str] | None = None, device: str = "auto", resume: bool = False,
    console: Console | None = None,
) -> Model:  # fmt: skip
    """Train `model` (a preset or a folder) on files and leave a run in `out`. Returns the best model.

    With `resume` an existing run goes on as it was started: it remembers its data, model and settings."""
    console = console or Console()
    folder, chosen = RunFolder(out), find_task(task)
    said = gather(settings, config)
    sources = Sources(_listed(data), _listed(valid), tuple(sorted((columns or {}).items())))
    going_on = resume and folder.exists()
    if going_on:
        sources, model, made = _remembered(folder, chosen, sources, model, said)
    else:
        folder.refuse_if_taken()
        if resume:
            _tell(console, f"{folder.path}: there is no run to resume; starting at step 0")
    if not sources.data:
        raise SettingError("there is no data. Name files with --data.")
    model = model or DEFAULT_MODEL[chosen.name]
    identity, text, recipe = _identity(model, chosen)
    if not going_on:
        made = resolve(recipe, said)
    where = pick_device(device)
    _tell(console, f"reading {', '.join(sources.data)}")
    text = Text.load(folder.path) if going_on else text
    changed = override(identity.config, made.model, "model.")
    prepared = prepare(chosen, sources, made, changed, text, lambda line: _tell(console, line))
    identity = replace(identity, config=prepared.config, decode=made.decode)
    torch.manual_seed(made.train.seed)
    fresh = assemble(identity, prepared.text)
    if Path(model).is_dir():
        fresh.body.load_state_dict(load(model).body.state_dict())
    run = Training(fresh.to(where), folder, prepared, made, sources, model, console)
    return run.resume() if going_on else run.begin()


DEFAULT_MODEL = {"translate": "transformer-tiny"}
"""By task, when no model is named."""


def _remembered(
    folder: RunFolder, task: Task, sources: Sources, model: str | None, said: Mapping[str, Mapping[str, Any]]
) -> tuple[Sources, str, Settings]:
    """What the run was started with. Anything said now that differs from it is refused by name."""
    old = folder.facts()
    kept = Sources(
        tuple(old["sources"]["data"]), tuple(old["sources"]["valid"]), tuple(sorted(old["sources"]["columns"].items()))
    )
    made = resolve(old["settings"], said)
    changed = differences(old["settings"], made.as_dict())
    changed += [f"task: {old['task']} -> {task.name}"] * (old["task"] != task.name)
    changed += [f"model: {old['preset']} -> {model}"] * (model not in (None, old["preset"]))
    for name in ("data", "valid", "columns"):
        now, before = getattr(sources, name), getattr(kept, name)
        changed += [f"{name}: {before} -> {now}"] * (bool(now) and now != before)
    if changed:
        raise RunError(
            f"{folder.path}: the run was started otherwise ({'; '.join(changed)}). Leave that out, or choose another --out."
        )
    return kept, str(old["preset"]), made


def _tell(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _listed(paths: str | Sequence[str]) -> tuple[str, ...]:
    return (os.fspath(paths),) if isinstance(paths, str | os.PathLike) else tuple(map(os.fspath, paths))


def _identity(model: str, task: Task) -> tuple[Identity, Text | None, dict[str, Any]]:
    """What a preset or a folder is, its tokenizer, and the recipe it comes with."""
    if Path(model).is_dir():
        loaded = load(model)
        return loaded.identity, loaded.text_or_refuse(), {}
    system, preset = find_preset(model)
    if task.name not in system.tasks:
        able = [name for name, s in SYSTEMS.items() if task.name in s.tasks]
        raise SettingError(f"{model} cannot be asked to {task.name}. Systems that can: {', '.join(able)}.")
    decode = from_dict(Decode, preset.recipe.get("decode", {}), "decode.")
    return Identity(system, preset.config, task, decode, model), None, preset.recipe


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

    def __init__(
        self, model: Model, folder: RunFolder, prepared: Prepared, settings: Settings, sources: Sources, preset: str,
        console: Console,
    ) -> None:  # fmt: skip
        self.model, self.folder, self.prepared, self.settings, self.console = model, folder, prepared, settings, console
        self.sources, self.preset = sources, preset
        self.task, self.config = model.task, settings.train
        self.plan = Plan(prepared.train.lengths(), self.config.tokens, self.config.seed)
        self.optimiser = make_optimiser(model, self.config)
        self.average = Average(model, self.config.average) if self.config.average else None
        self.watchman = Watchman(model.device)
        self.best: dict[str, Any] = {}
        self.stop_signal = 0

    def begin(self) -> Model:
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.prepared.text.save(self.folder.path / "tokenizer.json")
        write_json(self.folder.path / "regard.json", self._facts())
        return self._run(0)

    def resume(self) -> Model:
        """Go on after the newest whole checkpoint, with the same settings and data."""
        old = self.folder.facts()
        if old["found"]["fingerprint"] != self.prepared.facts["fingerprint"]:
            raise RunError(f"{self.folder.path}: the training data is not what the run was started with.")
        saved, problems = newest_state(self.folder.checkpoints)
        for problem in problems:
            self._say(f"  {problem}")
        if saved is None:
            self._say("  there is no whole checkpoint; starting at step 0")
            self.folder.cut_back(0)
            return self._run(0)
        groups = saved.tensors()
        self.model.body.load_state_dict(groups["model"])
        restore_optimiser(self.model, self.optimiser, groups.get("optimiser", {}))
        if self.average is not None:
            self.average.tensors = {n: t.to(self.model.device) for n, t in groups["average"].items()}
        self.best = saved.facts.get("best", {})
        self.folder.cut_back(saved.step)
        self._say(f"  going on after step {saved.step:,}")
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
            window = Window(self.task, done)
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
                reporter.advance(step.number)
                last = step.number == self.config.steps
                if step.number % self.config.log == 0 or last or step.number == 1:
                    row = window.row()
                    self.watchman.check(self.config.accumulate)
                    self.folder.log(row)
                    reporter.trained(row, window.left(self.config.steps))
                if step.number % self.config.every == 0 or last:
                    self.watchman.check(self.config.accumulate)
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
            del row["sentences"], row["signature"]  # the same each time
            better = not self.best or (row[self.task.metric], -loss) > (self.best[self.task.metric], -self.best["loss"])
            if better:
                self.best = row
                self.model.save(self.folder.path, self._facts())
        self.folder.log(row)
        self.folder.draw(f"{self.task.name}: {self.folder.path.name}")
        reporter.validated(row, better)
        first = samples[0]
        reporter.say(f"    {first.source}\n    → {answers[0].value}\n    = {first.target}")
        with (self.folder.path / "samples.txt").open("a", encoding="utf-8") as file:
            file.write(f"step {step}\n")
            for sample, answer in list(zip(samples, answers, strict=True))[:5]:
                file.write(f"  {sample.source}\n  → {answer.value}\n  = {sample.target}\n\n")

    def _save(self, step: int) -> None:
        groups = {"model": self.model.body.state_dict(), "optimiser": optimiser_tensors(self.model, self.optimiser)}
        if self.average is not None:
            groups["average"] = self.average.tensors
        facts = {"best": self.best, "torch": torch.__version__, "regard": __version__}
        save_state(self.folder.checkpoints, step, groups, facts, self.config.keep)

    def _finish(self) -> Model:
        self.folder.close()
        best = load(self.folder.path, device=self.model.device)
        self._say(f"scoring the best model (step {self.best['step']:,}) on all validation pairs")
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
            "preset": self.preset,
            "model": {**identity.config.__dict__},
            "decode": {**identity.decode.__dict__},
            "sources": self.sources.as_dict(),
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
            f"{self.preset}: {count:,} parameters on {where}, {'bfloat16 autocast' if fast else 'float32'}; "
            f"steps {done:,} to {self.config.steps:,}, {len(self.plan.epoch(0)):,} grains an epoch, "
            f"{100 * self.plan.padding():.1f} % padding"
        )

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
        self.watchman.check(self.config.accumulate)
        self._save(step)
        self.folder.close()
        raise Interrupted(
            f"stopped and saved after step {step:,}. Go on with:\n  {self.resume_command()}", self.stop_signal
        )

    def resume_command(self) -> str:
        return shlex.join(["regard", "train", self.task.name, "--out", str(self.folder.path), "--resume"])

    def _say(self, text: str) -> None:
        _tell(self.console, text)


class Window:
    """The steps since the last line of the log: their mean loss and speed."""

    def __init__(self, task: Task, done: int) -> None:
        self.task, self.done = task, done
        self.steps: list[Step] = []
        self.tokens, self.begun, self.pace = 0, time.perf_counter(), 0.0

    def counted(self, grains: Any) -> Any:
        def counting(number: int) -> Batch:
            batch: Batch = grains(number)
            self.tokens += self.task.tokens(batch)
            return batch

        return counting

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def row(self) -> dict[str, Any]:
        loss = float(torch.stack([s.loss for s in self.steps]).mean())  # waits for the device: the time is honest
        seconds = max(time.perf_counter() - self.begun, 1e-9)
        last = self.steps[-1]
        self.pace = seconds / len(self.steps)
        row = {
            "kind": "train", "step": last.number, "loss": loss, "rate": last.rate, "norm": float(last.norm),
            "tokens_per_s": self.tokens / seconds, "seconds": seconds,
        }  # fmt: skip
        self.done, self.steps, self.tokens, self.begun = last.number, [], 0, time.perf_counter()
        return row

    def left(self, steps: int) -> float:
        return (steps - self.done) * self.pace

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent on validation is not training time."""
        before = time.perf_counter()
        yield
        self.begun += time.perf_counter() - before


def validation_loss(model: Model, encoded: Any, settings: Settings) -> float:
    """Mean negative log-likelihood of a target token, without smoothing."""
    plan = Plan(encoded.lengths(), max(settings.train.tokens, int(encoded.lengths().sum(1).max())), seed=0)
    total = count = 0.0
    with torch.no_grad(), autocast(model.device, settings.train):
        for rows in plan.sequential():
            batch = model.task.collate(encoded, rows, model.config).to(model.device)
            part, number = model.task.loss(model, batch)
            total, count = total + float(part), count + float(number)
    return total / count
