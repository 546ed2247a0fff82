"""The league: regard compared with alternative libraries on seven workloads, in one run. Prints ratios and writes JSON.

    python benchmarks/league.py [--only gpt2-training ...] [--rounds 5] [--seconds 1.5] [--out league.json]
    python benchmarks/league.py --against FOLDER [...]

Workloads: gpt2-training, gpt2-generation-1, gpt2-generation-64, translation-training, longformer, vit-inference, dpt-inference;
their sizes are in league_entries.py, with smaller sizes for a CPU. All sides of a workload are compiled and warmed up first,
then measured in turn, each for as many steps as fit into --seconds; the median over the rounds is reported. Each peer that is
not installed is reported in one line.

--against measures `regard` of this checkout and of FOLDER, another checkout, in turn: one process per checkout runs
FOLDER/benchmarks/league.py with FOLDER/src (this league.py if FOLDER has none). Peers run in the main process, unless
--no-peers leaves them out.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import harness
import torch
from clock import Clock, Step
from league_entries import ENTRIES, OWN, Entry, own

import regard

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("transformers", "timm", "torchvision", "ctranslate2")
SIGN = "league: "
"""Prefix of the worker output lines that the parent process parses."""
PAUSE = 0.2
"""Seconds between two sides on a CPU, because worker threads of the previous side keep spinning for a while."""


# -- measuring


class Prepared:
    """The sides of an entry that are ready to measure, and the errors of the sides that failed to prepare."""

    def __init__(self, entry: Entry, wanted: Iterable[str], seconds: float) -> None:
        self.seconds, self.steps, self.failed = seconds, {}, {}
        self.counts: dict[str, int] = {}
        self.clock = Clock(harness.device(), 1)
        for side in wanted:
            try:
                self._prepare(side, entry.sides[side])
            except Exception as error:  # the remaining sides are still measured
                if harness.is_smoke():
                    raise
                self.failed[side] = repr(error)[:1000]

    def _prepare(self, side: str, make: Any) -> None:
        step: Step = make()
        for _ in range(harness.pick(cuda=6, cpu=1, smoke=1)):
            step()
        took = self.clock.timed(step)
        self.counts[side] = max(1, min(200, math.ceil(self.seconds / max(took, 1e-6))))
        self.steps[side] = step

    def rate(self, side: str) -> float:
        """Tokens or images per second in one round."""
        if harness.mode() == "cpu":
            time.sleep(PAUSE)
        found = Clock(self.clock.device, self.counts[side]).pace(self.steps[side], warm=0)
        return found["tokens"] / found["seconds"]


class Worker:
    """Measures the regard sides of an entry in a subprocess with the sources of another checkout."""

    def __init__(self, folder: Path, name: str, seconds: float) -> None:
        script = folder / "benchmarks/league.py"
        script = script if script.exists() else Path(__file__)
        words = [sys.executable, str(script), "--serve", name, "--seconds", str(seconds)]
        variables = {**os.environ, "PYTHONPATH": str(folder / "src")}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, cwd=folder
        )
        found = self._answer()
        self.steps, self.failed = found["sides"], found["failed"]
        if not Path(found["source"]).is_relative_to(folder / "src"):
            raise RuntimeError(f"{folder}: expected regard of {folder / 'src'}, got {found['source']}")

    def rate(self, side: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{side}\n")
        self.process.stdin.flush()
        return float(self._answer()["rate"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(SIGN):
                found: dict[str, Any] = json.loads(line.removeprefix(SIGN))
                return found
        raise RuntimeError(f"the worker ended with exit code {self.process.wait()}")

    def close(self) -> None:
        self.process.communicate()  # closing stdin ends the worker


def serve(name: str, seconds: float, source: IO[str]) -> None:
    """Worker process: prepare the regard sides of an entry, then measure the side named by each line of `source`."""
    entry = ENTRIES[name]()
    prepared = Prepared(entry, filter(own, entry.sides), seconds)
    answer = {"sides": list(prepared.steps), "failed": prepared.failed, "source": str(Path(regard.__file__).resolve())}
    print(SIGN + json.dumps(answer), flush=True)
    for line in source:
        print(SIGN + json.dumps({"rate": prepared.rate(line.strip())}), flush=True)


def measure(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Throughput and ratios of all sides of an entry, measured in interleaved rounds."""
    entry = ENTRIES[name]()
    there = [side for side in entry.sides if own(side) or importlib.util.find_spec(side.split()[0]) is not None]
    there = [side for side in there if own(side) or not asked.no_peers]
    rates: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    teams: list[tuple[Prepared | Worker, str]] = []
    if asked.against:
        there = [side for side in there if not own(side)]
        for folder, mark in ((ROOT, ""), (asked.against.resolve(), f" in {asked.against.name}")):
            try:
                teams.append((Worker(folder, name, asked.seconds), mark))
            except RuntimeError as error:
                failed[OWN + mark] = str(error)
    teams.append((Prepared(entry, there, asked.seconds), ""))
    for team, mark in teams:
        failed |= {side + mark: why for side, why in team.failed.items()}
    for _ in range(asked.rounds):
        for team, mark in teams:
            for side in team.steps:
                rates.setdefault(side + mark, []).append(team.rate(side))
    for team, _ in teams:
        if isinstance(team, Worker):
            team.close()
    sides = {side: {"median": statistics.median(found), "rounds": found} for side, found in rates.items()}
    mine = [side for team, mark in teams for side in team.steps if own(side) and not mark]
    ratios = {
        side: {other: sides[side]["median"] / sides[other]["median"] for other in sides if other not in mine}
        for side in mine
    }
    return {
        "work": name, "size": entry.size, "unit": entry.unit, "sides": sides, "ratios": ratios, "failed": failed,
    }  # fmt: skip


# -- the machine and the table


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": harness.device_name() if harness.device() == "cuda" else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if harness.device() == "cuda" else None,
        "threads": torch.get_num_threads(),
        "regard": regard.__version__,
        "source": str(Path(regard.__file__).resolve().parent),
        "commit": commit(ROOT),
    }
    return found | harness.versions(*PEERS)


def commit(folder: Path) -> str | None:
    try:
        words = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def show(found: dict[str, Any]) -> None:
    """Print one line per side: median, range, and the speedup of each side of this checkout over that side."""
    print(f"\n{found['work']}: {found['size']}")
    for side, figures in found["sides"].items():
        low, high = min(figures["rounds"]), max(figures["rounds"])
        line = f"  {side:28} {figures['median']:12,.1f} {found['unit']:9} ({low:,.1f} to {high:,.1f})"
        shares = [f"{name}: x {others[side]:.2f}" for name, others in found["ratios"].items() if side in others]
        print("   ".join([line, *shares]))
    for side, why in found["failed"].items():
        print(f"  {side:28} failed: {why}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, default=list(ENTRIES))
    parser.add_argument("--rounds", type=int, default=harness.pick(cuda=5, cpu=3, smoke=1))
    parser.add_argument("--seconds", type=float, default=1.5, help="Seconds per side and round.")
    parser.add_argument("--out", type=Path, default=Path("league.json"))
    parser.add_argument("--against", type=Path, help="Another checkout, measured in turn with this one.")
    parser.add_argument("--no-peers", action="store_true", help="Measure regard only.")
    parser.add_argument("--serve", choices=ENTRIES, help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    torch.set_float32_matmul_precision("high")
    if asked.serve:
        return serve(asked.serve, asked.seconds, sys.stdin)
    facts = machine()
    if asked.against:
        facts |= {"against": str(asked.against), "against_commit": commit(asked.against)}
    print(" | ".join(f"{key} {value}" for key, value in facts.items() if value is not None), flush=True)
    harness.installed(*PEERS)
    results = []
    for name in asked.only:
        results.append(measure(name, asked))
        show(results[-1])
        written = {"smoke": harness.is_smoke(), "machine": facts, "rounds": asked.rounds, "works": results}
        asked.out.write_text(json.dumps(written, indent=1) + "\n")
        gc.collect()
        torch._dynamo.reset()
        if harness.device() == "cuda":
            torch.cuda.empty_cache()
    print(f"\n{'work':22} {'side':18} {'peer':28} side / peer")
    for found in results:
        for side, others in found["ratios"].items():
            for peer, ratio in others.items():
                print(f"{found['work']:22} {side:18} {peer:28} {ratio:6.2f}")
    print(f"written to {asked.out}")


def smoke(folder: Path) -> None:
    out = folder / "league.json"
    main(["--seconds", "0", "--out", str(out)])
    works = json.loads(out.read_text())["works"]
    assert [found["work"] for found in works] == list(ENTRIES), "a work is missing in the JSON file"
    serve("longformer", 0.0, [f"{OWN}\n"])
    harness.left_out("--against", "starts a process for each checkout")


if __name__ == "__main__":
    harness.run(main, smoke)
