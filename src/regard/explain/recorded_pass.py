"""A forward pass over one sequence with attention recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.nn.recording import record_attention
from regard.tasks.protocol import ModelProtocol
from regard.types import AttentionRecords, Batch


def record_forward(model: ModelProtocol, batch: Batch) -> tuple[AttentionRecords, Tensor]:
    """Attention weights of one forward pass, and log-probabilities (L, V) of the next token at each position."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), record_attention(model.body) as seen:
            logits = model.body.to_logits(model.body(batch).sequence)[0]
    finally:
        model.train(training)
    return seen, (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1).cpu()


def stack_layers(records: AttentionRecords, names: Sequence[str], first: int = 0) -> NDArray[np.float32]:
    """Attention (layers, heads, Q, K) of batch row 0 from query `first` on; keys before `first` are summed into one column."""
    return np.stack([_merge_prefix(records.weights(name)[0].float().cpu().numpy(), first) for name in names])


def stack_passes(records: AttentionRecords, names: Sequence[str], num_queries: int) -> NDArray[np.float32]:
    """Attention (layers, heads, Q, K) of batch row 0, with Q = `num_queries`. A module applied to some queries at a time gives
    one layer; a module applied repeatedly to all queries gives one layer per application."""
    found: list[NDArray[np.float32]] = []
    for name in names:
        whole = records.weights(name)[0].float().cpu().numpy()
        found += np.split(whole, max(whole.shape[1] // num_queries, 1), axis=1)
    return np.stack(found)


def _merge_prefix(weights: NDArray[np.float32], first: int) -> NDArray[np.float32]:
    if not first:
        return weights
    before = weights[:, first:, :first].sum(-1, keepdims=True)
    return np.concatenate([before, weights[:, first:, first:]], axis=-1)
