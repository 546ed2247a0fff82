"""What is said of samples that are files, of pictures as of clouds: how large they are, and the classes of their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check.class_counts import ClassReport, Spread
from regard.data.check.findings import Finding
from regard.data.check.labeled import SPREAD, classes, unknown
from regard.data.check.pairs import Leaks, named
from regard.data.images.masks import Classes

POINTS = {"least": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q99": 0.99, "most": 1.0}
SHOWN = 12
"""classes that are named"""


def leaks_of(unit: str) -> Leaks:
    return (
        ("leak", f"{unit} that are also trained on", "error", "Remove them from one of the two: the score would be too good."),
        ("leak_answer", f"{unit} that are also trained on, with another answer", "warning", "See which is right."),
    )  # fmt: skip


@dataclass(frozen=True)
class SizedReport(ClassReport):
    """Also how large samples are."""

    measured: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """sizes of all of them, by what they are called"""
    measure: str = ""
    """what stands above them"""

    def sizes(self) -> dict[str, dict[str, float]]:
        shares = list(POINTS.values())
        return {
            name: dict(zip(POINTS, np.quantile(row, shares, method="nearest").tolist(), strict=True))
            for name, row in self.measured.items()
            if len(row)
        }

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "sizes": self.sizes()}

    def __str__(self) -> str:
        text, rows = super().__str__(), self.sizes()
        if not rows:
            return text
        shown = "".join(f"{name[1:] + ' %' if name[0] == 'q' else name:>11}" for name in POINTS)
        table = [
            f"{self.measure:26}{shown}",
            *(f"{name:26}" + "".join(f"{_short(n):>11}" for n in row.values()) for name, row in rows.items()),
        ]
        head, cut, rest = text.rpartition("\n\n")  # the verdict is read last
        return "\n".join([head, "", *table, "", rest]) if cut else "\n".join([text, "", *table])


def _short(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def parts(name: str, unit: str, kind: str, many: Mapping[int, int], there: Classes) -> Iterable[Finding]:
    """How many of the parts of samples (pixels, points) each class has; `unit` is what has them, of which one is a `kind`."""
    total = sum(many.values())
    if not total or not there.names:
        return
    counts = {label: many[value] for label, value in zip(there.names, there.values, strict=True)}
    most = dict(sorted(counts.items(), key=lambda item: -item[1]))
    shares = ", ".join(f"{label[:24]}: {100 * count / total:.1f} %" for label, count in list(most.items())[:SHOWN])
    more = ", …" if len(most) > SHOWN else ""
    yield Finding("note", "classes", f"{name}classes ({shares}{more})", len(counts), 0.0)
    if sum(count > 0 for count in counts.values()) < 2:
        what = f"{name}{unit} have one class only"
        yield Finding("error", "one_class", what, 1, 0.0, (), "Nothing can be told apart.")
    absent = [label for label, count in counts.items() if not count]
    if absent:
        what = (
            f"{name}classes that occur in no {kind} ({', '.join(absent[:SHOWN])}{', …' if len(absent) > SHOWN else ''})"
        )
        advice = "Nothing can be learnt of them." if not name else "Nothing is said about how well they are found."
        yield Finding("warning", "absent", what, len(absent), 0.0, (), advice)


def void_share(what: str, share: float) -> Finding:
    advice = "Nothing is learnt there." if share > 0.5 else ""
    return Finding("warning" if share > 0.5 else "note", "void", f"{what}: {100 * share:.1f} %", 0, share, (), advice)


def classed(train: Any, held: Any) -> tuple[list[Finding], tuple[Spread, ...]]:
    """What is said of the classes of samples, by surveys that have counted them: as of texts."""
    findings = [finding for name, survey in named(train, held) for finding in classes(name, "classify", survey)]
    findings += unknown("classify", train, held)
    spreads = (Spread("classes", train.classes, held.classes),) if 1 < len(train.classes) <= SPREAD else ()
    return findings, spreads
