"""Trains in forked processes with a fault injected at a chosen call. torch is imported once, before the forks.

Each line of standard input is an order, each line of standard output its result (test_faults.py). Counted calls compute a
micro-batch or change a file of the run; a fault occurs before a call or halfway through a write.
"""

from __future__ import annotations

import gc
import importlib
import io
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FULL = 1 << 20
"""Initial chunk size in bytes when filling the disk."""


class Fault:
    def __init__(self, run: str, at: tuple[str, int] | int | None, what: str) -> None:
        """`at` is a call name with its occurrence number, or the number among all calls."""
        self.run, self.at, self.what = run, at, what
        self.calls: list[str] = []
        self.seen: Counter[str] = Counter()
        self.met = False

    def call(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self.calls.append(name)
        self.seen[name] += 1
        if self.at in (len(self.calls), (name, self.seen[name])):
            self.met = True
            if self.what == "kill":
                half()
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.what == "fill":
                fill(Path(self.run).parent / "ballast")
            elif self.what == "limit":
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            else:
                os.kill(os.getpid(), getattr(signal, self.what))

    def name(self, path: Any) -> str | None:
        """Path in the run folder with digits replaced by N; None for other files. rmtree uses relative paths."""
        text = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path)
        if os.path.isabs(text) and not text.startswith(self.run):
            return None
        name = os.path.relpath(text, self.run) if os.path.isabs(text) else text
        return re.sub(r"\d+", "N", name.partition(".out.tfevents")[0])


def fill(path: Path) -> None:
    """Write to the file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        size = FULL
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def beset(fault: Fault) -> None:
    """Patch all counted functions to report each call to the fault first."""
    from regard.training.loop import ForwardBackward
    from regard.training.optimizer import WeightEMA
    from regard.weights import tables

    def told(owner: Any, function: str) -> None:
        real = getattr(owner, function)

        def calling(path: Any, *args: Any, **more: Any) -> Any:
            name = fault.name(path)
            if name is not None:
                fault.call(f"{function} {name}")
            return real(path, *args, **more)

        setattr(owner, function, calling)

    for function in ("replace", "rename", "fsync", "mkdir", "unlink", "rmdir", "chmod"):
        told(os, function)
    real_open, real_save = io.open, tables.save_file

    def opening(path: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        name = fault.name(path) if set(mode) & set("wax") else None
        if name is None:
            return real_open(path, mode, *args, **more)
        fault.call(f"open {name}")
        file: Any = real_open(path, mode, *args, **more)
        write = file.write

        def writing(text: Any) -> Any:
            fault.call(f"write {name}", lambda: (write(text[: len(text) // 2]), file.flush()))
            return write(text)

        file.write = writing
        return file

    def saving(tensors: Any, path: Any, **more: Any) -> None:
        def half() -> None:
            real_save(tensors, path, **more)
            os.truncate(path, os.path.getsize(path) // 2)

        fault.call(f"write {fault.name(path)}", half)
        real_save(tensors, path, **more)

    io.open, tables.save_file = opening, saving
    parts = itertools.cycle(("first grain of a step", "second grain of a step"))
    backward, update = ForwardBackward.backward, WeightEMA.update
    ForwardBackward.backward = lambda *args: (fault.call(next(parts)), backward(*args))[1]  # type: ignore
    WeightEMA.update = lambda *args: (fault.call("average"), update(*args))[1]  # type: ignore


def train(order: dict[str, Any]) -> None:
    """Run the command line in a forked process and exit with the same code; 99 if the fault did not occur."""
    from regard.cli import main
    from regard.runs import trainer

    at, code = order.get("at"), 0
    fault = Fault(order["run"], tuple(at) if isinstance(at, list) else at, order.get("what", "kill"))
    drawn = trainer.draw_training_curves if order.get("drawn") else lambda *_: None
    trainer.draw_training_curves = lambda *args: (fault.call("draw"), drawn(*args))  # type: ignore
    sys.argv = ["regard", *order["words"]]
    try:
        beset(fault)
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    if order.get("calls"):
        with open(order["calls"], "w") as file:
            json.dump(fault.calls, file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if fault.met or at is None else 99)


def forked(order: dict[str, Any]) -> dict[str, Any]:
    """Exit code and output of a training in a forked process. The output goes to pipes, because files may be limited."""
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if not pid:
        for number, (end, start) in enumerate(pipes, 1):
            os.dup2(start, number)
            os.close(end)
            os.close(start)
        train(order)
    for _, start in pipes:
        os.close(start)

    def read(pipe: tuple[int, int]) -> str:
        with open(pipe[0], encoding="utf-8", errors="replace") as file:
            return file.read()

    with ThreadPoolExecutor() as pool:
        out, err = pool.map(read, pipes)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}


NEEDED = (
    "regard.cli", "regard.runs.train", "sacrebleu.metrics", "torch._dynamo", "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer", "typer._adapters",
)  # fmt: skip


def main() -> None:
    for module in NEEDED:
        importlib.import_module(module)
    assert threading.active_count() == 1
    gc.freeze()  # existing objects are shared with the forks and skipped by garbage collection
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "shell" in order:
            done = subprocess.run(order["shell"], shell=True, capture_output=True, text=True)
            answer = {"code": done.returncode, "out": done.stdout, "err": done.stderr}
        else:
            answer = forked(order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
