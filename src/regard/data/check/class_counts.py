"""How often each class occurs, in training and in validation: as text, as plain values, and ready to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.data.check.findings import Report, display_name

MAX_ROWS = 20
"""classes that are shown, the most frequent first"""
BAR_WIDTH = 24
"""letters of the longest bar, and of a name"""
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class ClassCounts:
    """Counts of what can be told apart; those of validation are nothing where there is none."""

    name: str
    """snake_case name of the counted units, such as entities_by_type"""
    train: Mapping[str, int]
    valid: Mapping[str, int] = field(default_factory=dict)

    def rows(self) -> list[tuple[str, int, float, int, float]]:
        """Of each class: how often it is trained on and its share, how often it is validated on and its share."""
        names = sorted({**self.train, **self.valid}, key=lambda name: (-self.train.get(name, 0), name))
        sums = max(sum(self.train.values()), 1), max(sum(self.valid.values()), 1)
        found = []
        for name in names:
            here, there = self.train.get(name, 0), self.valid.get(name, 0)
            found.append((name, here, here / sums[0], there, there / sums[1]))
        return found

    def lines(self) -> list[str]:
        rows = self.rows()
        most = max((row[2] for row in rows), default=0.0) or 1.0
        head = f"{display_name(self.name):26}{'':{BAR_WIDTH + 1}}{'training':>10}{'percent':>9}"
        lines = [head + (f"{'validation':>12}{'percent':>9}" if self.valid else "")]
        for name, here, share, there, its in rows[:MAX_ROWS]:
            behind = f"{there:>12,}{format_percent(its):>9}" if self.valid else ""
            lines.append(
                f"{truncate_name(name):26}{format_bar(share / most):{BAR_WIDTH + 1}}{here:>10,}"
                f"{format_percent(share):>9}{behind}"
            )
        if len(rows) > MAX_ROWS:
            rest = rows[MAX_ROWS:]
            behind = (
                f"{sum(row[3] for row in rest):>12,}{100 * sum(row[4] for row in rest):>7.1f} %" if self.valid else ""
            )
            here, share = sum(row[1] for row in rest), sum(row[2] for row in rest)
            lines.append(f"{f'… {len(rest):,} others':26}{'':{BAR_WIDTH + 1}}{here:>10,}{100 * share:>7.1f} %{behind}")
        return lines


def truncate_name(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "�" for letter in name)
    return shown if len(shown) <= BAR_WIDTH else shown[: BAR_WIDTH - 1] + "…"


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 or not fraction else "< 0.05 %"


def format_bar(fraction: float) -> str:
    """So much of the widest, in eighths of a letter; whatever occurs is seen."""
    eighths = max(round(fraction * BAR_WIDTH * 8), int(fraction > 0))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


@dataclass(frozen=True)
class ClassReport(Report):
    """A report on data that has classes: also how these are spread."""

    class_counts: tuple[ClassCounts, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        told = {
            spread.name: {"training": dict(spread.train), "validation": dict(spread.valid)}
            for spread in self.class_counts
        }
        return {**super().as_dict(), "class_counts": told}

    def __str__(self) -> str:
        text = super().__str__()
        tables = "\n".join(line for spread in self.class_counts for line in (*spread.lines(), ""))
        if not tables:
            return text
        # before the charts and the verdict, which are read last
        head, cut, rest = text.rpartition("\n\n")
        return f"{head}\n\n{tables}\n{rest}" if cut else f"{text}\n\n{tables}"
