"""What a check of data found: how bad, how much, where, and what to do; as plain text and as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

MAX_LOCATIONS = 5
"""places that are named of each finding"""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Location:
    """A line of a file, and what stands there, shortened."""

    path: str
    line: int | None = None
    text: str = ""
    unit: str = ""
    """what the number counts, where it is no line"""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value or name != "unit"}

    def __str__(self) -> str:
        at = f", {self.unit} {self.line}" if self.unit else f":{self.line}"
        where = self.path if self.line is None else f"{self.path}{at}"
        return f"{where}  {self.text}" if self.text else where


@dataclass(frozen=True)
class Finding:
    severity: Severity
    id: str
    """stable name for programs, in snake_case"""
    message: str
    """for people: what there are `count` of"""
    count: int
    fraction: float
    """of the rows of its set; 0 where it is not about rows"""
    locations: tuple[Location, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Lengths:
    """Of every usable sample: (N, sides) words, characters and estimated tokens."""

    words: NDArray[np.int64]
    characters: NDArray[np.int64]
    tokens: NDArray[np.int64]
    max_length: int
    """data.max_length, in tokens; 0 where nothing is too long"""
    outliers: NDArray[np.int64]
    """the numbers of pairs whose sides have very different lengths"""
    names: tuple[str, ...] = ("source", "target")
    """of the sides"""
    unit: str = "pairs"
    """what a sample is called"""


@dataclass(frozen=True)
class Report:
    task: str
    counts: Mapping[str, int]
    """usable samples and files of each set"""
    findings: tuple[Finding, ...]
    lengths: Lengths
    figures: tuple[str, ...] = field(default=())

    def by_severity(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def errors(self) -> list[Finding]:
        """What must be put right before training."""
        return self.by_severity("error")

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "counts": dict(self.counts),
            "errors": len(self.errors),
            "warnings": len(self.by_severity("warning")),
            "findings": [
                {
                    **vars(finding),
                    "fraction": round(finding.fraction, 6),
                    "locations": [p.as_dict() for p in finding.locations],
                }
                for finding in self.findings
            ],
            "lengths": {
                name: dict(zip(_QUANTILES, row, strict=True)) for name, (_, row) in _quantiles(self.lengths).items()
            },
            "figures": list(self.figures),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.task}: " + ", ".join(f"{display_name(name)} {count:,}" for name, count in self.counts.items()),
            "",
        ]
        for severity in SEVERITIES:
            for finding in self.by_severity(severity):
                lines += [*_format_finding(finding), ""]
        if len(self.lengths.words):
            lines += [*_length_table(self.lengths), ""]
        lines += [f"chart: {path}" for path in self.figures]
        many = {severity: len(self.by_severity(severity)) for severity in SEVERITIES}
        found = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in many.items() if count]
        if found and not many["error"]:
            found.insert(0, "no errors")
        return "\n".join([*lines, f"Found {', '.join(found)}." if found else "No problems found."])


def _format_finding(finding: Finding) -> list[str]:
    percent = 100 * finding.fraction
    share = "" if percent > 100 else f" ({percent:.1f} %)" if percent >= 0.05 else " (< 0.05 %)" if percent else ""
    many = f": {finding.count:,}{share}" if finding.count else ""
    lines = [f"{finding.severity:8} {finding.message}{many}"]
    lines += [f"         {place}" for place in finding.locations]
    rest = finding.count - len(finding.locations)
    if finding.locations and rest > 0 and finding.id != "swapped_file":  # one place there is a whole file
        lines.append(f"         … and {rest:,} more")
    return [*lines, f"         → {finding.advice}"] if finding.advice else lines


_QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q99": 0.99, "max": 1.0}


def quantile_title(name: str) -> str:
    """Column title of a quantile in a printed table."""
    return f"{name[1:]} %" if name[0] == "q" else name


def display_name(name: str) -> str:
    """Printed form of a snake_case name."""
    return name.replace("_", " ")


def _quantiles(lengths: Lengths) -> dict[str, tuple[str, list[int]]]:
    """A small histogram and the quantiles of each measure and side."""
    found: dict[str, tuple[str, list[int]]] = {}
    measures = {"words": lengths.words, "characters": lengths.characters, "tokens_estimated": lengths.tokens}
    for measure, values in measures.items():
        for side, name in enumerate(lengths.names if len(values) else ()):
            points = np.quantile(values[:, side], list(_QUANTILES.values()), method="nearest").astype(int).tolist()
            found[f"{name}_{measure}"] = (_histogram(values[:, side], points[4]), points)
    return found


def _histogram(values: NDArray[np.int64], most: int) -> str:
    """Up to the 99th percentile, or one long line would press all others into the first bar."""
    width = most // 16 + 1  # whole numbers in each bar, or some bars would hold more of them than others
    heights = np.bincount(values[values <= most] // width)
    steps = np.ceil(heights / max(heights.max(), 1) * len(BARS)).astype(int)
    return "".join(BARS[step - 1] if step else " " for step in steps)


def _length_table(lengths: Lengths) -> list[str]:
    rows = _quantiles(lengths)
    wide = max(8, *(len(f"{max(row):,}") + 1 for _, row in rows.values()))
    first = max(26, *(len(name) + 1 for name in rows))
    head = f"{'lengths':{first}}{'histogram (≤ 99 %)':18}" + "".join(
        f"{quantile_title(name):>{wide}}" for name in _QUANTILES
    )
    return [
        head,
        *(
            f"{display_name(name):{first}}{bars:18}" + "".join(f"{n:>{wide},}" for n in row)
            for name, (bars, row) in rows.items()
        ),
    ]


def excerpt(text: str, position: int = 0, width: int = 48) -> str:
    """One short line of a text about a place in it; what cannot be seen is written by its number."""
    start = max(0, min(position - width // 3, len(text) - width))
    piece = text[start : start + width]
    seen = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in piece)
    return ("…" if start else "") + seen + ("…" if start + width < len(text) else "")
