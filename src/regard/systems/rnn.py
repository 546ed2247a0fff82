"""Sequence to Sequence Learning with Neural Networks (Sutskever, Vinyals, Le 2014): recurrent encoder–decoder.

Differences from the Transformer: tokens are processed sequentially, and the decoder receives only the final encoder
state, of fixed size for any source length. Reversing the source brings its start closer to the start of the translation
(30.6 instead of 26.2 BLEU in the paper). With `feed_context`, the decoder receives the encoder state at every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention.masks import valid_mask
from regard.nn.blocks.block import SharedEmbeddings
from regard.nn.blocks.encoder_decoder import require_padded
from regard.nn.recurrent import rnn
from regard.systems.common import recipes
from regard.systems.common.recurrent import TINY_TOKENS, RecurrentBody, Seq2SeqConfig
from regard.systems.common.system import System, presets, reject
from regard.types import Batch, BodyOutput, StateSizes


@dataclass(frozen=True)
class Config(Seq2SeqConfig):
    source_vocab_size: int = 0  # type: ignore[misc]
    cell: rnn.CellName = "lstm"
    width: int = 1000
    embedding_dim: int = 1000
    depth: int = 4
    bidirectional: bool = False
    reverse_source: bool = True
    feed_context: bool = False
    dropout: float = 0.0
    vocab_size: int = 80_000
    init_range: float = 0.08

    def check(self) -> None:
        super().check()
        reject(
            self.bidirectional and self.width % 2,
            f"model.bidirectional=true requires an even model.width, got {self.width}.",
        )


TINY = TINY_TOKENS | {"width": 192, "embedding_dim": 192, "depth": 1, "dropout": 0.2, "init_range": 0.0}
PAPER_RECIPE = recipes.get("recurrent", vocab_size=80_000, steps=700_000, batch_tokens=8192, grad_clip=5.0)
PRESETS = presets(
    Config(),
    ("rnn-tiny", 2_509_824, recipes.get("recurrent_tiny", lr=5e-3), TINY),
    # 384,000,000 in the paper, with 80,000 more source words: set source_vocab_size=160_000
    ("rnn-sutskever", 304_000_000, PAPER_RECIPE, {}),
)


class RNNEncoderDecoder(RecurrentBody):
    compiles = False  # each layer is one call of a fused kernel, so torch.compile has no benefit

    def __init__(self, config: Config) -> None:
        super().__init__()
        E, D, sharing = config.embedding_dim, config.width, (config.tie_embeddings, config.source_vocab_size)
        self.reversed, self.context_width = config.reverse_source, D if config.feed_context else 0
        self.tables = SharedEmbeddings(config.vocab_size, E, D, *sharing)
        layers = config.depth, config.dropout
        self.encoder = rnn.RecurrentEncoder(config.cell, E, D, *layers, config.bidirectional)
        self.decoder = rnn.RecurrentDecoder(config.cell, E + self.context_width, D, *layers)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, batch: Batch) -> rnn.RecurrentTensors:
        """Initial state of the decoder: final states of all layers, and the context for `feed_context`."""
        require_padded(batch)
        order = rnn.ReadingOrder.from_mask(
            None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1]), self.reversed
        )
        x = self.dropout(self.tables.embed_source(order.reorder_ids(batch.inputs)))
        kept = self.encoder(order.reorder_embeddings(x), order)
        return {**kept, "fed": kept["h"][:, -1]} if self.context_width else kept

    def decode(
        self, ids: Int[Tensor, "B L"], state: rnn.RecurrentTensors
    ) -> tuple[Float[Tensor, "B L W"], rnn.RecurrentTensors]:
        """s_t = g(y_{t-1}, s_{t-1}), or g(y_{t-1}, s_{t-1}, c) with `feed_context`."""
        x = self.dropout(self.tables.target(ids))
        if self.context_width:
            x = torch.cat([x, state["fed"].to(x.dtype)[:, None].expand(-1, ids.shape[1], -1)], -1)
        x, after = self.decoder(x, state)
        return self.dropout(x), after

    def forward(self, batch: Batch) -> BodyOutput:
        """Decoder states for `batch.decoder.inputs`."""
        target, state = batch.require_decoder(), self.encode(batch)
        return BodyOutput(rnn.decode_compact(lambda ids: self.decode(ids, state)[0], target.inputs, target.mask))

    def state_sizes(self, batch: Batch) -> StateSizes:
        return StateSizes(self.tables.target.num_embeddings, per_beam=self.decoder.state_size + self.context_width)

    def initial_state(self, batch: Batch) -> rnn.RecurrentState:
        return rnn.RecurrentState.from_tensors(self.encode(batch))

    def advance(self, ids: Int[Tensor, "B L"], state: rnn.RecurrentState) -> Float[Tensor, "B L W"]:
        x, after = self.decode(ids, state.state)
        state.update(ids.shape[1], **after)
        return x


def build(config: Config) -> RNNEncoderDecoder:
    """Weights are initialized uniformly in ±`init_range`; if 0, with N(0, 1/fan-in), and embeddings with N(0, 0.3²)."""
    body = RNNEncoderDecoder(config)
    for name, parameter in body.named_parameters():
        if config.init_range:
            nn.init.uniform_(parameter, -config.init_range, config.init_range)
        elif name.startswith("tables.") and not name.startswith("tables.output"):
            nn.init.normal_(parameter, std=0.3)
        else:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return body


SYSTEM = System("rnn", "LSTM encoder–decoder (Sutskever et al. 2014)", Config, PRESETS, build, recipes.TRANSLATION)
