"""Entries of the golden record: list, computation, files and comparison.

The name of an entry is a neutral id, the kind of value, and the dtype: `s01.t01/logits/float64`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from golden import compute, names
from golden.compute import CASES, DTYPES, HERE, Workshop

VALUES, TENSORS = "record.json", "record.safetensors"
TOLERANCES = {"float64": 1e-10, "float32": 1e-6, "exact": 0.0}
"""Maximum difference relative to the largest number of a list or tensor; texts, ids and counts must be equal."""
STOP = 2
"""Optimizer step after which a run is stopped."""


def entries() -> list[str]:
    found = []
    for case in CASES:
        found += [f"{case}/{kind}/{dtype}" for dtype in reversed(DTYPES) for kind in kinds(case)]
        found += [f"{case}/export/exact"] * (case not in names.UNPUBLISHED)
    found += [f"{name}/training/float64" for name in (*names.RUNS, *names.STOPPED)]
    found += [f"{name}/logits/{dtype}" for name in names.VARIANTS for dtype in DTYPES]
    return [*found, "presets/parameters/exact"]


def kinds(case: str) -> tuple[str, ...]:
    task = case.split(".")[1]
    if task in names.OFFERED:
        return "training", "logits", "sequences", "prediction"
    return "training", "logits", "sequences" if task in names.LENGTH else "prediction"


def value(workshop: Workshop, entry: str, salts: dict[str, int]) -> tuple[Any, Tensor | None]:
    """JSON value of an entry, and its logits if any."""
    name, kind, dtype = entry.split("/")
    if name == "presets":
        return compute.parameter_counts(), None
    if name in names.STOPPED:
        case, more = names.STOPPED[name]
        stopped, whole = (workshop.training(workshop.run(case, dtype, more, stop), dtype, case) for stop in (STOP, 0))
        return {**stopped, "as uninterrupted": stopped == whole}, None
    if kind == "training":
        case, more = names.RUNS.get(name, (name, None))
        return workshop.training(workshop.run(case, dtype, more), dtype, case), None
    if name in names.VARIANTS:
        return compute.logits(compute.variant(name, dtype), names.VARIANTS[name][0], dtype)
    model = workshop.model(name, "float64" if kind == "export" else dtype, salts[name])
    if kind == "logits":
        return compute.logits(model, name, dtype)
    ways = {"sequences": workshop.generated, "prediction": workshop.predictions, "export": workshop.export}
    return ways[kind](name, model), None


def read(folder: Path = HERE) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / VALUES).read_text("utf-8")), load_file(folder / TENSORS)


def write(folder: Path, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write one entry per line in sorted order, for readable diffs between commits."""
    lines = [f"{json.dumps(key)}: {json.dumps(found)}" for key, found in sorted(record["values"].items())]
    rest = {key: found for key, found in record.items() if key != "values"}
    head = json.dumps(rest, indent=1, sort_keys=True).removesuffix("\n}")
    text = head + ',\n "values": {\n' + ",\n".join(lines) + "\n}}\n"
    assert json.loads(text) == record
    (folder / VALUES).write_text(text, encoding="utf-8")
    save_file(dict(sorted(tensors.items())), folder / TENSORS)
    (folder / TENSORS).chmod(0o644)


def gap(expected: Any, found: Any) -> float:
    """Maximum relative difference of two values; infinite if shapes, keys, texts or integers differ."""
    if type(expected) is not type(found):
        return math.inf
    if isinstance(expected, Tensor):
        same = expected.shape == found.shape and expected.dtype == found.dtype
        return gap(expected.tolist(), found.tolist()) if same else math.inf
    if isinstance(expected, dict):
        same = expected.keys() == found.keys()
        return max((gap(expected[key], found[key]) for key in expected), default=0.0) if same else math.inf
    if isinstance(expected, float):
        expected, found = [expected], [found]
    if isinstance(expected, list) and len(expected) == len(found):
        if not all(isinstance(part, float) for part in (*expected, *found)):
            return max(map(gap, expected, found), default=0.0)
        differences = [abs(a - b) for a, b in zip(expected, found, strict=True) if a != b]
        size = max(map(abs, expected), default=0.0)
        finite = size > 0 and all(map(math.isfinite, differences))
        return (max(differences) / size if finite else math.inf) if differences else 0.0
    return 0.0 if expected == found else math.inf
