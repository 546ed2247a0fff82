"""Checks of images with classes, masks, depth maps or captions, and of unlabeled images. Every image is decoded."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check.engine import (
    COUNT_FINDINGS,
    LEAK_ADVICE,
    QUALITY_FINDINGS,
    TOKEN_ESTIMATE_NOTE,
    FindingTable,
    Indices,
    Spec,
    format_counts,
    hash_text,
    select,
)
from regard.data.check.files import PART_FINDINGS, SAMPLE_FINDINGS, EntryReader, FileSurvey, PartSurvey, array_digest
from regard.data.check.report import MAX_LOCATIONS, Finding, Location, excerpt
from regard.data.check.text_quality import normalize_text
from regard.data.images.captions import CaptionedImage, find_caption_file, parse_splits, read_captions
from regard.data.images.image_io import ImageInfo, inspect_image, read_depth, read_mask
from regard.data.images.labeled import ImageSample, read_depth_images, read_images, read_segmented, read_unlabeled
from regard.data.images.masks import ClassMap, find_classes
from regard.data.text.files import ErrorHandler
from regard.data.text.formats import file_format

MIN_SIDE = 8
MAX_ASPECT_RATIO = 10
MAX_PIXELS = 25_000_000
"""pixels above which decoding takes about a second"""
MIN_DEPTH, MAX_DEPTH = 0.1, 500.0
"""meters; the median of depth maps in the correct unit is between the two"""
MAX_LENGTH_RATIO = 4
"""caption length as a multiple of the median, in words"""

IMAGE_FINDINGS: FindingTable = {
    **SAMPLE_FINDINGS,
    "unmatched_files": Spec(
        "error", "files without a matching image, mask or depth map",
        "Add the missing files, or remove the unmatched files: training stops at unmatched files.", drops=True,
    ),
    "decode_error": Spec(
        "error", "files with a decoding error", "Repair or remove the files: training would stop there.", drops=True,
    ),
    "empty": Spec(
        "warning", "images or rows with missing data", "Training skips these images and rows.", "error", drops=True,
    ),
    "skipped": Spec("note", "hidden files, and files without an image extension", "Training ignores these files."),
    "mask_size_mismatch": Spec(
        "error", "masks with a different size than the image", "Recreate the masks from the image.",
    ),
    "unknown_values": Spec(
        "error", "masks with values not assigned to a class",
        "Add the values to classes.txt next to the masks, for example as void.",
    ),
    "depth_aspect_ratio_mismatch": Spec(
        "error", "depth maps with a different aspect ratio than the image", "The depth maps would be misaligned.",
    ),
    "depth_size_mismatch": Spec(
        "note", "depth maps with a different size than the image",
        "Image and depth map are resized to the model's input size.",
    ),
    "empty_depth_map": Spec(
        "warning", "depth maps without a known depth", "Remove the depth maps: training ignores unknown pixels.",
        "error",
    ),
    "small_image": Spec(
        "warning", "images with a side below 8 pixels", "Remove the images: the resolution is too low.", "error",
    ),
    "aspect_ratio": Spec("warning", "images with an aspect ratio above 10:1", "Cropping keeps only a small part."),
    "large_image": Spec(
        "warning", "images above 25 megapixels", "Decoding is slow in every epoch: downscale the files.",
    ),
    "single_color": Spec("warning", "images with a single color", "Check whether the files are damaged.", "error"),
    "animated": Spec("note", "animated images", "Only the first frame is used."),
    "exif_rotation": Spec("note", "images with EXIF rotation", "The images are rotated automatically."),
    "transparent": Spec("note", "images with transparency", "The images are composited on white."),
    "color_modes": Spec("note", "color modes ({modes})"),
}  # fmt: skip
MASK_FINDINGS: FindingTable = {
    **IMAGE_FINDINGS,
    **PART_FINDINGS,
    "too_many_classes": Spec(
        "error", "different mask values, too many for classes",
        "Are these files masks, and not photographs or depth maps?",
    ),
    "unseen_classes": Spec(
        "error", "mask values absent from the training data (pixels: {classes})",
        "Add images with these values to the training data, or name the classes in classes.txt.",
    ),
}  # fmt: skip
DEPTH_FINDINGS: FindingTable = {
    **IMAGE_FINDINGS,
    "known_depth": Spec("note", "pixels with known depth: {percent:.1f} %"),
    "known_depth:low": Spec(
        "warning", "pixels with known depth: {percent:.1f} %", "Training ignores all other pixels.",
    ),
    "depth_range": Spec("note", "depths from {near:.3g} to {far:.3g} meters, median {median:.3g}"),
    "depth_range:odd": Spec(
        "warning", "depths from {near:.3g} to {far:.3g} meters, median {median:.3g}",
        "Is the unit correct? Integers are read as millimeters, floats as meters. Set data.depth_scale.",
    ),
}  # fmt: skip
CAPTION_FINDINGS: FindingTable = {
    **select(IMAGE_FINDINGS, "unreadable", "encoding", "format", "header", "missing", "decode_error"),
    "empty": Spec(
        "warning", "rows without an image, or with an empty caption", "Training skips these rows.", "error", drops=True,
    ),
    **select(
        IMAGE_FINDINGS, "small_image", "aspect_ratio", "large_image", "single_color", "animated", "exif_rotation",
        "transparent",
    ),
    **QUALITY_FINDINGS,
    "repeated_caption": Spec(
        "warning", "images with the same caption twice", "Remove the duplicate, unless a higher weight is intended.",
    ),
    "color_modes": IMAGE_FINDINGS["color_modes"],
    **COUNT_FINDINGS,
    "repeated_image": Spec(
        "warning", "images repeated under another name, with other captions",
        "Collect all captions under one name: the validation split is made by image.",
    ),
    "captions_per_image": Spec("note", "captions (number of images with {numbers})"),
    "vocabulary": Spec("note", "different words ({rare:,} of the words occur once)"),
    "shared_caption": Spec(
        "note", "captions shared by several images, ignoring case and punctuation",
        "Shared captions are not specific to an image. Short captions are often shared, long captions rarely.", "warning",
    ),
    "single_word": Spec(
        "warning", "captions of one word",
        "Captions should be sentences. If the words are class names, use 'regard train classify'.", "error",
    ),
    "length_outliers": Spec(
        "warning", f"captions longer than {MAX_LENGTH_RATIO} times the median ({{median:.0f}} words)",
        "Check whether the captions are correct.",
    ),
    "long": Spec(
        "warning", "captions longer than {limit}",
        "Training skips these captions, and captions longer than model.max_length.",
    ),
    "leak": Spec("error", "images also present in the training data", LEAK_ADVICE),
    "leak:captions": Spec("error", "images also present in the training data, with other captions", LEAK_ADVICE),
    "leak_caption": Spec(
        "note", "captions also present in the training data, ignoring case and punctuation",
        "Short captions may repeat by chance. Are validation images modified copies of training images?", "warning",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ImageStats:
    """Numbers and hashes of one image."""

    info: ImageInfo
    content_hash: bytes
    is_blank: bool
    """whether all pixels have one color"""
    target: Any
    """numbers of the mask or the depth map"""
    target_hash: bytes


class ImageSurvey(FileSurvey[ImageSample]):
    """Survey of images: also their sizes and color modes."""

    task, unit, sides = "classify", "images", ("image",)
    findings = IMAGE_FINDINGS
    stage = ("decoding", "images")
    reader: ClassVar[EntryReader] = read_images
    skip_prefixes = ("hidden: ", "not an image: ")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.modes: Counter[str] = Counter()
        self._image_sizes = array("I"), array("I")

    def _inspect(self, sample: ImageSample) -> ImageStats:
        pixels, info = inspect_image(sample.content or sample.source, sample.location)
        is_blank = bool((pixels == pixels[0, 0]).all())
        return ImageStats(info, array_digest(pixels), is_blank, *self._inspect_target(sample))

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        """Numbers and hash of the target."""
        return None, sample.label.encode("utf-8", "surrogatepass")

    def _add_sample(self, sample: ImageSample, stats: Any = None) -> None:
        info: ImageInfo = stats.info
        short, long = sorted((info.height, info.width))
        properties = {
            "small_image": short < MIN_SIDE,
            "aspect_ratio": long > MAX_ASPECT_RATIO * short,
            "large_image": info.height * info.width > MAX_PIXELS,
            "single_color": stats.is_blank and short >= MIN_SIDE,
            "animated": info.animated,
            "exif_rotation": info.rotated,
            "transparent": info.transparent,
        }
        for key in (key for key, holds in properties.items() if holds):
            self._tally_sample(key, sample, f"{info.width} × {info.height}")
        self.modes[info.mode] += 1
        for column, size in zip(self._image_sizes, (info.height, info.width), strict=True):
            column.append(size)
        self._append_file(sample, stats.content_hash, stats.target_hash)

    def split_findings(self) -> Iterable[Finding]:
        if set(self.modes) - {"RGB"}:
            yield self.finding("color_modes", len(self.modes), modes=format_counts(dict(self.modes.most_common())))
        yield from self.count_findings()
        yield from self.duplicate_findings()

    def size_fields(self) -> dict[str, Any]:
        height, width = (np.array(column, dtype=np.int64) for column in self._image_sizes)
        return {"measurements": {"height": height, "width": width}, "size_title": "pixels"}


class UnlabeledImageSurvey(ImageSurvey):
    task, reader = "draw", read_unlabeled

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        return self.leak_findings()


class MaskSurvey(PartSurvey[ImageSample], ImageSurvey):
    """Survey of images with masks: also the number of pixels with each mask value."""

    task, reader = "segment", read_segmented
    findings = MASK_FINDINGS
    parts, counted = ("masks", "mask"), "pixels_by_class"

    def find_class_file(self) -> ClassMap | None:
        return find_classes(self.entries)

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        location = sample.location if sample.target_content else None
        colors = self.known_classes.colors if self.known_classes else None
        mask = read_mask(sample.target_content or sample.mask, colors, location)
        values, counts = np.unique(mask, return_counts=True)
        return (mask.shape, dict(zip(values.tolist(), counts.tolist(), strict=True))), array_digest(mask)

    def _add_sample(self, sample: ImageSample, stats: Any = None) -> None:
        (height, width), counts = stats.target
        info: ImageInfo = stats.info
        if (height, width) != (info.height, info.width):
            text = f"{width} × {height}, image {info.width} × {info.height}"
            self._tally_sample("mask_size_mismatch", sample, text)
        self._tally_unknown_values(sample, self.known_classes, counts)
        self.part_counts.update(counts)
        super()._add_sample(sample, stats)

    def void_findings(self, classes: ClassMap, total: int) -> Iterable[Finding]:
        if classes.void:
            num_void = sum(self.part_counts[value] for value in classes.void)
            yield self._void_finding(f"void pixels ({', '.join(map(str, classes.void))})", num_void / total)


class DepthSurvey(ImageSurvey):
    """Survey of images with depth maps: also the known pixels and the depths."""

    task, reader = "depth", read_depth_images
    findings = DEPTH_FINDINGS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.known_pixels = self.total_pixels = 0
        self._depths = array("f"), array("f"), array("f")
        """1st, 50th and 99th percentile of each depth map with known pixels"""

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        location = sample.location if sample.target_content else None
        depth = read_depth(sample.target_content or sample.depth, self.settings.depth_scale or None, location)
        known = depth[depth > 0]
        percentiles = np.quantile(known, (0.01, 0.5, 0.99)).tolist() if len(known) else []
        return (depth.shape, len(known), depth.size, percentiles), array_digest(depth)

    def _add_sample(self, sample: ImageSample, stats: Any = None) -> None:
        (height, width), num_known, size, percentiles = stats.target
        info: ImageInfo = stats.info
        if (height, width) != (info.height, info.width):
            is_distorted = abs(height * info.width / (width * info.height) - 1) > 0.02
            key = "depth_aspect_ratio_mismatch" if is_distorted else "depth_size_mismatch"
            self._tally_sample(key, sample, f"{width} × {height}, image {info.width} × {info.height}")
        if not num_known:
            name = f"depth map {os.path.basename(sample.depth)}" if sample.depth else ""
            self._tally_sample("empty_depth_map", sample, name)
        self.known_pixels, self.total_pixels = self.known_pixels + num_known, self.total_pixels + size
        for column, value in zip(self._depths, percentiles, strict=False):
            column.append(value)
        super()._add_sample(sample, stats)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from self.leak_findings()
        for survey in splits:
            yield from survey.depth_findings()

    def depth_findings(self) -> Iterable[Finding]:
        if not self.total_pixels:
            return
        known = self.known_pixels / self.total_pixels
        yield self.finding("known_depth:low" if known < 0.5 else "known_depth", 0, known, percent=100 * known)
        low, middle, high = (np.array(column, dtype=np.float32) for column in self._depths)
        if len(middle):
            near, median, far = float(low.min()), float(np.median(middle)), float(high.max())
            key = "depth_range" if MIN_DEPTH <= median <= MAX_DEPTH else "depth_range:odd"
            yield self.finding(key, near=near, median=median, far=far)


class CaptionSurvey(ImageSurvey):
    """Survey of images with captions: also the image, the lengths and a hash of each caption.

    Hashes of images are of the pixels with the captions (0), and of the pixels (1)."""

    task, sides, reader = "caption", ("caption",), read_captions
    findings = CAPTION_FINDINGS
    leaks = ("leak", "leak:captions")
    conflict = "repeated_image"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.word_counts: Counter[str] = Counter()
        self._image_index, self._caption_hashes = array("Q"), array("Q")

    @property
    def image_index(self) -> Indices:
        """Index of the image of each caption."""
        return np.array(self._image_index, dtype=np.int64)

    @property
    def caption_hashes(self) -> NDArray[np.uint64]:
        """Hash of each caption without case and punctuation."""
        return np.array(self._caption_hashes, dtype=np.uint64)

    def location_name(self, index: int, reference: int | None = None) -> str:
        entry, line = self._positions[0][index], self._positions[1][index]
        if reference is not None and entry == self._positions[0][reference]:
            return f"line {line}"
        return str(self._location(str(find_caption_file(self.entries[entry])[0]), line))

    def _read_entry(self, entry: str, on_error: ErrorHandler) -> Iterator[Any]:
        find_caption_file(entry)  # a missing file ends the check
        return super()._read_entry(entry, on_error)

    def _entry_files(self, entry: str) -> Sequence[str]:
        return (parse_splits(entry)[0],)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line, text, "caption" if file_format(path) == ".json" else "")

    def _preview(self, sample: Any, caption: int = 0) -> str:
        name = os.path.relpath(sample.source, os.path.dirname(sample.path)) if not sample.content else sample.source
        return f"{name} → {excerpt(sample.captions[caption])}"

    def _inspect_target(self, sample: Any) -> tuple[Any, bytes]:
        captions = "\0".join(sorted(sample.captions)).encode("utf-8", "surrogatepass")
        return None, blake2b(captions, digest_size=16).digest()

    def _add_sample(self, sample: Any, stats: Any = None) -> None:
        assert isinstance(sample, CaptionedImage)
        self._tally_quality_issues(sample, sample.captions)
        if len(set(sample.captions)) < len(sample.captions):
            repeated = Counter(sample.captions).most_common(1)[0][0]
            self.tally("repeated_caption").add(self._location(sample.path, sample.line, excerpt(repeated)))
        for caption in sample.captions:
            normalized = normalize_text(caption)
            self.word_counts.update(normalized.split())
            self._image_index.append(len(self))
            self._caption_hashes.append(hash_text(normalized))
            self._append_sizes(caption)
        super()._add_sample(sample, stats)

    def counts(self) -> dict[str, int]:
        return {"images": len(self), "captions": len(self._image_index), "files": len(self.entries)}

    def split_findings(self) -> Iterable[Finding]:
        yield from super().split_findings()
        if not len(self):
            return
        owners = self.image_index
        per_image = np.bincount(np.bincount(owners, minlength=len(self)))
        numbers = {f"{n} caption{'' if n == 1 else 's'}": int(count) for n, count in enumerate(per_image) if count}
        yield self.finding("captions_per_image", len(owners), numbers=format_counts(numbers))
        rare = sum(count == 1 for count in self.word_counts.values())
        yield self.finding("vocabulary", len(self.word_counts), rare=rare)
        distinct, kind = np.unique(self.caption_hashes, return_inverse=True)
        # a caption that occurs twice with one image counts once
        pairs = np.unique(np.stack([kind, owners], axis=1), axis=0)
        num_images = np.bincount(pairs[:, 0], minlength=len(distinct))
        yield from self._caption_findings("shared_caption", num_images[kind] > 1)
        words, tokens = self.sizes("words")[:, 0], self.sizes("tokens")[:, 0]
        median = float(np.median(words))
        if median >= 2:
            yield from self._caption_findings("single_word", words < 2)
        yield from self._caption_findings("length_outliers", words > MAX_LENGTH_RATIO * max(median, 5), median=median)
        limit = f"data.max_length={self.settings.max_length:,} tokens {TOKEN_ESTIMATE_NOTE}"
        yield from self._caption_findings("long", tokens > self.settings.max_length, limit=limit)

    def comparison_findings(self, splits: Sequence[Any]) -> Iterable[Finding]:
        yield from self.leak_findings()
        yield from self._caption_findings("leak_caption", np.isin(self.caption_hashes, self.train.caption_hashes))

    def _caption_findings(self, key: str, selected: NDArray[np.bool_], **values: Any) -> Iterable[Finding]:
        """Finding about the selected captions, with the location of one caption per image."""
        captions = np.flatnonzero(selected)
        if not len(captions):
            return
        owners = self.image_index
        images, first = np.unique(owners[captions], return_index=True)
        positions = captions[first[:MAX_LOCATIONS]] - np.searchsorted(owners, images[:MAX_LOCATIONS])
        shown = dict(zip(images[:MAX_LOCATIONS].tolist(), positions.tolist(), strict=True))
        locations: list[Location] = []
        for index, sample in enumerate(self._indexed_samples()):
            if index in shown:
                locations.append(self._location(sample.path, sample.line, self._preview(sample, shown[index])))
                if len(locations) == len(shown):
                    break
        yield self.finding(key, len(captions), len(captions) / len(owners), locations, **values)
