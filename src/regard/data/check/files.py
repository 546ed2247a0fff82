"""Checks of samples that are files, and of images with classes, masks, depth maps or captions.

Every file is decoded, in several threads.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regard.data.check import findings as tables
from regard.data.check.engine import EntryReader, Survey, format_counts, hash_text, normalize_text
from regard.data.check.findings import MAX_CAPTION_RATIO
from regard.data.check.report import MAX_LOCATIONS, Finding, Location, excerpt
from regard.data.images.captions import CaptionedImage, find_caption_file, read_captions
from regard.data.images.image_io import inspect_image, read_depth, read_mask
from regard.data.images.labeled import (
    VOID,
    ClassMap,
    ImageSample,
    find_classes,
    infer_classes,
    read_depth_images,
    read_images,
    read_segmented,
    read_unlabeled,
    with_void_values,
)
from regard.data.text.formats import file_format
from regard.data.text.tables import SkippedRow, format_list
from regard.errors import DataError

THREADS = min(4, os.cpu_count() or 1)

MAX_REMEDIES = 3  # maximum number of different remedies for broken files in a report
MIN_SIDE = 8
MAX_ASPECT_RATIO = 10
MAX_PIXELS = 25_000_000  # pixels above which decoding takes about a second
MIN_DEPTH, MAX_DEPTH = 0.1, 500.0  # meters; the median of depth maps in the correct unit is between the two


@dataclass
class FileStats:
    """Measures of one file."""

    content_hash: bytes
    target_hash: bytes
    issues: dict[str, str]  # text of the location by finding
    numbers: dict[str, float]  # sizes by name
    properties: Sequence[str]  # color mode of an image, attributes of a point cloud
    part_counts: dict[int, int] = field(default_factory=dict)  # number of pixels or points with each value
    classes: ClassMap | None = None  # class names in the file


class FileSurvey(Survey):
    """Survey of files. Hashes are of the content with the target (0), and of the content (1)."""

    stage, chunk = "decoding {split} {unit}", 64
    leaks = ("leak", "leak_conflicting_labels")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._broken_samples: set[tuple[str, int]] = set()
        self._remedies: dict[str, None] = {}  # advice of the errors of broken files

    @abstractmethod
    def _inspect(self, sample: Any) -> FileStats:
        """Measures of one file. Runs in a thread and must not change the survey."""

    def _add_chunk(self, samples: Sequence[Any]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            futures = [pool.submit(self._inspect, sample) for sample in samples]
            for sample, future in zip(samples, futures, strict=True):
                try:
                    self._add_file(sample, future.result())
                except DataError as error:
                    self.tally("decode_error", error)
                    self._remedies.update({error.advice: None} if error.advice else {})
                    self._broken_samples.add((sample.path, sample.line))

    def finding(
        self, key: str, count: int = 0, fraction: float = 0.0, locations: Sequence[Location] = (), **values: Any
    ) -> Finding:
        """Finding from the table; broken files have the same advice as in training."""
        made = super().finding(key, count, fraction, locations, **values)
        advice = [*self._remedies][:MAX_REMEDIES] if key == "decode_error" else []
        return replace(made, advice=" ".join([*advice, made.advice]))

    def _add_file(self, sample: Any, stats: FileStats) -> None:
        """Count a file, and keep its measures."""
        for key, text in stats.issues.items():
            self._tally_sample(key, sample, text)
        for name, value in stats.numbers.items():
            self.keep(name, value, kind="d" if isinstance(value, float) else "Q")
        self.counters["properties"].update(stats.properties)
        if sample.label:
            self.classes[sample.label] += 1
        contents = stats.content_hash + b"\0" + stats.target_hash, stats.content_hash
        self._append(sample.line, map(hash_text, contents))

    def location_name(self, index: int, reference: int | None = None) -> str:
        entry, line = self.entries[self.numbers["entry"][index]], self.numbers["line"][index]
        if is_table(entry):
            return super().location_name(index, reference)
        return next(sample.source for sample in self._entry_samples(entry) if sample.line == line)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line if is_table(path) else None, text)

    def _read_entry(self, entry: str) -> Iterator[Any]:
        for item in type(self).reader(entry, self.columns):
            if not isinstance(item, SkippedRow) or not item.reason.startswith(("hidden: ", "not a ", "not an ")):
                yield item
            else:
                yield DataError(item.reason, entry, kind="skipped")

    def _indexed_samples(self) -> Iterator[Any]:
        """Samples without a decoding error: only these have an index."""
        samples = super()._indexed_samples()
        return (sample for sample in samples if (sample.path, sample.line) not in self._broken_samples)

    def _preview(self, sample: Any) -> str:
        name = sample.source or f"row {sample.line}"
        inside = os.path.relpath(name, sample.path) if name.startswith(os.path.join(sample.path, "")) else name
        return f"{inside} → {sample.label}" if sample.label else inside

    def _tally_sample(self, key: str, sample: Any, text: str) -> None:
        self.tally(key, Location(sample.source or sample.path, sample.line if sample.content else None, text))

    def counts(self) -> dict[str, int]:
        classes = {"classes": len(self.classes)} if self.train is None and self.classes else {}
        return {self.unit.replace(" ", "_"): len(self), "entries": len(self.entries), **classes}


class PartSurvey(FileSurvey):
    """Survey of files with a class for each part: pixels of masks, points of point clouds."""

    parts: ClassVar[tuple[str, str]]  # plural noun of the annotated things, and noun of one of them
    find_classes: ClassVar[Callable[[Sequence[str]], ClassMap | None]]  # classes from a class file near the entries

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.part_counts: Counter[int] = Counter()  # number of parts with each value
        # from a class file; or from the first file with class names
        self.known_classes: ClassMap | None = None if self.train is None else self.train.known_classes
        if self.known_classes is None:
            found = type(self).find_classes(self.entries)
            self.base.known_classes = self.known_classes = found and with_void_values(found)

    def _add_file(self, sample: Any, stats: FileStats) -> None:
        super()._add_file(sample, stats)
        self.part_counts.update(stats.part_counts)
        self.known_classes = classes = self.known_classes or stats.classes
        if classes is not None and (unknown := classes.unknown_values(v for v in stats.part_counts if v >= 0)):
            listed = ", ".join(map(str, unknown[:8]))
            self._tally_sample("unknown_values", sample, f"{listed}{', …' if len(unknown) > 8 else ''}")

    @abstractmethod
    def count_void(self, classes: ClassMap) -> tuple[str, int] | None:
        """Name and number of the parts without a class; None if there are none."""

    def named_classes(self) -> ClassMap | None:
        """Classes from a class file or from the data files; None if only the values are known."""
        return self.base.known_classes or self.base.valid.known_classes

    def part_classes(self) -> ClassMap:
        """Classes of the training data; no classes if there are too many values."""
        if (named := self.named_classes()) is not None:
            return named
        values = [value for value in self.base.part_counts if value >= 0]
        return infer_classes(values) if len(values) <= VOID else ClassMap((), ())

    @property
    def classes(self) -> Counter[str]:
        """Number of parts of each class."""
        classes = self.part_classes()
        return Counter({name: self.part_counts[n] for name, n in zip(classes.names, classes.values, strict=True)})

    def class_findings(self) -> Iterable[Finding]:
        """Distribution of the classes over the parts."""
        num_values = sum(value >= 0 for value in self.part_counts)
        if self.train is None and self.named_classes() is None and num_values > VOID:
            yield self.finding("too_many_classes", num_values)
        counts, total = self.classes, self.part_counts.total()
        if not total or not counts:
            return
        shares = [f"{label[:24]}: {100 * count / total:.1f} %" for label, count in counts.most_common()]
        yield self.finding("classes", len(counts), classes=format_list(shares))
        if sum(count > 0 for count in counts.values()) < 2:
            yield self.finding("single_class", 1, parts=self.parts[0])
        if absent := [label for label, count in counts.items() if not count]:
            used = "trained" if self.train is None else "evaluated"
            names, part = format_list(absent), self.parts[1]
            yield self.finding("classes_without_samples", len(absent), part=part, classes=names, used=used)
        if (void := self.count_void(self.part_classes())) is not None:
            fraction = void[1] / total
            key = "void:large" if fraction > 0.5 else "void"
            yield self.finding(key, 0, fraction, void=void[0], percent=100 * fraction)

    def unseen_classes(self) -> dict[str, int]:
        classes = self.part_classes()
        if self.named_classes() is not None or not classes.names:
            return {}
        unseen = classes.unknown_values(value for value in self.part_counts if value >= 0)
        return {str(value): self.part_counts[value] for value in unseen}

    def shows_classes(self, valid: Any) -> bool:
        return bool(self.classes)


def array_digest(values: NDArray[Any]) -> bytes:
    shape = f"{values.shape} {values.dtype}".encode()
    return blake2b(shape + np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def is_table(entry: str) -> bool:
    return os.path.isfile(os.path.expanduser(entry))


# -- images


class ImageSurvey(FileSurvey):
    """Survey of images: also their sizes and color modes."""

    task, unit, sides = "classify", "images", ("image",)
    reader: ClassVar[EntryReader] = read_images
    findings = tables.IMAGES
    measured, size_title = ("height", "width"), "pixels"

    def _inspect(self, sample: ImageSample) -> FileStats:
        pixels, info = inspect_image(sample.content or sample.source, sample.location)
        short, long = sorted((info.height, info.width))
        found = {
            "small_image": short < MIN_SIDE,
            "aspect_ratio": long > MAX_ASPECT_RATIO * short,
            "large_image": info.height * info.width > MAX_PIXELS,
            "single_color": short >= MIN_SIDE and (pixels == pixels[0, 0]).all(),
            "animated": info.animated,
            "exif_rotation": info.rotated,
            "transparent": info.transparent,
        }
        return FileStats(
            array_digest(pixels),
            sample.label.encode("utf-8", "surrogatepass"),
            {key: f"{info.width} × {info.height}" for key, holds in found.items() if holds},
            {"height": info.height, "width": info.width},
            (info.mode,),
        )

    def _add_target(self, stats: FileStats, target: NDArray[Any], size_issue: str, aspect_ratio_issue: str) -> None:
        """Keep the hash of a mask or depth map, and an issue if its size differs from the size of the image."""
        stats.target_hash = array_digest(target)
        (height, width), image_height, image_width = target.shape, stats.numbers["height"], stats.numbers["width"]
        if (height, width) != (image_height, image_width):
            is_distorted = abs(height * image_width / (width * image_height) - 1) > 0.02
            text = f"{width} × {height}, image {image_width} × {image_height}"
            stats.issues[aspect_ratio_issue if is_distorted else size_issue] = text

    def own_findings(self) -> Iterable[Finding]:
        modes = self.counters["properties"]
        if set(modes) - {"RGB"}:
            yield self.finding("color_modes", len(modes), modes=format_counts(dict(modes.most_common())))


class UnlabeledImageSurvey(ImageSurvey):
    task, reader = "draw", read_unlabeled
    findings = tables.UNLABELED_IMAGES


class MaskSurvey(PartSurvey, ImageSurvey):
    """Survey of images with masks: also the number of pixels with each mask value."""

    task, reader = "segment", read_segmented
    findings = tables.MASKS
    parts, counted, find_classes = ("masks", "mask"), "pixels_by_class", find_classes

    def _inspect(self, sample: ImageSample) -> FileStats:
        stats = super()._inspect(sample)
        location = sample.location if sample.target_content else None
        colors = self.known_classes.colors if self.known_classes else None
        mask = read_mask(sample.target_content or sample.target, colors, location)
        values, counts = np.unique(mask, return_counts=True)
        stats.part_counts = dict(zip(values.tolist(), counts.tolist(), strict=True))
        self._add_target(stats, mask, "mask_size_mismatch", "mask_size_mismatch")
        return stats

    def count_void(self, classes: ClassMap) -> tuple[str, int] | None:
        values = sorted(value for value in classes.void if self.part_counts[value])
        if not values:
            return None
        return f"void pixels ({', '.join(map(str, values))})", sum(self.part_counts[value] for value in values)


class DepthSurvey(ImageSurvey):
    """Survey of images with depth maps: also the known pixels and the depths."""

    task, reader = "depth", read_depth_images
    findings = tables.DEPTH

    def _inspect(self, sample: ImageSample) -> FileStats:
        stats = super()._inspect(sample)
        location = sample.location if sample.target_content else None
        depth = read_depth(sample.target_content or sample.target, self.settings.depth_scale or None, location)
        known = depth[depth > 0]
        stats.numbers |= {"known_pixels": len(known), "total_pixels": depth.size}
        self._add_target(stats, depth, "depth_size_mismatch", "depth_aspect_ratio_mismatch")
        if len(known):
            percentiles = np.quantile(known, (0.01, 0.5, 0.99)).astype(np.float32).tolist()
            stats.numbers |= zip(("near", "median", "far"), percentiles, strict=True)
        else:
            stats.issues["empty_depth_map"] = f"depth map {os.path.basename(sample.target)}" if sample.target else ""
        return stats

    def own_findings(self) -> Iterable[Finding]:
        """Fraction of the pixels with known depth, and the range of depths."""
        yield from super().own_findings()
        total_pixels, median_depths = self.values("total_pixels").sum(), self.values("median")
        if not total_pixels:
            return
        known = float(self.values("known_pixels").sum() / total_pixels)
        yield self.finding("known_depth:low" if known < 0.5 else "known_depth", 0, known, percent=100 * known)
        if len(median_depths):
            near, median, far = self.values("near").min(), np.median(median_depths), self.values("far").max()
            key = "depth_range" if MIN_DEPTH <= median <= MAX_DEPTH else "depth_range:odd"
            yield self.finding(key, near=near, median=median, far=far)


class CaptionSurvey(ImageSurvey):
    """Survey of images with captions: also the image, the lengths and a hash of each caption.

    Hashes of images are of the pixels with the captions (0), and of the pixels (1)."""

    task, sides, reader = "caption", ("caption",), read_captions
    findings = tables.CAPTIONS
    leaks = ("leak", "leak:captions")
    conflict = "repeated_image"

    location_name = Survey.location_name

    def _entry_files(self, entry: str) -> Sequence[str]:
        return (str(find_caption_file(entry)[0]),)

    def _location(self, path: str, line: int, text: str = "", side: int = 0) -> Location:
        return Location(path, line, text, "caption" if file_format(path) == ".json" else "")

    def _preview(self, sample: Any, caption: int = 0) -> str:
        name = os.path.relpath(sample.source, os.path.dirname(sample.path)) if not sample.content else sample.source
        return f"{name} → {excerpt(sample.captions[caption])}"

    def _inspect(self, sample: Any) -> FileStats:
        stats = super()._inspect(sample)
        captions = "\0".join(sorted(sample.captions)).encode("utf-8", "surrogatepass")
        stats.target_hash = blake2b(captions, digest_size=16).digest()
        return stats

    def _add_file(self, sample: CaptionedImage, stats: FileStats) -> None:
        self._tally_quality_issues(sample, sample.captions)
        if len(set(sample.captions)) < len(sample.captions):
            repeated = Counter(sample.captions).most_common(1)[0][0]
            self.tally("repeated_caption", self._location(sample.path, sample.line, excerpt(repeated)))
        for caption in sample.captions:
            normalized = normalize_text(caption)
            self.counters["words"].update(normalized.split())
            self.keep("image_index", len(self))
            self.keep("caption_hash", hash_text(normalized))
            self._keep_sizes((caption,))
        super()._add_file(sample, stats)

    def counts(self) -> dict[str, int]:
        return {"images": len(self), "captions": len(self.values("image_index")), "files": len(self.entries)}

    def own_findings(self) -> Iterable[Finding]:
        yield from super().own_findings()
        if not len(self):
            return
        owners = self.values("image_index")
        per_image = np.bincount(np.bincount(owners, minlength=len(self)))
        numbers = {f"{n} caption{'' if n == 1 else 's'}": int(count) for n, count in enumerate(per_image) if count}
        yield self.finding("captions_per_image", len(owners), numbers=format_counts(numbers))
        word_counts = self.counters["words"]
        yield self.finding("vocabulary", len(word_counts), rare=sum(count == 1 for count in word_counts.values()))
        distinct, kind = np.unique(self.values("caption_hash"), return_inverse=True)
        # a caption that occurs twice with one image counts once
        pairs = np.unique(np.stack([kind, owners], axis=1), axis=0)
        num_images = np.bincount(pairs[:, 0], minlength=len(distinct))
        yield from self._caption_findings("shared_caption", num_images[kind] > 1)
        words, tokens = self.sizes("words")[:, 0], self.sizes("tokens")[:, 0]
        median = float(np.median(words))
        if median >= 2:
            yield from self._caption_findings("single_word", words < 2)
        yield from self._caption_findings("length_outliers", words > MAX_CAPTION_RATIO * max(median, 5), median=median)
        yield from self._caption_findings("long", tokens > self.settings.max_length, limit=self.token_limit)

    def comparison_findings(self) -> Iterable[Finding]:
        yield from super().comparison_findings()
        is_known = np.isin(self.values("caption_hash"), self.train.values("caption_hash"))
        yield from self._caption_findings("leak_caption", is_known)

    def _caption_findings(self, key: str, selected: NDArray[np.bool_], **values: Any) -> Iterable[Finding]:
        """Finding about the selected captions, with the location of one caption per image."""
        captions = np.flatnonzero(selected)
        if not len(captions):
            return
        owners = self.values("image_index")
        images, first = np.unique(owners[captions], return_index=True)
        positions = captions[first[:MAX_LOCATIONS]] - np.searchsorted(owners, images[:MAX_LOCATIONS])
        shown = dict(zip(images[:MAX_LOCATIONS].tolist(), positions.tolist(), strict=True))
        locations = self.locations(shown, preview=lambda index, sample: self._preview(sample, shown[index]))
        yield self.finding(key, len(captions), len(captions) / len(owners), locations, **values)
