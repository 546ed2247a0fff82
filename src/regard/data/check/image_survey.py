"""Looking at pictures for a check: every file is decoded, and what is kept of it is a few numbers and hashes."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.check.file_survey import FileSurvey, array_digest
from regard.data.images.image_io import ImageInfo, inspect_image, read_depth, read_mask
from regard.data.images.labeled import ImageSample, ReadEntry
from regard.data.images.masks import ClassMap

MIN_SIDE = 8
"""pixels of a side, below which there is nothing to see"""
MAX_ASPECT_RATIO = 10
"""times longer than wide, from which on little is left when the middle is cut out"""
MAX_PIXELS = 25_000_000
"""pixels, from which on decoding takes a second"""


@dataclass(frozen=True)
class ImageStats:
    """What is kept of one picture."""

    facts: ImageInfo
    content_hash: bytes
    is_blank: bool
    """it has one colour only"""
    target: Any = None
    """what was seen of its mask or its depth"""
    target_hash: bytes = b""
    """a digest of what is to be said"""


class ImageSurvey(FileSurvey[ImageSample, ImageStats]):
    """Of each usable picture also its sides; and how often each kind of pixels occurs."""

    skip_prefixes = ("hidden: ", "not an image: ")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, reader: ReadEntry) -> None:
        super().__init__(entries, columns, reader)
        self.modes: Counter[str] = Counter()
        self._image_sizes = array("I"), array("I")

    @property
    def image_sizes(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths."""
        return np.stack([np.array(side, dtype=np.int64) for side in self._image_sizes], axis=1)

    def _inspect(self, sample: ImageSample) -> ImageStats:
        pixels, facts = inspect_image(sample.content or sample.source, sample.location)
        blank = bool((pixels == pixels[0, 0]).all())
        beside, answer = self._inspect_target(sample)
        return ImageStats(facts, array_digest(pixels), blank, beside, answer)

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        return None, sample.label.encode("utf-8", "surrogatepass")

    def _add_sample(self, number: int, sample: ImageSample, seen: ImageStats) -> None:
        facts = seen.facts
        odd = {
            "small_image": min(facts.height, facts.width) < MIN_SIDE,
            "aspect_ratio": max(facts.height, facts.width) > MAX_ASPECT_RATIO * min(facts.height, facts.width),
            "large_image": facts.height * facts.width > MAX_PIXELS,
            "single_color": seen.is_blank and min(facts.height, facts.width) >= MIN_SIDE,
            "animated": facts.animated,
            "exif_rotation": facts.rotated,
            "transparent": facts.transparent,
        }
        for kind in (kind for kind, so in odd.items() if so):
            self._tally_sample(kind, sample, f"{facts.width} × {facts.height}")
        self.modes[facts.mode] += 1
        for side, size in zip(self._image_sizes, (facts.height, facts.width), strict=True):
            side.append(size)
        self._add_class_and_hashes(number, sample, seen.content_hash, seen.target_hash)


class MaskSurvey(ImageSurvey):
    """Also how many pixels of each number there are, and in how many masks."""

    def __init__(
        self,
        entries: Sequence[str],
        columns: Mapping[str, str] | None,
        reader: ReadEntry,
        known_classes: ClassMap | None,
    ) -> None:
        super().__init__(entries, columns, reader)
        self.known_classes = known_classes
        self.pixel_counts: Counter[int] = Counter()

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        place = sample.location if sample.target_content else None
        mask = read_mask(
            sample.target_content or sample.mask, self.known_classes.colors if self.known_classes else None, place
        )
        values, counts = np.unique(mask, return_counts=True)
        return (mask.shape, dict(zip(values.tolist(), counts.tolist(), strict=True))), array_digest(mask)

    def _add_sample(self, number: int, sample: ImageSample, seen: ImageStats) -> None:
        shape, counts = seen.target
        if shape != (seen.facts.height, seen.facts.width):
            said = f"{shape[1]} × {shape[0]}, image {seen.facts.width} × {seen.facts.height}"
            self._tally_sample("mask_size_mismatch", sample, said)
        if self.known_classes is not None and (strange := self.known_classes.unknown_values(counts)):
            self._tally_sample(
                "unknown_values", sample, f"{', '.join(map(str, strange[:8]))}{', …' if len(strange) > 8 else ''}"
            )
        self.pixel_counts.update(counts)
        super()._add_sample(number, sample, seen)


class DepthSurvey(ImageSurvey):
    """Also how much of each map is known, and how far away it is."""

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None, reader: ReadEntry, unit: float | None = None
    ) -> None:
        super().__init__(entries, columns, reader)
        self.unit = unit
        self.known_pixels, self.total_pixels = 0, 0
        self._depth_quantiles = array("f"), array("f"), array("f")

    @property
    def depth_quantiles(self) -> NDArray[np.float32]:
        """(N, 3) of each map of which something is known: what is nearest, in the middle and furthest, but for 1 %."""
        return np.stack([np.array(column, dtype=np.float32) for column in self._depth_quantiles], axis=1)

    def _inspect_target(self, sample: ImageSample) -> tuple[Any, bytes]:
        depth = read_depth(
            sample.target_content or sample.depth, self.unit, sample.location if sample.target_content else None
        )
        known = depth[depth > 0]
        points = np.quantile(known, (0.01, 0.5, 0.99)).tolist() if len(known) else []
        return (depth.shape, len(known), depth.size, points), array_digest(depth)

    def _add_sample(self, number: int, sample: ImageSample, seen: ImageStats) -> None:
        (height, width), known, size, points = seen.target
        facts = seen.facts
        if (height, width) != (facts.height, facts.width):
            apart = abs(height * facts.width / (width * facts.height) - 1)
            said = f"{width} × {height}, image {facts.width} × {facts.height}"
            self._tally_sample("depth_aspect_ratio_mismatch" if apart > 0.02 else "depth_size_mismatch", sample, said)
        if not known:
            self._tally_sample(
                "empty_depth_map", sample, f"depth map {os.path.basename(sample.depth)}" if sample.depth else ""
            )
        self.known_pixels, self.total_pixels = self.known_pixels + known, self.total_pixels + size
        for kept, value in zip(self._depth_quantiles, points, strict=False):
            kept.append(value)
        super()._add_sample(number, sample, seen)
