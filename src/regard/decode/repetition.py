"""Repetition penalty (Keskar et al. 2019) for tokens of the prompt and the output."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.types import Batch


class RepetitionPenalty:
    """Tokens of prompt and output of each row. R rows, C columns.

    Token ids need less time than a mask over the vocabulary: a step gathers a few hundred columns, not 50,000. Unused
    columns repeat the first token of the prompt, without effect."""

    def __init__(self, batch: Batch, penalty: float, max_tokens: int) -> None:
        prompt, lengths = batch.prompt[:, :max_tokens], batch.prompt_lengths
        P = prompt.shape[1]
        self.penalty = penalty
        self.ids = prompt[:, :1].repeat(1, max_tokens)
        self.next_column = torch.full_like(prompt[:, 0], P) if lengths is None else lengths.clone()
        """(R,) column for the next token"""
        real = torch.arange(P, device=prompt.device) < self.next_column[:, None]
        self.ids[:, :P] = torch.where(real, prompt, prompt[:, :1])

    def apply(self, values: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Logits or log-probabilities, with values of past tokens divided by the penalty, or multiplied if negative."""
        past = values.gather(1, self.ids)
        return values.scatter(1, self.ids, torch.where(past < 0, past * self.penalty, past / self.penalty))

    def append(self, tokens: Int[Tensor, "R"]) -> None:
        """Append one token per row; finished rows overwrite the last column."""
        self.ids.scatter_(1, self.next_column[:, None], tokens[:, None])
        self.next_column.add_(1).clamp_(max=self.ids.shape[1] - 1)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the rows of beams, in place because a CUDA graph requires fixed addresses."""
        self.ids.copy_(self.ids.index_select(0, rows))

    def select_rows(self, rows: Tensor) -> None:
        self.ids, self.next_column = self.ids[rows], self.next_column[rows]

    def append_rows(self, other: RepetitionPenalty) -> None:
        columns = max(self.ids.shape[1], other.ids.shape[1])
        self.ids = torch.cat([_pad_columns(self.ids, columns), _pad_columns(other.ids, columns)])
        self.next_column = torch.cat([self.next_column, other.next_column])

    def tensors(self) -> list[Tensor]:
        return [self.ids, self.next_column]


def _pad_columns(ids: Tensor, columns: int) -> Tensor:
    more = columns - ids.shape[1]
    return torch.cat([ids, ids[:, :1].expand(-1, more)], 1) if more else ids
