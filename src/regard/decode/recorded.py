"""Search on CUDA with a step that is recorded once and repeated as a whole.

One token of one sentence is a few hundred launches from Python, which take many times longer than the work itself. All
tensors of a quest stay where they are, so one step is recorded as a CUDA graph and repeated; recordings are kept for the
next batch of the same sizes. To meet few sizes, sources are padded to round lengths and numbers of rows.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decode.paths import Found, Generating, Quest
from regard.decode.settings import Decode
from regard.waists import Batch

KEPT = 6
"""Recordings of a model that are kept for later batches: each holds its memory."""

STRIDE = 8
"""Steps between two looks at whether all rows are finished: a look waits for the device."""

Key = tuple[Any, ...]


class Recording:
    """A quest whose tensors stay where they are, and the recorded step."""

    def __init__(self, quest: Quest) -> None:
        self.quest = quest
        self.tensors = _tensors(quest)
        self.graph: torch.cuda.CUDAGraph | None = None

    def record(self) -> None:
        """Recording asks for a few real steps before it; what they change is put back."""
        before = [tensor.clone() for tensor in self.tensors]
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.quest.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.quest.step()
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


_kept: weakref.WeakKeyDictionary[Any, OrderedDict[Key, Recording]] = weakref.WeakKeyDictionary()


def recordable(body: Generating, batch: Batch) -> bool:
    return batch.x.is_cuda and isinstance(body, nn.Module) and not _hooked(body)


def _hooked(body: nn.Module) -> bool:
    """Someone watches: hooks are not repeated by a recording."""
    return any(module._forward_pre_hooks or module._forward_hooks for module in body.modules())


def recorded(
    body: Any, batch: Batch, end: int, limits: Tensor, settings: Decode, requests: np.ndarray, banned: Tensor | None,
    graph: bool = True,
) -> list[list[Found]]:  # fmt: skip
    """Without `graph` each step is computed plainly, in the same fixed shapes: for devices that cannot record."""
    from regard.decode.search import begin

    count = len(limits)
    batch, limits, requests, longest = _rounded(batch, limits, requests)
    assert batch.target is not None
    fixed = torch.full_like(limits, longest)
    quest = begin(body, batch, end, fixed, settings, requests, banned, batch.target.shape[1] - 1 + longest)
    own: Any = quest
    own.limits.copy_(limits.repeat_interleave(len(own.limits) // len(limits)))
    key = _key(body, batch, settings, longest, end, banned)
    held = _kept.setdefault(body, OrderedDict())
    recording = held.get(key)
    if recording is None:
        recording = held[key] = Recording(quest)
        if graph:
            recording.record()
        while len(held) > KEPT:
            held.popitem(last=False)
    else:
        held.move_to_end(key)
        recording.load(quest)
    most = int(limits.max())
    for done in range(0, most, STRIDE):
        for _ in range(min(STRIDE, most - done)):
            recording.step()
        if not bool(recording.quest.open.any()):
            break
    rows = len(recording.quest.open) // len(limits) * count
    found = recording.quest.answers(list(range(rows)))
    return recording.quest.gathered(dict(enumerate(found)))


def _key(body: nn.Module, batch: Batch, settings: Decode, longest: int, end: int, banned: Tensor | None) -> Key:
    """All that a recording depends on, and where the weights lie: other weights at the same place are the same recording."""
    weights = tuple(parameter.data_ptr() for parameter in body.parameters())
    shapes = tuple(None if x is None else tuple(x.shape) for x in (batch.x, batch.mask, batch.target, batch.types))
    silent = None if banned is None else tuple(banned.tolist())
    return hash(weights), shapes, replace(settings, seed=0), longest, end, silent, body.training


def _rounded(batch: Batch, limits: Tensor, requests: np.ndarray) -> tuple[Batch, Tensor, np.ndarray, int]:
    """Rows and lengths rounded up. Rows that only fill up repeat the first and may say one token."""
    B, L = batch.x.shape[:2]
    rows, length = _up(B), -(-L // 16) * 16
    longest = -(-int(limits.max()) // 16) * 16
    chosen = torch.arange(rows, device=batch.x.device).clamp(max=B - 1)
    batch = batch.rows(chosen)
    if batch.x.ndim == 2:  # ids; pixels and points have their own sizes
        lengths = torch.full((B,), L, device=batch.x.device)[chosen] if batch.mask is None else batch.mask
        if lengths.ndim == 2:
            lengths = F.pad(lengths, (0, length - L))
        batch = replace(batch, x=F.pad(batch.x, (0, length - L)), mask=lengths)
    more = rows - B
    return batch, F.pad(limits, (0, more), value=1), np.pad(requests, (0, more)), longest


def _up(rows: int) -> int:
    """1, 2, 4, 8, 16, 24, 32, … then by 32: few sizes, and at most a third too much."""
    for step, most in ((1, 2), (4, 8), (8, 32), (32, 256)):
        if rows <= most:
            return -(-rows // step) * step
    return -(-rows // 128) * 128


def _tensors(quest: Any) -> list[Tensor]:
    return [*quest.tensors(), *quest.state.tensors()]
