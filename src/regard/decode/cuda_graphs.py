"""Search on CUDA with a step that is recorded once and repeated as a whole.

One token of one sentence is a few hundred launches from Python, which take many times longer than the work itself. All
tensors of a quest stay where they are, so one step is recorded as a CUDA graph and repeated; recordings are kept for the
next batch of the same sizes. To meet few sizes, prompts and sources are padded to round lengths and numbers of rows, and
memory is made for a round number of positions: how much of it a row uses is a number in a tensor, not a size.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.decode.greedy import Single
from regard.decode.protocol import Found, Quest, Until
from regard.decode.settings import Decode
from regard.decode.steps import begin
from regard.decode.stopping import Heard
from regard.nn.kernels.cuda_graph import record
from regard.nn.kernels.pristine import hooked
from regard.types import Batch

KEPT = 6
"""Recordings of a model that are kept for later batches: each holds its memory."""

STRIDE = 8
"""Steps between two looks at whether all rows are finished: a look waits for the device."""

Key = tuple[Any, ...]


class Recording:
    """A quest whose tensors stay where they are, and the recorded step."""

    def __init__(self, quest: Any, graph: bool) -> None:
        self.quest = quest
        self.tensors = _tensors(quest)
        self.graph: torch.cuda.CUDAGraph | None = None
        if graph:
            before = [tensor.clone() for tensor in self.tensors]
            self.graph, _ = record(quest.step, quest.open.device, warm=2)
            for tensor, old in zip(self.tensors, before, strict=True):
                tensor.copy_(old)

    def load(self, quest: Quest) -> None:
        for here, there in zip(self.tensors, _tensors(quest), strict=True):
            here.copy_(there)

    def step(self) -> None:
        if self.graph is None:
            self.quest.step()
        else:
            self.graph.replay()


class Shelf:
    """The recordings of one body. One that is in use is not on the shelf: its tensors can serve one search at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """searches wait for each other; a stream holds it while it begins only, for nobody knows how long it is read"""
        self.recordings: OrderedDict[Key, Recording] = OrderedDict()
        self.broken = False
        """a step could not be recorded: nothing is tried again"""
        self.refused: set[Key] = set()
        """searches of these sizes left no memory for a recording"""

    def take(self, key: Key, quest: Any, graph: bool) -> Recording:
        recording = self.recordings.pop(key, None)
        if recording is None:
            return Recording(quest, graph)
        recording.load(quest)
        recording.quest.body = quest.body
        return recording

    def give(self, key: Key, recording: Recording) -> None:
        recording.quest.body = None  # a recording does not keep its model alive
        self.recordings[key] = recording
        self.recordings.move_to_end(key)
        while len(self.recordings) > KEPT:
            self.recordings.popitem(last=False)

    def empty(self) -> None:
        self.recordings.clear()
        torch.cuda.empty_cache()


_shelves: weakref.WeakKeyDictionary[Any, Shelf] = weakref.WeakKeyDictionary()


def recordable(body: Any, batch: Batch) -> bool:
    """On CUDA, for bodies that offer states of fixed size, unless someone watches: hooks are not repeated by a recording.

    Under autocast weights are converted anew each time, at addresses that do not stay."""
    if not batch.x.is_cuda or not getattr(body, "fixed", False) or torch.is_autocast_enabled("cuda"):
        return False
    works = capabilities.available("cuda_graphs") and not (body in _shelves and _shelves[body].broken)
    return works and not hooked(body)


def recorded(
    body: Any, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray, banned: Tensor | None,
    copies: range | None = None, until: Until | None = None, graph: bool = True,
) -> list[list[Found]] | None:  # fmt: skip
    """None where a step cannot be recorded.

    Without `graph` each step is computed plainly, in the same fixed shapes: for devices that cannot record."""
    with _shelf(body).lock:
        loan = borrow(body, batch, end, limits, settings, requests, banned, copies, graph)
        if loan is None:
            return None
        try:
            for _ in loan.walk(until):
                pass
            return loan.found()
        finally:
            loan.back()


@dataclass(frozen=True)
class Loan:
    """A recording that one search uses."""

    shelf: Shelf
    key: Key
    recording: Recording
    rows: int
    """rows of the quest that do not only fill up"""
    most: int
    """steps at most"""

    def walk(self, until: Until | None = None, soon: bool = False) -> Iterator[dict[int, list[int]]]:
        """A few steps and then a look, with what was heard since the last; nothing where nobody listens.

        `soon`: someone waits for the first word."""
        quest = self.recording.quest
        heard = Heard(quest, until, self.rows) if soon or (until is not None and isinstance(quest, Single)) else None
        done, stride = 0, 1 if soon else STRIDE
        while done < self.most:
            for _ in range(min(stride, self.most - done)):
                self.recording.step()
            done, stride = done + stride, min(2 * stride, STRIDE)
            yield {} if heard is None else heard.listen()
            if not bool(quest.open.any()):
                return

    def found(self) -> list[list[Found]]:
        quest = self.recording.quest
        return quest.gathered(dict(enumerate(quest.answers(list(range(self.rows))))))

    def back(self) -> None:
        with self.shelf.lock:
            self.shelf.give(self.key, self.recording)


def borrow(
    body: Any, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray, banned: Tensor | None,
    copies: range | None = None, graph: bool = True,
) -> Loan | None:  # fmt: skip
    """A recorded search that has begun; None where a step cannot be recorded."""
    count, most, shelf = len(limits), int(limits.max()), _shelf(body)
    key: Key | None = None
    with shelf.lock:
        try:
            batch, limits, requests, longest, room = _rounded(batch, limits, requests, settings.beam > 1)
            tall = torch.full_like(limits, longest)
            quest: Any = begin(body, batch, end, tall, settings, requests, banned, room, copies)
            many = len(quest.limits) // len(limits)
            quest.limits.copy_(limits.repeat_interleave(many))
            key = _key(body, quest, settings, many, end, banned)
            if key in shelf.refused:
                return None
            recording = shelf.take(key, quest, graph)
        except torch.OutOfMemoryError:  # what is kept for later gives way, and this size is computed plainly
            shelf.empty()
            shelf.refused |= set() if key is None else {key}
            return None
        except RuntimeError as error:
            if key is None:  # the prompts could not be read, which has nothing to do with recording
                raise
            shelf.broken = True
            warnings.warn(f"steps of this model cannot be recorded ({error}): generation is slower.", stacklevel=2)
            return None
    return Loan(shelf, key, recording, many * count, most)


def _shelf(body: Any) -> Shelf:
    return _shelves.setdefault(body, Shelf())


def _key(body: nn.Module, quest: Any, settings: Decode, copies: int, end: int, banned: Tensor | None) -> Key:
    """All that a recording depends on, and where the weights lie: other weights at the same place are the same recording.

    How long a prompt is stands in the quest's tensors, whose sizes are round."""
    weights = tuple((parameter.data_ptr(), parameter.dtype) for parameter in body.parameters())
    shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in _tensors(quest))
    step = replace(settings, seed=0, length=0, longer=0, until=(), crop=False)
    silent = None if banned is None else tuple(banned.tolist())
    return weights, shapes, step, copies, end, silent, body.training


def _rounded(
    batch: Batch, limits: Tensor, requests: np.ndarray, beams: bool
) -> tuple[Batch, Tensor, np.ndarray, int, int]:
    """Rows and lengths rounded up, the most tokens that are said, and the room that a row needs for all it reads and says.

    Rows that only fill up repeat the last and may say one token. Of prompts without a source only the room shows in the
    sizes of a quest, so it is what is rounded most; beams share the columns behind the widest prompt, which shows too."""
    B, rows = len(limits), _up(len(limits))
    most = int(limits.max())
    limits, requests = F.pad(limits, (0, rows - B), value=1), np.pad(requests, (0, rows - B))
    batch = batch.rows(torch.arange(rows, device=batch.x.device).clamp(max=B - 1))
    if batch.target is not None:
        longest = _ceil(most, 16)
        return _padded(batch, 16), limits, requests, longest, batch.target.shape[1] - 1 + longest
    batch = _padded(replace(batch, mask=batch.prompt_lengths), 128 if beams else 16)
    assert batch.mask is not None
    furthest = batch.x.shape[1] + most if beams else int((batch.mask.to(limits.device) + limits).max())
    room = _ceil(furthest - 1, 128)
    return batch, limits, requests, room, room


def _padded(batch: Batch, step: int) -> Batch:
    """Sources of a round length. Ids only: pixels and points have their own sizes."""
    if batch.x.ndim != 2:
        return batch
    B, L = batch.x.shape
    more = _ceil(L, step) - L
    changed: dict[str, Any] = {
        name: F.pad(value, (0, more))
        for name in ("x", "types", "where")
        if (value := getattr(batch, name)) is not None and value.shape[-1] == L
    }
    lengths = torch.full((B,), L, device=batch.x.device) if batch.mask is None else batch.mask
    return replace(batch, **changed, mask=F.pad(lengths, (0, more)) if lengths.ndim == 2 else lengths)


def _ceil(length: int, step: int) -> int:
    return -(-length // step) * step


def _up(rows: int) -> int:
    """1, 2, 4, 8, 16, 24, 32, 64, 96, … then by 128: few sizes; rows that only fill up cost little."""
    for step, most in ((1, 2), (4, 8), (8, 32), (32, 256)):
        if rows <= most:
            return _ceil(rows, step)
    return _ceil(rows, 128)


def _tensors(quest: Any) -> list[Tensor]:
    return [*quest.tensors(), *quest.state.tensors()]
