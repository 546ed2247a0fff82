"""Scan of the training files: counts, labels, held-out samples and fingerprint, without loading all data into memory.

The result is cached by the content of the files, so a resumed run does not parse the files again. Their bytes are still
read, because only the content shows changes."""

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
from regard.data.reader import Reader
from regard.data.store import cache_key, delete_note, load_note, save_note
from regard.data.text.tables import SkippedRow
from regard.errors import DataError
from regard.runs.spec import DataSources
from regard.tasks import Task

LogFn = Callable[[str], None]
T = TypeVar("T")

_CACHE_VERSION = 5
"""Version of the parsing in cache keys; must be increased when parsing changes."""
_LOG_INTERVAL = 10.0
"""Seconds between log lines."""


@dataclass(frozen=True)
class ScanResult:
    """Facts about the training files before encoding."""

    train: int
    """number of training samples"""
    fingerprint: str
    """fingerprint of the texts and of the gaps between them"""
    held: tuple[Any, ...]
    """samples held out for validation; empty if there are validation files"""
    empty: int
    """number of skipped rows: empty, or with an empty field"""
    first_empty: tuple[str, int]
    shared: int = 0
    """number of training samples that are also in the validation files"""
    labels: tuple[str, ...] = ()
    """classes in order"""


@dataclass
class _EmptyRows:
    count: int = 0
    first: tuple[str, int] = ("", 0)


class _GapTracker:
    """Marks samples after removed samples: see `Reader.mark_gap`."""

    def __init__(self, task: Task) -> None:
        self.reader = task.reader
        self.first_skipped: Any = None
        """first sample skipped after the last kept sample"""

    def keep(self, sample: Any) -> Any:
        joined = sample if self.first_skipped is None else self.reader.mark_gap(sample, self.first_skipped)
        self.first_skipped = None
        return joined

    def skip(self, sample: Any) -> None:
        self.first_skipped = sample if self.first_skipped is None else self.first_skipped


class TrainingFiles:
    """Training files of a run, read repeatedly as a stream of samples."""

    def __init__(
        self, task: Task, sources: DataSources, valid_fraction: float, log: LogFn, valid: Sequence[Any] = ()
    ) -> None:
        """`valid`: samples of the validation files, if any."""
        self.task, self.sources, self.valid_fraction, self.log = task, sources, valid_fraction, log
        self.reader = task.reader
        self._valid_keys = {self.reader.split_key(sample) for sample in valid}
        self._paths = [path for entry in sources.data for path in self.reader.paths(entry)]
        for path in self._paths:
            if os.path.exists(path) and not os.path.isdir(path) and not stat.S_ISREG(os.stat(path).st_mode):
                advice = "Training reads the data several times; write the stream to a file first."
                raise DataError("expected a regular file, got a stream.", path, advice=advice)
        self.key, self._stamps = "", self._read_stamps()

    def scan(self) -> ScanResult:
        self.key = self._content_key()
        kept = load_note(self.key)
        if kept is not None:
            held = tuple(self.reader.sample_type(**fields) for fields in kept["held"])
            lists = {name: tuple(kept[name]) for name in ("first_empty", "labels")}
            found = ScanResult(**{**kept, **lists, "held": held})
        else:
            found = self._scan_files()
            inside = any(getattr(sample, "content", b"") for sample in found.held)  # image contents are not cached here
            if not inside and self._read_stamps() == self._stamps:  # otherwise the files changed during the scan
                rows = [
                    {name: value for name, value in asdict(sample).items() if value != b""} for sample in found.held
                ]
                save_note(self.key, {**asdict(replace(found, held=())), "held": rows})
        if found.empty:
            path, line = found.first_empty
            self.log(describe_empty_rows(self.task, found.empty, path, line))
        if found.shared:
            self.log(
                f"warning: {found.shared:,} training {self.reader.unit} are also in the validation data: scores are too high. "
                f"'regard check {self.task.name}' lists these {self.reader.unit}."
            )
        return found

    def samples(self, result: ScanResult, action: str) -> Iterator[Any]:
        """Training samples. If the files have changed since the scan, an error is raised at the end.

        `action` is the verb of the progress messages."""
        held, total, rest = (
            {self.reader.split_key(sample) for sample in result.held},
            Fingerprint(),
            _GapTracker(self.task),
        )
        for sample in log_progress(self._iter_samples(), f"{self.reader.unit} {action}", self.log):
            if held and self.reader.split_key(sample) in held:
                rest.skip(sample)
                continue
            joined = rest.keep(sample)
            total.add(_content_parts(self.reader, joined))
            yield joined
        if str(total) != result.fingerprint:
            delete_note(self.key)
            advice = "Start again when the files are complete."
            raise DataError("The training data changed during reading.", ", ".join(self._paths), advice=advice)

    def location_key(self) -> str:
        """Key of the paths and modification times of image or point cloud files, because the store contains paths or colors,
        which names and sizes do not determine. `key` covers tables and folder listings, but not the files listed in
        tables."""
        total = Fingerprint()
        total.add([self.key])
        for entry in self.sources.data:
            if any(os.path.isdir(os.path.expanduser(path)) for path in self.reader.paths(entry)):
                continue
            for item in self.reader.samples((entry,), dict(self.sources.columns) or None):
                if not isinstance(item, SkippedRow):
                    beside = (getattr(item, name, "") for name in ("source", "mask", "depth"))
                    total.add(_file_stamp(path) for path in beside if path)
        return str(total)

    def _scan_files(self) -> ScanResult:
        held, kept, empty = None, [], _EmptyRows()
        valid, rest = _GapTracker(self.task), _GapTracker(self.task)
        if not self.sources.valid:
            keys = map(self.reader.split_key, log_progress(self._iter_samples(), f"{self.reader.unit} read", self.log))
            held = HeldOutKeys(keys, self.valid_fraction, min_keys=self.reader.min_valid_samples)
        total, count, shared, labels = Fingerprint(), 0, 0, dict[str, None]()
        for sample in log_progress(self._iter_samples(empty), f"{self.reader.unit} read", self.log):
            if held is not None and self.reader.split_key(sample) in held:
                rest.skip(sample)
                kept.append(valid.keep(sample))
                continue
            valid.skip(sample)
            count += 1
            shared += self.reader.split_key(sample) in self._valid_keys
            total.add(_content_parts(self.reader, rest.keep(sample)))
            labels.update(dict.fromkeys(self.reader.labels(sample)))
        listed = tuple(labels) if self.reader.keeps_label_order else sort_labels(labels)
        return ScanResult(count, str(total), tuple(kept), empty.count, empty.first, shared, listed)

    def _iter_samples(self, empty: _EmptyRows | None = None) -> Iterator[Any]:
        for item in self.reader.samples(self.sources.data, dict(self.sources.columns) or None):
            if not isinstance(item, SkippedRow):
                yield item
            elif empty is not None:
                empty.first = empty.first if empty.count else (item.path, item.line)
                empty.count += 1

    def _content_key(self) -> str:
        """Cache key of the contents, the settings of parsing and splitting, and the paths, which are part of samples."""
        sums = [_digest(path) for path in self._paths]
        share = None if self.sources.valid else self.valid_fraction
        known = compute_fingerprint([*sorted(self._valid_keys), self.reader.label_source(self.sources.data)])
        kind = self.task.name if self.task.input == "text" else f"{self.task.name} {self.task.input}"
        return cache_key(_CACHE_VERSION, __version__, kind, self.sources.data, self.sources.columns, share, sums, known)

    def _read_stamps(self) -> list[tuple[int | str, int]]:
        with suppress(OSError):
            return [
                (cache_key(_list_files(path)), 0) if os.path.isdir(path) else (found.st_size, found.st_mtime_ns)
                for path, found in zip(self._paths, map(os.stat, self._paths), strict=True)
            ]
        return []


def _content_parts(reader: Reader, sample: Any) -> Iterator[str]:
    """Texts and document boundaries for the fingerprint of a sample."""
    yield from reader.contents(sample)
    yield from reader.boundaries(sample)


def _file_stamp(path: str) -> str:
    """Path, size and modification time of a file; only the name if there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return path
    return f"{os.path.abspath(path)}\0{found.st_size}\0{found.st_mtime_ns}"


def sort_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels sorted numerically if all are integers, otherwise alphabetically."""
    found = sorted(labels)
    return tuple(sorted(found, key=int) if all(label.lstrip("-").isdigit() for label in found) else found)


def describe_empty_rows(task: Task, count: int, path: str, line: int) -> str:
    columns, unit = task.reader.columns, task.reader.unit
    if task.input != "text":
        lacking = f" or without {columns[1].removesuffix('s')}" if len(columns) > 1 else ""
        some = "1 entry" if count == 1 else f"{count:,} entries"
        return (
            f"note: {some} skipped: hidden, no {unit.removesuffix('s')}{lacking}. 'regard check {task.name}' lists all."
        )
    side = "an empty field" if len(columns) > 1 else "no text"
    return f"note: {count:,} rows with {side} skipped; first: {path}, line {line}"


def _digest(path: str) -> str:
    """Hash of the bytes of a file, or of names, sizes and times of the files in a folder, because reading thousands of
    images is slow. Empty for unreadable files: the parser reports the error."""
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
    """The items, with a log line about count and speed every ten seconds."""
    begun = told = time.monotonic()
    count, source = 0, iter(items)
    while part := list(islice(source, 1000)):
        yield from part
        count += len(part)
        now = time.monotonic()
        if now - told > _LOG_INTERVAL:
            told = now
            log(f"  {count:,} {action}, {count / (now - begun):,.0f} per second")
