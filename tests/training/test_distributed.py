"""Distributed training with torchrun: results do not depend on the number of processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TINY, checkpoints, interrupted, rows, stopped_in, train_tiny
from regard.errors import RunError

pytestmark = pytest.mark.slow


RUN = (
    "train.steps=48", "train.eval_every=16", "train.log_every=4", "train.grad_accum=2", "train.ema_decay=0.9",
    "data.valid_fraction=0.1", "data.eval_samples=2", "decode.max_extra_tokens=5",
)  # fmt: skip
"""Two micro-batches per step, and dropout (of TINY)."""

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard"]


def words(data: Path, out: Path, *settings: str) -> list[str]:
    return [*TORCHRUN, "train", "translate", "--data", str(data), "--out", str(out), "--set", *TINY, *RUN, *settings]


def together(given: list[str]) -> subprocess.CompletedProcess[str]:
    environment, command = {**os.environ, "OMP_NUM_THREADS": "1"}, [sys.executable, "-m", *given]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def same_losses(run: Path, alone: Path) -> None:
    ours, theirs = rows(run), rows(alone)
    assert [(row["kind"], row["step"]) for row in ours] == [(row["kind"], row["step"]) for row in theirs]
    for row, other in zip(ours, theirs, strict=True):
        for name in row.keys() & {"loss", "grad_norm", "lr"}:
            assert row[name] == pytest.approx(other[name], rel=1e-5), (row["step"], name)


@pytest.fixture(scope="module")
def alone(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of a single process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    train_tiny(few, out, *RUN)
    return out


def test_two_processes_train_as_one_does_and_one_of_them_writes(few: Path, alone: Path, tmp_path: Path) -> None:
    done = together(words(few, tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    same_losses(tmp_path / "run", alone)
    assert "cpu, 2 processes" in done.stdout and done.stdout.count("Reading") == 1
    assert done.stdout.count("valid loss") == 3 and "Traceback" not in done.stderr
    assert checkpoints(tmp_path / "run") == checkpoints(alone)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"curves.png", *(p.name for p in alone.iterdir())}
    assert len(list((tmp_path / "run/events").iterdir())) == 1


def test_one_process_began_and_two_resume(few: Path, alone: Path, tmp_path: Path) -> None:
    with stopped_in(20):
        train_tiny(few, tmp_path / "run", *RUN)
    done = together([*TORCHRUN, "train", "translate", "--out", str(tmp_path / "run"), "--resume"])
    assert done.returncode == 0 and "Resuming after step 20" in done.stdout, done.stderr
    same_losses(tmp_path / "run", alone)


def test_two_processes_are_stopped_and_one_resumes(few: Path, alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    code, out, err = interrupted(words(few, run), run, 4, signal.SIGTERM)
    assert code != 0 and "2 processes" in out
    said = [line for line in err.splitlines() if "Stopped and saved after step" in line]
    command = [shlex.split(line) for line in err.splitlines() if "--resume" in line]
    step = int(checkpoints(run)[-1].removeprefix("step-"))
    assert said == [f"Stopped and saved after step {step}. Resume with:"] and 4 < step < 48
    offered = f"torchrun --nproc-per-node 2 -m regard train translate --out '{run}' --resume"
    assert command == [shlex.split(offered)]
    assert f"Resuming after step {step}" in train_tiny((), run, tiny=False, resume=True)
    same_losses(run, alone)


def test_processes_that_cannot_divide_the_micro_batches_are_refused(few: Path, tmp_path: Path) -> None:
    done = together(words(few, tmp_path / "run", "train.grad_accum=9"))
    assert done.returncode != 0 and not (tmp_path / "run/regard.json").exists()
    assert "[rank" not in done.stderr, done.stderr  # torchrun prints its traceback, and ours would hide the message
    assert "train.grad_accum=9 is not divisible by 2 processes" in done.stderr
    assert "Use 1, 3, 9 processes, or set train.grad_accum to a multiple of 2" in done.stderr


def test_the_micro_batch_with_a_nan_loss_is_named_on_every_rank(few: Path, tmp_path: Path) -> None:
    wild = ("train.lr=1e30", "train.grad_clip=0", "train.warmup_steps=0", "train.log_every=1")
    with pytest.raises(RunError, match="micro-batch") as stop:
        train_tiny(few, tmp_path / "one", *RUN, *wild)
    done = together(words(few, tmp_path / "two", *wild))
    assert done.returncode != 0 and str(stop.value) in done.stderr
    assert not (tmp_path / "two/checkpoints").exists()
