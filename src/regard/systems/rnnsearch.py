"""Neural Machine Translation by Jointly Learning to Align and Translate (Bahdanau, Cho, Bengio 2014): the first
attention.

Differences from earlier RNNs: a bidirectional encoder keeps one state per source word, and for each target word the
decoder attends to these states, with scores of a small network. Differences from the Transformer: recurrence, a single
head, and additive scores instead of dot products. `attention_score` also supports the scores of Luong et al. (2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention.masks import valid_mask
from regard.nn.blocks.block import SharedEmbeddings
from regard.nn.blocks.encoder_decoder import require_padded
from regard.nn.kernels.linear import Linear
from regard.nn.recurrent.rnn import BidirectionalGRU, GRUCell, RecurrentState, decode_compact
from regard.nn.recurrent.score_attention import AdditiveScore, ScoreAttention, ScoreContext, ScoreName, make_score
from regard.systems.common import recipes
from regard.systems.common.recurrent import TINY_TOKENS, RecurrentBody, Seq2SeqConfig
from regard.systems.common.system import System, presets, reject
from regard.types import Batch, BodyOutput, StateSizes


@dataclass(frozen=True)
class Config(Seq2SeqConfig):
    source_vocab_size: int = 0  # type: ignore[misc]
    width: int = 1000
    encoder_width: int = 1000
    embedding_dim: int = 620
    attention_dim: int = 1000
    maxout_dim: int = 500
    attention_score: ScoreName = "additive"
    bias: bool = True
    dropout: float = 0.0

    output_width_field = "maxout_dim"

    def check(self) -> None:
        super().check()
        reject(
            self.attention_score == "dot" and self.width != 2 * self.encoder_width,
            f"model.attention_score=dot requires model.width = 2 x model.encoder_width, got {self.width} and "
            f"2 x {self.encoder_width}. Set model.encoder_width={self.width // 2}, or model.attention_score=general.",
        )


TINY_SIZES = {"width": 256, "encoder_width": 128, "embedding_dim": 128, "attention_dim": 128, "maxout_dim": 128}
TINY = TINY_TOKENS | TINY_SIZES | {"dropout": 0.2}
PAPER: dict[str, Any] = {"vocab_size": 30_000, "max_length": 50, "steps": 750_000}
PRESETS = presets(
    Config(),
    ("rnnsearch-tiny", 2_232_448, recipes.get("recurrent_tiny", lr=2e-3), TINY),
    # 80,401,000 by the equations of the paper, and 41,000 biases omitted in the equations
    ("rnnsearch-50", 80_442_000, recipes.get("recurrent", **PAPER, batch_tokens=4096, grad_clip=1.0), {}),
)


class AttentionDecoder(nn.Module):
    """GRU decoder: attends to the source with its last state, and updates the state with the context and the last
    token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        seen = 2 * config.encoder_width
        self.first = Linear(config.encoder_width, config.width, config.bias)
        self.align = ScoreAttention(make_score(config.attention_score, config.width, seen, config.attention_dim))
        self.cell = GRUCell(config.embedding_dim, config.width, config.bias)
        self.seen = Linear(seen, 3 * config.width, False)
        self.out = Linear(config.width + config.embedding_dim + seen, 2 * config.maxout_dim, config.bias)

    def state_size(self, source_length: int) -> int:
        """Size of the state of a row with this source length."""
        return self.first.weight.shape[0] + source_length * (self.align.score.inner + self.seen.weight.shape[1])

    def step(
        self, projected_input: Float[Tensor, "B three_D"], s: Float[Tensor, "B D"], context: ScoreContext
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B C"]]:
        """s_i and c_i, from the projection of y_{i-1}, from s_{i-1} and the source."""
        c = self.align(s[:, None], context)[0][:, 0]
        return self.cell(projected_input + self.seen(c), s), c

    def maxout(
        self, y: Float[Tensor, "*rows E"], s: Float[Tensor, "*rows D"], c: Float[Tensor, "*rows C"]
    ) -> Float[Tensor, "*rows l"]:
        """t̃ = U s_{i-1} + V y_{i-1} + C c_i, and the maximum of each pair of units."""
        one, other = self.out(torch.cat([s.to(y.dtype), y, c.to(y.dtype)], -1)).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.maximum(one, other)


class RNNSearch(RecurrentBody):
    compiles = False  # torch.compile would unroll the loop over tokens, again for each length

    def __init__(self, config: Config) -> None:
        super().__init__()
        sharing = config.tie_embeddings, config.source_vocab_size, config.bias
        self.tables = SharedEmbeddings(config.vocab_size, config.embedding_dim, config.maxout_dim, *sharing)
        self.encoder = BidirectionalGRU(config.embedding_dim, config.encoder_width, config.bias)
        self.decoder = AttentionDecoder(config)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, batch: Batch) -> tuple[ScoreContext, Float[Tensor, "B D"]]:
        """Keys and values of the source, and the initial decoder state s_0 = tanh(W ←h_1)."""
        require_padded(batch)
        real = None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1])
        states, back = self.encoder(self.dropout(self.tables.embed_source(batch.inputs)), real)
        return self.decoder.align.prepare(states, real), self.decoder.first(back).tanh()

    def unroll(
        self, ids: Int[Tensor, "B L"], s: Float[Tensor, "B D"], context: ScoreContext
    ) -> tuple[Float[Tensor, "B L l"], Float[Tensor, "B D"]]:
        """Features before the output layer for each token, and the final state."""
        y = self.dropout(self.tables.target(ids))
        before, seen = [], []
        for given in self.decoder.cell.given(y).unbind(1):
            before.append(s)
            s, c = self.decoder.step(given, s, context)
            seen.append(c)
        return self.dropout(self.decoder.maxout(y, torch.stack(before, 1), torch.stack(seen, 1))), s

    def forward(self, batch: Batch) -> BodyOutput:
        """Features before the output layer for `batch.decoder.inputs`."""
        target, (context, s) = batch.require_decoder(), self.encode(batch)
        features = decode_compact(lambda ids: self.unroll(ids, s, context)[0], target.inputs, target.mask)
        return BodyOutput(features, cross_states=context.values)

    def state_sizes(self, batch: Batch) -> StateSizes:
        return StateSizes(self.tables.target.num_embeddings, per_beam=self.decoder.state_size(batch.inputs.shape[1]))

    def initial_state(self, batch: Batch) -> RecurrentState:
        context, s = self.encode(batch)
        return RecurrentState.from_tensors({"s": s}, context.to_dict())

    def advance(self, ids: Int[Tensor, "B L"], state: RecurrentState) -> Float[Tensor, "B L l"]:
        x, s = self.unroll(ids, state.state["s"], ScoreContext(**state.context))
        state.update(ids.shape[1], s=s)
        return x


def build(config: Config) -> RNNSearch:
    """Recurrent matrices are initialized as orthogonal (each of the three), projections of the score with standard deviation
    0.001, the vector of the score with 0, other matrices with standard deviation 0.01, and biases with 0."""
    body = RNNSearch(config)
    for parameter in body.parameters():
        nn.init.zeros_(parameter) if parameter.ndim == 1 else nn.init.normal_(parameter, std=0.01)
    for module in body.modules():
        if isinstance(module, GRUCell):
            for square in (*module.gates.chunk(2), module.new):
                nn.init.orthogonal_(square)
        elif isinstance(module, AdditiveScore):
            nn.init.normal_(module.q.weight, std=0.001)
            nn.init.normal_(module.k.weight, std=0.001)
            nn.init.zeros_(module.v.weight)
    return body


DESCRIPTION = "RNNsearch (Bahdanau et al. 2014), first attention model"
SYSTEM = System("rnnsearch", DESCRIPTION, Config, PRESETS, build, recipes.TRANSLATION)
