"""Recorded attention of a sequence, attention rollout, and attribution by gradients, through all layers.

Rollout, the contribution of each input token to the last hidden states (Abnar and Zuidema 2020): the residual connection
counts as one half, so the contributions are the rows of the product of (A + I) / 2 over the layers.
Attribution, the relevance of each input token for an output score y (Chefer, Gur and Wolf 2021): the relevance Ā of a layer
is the average over heads of (∂y/∂A ∘ A)⁺, the attention that increases the score; layers are combined by R ← R + Ā R.
Only the requested rows are computed: one vector-matrix product per layer, from the last layer to the first. Long sequences
are grouped into blocks of tokens for attention maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.nn.attention.longformer import LongformerAttention
from regard.nn.recording import named_attentions, record_attention
from regard.tasks.base import Model
from regard.types import AttentionRecord, Batch

ScoreFn = Callable[[Tensor], Tensor]  # Score as a function of the logits.
CHUNK_ROWS = 4096  # Queries per chunk, to limit the memory of products over long sequences.


@dataclass(frozen=True)
class AttentionSlice:
    """Attention weights (H, R, C) of one sequence in one layer. `keys` (H or 1, R, C) are the tokens of the columns, `queries`
    (R,) the tokens of the rows; None: the indices."""

    weights: Tensor
    keys: Tensor | None = None
    queries: Tensor | None = None

    def mean_heads(self, previous: AttentionSlice | None = None) -> AttentionSlice:
        """The average over heads on the CPU. Equal key indices reuse the tensor of `previous` to save memory."""
        (heads, rows, _), keys = self.weights.shape, self.keys
        if keys is None or len(keys) == 1:
            weights = self.weights.mean(0, keepdim=True)
        else:  # each head has separate key indices
            weights = self.weights.transpose(0, 1).reshape(1, rows, -1) / heads
            keys = keys.transpose(0, 1).reshape(1, rows, -1)
        if keys is not None:
            keys = keys.int().cpu()
            if previous is not None and previous.keys is not None and torch.equal(previous.keys, keys):
                keys = previous.keys
        weights = weights if weights.dtype == torch.float64 else weights.float()
        return AttentionSlice(weights.detach().cpu(), keys, None if self.queries is None else self.queries.cpu())

    def weighted_sum(self, row: Tensor) -> Tensor:
        """Attention of each head, (H, length), summed over queries with the weights `row` (length,), in the type of `row`."""
        heads, num_rows, columns = self.weights.shape
        found, own = row.new_zeros(heads, len(row)), row[:num_rows] if self.queries is None else row[self.queries]
        for begin in range(0, num_rows, CHUNK_ROWS):
            cut = slice(begin, begin + CHUNK_ROWS)
            if self.keys is None:
                found[:, :columns] += own[cut] @ self.weights[:, cut].to(row.dtype)
                continue
            for head in range(heads):  # one at a time: a product is as large as the weights
                keys, weights = self.keys[head if len(self.keys) > 1 else 0, cut], self.weights[head, cut]
                found[head].index_add_(0, keys.flatten(), (own[cut, None] * weights.to(row.dtype)).flatten())
        return found

    def query_weights(self, query: int, length: int) -> Tensor:
        """Attention of one query, (H, length)."""
        at = query if self.queries is None else (self.queries == query).nonzero()[0, 0]
        own = self.weights[:, at]
        if self.keys is None:
            return torch.nn.functional.pad(own, (0, length - own.shape[-1]))
        return own.new_zeros(len(own), length).scatter_add_(1, self.keys[:, at].long().expand(own.shape), own)


AttentionLayer = Sequence[AttentionSlice]  # The attention matrix (length, length) is the sum of all slices.


def weighted_sum(layer: AttentionLayer, row: Tensor) -> Tensor:
    """Attention of each head, (H, length), summed over queries with the weights `row` (length,): row · A if H is 1."""
    sums = [part.weighted_sum(row) for part in layer]
    return sum(sums[1:], sums[0])


def rollout(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """Contributions of the input tokens, (length,), to the last hidden states weighted by `row` (length,). Both sum to 1."""
    for layer in reversed(layers):
        sums = torch.zeros_like(row)  # sum of the weights of each query: 1, or 0 if all keys are masked
        for part in layer:
            queries = torch.arange(part.weights.shape[1]) if part.queries is None else part.queries
            sums.index_add_(0, queries, part.weights[0].sum(-1, dtype=row.dtype))
        row = row / (1 + sums)  # normalizes the rows of A + I
        row = row + weighted_sum(layer, row)[0]
    return row


def relevance(layers: Sequence[AttentionLayer], row: Tensor) -> Tensor:
    """Relevance of the input tokens, (length,), if the weights are gradient × attention: `row` · R with R ← R + Ā R from the
    first layer to the last, minus `row`, the relevance before the first layer."""
    whole = row
    for layer in reversed(layers):
        whole = whole + weighted_sum(layer, whole)[0]
    return whole - row


MAX_NAMED_TOKENS = 8  # Blocks up to this size are labeled with the tokens, larger blocks with the positions.


@dataclass(frozen=True)
class TokenBlocks:
    """Block i contains the tokens from `starts[i]` up to, but not including, `starts[i + 1]`."""

    starts: tuple[int, ...]

    @classmethod
    def split(cls, length: int, max_blocks: int, isolated: Collection[int] = ()) -> TokenBlocks:
        """At most `max_blocks` blocks of similar size. Tokens in `isolated`, such as global tokens, share no block with others,
        so that attention to these tokens stays visible; ignored if more than half of the blocks would be needed."""
        flags = np.zeros(length + 2, dtype=bool)
        flags[1 + np.array(sorted(isolated), dtype=np.int64)] = True
        edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1])).tolist(), length]
        edges = sorted(set(edges))
        if length > max_blocks and len(edges) - 1 > max_blocks // 2:
            edges = [0, length]
        sizes = np.diff(edges)
        size = math.ceil(length / max_blocks)
        while np.ceil(sizes / size).sum() > max_blocks:
            size += 1
        starts = [begin + step for begin, wide in zip(edges, sizes, strict=False) for step in range(0, int(wide), size)]
        return cls((*starts, length))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def is_trivial(self) -> bool:
        """True if every block contains one token."""
        return len(self) == self.starts[-1]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(np.array(self.starts))

    @cached_property
    def block_ids(self) -> Tensor:
        """Block index of each token, (length,)."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.sizes))

    def names(self, pieces: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            " ".join(pieces[begin:end]) if end - begin <= MAX_NAMED_TOKENS else f"{begin + 1:,}–{end:,}"
            for begin, end in pairwise(self.starts)
        )

    def sum_tokens(self, values: Tensor) -> Tensor:
        """Sums over the tokens of each block: (…, length) -> (…, N)."""
        numbers = self.block_ids.to(values.device)
        return values.new_zeros(*values.shape[:-1], len(self)).index_add_(-1, numbers, values)

    def sum_attention(self, part: AttentionSlice) -> Tensor:
        """Attention between blocks, (H, N, N): sums over the queries and keys of the blocks."""
        weights, many, numbers = part.weights, len(self), self.block_ids.to(part.weights.device)
        wide = torch.float32 if weights.device.type == "mps" else torch.float64  # MPS has no float64
        found = torch.zeros(len(weights), many * many, dtype=wide, device=weights.device)
        rows = numbers[: weights.shape[1]] if part.queries is None else numbers[part.queries]
        for begin in range(0, len(rows), CHUNK_ROWS):
            cut = slice(begin, begin + CHUNK_ROWS)
            own, values = rows[cut], weights[:, cut].to(wide)
            if part.keys is None:
                values = self.sum_tokens(torch.nn.functional.pad(values, (0, len(numbers) - values.shape[-1])))
                found.view(-1, many, many).index_add_(1, own, values)
            else:
                to = own[:, None] * many + numbers[part.keys[..., cut, :]]
                found.scatter_add_(1, to.expand(values.shape).flatten(1), values.flatten(1))
        return found.view(-1, many, many)


def slice_records(
    records: Sequence[AttentionRecord], row: int, length: int, weights: Sequence[Tensor] = ()
) -> list[AttentionSlice]:
    """Slices of one layer for the first `length` tokens of batch row `row`. `weights`, if given, replace the weights of the
    records. The first record is zeroed for queries with a row in a later record, such as global tokens."""
    parts: list[AttentionSlice] = []
    for record, values in zip(records, weights or [record.weights for record in records], strict=True):
        queries, keys = None if record.query_index is None else record.query_index[row], record.key_index
        rows = slice(length) if queries is None else (queries >= 0) & (queries < length)
        own, queries = values[row].detach()[:, rows], None if queries is None else queries[rows]
        if keys is None:
            parts.append(AttentionSlice(own[..., :length], None, queries))
        else:
            keys = keys[row if len(keys) > 1 else 0][:, rows]
            # the key index of padding is -1
            parts.append(AttentionSlice(torch.where(keys < 0, 0.0, own), keys.clamp(0, length - 1), queries))
    for number, part in enumerate(parts):
        later = [other.queries for other in parts[number + 1 :] if other.queries is not None]
        if later and part.queries is None:
            stays = torch.ones(part.weights.shape[1], 1, dtype=torch.bool, device=part.weights.device)
            stays[torch.cat(later)] = False
            parts[number] = replace(part, weights=torch.where(stays, part.weights, 0.0))
    return parts


def mean_layer(parts: Sequence[AttentionSlice], previous: AttentionLayer = ()) -> AttentionLayer:
    """The slices of one layer averaged over heads. `previous`: the layer before, with the same kinds of slices."""
    return [part.mean_heads(last) for part, last in zip(parts, [*previous, *[None] * len(parts)], strict=False)]


def uniform_weights(length: int, positions: Sequence[int]) -> Tensor:
    """Uniform weights (length,) over `positions`, summing to 1."""
    row = torch.zeros(length, dtype=torch.float64)
    row[list(positions)] = 1 / len(positions)
    return row


@dataclass
class RowAttention:
    """Attention of one sequence of `length` tokens by block; attention from `query_positions` is stored separately."""

    row: int
    length: int
    blocks: TokenBlocks
    query_positions: tuple[int, ...]
    layers: list[AttentionLayer] = field(default_factory=list)  # edges averaged over heads
    block_maps: list[NDArray[np.float32]] = field(default_factory=list)
    """(H, N, N) per layer: attention between blocks, averaged over the queries of a block"""
    query_maps: list[NDArray[np.float32]] = field(default_factory=list)
    """(H, N) per layer: attention to blocks, averaged over `query_positions`"""

    def add(self, records: Sequence[AttentionRecord]) -> None:
        """Store the attention of one layer."""
        parts = slice_records(records, self.row, self.length)
        self.layers.append(mean_layer(parts, self.layers[-1] if self.layers else ()))
        tiles = [self.blocks.sum_attention(part) for part in parts]
        sizes = torch.from_numpy(self.blocks.sizes)[:, None]
        self.block_maps.append((sum(tiles[1:], tiles[0]).cpu() / sizes).float().numpy())
        of_queries = weighted_sum(parts, uniform_weights(self.length, self.query_positions).to(parts[0].weights))
        self.query_maps.append(self.blocks.sum_tokens(of_queries).float().cpu().numpy())

    def rollout(self, positions: Sequence[int]) -> NDArray[np.float64]:
        """Rollout (length,): contributions of the input tokens to the last hidden states at `positions`."""
        return rollout(self.layers, uniform_weights(self.length, positions)).numpy()


# -- recorded forward passes and gradients

MAX_BYTES = 8 * 2**30  # memory limit for weights with gradients; above, only attention rollout is computed

GRADIENT_MEMORY_FACTOR = 12  # memory with gradients / memory of the weights, measured for windows over 57,767 tokens


def record_layers(
    model: Model,
    batch: Batch,
    consumers: Sequence[Callable[[Sequence[AttentionRecord]], None]],
    gradients: bool = False,
) -> tuple[Tensor, list[list[AttentionRecord]]]:
    """Run the model once and pass the records of each complete layer to `consumers`. Returns the logits and, with
    `gradients`, the records of all layers; without, each layer is freed, because all layers may not fit in memory."""
    layers: list[list[AttentionRecord]] = []

    def finish_layer() -> None:
        for consumer in consumers if layers else ():
            consumer(layers[-1])
        if not gradients:
            layers.clear()

    def receive(record: AttentionRecord) -> None:
        # a record of another module, or another application of the same module to all queries, starts a layer
        if not layers or record.name != layers[-1][-1].name or record.query_index is None:
            finish_layer()
            layers.append([])
        layers[-1].append(record)

    with torch.set_grad_enabled(gradients), record_attention(model.body, gradients=gradients, callback=receive):
        logits = model.objective.logits(model, batch)
    finish_layer()
    return logits, layers


def relevance_layers(
    value: Tensor, record_groups: Sequence[Sequence[AttentionRecord]], row: int, lengths: Sequence[int]
) -> Iterator[AttentionLayer]:
    """The matrix Ā of each layer, of `lengths` tokens: the positive part of gradient × attention for the score `value`."""
    weights = [record.weights for group in record_groups for record in group]
    gradients = iter(torch.autograd.grad(value, weights, retain_graph=True, materialize_grads=True))
    for group, length in zip(record_groups, lengths, strict=True):
        products = [(next(gradients) * record.weights.detach()).clamp(min=0) for record in group]
        yield mean_layer(slice_records(group, row, length, products))


@dataclass(frozen=True)
class OutputScore:
    """A scalar output to explain, and the positions of the hidden states used to compute the output."""

    name: str
    row: int
    positions: tuple[int, ...]  # tokens whose last hidden states are the input of the head
    score_fn: ScoreFn | None  # None: only rollout
    kind: str = ""  # kind of the explained output for titles, for example `class`


def logit_margin(logits: Tensor, index: int) -> Tensor:
    """Logit `index` minus the average logit, because an equal increase of all logits changes no prediction."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits[index] - logits.mean()


def attribute(
    model: Model, batch: Batch, views: Sequence[RowAttention], scores: Sequence[OutputScore]
) -> list[NDArray[np.float64] | None]:
    """Run the batch once and add the recorded attention to `views`. Returns the relevance of each token, (length,), per score;
    None if the score has no `score_fn` or if gradients would exceed `MAX_BYTES`."""
    gradients = any(score.score_fn for score in scores) and attribution_bytes(model.body, batch) <= MAX_BYTES
    logits, groups = record_layers(model, batch, [view.add for view in views], gradients)
    lengths = {view.row: view.length for view in views}
    found: list[NDArray[np.float64] | None] = [None] * len(scores)
    for number, score in enumerate(scores):
        if gradients and score.score_fn is not None:
            length = lengths[score.row]
            layers = relevance_layers(score.score_fn(logits), groups, score.row, [length] * len(groups))
            found[number] = relevance([*layers], uniform_weights(length, score.positions)).numpy()
    return found


def attribution_bytes(body: Any, batch: Batch) -> int:
    """Estimated memory of all attention weights with gradients, for inputs (…, L)."""
    length, rows = batch.inputs.shape[-1], batch.inputs.numel() // max(batch.inputs.shape[-1], 1)
    num_global = 0 if batch.text.global_tokens is None else int(batch.text.global_tokens.sum(-1).max())
    places = named_attentions(body).values()
    # other modules record the weights of all keys, also under a window
    keys = [
        min(length, window.left + window.right + 1 + num_global) if isinstance(place, LongformerAttention) else length
        for window, place in zip(body.windows or [None] * len(places), places, strict=False)
    ]
    weights = sum(place.heads * many for place, many in zip(places, keys, strict=False))
    return GRADIENT_MEMORY_FACTOR * 4 * rows * length * weights * body.repeats
