"""What is wrong with point clouds and what belongs to them, before an hour is lost on them. Every file is read.

What must be put right is an error: training would stop at it, or learn from it what nobody wants. "Much" is more than a tenth
of the clouds.

| finding                   | what it is                                                    | error   | warning | note   |
|---------------------------|---------------------------------------------------------------|---------|---------|--------|
| unreadable                | a table or a folder that cannot be read to its end            | always  |         |        |
| encoding, format, header  | as in any table                                               | always  |         |        |
| missing                   | rows that name a file that is not there                       | always  |         |        |
| decode_error              | files that cannot be read: cut off, no clouds, without points | always  |         |        |
| empty                     | rows without a cloud or a class, clouds outside the folders   | if much | else    |        |
| skipped                   | hidden files, and those that are no clouds by their names     |         |         | always |
| few_points                | fewer than 64 points                                          | if much | else    |        |
| many_points               | more than five million points                                 |         | always  |        |
| non_finite                | clouds with points that are NaN or infinite                   |         | always  |        |
| outliers                  | point clouds with points ten times as far off as the others   |         | always  |        |
| single_location           | all points at one position                                    | if much | else    |        |
| collinear                 | all points on one line                                        | if much | else    |        |
| coplanar                  | all points in one plane                                       |         | always  |        |
| scale_outliers            | clouds thirty times as large or as small as usual             |         | always  |        |
| partial_colors            | only some point clouds have colors                            |         | always  |        |
| partial_normals           | only some point clouds have normals                           |         | always  |        |
| few                       | clouds                                                        | < 2     | < 100   |        |
| classes, single_class     | as of texts                                                   | so      | so      | so     |
| too_many_classes, rare    | as of texts                                                   | so      | so      | so     |
| imbalance, unseen_classes | as of texts                                                   | so      | so      | so     |
| duplicates                | the same points, in whatever order and file                   |         | always  |        |
| conflicting_labels        | the same points with another class, or other labels           | if much | else    |        |
| leak                      | the same in the validation set                                | always  |         |        |
| leak_conflicting_labels   | the same points there with another answer                     |         | always  |        |
| unlabeled                 | clouds whose points have no labels, or none that is a class   | always  |         |        |
| unknown_values            | labels that no class has                                      | always  |         |        |
| void                      | share of the points that is not learnt                        |         | > half  | else   |
| classes_without_samples   | classes that no cloud has                                     |         | always  |        |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from regard.data.check.files import class_summary, leak_specs, part_class_findings, void_finding
from regard.data.check.labeled import duplicate_findings, format_counts, sample_count_findings
from regard.data.check.pair_survey import ProgressCallback, no_progress
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    FindingSpecs,
    leak_findings,
    named_splits,
    sample_finding,
    split_counts,
    tally_findings,
)
from regard.data.check.point_cloud_survey import CloudSurvey
from regard.data.check.report import MAX_LOCATIONS, ClassCounts, Finding, Lengths, Report
from regard.data.images.masks import VOID, ClassMap
from regard.data.points.columns import find_cloud_classes, infer_cloud_classes
from regard.data.points.labeled import read_clouds, read_labeled_clouds
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns
from regard.data.synthetic.point_clouds import parse_cloud_recipe

Columns = Mapping[str, str] | None

MAX_SCALE_RATIO = 30.0
"""times larger or smaller than usual, from which on a cloud has another unit"""

CLOUD_FINDINGS: FindingSpecs = {
    **{kind: COMMON_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "missing": ("rows with a missing file", "Fix the paths: training rejects the table.", "error", False),
    "decode_error": ("unreadable files", "Repair or remove the files: training would stop there.", "error", False),
    "unlabeled": (
        "point clouds without point labels", "Select the label column with --columns label=NAME, or remove the files.",
        "error", False,
    ),
    "unknown_values": (
        "point clouds with labels not assigned to a class",
        "Add the labels to classes.txt next to the point clouds, for example as void.", "error", False,
    ),
    "empty": ("point clouds or rows with missing data", "Training skips these files and rows.", "warning", True),
    "skipped": (
        "hidden files, and files without a point cloud extension", "Training ignores these files.", "note", False,
    ),
    "few_points": (
        "point clouds with fewer than 64 points", "Remove the files: few points do not show a shape.", "warning", True,
    ),
    "many_points": (
        "point clouds with more than 5 million points",
        "Reading takes seconds per file in every epoch: downsample the files once.", "warning", False,
    ),
    "non_finite": ("point clouds with NaN or infinite coordinates", "Training ignores these points.", "warning", False),
    "outliers": (
        "point clouds with outliers",
        "Check whether the outliers are intended: with data.point_norm=unit_sphere, outliers shrink all other points.",
        "warning", False,
    ),
    "single_location": (
        "point clouds with all points at one position", "Remove the files: a position has no shape.", "warning", True,
    ),
    "collinear": ("point clouds with all points on one line", "Are the coordinate columns correct?", "warning", True),
    "coplanar": ("point clouds with all points in one plane", "Are the coordinate columns correct?", "warning", False),
}  # fmt: skip


def check_clouds(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at clouds and their classes, and at those of validation against them."""
    train, held = (CloudSurvey(entries, columns, read_clouds, False) for entries in _entries(data, valid))
    findings = _common_findings(train, held, progress)
    more, spreads = class_summary(train, held)
    return _report("classify", train, held, [*findings, *more], spreads, len(train.classes))


def check_labeled_clouds(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at clouds and the labels of their points."""
    entries, judged = _entries(data, valid)
    known = find_cloud_classes(entries) or find_cloud_classes(judged)
    train, held = (CloudSurvey(some, columns, read_labeled_clouds, True, known) for some in (entries, judged))
    findings = _common_findings(train, held, progress)
    said = known or train.file_classes or held.file_classes
    there = said or _infer_classes(train, findings)
    for name, survey in named_splits(train, held):
        findings += _label_findings(name, survey, there)
    if said is None and there.names and held.entries:
        strange = {
            str(value): held.label_counts[value]
            for value in there.unknown_values(v for v in held.label_counts if v >= 0)
        }
        if strange:
            what = f"validation: labels absent from the training data (points: {format_counts(strange)})"
            advice = "Add point clouds with these labels to the training data, or name the classes in classes.txt."
            findings.append(Finding("error", "unseen_classes", what, len(strange), 0.0, (), advice))
    counts = [
        {name: survey.label_counts[value] for name, value in zip(there.names, there.values, strict=True)}
        for survey in (train, held)
    ]
    spreads = (ClassCounts("points_by_class", counts[0], counts[1] if held.entries else {}),) if there.names else ()
    return _report("segment", train, held, findings, spreads, len(there.names))


def _entries(data: Sequence[str], valid: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is looked at; sets that are made bring their own validation."""
    entries, judged = expand_patterns(data), expand_patterns(valid)
    recipes = [parse_cloud_recipe(entry) for entry in entries]
    if not judged and entries and all(recipes):
        judged = [str(recipe.for_split("valid")) for recipe in recipes if recipe is not None]
    return entries, judged


def _common_findings(train: CloudSurvey, held: CloudSurvey, advance: ProgressCallback) -> list[Finding]:
    """What is said of clouds whatever belongs to them."""
    train.read(advance, "training point clouds")
    held.read(advance, "validation point clouds")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, CLOUD_FINDINGS)
        findings += [*_scale_findings(name, survey, train), *_attribute_findings(name, survey)]
        findings += sample_count_findings(name, "point clouds", survey, bool(held.entries))
        findings += duplicate_findings(name, "point clouds", survey)
    return [*findings, *leak_findings(train, held, leak_specs("point clouds"))]


def _scale_findings(prefix: str, survey: CloudSurvey, train: CloudSurvey) -> Iterable[Finding]:
    """Clouds whose size is in another unit, it seems, than most that are trained on."""
    usual = train.extents[train.extents > 0]
    if not len(usual) or not len(survey):
        return
    middle = float(np.median(usual))
    sizes = survey.extents
    odd = np.flatnonzero((sizes > MAX_SCALE_RATIO * middle) | ((sizes < middle / MAX_SCALE_RATIO) & (sizes > 0)))
    if len(odd):
        said = {int(n): f"longest side {sizes[n]:.4g}" for n in odd[:MAX_LOCATIONS]}
        what = f"{prefix}point clouds {MAX_SCALE_RATIO:g} times larger or smaller than the median size {middle:.4g}"
        advice = (
            "Do all files use the same unit, such as meters or millimeters? "
            "data.point_norm=unit_sphere scales all point clouds to one size."
        )
        yield sample_finding(survey, odd, said, "warning", "scale_outliers", what, advice)


def _attribute_findings(prefix: str, survey: CloudSurvey) -> Iterable[Finding]:
    for name, value in (("colors", "zero (black)"), ("normals", "zero")):
        some = survey.attribute_counts[name]
        if 0 < some < len(survey):
            what = f"{prefix}only some point clouds have {name}"
            advice = f"For a model with {name} as input, the {name} of all other point clouds are {value}."
            yield Finding("warning", f"partial_{name}", what, some, some / max(survey.rows, 1), (), advice)


def _report(
    task: str, train: CloudSurvey, held: CloudSurvey, findings: Iterable[Finding], spreads: tuple[ClassCounts, ...],
    many: int,
) -> Report:  # fmt: skip
    def count(survey: CloudSurvey) -> dict[str, int]:
        said = {"classes": many} if many and survey is train else {}
        return {"point_clouds": len(survey), "entries": len(survey.entries), **said}

    none = np.zeros((0, 1), dtype=np.int64)
    lengths = Lengths(none, none, none, 0, np.zeros(0, dtype=np.int64), ("point cloud",), "point clouds")
    return Report(
        task, split_counts(train, held, count), tuple(findings), lengths, class_counts=spreads,
        measurements={"points": train.point_totals, "longest_side": train.extents}, size_title="point clouds",
    )  # fmt: skip


def _infer_classes(survey: CloudSurvey, findings: list[Finding]) -> ClassMap:
    """The classes that labels show by themselves."""
    there = [value for value in survey.label_counts if value >= 0]
    if len(there) <= VOID:
        return infer_cloud_classes(there)
    what, advice = (
        "different label values, too many for classes",
        "Is the label column correct? Select the label column with --columns label=NAME.",
    )
    findings.append(Finding("error", "too_many_classes", what, len(there), 0.0, (), advice))
    return ClassMap((), ())


def _label_findings(prefix: str, survey: CloudSurvey, there: ClassMap) -> Iterable[Finding]:
    yield from part_class_findings(prefix, "points", "point cloud", survey.label_counts, there)
    total = sum(survey.label_counts.values())
    unknown = sum(many for value, many in survey.label_counts.items() if value < 0 or value in there.void)
    if there.names and unknown:
        yield void_finding(f"{prefix}points without a class", unknown / total)
