"""Choice between plain, compiled and CUDA-graph execution of a micro-batch: timing, fallback and kept gradients."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.nn.kernels.cuda_graph import no_garbage_collection
from regard.systems.point import PRESETS, build
from regard.tasks.base import LossWeights
from regard.training import loop as ways
from regard.training.distributed import ProcessGroup
from regard.training.loop import MODE_NAMES, TIMED_STEPS, WARMUP_STEPS, CompileTuner, ForwardBackward, LossModule
from regard.training.settings import TrainSettings
from regard.types import Batch, Packing
from tiny import TINY, collate, tiny


def made(model: Any, settings: TrainSettings | None = None, static_shape: bool = True) -> ForwardBackward:
    """Forward and backward pass of a translation model on a simulated CUDA device; several shapes if not static."""
    loss = LossModule(model, LossWeights(0.1))
    compute = ForwardBackward(
        loss, settings or TrainSettings(), torch.device("cpu"), ProcessGroup(), static_shape, bucketed=not static_shape
    )
    assert not compute.can_capture
    compute.can_capture = True
    return compute


def added(compute: ForwardBackward, batches: list[Any]) -> list[torch.Tensor]:
    """Gradients accumulated over all batches."""
    for batch in batches:
        compute(batch)
    return [p.grad.clone() for p in compute.parameters if p.grad is not None]


def in_graph_mode(compute: ForwardBackward, batches: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Gradients in graph mode and in plain mode."""
    right = added(compute, batches)
    compute.zero_grad()
    compute.set_mode("graph")
    return added(compute, batches), right


def close(ours: list[torch.Tensor], right: list[torch.Tensor], rtol: float = 1e-12, atol: float = 0.0) -> bool:
    return all(torch.allclose(a, b, rtol=rtol, atol=atol) for a, b in zip(ours, right, strict=True))


class Replay:
    """Substitute for a CUDA graph: repeats the computation and writes the results into the captured tensors."""

    def __init__(self, work: Any, result: Any) -> None:
        self.work, self.result, self.count = work, result, 0

    def replay(self) -> None:
        self.count += 1
        for there, here in zip(self.result, self.work(), strict=True):
            there.copy_(here)

    def pool(self) -> Any:
        return "pool"


def simulate_capture(monkeypatch: pytest.MonkeyPatch, fails_at: int = 0, error: Any = RuntimeError) -> list[Any]:
    """Replace CUDA graph capture, including its warmup, by `Replay`; returns the memory pools of all captures. The
    capture with the number `fails_at` fails after its warmup, and with a negative number every capture."""
    pools: list[Any] = []

    def record(work: Any, device: Any, pool: Any = None) -> Any:
        pools.append(pool)
        work()
        result = tuple(part.clone() for part in work())
        if fails_at < 0 or len(pools) == fails_at:
            raise error("cannot be recorded")
        return Replay(work, result), result

    monkeypatch.setattr("regard.training.loop.capture", record)
    return pools


def choose(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], steps: int, known: str = "", **more: Any) -> Any:
    """Modes chosen during a run whose steps have the given durations, on a simulated CUDA device."""
    chosen: list[str] = []
    compute: Any = SimpleNamespace(
        device=torch.device("cuda"), can_capture=more.pop("recordable", True), process_group=ProcessGroup(),
        can_compile=more.pop("compiles", True), static_shape=True, mode="",
    )  # fmt: skip
    fails, shapes = more.pop("fails", False), more.pop("shapes", 0)

    def take(way: str) -> None:
        compute.mode = "graph" if fails else way  # the state after a fallback
        chosen.append(way)
        compute.num_shapes = 0

    compute.set_mode = take
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(ways, "time", clock)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    said: list[str] = []
    chooser = CompileTuner(compute, TrainSettings(steps=steps, **more), said.append, known)
    for number in range(steps):
        new = compute.num_shapes < shapes
        compute.num_shapes += new
        clock.now += seconds[compute.mode] + 10 * new  # the first step of a mode is slower
        if chooser.tuning:
            chooser.step(steps - number - 1)
    return chosen, said, chooser


WINDOW = WARMUP_STEPS + TIMED_STEPS + 5
BOTH, UNRECORDED = ["graph", "compiled"], {"recordable": False}
CHOICES: dict[str, tuple[int, dict[str, float], dict[str, Any], list[str], list[str]]] = {
    "a short run is captured": (1000, {"graph": 0.005}, {}, ["graph"], ["graph"]),
    "a long run keeps the faster": (400, {"graph": 1.0, "compiled": 0.5}, {}, BOTH, BOTH),
    "a long run keeps the graph": (400, {"graph": 1.0, "compiled": 2.0}, {}, [*BOTH, "graph"], BOTH),
    "captures are not timed": (400, {"graph": 1.0, "compiled": 2.0}, {"shapes": 10}, [*BOTH, "graph"], BOTH),
    # point clouds of varying sizes once caused a recompilation per micro-batch: a run of minutes took a day
    "recompiled": (4000, {"plain": 0.1, "compiled": 20.0}, UNRECORDED, ["plain", "compiled", "plain"], ["plain"]),
    "worth it": (4000, {"plain": 30.0, "compiled": 20.0}, UNRECORDED, ["plain", "compiled"], ["plain", "compiled"]),
    "no gain by compiling": (400, {"plain": 1.0}, {**UNRECORDED, "compiles": False}, ["plain"], []),
    "changing shapes": (50, {"plain": 0.001}, UNRECORDED, ["plain"], ["plain"]),
    "a mode from before an interruption": (400, {"compiled": 1.0}, {"known": "compiled"}, ["compiled"], []),
    "off": (WINDOW, {"plain": 1.0}, {"compile": "off"}, ["plain"], []),
    "graph": (WINDOW, {"graph": 1.0}, {"compile": "graph"}, ["graph"], []),
    "on": (WINDOW, {"compiled": 1.0}, {"compile": "on"}, ["compiled"], []),
}
"""Steps, seconds per step by mode, options; modes in the order of use, and the timed modes."""


@pytest.mark.parametrize("case", CHOICES)
def test_the_fastest_or_the_requested_mode_is_used(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, seconds, options, modes, timed = CHOICES[case]
    chosen, said, chooser = choose(monkeypatch, seconds, steps, **options)
    assert chosen == modes and chooser.forward_backward.mode == modes[-1] and not chooser.tuning
    assert chooser.seconds_per_step == {mode: pytest.approx(seconds[mode]) for mode in timed}
    assert len(said) == ("compiled" in modes) + (len(modes) > 1)
    assert len(modes) == 1 or f"continuing with {MODE_NAMES[modes[-1]]}" in said[-1]


def test_useless_compilation_is_reported_and_a_failed_compiler_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, said, _ = choose(monkeypatch, {"plain": 1.0}, 400, recordable=False, compiles=False, compile="on")
    assert chosen == ["plain"] and len(said) == 1 and "failed" not in said[0]
    assert not made(tiny("rnnsearch"), static_shape=False).can_compile
    body = build(PRESETS["point-tiny"].config)  # point clouds of one size gain from compilation, others do not
    for steady in (True, False):
        loss = LossModule(torch.nn.ModuleDict({"body": body}), None)
        assert ForwardBackward(loss, TrainSettings(), torch.device("cpu"), ProcessGroup(), steady).can_compile == steady
    chosen, _, chooser = choose(monkeypatch, {"graph": 1.0}, 1000, fails=True)
    assert chosen.count("compiled") == 1 and not chooser.tuning


def test_a_mode_that_fails_is_reported_and_the_step_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("transformer")
    model.train()
    batch = collate(model, TINY["transformer"].samples)
    settings = TrainSettings(precision="float32", compile="on")

    def gradients(fails: bool) -> tuple[list[torch.Tensor], list[str]]:
        compute, said = made(model, settings), list[str]()
        compute.can_capture = False
        if fails:
            monkeypatch.setattr(torch, "compile", lambda module, **_: broken)
            CompileTuner(compute, settings, said.append)
            assert compute.mode == "compiled"
        torch.manual_seed(3)
        total, count = compute(batch)
        found = [total, count, *added(compute, [batch])]
        compute.zero_grad()
        return found, said

    def broken(_: Any) -> Any:
        torch.rand(7)  # random numbers drawn before the failure must not change the random state
        raise RuntimeError("no compiler\nand a long story")

    (right, _), (ours, said) = gradients(False), gradients(True)
    assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert said[1:] == ["warning: torch.compile failed (no compiler); continuing with eager execution."]
    assert "Compiling" in said[0]


def test_a_window_with_a_validation_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, chooser = choose(monkeypatch, {"graph": 0.001}, 1)
    chooser.tuning = True
    for number in range(1, 40):
        chooser.step(10, disturbed=number % 10 == 0)
    assert not chooser.seconds_per_step and chooser.tuning


def test_new_shapes_are_counted_and_missing_gradients_can_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    compute, (one, two), _ = several()
    simulate_capture(monkeypatch)
    assert compute.num_shapes == 0
    compute.set_mode("graph")
    met = []
    for batch in (one, one, one, two, one, two, two):
        compute(batch)
        met.append(compute.num_shapes)
    assert met == [1, 2, 2, 3, 3, 4, 4]
    compute = made(tiny("transformer"))
    compute.graphed = ways.GraphedForwardBackward(compute)
    compute.zero_grad()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_repeated_shapes_are_captured_one_by_one(monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    model = tiny("rnnsearch")
    grains = [collate(model, TINY["rnnsearch"].samples[:many]) for many in (1, 2, 1, 2, 3, 1, 2, 1)]
    pools = simulate_capture(monkeypatch)

    def learnt(way: Any) -> tuple[list[torch.Tensor], ForwardBackward]:
        compute = made(model, TrainSettings(grad_accum=accumulate), static_shape=False)
        compute.set_mode(way)
        found = []
        for number, batch in enumerate(grains):
            if number % accumulate == 0:
                compute.zero_grad()
            found += [part.clone() for part in compute(batch)]
            found += added(compute, [])
        return found, compute

    right, _ = learnt("plain")
    model.zero_grad()
    ours, compute = learnt("graph")
    assert close(ours, right, 1e-9, 1e-12)
    assert compute.mode_verified and compute.mode == "graph" and pools == [None, "pool"]
    assert compute.graphed is not None
    graphs: list[Any] = [kept.graph for kept in compute.graphed.graphs.values()]
    assert [graph.count for graph in graphs] == [3, 2]


def several() -> tuple[ForwardBackward, list[Any], list[str]]:
    """Micro-batches of two shapes."""
    model, said = tiny("rnnsearch"), list[str]()
    compute = made(model, TrainSettings(grad_accum=2), static_shape=False)
    compute.log = said.append
    return compute, [collate(model, TINY["rnnsearch"].samples[:many]) for many in (1, 2)], said


def test_a_failed_capture_keeps_earlier_gradients_and_adds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape is captured at its second occurrence, possibly in the middle of an optimizer step; with one shape, at once."""
    simulate_capture(monkeypatch, fails_at=-1)
    compute, (one, two), said = several()
    ours, right = in_graph_mode(compute, [two, one, one])
    assert compute.mode == "plain" and len(said) == 1 and close(ours, right)
    model = tiny("transformer")
    compute = made(model)
    ours, right = in_graph_mode(compute, [collate(model, TINY["transformer"].samples)])
    assert compute.mode == "plain" and close(ours, right, rtol=0)


def test_a_micro_batch_that_fails_half_way_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    compute, (one, two), _ = several()
    real, calls = compute.backward, list[Any]()

    def fails(batch: Any, last: bool = True) -> Any:
        calls.append(batch)
        found = real(batch)
        if len(calls) == 4:  # the second call in graph mode: for example, a compiler that meets another shape
            raise RuntimeError("half way")
        return found

    monkeypatch.setattr(compute, "backward", fails)
    ours, right = in_graph_mode(compute, [one, two])
    assert compute.mode == "plain" and len(calls) == 5 and close(ours, right)


def test_a_further_shape_that_cannot_be_captured_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may suffice for the graphs of some shapes only; captured graphs are still replayed."""
    simulate_capture(monkeypatch, fails_at=2, error=torch.OutOfMemoryError)
    compute, (one, two), said = several()
    ours, right = in_graph_mode(compute, [one, one, two, two, one, two])
    assert compute.mode == "graph" and compute.graphed is not None
    (kept,) = compute.graphed.graphs.values()
    assert isinstance(kept.graph, Replay) and kept.graph.count == 2
    assert said == ["note: CUDA graphs are limited to 1 shapes (cannot be recorded)."]
    assert close(ours, right)


def test_a_second_shape_where_one_was_declared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one micro-batch per step, each graph writes its own gradients: gradients of a second graph would be lost."""
    model = tiny("transformer")
    compute = made(model)
    simulate_capture(monkeypatch)
    compute.set_mode("graph")
    compute(collate(model, TINY["transformer"].samples[:1]))
    with pytest.raises(ValueError, match="shape"):
        compute(collate(model, TINY["transformer"].samples[:2]))


class Gathering(torch.nn.Module):
    """Loss with side effects: batch norm statistics and the random state."""

    model = SimpleNamespace(body=tiny("transformer").body)

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.dropout(self.norm(batch.inputs)).square().sum(), torch.tensor(len(batch.inputs))


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_capture_changes_statistics_and_random_state_once(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    simulate_capture(monkeypatch, fails)
    random = torch.Generator().manual_seed(2)
    grains = [Batch(torch.randn(many, 3, generator=random)) for many in (4, 4, 6, 4, 6, 6, 4)]

    def learnt(way: Any) -> list[torch.Tensor]:
        loss, settings = Gathering(), TrainSettings(grad_accum=2)
        compute = ForwardBackward(loss, settings, torch.device("cpu"), ProcessGroup(), False, bucketed=True)
        compute.can_capture = True
        compute.set_mode(way)
        found = []
        for number, batch in enumerate(grains):
            torch.manual_seed(number)
            found += [compute(batch)[0].clone(), torch.rand(1)]
        return [*found, *(part.clone() for part in loss.buffers()), *added(compute, [])]

    given = [batch.inputs.clone() for batch in grains]
    assert close(learnt("graph"), learnt("plain"), 1e-5, 1e-8)
    assert all(torch.equal(batch.inputs, x) for batch, x in zip(grains, given, strict=True))


def test_batches_with_different_longest_documents_are_captured_separately() -> None:
    starts = torch.tensor([0, 2, 4])
    few, many = (Batch(torch.zeros(1, 4), packing=Packing(starts, longest)) for longest in (2, 4))
    assert ways._shape_key(few) != ways._shape_key(many) and ways._shape_key(few) == ways._shape_key(replace(few))


def test_no_garbage_is_collected_during_a_capture() -> None:
    """A CUDA graph that is freed during the capture of another graph invalidates the capture."""
    with no_garbage_collection():
        assert not gc.isenabled()
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
