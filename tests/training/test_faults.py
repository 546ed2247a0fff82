"""Real faults: a run killed before or during any file operation, a full disk, and two runs in one folder."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_loader import alive

from conftest import TINY, checkpoints, facts, last_step, rows, same_tensors

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked, on Linux alone")

SHORT = (
    "train.steps=8", "train.eval_every=3", "train.log_every=2", "train.grad_accum=2", "train.ema_decay=0.9",
    "train.keep_checkpoints=2", "data.valid_fraction=0.1", "data.eval_samples=1", "decode.max_extra_tokens=1",
)  # fmt: skip
"""Eight steps of two micro-batches, three checkpoints, several epochs, with dropout."""

MOUNT = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m none "$0" && exec "$@"']
"""Command that mounts an 8 MiB disk, visible only to the process and its children, until the process ends."""

JSON, TEXT = ("open", "write", "replace"), ("tokenizer.json", "tokenizer_config.json")
STAGES = [
    "mkdir .", "draw", "open .lock", "write .lock", "unlink .lock", "mkdir events", "open events/events",
    "write events/events", "open samples.txt", "write samples.txt", "open log.jsonl", "write log.jsonl",
    "first grain of a step", "second grain of a step", "average",
    *(f"{call} .{name}.writing" for name in (*TEXT, "regard.json", "config.json", "README.md") for call in JSON),
    "write .model.safetensors.writing", "replace .model.safetensors.writing",
    "mkdir checkpoints", "mkdir checkpoints/.writing-N", "write checkpoints/.writing-N/state.safetensors",
    "open checkpoints/.writing-N/state.json", "write checkpoints/.writing-N/state.json", "rename checkpoints/.writing-N",
    "fsync checkpoints", "unlink state.json", "unlink state.safetensors", "rmdir checkpoints/step-N",
]  # fmt: skip
"""Every call that writes or changes a file, from the start to the end of a run."""

FLUSHED = [f"checkpoints/.writing-N{name}" for name in ("", "/state.json", "/state.safetensors")]
"""Files that must be flushed before a checkpoint is renamed: needed after a power failure, not after a kill."""

GOING_ON = [f"{call} {name}" for name in (".log.jsonl.writing", ".samples.txt.writing") for call in JSON]
"""Calls of resumed runs only."""

WRITES = ["draw", *(name for name in STAGES if name.startswith("write"))]


class Victims:
    """Training runs in forks of one process, with a small `disk` if one can be mounted."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data, self.disk, self.unbroken = folder, data, folder / "disk", folder / "unbroken"
        self.calls: list[str] = []
        self.disk.mkdir()
        mount = [*MOUNT, str(self.disk)]
        self.mounted = subprocess.run([*mount, "true"], capture_output=True, check=False).returncode == 0
        command = [sys.executable, str(Path(__file__).parents[1] / "fault_injection.py")]
        self.process = subprocess.Popen(
            [*mount, *command] if self.mounted else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self._answer() == "ready"

    def begin(self, run: Path, **more: Any) -> Any:
        settings = [*TINY, *SHORT, *more.pop("settings", ())]
        words = ["train", "translate", "--data", str(self.data), "--out", str(run), "--set", *settings]
        return self._order(run=str(run), words=[*words, *more.pop("words", ())], **more)

    def go_on(self, run: Path, **more: Any) -> Any:
        """Resume with the suggested command or, if no run exists yet, with the initial command."""
        if self.shell(f"test -e {shlex.quote(str(run))}/regard.json")["code"]:
            return self.begin(run, words=["--resume"], **more)
        return self._order(run=str(run), words=["train", "translate", "--out", str(run), "--resume"], **more)

    def shell(self, command: str) -> Any:
        return self._order(shell=command)

    def _order(self, **order: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory, few: Path) -> Iterator[Victims]:
    """The runs, with the folder of an uninterrupted run and its calls in call order."""
    made = Victims(tmp_path_factory.mktemp("victims"), few)
    done = made.begin(made.unbroken, calls=str(made.folder / "calls"))
    assert done["code"] == 0 and "(4.0 epochs)" in done["out"], done["err"]
    made.calls = json.loads((made.folder / "calls").read_text())
    yield made
    made.process.communicate()


def same(run: Path, unbroken: Path) -> None:
    """Assert that all files of both run folders are equal, not only the weights."""
    assert rows(run) == rows(unbroken)
    assert checkpoints(run) == checkpoints(unbroken)
    for name in ("model.safetensors", *(f"checkpoints/{name}/state.safetensors" for name in checkpoints(run))):
        same_tensors(run / name, unbroken / name)
    assert facts(run) == facts(unbroken)
    assert (run / "samples.txt").read_bytes() == (unbroken / "samples.txt").read_bytes()
    names = {path.name for path in run.iterdir()}
    assert names - {"curves.png"} == {path.name for path in unbroken.iterdir()} - {"curves.png"}


def resumes(victims: Victims, run: Path, unbroken: Path | None = None) -> None:
    """Assert that the run resumes without an error, and ends as the uninterrupted run."""
    done = victims.go_on(run)
    assert done["code"] == 0 and not done["err"], done["err"]
    same(run, unbroken or victims.unbroken)


def test_every_call_is_listed_and_all_is_on_the_disk_before_it_has_its_name(victims: Victims) -> None:
    calls, unseen = victims.calls, ("fsync .", "fsync checkpoints/", "chmod")  # not visible to other processes
    assert {call for call in calls if not call.startswith(unseen)} == set(STAGES)
    named = calls.index("rename checkpoints/.writing-N")
    assert {f"fsync {name}" for name in FLUSHED} <= set(calls[:named]) and calls[named + 1] == "fsync checkpoints"
    for number, call in enumerate(calls):
        if call.startswith("replace"):
            assert calls[number - 1] == call.replace("replace", "fsync")


BEGINNING = [f"{call} .{name}.json.writing" for name in ("tokenizer", "regard") for call in JSON]
KILLED = -signal.SIGKILL


@pytest.mark.every(14)
@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_any_stage_a_run_resumes_exactly(stage: str, victims: Victims, tmp_path: Path) -> None:
    which = random.Random(stage).randint(1, victims.calls.count(stage))
    assert victims.begin(tmp_path / "run", at=[stage, which])["code"] == KILLED
    resumes(victims, tmp_path / "run")


@pytest.mark.every(3)
@pytest.mark.parametrize("stage", BEGINNING)
def test_killed_before_its_start_a_run_can_begin_again(stage: str, victims: Victims, tmp_path: Path) -> None:
    assert victims.begin(tmp_path / "run", at=[stage, 1])["code"] == KILLED
    assert victims.begin(tmp_path / "run")["code"] == 0
    same(tmp_path / "run", victims.unbroken)


@pytest.mark.every(6)
@pytest.mark.parametrize("stage", GOING_ON)
def test_killed_while_resuming_it_resumes_again(stage: str, victims: Victims, tmp_path: Path) -> None:
    assert victims.begin(tmp_path / "run", at=["average", 8])["code"] == KILLED
    assert victims.go_on(tmp_path / "run", at=[stage, 1])["code"] == KILLED
    resumes(victims, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_killed_again_and_again_at_random_it_arrives(seed: int, victims: Victims, tmp_path: Path) -> None:
    chance = random.Random(seed)
    assert victims.begin(tmp_path / "run", at=chance.randint(1, len(victims.calls)))["code"] == KILLED
    for _ in range(3):
        victims.go_on(tmp_path / "run", at=chance.randint(1, len(victims.calls) // 2))
    resumes(victims, tmp_path / "run")


ENDINGS = {
    "Average of the last 2": (
        "train.average_checkpoints=2", "train.lr=0.2", "train.seed=2", "train.warmup_steps=0", "train.lr_schedule=constant",
    ),
    "stopped after step 6": (
        "train.patience=1", "train.lr=1e-30", "model.dropout=0", "train.steps=20", "train.ema_decay=0",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_killed_near_an_end_of_another_kind_it_ends_the_same(ending: str, victims: Victims, tmp_path: Path) -> None:
    settings, listed = ENDINGS[ending], tmp_path / "calls"
    done = victims.begin(tmp_path / "unbroken", settings=settings, calls=str(listed))
    assert done["code"] == 0 and ending in done["out"]
    chance, many = random.Random(ending), len(json.loads(listed.read_text()))
    for number in range(3):
        run, at = tmp_path / f"run {number}", chance.randint(2 * many // 3, many)
        assert victims.begin(run, settings=settings, at=at)["code"] == KILLED
        resumes(victims, run, tmp_path / "unbroken")


SIGNALS = [
    ("SIGTERM", "second grain of a step", 5), ("SIGINT", "average", 4), ("SIGTERM", "draw", 2),
    ("SIGINT", "write checkpoints/.writing-N/state.safetensors", 1), ("SIGTERM", "write .README.md.writing", 1),
]  # fmt: skip


@pytest.mark.parametrize(("number", "stage", "which"), SIGNALS)
def test_stopped_it_saves_and_prints_the_command(
    number: str, stage: str, which: int, victims: Victims, tmp_path: Path
) -> None:
    run = tmp_path / "my run"
    done = victims.begin(run, at=[stage, which], what=number)
    assert done["code"] == 128 + getattr(signal, number)
    said, command = done["err"].strip().splitlines()
    step = int(checkpoints(run)[-1].removeprefix("step-"))
    assert said == f"Stopped and saved after step {step}. Resume with:"
    assert shlex.split(command)[1:] == ["train", "translate", "--out", str(run), "--resume"]
    resumes(victims, run)


def paragraph(done: Any) -> str:
    """Assert exit code 2 and one paragraph without a traceback; returns the message."""
    said: str = done["err"].strip()
    assert done["code"] == 2, done
    assert said.startswith("regard: ") and "Traceback" not in said and "Exception" not in said and "\n\n" not in said
    return said


@pytest.mark.every(5)
@pytest.mark.parametrize("stage", WRITES)
def test_write_errors_are_reported_and_nothing_is_lost(stage: str, victims: Victims, tmp_path: Path) -> None:
    run, which = tmp_path / "run", random.Random(stage).randint(1, victims.calls.count(stage))
    said = paragraph(victims.begin(run, at=[stage, which], what="limit", drawn=stage == "draw"))
    assert "File too large" in said and "needs" in said and "free" in said
    resumes(victims, run)


FILLED = [
    ("write log.jsonl", 3), ("write .model.safetensors.writing", 2), ("write samples.txt", 2),
    ("write checkpoints/.writing-N/state.safetensors", 2), ("open .regard.json.writing", 1),
]  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("at", FILLED, ids=lambda at: " ".join(map(str, at)))
def test_a_full_disk_loses_no_checkpoint(at: tuple[str, int], victims: Victims, tmp_path: Path) -> None:
    if not victims.mounted:
        pytest.skip("no file system can be mounted here; the tests above do without")
    run = victims.disk / "run"
    victims.shell(f"rm -rf {victims.disk}/*")
    full = victims.begin(run, at=at, what="fill")
    for said in map(paragraph, (full, victims.go_on(run))):  # still full
        assert "needs" in said and "0.0 MiB are free" in said
    victims.shell(f"rm {victims.disk}/ballast")
    done = victims.go_on(run)
    assert done["code"] == 0 and not done["err"], done["err"]
    assert victims.shell(f"cp -r {run} {tmp_path}")["code"] == 0
    same(tmp_path / "run", victims.unbroken)


def stopped_process(words: list[str], log: Path) -> subprocess.Popen[str]:
    """A real process that is stopped after its first log line."""
    process = subprocess.Popen([sys.executable, "-m", "regard", *words], stdout=subprocess.DEVNULL, text=True)
    end = time.monotonic() + 60
    while not log.exists() or '"train"' not in log.read_text():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)
    return process


@pytest.mark.slow
def test_a_second_run_is_refused_until_the_first_is_gone(victims: Victims, tmp_path: Path) -> None:
    more = ["data.num_workers=2", "train.steps=30", "train.eval_every=10"]
    run, settings = tmp_path / "run", [*TINY, *SHORT, *more]
    words = ["train", "translate", "--data", str(victims.data), "--out", str(run), "--set", *settings]
    first = stopped_process(words, run / "log.jsonl")
    try:
        workers = list(map(int, Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()))
        assert len(workers) == 2
        for said in map(paragraph, (victims.begin(run, settings=more), victims.go_on(run))):
            assert f"in use by another run (process {first.pid} on " in said
    finally:
        first.kill()
        first.wait()
    end = time.monotonic() + 10
    while any(map(alive, workers)):
        assert time.monotonic() < end, f"workers {workers} are still alive"
        time.sleep(0.01)
    assert last_step(run) < 30
    again = [sys.executable, "-m", "regard", "train", "translate", "--out", str(run), "--resume"]
    subprocess.run(again, check=True, capture_output=True)
    assert victims.begin(tmp_path / "unbroken", settings=more)["code"] == 0
    same(run, tmp_path / "unbroken")
