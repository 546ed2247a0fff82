"""Recording of attention weights and hidden states, and changes of attention weights, as state of the calls of one thread.

`record_attention(model)` puts a `Recording` into the state of the thread; attention modules look it up when they are
called. Modules are not changed, so other threads that use the same model do not see the recording. The state is a
`threading.local` and not a context variable, because `torch.compile` can guard only the first: without a recording, compiled
code contains no trace of it, and a recorded call runs uncompiled.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import InputError, InputTypeError
from regard.types import AttentionRecord, AttentionRecords

F = TypeVar("F", bound=Callable[..., Any])
Record = Callable[..., Tensor]
"""Receives attention weights, with key and query indices as in `AttentionRecord`, and returns the weights to use."""


class AttentionEdit(Protocol):
    """A change of attention weights before they are used and recorded."""

    def __call__(
        self, name: str, weights: Float[Tensor, "B H Q K"], keys: Int[Tensor, "..."] | None
    ) -> Float[Tensor, "B H Q K"]:
        """Weights to use in the module `name`. `keys`: key of each column, as `AttentionRecord.key_index`."""


@dataclass(frozen=True)
class ZeroHeads:
    """Sets all weights of some heads to 0, so that these heads contribute nothing: `ZeroHeads({"blocks.0.attend": [3]})`."""

    heads: Mapping[str, Sequence[int]]

    def __call__(self, name: str, weights: Tensor, keys: Tensor | None) -> Tensor:
        if not self.heads.get(name):
            return weights
        index = torch.tensor(self.heads[name], device=weights.device)
        return weights.index_fill(1, index, 0.0)


@dataclass(frozen=True)
class HideKeys:
    """Hides key positions in the given modules (None: all): the weights of the other keys sum to 1 again, as if the
    attention mask excluded the hidden keys. A query without any other key gets 0."""

    positions: Collection[int]
    names: Collection[str] | None = None

    def __call__(self, name: str, weights: Tensor, keys: Tensor | None) -> Tensor:
        if self.names is not None and name not in self.names:
            return weights
        index = torch.arange(weights.shape[-1], device=weights.device) if keys is None else keys
        hidden = torch.isin(index, torch.tensor([*self.positions], device=weights.device))
        visible = weights.masked_fill(hidden, 0.0)
        return visible / visible.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


@dataclass(frozen=True)
class Recording:
    """One `record_attention` context: recorded modules by name, and what happens with their weights."""

    names: Mapping[nn.Module, str]
    records: AttentionRecords = field(default_factory=AttentionRecords)
    keep_graph: bool = False  # Keep the weights in the autograd graph, for gradients with respect to the weights.
    callback: Callable[[AttentionRecord], None] | None = None  # Receives each record; records are then not stored.
    edits: Sequence[AttentionEdit] = ()
    layers: Collection[str] | None = None  # Names of the modules to record; None: all. Edits apply to all modules.
    outer: Recording | None = None  # Recording of an enclosing `record_attention` context.


class _ThreadState(threading.local):
    def __init__(self) -> None:
        # an attribute of the instance in every thread: torch.compile guards no class attribute of a threading.local
        self.recording: Recording | None = None
        self.states: dict[nn.Module, list[Tensor]] | None = None  # hidden states by module, inside `record_states`


_state = _ThreadState()


@dataclass(frozen=True)
class AttentionRecorder:
    """Receives the attention weights of one module, for the recordings of this thread that contain the module."""

    module: nn.Module
    recordings: tuple[Recording, ...]

    def prepare(self, x: Tensor) -> Tensor:
        """Input of the module; for weights with gradients, the graph begins here if all earlier parameters are frozen."""
        if x.requires_grad or not any(recording.keep_graph for recording in self.recordings):
            return x
        return x.detach().requires_grad_()

    def __call__(
        self,
        weights: Float[Tensor, "B H Q K"],
        keys: Int[Tensor, "..."] | None = None,
        queries: Int[Tensor, "B Q"] | None = None,
    ) -> Float[Tensor, "B H Q K"]:
        """Record the weights and return the weights to use, which differ if a recording has edits."""
        for recording in self.recordings:
            for edit in recording.edits:
                weights = edit(recording.names[self.module], weights, keys)
        for recording in self.recordings:
            name = recording.names[self.module]
            if recording.layers is None or name in recording.layers:
                kept = weights if recording.keep_graph else weights.detach()
                record = AttentionRecord(name, kept, keys, queries)
                (recording.records.records.append if recording.callback is None else recording.callback)(record)
        return weights


def is_recording() -> bool:
    """Whether this thread is inside a `record_attention` context, of any model."""
    return _state.recording is not None


def recorded(forward: F) -> F:
    """Decorator of `forward`: while this thread records, a call from compiled code leaves the graph, and a
    `RecordedModule` receives its recorder as `record`."""

    def call_recorded(self: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        record = self.recorder() if isinstance(self, RecordedModule) else None
        if record is None:
            return forward(self, x, *args, **kwargs)
        return forward(self, record.prepare(x), *args, **{**kwargs, "record": record})

    @functools.wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _state.recording is None and _state.states is None:
            return forward(*args, **kwargs)
        leaves = torch.compiler.is_compiling()
        return (torch.compiler.disable(call_recorded) if leaves else call_recorded)(*args, **kwargs)  # type: ignore[no-untyped-call]

    return call  # type: ignore[return-value]


def keep_state(module: nn.Module, x: Tensor) -> Tensor:
    """x, added to the hidden states of the layers of a module inside `record_states`."""
    if _state.states is not None:
        _state.states.setdefault(module, []).append(x)
    return x


@contextmanager
def record_states() -> Iterator[dict[nn.Module, list[Tensor]]]:
    """Record the hidden states of all layers in calls of this thread, which run uncompiled: the input of the first layer
    and the output of each layer, by the module that contains the layers, in the order of the first call."""
    outer, _state.states = _state.states, {}
    try:
        yield _state.states
    finally:
        _state.states = outer


class RecordedModule(nn.Module):
    """Base class of attention modules, whose weights `record_attention` records."""

    heads: int

    def recorder(self) -> AttentionRecorder | None:
        """Receiver of the weights of this module; None: no recording of this thread contains the module."""
        found, recording = [], _state.recording
        while recording is not None:
            if self in recording.names:
                found.append(recording)
            recording = recording.outer
        return AttentionRecorder(self, tuple(found)) if found else None


def named_attentions(model: nn.Module) -> dict[str, RecordedModule]:
    """Attention modules of a model by name, e.g. `decoder.blocks.0.cross`."""
    return {
        name.replace("_orig_mod.", "").removeprefix("body.").removesuffix(".inner"): module
        for name, module in model.named_modules()
        if isinstance(module, RecordedModule)
    }


@contextmanager
def record_attention(
    model: nn.Module,
    layers: list[str] | None = None,
    gradients: bool = False,
    callback: Callable[[AttentionRecord], None] | None = None,
    edits: Sequence[AttentionEdit] = (),
) -> Iterator[AttentionRecords]:
    """Record the attention weights of the given layers (None: all) in calls of this thread, which run uncompiled.

    With `gradients`, weights stay in the autograd graph, even if all parameters are frozen. `callback` receives each
    record immediately and records are not stored, because the weights of long sequences may not fit in memory.
    `edits` change weights before they are used and recorded (`ZeroHeads`, `HideKeys`)."""
    if not isinstance(model, nn.Module) or isinstance(layers, str):
        raise InputTypeError("record_attention() expects a model and a list of layer names.")
    modules = named_attentions(model)
    unknown = set(layers or ()) - set(modules)
    if unknown:
        raise InputError(f"Unknown attention layers {sorted(unknown)}. Available: {sorted(modules)}.")
    outer = _state.recording
    names: dict[nn.Module, str] = {module: name for name, module in modules.items()}
    recording = Recording(
        names, keep_graph=gradients, callback=callback, edits=tuple(edits), layers=layers, outer=outer
    )
    _state.recording = recording
    try:
        yield recording.records
    finally:
        _state.recording = outer
