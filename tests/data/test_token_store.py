"""Memory-mapped token stores: training data is never fully in memory, and a cache is valid or rebuilt."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import regard
from conftest import TWELVE, Pairs, facts, rows, same_tensors, stopped_in, train_tiny, write_pairs
from data_files import refused, write
from golden import samples
from regard.data import store as token_store
from regard.data import training_files
from regard.data.store import FillStore, TokenStore, cache_key, cached_store, load_note, save_note, try_lock
from regard.data.text.samples import Pair
from regard.errors import DataError, RunError, SettingError
from regard.runs.folder import RunFolder
from regard.tasks import preparation
from regard.tasks.translate import Translate

ONE = (*TWELVE, "train.steps=1")
HIT = "tokens from the cache"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate cache per test."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


def some_rows(seed: int = 0, count: int = 50, most: int = 400) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, most, length, dtype=np.int32) for length in random.integers(0, 30, count)]


def filled(seed: int = 0) -> FillStore:
    both = some_rows(seed), some_rows(seed + 1)
    parts = (slice(20), slice(0), slice(20, None))
    return lambda: (({"source": both[0][part], "target": both[1][part]}, {"seed": seed}) for part in parts)


def never() -> Iterator[Any]:
    raise AssertionError("it was filled again")


def make(key: str, fill: FillStore, said: list[str] | None = None, vocabulary: int = 400) -> TokenStore:
    sizes, log = {"source": vocabulary, "target": vocabulary}, said if said is not None else []
    return cached_store(key, sizes, fill, log.append)


def holds(found: TokenStore, seed: int = 0) -> bool:
    wanted = some_rows(seed), some_rows(seed + 1)
    sides = found.sides["source"], found.sides["target"]
    return found.metadata["seed"] == seed and all(
        len(a) == len(b) and all(map(np.array_equal, a, b)) for a, b in zip(wanted, sides, strict=True)
    )


def left_in(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize(("vocabulary", "kind"), [(400, np.uint16), (65_536, np.uint16), (65_537, np.int32)])
def test_rows_come_back_as_they_were(vocabulary: int, kind: type) -> None:
    made = make("a", filled(), vocabulary=vocabulary)
    side = made.sides["source"]
    assert holds(made) and side.values.dtype == kind and not side.values.flags.writeable
    assert side.lengths().tolist() == [len(row) for row in some_rows()]
    assert holds(make("a", never)) and np.shares_memory(side[8], side.values)


def test_every_side_has_the_numbers_that_it_needs_and_keys_differ_with_their_inputs() -> None:
    """A length may exceed every token id: a length of 65,536 takes four bytes, and a token still two."""
    wide = [({"text": [np.arange(65_536)], "length": [np.array([65_536])]}, dict[str, Any]())]
    for _ in range(2):  # written, then read
        made = cached_store("wide", {"text": 65_536, "length": token_store.MAX_INT}, lambda: wide, [].append)
        assert made.sides["text"].values.dtype == np.uint16 and made.sides["text"][0][-1] == 65_535
        assert made.sides["length"][0].tolist() == [65_536]
    with pytest.raises(ValueError, match="fit"):
        make("a", lambda: [({"source": [np.array([70_000])], "target": [np.array([1])]}, {})])
    for _ in range(2):
        assert len(make("empty", list).sides["source"]) == 0
    inputs = ((1, "ab", "c"), (1, "a", "bc"), ("1", "ab", "c"), (1, ("ab", "c")), ())
    assert len({cache_key(*parts) for parts in inputs}) == len(inputs) and cache_key(1, ("a",)) == cache_key(1, ["a"])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "cut off": lambda folder: os.truncate(folder / "source.values", 10),
    "flipped": lambda folder: flip(folder / "target.values"),
    "flipped starts": lambda folder: flip(folder / "source.starts"),
    "a file is gone": lambda folder: (folder / "target.starts").unlink(),
    "no record": lambda folder: (folder / "store.json").unlink(),
    "half a record": lambda folder: os.truncate(folder / "store.json", 100),
    "another record": lambda folder: (folder / "store.json").write_text("[]"),
}


@pytest.mark.parametrize("harm", DAMAGE)
def test_a_damaged_store_is_made_again(harm: str, place: Path) -> None:
    make("a", filled())
    DAMAGE[harm](place / "a")
    said: list[str] = []
    assert holds(make("a", filled(), said)) and not said
    assert holds(make("a", never, said)) and HIT in said[0] and left_in(place) == ["a"]


def test_of_a_large_store_the_sizes_are_checked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("a", filled())
    monkeypatch.setattr(token_store, "CHECKSUM_MAX_BYTES", 0)
    flip(place / "a" / "target.values")
    make("a", never)  # by design: reading everything would take minutes
    os.truncate(place / "a" / "target.values", 100)
    assert holds(make("a", filled()))


BUILD = """
import sys, time
from pathlib import Path
import numpy as np
from regard.data.store import cached_store

def fill():
    print("begun", flush=True)
    for part in range(int(sys.argv[1])):
        yield {"source": [np.full(5, part)] * 9, "target": [np.full(7, part)] * 9}, {"pid": 1}
        time.sleep(0.02)

found = cached_store("a", {"source": 400, "target": 400}, fill, print)
print(len(found.sides["source"]), int(found.sides["target"].values.sum()), flush=True)
"""


def builder(parts: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", BUILD, str(parts)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_two_processes_that_build_at_once_end_with_one_store(place: Path) -> None:
    both = [builder(40), builder(40)]  # both builders have started, and each takes 0.8 s
    assert len(left_in(place)) == 2
    said = [process.communicate(timeout=60)[0].split() for process in both]
    assert said[0] == said[1] == ["360", str(9 * 7 * sum(range(40)))]
    assert left_in(place) == ["a"]
    assert len(make("a", never).sides["source"]) == 360


def test_a_builder_that_is_killed_leaves_nothing_that_is_ever_used(place: Path) -> None:
    process = builder(3000)
    time.sleep(0.1)
    process.kill()
    process.communicate()
    (left,) = left_in(place)
    assert left.startswith(".a.") and left.endswith(".writing")
    # recent: its process may run on another machine
    assert holds(make("a", filled())) and left_in(place) == [left, "a"]
    old = time.time() - 7200
    for path in (*(place / left).iterdir(), place / left):
        os.utime(path, (old, old))
    make("b", filled())
    assert left_in(place) == ["a", "b"]


def test_files_of_a_running_process_stay_and_a_store_deleted_while_opening_is_not_used(place: Path) -> None:
    slow = place / f".a.{os.getpid()}.0123abcd.writing"
    slow.mkdir(parents=True)
    os.utime(slow, (1, 1))
    make("b", filled())
    assert slow.exists()
    make("a", filled())
    with (place / "a" / "store.json").open("rb") as opened:
        (place / "a").rename(place / "moved")
        assert try_lock(opened.fileno(), place / "a" / "store.json", shared=True) is False


def test_without_file_locks_stores_are_used_and_never_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    make("a", filled())
    monkeypatch.setenv("REGARD_CACHE_GB", "0")
    make("a", never)
    make("b", filled())
    assert left_in(place) == ["a", "b"]
    with RunFolder(place / "run").lock():
        assert (place / "run" / ".lock").read_text().startswith(str(os.getpid()))


def test_the_least_recently_used_are_evicted_but_none_in_use(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, key in enumerate("abcd"):
        make(key, filled())
        os.utime(place / key / "store.json", (number + 1, number + 1))
    make("a", never)  # used again: now the most recent
    held = make("b", never).sides["source"]
    os.utime(place / "b" / "store.json", (1, 1))
    size = sum(path.stat().st_size for path in (place / "a").iterdir())
    monkeypatch.setenv("REGARD_CACHE_GB", str(3.5 * size / 1e9))
    make("e", filled())
    assert left_in(place) == ["a", "b", "e"] and len(held[3]) == len(some_rows()[3])
    monkeypatch.setenv("REGARD_CACHE_GB", "0")
    make("f", filled())
    assert left_in(place) == ["b", "f"]
    del held
    make("g", filled())
    assert left_in(place) == ["g"]


def test_without_a_writable_folder_tokens_are_kept_for_this_run(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    said: list[str] = []
    assert holds(make("a", filled(), said))
    assert len(said) == 1 and str(tmp_path / "file") in said[0] and "REGARD_CACHE=FOLDER" in said[0]
    assert save_note("key", 1) is None and load_note("key") is None
    for said in ("much", "-1", "nan"):
        monkeypatch.setenv("REGARD_CACHE_GB", said)
        refused("gigabytes", make, "a", filled(), error=SettingError)


def test_a_full_disk_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_store, "write_store", full)
    monkeypatch.setattr("tempfile.tempdir", str(place.parent))
    refused("REGARD_CACHE", make, "a", filled())
    assert left_in(place) == []


def test_a_note_is_whole_or_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_note("key", {"a": ["ä", 1, None]})
    assert load_note("key") == {"a": ["ä", 1, None]} and load_note("other") is None
    note = place.parent / "notes" / "key"
    flip(note)
    assert load_note("key") is None
    monkeypatch.setattr(token_store, "_MAX_NOTES", 3)
    for number in range(5):
        save_note(f"n{number}", number)
    assert len(left_in(note.parent)) == 3 and load_note("n4") == 4


def test_a_second_run_takes_the_tokens_of_the_first_and_is_the_same(few: Path, tmp_path: Path, place: Path) -> None:
    first = train_tiny(few, tmp_path / "a", *TWELVE)
    second = train_tiny(few, tmp_path / "b", *TWELVE)
    assert HIT not in first and HIT in second and len(left_in(place)) == 1
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    assert facts(tmp_path / "a")["data_stats"] == facts(tmp_path / "b")["data_stats"]
    same_tensors(tmp_path / "a/model.safetensors", tmp_path / "b/model.safetensors")
    shutil.rmtree(place.parent)
    assert HIT not in train_tiny(few, tmp_path / "c", *TWELVE) and rows(tmp_path / "c") == rows(tmp_path / "a")


def test_the_key_depends_on_content_and_settings(few: Path, pairs: Pairs, tmp_path: Path, place: Path) -> None:
    train_tiny(few, tmp_path / "first", *ONE)
    settings = "data.vocab_size=300", "data.max_length=20", "train.batch_tokens=64", "data.valid_fraction=0.2"
    others: list[tuple[Any, tuple[str, ...], bool]] = [
        (write(tmp_path / "a.tsv.gz", few.read_bytes()), (), True),
        (few, ("train.lr=1e-5", "model.width=64"), True),
        *((few, (setting,), False) for setting in settings),
        (write_pairs(tmp_path / "more.tsv", pairs[:41]), (), False),
    ]
    for number, (data, more, hit) in enumerate(others):
        said = train_tiny(data, tmp_path / str(number), *ONE, *more)
        assert (HIT in said) == hit, (data, more)


@pytest.mark.parametrize("changed", ["training", "validation"])
def test_a_file_changed_in_place_with_the_same_time_is_noticed(changed: str, pairs: Pairs, tmp_path: Path) -> None:
    files = {"training": tmp_path / "t.tsv", "validation": tmp_path / "v.tsv"}
    write_pairs(files["training"], pairs[:26]), write_pairs(files["validation"], pairs[26:30])
    with stopped_in(6):
        train_tiny(files["training"], tmp_path / "run", *TWELVE, valid=str(files["validation"]))
    before, content = files[changed].stat(), files[changed].read_bytes()
    files[changed].write_bytes(content.replace(b"e", b"a"))
    os.utime(files[changed], ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(f"{changed} data", train_tiny, (), tmp_path / "run", *TWELVE, resume=True, error=RunError)
    files[changed].write_bytes(content)
    assert "Resuming after step 6" in train_tiny((), tmp_path / "run", *TWELVE, resume=True)


def test_files_are_not_parsed_again_where_nothing_has_changed(few: Path, tmp_path: Path, monkeypatch: Any) -> None:
    with stopped_in(6):
        train_tiny(few, tmp_path / "run", *TWELVE)
    monkeypatch.setattr(training_files.TrainingFiles, "_split", lambda *_: pytest.fail("they were"))
    assert "held out" in train_tiny((), tmp_path / "run", *TWELVE, resume=True)


@pytest.mark.parametrize("when", ["before the tokenizer", "before the tokens"])
def test_data_that_changes_meanwhile_is_refused(when: str, pairs: Pairs, tmp_path: Path, monkeypatch: Any) -> None:
    step = {"before the tokenizer": "_make_tokenizer", "before the tokens": "_load_or_encode"}[when]
    notes = tmp_path / "cache/notes"
    data, real = write_pairs(tmp_path / "d.tsv", pairs[:30]), getattr(preparation, step)

    def grown(*given: Any) -> Any:
        write_pairs(data, pairs[:31])
        return real(*given)

    with monkeypatch.context() as patch, pytest.raises(DataError, match="changed"):
        patch.setattr(preparation, step, grown)
        train_tiny(data, tmp_path / "run", *ONE)
    # a valid tokenizer
    assert not (tmp_path / "run").exists() and len(list(notes.iterdir())) == (step == "_load_or_encode")
    assert "training pairs" in train_tiny(data, tmp_path / "run", *ONE)


@pytest.mark.slow
def test_training_pairs_are_never_all_in_memory(pairs: Pairs, tmp_path: Path, monkeypatch: Any) -> None:
    data = write_pairs(tmp_path / "d.tsv", [(f"{source} {n}", target) for n in range(4) for source, target in pairs])
    seen: list[int] = []
    calls = itertools.count()
    gc.collect()
    others = sum(type(thing) is Pair for thing in gc.get_objects())  # created by other tests

    def count() -> None:
        seen.append(sum(type(thing) is Pair for thing in gc.get_objects()) - others)

    def counted(*given: Any, real: Any = Translate.encode) -> Any:
        if next(calls) % 8 == 0:  # listing all objects is slow
            count()
        return real(*given)

    monkeypatch.setattr(Translate, "encode", counted)
    monkeypatch.setattr(preparation, "ENCODE_BATCH", 500)
    monkeypatch.setattr("regard.tasks.preparation.PreparedData.__post_init__", lambda _: count(), raising=False)
    train_tiny(data, tmp_path / "run", *ONE, "data.valid_fraction=0.01", "data.vocab_size=300")
    found = facts(tmp_path / "run")["data_stats"]
    assert found["train"] + found["valid"] == 4 * len(pairs) >= 6000
    # one chunk, the block of a scan, the rows for header detection, and the validation pairs
    assert max(seen) <= 500 + 1000 + 50 + 2 * found["valid"]
    assert len(seen) >= 10


def test_a_stream_is_refused_and_a_long_read_reports_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "d.tsv")
    refused("stream", train_tiny, tmp_path / "d.tsv", tmp_path / "run", *ONE)
    clock: Iterator[int] = iter(range(0, 1000, 6))
    monkeypatch.setattr("regard.data.training_files.time.monotonic", lambda: next(clock))
    said: list[str] = []
    assert list(training_files.log_progress(range(4500), "pairs read", said.append)) == list(range(4500))
    assert said == ["  2,000 pairs read, 167 per second", "  4,000 pairs read, 167 per second"]


def test_systems_with_different_separators_do_not_share_tokens(tmp_path: Path) -> None:
    """BERT writes one separator between two texts, Longformer two: the same samples have different tokens."""
    data = samples.choices(tmp_path)
    settings = {"train.steps": 1, "train.warmup_steps": 0, "data.vocab_size": 300, "data.max_length": 48}
    sizes = {"model.width": 8, "model.depth": 1, "model.heads": 2, "model.ffn_dim": 8}

    def first_loss(model: str, run: str) -> Any:
        console = Console(file=io.StringIO())
        regard.train("choose", data, model=model, out=tmp_path / run, settings=settings | sizes, console=console)
        return rows(tmp_path / run, "train")[0]["loss"]

    alone = first_loss("longformer-mini", "alone")
    shutil.rmtree(tmp_path / "cache")
    first_loss("bert-mini", "other")
    assert first_loss("longformer-mini", "after") == alone
