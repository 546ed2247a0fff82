"""Looking at pictures for a check: every file is decoded, and what is kept of it is a few numbers and hashes.

Files are decoded by some threads at once, which Pillow allows, and counted in their order.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.files import Complain, chunked
from regard.data.findings import Place
from regard.data.masks import Classes
from regard.data.pictures import Picture, Reader
from regard.data.rows import Empty
from regard.data.survey import Advance, Surveyed, flaw
from regard.errors import DataError
from regard.raster import Facts, look, read_depth, read_mask

THREADS = min(4, os.cpu_count() or 1)
CHUNK = 64
"""pictures that are decoded before any is counted"""
TINY = 8
"""pixels of a side, below which there is nothing to see"""
STRIPE = 10
"""times longer than wide, from which on little is left when the middle is cut out"""
HUGE = 25_000_000
"""pixels, from which on decoding takes a second"""
SKIPPED = ("hidden: ", "no picture: ")


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


class PictureSurvey(Surveyed[Picture]):
    """Of each usable picture also its sides; and how often each class and each kind of pixels occurs.

    Hashes are of the pixels with the answer (0), and of the pixels alone (1)."""

    left_out = ("empty", "encoding", "format", "missing", "partner", "broken")

    def __init__(self, entries: Sequence[str], columns: Mapping[str, str] | None, read: Reader) -> None:
        super().__init__(entries, columns, hashes=2)
        self.reader = read
        self.classes: dict[str, int] = {}
        self.several = self.none = 0
        """what is counted of texts that may have several labels: a picture has one"""
        self.modes: Counter[str] = Counter()
        self._sides = array("I"), array("I")
        self._broken: set[tuple[str, int]] = set()
        self._done = False

    @property
    def sides(self) -> NDArray[np.int64]:
        """(N, 2) heights and widths."""
        return np.stack([np.array(side, dtype=np.int64) for side in self._sides], axis=1)

    def read(self, advance: Advance, name: str) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            for number, entry in enumerate(self.entries):
                for chunk in chunked(self._usable(entry, note=True), CHUNK):
                    for sample, seen in zip(chunk, pool.map(self._seen, chunk), strict=True):
                        if isinstance(seen, DataError):
                            self.tally("broken").add(flaw(seen))
                            self._broken.add((sample.path, sample.line))
                        else:
                            self._look(number, sample, seen)
                    advance(f"decoding {name}", len(self))
        self._done = True

    def place(self, number: int, beside: int | None = None) -> str:
        entry, line = self.entries[self._where[0][number]], self._where[1][number]
        if _is_table(entry):
            return super().place(number, beside)
        return next(sample.source for sample in self._usable(entry) if sample.line == line)

    def _at(self, path: str, line: int, text: str = "", side: int = 0) -> Place:
        return Place(path, line if _is_table(path) else None, text)

    def _items(self, entry: str, complain: Complain) -> Iterator[Picture | Empty]:
        for item in self.reader(entry, self.columns, complain):
            if not isinstance(item, Empty) or not item.text.startswith(SKIPPED):
                yield item
            elif not self._done:
                self.tally("skipped").add(Place(entry, None, item.text))

    def _numbered(self) -> Iterator[Picture]:
        """Those that could be decoded: no others are counted."""
        return (sample for sample in self._everything() if (sample.path, sample.line) not in self._broken)

    def _shown(self, sample: Picture) -> str:
        name = sample.source or f"row {sample.line}"
        inside = os.path.relpath(name, sample.path) if name.startswith(os.path.join(sample.path, "")) else name
        return f"{inside} → {sample.label}" if sample.label else inside

    # -- one picture

    def _seen(self, sample: Picture) -> Seen | DataError:
        """In a thread of its own: nothing is counted here."""
        try:
            pixels, facts = look(sample.content or sample.source, sample.place)
            digest = _digest(pixels)
            blank = bool((pixels == pixels[0, 0]).all())
            beside, answer = self._beside(sample)
            return Seen(facts, digest, blank, beside, answer)
        except DataError as error:
            return error

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
        if sample.label:
            self.classes[sample.label] = self.classes.get(sample.label, 0) + 1
        self._keep(number, sample.line, (_number(seen.digest, seen.answer), _number(seen.digest)))

    def _note(self, kind: str, sample: Picture, text: str) -> None:
        name = sample.source or sample.path
        self.tally(kind).add(Place(name, sample.line if sample.content else None, text))


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
        return (mask.shape, dict(zip(values.tolist(), counts.tolist(), strict=True))), _digest(mask)

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
        return (depth.shape, len(known), depth.size, points), _digest(depth)

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


def _digest(values: NDArray[Any]) -> bytes:
    shape = f"{values.shape} {values.dtype}".encode()
    return blake2b(shape + np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


def _number(*parts: bytes) -> int:
    return int.from_bytes(blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


def _is_table(entry: str) -> bool:
    return os.path.isfile(os.path.expanduser(entry))
