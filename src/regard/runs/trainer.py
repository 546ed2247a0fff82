"""One training run, from the first step to the model card."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from regard import __version__, capabilities
from regard.config import as_dict
from regard.data.batching.loader import prefetch
from regard.draw.charts import draw_training_curves
from regard.errors import Interrupted, RunError
from regard.files import write_json
from regard.model import Model, model_metadata, reload_weights
from regard.runs.card import MAX_EXAMPLES, write_card
from regard.runs.evaluate import validation_loss
from regard.runs.folder import RunFolder
from regard.runs.progress import ProgressReporter, format_duration, print_line, program_command, shorten_lines
from regard.runs.spec import TrainSpec
from regard.tasks.base import EvalSpec, LossWeights
from regard.tasks.modality.base import batch_budget
from regard.tasks.preparation import PreparedData
from regard.training import loop, optimizer
from regard.training.checkpoint import (
    average_checkpoints,
    latest_checkpoint,
    prune_checkpoints,
    remove_partial,
    save_checkpoint,
)
from regard.training.distributed import ProcessGroup
from regard.training.settings import TrainSettings

CONSTANT_SCORES = ("sentences", "samples", "signature")  # Keys of the scores that are equal in all validations.
MIN_CURVE_POINTS = 20  # Minimum number of logged steps of a short run.


class Trainer:
    def __init__(
        self,
        model: Model,
        folder: RunFolder,
        prepared: PreparedData,
        spec: TrainSpec,
        console: Console,
        process_group: ProcessGroup,
        packed: bool = False,
    ) -> None:
        self.model, self.folder, self.prepared, self.spec, self.console = model, folder, prepared, spec, console
        self.process_group = process_group
        self.settings = spec.settings
        self.task, self.objective, self.config = model.task, model.objective, spec.settings.train
        self.modality, self.unit = model.objective.modality, model.task.reader.unit
        self.sampler = self.objective.sampler(
            prepared.train, model.config, batch_budget(self.modality, self.config), self.config.seed, packed
        )
        self.padding, self.epoch_size = round(self.sampler.padding_fraction(), 6), len(self.sampler.cached_epoch(0))
        """fraction of padding in the batches of an epoch, and number of micro-batches"""
        if self.config.epochs:
            steps = math.ceil(self.config.epochs * self.epoch_size / self.config.grad_accum)
            self.config = replace(self.config, steps=max(steps, 1))
        self.model_facts = model_metadata(model.spec)
        asked, on_cuda = spec.settings.data.num_workers, model.device.type == "cuda"
        self.num_workers = asked if asked >= 0 else 2 * on_cuda
        self.num_checkpoints = max(self.config.keep_checkpoints, self.config.average_checkpoints)
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        """trained parameters, and parameters frozen by `train.freeze`"""
        self.num_unused = sum(p.numel() for p in model.parameters() if not p.requires_grad)
        # a checkpoint contains the weights, two optimizer moments and optionally the EMA
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        self.checkpoint_bytes = weights * (4 if self.config.ema_decay else 3)
        self.num_frozen = optimizer.freeze(model, self.config.freeze) - self.num_unused
        self.optimizer = optimizer.make_optimizer(model, self.config)
        self.ema = optimizer.WeightEMA(model, self.config.ema_decay) if self.config.ema_decay else None
        self._log = partial(print_line, console)
        self.signal = 0  # number of the received signal; 0 before
        self.best: dict[str, Any] = {}
        self.pending_losses: list[float] = []
        self.completed_steps = self.stale_evals = 0
        self.saved_step, self.compute_mode = -1, ""
        self.start_time = self.save_time = time.perf_counter()

    def write_initial_files(self) -> None:
        try:
            facts = self._metadata()
            self.modality.save_processor(self.prepared.processor, self.prepared.config, self.folder.path)
            write_json(self.folder.path / "regard.json", facts)
        except OSError:  # files of an incomplete run would block the folder
            for name in self.modality.processor_files:
                (self.folder.path / name).unlink(missing_ok=True)
            raise

    def resume(self) -> None:
        """Load the newest complete checkpoint; settings and data must be unchanged."""
        old = self.folder.read_metadata()
        parts = (("training", "fingerprint", "train"), ("validation", "valid_fingerprint", "valid"))
        for name, key, count in parts:
            if old["data_stats"][key] != self.prepared.stats[key]:
                before, now = old["data_stats"][count], self.prepared.stats[count]
                counts = f"{before:,} {self.unit} before, {now:,} now"
                changed = counts if before != now else f"{now:,} {self.unit}, other content"
                raise RunError(
                    f"{self.folder.path}: the {name} data has changed since the run was started ({changed}). Restore the "
                    f"data, or start a new run from this model: --model {shlex.quote(str(self.folder.path))} --out NEW."
                )
        saved, problems = latest_checkpoint(self.folder.checkpoints)
        for problem in problems:
            self._log(f"warning: {problem}")
        if saved is None:
            if self.spec.weights_folder is not None and not self.spec.weights_folder.is_dir():
                raise RunError(
                    f"{self.spec.weights_folder}: the folder with the initial weights of this run no longer exists."
                )
            self._log("note: no complete checkpoint found; starting at step 0.")
        else:
            groups = saved.tensors()
            self.model.load_weights(groups["model"])
            optimizer.restore_optimizer(self.model, self.optimizer, groups.get("optimizer", {}))
            if self.ema is not None:
                self.ema.restore(groups["ema"])
            facts = saved.metadata
            self.best, self.pending_losses = facts.get("best", {}), facts.get("pending_losses", [])
            self.stale_evals, self.compute_mode = facts.get("stale_evals", 0), facts.get("compute_mode", "")
            self.completed_steps = self.saved_step = saved.step
            if self._is_finished():
                name = shlex.quote(str(self.folder.path))
                self._log(f"The run is finished after step {saved.step:,}. To train longer: --model {name} --out NEW")
            else:
                self._log(f"Resuming after step {saved.step:,}.")
        if self.process_group.is_main:
            remove_partial(self.folder.checkpoints)
            prune_checkpoints(self.folder.checkpoints, self.completed_steps, self.num_checkpoints, self._is_eval_step)
            self.folder.truncate_log(self.completed_steps)

    def run(self) -> Model | None:
        """Train to the end. Returns the best model in the first process, None in the others."""
        done, config, device = self.completed_steps, self.config, self.model.device
        if self._is_finished() and (self.folder.path / "README.md").exists():  # the card is written last
            return None
        if self.process_group.is_main and not any(row["kind"] == "plan" for row in self.folder.read_log()):
            self.folder.log({"kind": "plan", "step": 0, "padding": self.padding})
        unit, losses = self.modality.batch_unit, self.pending_losses
        self.progress = ProgressReporter(config.steps, done, self.console, unit, losses)
        with self._defer_signals(), ExitStack() as stack:
            self._log_summary()
            if not self._is_finished():
                loss = loop.LossModule(self.model, LossWeights(config.label_smoothing, config.lm_loss_weight))
                shapes = self.sampler.static_shape, self.sampler.bucketed
                compute = loop.ForwardBackward(loss, config, device, self.process_group, *shapes)
                chooser = loop.CompileTuner(compute, config, self._log, self.compute_mode)
                numbers = loop.micro_batch_indices(done, config, self.process_group)
                # a deterministic function of the number of the micro-batch
                build = partial(self.sampler.build, self.objective.collate, self.prepared.train, self.model.config)
                batches = prefetch(build, numbers, self.num_workers, pin=device.type == "cuda")
                stack.enter_context(self.progress.bar or nullcontext())
                stack.enter_context(closing(batches))
                for step in loop.train_loop(self.model, compute, batches, self.optimizer, config, done, self.ema):
                    self.completed_steps, self.compute_mode = step.step, "" if chooser.tuning else compute.mode
                    self.nonfinite = step.nonfinite
                    first = (step.step - 1) * config.grad_accum
                    tokens = map(self.sampler.num_tokens, range(first, first + config.grad_accum))
                    self.progress.advance(step, sum(tokens))
                    self._after_step(step)
                    if chooser.tuning:
                        chooser.step(config.steps - step.step, disturbed=self._is_eval_step(step.step))
                    if self._should_stop():
                        break
        if not self.process_group.is_main:
            return None
        if self.completed_steps > done:
            spent = format_duration(time.perf_counter() - self.start_time)
            self._log(f"Trained {self.completed_steps - done:,} steps in {spent}.")
        with self._defer_signals(self._raise_interrupted):
            return self._finish()

    def _after_step(self, step: loop.TrainStep) -> None:
        """Log, validate and save if the step requires it."""
        last = step.step == self.config.steps
        often = self.config.log_every
        if often == TrainSettings.log_every:  # the default
            often = min(often, max(self.config.steps // MIN_CURVE_POINTS, 1))
        if step.step % often == 0 or last or step.step == 1:
            self._check_finite()
            row = self.progress.log_row(step, force=self._is_eval_step(step.step))
            if self.process_group.is_main:
                self.folder.log(row)
        if self._is_eval_step(step.step):
            self._check_finite()
            with self.progress.pause():
                if self.process_group.is_main:
                    self._validate(step.step)
                    self._save(step.step)
                self.process_group.all_reduce_max(0)
        elif self.process_group.is_main and time.perf_counter() - self.save_time > 60 * self.config.save_minutes:
            with self.progress.pause():
                if int(self.nonfinite) < 0:  # checked in this process only
                    self._save(step.step)

    def _should_stop(self) -> bool:
        """True if patience is exhausted. A signal saves the run and raises Interrupted."""
        if number := self.process_group.all_reduce_max(self.signal):
            self._check_finite()
            self._save(self.completed_steps)
            self.folder.close()
            self.process_group.all_reduce_max(0)  # all processes wait until the first has written the checkpoint
            self._raise_interrupted(number)
        if not self.config.patience or not self._is_eval_step(self.completed_steps):
            return False
        tired = bool(self.process_group.all_reduce_max(int(self.stale_evals >= self.config.patience)))
        if tired:
            self._log(
                f"No improvement in {self.config.patience} validations (train.patience): stopped after step "
                f"{self.completed_steps:,}."
            )
        return tired

    def _is_finished(self) -> bool:
        return self.completed_steps >= self.config.steps or 0 < self.config.patience <= self.stale_evals

    def _is_eval_step(self, step: int) -> bool:
        return step % self.config.eval_every == 0 or step == self.config.steps

    def _validate(self, step: int) -> None:
        with optimizer.swap_weights(self.model, None if self.ema is None else self.ema.tensors):
            row, answers, better = self._evaluate(step)
        logged = {name: value for name, value in row.items() if name not in CONSTANT_SCORES}
        self.folder.log({**logged, "elapsed": time.perf_counter() - self.start_time})
        scores = self.objective.format_scores(row)
        some = list(map(self.objective.format_example, self.prepared.valid.samples[:5], answers))
        title = f"{self.task.name}: {self.folder.path.name}"
        draw_training_curves(self.folder.read_log(), self.folder.path / "curves.png", title)
        self._log(f"step {step:>7,}  valid loss {row['loss']:7.4f}  {scores}{'  * best' * better}")
        for text in some[:1]:
            self._log(shorten_lines(text))
        with self.folder.samples_file.open("a", encoding="utf-8") as file:
            file.write(f"step {step}\n" + "\n".join(some) + "\n")

    def _evaluate(self, step: int, **more: Any) -> tuple[dict[str, Any], list[Any], bool]:
        """Loss on all validation samples and metrics on data.eval_samples; a better model is saved to the run folder."""
        self.model.eval()
        valid, data = self.prepared.valid, self.settings.data
        sums = validation_loss(self.model, valid, self.settings)
        quick = replace(self.settings.decode, **self.objective.validation_decode)
        scores, answers = self.objective.evaluate(self.model, valid, EvalSpec(quick, data, sums, data.eval_samples))
        row = {"kind": "valid", "step": step, "loss": sums.total / sums.count, **scores, **more}
        better = not self.best or self._score_key(row) > self._score_key(self.best)
        self.stale_evals = 0 if better else self.stale_evals + 1
        if better:
            self.best = {name: value for name, value in row.items() if name not in CONSTANT_SCORES}
            self.model.save(self.folder.path, self._metadata())
        return row, answers, better

    def _selection_metric(self, row: dict[str, Any]) -> str:
        return next(name for name in self.objective.metrics if name in row)

    def _score_key(self, row: dict[str, Any]) -> tuple[float, float]:
        sign = -1 if self.objective.lower_is_better else 1
        return sign * row[self._selection_metric(row)], -row["loss"]

    def _save(self, step: int) -> None:
        if self.saved_step == step or not self.process_group.is_main:
            return
        moments = {
            f"{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        groups = {"model": self.model.weights(), "optimizer": moments}
        if self.ema is not None:
            groups["ema"] = self.ema.tensors
        facts = {
            "best": self.best,
            "pending_losses": [float(loss) for loss in self.progress.losses],
            "stale_evals": self.stale_evals,
            "compute_mode": self.compute_mode,
            "world_size": self.process_group.size,
            "torch": torch.__version__,
            "regard_version": __version__,
        }
        save_checkpoint(self.folder.checkpoints, step, groups, facts, self.num_checkpoints, self._is_eval_step)
        self.saved_step, self.save_time = step, time.perf_counter()

    def _average_checkpoints(self) -> None:
        """Average of the last `train.average_checkpoints` checkpoints, kept if its score is better than the best one."""
        regular = [step for step in range(1, self.completed_steps + 1) if self._is_eval_step(step)]
        steps = regular[-self.config.average_checkpoints :]
        if len(steps) < 2 or self.best.get("averaged_checkpoints"):
            return
        mean = average_checkpoints(self.folder.checkpoints, steps)
        if mean is None:
            self._log("warning: a checkpoint is missing; train.average_checkpoints is skipped.")
            return
        stale = self.stale_evals
        with optimizer.swap_weights(self.model, mean):
            row, _, better = self._evaluate(self.completed_steps, averaged_checkpoints=len(steps))
        self.stale_evals = stale
        kept, metric = "kept" if better else "no improvement, not kept", self._selection_metric(row)
        self._log(f"Average of the last {len(steps)} checkpoints: {metric} {row[metric]} ({kept}).")

    def _finish(self) -> Model:
        if self.config.average_checkpoints > 1:
            self._average_checkpoints()
        self.folder.close()
        model, folder = self.model, self.folder.path
        for parameter in self.trainable:
            parameter.requires_grad_(True).grad = None
        reload_weights(model, folder)  # the run folder contains the best weights
        model.eval()
        decode = self.settings.decode
        how = f", beam {decode.num_beams}" if decode.num_beams > 1 else "" if decode.do_sample else ", greedy"
        how = how if self.objective.generates else ""
        self._log(f"Evaluating the best model (step {self.best['step']:,}) on all validation {self.unit}{how}.")
        valid = self.prepared.valid
        sums = validation_loss(model, valid, self.settings)
        scores, answers = self.objective.evaluate(model, valid, EvalSpec(decode, self.settings.data, sums))
        pictures = self.objective.save_figures(folder, valid.samples, answers) if answers else []
        pairs = list(zip(valid.samples, answers, strict=False))
        examples = [self.objective.example_row(*pair) for pair in pairs[:MAX_EXAMPLES]]
        facts = {**self._metadata(), "scores": scores}
        write_json(folder / "regard.json", facts)
        write_card(folder, self.task, facts, valid.samples, examples, pictures)
        shown = ", ".join(f"{k} {v}" for k, v in scores.items() if not isinstance(v, str))
        self._log(f"Validation: {shown}\nRun folder: {folder}")
        return model

    def _metadata(self) -> dict[str, Any]:
        """Contents of regard.json, without the final scores."""
        return {
            **self.model_facts,
            "regard_version": __version__,
            "preset": self.spec.identity.source,
            "sources": as_dict(self.spec.sources),
            "data_stats": self.prepared.stats,
            "packed": self.sampler.shape is not None,
            "rows": self.sampler.description.rstrip(","),
            "padding": self.padding,
            "settings": as_dict(self.settings),
            "best": self.best,
        }

    def _log_summary(self) -> None:
        count = sum(p.numel() for p in self.model.parameters())
        where, config = self.model.device, self.config
        epochs = config.steps * config.grad_accum / self.epoch_size
        precision = "bfloat16 autocast" if optimizer.uses_autocast(where, config) else "float32"
        counts = {"frozen": self.num_frozen, "unused": self.num_unused}
        frozen = "".join(f" ({number:,} {name})" for name, number in counts.items() if number)
        together = f", {self.process_group.size} processes" if self.process_group.size > 1 else ""
        rows = self.sampler.description.rstrip(",") or ("packed" if self.sampler.shape is not None else "padded")
        rows = f"{rows}, {100 * self.padding:.1f} % padding" if self.task.input == "text" else rows
        batch = batch_budget(self.modality, config) * config.grad_accum
        resumed = 0 < self.completed_steps < config.steps
        steps = f"steps {self.completed_steps + 1:,} to {config.steps:,}" if resumed else f"{config.steps:,} steps"
        if self.completed_steps:
            weights = f"weights of step {self.completed_steps:,}"
        elif self.spec.init_folder is not None:
            weights = f"pretrained: {self.spec.init_folder}"
        else:
            folder = self.spec.weights_folder
            weights = "random weights" + (f", pretrained image encoder: {folder}" if folder else "")
        self._log(f"Model     {self.spec.identity.source}, {count:,} parameters{frozen}, {weights}")
        self._log(f"Device    {where}{together}, {precision}")
        self._log(
            f"Training  {steps} ({epochs:,.1f} epoch{'s' * (f'{epochs:.1f}' != '1.0')}), "
            f"batch {batch:,} {self.modality.batch_unit}, lr {config.lr:g}, {rows}"
        )
        if self.num_workers and not capabilities.is_available("fork"):
            self._log("note: data.num_workers has no effect: worker processes need fork, which this platform lacks.")
        if epochs > 200:
            few = max(round(100 * config.steps / epochs, -2), 100)
            self._log(f"warning: {epochs:,.0f} epochs on little data; 100 epochs are train.steps={few:.0f}.")
        if config.num_warmup_steps >= config.steps:
            self._log(
                f"warning: train.warmup_steps={config.warmup_steps:,} is not less than train.steps={config.steps:,}: the "
                f"learning rate does not reach train.lr={config.lr:g}. Set train.warmup_steps={max(config.steps // 10, 1)}."
            )

    def _raise_interrupted(self, number: int) -> None:
        again = f"Stopped and saved after step {self.completed_steps:,}. Resume with:\n  {self.resume_command()}"
        raise Interrupted(again if self.process_group.is_main else "", number)

    def _check_finite(self) -> None:
        """Raise an error if a step had a non-finite loss or gradient (`TrainStep.nonfinite`) in any process."""
        micro_batch = int(self.nonfinite)
        # minimum over all processes: after the reduction, other processes have NaN as well
        if self.process_group.size > 1:
            far = 2**62
            most = self.process_group.all_reduce_max(far - micro_batch if micro_batch >= 0 else 0)
            micro_batch = far - most if most else -1
        if micro_batch >= 0:
            step, part = divmod(micro_batch, self.config.grad_accum)
            saved, _ = latest_checkpoint(self.folder.checkpoints)
            raise RunError(
                f"The loss or its gradient is NaN or infinite at step {step + 1}, micro-batch {part + 1} of "
                f"{self.config.grad_accum}. Training stopped; no checkpoint was written after this step. Try a lower "
                "train.lr, a larger train.warmup_steps or train.grad_clip=1. The last checkpoint before the error: "
                f"{saved.path.name if saved else 'none'}."
            )

    def resume_command(self) -> str:
        command = program_command()
        if self.process_group.size > 1:
            command = f"torchrun --nproc-per-node {self.process_group.size} -m regard"
        return f"{command} train {self.task.name} --out {shlex.quote(str(self.folder.path))} --resume"

    @contextmanager
    def _defer_signals(self, on_signal: Callable[[int], None] | None = None) -> Iterator[None]:
        """Record signals instead of stopping; `on_signal` is called immediately. No effect outside of the main thread."""

        def note(number: int, _: FrameType | None) -> None:
            if self.signal:
                if number == signal.SIGINT:  # second Ctrl-C: stop immediately, with the last saved checkpoint
                    raise KeyboardInterrupt
                return  # schedulers and torchrun repeat SIGTERM: continue saving
            self.signal = number
            if on_signal is not None:
                on_signal(number)

        try:
            before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
