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
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mutants import compare, record
from mutants.drawn import COUNT, SEED, draw
from mutants.faults import faults
from mutants.mutant import ROOT, Mutant

SECONDS = 60.0
"""CPU seconds of passing tests after which a mutant counts as alive."""
WALL = 900.0
"""Wall-clock limit of one pytest run in seconds."""
FIRST, REACH = 60, 3
"""Number of tests in the first run; the others follow only if these pass, because collecting many files takes longer than the
tests. By recorded times, tests beyond REACH times the CPU seconds are not collected."""
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
"""Parts of the project that tests read."""


class Worker:
    """A copy of the project for testing one mutant at a time."""

    def __init__(self, folder: Path, known: record.Record) -> None:
        self.folder, self.known = folder / "project", known
        self.folder.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.folder / name)
        self.result, self.written = folder / "result.json", 0

    def tried(self, mutant: Mutant) -> dict[str, Any]:
        tests, spent, ran = self.known.reaching(mutant), 0.0, 0
        waiting = self._parts(tests)
        path = self.folder / "src" / mutant.path
        kept = path.read_bytes()
        self._write(path, mutant.source())
        try:
            while waiting and spent < SECONDS:
                part = waiting.pop(0)
                found = self._run(part, SECONDS - spent)
                spent, ran = spent + found["cpu"], ran + found["ran"]
                if found["killer"] in part and found["ran"] > 1 and not self._fails(found["killer"]):
                    waiting.insert(0, part[part.index(found["killer"]) + 1 :])
                elif found["killer"] or found["cut"]:
                    outcome = "killed" if found["killer"] else "time"
                    return self._row(outcome, found["killer"] or found["cut"], spent, ran, len(tests))
        finally:
            self._write(path, kept)
        return self._row("alive" if tests else "unreached", "", spent, ran, len(tests))

    def _parts(self, tests: list[str]) -> list[list[str]]:
        """The first tests, and further tests within the limit of CPU seconds."""
        costs = itertools.accumulate(self.known.cost(test) for test in tests)
        last = sum(cost < REACH * SECONDS for cost in costs) + 1
        return [part for part in (tests[:FIRST], tests[FIRST : max(last, FIRST)]) if part]

    def _fails(self, test: str) -> bool:
        """True if a test also fails alone: in another order, a test may fail because of leftovers of other tests."""
        return bool(self._run([test], SECONDS)["killer"])

    def sound(self, killers: Iterable[str]) -> None:
        """Raise if a killing test also fails without any mutant."""
        left = [test for test in killers if test in self.known.tests]
        while left and (failed := self._run(left, 10 * SECONDS)["killer"]):
            if failed not in left or self._fails(failed):
                raise RuntimeError(f"{failed} fails without any mutant. Fix the test and start again.")
            left = left[left.index(failed) + 1 :]

    @staticmethod
    def _row(outcome: str, by: str, spent: float, ran: int, reach: int) -> dict[str, Any]:
        return {"outcome": outcome, "by": by, "cpu": round(spent, 2), "ran": ran, "reached_by": reach}

    def _write(self, path: Path, content: bytes) -> None:
        """Write with a unique modification time, because Python validates bytecode by time and size of the source."""
        path.write_bytes(content)
        self.written += 1
        os.utime(path, (self.written * 10, self.written * 10))

    def _run(self, tests: Sequence[str], seconds: float) -> dict[str, Any]:
        asked, temporary = self.result.with_name("asked.json"), self.result.with_name("temporary")
        asked.write_text(json.dumps({"tests": tests, "seconds": seconds}))
        self.result.unlink(missing_ok=True)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        options = ["-o", "addopts=", "-q", "-x", "-p", "no:cacheprovider", "--timeout=0", "--tb=short", "-rN"]
        plugin = ["-p", "mutants.chosen", f"--basetemp={temporary}"]
        places = (self.folder / "src", self.folder / "tests")
        environment = {**os.environ, "MUTANTS_CHOSEN": str(asked), "PYTHONPATH": os.pathsep.join(map(str, places))}
        with self.result.with_name("output.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *plugin, *files], cwd=self.folder, env=environment,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(WALL)
            except subprocess.TimeoutExpired:
                code = None
            with contextlib.suppress(ProcessLookupError):  # processes left by tests
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(temporary, ignore_errors=True)
        return self._told(code)

    def _told(self, code: int | None) -> dict[str, Any]:
        found = {"killer": "", "cut": "", "over": False, "current": "", "ran": 0, "cpu": 0.0}
        if self.result.exists():
            found |= json.loads(self.result.read_text())
        if code is None and not found["killer"]:
            found["cut"] = found["current"] or "(collection)"
        elif code == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise RuntimeError("no recorded test was collected: the record does not match the tests")
        elif code not in (0, None) and not found["killer"] and not found["cut"] and not found["over"]:
            # pytest failed without a failing test: the package cannot be imported, or the interpreter crashed
            found["killer"] = found["current"] or "(collection)"
        return found


def where(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.first}"


def run(mutants: Sequence[Mutant], known: record.Record, processes: int, table: Path) -> dict[str, Any]:
    """Try all mutants in parallel; the table is written after each mutant."""
    waiting: queue.Queue[Mutant] = queue.Queue()
    for mutant in mutants:
        waiting.put(mutant)
    rows: dict[str, Any] = {}
    lock = threading.Lock()
    failed: list[BaseException] = []

    def work(folder: Path) -> None:
        try:
            worker = Worker(folder, known)
            while not failed:
                mutant = waiting.get_nowait()
                row = worker.tried(mutant)
                with lock:
                    rows[mutant.id] = {**row, "where": where(mutant), "note": mutant.note}
                    written = {mutant.id: rows[mutant.id] for mutant in mutants if mutant.id in rows}
                    table.write_text(json.dumps({"seed": SEED, "mutants": written}, indent=1) + "\n")
                    print(f"{len(rows):3d}/{len(mutants)} {mutant.id:28s} {row['outcome']:9s} {row['by']}", flush=True)
        except queue.Empty:
            pass
        except BaseException as error:
            failed.append(error)

    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        folders = [Path(place) / str(number) for number in range(processes)]
        for folder in folders:
            folder.mkdir()
        threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        folders[0].joinpath("sound").mkdir()
        killers = sorted({row["by"] for row in rows.values() if row["outcome"] == "killed"})
        Worker(folders[0] / "sound", known).sound(killers)
    return json.loads(table.read_text())


def _recorded(mutants: Sequence[Mutant], few: bool, processes: int) -> Path:
    """Folder of a record of this source and these tests; the record of a sample covers only the files of its mutants."""
    whole = ROOT / ".mutants" / record.digest()
    own = whole.with_name(f"{whole.name}-{len(mutants)}") if few else whole
    for folder in (whole, own):
        if (folder / "key").exists():
            return folder
    shutil.rmtree(ROOT / ".mutants", ignore_errors=True)
    record.make(own, processes, sorted({mutant.path for mutant in mutants}) if few else ("regard/**/*.py",))
    return own


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="Try this many mutants, a seeded sample; 0: all.")
    parser.add_argument("--only", nargs="*", default=(), help="Try the mutants with these ids.")
    parser.add_argument(
        "--record", type=Path, help="A record of the suite. Default: the record in .mutants, remade if stale."
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--table", type=Path, default=ROOT / ".mutants" / "table.json", help="Output file of the outcomes."
    )
    arguments = parser.parse_args()
    mutants = [*faults(), *draw(COUNT)]
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
    return compare.compared(json.loads(compare.UNTRIMMED.read_text()), table) if compare.UNTRIMMED.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
