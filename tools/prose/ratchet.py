"""baseline.json: allowed errors per file and allowed pronoun density per scope, for docstrings and comments."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

PATH = Path(__file__).with_name("baseline.json")


@dataclass
class Baseline:
    errors: dict[str, int] = field(default_factory=dict)
    density: dict[str, float] = field(default_factory=dict)


def load(path: Path = PATH) -> Baseline | None:
    return Baseline(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def save(baseline: Baseline, path: Path = PATH) -> None:
    text = json.dumps({"density": baseline.density, "errors": dict(sorted(baseline.errors.items()))}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def compare(known: Baseline, now: Baseline) -> list[str]:
    """Files with more errors than the baseline allows, and scopes with more pronouns."""
    worse = [
        f"{path}: {count} errors, {known.errors.get(path, 0)} allowed"
        for path, count in sorted(now.errors.items())
        if count > known.errors.get(path, 0)
    ]
    for scope, value in now.density.items():
        limit = known.density.get(scope, 0.0)
        if value > limit:
            worse.append(f"{scope}: {value:.2f} pronouns per 100 words, {limit:.2f} allowed")
    return worse


def lower(known: Baseline | None, now: Baseline) -> Baseline:
    """The smaller of both counts. Files without an entry get none; without a baseline, all current counts are used."""
    if known is None:
        return Baseline({path: count for path, count in now.errors.items() if count}, dict(now.density))
    errors = {path: min(count, now.errors.get(path, 0)) for path, count in known.errors.items()}
    density = {scope: min(value, now.density.get(scope, value)) for scope, value in known.density.items()}
    return Baseline({path: count for path, count in errors.items() if count}, density)


def move(known: Baseline, moves: list[list[str]], root: Path) -> None:
    """Move entries to new paths, for files that were renamed without other changes."""
    for old, new in moves:
        if (root / old).exists() or not (root / new).exists() or new in known.errors:
            raise SystemExit(f"--move {old} {new}: the first file must be gone, the second must exist without an entry")
        known.errors[new] = known.errors.pop(old, 0)


def round_up(value: float) -> float:
    return math.ceil(value * 100) / 100
