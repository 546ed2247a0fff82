"""Neural Machine Translation by Jointly Learning to Align and Translate (Bahdanau, Cho, Bengio 2014): the first attention.

What is new against the recurrent nets before it: the source is kept as a state of each of its words, read both ways, and for
each word of the translation the decoder looks at them anew, by a small network that scores its last state against each. What
the Transformer changed: no recurrence around it, many heads, and scores that are products. `score` takes Luong's (2015) too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.attention.masks import marks
from regard.nn.blocks.embeddings import Tables
from regard.nn.kernels.linear import Linear
from regard.nn.recurrent.gru import BothWays, Gated
from regard.nn.recurrent.recurrent_state import Held, Rolling
from regard.nn.recurrent.rnn import Closed
from regard.nn.recurrent.score_attention import Additive, Align, Context, ScoreName, score_of
from regard.systems.common.seq2seq import Recurring
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import RECALLS, Preset, System, unpublished
from regard.types import Batch, States


@dataclass(frozen=True)
class Config(Recurring):
    width: int = 1000
    """width of the decoder's states"""
    encoder_width: int = 1000
    """width of the encoder's states, of each direction"""
    embedding: int = 620
    """width of the embeddings"""
    inner: int = 1000
    """width of the network that scores (additive)"""
    maxout: int = 500
    """width of what tokens are read from: each of it is the larger of two"""
    score: ScoreName = "additive"
    """how a state and a place are compared: additive as in the paper, dot (wants encoder_width = width / 2), or general"""
    bias: bool = True
    """biases of the cells, of the first state, before the maxout and on the logits (the paper has them and leaves them out of
    its equations); the score has none"""
    dropout: float = 0.0
    """share dropped of the embeddings, and of what tokens are read from"""

    sizes = ("width", "encoder_width", "embedding", "inner", "maxout")
    read = "maxout"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score == "dot" and self.width != 2 * self.encoder_width:
            raise SettingError(
                f"model.score=dot multiplies states of model.width {self.width} with those of both directions of the encoder, "
                f"2 x {self.encoder_width}: set model.encoder_width to half of model.width, or take model.score=general."
            )


PAPER: dict[str, dict[str, Any]] = {
    "train": {
        "steps": 750_000, "tokens": 4096, "rate": 5e-4, "warmup": 1000, "schedule": "linear", "smoothing": 0.0,
        "betas": "0.9,0.999", "eps": 1e-8, "clip": 1.0, "decay": 0.0,
    },
    "data": {"vocabulary": 30_000, "longest": 50},
    "decode": {"beam": 12, "penalty": 0.0},
}  # fmt: skip
"""80 pairs at a time of up to 50 words, gradients of norm 1 at most. The paper learns by Adadelta; here all learn by Adam."""

FULL = Config()
PRESETS = {
    "rnnsearch-tiny": Preset(
        replace(
            FULL, width=256, encoder_width=128, embedding=128, inner=128, maxout=128, dropout=0.2, vocabulary=10_000,
            tables="one",
        ),
        2_232_448,
        {
            "train": {
                **PAPER["train"], "steps": 6000, "tokens": 8192, "rate": 2e-3, "warmup": 300, "smoothing": 0.1,
                "average": 0.999,
            },
            "data": {"vocabulary": 10_000},
            "decode": {"beam": 4, "penalty": 0.6},
        },
    ),
    # 80,401,000 of the paper's equations, and 41,000 biases that they leave out
    "rnnsearch-50": Preset(FULL, 80_442_000, PAPER),
}  # fmt: skip


class Decoder(nn.Module):
    """Looks at the source with its last state, and goes on from it with what was seen and the token before."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        seen = 2 * config.encoder_width
        self.first = Linear(config.encoder_width, config.width, config.bias)
        self.align = Align(score_of(config.score, config.width, seen, config.inner))
        self.cell, self.seen = Gated(config.embedding, config.width, config.bias), Linear(seen, 3 * config.width, False)
        self.out = Linear(config.width + config.embedding + seen, 2 * config.maxout, config.bias)

    def numbers(self, places: int) -> int:
        """That are kept of a row with so many words of source."""
        return self.first.weight.shape[0] + places * (self.align.score.inner + self.seen.weight.shape[1])

    def begin(self, back: Float[Tensor, "B W"]) -> Float[Tensor, "B D"]:
        """s_0 = tanh(W ←h_1)"""
        return self.first(back).tanh()

    def turn(
        self, given: Float[Tensor, "B three_D"], s: Float[Tensor, "B D"], context: Context
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B C"]]:
        """s_i and c_i, of the products of y_{i-1}, s_{i-1} and the source."""
        c = self.align(s[:, None], context)[0][:, 0]
        return self.cell(given + self.seen(c), s), c

    def say(
        self, y: Float[Tensor, "*rows E"], s: Float[Tensor, "*rows D"], c: Float[Tensor, "*rows C"]
    ) -> Float[Tensor, "*rows l"]:
        """t̃ = U s_{i-1} + V y_{i-1} + C c_i, and the larger of each two of it."""
        one, other = self.out(torch.cat([s.to(y.dtype), y, c.to(y.dtype)], -1)).unflatten(-1, (-1, 2)).unbind(-1)
        return torch.maximum(one, other)


class Searching(nn.Module):
    fixed = True
    """search may ask for a state of fixed size"""
    compiles = False
    """torch.compile would write out the loop over the steps, anew for each length"""

    def __init__(self, tables: Tables, encoder: BothWays, decoder: Decoder, dropout: float) -> None:
        super().__init__()
        self.tables, self.encoder, self.decoder = tables, encoder, decoder
        self.dropout = nn.Dropout(dropout)

    def encode(self, batch: Batch) -> tuple[Context, Float[Tensor, "B D"]]:
        """The source made ready to be looked at, and the state that the decoder begins with."""
        if batch.offsets is not None or batch.target_offsets is not None:
            raise ValueError("a recurrent net reads padded rows: it would go on from one document to the next")
        real = None if batch.mask is None else marks(batch.mask, batch.x.shape[1])
        states, back = self.encoder(self.dropout(self.tables.of_source(batch.x)), real)
        return self.decoder.align.ready(states, real), self.decoder.begin(back)

    def unroll(
        self, ids: Int[Tensor, "B L"], s: Float[Tensor, "B D"], context: Context
    ) -> tuple[Float[Tensor, "B L l"], Float[Tensor, "B D"]]:
        """What tokens are read from after each of these, and the state after the last."""
        y = self.dropout(self.tables.of_target(ids))
        before, seen = [], []
        for given in self.decoder.cell.given(y).unbind(1):
            before.append(s)
            s, c = self.decoder.turn(given, s, context)
            seen.append(c)
        return self.dropout(self.decoder.say(y, torch.stack(before, 1), torch.stack(seen, 1))), s

    def forward(self, batch: Batch) -> States:
        """What tokens are read from, over `batch.target`."""
        context, s = self.encode(batch)
        closed = Closed.of(target_of(batch), batch.target_mask)
        return States(closed.opened(self.unroll(closed.ids, s, context)[0]), context=context.values)

    def read(self, x: Float[Tensor, "*rows l"]) -> Float[Tensor, "*rows V"]:
        return self.tables.read(x)

    def held(self, batch: Batch) -> Held:
        return Held(self.decoder.numbers(batch.x.shape[1]), self.tables.vocabulary)

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        """Read the source, and all but the last token of the prompt `batch.target`."""
        prompt, (context, s) = prompt_of(batch), self.encode(batch)
        state = Rolling.fresh({"s": s}, context.named())
        if (said := prompt.shape[1] - 1) > 0:
            state.put(said, s=self.unroll(prompt[:, :-1], s, context)[1])
        return state

    def step(self, tokens: Int[Tensor, "B"], state: Rolling) -> Float[Tensor, "B V"]:
        """The logits that follow one more token of each row."""
        x, s = self.unroll(tokens[:, None], state.own["s"], Context(**state.context))
        state.put(s=s)
        return self.read(x[:, 0])


def build(config: Config) -> Searching:
    """The whole machine."""
    body = Searching(
        Tables(
            config.vocabulary, config.embedding, config.maxout, config.tables, config.source_vocabulary, config.bias
        ),
        BothWays(config.embedding, config.encoder_width, config.bias),
        Decoder(config),
        config.dropout,
    )
    return _begin(body)


def _begin(body: Searching) -> Searching:
    """Matrices of states orthogonal, each of the three; those of the score N(0, 0.001), what sums its network up 0; all others
    N(0, 0.01), biases 0."""
    for parameter in body.parameters():
        nn.init.zeros_(parameter) if parameter.ndim == 1 else nn.init.normal_(parameter, std=0.01)
    for module in body.modules():
        if isinstance(module, Gated):
            for square in (*module.gates.chunk(2), module.new):
                nn.init.orthogonal_(square)
        elif isinstance(module, Additive):
            nn.init.normal_(module.q.weight, std=0.001)
            nn.init.normal_(module.k.weight, std=0.001)
            nn.init.zeros_(module.v.weight)
    return body


SYSTEM = System(
    name="rnnsearch", about="recurrent encoder–decoder of 2014 that aligns: the first attention", config=Config,
    presets=PRESETS, build=build, tasks=("translate", "recall"), recipes=RECALLS, unsayable=unpublished,
)  # fmt: skip
