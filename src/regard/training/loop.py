"""Forward and backward pass of a micro-batch, and the training loop: a generator of optimizer steps, independent of tasks. The
caller logs, evaluates and saves.

A step has a fixed number of micro-batches. Before each, random generators are seeded from (seed, micro-batch index), so
batch, dropout and masking are functions of the index: resuming after step n requires only n. A micro-batch runs in one of
three modes:

plain      eager mode
graph      one CUDA graph per shape, if micro-batches have one shape or a few
compiled   `torch.compile`, with CUDA graphs if possible"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

from regard import capabilities
from regard.nn.kernels.cuda_graph import capture
from regard.training.distributed import ProcessGroup, all_reduce
from regard.training.optimizer import WeightEMA, lr_at, uses_autocast
from regard.training.settings import TrainSettings
from regard.types import Batch

ExecutionMode = Literal["plain", "graph", "compiled"]
LossSum = tuple[Tensor, Tensor]

MODE_NAMES = {"plain": "eager execution", "graph": "CUDA graph capture", "compiled": "torch.compile"}

WARMUP_STEPS, TIMED_STEPS = 4, 12  # Warmup steps and timed steps, when modes are compared.

MAX_COMPILE_SECONDS = 150.0
"""Maximum seconds of a trial of torch.compile in addition to the steps: recompiling for every micro-batch is never
faster."""

MIN_SECONDS_TO_COMPILE = 300.0
"""Minimum seconds of remaining training for a trial of torch.compile, which takes a minute."""

MAX_GRAPHS = 64
"""Maximum number of captured shapes: each has its own batch, all share a memory pool, and a capture takes a second."""

ShapeKey = tuple[tuple[int, ...], ...]  # Shapes of a batch, and maximum lengths of packed documents.


class LossModule(nn.Module):
    """The loss of a task as a module, so that DistributedDataParallel and torch.compile wrap a single forward."""

    def __init__(self, model: Any, weights: Any) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def forward(self, batch: Batch) -> LossSum:
        return self.model.objective.loss(self.model, batch, self.weights)


class ForwardBackward:
    """Accumulates the gradients of a micro-batch and returns (sum, count) of its loss."""

    def __init__(
        self,
        loss: Any,
        settings: TrainSettings,
        device: torch.device,
        process_group: ProcessGroup,
        static_shape: bool,
        bucketed: bool = False,
    ) -> None:
        """`static_shape`: all micro-batches have one shape; `bucketed`: a few shapes, each with many micro-batches."""
        self.module: Any = loss
        if process_group.size > 1:
            self.module = nn.parallel.DistributedDataParallel(loss, gradient_as_bucket_view=True)
        self.settings, self.device, self.process_group = settings, device, process_group
        self.autocast = uses_autocast(device, settings)
        self.static_shape = static_shape
        self.can_capture = (static_shape or bucketed) and device.type == "cuda" and process_group.size == 1
        self.can_capture = self.can_capture and capabilities.is_available("cuda_graphs")
        body = loss.model.body
        self.can_compile: bool = body.compiles and (static_shape or body.compiles_dynamic)
        """False for loops over tokens: torch.compile unrolls every step, again for each length"""
        self.parameters = [p for p in loss.parameters() if p.requires_grad]
        self.mode: ExecutionMode = "plain"
        self.mode_verified = True
        self.log: Callable[[str], None] = lambda line: None
        self.graphed: GraphedForwardBackward | None = None
        self.compiled: Any = None

    def set_mode(self, mode: ExecutionMode) -> None:
        """Set the mode. Only between two optimizer steps, because accumulated gradients are lost."""
        self.mode, self.mode_verified = mode, mode == "plain"
        self.compiled = None
        if mode == "compiled":
            # one shape is compiled as static; otherwise, sizes are dynamic
            self.compiled = torch.compile(self.module, dynamic=not self.static_shape)
        self.graphed = GraphedForwardBackward(self) if mode != "plain" and self.can_capture else None

    def __call__(self, batch: Batch, last: bool = True) -> LossSum:
        """`last`: no more micro-batches of this process in the step, so gradients are reduced."""
        graphed = self.graphed
        if self.mode_verified:
            return self.backward(batch, last) if graphed is None else graphed(batch)
        seed = torch.initial_seed()
        try:
            result = self.backward(batch, last) if graphed is None else graphed(batch)
            self.mode_verified = graphed is None or bool(graphed.graphs)
            return result
        except (RuntimeError, OSError) as error:  # missing compiler, or operator without capture support
            reason = first_line(error)  # the exception holds the memory of the failed pass
        lower: ExecutionMode = "graph" if self.mode == "compiled" and self.can_capture else "plain"
        self.log(f"warning: {MODE_NAMES[self.mode]} failed ({reason}); continuing with {MODE_NAMES[lower]}.")
        if graphed is None or not graphed.accumulates:  # remove partial gradients
            for parameter in self.parameters:
                parameter.grad = None
        self.set_mode(lower)
        torch.manual_seed(seed)
        return self(batch, last)

    @property
    def num_shapes(self) -> int:
        """Number of new and captured shapes so far, which changes during warmup."""
        return 0 if self.graphed is None else len(self.graphed.seen_shapes) + len(self.graphed.graphs)

    def zero_grad(self) -> None:
        """Set gradients to None; with CUDA graphs, to 0 in place, unless the graph overwrites gradients."""
        if self.graphed is None:
            for parameter in self.parameters:
                parameter.grad = None
        elif self.graphed.accumulates and (gradients := [p.grad for p in self.parameters if p.grad is not None]):
            torch._foreach_zero_(gradients)

    def backward(self, batch: Batch, last: bool = True) -> LossSum:
        with self.module.no_sync() if not last and self.process_group.size > 1 else nullcontext():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                # no `or`: a compiled module has no truth value
                module = self.module if self.compiled is None else self.compiled
                total, count = module(batch.to(self.device))
            torch.autograd.backward(total)
        return total.detach(), count


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def _shape_key(batch: Batch) -> ShapeKey:
    packings = (batch.packing, None if batch.decoder is None else batch.decoder.packing)
    longest = tuple(packing.max_length for packing in packings if packing is not None)
    return (*((*tensor.shape,) for tensor in batch.tensors()), longest)


@dataclass(frozen=True)
class CapturedGraph:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # input tensors of the graph
    result: LossSum  # output tensors of the graph

    def __call__(self, batch: Batch) -> LossSum:
        for here, there in zip(self.batch.tensors(), batch.tensors(), strict=True):
            here.copy_(there, non_blocking=True)
        self.graph.replay()
        return self.result


class GraphedForwardBackward:
    """Micro-batches as CUDA graphs, one per shape. A replay reads new random seeds, so dropout differs between replays."""

    def __init__(self, eager: ForwardBackward) -> None:
        self.eager = eager
        self.accumulates = eager.settings.grad_accum > 1 or not eager.static_shape
        """True if a graph adds to gradients; a graph of a whole step overwrites gradients, which saves one pass over
        memory"""
        self.graphs: dict[ShapeKey, CapturedGraph] = {}
        self.seen_shapes: set[ShapeKey] = set()
        self.max_graphs = MAX_GRAPHS

    def __call__(self, batch: Batch) -> LossSum:
        key = _shape_key(batch)
        if key not in self.graphs and not self._ensure_captured(key, batch):
            with nullcontext() if self.eager.mode_verified else self._restore_state(always=False):
                return self.eager.backward(batch)
        return self.graphs[key](batch)

    def _ensure_captured(self, key: ShapeKey, batch: Batch) -> bool:
        """True if this shape has a graph. After the first graph, a failed capture limits the number of graphs."""
        if self.eager.static_shape and self.graphs:  # a second graph would write to other gradient tensors
            raise ValueError(f"expected micro-batches of one shape, got another shape: {key}")
        if not self.eager.static_shape and (key not in self.seen_shapes or len(self.graphs) >= self.max_graphs):
            self.seen_shapes.add(key)  # a single occurrence does not justify a capture
            return False
        # a copy, because later micro-batches are copied into these tensors
        batch = batch.map(lambda part: part.to(self.eager.device, copy=True))
        pool = next((kept.graph.pool() for kept in self.graphs.values()), None)  # graphs never run concurrently

        def forward_backward() -> LossSum:
            if not self.accumulates:
                for parameter in self.eager.parameters:
                    parameter.grad = None
            return self.eager.backward(batch)

        try:
            with self._restore_state(always=True):  # warmup runs leave no gradients or batch-norm statistics
                graph, result = capture(forward_backward, self.eager.device, pool=pool)
            self.graphs[key] = CapturedGraph(graph, batch, result)
        except RuntimeError as error:
            if not self.graphs:
                raise
            self.max_graphs = len(self.graphs)
            self.eager.log(f"note: CUDA graphs are limited to {self.max_graphs} shapes ({first_line(error)}).")
        return key in self.graphs

    @contextmanager
    def _restore_state(self, always: bool) -> Iterator[None]:
        """Restore accumulated gradients, buffers (batch-norm statistics) and the seed: after an error, or always."""
        seed, failed = torch.initial_seed(), True
        kept = list(self.eager.module.buffers())
        if self.accumulates:
            kept += [p.grad for p in self.eager.parameters if p.grad is not None]
        copies = [tensor.clone() for tensor in kept]
        try:
            yield
            failed = False
        finally:
            if failed or always:
                self.eager.zero_grad()
                for tensor, copy in zip(kept, copies, strict=True):
                    tensor.copy_(copy)
                torch.manual_seed(seed)


class CompileTuner:
    """`train.compile=auto`: times the modes on training steps, and keeps the fastest."""

    def __init__(
        self,
        forward_backward: ForwardBackward,
        settings: TrainSettings,
        log: Callable[[str], None],
        previous_mode: str = "",
    ) -> None:
        self.forward_backward, self.settings, self.log = forward_backward, settings, log
        forward_backward.log = log
        self.seconds_per_step: dict[ExecutionMode, float] = {}
        self.steps_timed, self.num_shapes, self.timer_start = 0, 0, 0.0
        self.compile_start: float | None = None  # None before the trial of torch.compile
        self.base_mode: ExecutionMode = "graph" if forward_backward.can_capture else "plain"
        modes: dict[str, ExecutionMode] = {"off": "plain", "on": "compiled"}
        mode = modes.get(settings.compile, self.base_mode)
        if mode == "compiled" and not forward_backward.can_compile:
            why = "for this model" if forward_backward.static_shape else "for this model if inputs have varying shapes"
            log(f"note: train.compile=on has no effect: torch.compile is not faster {why}.")
            mode = self.base_mode
        is_auto = settings.compile == "auto" and forward_backward.device.type == "cuda"
        self.tuning = is_auto and not previous_mode and forward_backward.can_compile
        if is_auto and previous_mode in MODE_NAMES:  # mode before the run was interrupted
            mode = previous_mode  # type: ignore[assignment]
        if mode == "compiled":
            log("Compiling: the first step takes about a minute.")
        forward_backward.set_mode(mode)

    def step(self, steps_left: int, disturbed: bool = False) -> None:
        """Count an optimizer step while `tuning`. Timing restarts after an evaluation (`disturbed`) or a new shape."""
        if self.compile_start is not None:
            limit = MAX_COMPILE_SECONDS + 2 * (WARMUP_STEPS + TIMED_STEPS) * max(self.seconds_per_step.values())
            spent = time.perf_counter() - self.compile_start
            if self.forward_backward.process_group.all_reduce_max(int(spent > limit)):
                self.tuning = False
                self.forward_backward.set_mode(self.base_mode)
                self.log(f"note: torch.compile keeps recompiling; continuing with {MODE_NAMES[self.base_mode]}.")
                return
        if disturbed or self.forward_backward.num_shapes != self.num_shapes:
            self.steps_timed, self.num_shapes = 0, self.forward_backward.num_shapes
            return
        self.steps_timed += 1
        if self.steps_timed == WARMUP_STEPS:
            torch.cuda.synchronize()
            self.timer_start = time.perf_counter()
        elif self.steps_timed == WARMUP_STEPS + TIMED_STEPS:
            torch.cuda.synchronize()
            self._record_time((time.perf_counter() - self.timer_start) / TIMED_STEPS, steps_left)

    def _record_time(self, seconds: float, steps_left: int) -> None:
        mode, self.steps_timed = self.forward_backward.mode, 0
        self.seconds_per_step[mode] = seconds
        all_reduce_max = self.forward_backward.process_group.all_reduce_max
        is_worthwhile = all_reduce_max(int(steps_left * seconds > MIN_SECONDS_TO_COMPILE))
        if self.compile_start is None and is_worthwhile:
            self.compile_start = time.perf_counter()
            self.log(f"{1000 * seconds:.1f} ms per step; trying torch.compile, which takes about a minute.")
            self.forward_backward.set_mode("compiled")
            return
        self.tuning = False
        best = min(self.seconds_per_step, key=self.seconds_per_step.__getitem__)
        if all_reduce_max(int(best != mode)):
            self.forward_backward.set_mode(self.base_mode)
        if len(self.seconds_per_step) > 1:
            listed = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in self.seconds_per_step.items())
            self.log(f"Time per step: {listed}; continuing with {MODE_NAMES[self.forward_backward.mode]}.")


# -- steps


@dataclass(frozen=True)
class TrainStep:
    """One optimizer step, with the average loss over all labels and the gradient norm before clipping. Tensors are on the
    device, to avoid synchronization."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    lr: float
    nonfinite: Tensor  # index of the first micro-batch so far with a non-finite loss or gradient, or -1
    data_wait: float = 0.0  # seconds spent waiting for micro-batches


def micro_batch_indices(start_step: int, settings: TrainSettings, process_group: ProcessGroup) -> Iterator[int]:
    """Indices of the micro-batches of this process after `start_step` steps."""
    parts = range(process_group.rank, settings.grad_accum, process_group.size)
    return (step * settings.grad_accum + part for step in range(start_step, settings.steps) for part in parts)


def train_loop(
    model: nn.Module,
    forward_backward: ForwardBackward,
    micro_batches: Iterator[Batch],
    optimizer: torch.optim.Optimizer,
    settings: TrainSettings,
    start_step: int = 0,
    ema: WeightEMA | None = None,
) -> Iterator[TrainStep]:
    """Run steps start_step + 1 to settings.steps. `micro_batches` yields batches in the order of `micro_batch_indices`."""
    parameters, world = forward_backward.parameters, forward_backward.process_group
    parts = range(world.rank, settings.grad_accum, world.size)
    nonfinite = torch.full((), -1, dtype=torch.long, device=forward_backward.device)
    for number in range(start_step + 1, settings.steps + 1):
        if not model.training:
            model.train()
        sums: Tensor | None = None
        data_wait = 0.0
        for part in parts:
            index = (number - 1) * settings.grad_accum + part
            begun = time.perf_counter()
            batch = next(micro_batches)
            data_wait += time.perf_counter() - begun
            digest = hashlib.blake2b(f"{settings.seed}:{index}".encode(), digest_size=8).digest()
            torch.manual_seed(int.from_bytes(digest, "little") % 2**63)
            loss, count = forward_backward(batch, last=part == parts[-1])
            both = torch.stack([loss, count.to(loss.dtype)])
            sums = both if sums is None else sums + both
            nonfinite = torch.where((nonfinite < 0) & ~torch.isfinite(loss), index, nonfinite)
        assert sums is not None
        total, count = (sums if world.size == 1 else all_reduce(sums, dist.ReduceOp.SUM)).unbind()
        count = torch.where(count > 0, count, 1.0)  # no division by 0 in a step without labels
        gradients = [p.grad for p in parameters if p.grad is not None]
        # from a sum to the average over all labels; DistributedDataParallel divides by the number of processes
        scale = world.size / count
        norm = torch.nn.utils.get_total_norm(gradients) * scale
        if settings.grad_clip > 0:
            scale = scale * (settings.grad_clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale)
        nonfinite = torch.where((nonfinite < 0) & ~torch.isfinite(norm), index, nonfinite)
        rate = lr_at(number, settings)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        optimizer.step()
        torch.autograd.graph.increment_version(parameters)  # fused optimizers do not increment version counters
        forward_backward.zero_grad()
        if ema is not None:
            ema.update(number)
        yield TrainStep(number, total / count, norm, rate, nonfinite, data_wait)
