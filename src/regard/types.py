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
    longest: int

    def document(self, at: Tensor) -> Tensor:
        """The number of the document that each position belongs to; empty documents have none."""
        return torch.searchsorted(self.starts, at.contiguous(), right=True) - 1

    def positions(self, length: int) -> Tensor:
        """(1, length): each position counted from the start of its own document."""
        at = torch.arange(length, device=self.starts.device)[None]
        return at - self.starts[self.document(at)]


@dataclass(frozen=True)
class Batch:
    """What a body is given. B rows, L positions; a packed batch has one row of many documents and `offsets`."""

    x: Tensor
    """ids (B, L), pixels (B, 3, H, W) or points; pixels as bytes are not yet what a body reads"""
    mask: Tensor | None = None
    """which positions of x are real: lengths (B,) or True marks (B, L); None: all"""
    target: Tensor | None = None
    """ids (B, T) that a decoder reads"""
    target_mask: Tensor | None = None
    labels: Tensor | None = None
    """what the head should say; `IGNORE` where nothing is asked"""
    asked: Tensor | None = None
    """(M,) which positions of x, counted through all rows, the labels are of; None: of all, or of the rows"""
    follows: Tensor | None = None
    """(S,) whether the second text of each row follows its first: 0 it does, 1 it does not; `IGNORE` where nobody asks"""
    types: Tensor | None = None
    """(B, L) the number of the text that each position belongs to, where a row holds two"""
    marked: Tensor | None = None
    """(B, L) True where a token sees all and is seen by all (Longformer's global ones); None: none"""
    most_marked: int | None = None
    """a number that no row has more of them than; None: it is counted, for which a GPU is waited for"""
    where: Tensor | None = None
    """positions of x when they are not 0, 1, 2, …"""
    changes: Tensor | None = None
    """(B, n) how each picture is cut out, mirrored and coloured before it is looked at; None: not at all"""
    changed_by: Any = None
    """what these changes can be"""
    owners: Tensor | None = None
    """(B,) which picture of x each row of the target speaks of, where several speak of one; None: row n of picture n"""
    documents: Tensor | None = None
    """(B, L) the number of the document that each position of x belongs to, where a row holds several"""
    offsets: Offsets | None = None
    target_offsets: Offsets | None = None

    @property
    def prompt(self) -> Tensor:
        """(B, P) what generation goes on from: the decoder's side, or x where there is one side only."""
        return self.x if self.target is None else self.target

    @property
    def prompt_lengths(self) -> Tensor | None:
        """(B,) how much of each row of the prompt is real, from its beginning; None: all of it."""
        mask = self.mask if self.target is None else self.target_mask
        return mask if mask is None or mask.ndim == 1 else mask.sum(1)

    def last(self) -> Tensor:
        """(B,) the last real token of each prompt."""
        lengths = self.prompt_lengths
        return self.prompt[:, -1] if lengths is None else self.prompt.gather(1, lengths[:, None] - 1)[:, 0]

    def rows(self, chosen: Tensor) -> Batch:
        """These rows, in this order; not of a packed batch."""
        if self.offsets is not None or self.target_offsets is not None:
            raise ValueError("a packed batch has one row")
        if self.asked is not None:
            raise ValueError("what is asked of a batch is counted through all its rows")
        if self.owners is not None:
            raise ValueError("rows that share a picture are taken together")
        taken = self.map(lambda tensor: tensor[chosen])
        # positions that are the same for all rows have no axis of rows
        return taken if self.where is None or self.where.ndim > 1 else replace(taken, where=self.where)

    def to(self, device: torch.device | str) -> Batch:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """In page-locked memory, from where `to` a GPU does not wait. The loader's thread calls it by this name."""
        return self.map(lambda tensor: tensor.pin_memory())

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch of changed tensors."""
        changed: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                changed[item.name] = change(value)
            elif isinstance(value, Offsets):
                changed[item.name] = replace(value, starts=change(value.starts))
        return replace(self, **changed)

    def tensors(self) -> list[Tensor]:
        found: list[Tensor] = []
        self.map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
        return found


IGNORE = -100
"""The label of a position where nothing is asked."""


@dataclass(frozen=True)
class States:
    """What a body returns, whatever it read."""

    sequence: Tensor
    """(B, L, D) the last states"""
    summary: Tensor | None = None
    """(B, D) one vector for the whole input, where the system has one"""
    taps: tuple[Tensor, ...] = ()
    """states after the layers that were asked for"""
    context: Tensor | None = None
    """(B, S, D) what a decoder regarded"""
    ponder: Tensor | None = None
    side: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a task says to a person; `value` is plain Python, so that JSON, page and terminal show the same."""

    value: Any
    scores: tuple[float, ...] = ()
    tokens: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What one attention did once: weights (B, H, Q, K), and which key each column is (None: column k is key k)."""

    name: str
    weights: Tensor
    keys: Tensor | None = None
    """(B or 1, H or 1, Q, K); -1 where a column is none"""
    queries: Tensor | None = None
    """(B, Q) which query each row is, -1 where it is none; None: row q is query q"""


@dataclass
class Seen:
    """What a watcher collected, in the order in which it happened."""

    looks: list[Look] = field(default_factory=list)

    def names(self) -> list[str]:
        return list(dict.fromkeys(look.name for look in self.looks))

    def weights(self, name: str) -> Tensor:
        """The weights of one attention; steps of a decoding are joined along the queries, narrow ones padded by 0."""
        parts = [look.weights for look in self.looks if look.name == name]
        if not parts:
            raise KeyError(f"nothing was seen of '{name}'; there is {self.names()}")
        widest = max(part.shape[-1] for part in parts)
        return torch.cat([torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in parts], dim=-2)
