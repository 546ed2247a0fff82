"""Training files of a run: samples, held-out samples, labels and fingerprints.

A scan of the files gives counts, labels, held-out samples and a fingerprint, without loading all data into memory. Its
result is cached by the content of the files, so a resumed run does not parse the files again. Their bytes are still read,
because only the content shows changes. Validation samples stay in memory."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from regard import __version__
from regard.data.memory_tables import require_saved_table
from regard.data.reader import Reader
from regard.data.store import cache_key, delete_note, load_note, save_note
from regard.data.text.tables import SkippedRow
from regard.errors import DataError, SettingError, name_places

if TYPE_CHECKING:
    from regard.tasks import Task

LogFn = Callable[[str], None]
T = TypeVar("T")

_CACHE_VERSION = 7  # Version of the parsing in cache keys; must be increased when parsing changes.
_LOG_INTERVAL = 10.0  # Seconds between log lines.


@dataclass(frozen=True)
class DataSources:
    """Data files of a run."""

    data: tuple[str, ...]
    valid: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> DataSources:
        """Sources of a run. Raise `DataError` for a table in memory that is not in the cache."""
        for entry in (*saved["data"], *saved["valid"]):
            require_saved_table(entry)
        return cls(tuple(saved["data"]), tuple(saved["valid"]), saved["columns"])


# -- held-out samples and fingerprints, both computed from content hashes

VALID_FRACTION, MAX_VALID_KEYS = 0.02, 2000  # Default fraction and maximum number of held-out keys.
SMALL_VALID_KEYS = 20  # Minimum number of held-out keys for small data, but at most a third of the data.
_CHUNK_KEYS = 1_000_000


class HeldOutKeys:
    """Set of held-out keys: the fraction of distinct keys with the lowest hashes.

    All samples of a key are on the same side of the split. The choice does not depend on the order of the files, and
    added data hardly changes it. Each side has at least one key. Only the first 64 bits of the lowest hashes are stored
    (collision probability for a million keys: 1 in 37 million).

    With the default fraction, at least `min_keys` are held out, but at most a tenth of the keys; for small data
    `SMALL_VALID_KEYS`, but at most a third, because a score on a single sample is meaningless.
    """

    def __init__(
        self,
        keys: Iterable[str],
        fraction: float = VALID_FRACTION,
        max_keys: int = MAX_VALID_KEYS,
        salt: str = "",
        min_keys: int = 1,
    ) -> None:
        if not 0 < fraction < 1 or max_keys < 1:
            raise SettingError(
                "Held-out data needs a fraction between 0 and 1 and a maximum of at least 1 sample, "
                f"got fraction {fraction} and maximum {max_keys}."
            )
        self.salt = salt
        hashes = map(self._hash, keys)
        lowest, enough = np.empty(0, np.uint64), False
        # Chunks grow with the number of stored hashes, so that the hashes are sorted only a few times.
        while len(part := np.fromiter(islice(hashes, max(_CHUNK_KEYS, len(lowest))), np.uint64)):
            lowest = np.unique(np.concatenate([lowest, part]))
            # 1e-9 compensates rounding: 0.29 * 100 = 28.999… counts as 29.
            enough = enough or (int(fraction * len(lowest) + 1e-9) >= max_keys and len(lowest) > max_keys)
            lowest = lowest[:max_keys] if enough else lowest
        if len(lowest) < 2 and not enough:
            problem = f"Holding out samples needs at least 2 distinct samples, got {len(lowest)}."
            raise DataError(problem, advice="Add data, or pass separate validation data: --valid PATH.")
        wanted = int(fraction * len(lowest) + 1e-9)
        if fraction == VALID_FRACTION:
            wanted = max(wanted, min(min_keys, len(lowest) // 10), min(min_keys, SMALL_VALID_KEYS, len(lowest) // 3))
        count = max_keys if enough else max(1, min(wanted, max_keys, len(lowest) - 1))
        self._hashes = frozenset(lowest[:count].tolist())

    def __contains__(self, key: object) -> bool:
        return self._hash(str(key)) in self._hashes

    def _hash(self, key: str) -> int:
        content = f"{self.salt}\0{key}".encode("utf-8", "surrogatepass")
        # big-endian, so that integers sort like the digests
        return int.from_bytes(blake2b(content, digest_size=16).digest()[:8], "big")


def add_texts(digest: blake2b, texts: Iterable[str]) -> None:
    """Add texts to the fingerprint of a sequence of texts, which detects changed data."""
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        # The length prefix distinguishes "ab", "c" from "a", "bc".
        digest.update(len(content).to_bytes(8, "little") + content)


# -- scan


@dataclass(frozen=True)
class ScanResult:
    """Facts about the training files before encoding."""

    fingerprint: str  # fingerprint of the texts and of the gaps between them
    held: tuple[Any, ...]  # samples held out for validation; empty if there are validation files
    empty: int  # number of skipped rows: empty, or with an empty field
    first_empty: tuple[str, int]
    shared: int = 0  # number of training samples that are also in the validation files
    labels: tuple[str, ...] = ()  # classes in order


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
                advice = "Training reads the data several times. Write a file, or pipe the data into --data - instead."
                raise DataError("expected a regular file, got a stream.", path, advice=advice)
        self.key, self._stamps = "", self._read_stamps()

    def scan(self) -> ScanResult:
        # key of the contents, the settings of parsing and splitting, and the paths, which are part of samples
        sums = []
        for path in self._paths:
            digest = _list_files(path) if os.path.isdir(path) else ""
            # empty for unreadable files: the parser reports the error
            with suppress(OSError), open(path, "rb") as file:
                digest = hashlib.file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
            sums.append(digest)
        fraction = None if self.sources.valid else self.valid_fraction
        known = sorted(self._valid_keys), self.reader.label_source(self.sources.data)
        kind = self.task.name if self.task.input == "text" else f"{self.task.name} {self.task.input}"
        data, columns = self.sources.data, tuple(sorted(self.sources.columns.items()))
        self.key = cache_key(_CACHE_VERSION, __version__, kind, data, columns, fraction, sums, known)
        kept = load_note(self.key)
        if kept is not None:
            kept = {name: _to_tuples(value) for name, value in kept.items()}
            found = ScanResult(**kept | {"held": tuple(self.reader.sample_type(**fields) for fields in kept["held"])})
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
        held, total = {self.reader.split_key(sample) for sample in result.held}, blake2b(digest_size=16)
        for is_held, sample in self._split(held, action):
            if not is_held:
                add_texts(total, chain(self.reader.contents(sample), self.reader.boundaries(sample)))
                yield sample
        if total.hexdigest() != result.fingerprint:
            delete_note(self.key)
            advice = "Start again when the files are complete."
            raise DataError("The training data changed during reading.", ", ".join(self._paths), advice=advice)

    def location_key(self) -> str:
        """Key of the paths and modification times of image or point cloud files, because the store contains paths or colors,
        which names and sizes do not determine. `key` covers tables and folder listings, but not the files listed in
        tables."""
        total = blake2b(digest_size=16)
        add_texts(total, [self.key])
        for entry in self.sources.data:
            if any(os.path.isdir(os.path.expanduser(path)) for path in self.reader.paths(entry)):
                continue
            for item in self.reader.samples((entry,), self.sources.columns or None):
                if not isinstance(item, SkippedRow):
                    beside = (getattr(item, name, "") for name in ("source", "mask", "depth"))
                    add_texts(total, (_file_stamp(path) for path in beside if path))
        return total.hexdigest()

    def _scan_files(self) -> ScanResult:
        reader = self.reader
        held: Container[str] = ()
        if not self.sources.valid:
            keys = (reader.split_key(sample) for _, sample in self._split((), "read"))
            held = HeldOutKeys(keys, self.valid_fraction, min_keys=reader.min_valid_samples)
        kept, labels = list[Any](), dict[str, None]()
        total, shared = blake2b(digest_size=16), 0
        for is_held, sample in self._split(held, "read"):
            if is_held:
                kept.append(sample)
                continue
            shared += bool(self._valid_keys) and reader.split_key(sample) in self._valid_keys
            add_texts(total, chain(reader.contents(sample), reader.boundaries(sample)))
            labels.update(dict.fromkeys(reader.labels(sample)))
        listed = tuple(labels) if reader.keeps_label_order else sort_labels(labels)
        return ScanResult(total.hexdigest(), tuple(kept), *self._skipped, shared, listed)

    def _split(self, held: Container[str], action: str) -> Iterator[tuple[bool, Any]]:
        """Each sample with True if its key is held out, with progress messages; skipped rows are counted in `_skipped`. A
        sample after samples of the other side is marked as following a gap: see `Reader.mark_gap`."""
        self._skipped = (0, ("", 0))
        first_other: dict[bool, Any] = {True: None, False: None}  # since the last sample of a side
        rows = self.reader.samples(self.sources.data, self.sources.columns or None)
        for item in log_progress(rows, f"{self.reader.unit} {action}", self.log):
            if isinstance(item, SkippedRow):
                count, first = self._skipped
                self._skipped = (count + 1, first if count else (item.path, item.line))
                continue
            is_held = bool(held) and self.reader.split_key(item) in held
            gap, first_other[is_held] = first_other[is_held], None
            if first_other[not is_held] is None:
                first_other[not is_held] = item
            yield is_held, item if gap is None else self.reader.mark_gap(item, gap)

    def _read_stamps(self) -> list[tuple[int | str, int]]:
        with suppress(OSError):
            return [
                (_list_files(path), 0) if os.path.isdir(path) else (found.st_size, found.st_mtime_ns)
                for path, found in zip(self._paths, map(os.stat, self._paths), strict=True)
            ]
        return []


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
    return name_places(f"note: {count:,} rows with {side} skipped; first: {path}, line {line}")


def _to_tuples(value: Any) -> Any:
    """JSON value with tuples instead of lists."""
    if isinstance(value, dict):
        return {name: _to_tuples(item) for name, item in value.items()}
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


def _list_files(folder: str) -> str:
    """Hash of names, sizes and times of the files in a folder, because reading thousands of images is slow."""
    found = []
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(names):
            with suppress(OSError):
                stamp = os.stat(os.path.join(place, name))
                found.append((os.path.relpath(os.path.join(place, name), folder), stamp.st_size, stamp.st_mtime_ns))
    return cache_key(found)


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


# -- samples in memory


def read_samples(task: Task, paths: Sequence[str], columns: Mapping[str, str], log: LogFn) -> Iterator[Any]:
    """Samples of the files; a message at the end contains the number of skipped rows."""
    empty: list[SkippedRow] = []
    for item in task.reader.samples(paths, columns or None):
        if isinstance(item, SkippedRow):
            empty.append(item)
        else:
            yield item
    if empty:
        log(describe_empty_rows(task, len(empty), empty[0].path, empty[0].line))


def validation_samples(task: Task, sources: DataSources, valid_fraction: float, log: LogFn) -> list[Any]:
    """Samples of the validation files, or the fraction of the training files held out by a content hash."""
    if sources.valid:
        return list(read_samples(task, sources.valid, sources.columns, log))
    held = list(TrainingFiles(task, sources, valid_fraction, log).scan().held)
    log(f"Evaluating on the {task.reader.format_count(len(held))} held out during training.")
    return held


def content_fingerprint(reader: Reader, samples: Sequence[Any]) -> str:
    """Fingerprint of texts and targets."""
    total = blake2b(digest_size=16)
    add_texts(total, (text for sample in samples for text in reader.contents(sample)))
    return total.hexdigest()
