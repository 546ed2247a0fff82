"""Shared parts of the benchmark scripts: the command line with `--smoke`, the device and the sizes of a mode.

A script defines `main(argv)` and `smoke(folder)` and ends with `harness.run(main, smoke)`. `--smoke` calls `smoke` with an
empty temporary folder: the same code on a CPU with tiny models, few steps and synthetic data (synthetic.py), in a second or
two. Lines printed by `--smoke` start with "smoke: ", because the numbers are not measurements.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar
from unittest import mock

T = TypeVar("T")
MARK = "smoke: "
ONCE = ("train.epochs=1", "train.eval_every=2", "train.warmup_steps=1", "data.eval_samples=2", "data.num_workers=0")
SHORT = ("train.steps=2", *ONCE[1:])
"""Training settings in smoke mode: one epoch, or two steps."""
TINY: dict[str, tuple[str, ...]] = {
    "transformer": ("model.width=16", "model.depth=1", "model.decoder_depth=1", "model.heads=2", "model.ffn_dim=32"),
    "encoder": ("model.width=16", "model.depth=1", "model.heads=2", "model.ffn_dim=32"),
    "rnnsearch": (
        "model.width=16",
        "model.encoder_width=8",
        "model.embedding_dim=8",
        "model.attention_dim=8",
        "model.maxout_dim=8",
    ),
}
"""Model sizes in smoke mode: encoder-decoder, a single stack of blocks, recurrent translation model."""
_smoke = False


def run(
    main: Callable[[Sequence[str]], None], smoke: Callable[[Path], None], argv: Sequence[str] | None = None
) -> None:
    """Call `main` with the command-line arguments, or `smoke` if the only argument is `--smoke`."""
    words = sys.argv[1:] if argv is None else list(argv)
    if "--smoke" not in words:
        main(words)
    elif len(words) > 1:
        sys.exit(f"--smoke takes no other arguments, got {' '.join(words)}")
    else:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(mock.patch.dict(os.environ, REGARD_CACHE=str(folder / "cache")))
            stack.enter_context(contextlib.redirect_stdout(Marked(sys.stdout)))
            # drawing the training curves is not measured and takes half of the time of a smoke run
            stack.enter_context(mock.patch("regard.runs.trainer.draw_training_curves"))
            stack.enter_context(smoke_mode())
            smoke(folder)


def parser(description: str | None) -> argparse.ArgumentParser:
    """Argument parser with the docstring of the script as help text and the option `--smoke`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--smoke", action="store_true", help="Run all code paths on a CPU at a tiny size; takes no other arguments."
    )
    return made


class Marked(io.TextIOBase):
    """Stream that prefixes every line with `MARK`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.start = stream, True

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            self.stream.write(MARK + line if self.start else line)
            self.start = line.endswith("\n")
        return len(text)

    def flush(self) -> None:
        self.stream.flush()


@contextlib.contextmanager
def smoke_mode() -> Iterator[None]:
    """Make `mode()` return "smoke". Random state, number of threads and matmul precision are restored on exit."""
    import torch

    global _smoke
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    before, _smoke = _smoke, True
    torch.set_num_threads(1)  # synchronizing threads is slower at these sizes
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        _smoke = before
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def is_smoke() -> bool:
    return _smoke


def mode() -> str:
    """Key of the sizes of a script: "smoke", "cuda" or "cpu"."""
    return "smoke" if _smoke else device()


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() and not _smoke else "cpu"


def pick(*, cuda: T, cpu: T, smoke: T) -> T:
    """The value for the current mode."""
    return {"cuda": cuda, "cpu": cpu, "smoke": smoke}[mode()]


def device_name() -> str:
    import torch

    return torch.cuda.get_device_name() if device() == "cuda" else "CPU"


def limit_threads(count: int) -> None:
    """Set the number of threads; no effect in smoke mode."""
    import torch

    if not _smoke:
        torch.set_num_threads(count)


def left_out(what: str, why: str = "needs CUDA") -> None:
    print(f"left out: {what} ({why})", flush=True)


def installed(*names: str) -> bool:
    """True if all packages can be imported; prints one line per missing package."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"not installed: {name}", flush=True)
    return not missing


def versions(*names: str) -> dict[str, str]:
    """Versions of the installed packages among `names`."""
    return {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name) is not None}


def train(task: str, data: str | Sequence[str], **given: Any) -> Any:
    """`regard.train`; in smoke mode on the CPU and without console output."""
    import regard

    if _smoke:
        from rich.console import Console

        given |= {"console": Console(quiet=True), "device": "cpu"}
    return regard.train(task, data, **given)
