"""What is said of samples that are files, of pictures as of clouds: how large they are, and the classes of their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check.class_counts import ClassCounts, ClassReport
from regard.data.check.findings import Finding, display_name, quantile_title
from regard.data.check.labeled import MAX_CLASSES as MAX_COUNTED_CLASSES
from regard.data.check.labeled import class_findings, unknown_class_findings
from regard.data.check.pairs import LEAK_ADVICE, LeakSpecs, named_splits
from regard.data.images.masks import ClassMap

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "q99": 0.99, "max": 1.0}
MAX_CLASSES = 12
"""classes that are named"""


def leak_specs(unit: str) -> LeakSpecs:
    return (
        ("leak", f"{unit} also present in the training data", "error", LEAK_ADVICE),
        (
            "leak_conflicting_labels", f"{unit} also present in the training data, with different labels", "warning",
            "Check which labels are correct.",
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class SizedReport(ClassReport):
    """Also how large samples are."""

    measurements: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """sizes of all of them, by what they are called"""
    size_title: str = ""
    """what stands above them"""

    def size_quantiles(self) -> dict[str, dict[str, float]]:
        shares = list(QUANTILES.values())
        return {
            name: dict(zip(QUANTILES, np.quantile(row, shares, method="nearest").tolist(), strict=True))
            for name, row in self.measurements.items()
            if len(row)
        }

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "sizes": self.size_quantiles()}

    def __str__(self) -> str:
        text, rows = super().__str__(), self.size_quantiles()
        if not rows:
            return text
        shown = "".join(f"{quantile_title(name):>11}" for name in QUANTILES)
        table = [
            f"{self.size_title:26}{shown}",
            *(
                f"{display_name(name):26}" + "".join(f"{_format_number(n):>11}" for n in row.values())
                for name, row in rows.items()
            ),
        ]
        head, cut, rest = text.rpartition("\n\n")  # the verdict is read last
        return "\n".join([head, "", *table, "", rest]) if cut else "\n".join([text, "", *table])


def _format_number(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:.4g}"


def part_class_findings(
    prefix: str, unit: str, sample_unit: str, part_counts: Mapping[int, int], known_classes: ClassMap
) -> Iterable[Finding]:
    """How many of the parts of samples (pixels, points) each class has; `unit` is what has them, of which one is a `kind`."""
    total = sum(part_counts.values())
    if not total or not known_classes.names:
        return
    counts = {label: part_counts[value] for label, value in zip(known_classes.names, known_classes.values, strict=True)}
    most = dict(sorted(counts.items(), key=lambda item: -item[1]))
    shares = ", ".join(
        f"{label[:24]}: {100 * count / total:.1f} %" for label, count in list(most.items())[:MAX_CLASSES]
    )
    more = ", …" if len(most) > MAX_CLASSES else ""
    yield Finding("note", "classes", f"{prefix}classes ({shares}{more})", len(counts), 0.0)
    if sum(count > 0 for count in counts.values()) < 2:
        what, advice = f"{prefix}too few classes in the {unit}", "Segmentation needs at least two classes."
        yield Finding("error", "single_class", what, 1, 0.0, (), advice)
    absent = [label for label, count in counts.items() if not count]
    if absent:
        listed = ", ".join([*absent[:MAX_CLASSES], *["…"] * (len(absent) > MAX_CLASSES)])
        what = f"{prefix}classes without samples: no {sample_unit} contains {listed}"
        advice = f"These classes cannot be {'evaluated' if prefix else 'trained'}."
        yield Finding("warning", "classes_without_samples", what, len(absent), 0.0, (), advice)


def void_finding(message: str, fraction: float) -> Finding:
    advice = "Training ignores this part of the data." if fraction > 0.5 else ""
    return Finding(
        "warning" if fraction > 0.5 else "note", "void", f"{message}: {100 * fraction:.1f} %", 0, fraction, (), advice
    )


def class_summary(train: Any, valid: Any) -> tuple[list[Finding], tuple[ClassCounts, ...]]:
    """What is said of the classes of samples, by surveys that have counted them: as of texts."""
    findings = [
        finding for name, survey in named_splits(train, valid) for finding in class_findings(name, "classify", survey)
    ]
    findings += unknown_class_findings("classify", train, valid)
    spreads = (
        (ClassCounts("classes", train.classes, valid.classes),) if 1 < len(train.classes) <= MAX_COUNTED_CLASSES else ()
    )
    return findings, spreads
