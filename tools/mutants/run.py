"""`make mutants`: apply each mutant to a copy of the project and run the tests that execute the changed lines.

Outcomes: `killed` by the first failing test; `alive`: all these tests passed, or passed for 60 CPU seconds. Two more outcomes
count as alive: "time": a test did not end; "unreached": no test executes the changed lines.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mutants import compare, plugin, record
from mutants.drawn import SEED, draw
from mutants.faults import faults
from mutants.mutant import ROOT, Mutant

SECONDS = 60.0
"""CPU seconds of passing tests after which a mutant counts as alive."""
WALL = 900.0
"""Wall-clock limit of one pytest run in seconds."""
FIRST, REACH = 60, 3
"""Number of tests in the first run; the others follow only if these pass, because collecting many files takes longer than the
tests. By recorded times, tests beyond REACH times the CPU seconds are not collected."""
COPIED = (
    "src",
    "tests",
    "tools",
    "benchmarks",
    "docs",
    "examples",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
"""Parts of the project that tests read."""
OPTIONS = ("-o", "addopts=", "-q", "-x", "-p", "no:cacheprovider", "-p", "mutants.plugin", "--timeout=0", "-rN")


class Worker:
    """A copy of the project for testing one mutant at a time."""

    def __init__(self, folder: Path, known: record.Record) -> None:
        self.folder, self.known, self.written = folder / "project", known, 0
        self.folder.mkdir(parents=True)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.folder / name)

    def tried(self, mutant: Mutant) -> dict[str, Any]:
        """Outcome of a mutant, with the failed test, CPU seconds, and numbers of run and of reaching tests."""
        tests, spent, ran, outcome, by = self.known.reaching(mutant), 0.0, 0, "unreached", ""
        costs = itertools.accumulate(self.known.cost(test) for test in tests)
        last = max(sum(cost < REACH * SECONDS for cost in costs) + 1, FIRST)
        waiting = [part for part in (tests[:FIRST], tests[FIRST:last]) if part]
        path = self.folder / "src" / mutant.path
        kept = path.read_bytes()
        self._write(path, mutant.source())
        try:
            while waiting and spent < SECONDS:
                part, outcome = waiting.pop(0), "alive"
                found = self._run(part, SECONDS - spent)
                spent, ran = spent + found["cpu"], ran + found["ran"]
                if found["killer"] in part and found["ran"] > 1 and not self._fails(found["killer"]):
                    waiting.insert(0, part[part.index(found["killer"]) + 1 :])
                elif found["killer"] or found["cut"]:
                    outcome, by = "killed" if found["killer"] else "time", found["killer"] or found["cut"]
                    break
        finally:
            self._write(path, kept)
        return {"outcome": outcome, "by": by, "cpu": round(spent, 2), "ran": ran, "reached_by": len(tests)}

    def _fails(self, test: str) -> bool:
        """True if a test also fails alone: in another order, a test may fail because of leftovers of other tests."""
        return bool(self._run([test], SECONDS)["killer"])

    def check_sound(self, killers: Iterable[str]) -> None:
        """Raise if a killing test also fails without any mutant."""
        left = [test for test in killers if test in self.known.tests]
        while left and (failed := self._run(left, 10 * SECONDS)["killer"]):
            if failed not in left or self._fails(failed):
                raise RuntimeError(f"{failed} fails without any mutant. Fix the test and start again.")
            left = left[left.index(failed) + 1 :]

    def _write(self, path: Path, content: bytes) -> None:
        """Write with a unique modification time, because Python validates bytecode by time and size of the source."""
        path.write_bytes(content)
        self.written += 1
        os.utime(path, (self.written * 10, self.written * 10))

    def _run(self, tests: Sequence[str], seconds: float) -> dict[str, Any]:
        asked, result, temporary = (self.folder.with_name(name) for name in ("asked.json", "result.json", "temporary"))
        asked.write_text(json.dumps({"tests": tests, "seconds": seconds}))
        result.unlink(missing_ok=True)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        places = (self.folder / "src", self.folder / "tools")
        environment = {**os.environ, "MUTANTS_CHOSEN": str(asked), "PYTHONPATH": os.pathsep.join(map(str, places))}
        command = [sys.executable, "-m", "pytest", *OPTIONS, f"--basetemp={temporary}", *files]
        with self.folder.with_name("output.txt").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | None = process.wait(WALL)
            except subprocess.TimeoutExpired:
                code = None
            with contextlib.suppress(ProcessLookupError):  # processes left by tests
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
        found = {**plugin.RESULT, **(json.loads(result.read_text()) if result.exists() else {})}
        if code is None and not found["killer"]:
            found["cut"] = found["current"] or "(collection)"
        elif code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError("no recorded test was collected: the record does not match the tests")
        elif code not in (0, None) and not found["killer"] and not found["cut"] and not found["over"]:
            # pytest failed without a failing test: the package cannot be imported, or the interpreter crashed
            found["killer"] = found["current"] or "(collection)"
        return found


def run(mutants: Sequence[Mutant], known: record.Record, processes: int, path: Path) -> compare.Table:
    """Try all mutants in parallel; the table is written after each mutant."""
    workers, rows = queue.SimpleQueue[Worker](), dict[str, Any]()

    def tried(mutant: Mutant) -> dict[str, Any]:
        worker = workers.get()
        row = worker.tried(mutant)
        workers.put(worker)
        return row

    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        for number in range(processes):
            workers.put(Worker(Path(place) / str(number), known))
        with ThreadPoolExecutor(processes) as pool:
            for mutant, row in zip(mutants, pool.map(tried, mutants), strict=True):
                rows[mutant.id] = {**row, "where": f"{mutant.path}:{mutant.line(mutant.start)}", "note": mutant.note}
                path.write_text(json.dumps({"seed": SEED, "mutants": rows}, indent=1) + "\n")
                print(f"{len(rows):3d}/{len(mutants)} {mutant.id:28s} {row['outcome']:9s} {row['by']}", flush=True)
        workers.get().check_sound(sorted({row["by"] for row in rows.values() if row["outcome"] == "killed"}))
    return json.loads(path.read_text())


def _recorded(mutants: Sequence[Mutant], few: bool, processes: int) -> Path:
    """Folder of a record of this source and these tests; a sample records only the files that select tests."""
    whole = ROOT / ".mutants" / record.digest()
    own = whole.with_name(f"{whole.name}-{len(mutants)}") if few else whole
    for folder in (whole, own):
        if (folder / "key").exists():
            return folder
    shutil.rmtree(ROOT / ".mutants", ignore_errors=True)
    at_import = {mutant.path for mutant in mutants if mutant.lines()[1]}
    paths = {mutant.path for mutant in mutants}.union(*map(record.importers, at_import))
    record.make(own, processes, sorted(paths) if few else ("regard/**/*.py",))
    return own


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="Try this many mutants, a seeded sample; 0: all.")
    parser.add_argument("--only", nargs="*", default=(), help="Try the mutants with these ids.")
    parser.add_argument("--record", type=Path, help="A record of the suite. Default: .mutants, remade if stale.")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", type=Path, default=ROOT / ".mutants" / "table.json", help="File of the outcomes.")
    arguments = parser.parse_args()
    mutants = [*faults(), *draw()]
    if arguments.sample:
        mutants = random.Random(SEED).sample(mutants, min(arguments.sample, len(mutants)))
    if arguments.only:
        mutants = [mutant for mutant in mutants if mutant.id in arguments.only]
    folder = arguments.record or _recorded(mutants, bool(arguments.sample), arguments.processes)
    if not (folder / "times.json").exists():
        parser.error(f"{folder}: expected a record of the suite, with times.json and lines.db")
    began = time.monotonic()
    arguments.table.parent.mkdir(parents=True, exist_ok=True)
    table = run(mutants, record.Record(folder), arguments.processes, arguments.table)
    print(f"{len(mutants)} mutants in {time.monotonic() - began:.0f} s: {arguments.table}")
    print(compare.summary(table))
    return compare.compared(json.loads(compare.UNTRIMMED.read_text()), table)


if __name__ == "__main__":
    sys.exit(main())
