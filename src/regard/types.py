"""The four small things that everything passes through.

Batch   inputs -> body      States   body -> head      Answer   task -> a person      Seen   what was watched
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Offsets:
    """Where the documents of a packed row begin and end: document i is `[starts[i], starts[i + 1])`.

    `longest` is a Python number at least as large as the longest document, rounded, so that compiled code sees few.
    """

    starts: Tensor
    max_length: int

    def document_ids(self, positions: Tensor) -> Tensor:
        """The number of the document that each position belongs to; empty documents have none."""
        return torch.searchsorted(self.starts, positions.contiguous(), right=True) - 1

    def positions(self, length: int) -> Tensor:
        """(1, length): each position counted from the start of its own document."""
        at = torch.arange(length, device=self.starts.device)[None]
        return at - self.starts[self.document_ids(at)]


@dataclass(frozen=True)
class Batch:
    """What a body is given. B rows, L positions; a packed batch has one row of many documents and `offsets`."""

    inputs: Tensor
    """ids (B, L), pixels (B, 3, H, W) or points; pixels as bytes are not yet what a body reads"""
    mask: Tensor | None = None
    """which positions of x are real: lengths (B,) or True marks (B, L); None: all"""
    decoder_inputs: Tensor | None = None
    """ids (B, T) that a decoder reads"""
    decoder_mask: Tensor | None = None
    labels: Tensor | None = None
    """what the head should say; `IGNORE` where nothing is asked"""
    label_positions: Tensor | None = None
    """(M,) which positions of x, counted through all rows, the labels are of; None: of all, or of the rows"""
    nsp_labels: Tensor | None = None
    """(S,) whether the second text of each row follows its first: 0 it does, 1 it does not; `IGNORE` where nobody asks"""
    token_types: Tensor | None = None
    """(B, L) the number of the text that each position belongs to, where a row holds two"""
    global_tokens: Tensor | None = None
    """(B, L) True where a token sees all and is seen by all (Longformer's global ones); None: none"""
    max_global_tokens: int | None = None
    """a number that no row has more of them than; None: it is counted, for which a GPU is waited for"""
    positions: Tensor | None = None
    """positions of x when they are not 0, 1, 2, …"""
    augment_params: Tensor | None = None
    """(B, n) how each picture is cut out, mirrored and coloured before it is looked at; None: not at all"""
    augmentation: Any = None
    """what these changes can be"""
    image_index: Tensor | None = None
    """(B,) which picture of x each row of the target speaks of, where several speak of one; None: row n of picture n"""
    offsets: Offsets | None = None
    decoder_offsets: Offsets | None = None

    @property
    def prompt(self) -> Tensor:
        """(B, P) what generation goes on from: the decoder's side, or x where there is one side only."""
        return self.inputs if self.decoder_inputs is None else self.decoder_inputs

    @property
    def prompt_lengths(self) -> Tensor | None:
        """(B,) how much of each row of the prompt is real, from its beginning; None: all of it."""
        mask = self.mask if self.decoder_inputs is None else self.decoder_mask
        return mask if mask is None or mask.ndim == 1 else mask.sum(1)

    def last_tokens(self) -> Tensor:
        """(B,) the last real token of each prompt."""
        lengths = self.prompt_lengths
        return self.prompt[:, -1] if lengths is None else self.prompt.gather(1, lengths[:, None] - 1)[:, 0]

    def select_rows(self, rows: Tensor) -> Batch:
        """These rows, in this order; not of a packed batch."""
        if self.offsets is not None or self.decoder_offsets is not None:
            raise ValueError("a packed batch has one row")
        if self.label_positions is not None:
            raise ValueError("rows of a batch with label_positions cannot be selected: positions count across all rows")
        if self.image_index is not None:
            raise ValueError("rows of a batch with image_index cannot be selected: rows share images")
        taken = self.map(lambda tensor: tensor[rows])
        # positions that are the same for all rows have no axis of rows
        return taken if self.positions is None or self.positions.ndim > 1 else replace(taken, positions=self.positions)

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """In page-locked memory, from where `to` a GPU does not wait. The loader's thread calls it by this name."""
        return self.map(lambda tensor: tensor.pin_memory())

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch of changed tensors."""
        changed: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                changed[item.name] = function(value)
            elif isinstance(value, Offsets):
                changed[item.name] = replace(value, starts=function(value.starts))
        return replace(self, **changed)

    def tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found


IGNORE = -100
"""The label of a position where nothing is asked."""


@dataclass(frozen=True)
class BodyOutput:
    """What a body returns, whatever it read."""

    sequence: Tensor
    """(B, L, D) the last states"""
    pooled: Tensor | None = None
    """(B, D) one vector for the whole input, where the system has one"""
    hidden_states: tuple[Tensor, ...] = ()
    """states after the layers that were asked for"""
    cross_states: Tensor | None = None
    """(B, S, D) what a decoder regarded"""
    act_steps: Tensor | None = None
    aux_losses: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """What a task says to a person; `value` is plain Python, so that JSON, page and terminal show the same."""

    value: Any
    score: tuple[float, ...] = ()
    tokens: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionRecord:
    """What one attention did once: weights (B, H, Q, K), and which key each column is (None: column k is key k)."""

    name: str
    weights: Tensor
    key_index: Tensor | None = None
    """(B or 1, H or 1, Q, K); -1 where a column is none"""
    query_index: Tensor | None = None
    """(B, Q) which query each row is, -1 where it is none; None: row q is query q"""


@dataclass
class AttentionRecords:
    """What a watcher collected, in the order in which it happened."""

    records: list[AttentionRecord] = field(default_factory=list)

    def names(self) -> list[str]:
        return list(dict.fromkeys(look.name for look in self.records))

    def weights(self, name: str) -> Tensor:
        """The weights of one attention; steps of a decoding are joined along the queries, narrow ones padded by 0."""
        parts = [look.weights for look in self.records if look.name == name]
        if not parts:
            raise KeyError(f"nothing was seen of '{name}'; there is {self.names()}")
        widest = max(part.shape[-1] for part in parts)
        return torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in parts], dim=-2)
