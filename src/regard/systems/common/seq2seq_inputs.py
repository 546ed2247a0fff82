"""What a decoder beside a source or a picture is handed: the target that it reads, or the prompt that it goes on from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.nn.attention.masks import Causal, Packed, Real, Rule, join
from regard.types import Batch, Offsets


def target_of(batch: Batch) -> Tensor:
    """(B, T) what is read as a whole."""
    if batch.target is None:
        raise ValueError("the decoder needs a target to read")
    return batch.target


def prompt_of(batch: Batch) -> Tensor:
    """(B, P) what is gone on from: all rows are equally long so far."""
    if batch.target is None:
        raise ValueError("generation needs a prompt to start from")
    if batch.target_mask is not None:
        raise ValueError("generation starts from prompts of one length")
    return batch.target


@dataclass(frozen=True)
class Sides:
    """Where the tokens of source and target stand, and who looks at whom: rows filled up, or one row of many documents."""

    where: Tensor
    rule: Rule | None
    """of the source among itself"""
    target_where: Tensor
    target_rule: Rule | None
    context_rule: Rule | None
    """of the target into the source"""

    @classmethod
    def of(cls, batch: Batch) -> Sides:
        target = target_of(batch)
        if (batch.offsets is None) != (batch.target_offsets is None):
            raise ValueError("a packed batch is packed on both sides")
        real = None if batch.mask is None else Real(batch.mask)
        rule: Rule | None = None
        own: Rule | None = None
        across: Rule | None = None
        if batch.offsets is not None and batch.target_offsets is not None:
            rule, own = (Packed(side, side) for side in (batch.offsets, batch.target_offsets))
            across = Packed(batch.target_offsets, batch.offsets)
        own = join(Causal(), own, None if batch.target_mask is None else Real(batch.target_mask))
        where = places(batch.x, batch.offsets) if batch.where is None else batch.where
        return cls(where, join(rule, real), places(target, batch.target_offsets), own, join(across, real))

    def shifted(self, batch: Batch, most: int) -> Sides:
        """All positions of a sample, on both sides, begin at one place of chance up to `most`."""
        rows = len(batch.x) if batch.offsets is None else len(batch.offsets.starts)
        begins = torch.randint(most + 1, (rows,), device=batch.x.device)

        def of(where: Tensor, offsets: Offsets | None, length: int) -> Tensor:
            if offsets is None:
                return where + begins[:, None]
            return where + begins[offsets.document(torch.arange(length, device=where.device)[None])]

        return replace(
            self,
            where=of(self.where, batch.offsets, batch.x.shape[1]),
            target_where=of(self.target_where, batch.target_offsets, target_of(batch).shape[1]),
        )


def places(ids: Tensor, offsets: Offsets | None) -> Tensor:
    """Where tokens stand in their own document."""
    length = ids.shape[1]
    return torch.arange(length, device=ids.device) if offsets is None else offsets.positions(length)
