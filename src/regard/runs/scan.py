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
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from regard import __version__
from regard.data.batching.split import Fingerprint, HeldOutKeys, compute_fingerprint
from regard.data.store.cache import cache_key, delete_note, load_note, save_note
from regard.data.text.tables import SkippedRow
from regard.errors import DataError
from regard.runs.spec import DataSources
from regard.tasks import Task

LogFn = Callable[[str], None]
T = TypeVar("T")

_CACHE_VERSION = 5
"""Raised when files are parsed in another way than before: what was found then holds no more."""
_LOG_INTERVAL = 10.0
"""Seconds between two lines about a long pass."""


@dataclass(frozen=True)
class ScanResult:
    """What is known of the training files before any of it is encoded."""

    train: int
    """samples to train on"""
    fingerprint: str
    """of their texts, and of how they join"""
    held: tuple[Any, ...]
    """samples held out for validation; none where that has files of its own"""
    empty: int
    """rows that hold nothing, or an empty side"""
    first_empty: tuple[str, int]
    shared: int = 0
    """samples to train on that are also among the validation files"""
    labels: tuple[str, ...] = ()
    """the classes that occur, in their order"""


@dataclass
class _EmptyRows:
    count: int = 0
    first: tuple[str, int] = ("", 0)


class _GapTracker:
    """Some samples out of all, in their order: those that follow a hole are told so."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.first_skipped: Any = None
        """the first that was left out since one was taken"""

    def keep(self, sample: Any) -> Any:
        joined = sample if self.first_skipped is None else self.task.mark_gap(sample, self.first_skipped)
        self.first_skipped = None
        return joined

    def skip(self, sample: Any) -> None:
        self.first_skipped = sample if self.first_skipped is None else self.first_skipped


class TrainingFiles:
    """The training files of a run, read as often as needed and a sample at a time."""

    def __init__(
        self, task: Task, sources: DataSources, valid_fraction: float, log: LogFn, valid: Sequence[Any] = ()
    ) -> None:
        """`valid`: the samples of the validation files, where there are any."""
        self.task, self.sources, self.valid_fraction, self.log = task, sources, valid_fraction, log
        self._valid_keys = {task.split_key(sample) for sample in valid}
        self._paths = [path for entry in sources.data for path in task.paths(entry)]
        for path in self._paths:
            if os.path.exists(path) and not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
                advice = "Training reads the data several times; write the stream to a file first."
                raise DataError("expected a regular file, got a stream.", path, advice=advice)
        self.key, self._stamps = "", self._read_stamps()

    def scan(self) -> ScanResult:
        self.key = self._content_key()
        kept = load_note(self.key)
        if kept is not None:
            held = tuple(self.task.sample_type(**fields) for fields in kept["held"])
            lists = {name: tuple(kept[name]) for name in ("first_empty", "labels")}
            found = ScanResult(**{**kept, **lists, "held": held})
        else:
            found = self._scan_files()
            inside = any(getattr(sample, "content", b"") for sample in found.held)  # pictures are no notes
            if not inside and self._read_stamps() == self._stamps:  # else it is not what was summed
                rows = [
                    {name: value for name, value in asdict(sample).items() if value != b""} for sample in found.held
                ]
                save_note(self.key, {**asdict(replace(found, held=())), "held": rows})
        if found.empty:
            path, line = found.first_empty
            self.log(describe_empty_rows(self.task, found.empty, path, line))
        if found.shared:
            self.log(
                f"warning: {found.shared:,} training {self.task.unit} are also in the validation data: scores are too high. "
                f"'regard check {self.task.name}' lists these {self.task.unit}."
            )
        return found

    def samples(self, result: ScanResult, action: str) -> Iterator[Any]:
        """Those to train on, and an error at the end where they are not what was found.

        What is being done with them is told now and then while it takes long."""
        held, total, rest = (
            {self.task.split_key(sample) for sample in result.held},
            Fingerprint(),
            _GapTracker(self.task),
        )
        for sample in log_progress(self._iter_samples(), f"{self.task.unit} {action}", self.log):
            if held and self.task.split_key(sample) in held:
                rest.skip(sample)
                continue
            joined = rest.keep(sample)
            total.add(_content_parts(self.task, joined))
            yield joined
        if str(total) != result.fingerprint:
            delete_note(self.key)
            advice = "Start again when the files are complete."
            raise DataError("The training data changed during reading.", ", ".join(self._paths), advice=advice)

    def location_key(self) -> str:
        """A name for where pictures or clouds lie, and for when they were written: what is stored of them is their paths, or
        colours that no name or size tells. Tables are summed and folders listed by `key`; what tables point to is looked at
        here."""
        total = Fingerprint()
        total.add([self.key])
        for entry in self.sources.data:
            if any(os.path.isdir(os.path.expanduser(path)) for path in self.task.paths(entry)):
                continue
            for item in self.task.iter_samples((entry,), dict(self.sources.columns) or None):
                if not isinstance(item, SkippedRow):
                    beside = (getattr(item, name, "") for name in ("source", "mask", "depth"))
                    total.add(_file_stamp(path) for path in beside if path)
        return str(total)

    def _scan_files(self) -> ScanResult:
        held, kept, empty = None, [], _EmptyRows()
        valid, rest = _GapTracker(self.task), _GapTracker(self.task)
        if not self.sources.valid:
            keys = map(self.task.split_key, log_progress(self._iter_samples(), f"{self.task.unit} read", self.log))
            held = HeldOutKeys(keys, self.valid_fraction, min_keys=self.task.min_valid_samples)
        total, count, shared, labels = Fingerprint(), 0, 0, dict[str, None]()
        for sample in log_progress(self._iter_samples(empty), f"{self.task.unit} read", self.log):
            if held is not None and self.task.split_key(sample) in held:
                rest.skip(sample)
                kept.append(valid.keep(sample))
                continue
            valid.skip(sample)
            count += 1
            shared += self.task.split_key(sample) in self._valid_keys
            total.add(_content_parts(self.task, rest.keep(sample)))
            labels.update(dict.fromkeys(self.task.labels(sample)))
        listed = tuple(labels) if self.task.keeps_label_order else sort_labels(labels)
        return ScanResult(count, str(total), tuple(kept), empty.count, empty.first, shared, listed)

    def _iter_samples(self, empty: _EmptyRows | None = None) -> Iterator[Any]:
        for item in self.task.iter_samples(self.sources.data, dict(self.sources.columns) or None):
            if not isinstance(item, SkippedRow):
                yield item
            elif empty is not None:
                empty.first = empty.first if empty.count else (item.path, item.line)
                empty.count += 1

    def _content_key(self) -> str:
        """Content, and all that decides how it is parsed and divided; paths too, because places are named by them."""
        sums = [_digest(path) for path in self._paths]
        share = None if self.sources.valid else self.valid_fraction
        known = compute_fingerprint([*sorted(self._valid_keys), self.task.label_source(self.sources.data)])
        kind = self.task.name if self.task.modality == "text" else f"{self.task.name} {self.task.modality}"
        return cache_key(_CACHE_VERSION, __version__, kind, self.sources.data, self.sources.columns, share, sums, known)

    def _read_stamps(self) -> list[tuple[int | str, int]]:
        with suppress(OSError):
            return [
                (cache_key(_list_files(path)), 0) if os.path.isdir(path) else (found.st_size, found.st_mtime_ns)
                for path, found in zip(self._paths, map(os.stat, self._paths), strict=True)
            ]
        return []


def _content_parts(task: Task, sample: Any) -> Iterator[str]:
    """By what a sample is known again. Passages alike may be one document or several, whose tokens differ."""
    yield from task.fingerprint_texts((sample,))
    if hasattr(sample, "starts_document"):
        yield f"{sample.starts_document} {sample.after_gap}"
    if "document" in task.fields:
        yield str(sample.document)


def _file_stamp(path: str) -> str:
    """A file by its place and its time; what lies in a table has a name alone."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return f"{os.path.abspath(path)}\0{found.st_size}\0{found.st_mtime_ns}"


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Numbers by their value, words by the alphabet."""
    found = sorted(labels)
    return tuple(sorted(found, key=int) if all(label.lstrip("-").isdigit() for label in found) else found)


def describe_empty_rows(task: Task, count: int, path: str, line: int) -> str:
    if task.modality != "text":
        lacking = f" or without {task.columns[1].removesuffix('s')}" if len(task.columns) > 1 else ""
        some = "1 entry" if count == 1 else f"{count:,} entries"
        return f"note: {some} skipped: hidden, no {task.unit.removesuffix('s')}{lacking}. 'regard check {task.name}' lists all."
    side = "an empty field" if len(task.columns) > 1 else "no text"
    return f"note: {count:,} rows with {side} skipped; first: {path}, line {line}"


def _digest(path: str) -> str:
    """Of the bytes, and of a folder's pictures their names, sizes and times: thousands are not read for it. A file that cannot
    be read has none: the parser says what is wrong with it."""
    if os.path.isdir(path):
        return cache_key(_list_files(path))
    with suppress(OSError), open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return ""


def _list_files(folder: str) -> list[tuple[str, int, int]]:
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            with suppress(OSError):
                stamp = os.stat(os.path.join(place, name))
                found.append((os.path.relpath(os.path.join(place, name), folder), stamp.st_size, stamp.st_mtime_ns))
    return found


def log_progress(items: Iterable[T], action: str, log: LogFn) -> Iterator[T]:
    """The same items; every ten seconds a line says how many there were and how fast."""
    begun = told = time.monotonic()
    count, source = 0, iter(items)
    while part := list(islice(source, 1000)):
        yield from part
        count += len(part)
        now = time.monotonic()
        if now - told > _LOG_INTERVAL:
            told = now
            log(f"  {count:,} {action}, {count / (now - begun):,.0f} per second")
