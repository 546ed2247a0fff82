"""How one grain is computed: forward and backward, plainly, recorded as a CUDA graph, or compiled.

plain      operators are launched one by one from Python
graph      the launches of a grain are recorded once and repeated as a whole: on CUDA, for grains of one shape or few
compiled   `torch.compile`, and recorded too where that can be
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard import capabilities
from regard.nn.kernels.cuda_graph import record
from regard.training.distributed import World
from regard.training.optimizer import autocast
from regard.training.settings import Train
from regard.types import Batch

Way = Literal["plain", "graph", "compiled"]
Result = tuple[Tensor, Tensor]

WORDS = {"plain": "computing", "graph": "recording a CUDA graph", "compiled": "torch.compile"}

WARM, TIMED = 4, 12
"""Steps before the clock starts, and while it runs, when ways are compared."""

PATIENCE = 150.0
"""Seconds that a trial of torch.compile may take beside the steps themselves: code that is made anew for every grain is never
faster."""

WORTH = 300.0
"""Seconds of work left from which compiling, which takes a minute, is tried."""


class Loss(nn.Module):
    """The loss as a module, so that PyTorch's wrappers see one call forward."""

    def __init__(self, model: nn.Module, task: Any, terms: Any) -> None:
        super().__init__()
        self.model, self.task, self.terms = model, task, terms

    def forward(self, batch: Batch) -> Result:
        return self.task.loss(self.model, batch, self.terms)


class Compute:
    """Adds the gradients of a grain to those that are there and returns the (sum, count) of its loss."""

    def __init__(
        self, loss: nn.Module, settings: Train, device: torch.device, world: World, steady: bool, few: bool = False
    ) -> None:  # fmt: skip
        """`steady`: all grains have one shape; `few`: they have several, each of many grains."""
        self.module: nn.Module = world.share(loss)
        self.settings, self.device, self.world = settings, device, world
        self.steady = steady
        self.recordable = (steady or few) and device.type == "cuda" and world.size == 1
        self.recordable = self.recordable and capabilities.available("cuda_graphs")
        body = getattr(getattr(loss, "model", None), "body", None)
        self.compiles: bool = getattr(body, "compiles", True) and (steady or getattr(body, "compiles_sizes", True))
        """whether torch.compile is worth a try: of loops over tokens it would write out every step, anew for each length"""
        self.parameters = [p for p in loss.parameters() if p.requires_grad]
        if device.type == "cpu":
            keep_freed_memory()
        self.way: Way = "plain"
        self.proven = True
        self.say: Callable[[str], None] = lambda line: None
        self.run: Callable[[Batch, bool], Result] = self._plain
        self.compiled: Any = None

    def choose(self, way: Way) -> None:
        """Between two steps only: gradients of half a step are not carried over."""
        self.way, self.proven = way, way == "plain"
        self.compiled = None
        if way == "compiled":
            # one shape is compiled as it is; many are compiled once, with sizes as unknowns
            self.compiled = torch.compile(self.module, dynamic=not self.steady)
        self.run = Recorded(self) if way != "plain" and self.recordable else self._plain

    def __call__(self, batch: Batch, last: bool = True) -> Result:
        """`last`: this process adds no more grains to the step, so gradients may be exchanged."""
        if self.proven:
            return self.run(batch, last)
        seed = torch.initial_seed()
        try:
            result = self.run(batch, last)
            self.proven = not isinstance(self.run, Recorded) or bool(self.run.recordings)
            return result
        except (RuntimeError, OSError) as error:  # a compiler that is not there, an operator that cannot be recorded
            reason = in_short(error)  # the error itself would hold on to the memory of what failed
        lower: Way = "graph" if self.way == "compiled" and self.recordable else "plain"
        self.say(f"  {WORDS[self.way]} failed ({reason}); going on with {lower}")
        if not isinstance(self.run, Recorded) or not self.run.adds:  # what half of a grain left there
            for parameter in self.parameters:
                parameter.grad = None
        self.choose(lower)
        torch.manual_seed(seed)
        return self(batch, last)

    @property
    def shapes(self) -> int:
        """A number that grows while shapes are met that are new, or recorded."""
        return len(self.run.seen) + len(self.run.recordings) if isinstance(self.run, Recorded) else 0

    def clear(self) -> None:
        """Gradients back to nothing, or to 0 where a recording holds on to their addresses and adds to what is there."""
        if isinstance(self.run, Recorded):
            if not self.run.adds:
                return
            if given := [p.grad for p in self.parameters if p.grad is not None]:
                torch._foreach_zero_(given)
        else:
            for parameter in self.parameters:
                parameter.grad = None

    def gradients(self, batch: Batch) -> Result:
        with autocast(self.device, self.settings):
            total, count = (self.module if self.compiled is None else self.compiled)(batch)
        torch.autograd.backward(total)
        return total.detach(), count

    def _plain(self, batch: Batch, last: bool) -> Result:
        waits = not last and self.world.size > 1
        module: Any = self.module
        with module.no_sync() if waits else nullcontext():
            return self.gradients(batch.to(self.device))


def in_short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


@functools.cache
def keep_freed_memory() -> None:
    """Ask the C library to keep the large blocks that a step frees for the next step, which needs the same again.

    By default it gives each back to the system and asks for it anew, and the system clears every page: a fifteenth of a
    step on a CPU. Only glibc knows the request."""
    if capabilities.available("malloc_thresholds"):
        capabilities.set_malloc_thresholds(mmap=2**30, trim=2**31 - 1)


class Recorded:
    """Grains recorded as CUDA graphs, one for each shape. Seeds are read anew at each repetition, so dropout differs as it
    should."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.adds = compute.settings.accumulate > 1 or not compute.steady
        """to the gradients of the grains before; where one recording is a whole step, it writes its gradients anew, which saves
        a pass over them"""
        self.recordings: dict[Key, Recording] = {}
        self.seen: set[Key] = set()
        self.most = MOST

    def __call__(self, batch: Batch, last: bool) -> Result:
        key = _key(batch)
        if key not in self.recordings and not self._records(key, batch):
            with nullcontext() if self.compute.proven else self._kept(always=False):
                return self.compute.gradients(batch.to(self.compute.device))
        return self.recordings[key](batch)

    def _records(self, key: Key, batch: Batch) -> bool:
        """Whether this shape has a recording now. Where others have one already, what fails is computed plainly."""
        if self.compute.steady and self.recordings:  # it would write gradients that the first does not know
            raise ValueError(f"all grains were to have one shape, and this one has {key}")
        if not self.compute.steady and (key not in self.seen or len(self.recordings) >= self.most):
            self.seen.add(key)  # a shape that comes once is not worth its recording
            return False
        try:
            # its own copy, which later grains are written into, and not what somebody has there already
            self.recordings[key] = self._record(batch.map(lambda part: part.to(self.compute.device, copy=True)))
        except RuntimeError as error:
            if not self.recordings:
                raise
            self.most = len(self.recordings)
            self.compute.say(f"  no more than {self.most} shapes are recorded ({in_short(error)})")
        return key in self.recordings

    def _work(self, batch: Batch) -> Result:
        if not self.adds:
            for parameter in self.compute.parameters:
                parameter.grad = None
        return self.compute.gradients(batch)

    def _record(self, batch: Batch) -> Recording:
        """Recording asks for some plain runs before it, of which nothing may be left."""
        pool = next((kept.graph.pool() for kept in self.recordings.values()), None)  # they are never repeated at once
        with self._kept(always=True):
            graph, result = record(lambda: self._work(batch), self.compute.device, pool=pool)
        return Recording(graph, batch, result)

    @contextmanager
    def _kept(self, always: bool) -> Iterator[None]:
        """What is left in gradients that are added to, in what batch norms have gathered and in the seed is taken back: when
        it fails, or always."""
        seed, failed = torch.initial_seed(), True
        gathered = [(part, part.clone()) for part in self.compute.module.buffers()]
        before = [(p.grad, p.grad.clone()) for p in self.compute.parameters if p.grad is not None] if self.adds else []
        try:
            yield
            failed = False
        finally:
            if failed or always:
                self.compute.clear()
                for part, copy in (*gathered, *before):
                    part.copy_(copy)
                torch.manual_seed(seed)


Key = tuple[tuple[int, ...], ...]
"""The shapes of a batch, and what else of it a recording takes for granted."""


def _key(batch: Batch) -> Key:
    longest = tuple(part.longest for part in (batch.offsets, batch.target_offsets) if part is not None)
    return (*((*tensor.shape,) for tensor in batch.tensors()), longest)


MOST = 64
"""Shapes that are recorded: each keeps a batch, all share the memory of a grain, and to record takes a second."""


@dataclass(frozen=True)
class Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    """where it reads"""
    result: Result
    """where it writes"""

    def __call__(self, batch: Batch) -> Result:
        for here, there in zip(self.batch.tensors(), batch.tensors(), strict=True):
            here.copy_(there, non_blocking=True)
        self.graph.replay()
        return self.result


class Chooser:
    """`train.compile=auto`: times the ways on real grains and keeps the faster. What is found is said and remembered."""

    def __init__(self, compute: Compute, settings: Train, say: Callable[[str], None], known: str = "") -> None:
        self.compute, self.settings, self.say = compute, settings, say
        compute.say = say
        self.times: dict[Way, float] = {}
        self.seen, self.begun, self.tried, self.since = 0, 0.0, False, 0.0
        self.shapes = 0
        self.base: Way = "graph" if compute.recordable else "plain"
        asked: dict[str, Way] = {"off": "plain", "graph": self.base, "on": "compiled"}
        cuda = compute.device.type == "cuda"
        self.trying = settings.compile == "auto" and cuda and not known and compute.compiles
        way = asked.get(settings.compile, self.base)
        if way == "compiled" and not compute.compiles:
            why = "on this system" if compute.steady else "on this system with samples of differing sizes"
            say(f"  train.compile=on: torch.compile has nothing to gain {why}, which is computed without it")
            way = self.base
        if known in WORDS and settings.compile == "auto" and cuda:  # what was found before the run was interrupted
            way = known  # type: ignore[assignment]
        if way == "compiled":
            say("  compiling: the first step takes a minute or so")
        compute.choose(way)

    def step(self, left: int, disturbed: bool = False) -> None:
        """After each step, `left` before the end; one with a validation in it, or with a shape that is new or recorded, is no
        measure, and the count begins anew."""
        if not self.trying:
            return
        if self.tried and self._endless():
            self.trying = False
            self.compute.choose(self.base)
            self.say(f"  torch.compile goes on making code; going on with {self.compute.way}, without it")
            return
        if disturbed or self.compute.shapes != self.shapes:
            self.seen, self.shapes = 0, self.compute.shapes
            return
        self.seen += 1
        if self.seen == WARM:
            torch.cuda.synchronize()
            self.begun = time.perf_counter()
        elif self.seen == WARM + TIMED:
            torch.cuda.synchronize()
            self._timed((time.perf_counter() - self.begun) / TIMED, left)

    def _endless(self) -> bool:
        spent, usual = time.perf_counter() - self.since, (WARM + TIMED) * max(self.times.values())
        return bool(self.compute.world.highest(int(spent > PATIENCE + 2 * usual)))

    def _timed(self, pace: float, left: int) -> None:
        way, self.seen = self.compute.way, 0
        self.times[way] = pace
        worth = self.compute.world.highest(int(left * pace > WORTH))
        if not self.tried and worth:
            self.tried, self.since = True, time.perf_counter()
            self.say(f"  {1000 * pace:.1f} ms a step; trying torch.compile, which takes a minute")
            self.compute.choose("compiled")
            return
        self.trying = False
        best = min(self.times, key=lambda name: self.times[name])
        if self.compute.world.highest(int(best != way)):
            self.compute.choose(self.base)
        if len(self.times) > 1:
            listed = ", ".join(f"{name} {1000 * seconds:.1f} ms" for name, seconds in self.times.items())
            self.say(f"  a step: {listed}; going on with {self.compute.way}")
