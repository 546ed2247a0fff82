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
from unittest import mock

import pytest
import torch
from safetensors import SafetensorError

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


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["state.json", "state.safetensors"])
def test_no_flipped_bit_and_no_truncated_file_is_believed(name: str, tmp_path: Path) -> None:
    for step in (4, 8):
        save_checkpoint(tmp_path, step, GROUPS, FACTS, keep=2)
    path = tmp_path / "step-00000008" / name
    before, kept = look(path.parent), path.read_bytes()
    assert isinstance(before, Checkpoint)
    for bit in range(8 * len(kept)):
        flip(path, bit)
        found = look(path.parent)
        # 1e-05 and 1E-05 are equal: a flipped bit may have no effect
        assert isinstance(found, str) or (name == "state.json" and found.metadata == before.metadata), bit
        if isinstance(found, str):
            saved, problems = latest_checkpoint(tmp_path)
            assert saved is not None and saved.step == 4 and problems == [found] and "step-00000008" in found
        path.write_bytes(kept)
    for length in range(len(kept)):
        path.write_bytes(kept[:length])
        assert isinstance(look(path.parent), str), length
    path.unlink()
    assert isinstance(look(path.parent), str)


def test_only_complete_checkpoints_count_and_unfinished_saves_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(folder: Path) -> tuple[int, int]:
        saved, problems = latest_checkpoint(folder)
        assert saved is not None
        return saved.step, len(problems)

    def files(folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()}

    for number in (1, 2, 3):
        save_checkpoint(tmp_path / "a", number, GROUPS, FACTS, keep=9)
    for number in (2, 3):
        os.truncate(tmp_path / f"a/step-0000000{number}/state.safetensors", 8)
    save_checkpoint(tmp_path / "a", 1, GROUPS, FACTS, keep=1)  # damaged ones do not count among those that are kept
    assert step(tmp_path / "a") == (1, 2)
    save_checkpoint(tmp_path / "b", 8, GROUPS, FACTS, keep=2)
    shutil.copytree(tmp_path / "b/step-00000008", tmp_path / "b/step-00000008-mine")
    (tmp_path / "b/.writing-00000001").mkdir()
    save_checkpoint(tmp_path / "b", 12, GROUPS, FACTS, keep=1)  # a copy under another name stays
    kept = {"step-00000012", "step-00000008-mine"}
    assert step(tmp_path / "b") == (12, 0) and files(tmp_path / "b") == kept
    # a crash between the two renames of a save that replaces a checkpoint
    (tmp_path / "b/step-00000012").rename(tmp_path / "b/.replaced-00000012")
    (tmp_path / "b/.writing-00000012").mkdir()
    remove_partial(tmp_path / "b")
    assert step(tmp_path / "b") == (12, 0) and files(tmp_path / "b") == kept
    full = mock.Mock(side_effect=SafetensorError("No space left on device"))
    monkeypatch.setattr("regard.weights.tables.save_file", full)
    with pytest.raises(RunError, match="space"):
        save_checkpoint(tmp_path / "b", 13, GROUPS, FACTS, keep=2)
    assert files(tmp_path / "b") == kept


def harm(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.5:
        flip(path, chance.randrange(8 * path.stat().st_size))
    else:
        os.truncate(path, chance.randrange(path.stat().st_size))


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


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", [0, 1, "all", 3, "pickle", 5, 2])
def test_a_run_with_damaged_checkpoints_resumes_from_the_one_before(
    seed: int | str, halved: Path, whole: Path, mark: Path
) -> None:
    chance, folder = random.Random(seed), halved / "checkpoints"
    damaged = sorted(folder.iterdir()) if seed == "all" else [folder / "step-00000006"]
    for path in damaged:
        if seed == "pickle":
            torch.save({"x": Bomb(mark)}, path / "state.safetensors")
        else:
            harm(path / chance.choice(["state.json", "state.safetensors"]), chance)
    said = train_tiny((), halved, *TWELVE, resume=True)
    assert all(f"{path.name} is damaged" in said for path in damaged) and "skipped" in said and not mark.exists()
    none = "no complete checkpoint found; starting at step 0"
    assert (none if seed == "all" else "Resuming after step 4") in said
    for name in ("model.safetensors", "checkpoints/step-00000012/state.safetensors"):
        same_tensors(halved / name, whole / name)
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
