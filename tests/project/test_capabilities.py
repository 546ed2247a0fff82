"""Each capability is replaced by an operator that raises; training, prediction and explanation give equal results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import regard
import regard.errors
from conftest import rows, train_tiny
from regard import capabilities
from regard.cli import app
from regard.data.batching.loader import prefetch
from regard.data.images.image_io import free_memory
from regard.nn.recurrent.rnn import run_layer

OPERATORS = {
    "packed_linear_float32": ("packed_linear",), "packed_linear_bfloat16": ("pack_linear_weight",),
    "cpu_bfloat16": ("cpu_supports_matmul",), "cpu_float16": ("cpu_supports_matmul",),
    "autocast_lstm": (), "triton": (), "cuda_graphs": (), "cudnn_attention": (), "varlen_attention": ("varlen_attention",),
    "flash_attention": ("flash_forward", "flash_backward"), "linear_gelu": ("linear_gelu",), "fork": ("fork_context",),
    "end_with_parent": ("end_with_parent",),
    "malloc_thresholds": ("retain_freed_memory",), "memory_table": ("read_meminfo",),
}  # fmt: skip
"""Functions of capabilities.py by capability."""

SMALL: dict[str, Any] = {"width": 16, "depth": 1, "heads": 2, "max_length": 16, "eos_id": 0}
ON_CPU = [name for name in OPERATORS if name not in capabilities.CUDA_TRIALS]


def raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this operator does not work here")


def remove(name: str, patch: pytest.MonkeyPatch) -> None:
    """Replace the operators of a capability, and reset the results of its trial."""
    for function in OPERATORS[name]:
        patch.setattr(capabilities, function, raises)
    patch.setattr(capabilities, "_results", {})
    # without a separate function, or with a trial that only resolves the system call
    if not OPERATORS[name] or name in ("end_with_parent", "malloc_thresholds"):
        patch.setitem(capabilities.TRIALS, name, raises)


def results(data: Path, out: Path) -> tuple[list[Any], list[str], list[Any], list[float]]:
    """Losses of a training with worker processes, predictions in float32 and bfloat16, and an explanation."""
    steps = ("train.steps=2", "train.eval_every=2", "train.log_every=1")
    train_tiny(data, out, *steps, "data.num_workers=1", "train.precision=auto")
    model, text = regard.load(out), data.read_text("utf-8").split("\t")[0]
    predicted = [model.predict(text, num_beams=2).value, model.bfloat16().predict(text, num_beams=1).value]
    gpt = regard.build("gpt2-small", **SMALL, vocab_size=512).bfloat16().eval()
    with torch.inference_mode():
        logits = gpt.logits(torch.arange(9)[None] % 7).float().flatten()[:50].tolist()
    explained = regard.load(out).explain(text)
    return rows(out, "train"), predicted, logits, [float(item.weights.max()) for item in explained.maps]


@pytest.fixture(scope="module")
def expected(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results(few, tmp_path_factory.mktemp("all") / "run")


@pytest.mark.parametrize("name", ON_CPU)
def test_results_are_the_same_without_a_capability(
    name: str, few: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(name, monkeypatch)
    losses, predicted, logits, explained = results(few, tmp_path / "run")
    assert not capabilities.is_available(name)
    tolerance = 0.02 if "cpu_" in name else 1e-5  # without the capability, training computes in float32
    assert [row["loss"] for row in losses] == pytest.approx([row["loss"] for row in expected[0]], rel=tolerance)
    assert predicted[0] == expected[1][0] or "cpu_" in name
    assert logits == pytest.approx(expected[2], abs=0.02)
    assert explained == pytest.approx(expected[3], rel=1e-3)


def test_an_lstm_under_autocast_is_computed_without_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = torch.nn.LSTM(8, 8, batch_first=True), torch.randn(2, 3, 8)
    right, _ = layer(x)
    remove("autocast_lstm", monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = run_layer(layer, x.bfloat16(), (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8).bfloat16()))
    assert out.dtype == torch.float32 and torch.allclose(out, right, atol=0.02)


def test_every_capability_has_a_trial_that_runs_once_without_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(OPERATORS) == set(capabilities.TRIALS)
    monkeypatch.setattr(capabilities, "_results", {})
    for name in OPERATORS:
        before = torch.get_rng_state()
        capabilities.is_available(name)
        assert torch.equal(torch.get_rng_state(), before), name
    runs: list[int] = []
    monkeypatch.setattr(capabilities, "_results", {})
    monkeypatch.setitem(capabilities.TRIALS, "fork", lambda: runs.append(1) or True)
    assert capabilities.is_available("fork") and capabilities.is_available("fork") and runs == [1]
    with pytest.raises(KeyError):
        capabilities.is_available("no such capability")


def test_batches_come_in_order_without_worker_processes(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove("fork", monkeypatch)
    assert list(prefetch(lambda number: number, range(5), workers=2)) == [*range(5)]  # type: ignore[arg-type, return-value]
    steps = ("train.steps=1", "train.eval_every=1")
    assert "fork" in train_tiny(few, tmp_path / "run", *steps, "data.num_workers=2")
    monkeypatch.undo()
    assert "fork" not in train_tiny(few, tmp_path / "other", *steps, "data.num_workers=1")


def test_free_memory_has_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    remove("memory_table", monkeypatch)
    assert free_memory() > 0
    monkeypatch.delattr("os.sysconf")
    assert capabilities.free_memory() is None and free_memory() > 0


PRIVATE = re.compile(
    r"torch\.ops\.(aten|mkldnn)\b|torch\._(?!foreach_)[a-z]\w*|torch\.\w+\._[a-z]|cudnn_convolution_relu|varlen_attn\b|"
    r"^\s*import ctypes|/proc/|assume_constant_result|@torch\.compiler"
)


def test_private_operators_are_used_in_one_module_only() -> None:
    source = Path(capabilities.__file__).parent
    texts = {path: path.read_text("utf-8") for path in source.rglob("*.py") if path.name != "capabilities.py"}
    assert [(path, line) for path, text in texts.items() for line in text.splitlines() if PRIVATE.search(line)] == []


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2 in bfloat16, in Hugging Face format."""
    model = regard.build("gpt2-small", **SMALL, ffn_dim=32, vocab_size=64)
    return regard.save(model.bfloat16(), tmp_path_factory.mktemp("half") / "gpt2")


def test_half_precision_is_computed_in_float32_without_fast_kernels(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(capabilities._results, "cpu_bfloat16", True)
    assert regard.load(half).logits(torch.arange(5)[None]).dtype == torch.bfloat16 and not regard.load(half).dtype_note
    monkeypatch.setitem(capabilities._results, "cpu_bfloat16", False)
    model = regard.load(half)
    assert model.logits(torch.arange(5)[None]).dtype == torch.float32
    assert "float32" in model.dtype_note and "MiB" in model.dtype_note and "--dtype bfloat16" in model.dtype_note
    for dtype in (torch.bfloat16, "bfloat16", "stored"):
        model = regard.load(half, dtype=dtype)
        assert next(model.parameters()).dtype == torch.bfloat16 and not model.dtype_note
    with pytest.raises(regard.errors.UnknownNameError, match="dtype"):
        regard.load(half, dtype="bfloat17")


def test_commands_mention_the_dtype_and_export_keeps_it(
    half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(capabilities._results, "cpu_bfloat16", False)
    predict = ["predict", str(half), "text"]
    for words, noted in (([], True), (["--dtype", "bfloat16"], False)):
        assert ("float32" in CliRunner().invoke(app, [*predict, *words]).stderr) == noted
    done = CliRunner().invoke(app, [*predict, "--dtype", "bf16"])
    assert isinstance(done.exception, regard.errors.UnknownNameError)
    assert CliRunner().invoke(app, ["export", str(half), str(tmp_path / "out")]).exit_code == 0
    assert {x.dtype for x in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
