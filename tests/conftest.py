"""Options and fixtures of all tests: quick and slow tests, shape checks, a tiny translation model trained once per session."""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import beartype
import jaxtyping
import pytest
import torch
from safetensors.torch import load_file

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models are slower on several cores

# -- shapes: with REGARD_CHECK_SHAPES, tensor annotations are checked at every call


def has_shape(hint: Any) -> bool:
    own = isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
    return own or any(map(has_shape, typing.get_args(hint)))


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with shape checks only: mypy checks the other types, and tests may pass stubs of other types."""
    hints = function.__annotations__
    if not any(map(has_shape, hints.values())):
        return function
    function.__annotations__ = {name: hint if has_shape(hint) else Any for name, hint in hints.items()}
    return beartype.beartype(function)


IN_TRITON = (
    "varlen_short", "cross_entropy", "decode_attention", "small_linear", "local_globals_triton", "upsample", "triton_kernels",
)  # fmt: skip
"""Triton compiles these kernels from source and does not support decorators of other libraries."""
NN = Path(__file__).parents[1] / "src/regard/nn"
parts = [path for path in NN.rglob("*.py") if path.stem not in (*IN_TRITON, "__init__")]
checked_modules = [".".join(("regard.nn", *path.relative_to(NN).with_suffix("").parts)) for path in parts]
# used by test_shapes.py only, because checks of every call would double the time of the test suite
if os.environ.get("REGARD_CHECK_SHAPES"):
    plain_op = torch.library.custom_op

    def custom_op(name: str, function: Any = None, /, **options: Any) -> Any:
        """Custom operator without shape checks, because its schema is inferred from the annotations of the function."""
        if function is None:
            return functools.partial(custom_op, name, **options)
        return plain_op(name, inspect.unwrap(function), **options)

    torch.library.custom_op = custom_op
    jaxtyping.install_import_hook([*checked_modules, "regard.systems", "regard.decode"], "conftest.checked")


# -- `make test` runs the quick tests, `make test-all` runs all


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="Also run slow tests, and all cases of tests marked every(n).")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs with --all only (make test-all)")
    config.addinivalue_line("markers", "every(n): without --all, one of n cases of the test runs")


LONG = (
    "golden", "benchmarks", "compile", "shapes", "systems", "training", "faults", "triton", "start", "cli",
    "image_tasks", "every_task",
)  # fmt: skip
"""The slowest test files, which run first to balance the workers."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ranks = {f"test_{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return  # explicitly named tests always run
    kept, left, counts = [], [], Counter[str]()
    for item in items:
        function = item.nodeid.partition("[")[0]
        every = item.get_closest_marker("every")
        out = item.get_closest_marker("slow") is not None or (every is not None and counts[function] % every.args[0])
        counts[function] += 1
        (left if out else kept).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a temporary cache folder instead of the cache of the user."""
    os.environ["REGARD_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed PyTorch, to make random weights independent of earlier tests."""
    torch.manual_seed(1)


@pytest.fixture
def cuda_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report all CUDA capabilities of a recent GPU as available, to test kernel selection without a GPU."""
    from regard import capabilities
    from regard.nn.kernels import dispatch

    monkeypatch.setattr(dispatch, "_capability_of", lambda device: (9, 0))
    for name in capabilities.CUDA_TRIALS:
        monkeypatch.setitem(capabilities._results, name, True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a space and non-ASCII letters in its name."""
    place = tmp_path / "my own dätä"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


# -- commands


class Done(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def stdin(content: str | bytes) -> io.TextIOWrapper:
    """Standard input with this content."""
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", "surrogateescape")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run `regard` with these arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)

    from regard.cli import main

    open_content = stdin

    def call(*words: object, stdin: str | bytes = "") -> Done:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", open_content(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Done(int(left.value.code or 0), *capsys.readouterr())

    return call


# -- a tiny translation model

TINY = (
    "model.width=32", "model.depth=1", "model.decoder_depth=1", "model.heads=2", "model.ffn_dim=64",
    "model.dropout=0.3", "data.vocab_size=400", "train.batch_tokens=512", "train.lr=3e-3", "train.warmup_steps=10",
    "train.lr_schedule=inverse_sqrt", "train.ema_decay=0", "train.precision=float32", "decode.num_beams=1",
)  # fmt: skip
"""Settings of a model with a training step of a few milliseconds."""

TWELVE = (
    "train.steps=12", "train.eval_every=4", "train.log_every=2", "data.valid_fraction=0.1", "data.eval_samples=2",
    "decode.max_extra_tokens=5",
)  # fmt: skip
"""Settings of a short run with three validations and checkpoints."""

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Trained:
    """A finished run, the training file, and the console output."""

    path: Path
    data: Path
    said: str


def write_pairs(path: Path, pairs: Iterable[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def train_tiny(data: Any, out: Path, *settings: str, tiny: bool = True, **more: Any) -> str:
    """Train a translation model with `TINY` and the given settings, and return the console output."""
    from tiny_text_models import train

    return train("translate", data, out, *(TINY if tiny else ()), *settings, **more)


@pytest.fixture(scope="session")
def pairs() -> Pairs:
    from regard.demos.grammar import generate_corpus

    return [(pair.source, pair.target) for pair in generate_corpus(count=2000).train]


@pytest.fixture(scope="session")
def trained(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model with a few memorized sentences: the predictions are words and differ from each other."""
    data = write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", pairs[:60])
    out = tmp_path_factory.mktemp("runs") / "tiny"
    settings = (
        "model.dropout=0", "train.steps=120", "train.eval_every=60", "train.log_every=30", "train.lr=1e-2",
        "data.valid_fraction=0.1",
    )  # fmt: skip
    return Trained(out, data, train_tiny(data, out, *settings, drawn=True))


@pytest.fixture(scope="session")
def few(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("few") / "few.tsv", pairs[:40])


@pytest.fixture(scope="session")
def whole(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve steps without interruption."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train_tiny(few, out, *TWELVE)
    return out


@pytest.fixture(scope="session")
def stopped(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stopped") / "run"
    with stopped_in(6):
        train_tiny(few, out, *TWELVE)
    return out


@pytest.fixture
def halved(stopped: Path, tmp_path: Path) -> Path:
    """The same run stopped in step 6 of 12, copied for each test."""
    return Path(shutil.copytree(stopped, tmp_path / "halved"))


# -- contents of a run folder


def rows(run: Path, kind: str = "") -> list[dict[str, Any]]:
    """Log lines without timings."""
    found = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    timed = ("tokens_per_s", "seconds", "elapsed", "data_wait")
    return [{k: v for k, v in row.items() if k not in timed} for row in found if row["kind"].startswith(kind)]


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def same_tensors(a: Path, b: Path) -> None:
    ours, theirs = load_file(a), load_file(b)
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def keeps_best(run: Path, group: str) -> bool:
    """True if the run folder contains the weights (or their EMA) of the best step."""
    import regard

    best = max(rows(run, "valid"), key=lambda row: (row["bleu"], -row["loss"]))
    state = load_file(run / "checkpoints" / f"step-{best['step']:08d}" / "state.safetensors")
    kept = regard.load(run).body.state_dict()
    same = all(torch.equal(tensor, state[group + name]) for name, tensor in kept.items())
    return same and facts(run)["best"] == best


def facts(run: Path) -> dict[str, Any]:
    return json.loads((run / "regard.json").read_text("utf-8"))


@contextmanager
def stopped_in(step: int) -> Iterator[None]:
    """Send SIGTERM while this step is computed."""
    from regard.errors import Interrupted
    from regard.training import loop

    real = loop.lr_at

    def rate(number: int, settings: Any) -> float:
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(number, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "lr_at", rate)
        with pytest.raises(Interrupted) as stop:
            yield
    assert stop.value.exit_code == 143


def interrupted(words: list[str], run: Path, after: int, number: signal.Signals) -> tuple[int, str, str]:
    """Start `python -m words`, send a signal once the log is past step `after`, and return exit code, stdout and stderr."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", *words], stdout=pipe, stderr=pipe, text=True)
    try:
        end = time.monotonic() + 120
        while not (run / "log.jsonl").exists() or last_step(run) <= after:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end, f"the run is stuck at step {after} or before"
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err
    finally:
        process.kill()
        process.wait()


def last_step(run: Path) -> int:
    """Last step in a possibly incomplete log; 0 for an empty log."""
    steps = re.findall(r'"step": (\d+),', (run / "log.jsonl").read_text("utf-8"))
    return int(steps[-1]) if steps else 0
