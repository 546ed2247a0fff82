"""Threads share a model: predictions, explanations, streams and figures are equal to the results of a single thread."""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_card import MADE
from test_outside import EXPLAINED, INPUTS
from torch import nn

from golden import record
from regard.data.images import image_io
from regard.draw.figure import new_figure, write_atomic
from regard.model import Model
from regard.nn.kernels import cuda_graph, dispatch
from regard.nn.kernels.table import has_hooks
from tiny_point_models import cloud
from tiny_text_models import translator
from tiny_vision_models import fresh

THREADS = 8
MODELS: dict[str, Callable[[], Model]] = {
    "lm": MADE["lm"], "rnn": lambda: translator("rnn"), "segment": MADE["segment"],
    **{name: make for name, make in MADE.items() if name not in ("lm", "segment")},
    "transformer": lambda: translator("transformer"), "resnet": lambda: fresh("resnet", "classify"),
}  # fmt: skip
"""The first three are tested quickly: streams and ranks, an explanation without attention, and images."""
QUICK = 3
PICTURE = Image.linear_gradient("L").convert("RGB").resize((40, 30))


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Switch threads often, to interrupt unprotected sequences of statements."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def with_dropout(model: Model) -> Model:
    for module in model.float().modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.4
    return model


def plain(value: Any) -> Any:
    def convert(item: Any) -> Any:
        return item.tolist() if isinstance(item, np.ndarray) else str(item)

    return json.loads(json.dumps(value, default=convert))


def calls(name: str, model: Model) -> dict[str, Callable[[], Any]]:
    """Calls with equal results in both modes of the model."""
    one: Any = INPUTS.get(name, cloud() if model.task.input == "points" else PICTURE)
    one = {"algorithmic": "31415", "rnn": "the cat", "transformer": "the cat"}.get(name, one)
    pair = (one, "2") if name in ("rnn", "transformer", "algorithmic") else EXPLAINED.get(name, (one,))
    short = {"max_new_tokens": 8} if "decode.max_new_tokens" in model.objective.settings_used else {}
    found: dict[str, Callable[[], Any]] = {
        "predict": lambda: vars(model.predict(one, **short)),
        "explain": lambda: model.explain(*pair).values,
    }
    if model.objective.streams:
        found["stream"] = lambda: [*model.stream("the cat", max_new_tokens=8)]
    if model.objective.ranks:
        found["rank"] = lambda: vars(model.rank("a", ["b", "c d"]))
    return found


def together(function: Callable[[int], None]) -> None:
    """Call the function in all threads at once; an error of a thread is raised here."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        function(number)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(run, range(THREADS)))


def check_threads(name: str, training: bool, count: int, compiled: bool = False) -> None:
    """Compare `count` random calls of each thread with the results of a single thread before."""
    model = with_dropout(MODELS[name]()).eval()
    if compiled:
        model.body = torch.compile(model.body, backend="eager")
    possible = calls(name, model)
    if model.task.input == "text" and not training and name in ("lm", "classify", "tag", "mlm", "qa"):
        possible["logits"] = lambda: model.logits(torch.tensor([[5, 6, 7]])).tolist()
    wanted = {kind: plain(call()) for kind, call in possible.items()}
    model.train(training)

    def mixed(number: int) -> None:
        chosen = random.Random(number)
        for _ in range(count):
            kind = chosen.choice([*possible])
            assert record.gap(wanted[kind], plain(possible[kind]())) < 1e-5, kind

    together(mixed)
    assert all(module.training is training for module in model.modules())


@pytest.mark.parametrize("name", [*MODELS][:QUICK])
def test_calls_in_threads_equal_calls_of_one_thread(name: str) -> None:
    check_threads(name, training=True, count=6)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_many_calls_in_threads_equal_calls_of_one_thread(name: str, training: bool) -> None:
    check_threads(name, training, count=50 if name in ("lm", "rnn", "classify", "embed", "discern", "draw") else 10)


def test_the_end_of_one_stream_does_not_enable_dropout_in_another() -> None:
    model = with_dropout(MADE["lm"]()).eval()
    right = [*model.stream("the cat", max_new_tokens=8)]
    model.train()
    model.body.tokens.eval()
    first, second = model.stream("the cat", max_new_tokens=8), model.stream("the cat", max_new_tokens=8)
    parts = [next(first), next(second)]
    assert [parts[0], *first] == right and not model.training
    assert [parts[1], *second] == right
    assert model.training and model.body.training and not model.body.tokens.training  # the modes before the calls


def test_an_explanation_without_attention_adds_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook would run in the calls of all threads, and would select other kernels."""
    from regard.explain import text_generation

    model, hooked, log_probs = translator("rnn").eval(), [], text_generation.token_log_probs

    def watched(*given: Any) -> Any:
        hooked.append(has_hooks(model))
        return log_probs(*given)

    monkeypatch.setattr(text_generation, "token_log_probs", watched)
    model.explain("the cat")
    assert hooked and not any(hooked)


def test_an_image_that_is_not_read_yet_is_read_once(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (200, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for _ in range(3):
        shared = Image.open(tmp_path / "image.png")  # Pillow reads the pixels at the first use

        def compare(number: int) -> None:
            assert np.array_equal(image_io.image_to_array(shared), pixels)  # noqa: B023

        together(compare)


# -- state of the process: several threads enter a context at once, and the last thread restores the state


def test_figures_of_several_threads_are_equal_and_restore_the_settings(tmp_path: Path) -> None:
    import matplotlib

    def draw(path: Path) -> bytes:
        with new_figure(path, 2, 1, "Title", "subtitle") as sheet:
            sheet.text(0.1, 0.5, "$5 and $6", 9)  # the default settings would read a formula
        return path.read_bytes()

    before, right = dict(matplotlib.rcParams), draw(tmp_path / "one.svg")

    def compare(number: int) -> None:
        for _ in range(2):
            assert draw(tmp_path / f"{number}.svg") == right

    together(compare)
    assert dict(matplotlib.rcParams) == before


def test_threads_may_write_one_file(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(5):
            write_atomic(tmp_path / "page.html", lambda to: (to.write_text("x"), time.sleep(0.001)))

    together(write)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_warning_filters_are_restored_in_any_order(tmp_path: Path) -> None:
    before = list(warnings.filters)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(new_figure(tmp_path / "one.png", 1, 1))
        second.enter_context(image_io._suppress_warnings())
        first.close()
        assert warnings.filters[0][0] == "ignore"
        second.close()
        assert list(warnings.filters) == before


def test_switches_of_cudnn_are_restored_in_any_order() -> None:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled
    model = translator("rnn").eval()

    def enter(number: int) -> None:
        model.explain("the cat", "a")
        with torch.no_grad(), cuda_graph.cudnn_benchmark(), cuda_graph.no_garbage_collection():
            time.sleep(0.001)

    together(enter)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled) == before and gc.isenabled()


def test_attention_kernels_of_cuda_are_restored_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    attend, q = torch.nn.functional.scaled_dot_product_attention, torch.randn(1, 2, 4, 8)

    def slow(*given: Any, **more: Any) -> Any:
        time.sleep(0.005)
        return attend(*given, **more)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", slow)

    def call(number: int) -> None:
        time.sleep(0.002 * number)  # the first thread to enter is the first to leave
        dispatch.full_attention(q, q, q, 1.0, 0.0, False)

    together(call)
    assert torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
