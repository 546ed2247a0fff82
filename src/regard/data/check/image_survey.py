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

from regard.data.check.file_survey import FileSurvey, digest
from regard.data.images.image_io import Facts, look, read_depth, read_mask
from regard.data.images.labeled import Picture, Reader
from regard.data.images.masks import Classes

TINY = 8
"""pixels of a side, below which there is nothing to see"""
STRIPE = 10
"""times longer than wide, from which on little is left when the middle is cut out"""
HUGE = 25_000_000
"""pixels, from which on decoding takes a second"""


@dataclass(frozen=True)
class Seen:
    """What is kept of one picture."""

    facts: Facts
    digest: bytes
    blank: bool
    """it has one colour only"""
    beside: Any = None
    """what was seen of its mask or its depth"""
    answer: bytes = b""
    """a digest of what is to be said"""


class PictureSurvey(FileSurvey[Picture, Seen]):
    """Of each usable picture also its sides; and how often each kind of pixels occurs."""

    skipped = ("hidden: ", "no picture: ")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Reader) -> None:
        super().__init__(entries, columns, read)
        self.modes: Counter[str] = Counter()
        self._sides = array("I"), array("I")

    @property
    def sides(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths."""
        return np.stack([np.array(side, dtype=np.int64) for side in self._sides], axis=1)

    def _decoded(self, sample: Picture) -> Seen:
        pixels, facts = look(sample.content or sample.source, sample.place)
        blank = bool((pixels == pixels[0, 0]).all())
        beside, answer = self._beside(sample)
        return Seen(facts, digest(pixels), blank, beside, answer)

    def _beside(self, sample: Picture) -> tuple[Any, bytes]:
        return None, sample.label.encode("utf-8", "surrogatepass")

    def _look(self, number: int, sample: Picture, seen: Seen) -> None:
        facts = seen.facts
        odd = {
            "tiny": min(facts.height, facts.width) < TINY,
            "stripe": max(facts.height, facts.width) > STRIPE * min(facts.height, facts.width),
            "huge": facts.height * facts.width > HUGE,
            "blank": seen.blank and min(facts.height, facts.width) >= TINY,
            "animated": facts.animated,
            "turned": facts.turned,
            "clear": facts.clear,
        }
        for kind in (kind for kind, so in odd.items() if so):
            self._note(kind, sample, f"{facts.width} × {facts.height}")
        self.modes[facts.mode] += 1
        for side, size in zip(self._sides, (facts.height, facts.width), strict=True):
            side.append(size)
        self._count(number, sample, seen.digest, seen.answer)


class MaskSurvey(PictureSurvey):
    """Also how many pixels of each number there are, and in how many masks."""

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Reader, known: Classes | None
    ) -> None:
        super().__init__(entries, columns, read)
        self.known = known
        self.pixels: Counter[int] = Counter()

    def _beside(self, sample: Picture) -> tuple[Any, bytes]:
        place = sample.place if sample.beside else None
        mask = read_mask(sample.beside or sample.mask, self.known.colours if self.known else None, place)
        values, counts = np.unique(mask, return_counts=True)
        return (mask.shape, dict(zip(values.tolist(), counts.tolist(), strict=True))), digest(mask)

    def _look(self, number: int, sample: Picture, seen: Seen) -> None:
        shape, counts = seen.beside
        if shape != (seen.facts.height, seen.facts.width):
            said = f"{shape[1]} × {shape[0]}, and its picture {seen.facts.width} × {seen.facts.height}"
            self._note("mask_size", sample, said)
        if self.known is not None and (strange := self.known.strange(counts)):
            self._note(
                "unknown_values", sample, f"{', '.join(map(str, strange[:8]))}{', …' if len(strange) > 8 else ''}"
            )
        self.pixels.update(counts)
        super()._look(number, sample, seen)


class DepthSurvey(PictureSurvey):
    """Also how much of each map is known, and how far away it is."""

    def __init__(
        self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Reader, unit: float | None = None
    ) -> None:
        super().__init__(entries, columns, read)
        self.unit = unit
        self.known, self.all = 0, 0
        self._metres = array("f"), array("f"), array("f")

    @property
    def metres(self) -> NDArray[np.float32]:
        """(N, 3) of each map of which something is known: what is nearest, in the middle and furthest, but for 1 %."""
        return np.stack([np.array(column, dtype=np.float32) for column in self._metres], axis=1)

    def _beside(self, sample: Picture) -> tuple[Any, bytes]:
        depth = read_depth(sample.beside or sample.depth, self.unit, sample.place if sample.beside else None)
        known = depth[depth > 0]
        points = np.quantile(known, (0.01, 0.5, 0.99)).tolist() if len(known) else []
        return (depth.shape, len(known), depth.size, points), digest(depth)

    def _look(self, number: int, sample: Picture, seen: Seen) -> None:
        (height, width), known, size, points = seen.beside
        facts = seen.facts
        if (height, width) != (facts.height, facts.width):
            apart = abs(height * facts.width / (width * facts.height) - 1)
            said = f"{width} × {height}, and its picture {facts.width} × {facts.height}"
            self._note("depth_shape" if apart > 0.02 else "depth_size", sample, said)
        if not known:
            self._note("depth_unknown", sample, f"in {os.path.basename(sample.depth)}" if sample.depth else "")
        self.known, self.all = self.known + known, self.all + size
        for kept, value in zip(self._metres, points, strict=False):
            kept.append(value)
        super()._look(number, sample, seen)
