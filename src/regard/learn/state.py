"""Saved state: ours, pickle-free, whole or not at all.

A checkpoint is a folder of `state.safetensors` (weights, optimiser, averages) and `state.json` (step, scores, versions,
a checksum). It is written aside, flushed to the disk, then renamed; one that is partial or damaged is never chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import RunError, WeightsError
from regard.weights import read_file, write_file


@dataclass(frozen=True)
class Saved:
    path: Path
    step: int
    facts: dict[str, Any]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """`{"model": …, "optimiser": …, "average": …}` by name."""
        grouped: dict[str, dict[str, Tensor]] = {}
        for name, tensor in read_file(self.path / "state.safetensors").items():
            group, _, rest = name.partition(":")
            grouped.setdefault(group, {})[rest] = tensor
        return grouped


def save_state(
    folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any], keep: int
) -> Path:
    """Write `folder/step-N` and remove all but the newest `keep` that are older."""
    final = folder / f"step-{step:08d}"
    aside, replaced = folder / f".writing-{step:08d}", folder / f".replaced-{step:08d}"
    flat = {f"{group}:{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    _check_space(folder, sum(t.numel() * t.element_size() for t in flat.values()))
    for left in (*folder.glob(".writing-*"), *folder.glob(".replaced-*")):
        shutil.rmtree(left, ignore_errors=True)  # of a save that was cut off
    aside.mkdir(parents=True)
    try:
        write_file(aside / "state.safetensors", flat)
        record = {"step": step, "checksum": checksum(aside / "state.safetensors"), **facts}
        (aside / "state.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        for name in ("state.safetensors", "state.json"):
            flush(aside / name)
    except (OSError, WeightsError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(
            f"{final}: the checkpoint could not be written ({error}). Earlier ones are untouched."
        ) from error
    if final.exists():  # there is a whole one at every moment
        final.rename(replaced)
    aside.rename(final)
    flush(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    # a later one can only be damaged: it was passed over, and must not count among those that are kept
    for old in [path for path in sorted(folder.glob("step-*")) if path.name <= final.name][:-keep]:
        shutil.rmtree(old)
    return final


def newest_state(folder: Path) -> tuple[Saved | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with those passed over."""
    problems: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            facts = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if checksum(path / "state.safetensors") != facts["checksum"]:
                raise WeightsError("its checksum does not fit")
            return Saved(path, int(facts["step"]), facts), problems
        except (OSError, ValueError, KeyError, WeightsError) as error:
            problems.append(f"{path.name} is not whole ({error}) and is passed over")
    return None, problems


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def flush(path: Path) -> None:
    """Down to the disk, a folder's entries too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_space(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed * 1.05 + 2**20:
        raise RunError(
            f"{folder}: a checkpoint needs {needed / 2**20:.0f} MiB and only {free / 2**20:.0f} MiB are free. "
            "Nothing was written; earlier checkpoints are untouched. Free some space and go on with --resume."
        )
