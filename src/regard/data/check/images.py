"""What is wrong with pictures and what belongs to them, before an hour is lost on them. Every file is decoded.

What must be put right is an error: training would stop at it, or learn from it what nobody wants. "Much" is more than a
tenth of the pictures.

| finding                     | what it is                                                    | error   | warning | note   |
|-----------------------------|---------------------------------------------------------------|---------|---------|--------|
| unreadable                  | a table or a folder that cannot be read to its end            | always  |         |        |
| encoding, format, header    | as in any table                                               | always  |         |        |
| missing                     | rows that name a file that is not there                       | always  |         |        |
| unmatched_files             | pictures without a mask or a depth, and the other way round   | always  |         |        |
| decode_error                | files that cannot be decoded: cut off, no pictures, too large | always  |         |        |
| empty                       | rows without a picture or what belongs to it                  | if much | else    |        |
| skipped                     | hidden files, and those that are no pictures by their names   |         |         | always |
| small_image                 | a side of less than 8 pixels                                  | if much | else    |        |
| aspect_ratio                | one side ten times the other                                  |         | always  |        |
| large_image                 | more than 25 megapixels                                       |         | always  |        |
| single_color                | a single color                                                | if much | else    |        |
| animated                    | more than one frame                                           |         |         | always |
| exif_rotation               | rotated by the EXIF orientation                               |         |         | always |
| transparent                 | an alpha channel that is not opaque                           |         |         | always |
| color_modes                 | color modes, unless all images are RGB                        |         |         | always |
| few                         | pictures                                                      | < 2     | < 100   |        |
| classes, single_class       | as of texts                                                   | so      | so      | so     |
| too_many_classes, rare      | as of texts                                                   | so      | so      | so     |
| imbalance, unseen_classes   | as of texts                                                   | so      | so      | so     |
| duplicates                  | the same pixels, whatever file they are in                    |         | always  |        |
| conflicting_labels          | the same pixels with another class, mask or depth             | if much | else    |        |
| leak                        | the same in the validation set                                | always  |         |        |
| leak_conflicting_labels     | the same pixels there with another class, mask or depth       |         | always  |        |
| mask_size_mismatch          | a mask of another size than its picture                       | always  |         |        |
| unknown_values              | numbers in masks that no class has                            | always  |         |        |
| void                        | share of the pixels that is not learnt                        |         | > half  | else   |
| classes_without_samples     | classes that no mask has                                      |         | always  |        |
| depth_aspect_ratio_mismatch | a depth map whose sides have another ratio than the picture's | always  |         |        |
| depth_size_mismatch         | a depth map of another size than the image                    |         |         | always |
| empty_depth_map             | a depth map without a known depth                             | if much | else    |        |
| known_depth                 | share of the pixels whose depth is known                      |         | < half  | else   |
| depth_range                 | nearest, median and farthest depth                            |         | if odd  | else   |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from regard.data.check.files import class_summary, leak_specs, part_class_findings, void_finding
from regard.data.check.image_survey import DepthSurvey, ImageSurvey, MaskSurvey
from regard.data.check.labeled import duplicate_findings, format_counts, sample_count_findings
from regard.data.check.pair_survey import ProgressCallback, no_progress
from regard.data.check.pairs import (
    COMMON_FINDINGS,
    FindingSpecs,
    leak_findings,
    named_splits,
    split_counts,
    tally_findings,
)
from regard.data.check.report import ClassCounts, Finding, Lengths, Report
from regard.data.images.labeled import read_depth_images, read_images, read_segmented, read_unlabeled
from regard.data.images.masks import VOID, ClassMap, find_classes, infer_classes
from regard.data.settings import DataSettings
from regard.data.sources import expand_patterns

Columns = Mapping[str, str] | None

IMAGE_FINDINGS: FindingSpecs = {
    **{kind: COMMON_FINDINGS[kind] for kind in ("unreadable", "encoding", "format", "header")},
    "missing": ("rows with a missing file", "Fix the paths: training rejects the table.", "error", False),
    "unmatched_files": (
        "files without a matching image, mask or depth map",
        "Add the missing files, or remove the unmatched files: training stops at unmatched files.", "error", False,
    ),
    "decode_error": ("files with a decoding error", "Repair or remove the files: training would stop there.", "error", False),
    "empty": ("images or rows with missing data", "Training skips these images and rows.", "warning", True),
    "skipped": ("hidden files, and files without an image extension", "Training ignores these files.", "note", False),
    "mask_size_mismatch": ("masks with a different size than the image", "Recreate the masks from the image.", "error", False),
    "unknown_values": (
        "masks with values not assigned to a class",
        "Add the values to classes.txt next to the masks, for example as void.", "error", False,
    ),
    "depth_aspect_ratio_mismatch": (
        "depth maps with a different aspect ratio than the image", "The depth maps would be misaligned.", "error", False,
    ),
    "depth_size_mismatch": (
        "depth maps with a different size than the image", "Image and depth map are resized to the model's input size.",
        "note", False,
    ),
    "empty_depth_map": (
        "depth maps without a known depth", "Remove the depth maps: training ignores unknown pixels.", "warning", True,
    ),
    "small_image": ("images with a side below 8 pixels", "Remove the images: the resolution is too low.", "warning", True),
    "aspect_ratio": ("images with an aspect ratio above 10:1", "Cropping keeps only a small part.", "warning", False),
    "large_image": ("images above 25 megapixels", "Decoding is slow in every epoch: downscale the files.", "warning", False),
    "single_color": ("images with a single color", "Check whether the files are damaged.", "warning", True),
    "animated": ("animated images", "Only the first frame is used.", "note", False),
    "exif_rotation": ("images with EXIF rotation", "The images are rotated automatically.", "note", False),
    "transparent": ("images with transparency", "The images are composited on white.", "note", False),
}  # fmt: skip

NEAR, FAR = 0.1, 500.0
"""metres, between which the middle of depth maps lies, if their unit is right"""


def check_images(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at pictures and their classes, and at those of validation against them."""
    train, held = (ImageSurvey(expand_patterns(entries), columns, read_images) for entries in (data, valid))
    findings = _common_findings(train, held, progress)
    more, spreads = class_summary(train, held)
    return _report("classify", train, held, [*findings, *more], spreads, len(train.classes))


def check_unlabeled_images(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at pictures that nothing belongs to."""
    train, held = (ImageSurvey(expand_patterns(entries), columns, read_unlabeled) for entries in (data, valid))
    return _report("draw", train, held, _common_findings(train, held, progress))


def check_segmentation(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at pictures and their masks."""
    known = find_classes(expand_patterns(data)) or find_classes(expand_patterns(valid))
    train, held = (MaskSurvey(expand_patterns(entries), columns, read_segmented, known) for entries in (data, valid))
    findings = _common_findings(train, held, progress)
    there = known or _infer_classes(train, findings)
    for name, survey in named_splits(train, held):
        findings += _mask_findings(name, survey, there)
    if known is None and there.names and held.entries:
        strange = {str(value): held.pixel_counts[value] for value in there.unknown_values(held.pixel_counts)}
        if strange:
            what = f"validation: mask values absent from the training data (pixels: {format_counts(strange)})"
            advice = "Add images with these values to the training data, or name the classes in classes.txt."
            findings.append(Finding("error", "unseen_classes", what, len(strange), 0.0, (), advice))
    counts = [
        {name: survey.pixel_counts[value] for name, value in zip(there.names, there.values, strict=True)}
        for survey in (train, held)
    ]
    spreads = (ClassCounts("pixels_by_class", counts[0], counts[1] if held.entries else {}),) if there.names else ()
    return _report("segment", train, held, findings, spreads, len(there.names))


def check_depth(
    data: Sequence[str],
    valid: Sequence[str],
    columns: Columns,
    settings: DataSettings,
    progress: ProgressCallback = no_progress,
) -> Report:
    """Look at pictures and their maps of depth."""
    unit = settings.depth_scale or None
    train, held = (DepthSurvey(expand_patterns(entries), columns, read_depth_images, unit) for entries in (data, valid))
    findings = _common_findings(train, held, progress)
    for name, survey in named_splits(train, held):
        findings += _depth_findings(name, survey)
    return _report("depth", train, held, findings)


def _common_findings(train: ImageSurvey, held: ImageSurvey, advance: ProgressCallback) -> list[Finding]:
    """What is said of pictures whatever belongs to them."""
    train.read(advance, "training images")
    held.read(advance, "validation images")
    findings: list[Finding] = []
    for name, survey in named_splits(train, held):
        findings += tally_findings(name, survey.tallies, survey.rows, IMAGE_FINDINGS)
        findings += [*mode_findings(name, survey), *sample_count_findings(name, "images", survey, bool(held.entries))]
        findings += duplicate_findings(name, "images", survey)
    return [*findings, *leak_findings(train, held, leak_specs("images"))]


def _report(
    task: str, train: ImageSurvey, held: ImageSurvey, findings: Iterable[Finding], spreads: tuple[ClassCounts, ...] = (),
    classes: int = 0,
) -> Report:  # fmt: skip
    def count(survey: ImageSurvey) -> dict[str, int]:
        told = {"classes": classes} if classes and survey is train else {}
        return {"images": len(survey), "entries": len(survey.entries), **told}

    none = np.zeros((0, 1), dtype=np.int64)
    lengths = Lengths(none, none, none, 0, np.zeros(0, dtype=np.int64), ("image",), "images")
    return Report(
        task,
        split_counts(train, held, count),
        tuple(findings),
        lengths,
        class_counts=spreads,
        measurements=image_sizes(train),
        size_title="pixels",
    )


def image_sizes(survey: ImageSurvey) -> dict[str, Any]:
    return {"height": survey.image_sizes[:, 0], "width": survey.image_sizes[:, 1]}


def mode_findings(prefix: str, survey: ImageSurvey) -> Iterable[Finding]:
    if set(survey.modes) - {"RGB"}:
        yield Finding(
            "note",
            "color_modes",
            f"{prefix}color modes ({format_counts(dict(survey.modes.most_common()))})",
            len(survey.modes),
            0.0,
        )


def _infer_classes(survey: MaskSurvey, findings: list[Finding]) -> ClassMap:
    """The classes that masks show by themselves."""
    if len(survey.pixel_counts) <= VOID:
        return infer_classes(survey.pixel_counts)
    what, advice = (
        "different mask values, too many for classes",
        "Are these files masks, and not photographs or depth maps?",
    )
    findings.append(Finding("error", "too_many_classes", what, len(survey.pixel_counts), 0.0, (), advice))
    return ClassMap((), ())


def _mask_findings(prefix: str, survey: MaskSurvey, there: ClassMap) -> Iterable[Finding]:
    yield from part_class_findings(prefix, "masks", "mask", survey.pixel_counts, there)
    total = sum(survey.pixel_counts.values())
    if there.names and there.void and total:
        void = sum(survey.pixel_counts[value] for value in there.void) / total
        yield void_finding(f"{prefix}void pixels ({', '.join(map(str, there.void))})", void)


def _depth_findings(prefix: str, survey: DepthSurvey) -> Iterable[Finding]:
    if not survey.total_pixels:
        return
    known = survey.known_pixels / survey.total_pixels
    what = f"{prefix}pixels with known depth: {100 * known:.1f} %"
    advice = "Training ignores all other pixels." if known < 0.5 else ""
    yield Finding("warning" if known < 0.5 else "note", "known_depth", what, 0, known, (), advice)
    metres = survey.depth_quantiles
    if not len(metres):
        return
    near, middle, far = float(metres[:, 0].min()), float(np.median(metres[:, 1])), float(metres[:, 2].max())
    odd = not NEAR <= middle <= FAR
    what = f"{prefix}depths from {near:.3g} to {far:.3g} meters, median {middle:.3g}"
    advice = (
        "Is the unit correct? Integers are read as millimeters, floats as meters. Set data.depth_scale." if odd else ""
    )
    yield Finding("warning" if odd else "note", "depth_range", what, 0, 0.0, (), advice)
