"""Damaged files: flipped bits, truncation, or a pickle under another name."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from conftest import TWELVE, Trained, rows, same_tensors, train_tiny
from regard.errors import RunError, WeightsError
from regard.runs.train import train
from regard.training.checkpoint import Checkpoint, _checksums, latest_checkpoint, remove_partial, save_checkpoint
from regard.training.checkpoint import read_checkpoint as look

GROUPS = {"model": {"w": torch.arange(5.0)}, "optimizer": {"w/step": torch.tensor(3.0)}}
FACTS = {
    "best": {"bleu": 12.5, "loss": 1e-05, "step": 4}, "pending_losses": [0.25], "compute_mode": "", "world_size": 1,
}  # fmt: skip


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two small checkpoints."""
    for step in (4, 8):
        save_checkpoint(tmp_path, step, GROUPS, FACTS, keep=2)
    return tmp_path


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_no_flipped_bit_and_no_truncated_file_is_believed(name: str, two: Path) -> None:
    path = two / "step-00000008" / name
    before, kept = look(path.parent), path.read_bytes()
    assert isinstance(before, Checkpoint)
    for bit in range(8 * len(kept)):
        flip(path, bit)
        found = look(path.parent)
        # 1e-05 and 1E-05 are equal: a flipped bit may have no effect
        assert isinstance(found, str) or (name == "state.json" and found.metadata == before.metadata), bit
        if isinstance(found, str):
            saved, problems = latest_checkpoint(two)
            assert saved is not None and saved.step == 4 and problems == [found] and "step-00000008" in found
        path.write_bytes(kept)
    for length in range(len(kept)):
        path.write_bytes(kept[:length])
        assert isinstance(look(path.parent), str), length
    path.unlink()
    assert isinstance(look(path.parent), str)


def test_a_copy_of_a_checkpoint_under_another_name_is_left_alone(two: Path) -> None:
    shutil.copytree(two / "step-00000008", two / "step-00000008-mine")
    save_checkpoint(two, 12, GROUPS, FACTS, keep=1)
    saved, problems = latest_checkpoint(two)
    assert saved is not None and saved.step == 12 and not problems
    assert {path.name for path in two.iterdir()} == {"step-00000012", "step-00000008-mine"}


def harm(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        flip(path, chance.randrange(8 * path.stat().st_size))
    else:
        os.truncate(path, chance.randrange(path.stat().st_size))


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_with_a_damaged_checkpoint_resumes_from_the_one_before(seed: int, halved: Path, whole: Path) -> None:
    chance = random.Random(seed)
    harm(halved / "checkpoints/step-00000006" / chance.choice(["state.json", "state.safetensors"]), chance)
    said = train_tiny((), halved, *TWELVE, resume=True)
    assert "step-00000006 is damaged" in said and "skipped" in said and "Resuming after step 4" in said
    same_tensors(halved / "model.safetensors", whole / "model.safetensors")
    assert rows(halved) == rows(whole)


def test_if_all_checkpoints_are_damaged_the_run_restarts_and_reports_it(halved: Path, whole: Path) -> None:
    chance = random.Random(0)
    for path in sorted((halved / "checkpoints").iterdir()):
        harm(path / "state.safetensors", chance)
    said = train_tiny((), halved, *TWELVE, resume=True)
    assert "step-00000004 is damaged" in said and "step-00000006 is damaged" in said
    assert "no complete checkpoint found; starting at step 0" in said
    last = "checkpoints/step-00000012/state.safetensors"
    same_tensors(halved / last, whole / last)
    assert rows(halved) == rows(whole)


class Bomb:
    """Creates a folder when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "it ran"


WAYS: list[Callable[[Any, Path], Any]] = [
    torch.save, lambda content, path: torch.save(content, path, _use_new_zipfile_serialization=False),
    lambda content, path: path.write_bytes(pickle.dumps(content)),
]  # fmt: skip
PICKLES = [
    *((write, "model.safetensors", r"model\.safetensors.*pickle") for write in WAYS),
    *((write, "pytorch_model.bin", r"pytorch_model\.bin: refused.*execute code") for write in WAYS),
    (torch.save, "model.pt", "safetensors"), (torch.save, "part.bin", "pickle"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "name", "message"), PICKLES)
def test_a_malicious_pickle_under_any_name_is_refused_in_one_line_and_never_runs(
    write: Callable[[Any, Path], None], name: str, message: str, trained: Trained, mark: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(trained.path, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    write({"x": Bomb(mark)}, folder / name)
    if name == "part.bin":  # a shard
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(WeightsError, match=message) as refused:
        regard.load(folder)
    with pytest.raises(WeightsError, match=r"pickle|safetensors|refused"):
        train("translate", str(trained.data), model=str(folder), out=tmp_path / "new")
    assert not mark.exists() and not (tmp_path / "new").exists() and "\n" not in str(refused.value)
    with suppress(pickle.UnpicklingError, RuntimeError):  # torch rejects a plain pickle after running it
        torch.load(io.BytesIO((folder / name).read_bytes()), weights_only=False)
    assert mark.exists()  # the pickle is malicious


def test_a_checkpoint_that_is_a_pickle_is_passed_over(halved: Path, whole: Path, mark: Path) -> None:
    torch.save({"x": Bomb(mark)}, halved / "checkpoints/step-00000006/state.safetensors")
    said = train_tiny((), halved, *TWELVE, resume=True)
    assert "step-00000006 is damaged" in said and "Resuming after step 4" in said and not mark.exists()
    assert rows(halved) == rows(whole)


def test_a_checkpoint_that_was_sealed_as_a_pickle_is_refused(halved: Path, mark: Path) -> None:
    path = halved / "checkpoints/step-00000006"
    torch.save({"x": Bomb(mark)}, path / "state.safetensors")
    known = json.loads((path / "state.json").read_text())
    del known["seal"], known["checksum"]
    (path / "state.json").write_text(json.dumps({**known, **_checksums(path, known)}))
    with pytest.raises(WeightsError, match=r"state\.safetensors"):
        train_tiny((), halved, *TWELVE, resume=True)
    torch.save({"x": Bomb(mark)}, halved / "regard.json")
    with pytest.raises(RunError, match=r"regard\.json"):
        train_tiny((), halved, *TWELVE, resume=True)
    assert not mark.exists()


def test_a_replaced_checkpoint_without_its_successor_is_restored(tmp_path: Path) -> None:
    """A crash between the two renames of a save that replaces a checkpoint."""
    folder = tmp_path / "checkpoints"
    save_checkpoint(folder, 4, GROUPS, FACTS, 2)
    (folder / "step-00000004").rename(folder / ".replaced-00000004")
    (folder / ".writing-00000004").mkdir()
    remove_partial(folder)
    saved, problems = latest_checkpoint(folder)
    assert saved is not None and saved.step == 4 and not problems
    assert [path.name for path in folder.iterdir()] == ["step-00000004"]
