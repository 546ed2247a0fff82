"""Search on CUDA with a step that is recorded once and repeated as a whole.

One token of one sentence is a few hundred launches from Python, which take many times longer than the work itself. All
tensors of a quest stay where they are, so one step is recorded as a CUDA graph and repeated; recordings are kept for the
next batch of the same sizes. To meet few sizes, sources are padded to round lengths and numbers of rows.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decode.paths import Found, Quest
from regard.decode.settings import Decode
from regard.decode.steps import begin
from regard.nn.graphs import record
from regard.waists import Batch

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
    """The recordings of one body, and the lock of those who use them: their tensors can serve one search at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recordings: OrderedDict[Key, Recording] = OrderedDict()
        self.broken = False
        """a step could not be recorded: nothing is tried again"""

    def find(self, key: Key, quest: Any, graph: bool) -> Recording:
        recording = self.recordings.get(key)
        if recording is None:
            recording = Recording(quest, graph)
            self.recordings[key] = recording  # only when it is whole
            while len(self.recordings) > KEPT:
                self.recordings.popitem(last=False)
        else:
            self.recordings.move_to_end(key)
            recording.load(quest)
            recording.quest.body = quest.body
        return recording


_shelves: weakref.WeakKeyDictionary[Any, Shelf] = weakref.WeakKeyDictionary()


def recordable(body: Any, batch: Batch) -> bool:
    """On CUDA, for bodies that offer states of fixed size, unless someone watches: hooks are not repeated by a recording.

    Under autocast weights are converted anew each time, at addresses that do not stay."""
    if not batch.x.is_cuda or not getattr(body, "fixed", False) or torch.is_autocast_enabled("cuda"):
        return False
    hooked = any(module._forward_pre_hooks or module._forward_hooks for module in body.modules())
    return not hooked and not (body in _shelves and _shelves[body].broken)


def recorded(
    body: Any, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray, banned: Tensor | None,
    graph: bool = True,
) -> list[list[Found]] | None:  # fmt: skip
    """None where a step cannot be recorded.

    Without `graph` each step is computed plainly, in the same fixed shapes: for devices that cannot record."""
    count = len(limits)
    batch, limits, requests, longest = _rounded(batch, limits, requests)
    assert batch.target is not None
    fixed = torch.full_like(limits, longest)
    quest: Any = begin(body, batch, end, fixed, settings, requests, banned, batch.target.shape[1] - 1 + longest)
    quest.limits.copy_(limits.repeat_interleave(len(quest.limits) // len(limits)))
    shelf = _shelves.setdefault(body, Shelf())
    with shelf.lock:
        try:
            recording = shelf.find(_key(body, batch, settings, longest, end, banned), quest, graph)
        except RuntimeError:  # no memory left for it, or an operator that cannot be recorded
            shelf.broken = True
            return None
        try:
            _repeat(recording, int(limits.max()))
            rows = len(recording.quest.open) // len(limits) * count
            found = recording.quest.answers(list(range(rows)))
            return recording.quest.gathered(dict(enumerate(found)))
        finally:
            recording.quest.body = None  # a recording does not keep its model alive


def _repeat(recording: Recording, most: int) -> None:
    for done in range(0, most, STRIDE):
        for _ in range(min(STRIDE, most - done)):
            recording.step()
        if not bool(recording.quest.open.any()):
            return


def _key(body: nn.Module, batch: Batch, settings: Decode, longest: int, end: int, banned: Tensor | None) -> Key:
    """All that a recording depends on, and where the weights lie: other weights at the same place are the same recording."""
    weights = tuple((parameter.data_ptr(), parameter.dtype) for parameter in body.parameters())
    shapes = tuple(None if x is None else tuple(x.shape) for x in (batch.x, batch.mask, batch.target, batch.types))
    silent = None if banned is None else tuple(banned.tolist())
    return weights, shapes, replace(settings, seed=0), longest, end, silent, body.training


def _rounded(batch: Batch, limits: Tensor, requests: np.ndarray) -> tuple[Batch, Tensor, np.ndarray, int]:
    """Rows and lengths rounded up. Rows that only fill up repeat the first and may say one token."""
    B, L = batch.x.shape[:2]
    rows, length = _up(B), -(-L // 16) * 16
    longest = -(-int(limits.max()) // 16) * 16
    chosen = torch.arange(rows, device=batch.x.device).clamp(max=B - 1)
    batch = batch.rows(chosen)
    if batch.x.ndim == 2:  # ids; pixels and points have their own sizes
        more: dict[str, Any] = {
            name: F.pad(value, (0, length - L))
            for name in ("types", "where")
            if (value := getattr(batch, name)) is not None and value.shape[-1] == L
        }
        batch = replace(batch, **more)
        lengths = torch.full((B,), L, device=batch.x.device)[chosen] if batch.mask is None else batch.mask
        if lengths.ndim == 2:
            lengths = F.pad(lengths, (0, length - L))
        batch = replace(batch, x=F.pad(batch.x, (0, length - L)), mask=lengths)
    filling = rows - B
    return batch, F.pad(limits, (0, filling), value=1), np.pad(requests, (0, filling)), longest


def _up(rows: int) -> int:
    """1, 2, 4, 8, 16, 24, 32, 64, 96, … then by 128: few sizes; rows that only fill up cost little."""
    for step, most in ((1, 2), (4, 8), (8, 32), (32, 256)):
        if rows <= most:
            return -(-rows // step) * step
    return -(-rows // 128) * 128


def _tensors(quest: Any) -> list[Tensor]:
    return [*quest.tensors(), *quest.state.tensors()]
