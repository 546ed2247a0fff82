"""Report of a data check: findings, lengths, class counts and sizes, as text and as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.errors import name_places

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

MAX_LOCATIONS = 5  # maximum number of locations per finding
MAX_CLASS_ROWS = 20  # maximum number of classes in a printed table, most frequent first
BAR_WIDTH = 24  # maximum number of characters of a bar and of a class name
HISTOGRAM_BARS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Location:
    """A line of a file with a short preview."""

    path: str
    line: int | None = None
    text: str = ""
    unit: str = ""  # what `line` counts if not lines

    def as_dict(self) -> dict[str, Any]:
        known = {name: value for name, value in vars(self).items() if value or name != "unit"}
        return {**known, "path": name_places(self.path)}

    def __str__(self) -> str:
        position = f", {self.unit} {self.line}" if self.unit else f":{self.line}"
        place = self.path if self.line is None else f"{self.path}{position}"
        return name_places(f"{place}  {self.text}" if self.text else place)


@dataclass(frozen=True)
class Finding:
    severity: Severity
    id: str  # stable name for programs, in snake_case
    message: str
    count: int
    fraction: float  # fraction of the rows of the split; 0 for findings about files
    locations: tuple[Location, ...] = ()
    advice: str = ""

    def lines(self) -> list[str]:
        """Printed lines: message, locations, advice."""
        percent = 100 * self.fraction
        share = "" if percent > 100 else f" ({percent:.1f} %)" if percent >= 0.05 else " (< 0.05 %)" if percent else ""
        lines = [f"{self.severity:8} {self.message}" + (f": {self.count:,}{share}" if self.count else "")]
        lines += [f"         {location}" for location in self.locations]
        hidden = self.count - len(self.locations)
        if self.locations and hidden > 0 and self.id != "swapped_file":  # its one location is a whole file
            lines.append(f"         … and {hidden:,} more")
        return [*lines, f"         → {self.advice}"] if self.advice else lines


@dataclass(frozen=True)
class Lengths:
    """(N, sides) words, characters and estimated tokens of the usable samples."""

    words: NDArray[np.int64]
    characters: NDArray[np.int64]
    tokens: NDArray[np.int64]
    max_length: int  # data.max_length in tokens; 0 without a limit
    outliers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """indices of pairs with very different lengths of the two sides"""
    names: tuple[str, ...] = ("source", "target")  # names of the sides
    unit: str = "pairs"  # plural noun for the samples

    def measurements(self) -> dict[str, NDArray[np.int64]]:
        """Column of each side and measure by name; empty without samples."""
        measures = {"words": self.words, "characters": self.characters, "tokens_estimated": self.tokens}
        return {
            f"{name}_{measure}": values[:, side]
            for measure, values in measures.items()
            for side, name in enumerate(self.names if len(values) else ())
        }


def quantiles(measurements: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, float]]:
    """Quantiles of each column that is not empty."""
    points = list(QUANTILES.values())
    return {
        name: dict(zip(QUANTILES, np.quantile(values, points, method="nearest").tolist(), strict=True))
        for name, values in measurements.items()
        if len(values)
    }


def _quantile_lines(title: str, measurements: Mapping[str, NDArray[Any]], histograms: bool = False) -> list[str]:
    """Printed table of quantiles, with histograms if wanted."""
    rows = {
        name: [f"{n:,}" if isinstance(n, int) else f"{n:.4g}" for n in points.values()]
        for name, points in quantiles(measurements).items()
    }
    width, name_width = 11, 26
    if histograms:
        width = max(8, *(len(number) + 1 for numbers in rows.values() for number in numbers))
        name_width = max(26, *(len(name) + 1 for name in rows))
    titles = "".join(f"{f'{name[1:]} %' if name[0] == 'q' else name:>{width}}" for name in QUANTILES)
    lines = [f"{title:{name_width}}{'histogram (≤ 99 %)' if histograms else ''}{titles}"]
    for name, numbers in rows.items():
        bars = f"{_histogram(measurements[name]):18}" if histograms else ""
        lines.append(f"{display_name(name):{name_width}}{bars}" + "".join(f"{number:>{width}}" for number in numbers))
    return lines


def _histogram(values: NDArray[np.int64]) -> str:
    """Bars for the values up to the 99th percentile: a single long sample would squeeze all others into one bar."""
    largest = int(np.quantile(values, QUANTILES["q99"], method="nearest"))
    width = largest // 16 + 1  # an integer, so that all bars cover equally many values
    heights = np.bincount(values[values <= largest] // width)
    steps = np.ceil(heights / max(heights.max(), 1) * len(HISTOGRAM_BARS)).astype(int)
    return "".join(HISTOGRAM_BARS[step - 1] if step else " " for step in steps)


@dataclass(frozen=True)
class ClassCounts:
    """Class frequencies of the training and validation data; `valid` is empty without validation data."""

    name: str  # snake_case name of the counted units, such as entities_by_type
    train: Mapping[str, int]
    valid: Mapping[str, int] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, int, float, int, float]]:
        """Class, training count and fraction, validation count and fraction."""
        names = sorted({**self.train, **self.valid}, key=lambda name: (-self.train.get(name, 0), name))
        train_total, valid_total = max(sum(self.train.values()), 1), max(sum(self.valid.values()), 1)
        counts = [(name, self.train.get(name, 0), self.valid.get(name, 0)) for name in names]
        return [(name, train, train / train_total, valid, valid / valid_total) for name, train, valid in counts]

    def lines(self) -> list[str]:
        """Printed table with one bar per class."""
        rows: list[tuple[Any, ...]] = [*self.rows()]
        largest = max((row[2] for row in rows), default=0.0) or 1.0
        head = f"{display_name(self.name):26}{'':{BAR_WIDTH + 1}}{'training':>10}{'percent':>9}"
        lines = [head + (f"{'validation':>12}{'percent':>9}" if self.valid else "")]
        if rest := rows[MAX_CLASS_ROWS:]:
            _, *columns = zip(*rest, strict=True)
            rows[MAX_CLASS_ROWS:] = [(f"… {len(rest):,} others", *map(sum, columns))]
        for place, (name, train, train_share, valid, valid_share) in enumerate(rows):
            eighths = max(round(train_share / largest * BAR_WIDTH * 8), int(train_share > 0))
            eighths *= place < MAX_CLASS_ROWS  # no bar for the other classes
            bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
            shown = "".join(letter if letter.isprintable() else "�" for letter in name)
            shown = shown if len(shown) <= BAR_WIDTH else shown[: BAR_WIDTH - 1] + "…"
            line = f"{shown:26}{bar:{BAR_WIDTH + 1}}{train:>10,}{format_percent(train_share):>9}"
            lines.append(line + (f"{valid:>12,}{format_percent(valid_share):>9}" if self.valid else ""))
        return lines


@dataclass(frozen=True)
class Report:
    task: str
    counts: Mapping[str, int]  # usable samples and files of each split
    findings: tuple[Finding, ...]
    lengths: Lengths
    figures: tuple[str, ...] = ()
    class_counts: tuple[ClassCounts, ...] | None = None  # None for data without classes
    measurements: Mapping[str, NDArray[Any]] | None = None  # sizes of the samples by name; None without sizes
    size_title: str = ""  # title of the table of sizes

    def by_severity(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == severity]

    @property
    def errors(self) -> list[Finding]:
        """Findings to fix before training."""
        return self.by_severity("error")

    def as_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "task": self.task,
            "counts": dict(self.counts),
            "errors": len(self.errors),
            "warnings": len(self.by_severity("warning")),
            "findings": [
                {
                    **vars(finding),
                    "fraction": round(finding.fraction, 6),
                    "locations": [location.as_dict() for location in finding.locations],
                }
                for finding in self.findings
            ],
            "lengths": quantiles(self.lengths.measurements()),
            "figures": list(self.figures),
        }
        if self.class_counts is not None:
            values["class_counts"] = {
                counts.name: {"training": dict(counts.train), "validation": dict(counts.valid)}
                for counts in self.class_counts
            }
        if self.measurements is not None:
            values["sizes"] = quantiles(self.measurements)
        return values

    def __str__(self) -> str:
        counts = ", ".join(f"{display_name(name)} {count:,}" for name, count in self.counts.items())
        lines = [f"{self.task}: {counts}", ""]
        for severity in SEVERITIES:
            for finding in self.by_severity(severity):
                lines += [*finding.lines(), ""]
        if len(self.lengths.words):
            lines += [*_quantile_lines("lengths", self.lengths.measurements(), histograms=True), ""]
        for class_counts in self.class_counts or ():
            lines += [*class_counts.lines(), ""]
        if any(len(values) for values in (self.measurements or {}).values()):
            lines += [*_quantile_lines(self.size_title, self.measurements or {}), ""]
        lines += [f"chart: {path}" for path in self.figures]
        totals = {severity: len(self.by_severity(severity)) for severity in SEVERITIES}
        summary = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in totals.items() if count]
        if summary and not totals["error"]:
            summary.insert(0, "no errors")
        return "\n".join([*lines, f"Found {', '.join(summary)}." if summary else "No problems found."])


def display_name(name: str) -> str:
    """Printed form of a snake_case name."""
    return name.replace("_", " ")


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 or not fraction else "< 0.05 %"


def excerpt(text: str, position: int = 0, width: int = 48) -> str:
    """At most `width` characters of a text around a position; unprintable characters as escape sequences."""
    start = max(0, min(position - width // 3, len(text) - width))
    piece = text[start : start + width]
    shown = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in piece)
    return ("…" if start else "") + shown + ("…" if start + width < len(text) else "")
