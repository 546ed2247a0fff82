"""What a decoder beside a source or a picture is handed: the target that it reads, or the prompt that it goes on from."""

from __future__ import annotations

from torch import Tensor

from regard.waists import Batch


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
