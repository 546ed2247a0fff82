"""Several training runs on one device in parallel, because small models do not fill the device."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness

Begun = tuple["subprocess.Popen[bytes]", float]


def side_by_side(
    trainings: Mapping[str, Sequence[str]], out: Path, together: int, summed: Callable[[Path], dict[str, Any]]
) -> None:
    """Train each run with its arguments of `regard train` (without `--out`), at most `together` at a time. The summary of a run
    is written to NAME.json next to its folder; interrupted runs are resumed and finished runs are skipped."""
    out.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in trainings if not (out / f"{name}.json").exists()]
    if harness.is_smoke():
        for name in waiting:
            begun = time.perf_counter()
            _train_here(list(trainings[name]), out / name)
            _finish(name, begun, out, summed)
        return
    running: dict[str, Begun] = {}
    while waiting or running:
        while waiting and len(running) < together:
            name = waiting.pop(0)
            running[name] = _begin(list(trainings[name]), out / name), time.perf_counter()
        for name, (process, begun) in list(running.items()):
            if process.poll() is None:
                continue
            del running[name]
            if process.returncode:
                print(name, out.joinpath(f"{name}.log").read_text()[-1500:], flush=True)
                continue
            _finish(name, begun, out, summed)
        time.sleep(0.2)


def parameters(run: Path) -> int:
    """Number of parameters of a trained model."""
    import regard

    return sum(p.numel() for p in regard.load(run).parameters())


def _finish(name: str, begun: float, out: Path, summed: Callable[[Path], dict[str, Any]]) -> None:
    """Write and print the summary of a finished run."""
    found = {"name": name, "seconds": round(time.perf_counter() - begun, 1), **summed(out / name)}
    (out / f"{name}.json").write_text(json.dumps(found))
    print(json.dumps(found), flush=True)


def _train_here(words: list[str], run: Path) -> None:
    """The same command line in this process on the CPU, because starting a process takes longer than a smoke run."""
    from regard.cli import app, expand_options

    with run.with_name(f"{run.name}.log").open("a") as log, contextlib.redirect_stdout(log):
        app(["train", *expand_options([*words, "--out", str(run), "--device", "cpu"])], standalone_mode=False)


def _begin(words: list[str], run: Path) -> subprocess.Popen[bytes]:
    going_on = ["--resume"] if (run / "checkpoints").exists() else []
    command = [sys.executable, "-m", "regard", "train", *words, "--out", str(run), *going_on]
    with run.with_name(f"{run.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
