"""Modules compute the same with and without torch.compile, in one graph where documented.

All tests of torch.compile are in this file, so that one worker imports Dynamo; the backends generate no machine code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_point_transformer import body_of, packed
from test_threads import check_threads
from torch import Tensor

import regard
from conftest import TWELVE, rows, train_tiny
from oracle import near, noise, noisy
from regard import capabilities
from regard.nn.attention.attention import Attention
from regard.nn.attention.longformer import LongformerAttention
from regard.nn.attention.masks import Causal, GlobalTokens, Padding, SlidingWindow
from regard.nn.kernels import dispatch, local_attention
from regard.nn.kernels.table import Kernel
from regard.nn.recording import named_attentions, record_attention
from regard.types import Batch
from tiny import TINY, collate, tiny
from tiny_vision_models import made
from windows import flash_backward, flash_forward


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    import torch._dynamo

    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch._dynamo.reset()


def test_the_order_of_attention_kernels_on_cuda_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA path, traced on the CPU."""
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append([node.args[0] for node in graph.graph.nodes if "_backend_from_string" in str(node.target)])
        return graph.forward

    monkeypatch.setattr(dispatch, "_capability_of", lambda device: (9, 0))
    for name in capabilities.CUDA_TRIALS:
        monkeypatch.setitem(capabilities._results, name, name == "cudnn_attention")

    def full(call: dispatch.AttentionCall) -> Tensor:
        causal = isinstance(call.mask, Causal)
        return dispatch.full_attention(call.q, call.k, call.v, call.scale, call.dropout, causal)

    monkeypatch.setattr(dispatch, "choose_kernel", lambda call: Kernel("full", lambda call: True, full, "", ""))
    attention, x = Attention(128, 2).bfloat16(), torch.randn(1, dispatch.MIN_CUDNN_LENGTH, 128, dtype=torch.bfloat16)
    traced = torch.compile(attention, fullgraph=True, backend=keep)
    assert torch.equal(traced(x, mask=Causal()), attention(x, mask=Causal()))
    assert graphs[0][:4] == ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"], graphs
    torch.use_deterministic_algorithms(True)
    try:
        traced(x, mask=Causal())
    finally:
        torch.use_deterministic_algorithms(False)
    assert graphs[1][0] == "FLASH_ATTENTION" and "CUDNN_ATTENTION" not in graphs[1][:3], graphs


TEXTS = {
    "gpt3": "as published",
    "convs2s": "as published",
    "transformer": "buckets",
    "decoder": "rotary",
    "gpt1": "shaw",
}
IMAGES = {"vit": ((24, 40), (0, 0)), "hybrid": ((24, 40), (-2, 0)), "swin": ((57, 43), ())}


@pytest.mark.parametrize("name", [*TEXTS, *IMAGES])
def test_a_body_is_one_graph(name: str) -> None:
    """With its gradients for convs2s."""
    if name in IMAGES:
        size, taps = IMAGES[name]
        body, batch = made(name, "classify").body, Batch(torch.randn(2, 3, *size).double())
    else:
        model, taps = tiny(name, TEXTS[name]).eval(), ()
        body, batch = model.body, collate(model, TINY[name].samples)
    backend = "aot_eager" if name == "convs2s" else "eager"
    compiled = torch.compile(body, backend=backend, fullgraph=True, dynamic=False)
    more = (taps,) if taps else ()
    ours, right = ([y.sequence, *y.hidden_states] for y in (compiled(batch, *more), body(batch, *more)))
    for one, other in zip(ours, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)
    if name == "convs2s":
        parameters = [*body.encoder.parameters()]
        for a, b in zip(*(torch.autograd.grad((y[0] ** 2).sum(), parameters) for y in (ours, right)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


def test_window_attention_with_counted_global_tokens_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "flash_forward", flash_forward)
    monkeypatch.setattr(capabilities, "flash_backward", flash_backward)
    flash = Kernel("", lambda call: True, local_attention._flash, "", "")
    monkeypatch.setattr(local_attention, "LOCAL_KERNELS", [flash])
    module, x = noisy(LongformerAttention(24, 3)), noise(2, 40, 24).requires_grad_()
    marks = torch.arange(40).expand(2, -1) == torch.tensor([[0], [7]])
    found = []
    for run in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        rule = (SlidingWindow(3, 3) | GlobalTokens(marks, max_count=2)) & Padding(torch.tensor([30, 40]))
        out = run(x, mask=rule)
        found.append([out, *torch.autograd.grad(out.square().sum(), [x, *module.parameters()])])
    for ours, right in zip(*found, strict=True):
        near(ours, right)


POINTS: dict[str, Any] = {"widths": (4, 8), "depths": (1, 1), "downsample": (1, 3), "num_neighbors": (4, 5)}


@pytest.mark.slow
def test_point_clouds_of_one_size_are_one_graph() -> None:
    body = body_of(point_order="sorted", **POINTS)
    whole = torch.compile(body, backend="aot_eager", fullgraph=True)
    x = packed((24, 24)).inputs.view(2, 24, 5)
    for training in (False, True):
        body.train(training)
        assert torch.allclose(whole(Batch(x)).sequence, body(Batch(x)).sequence, atol=1e-12)
    whole(Batch(x)).sequence.sum().backward()
    assert all(part.grad is not None for part in body.parameters())


def test_point_clouds_of_new_sizes_are_not_compiled_again() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    body, counter, first = body_of(**POINTS).eval(), CompileCounterWithBackend("eager"), 0
    compiled = torch.compile(body, backend=counter, dynamic=True)
    for number, counts in enumerate(((40, 61), (51, 72), (48, 77), (64, 65))):
        batch = packed(counts)
        with torch.no_grad():
            assert torch.allclose(compiled(batch).sequence, body(batch).sequence, atol=1e-12)
        if number == 1:
            first = counter.frame_count
    assert counter.frame_count == first


def test_attention_of_a_compiled_model_is_recorded() -> None:
    model = tiny("transformer")
    body, batch = model.body, collate(model, TINY["transformer"].samples)
    compiled = torch.compile(body, backend="eager")
    with torch.no_grad():
        before = compiled(batch).sequence
        with record_attention(compiled) as seen:  # type: ignore[arg-type]
            near(compiled(batch).sequence, before)
        near(compiled(batch).sequence, before)
    assert seen.names() == list(named_attentions(body)) and len(seen.records) == len(seen.names())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo reads this attribute during tracing
def test_hidden_states_of_a_compiled_model_are_recorded() -> None:
    model, x = tiny("bert"), torch.tensor([[5, 6, 7]])
    right = model.states(x, layers="all").hidden_states
    model.body = torch.compile(model.body, backend="eager")
    for _ in range(2):
        model.states(x)
        for ours, expected in zip(model.states(x, layers="all").hidden_states, right, strict=True):
            near(ours, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo reads this attribute during tracing
@pytest.mark.every(4)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["classify", "lm"])
def test_threads_use_a_compiled_model(name: str, training: bool) -> None:
    """Predictions, explanations, streams and logits of several threads."""
    check_threads(name, training, count=4, compiled=True)


def test_a_model_is_compiled_once_for_many_calls() -> None:
    """A graph that depends on a search counter would be recompiled in every call."""
    model, graphs = regard.build("bert-mini", task="embed", width=8, heads=2, ffn_dim=8, depth=1).eval(), []

    def keep(graph: torch.fx.GraphModule, given: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    called, x = torch.compile(model.states, backend=keep), torch.randint(5, 100, (2, 6))
    with torch.inference_mode():
        called(x)
        first = len(graphs)
        called(x)
        called(x)
    assert len(graphs) == first


def test_packed_micro_batches_of_different_content_are_compiled_once(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    more = (*TWELVE, "train.packing=on", "model.dropout=0", "train.grad_accum=2", "train.steps=6", "train.eval_every=3")
    train_tiny(few, tmp_path / "plain", *more, "train.compile=off")
    compile_, losses = torch.compile, {}
    monkeypatch.setattr(torch, "compile", lambda *args, **given: compile_(*args, **given, backend="aot_eager"))
    counters.clear()
    train_tiny(few, tmp_path / "compiled", *more, "train.compile=on")
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"] and not counters["unimplemented"]
    for name in ("plain", "compiled"):
        losses[name] = [row["loss"] for row in rows(tmp_path / name) if "loss" in row]
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=1e-5) and len(set(losses["plain"])) > 4
