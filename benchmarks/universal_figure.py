"""The figure of benchmarks/universal.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DIGITS = ("copy", "reverse", "sorting", "addition")
FACTS = ("facts-1", "facts-2", "facts-3")
LONGEST = {"digits": 20, "facts": 6}
LOOKS = {"plain": "#6b7686", "fixed": "#2b51aa", "halting": "#c8501e"}
SAID = {
    "plain": "Transformer, 4 blocks × 128",
    "fixed": "Universal, 6 steps × 256",
    "halting": "Universal with ACT, up to 8 steps × 256",
}


def figure(out: Path, names: Iterable[str]) -> None:
    """Draw OUT/universal.png: exact match, ACT steps and time, from the tests and timings in OUT."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    tests = {name: json.loads(path.read_text()) for name in names if (path := out / f"{name}.test.json").exists()}
    shown, axes = plt.subplots(2, 3, figsize=(16, 8), layout="constrained", width_ratios=(2.2, 1, 1))
    for place, where in zip(axes[:, 0], ("in_range", "longer"), strict=True):
        _bars(place, tests, where)
    axes[0, 0].legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    _by_facts(axes[0, 1], tests)
    _by_parts(axes[0, 2], tests)
    _by_digits(axes[1, 1], tests)
    _time(axes[1, 2], out)
    for place in axes.flat:
        place.grid(axis="y", alpha=0.25)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
    shown.savefig(out / "universal.png", dpi=130)


def _bars(place: Any, tests: Mapping[str, Any], where: str) -> None:
    tasks = (*DIGITS, *FACTS)
    for number, system in enumerate(LOOKS):
        at = [n + 0.27 * (number - 1) for n in range(len(tasks))]
        found = [tests.get(f"{task}-{system}", {}).get(task, {}) for task in tasks]
        shares = [scores.get(f"exact_match_{where}", float("nan")) for scores in found]
        bars = place.bar(at, shares, 0.25, color=LOOKS[system], label=SAID[system])
        place.bar_label(bars, fmt="{:.0f}", fontsize=7, padding=1)
    title = "Within the training length" if where == "in_range" else "Beyond the training length (up to twice)"
    place.set(title=title, ylabel="exact match, %", ylim=(0, 108), xticks=range(len(tasks)))
    place.set_xticklabels(tasks)


def _by_facts(place: Any, tests: Mapping[str, Any]) -> None:
    """Plot ACT steps per token of stories of the training length by number of supporting facts."""
    lines: dict[str, list[tuple[int, float]]] = {"separate models": [], "joint model": []}
    for number, task in enumerate(FACTS, start=1):
        for label, name in zip(lines, (f"{task}-halting", "facts-halting"), strict=True):
            found = tests.get(name, {}).get(task, {}).get("ponder")
            if found:
                lines[label].append((number, found["read inside"]))
    for (label, points), style in zip(lines.items(), ("o--", "o-"), strict=True):
        if points:
            place.plot(*zip(*points, strict=True), style, color=LOOKS["halting"], label=label)
            place.legend(frameon=False, fontsize=8)
    place.set(title="ACT steps per story token", xlabel="supporting facts", ylabel="average steps", xticks=(1, 2, 3))
    place.set_ylim(0, 1.1 * place.get_ylim()[1])


def _by_parts(place: Any, tests: Mapping[str, Any]) -> None:
    parts = {"support": "#c8501e", "others": "#e3b9a4", "question": "#2b51aa"}
    tasks = [task for task in FACTS if tests.get(f"{task}-halting")]
    for number, (part, colour) in enumerate(parts.items()):
        steps = [tests[f"{task}-halting"][task]["ponder"].get(f"{part} inside", 0.0) for task in tasks]
        said = {"support": "supporting sentences", "others": "other sentences", "question": "question"}[part]
        place.bar([n + 0.27 * (number - 1) for n in range(len(tasks))], steps, 0.25, color=colour, label=said)
    place.set(title="ACT steps by part of a story", ylabel="average steps", xticks=range(len(tasks)))
    place.set_xticklabels(tasks)
    if tasks:
        place.set_ylim(0, 1.3 * place.get_ylim()[1])  # room for the legend
        place.legend(frameon=False, fontsize=8)


def _by_digits(place: Any, tests: Mapping[str, Any]) -> None:
    for number, task in enumerate(DIGITS):
        found = tests.get(f"{task}-halting", {}).get(task, {}).get("ponder", {})
        for side, style in (("read", "-"), ("said", ":")):
            points = sorted(
                (int(key.split()[2]), value) for key, value in found.items() if key.startswith(f"{side} of ")
            )
            if points:
                place.plot(
                    *zip(*points, strict=True), style, color=f"C{number}", label=task if side == "read" else None
                )
    place.axvline(LONGEST["digits"] + 0.5, color="#6b7686", lw=0.8)
    place.set(
        title="ACT steps per token (dotted: target)", xlabel="digits (line: training length)", ylabel="average steps"
    )
    place.set_ylim(0, 1.1 * place.get_ylim()[1])
    if place.get_legend_handles_labels()[0]:
        place.legend(frameon=False, fontsize=8)


def _time(place: Any, out: Path) -> None:
    paces = {system: path for system in LOOKS if (path := out / "alone" / f"{system}.json").exists()}
    seconds = [json.loads(path.read_text())["seconds_per_1000"] for path in paces.values()]
    bars = place.bar(range(len(paces)), seconds, 0.6, color=[LOOKS[system] for system in paces])
    place.bar_label(bars, fmt="{:.1f}", fontsize=8, padding=1)
    place.set(title="Training time", ylabel="seconds per 1,000 steps", xticks=range(len(paces)))
    place.set_xticklabels(list(paces))
