"""What is said of samples that are files, of pictures as of clouds: how large they are, and the classes of their parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from regard.data.check.labeled import MAX_CLASSES as MAX_COUNTED_CLASSES
from regard.data.check.labeled import class_findings, unknown_class_findings
from regard.data.check.pairs import LEAK_ADVICE, LeakSpecs, named_splits
from regard.data.check.report import ClassCounts, Finding
from regard.data.images.masks import ClassMap

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
