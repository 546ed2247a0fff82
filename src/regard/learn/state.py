"""Saved state: ours, pickle-free, whole or not at all.

A checkpoint is a folder of `state.safetensors` (weights, optimiser, averages) and `state.json` (step, scores, versions,
a checksum). It is written aside, flushed to the disk, then renamed; one that is partial or damaged is never chosen.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
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
    folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any],
    keep: int, regular: Callable[[int], bool] = lambda step: True,
) -> Path:  # fmt: skip
    """Write `folder/step-N`, and remove what is older but for the newest `keep` of the `regular` steps."""
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
        (aside / "state.json").write_text(json.dumps({**record, "seal": _seal(record)}, indent=1), encoding="utf-8")
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
    older = [path for path in sorted(folder.glob("step-*")) if path.name < final.name]
    kept = [path for path in older if regular(_number(path))][-keep + regular(step) :] if keep > regular(step) else []
    for old in older:
        if old not in kept:
            shutil.rmtree(old)
    return final


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def mean_weights(folder: Path, steps: Sequence[int]) -> dict[str, Tensor] | None:
    """The mean of the weights (of their averages, where those are kept) after these steps; None if one is not whole."""
    mean: dict[str, Tensor] = {}
    for step in steps:
        saved = whole(folder / f"step-{step:08d}")
        if isinstance(saved, str):
            return None
        groups = saved.tensors()
        weights = groups.get("average") or {f"body.{name}": tensor for name, tensor in groups["model"].items()}
        for name, tensor in weights.items():
            part = tensor.double() / len(steps)
            mean[name] = mean[name] + part if name in mean else part
    return mean


def whole(path: Path) -> Saved | str:
    """A checkpoint, or what is wrong with it."""
    try:
        facts = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if facts.pop("seal") != _seal(facts) or checksum(path / "state.safetensors") != facts["checksum"]:
            raise WeightsError("its checksum does not fit")
        return Saved(path, int(facts["step"]), facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, WeightsError) as error:
        return f"{path.name} is not whole ({error}) and is passed over"


def newest_state(folder: Path) -> tuple[Saved | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with those passed over."""
    problems: list[str] = []
    for path in sorted(folder.glob("step-*"), reverse=True):
        found = whole(path)
        if isinstance(found, Saved):
            return found, problems
        problems.append(found)
    return None, problems


def _seal(facts: Mapping[str, Any]) -> str:
    """A checksum of the record itself: a flipped digit of a score is no score."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


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
