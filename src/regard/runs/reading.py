"""What the training files hold, found by passes over them: they are never in memory as a whole.

What was found is remembered under the content of the files, so that a run goes on without parsing them again. Their bytes
are read each time: only they tell that nothing has changed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TypeVar

from regard import __version__
from regard.data.cache import forget, key_of, recall, remember
from regard.data.entries import parallel
from regard.data.pairs import Pair
from regard.data.split import Fingerprint, Held, fingerprint
from regard.errors import DataError
from regard.runs.order import Sources
from regard.tasks import Task

Say = Callable[[str], None]
T = TypeVar("T")

_FORM = 1
"""Raised when files are parsed in another way than before: what was found then holds no more."""
_PAUSE = 10.0
"""Seconds between two lines about a long pass."""


@dataclass(frozen=True)
class Reading:
    """What is known of the training files before any of it is encoded."""

    train: int
    """pairs to train on"""
    fingerprint: str
    """of their texts"""
    held: tuple[Pair, ...]
    """pairs held out for validation; none where that has files of its own"""
    empty: int
    """rows with an empty side"""
    first_empty: tuple[str, int]
    shared: int = 0
    """pairs to train on whose source is also among the validation files"""


@dataclass
class _Empties:
    count: int = 0
    first: tuple[str, int] = ("", 0)


class Files:
    """The training files of a run, read as often as needed and a pair at a time."""

    def __init__(self, task: Task, sources: Sources, share: float, say: Say, valid: Sequence[Pair] = ()) -> None:
        """`valid`: the pairs of the validation files, where there are any."""
        self.task, self.sources, self.share, self.say = task, sources, share, say
        self._valid = {task.key(pair) for pair in valid}
        self._paths = [path for entry in sources.data for path in parallel(entry) or (entry,)]
        for path in self._paths:
            if os.path.exists(path) and not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
                advice = "Training reads its data several times: write it to a file first."
                raise DataError("is not a file but a stream.", path, advice=advice)
        self.key, self._stamps = "", self._stamp()

    def read(self) -> Reading:
        self.key = self._content_key()
        kept = recall(self.key)
        if kept is not None:
            held = tuple(Pair(*fields) for fields in kept["held"])
            found = Reading(**{**kept, "held": held, "first_empty": tuple(kept["first_empty"])})
        else:
            found = self._read_through()
            if self._stamp() == self._stamps:  # else it is not what was summed
                held_fields = [(pair.source, pair.target, pair.path, pair.line) for pair in found.held]
                remember(self.key, {**asdict(found), "held": held_fields})
        if found.empty:
            path, line = found.first_empty
            self.say(f"  {found.empty:,} rows with an empty side are skipped, the first at {path}, line {line}")
        if found.shared:
            self.say(
                f"  {found.shared:,} training pairs have a source that is also in the validation data: scores will be too good "
                f"('regard check {self.task.name}' lists them)"
            )
        return found

    def pairs(self, found: Reading, doing: str) -> Iterator[Pair]:
        """Those to train on, and an error at the end where they are not what was found.

        What is being done with them is told now and then while it takes long."""
        held, total = {self.task.key(pair) for pair in found.held}, Fingerprint()
        for pair in paced(self._all(), f"pairs {doing}", self.say):
            if not held or self.task.key(pair) not in held:
                total.add(self.task.texts((pair,)))
                yield pair
        if str(total) != found.fingerprint:
            forget(self.key)
            advice = "Start again when it is whole."
            raise DataError("the training data changed while it was read.", ", ".join(self._paths), advice=advice)

    def _read_through(self) -> Reading:
        held, kept, empty = None, [], _Empties()
        if not self.sources.valid:
            held = Held(map(self.task.key, paced(self._all(), "pairs read", self.say)), self.share)
        total, count, shared = Fingerprint(), 0, 0
        for pair in paced(self._all(empty), "pairs read", self.say):
            if held is not None and self.task.key(pair) in held:
                kept.append(pair)
                continue
            count += 1
            shared += self.task.key(pair) in self._valid
            total.add(self.task.texts((pair,)))
        return Reading(count, str(total), tuple(kept), empty.count, empty.first, shared)

    def _all(self, empty: _Empties | None = None) -> Iterator[Pair]:
        for item in self.task.stream(self.sources.data, dict(self.sources.columns) or None):
            if isinstance(item, Pair):
                yield item
            elif empty is not None:
                empty.first = empty.first if empty.count else (item.path, item.line)
                empty.count += 1

    def _content_key(self) -> str:
        """Content, and all that decides how it is parsed and divided; paths too, because places are named by them."""
        sums = [_sum(path) for path in self._paths]
        share = None if self.sources.valid else self.share
        known = fingerprint(sorted(self._valid))
        return key_of(_FORM, __version__, self.task.name, self.sources.data, self.sources.columns, share, sums, known)

    def _stamp(self) -> list[tuple[int, int]]:
        with suppress(OSError):
            return [(found.st_size, found.st_mtime_ns) for found in map(os.stat, self._paths)]
        return []


def _sum(path: str) -> str:
    """Of the bytes. A file that cannot be read has none: the parser says what is wrong with it."""
    with suppress(OSError), open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return ""


def paced(items: Iterable[T], doing: str, say: Say) -> Iterator[T]:
    """The same items; every ten seconds a line says how many there were and how fast."""
    begun = told = time.monotonic()
    count, source = 0, iter(items)
    while part := list(islice(source, 1000)):
        yield from part
        count += len(part)
        now = time.monotonic()
        if now - told > _PAUSE:
            told = now
            say(f"  {count:,} {doing}, {count / (now - begun):,.0f} a second")
