"""Checkpoints of training runs, without pickle and written atomically.

A checkpoint is a folder with `state.safetensors` (weights, optimizer state, averages) and `state.json` (step, scores,
versions, checksum). The folder is written under a temporary name, flushed to disk and renamed; partial or damaged
checkpoints are never loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import RunError, WeightsError
from regard.files import fsync
from regard.weights.tables import read_safetensors, write_safetensors


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    metadata: dict[str, Any]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Tensors by name in the groups `model`, `optimizer` and, if enabled, `ema`."""
        grouped: dict[str, dict[str, Tensor]] = {}
        for name, tensor in read_safetensors(self.path / "state.safetensors").items():
            group, _, rest = name.partition(":")
            grouped.setdefault(group, {})[rest] = tensor
        return grouped


def save_checkpoint(
    folder: Path,
    step: int,
    groups: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, Any],
    keep: int,
    is_regular: Callable[[int], bool] = lambda step: True,
) -> Path:
    """Write `folder/step-N`, and remove older checkpoints except for the newest `keep` regular checkpoints."""
    final = folder / f"step-{step:08d}"
    aside, replaced = folder / f".writing-{step:08d}", folder / f".replaced-{step:08d}"
    flat = {f"{group}:{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(t.numel() * t.element_size() for t in flat.values()), shutil.disk_usage(folder).free
    if free < needed * 1.05 + 2**20:
        raise RunError(
            f"{folder}: a checkpoint needs {needed / 2**20:.1f} MiB and {free / 2**20:.1f} MiB are free. Nothing was "
            "written; earlier checkpoints are unchanged."
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    remove_partial(folder)
    aside.mkdir(parents=True)
    try:
        write_safetensors(aside / "state.safetensors", flat)
        record = {"step": step, **metadata}
        record |= _checksums(aside, record)
        (aside / "state.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
        fsync(aside / "state.json")
        fsync(aside)
    except (OSError, WeightsError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(
            f"{final}: the checkpoint could not be written ({error}). Earlier checkpoints are unchanged."
        ) from (error if isinstance(error, OSError) else error.__cause__)
    if final.exists():  # rename fails if the target exists; keep the old copy until the new one is in place
        final.rename(replaced)
    aside.rename(final)
    fsync(folder)
    remove_partial(folder)
    prune_checkpoints(folder, step, keep, is_regular)
    return final


def remove_partial(folder: Path) -> None:
    """Remove the folders of an interrupted save; a replaced checkpoint without its successor is restored."""
    for replaced in folder.glob(".replaced-*"):
        final = folder / replaced.name.replace(".replaced", "step")
        if final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(final)
    for left in folder.glob(".writing-*"):
        shutil.rmtree(left, ignore_errors=True)


def prune_checkpoints(folder: Path, step: int, keep: int, is_regular: Callable[[int], bool]) -> None:
    """Remove checkpoints older than `step`, except for `keep` regular checkpoints, including `step`."""
    # later checkpoints are damaged and were skipped, so they do not count as kept
    older = [number for number in _saved_steps(folder) if number < step]
    others = keep - is_regular(step)
    kept = [number for number in older if is_regular(number)][-others:] if others > 0 else []
    if not kept and not is_regular(step) and keep > 1:
        kept = older[-1:]  # before the first regular checkpoint, keep two as well
    for number in older:
        if number not in kept:
            shutil.rmtree(folder / f"step-{number:08d}")


def _saved_steps(folder: Path) -> list[int]:
    """Steps with a checkpoint, in ascending order. Folders with other names are ignored."""
    names = (re.fullmatch(r"step-(\d{8,})", path.name) for path in folder.glob("step-*"))
    return sorted(int(name[1]) for name in names if name)


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor] | None:
    """Average of the weights (of the EMA, if enabled) after these steps; None if a checkpoint is damaged."""
    mean: dict[str, Tensor] = {}
    for step in steps:
        saved = read_checkpoint(folder / f"step-{step:08d}")
        if isinstance(saved, str):
            return None
        groups = saved.tensors()
        weights = groups.get("ema") or {
            name if name.startswith("head.") else f"body.{name}": tensor for name, tensor in groups["model"].items()
        }
        for name, tensor in weights.items():
            part = tensor.double() / len(steps)
            mean[name] = mean[name] + part if name in mean else part
    return mean


def read_checkpoint(path: Path) -> Checkpoint | str:
    """The checkpoint, or a message if the folder is damaged."""
    try:
        record = json.loads((path / "state.json").read_text(encoding="utf-8"))
        found = {name: record.pop(name) for name in ("checksum", "seal")}
        if found != _checksums(path, record):
            raise WeightsError("checksum mismatch")
        return Checkpoint(path, int(record["step"]), record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WeightsError) as error:
        return f"{path.name} is damaged ({error}) and is skipped"


def latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint, and messages about skipped checkpoints."""
    problems: list[str] = []
    for number in _saved_steps(folder)[::-1]:
        saved = read_checkpoint(folder / f"step-{number:08d}")
        if isinstance(saved, Checkpoint):
            return saved, problems
        problems.append(saved)
    return None, problems


def _checksums(path: Path, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Checksum of the tensors, and of the metadata with this checksum, to detect damaged scores."""
    with (path / "state.safetensors").open("rb") as file:
        checksum = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    sealed = json.dumps({**metadata, "checksum": checksum}, sort_keys=True)
    return {"checksum": checksum, "seal": hashlib.blake2b(sealed.encode(), digest_size=16).hexdigest()}
