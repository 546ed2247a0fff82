"""Saved state: ours, pickle-free, whole or not at all.

A checkpoint is a folder of `state.safetensors` (weights, optimiser, averages) and `state.json` (step, scores, versions,
a checksum). It is written aside, flushed to the disk, then renamed; one that is partial or damaged is never chosen.
"""

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
from regard.files import flush
from regard.weights.tables import read_file, write_file


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
    final = folder / _name(step)
    aside, replaced = folder / f".writing-{step:08d}", folder / f".replaced-{step:08d}"
    flat = {f"{group}:{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    _check_space(folder, sum(t.numel() * t.element_size() for t in flat.values()))
    tidy(folder)
    aside.mkdir(parents=True)
    try:
        write_file(aside / "state.safetensors", flat)
        record = {"step": step, "checksum": checksum(aside / "state.safetensors"), **facts}
        (aside / "state.json").write_text(json.dumps({**record, "seal": _seal(record)}, indent=1), encoding="utf-8")
        flush(aside / "state.json")
        flush(aside)
    except (OSError, WeightsError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise RunError(f"{final}: the checkpoint could not be written ({error}). Earlier ones are untouched.") from (
            error if isinstance(error, OSError) else error.__cause__
        )
    if final.exists():  # there is a whole one at every moment
        final.rename(replaced)
    aside.rename(final)
    flush(folder)
    tidy(folder)
    prune(folder, step, keep, regular)
    return final


def tidy(folder: Path) -> None:
    """Remove what a save left that was cut off."""
    for left in (*folder.glob(".writing-*"), *folder.glob(".replaced-*")):
        shutil.rmtree(left, ignore_errors=True)


def prune(folder: Path, step: int, keep: int, regular: Callable[[int], bool]) -> None:
    """Remove what is older than `step`, but for so many of the `regular` steps that there are `keep` with it."""
    # a later one can only be damaged: it was passed over, and must not count among those that are kept
    older = [number for number in _numbers(folder) if number < step]
    room = keep - regular(step)
    kept = [number for number in older if regular(number)][-room:] if room > 0 else []
    if not kept and not regular(step) and keep > 1:
        kept = older[-1:]  # before the first regular one, too, there are two
    for number in older:
        if number not in kept:
            shutil.rmtree(folder / _name(number))


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _numbers(folder: Path) -> list[int]:
    """The steps that there are checkpoints of. A copy that somebody made, under another name, is none of ours."""
    named = (re.fullmatch(r"step-(\d{8,})", path.name) for path in folder.glob("step-*"))
    return sorted(int(found[1]) for found in named if found)


def mean_weights(folder: Path, steps: Sequence[int]) -> dict[str, Tensor] | None:
    """The mean of the weights (of their averages, where those are kept) after these steps; None if one is not whole."""
    mean: dict[str, Tensor] = {}
    for step in steps:
        saved = whole(folder / _name(step))
        if isinstance(saved, str):
            return None
        groups = saved.tensors()
        weights = groups.get("average") or {
            name if name.startswith("head.") else f"body.{name}": tensor for name, tensor in groups["model"].items()
        }
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
    for number in _numbers(folder)[::-1]:
        found = whole(folder / _name(number))
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


def _check_space(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed * 1.05 + 2**20:
        raise RunError(
            f"{folder}: a checkpoint needs {needed / 2**20:.1f} MiB and {free / 2**20:.1f} MiB are free. Nothing was "
            "written; earlier checkpoints are untouched."
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
