"""Sequence to Sequence Learning with Neural Networks (Sutskever, Vinyals, Le 2014): two recurrent nets and nothing between.

What is older than the Transformer: tokens are read one after another, and all that a decoder knows of the source is the last
state of the encoder, of one size however long the sentence was. Reading the source backwards brings its beginning closer to
the translation's (in the paper 30.6 BLEU for 26.2). With `feeds` the decoder sees that state at every step.
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
from regard.nn.recurrent.recurrent_state import Held, Rolling
from regard.nn.recurrent.rnn import CellName, Closed, Kept, Order, Reader, Recurrent
from regard.systems.common.seq2seq import Recurring
from regard.systems.common.seq2seq_inputs import prompt_of, target_of
from regard.systems.common.system import RECALLS, Preset, System, unpublished
from regard.types import Batch, States

WORDS = 0.3
"""Spread of the words at first, where matrices are spread by what they read."""


@dataclass(frozen=True)
class Config(Recurring):
    cell: CellName = "lstm"
    """what is repeated: rnn (tanh of one product), gru, or lstm as in the paper; none has biases"""
    width: int = 1000
    """width of the states of each layer"""
    embedding: int = 1000
    """width of the embeddings"""
    depth: int = 4
    """layers of the encoder, and of the decoder"""
    both_ways: bool = False
    """half of each of the encoder's layers reads from the end; the decoder begins with [onward | back] of each layer"""
    reversed: bool = True
    """the source is read backwards"""
    feeds: bool = False
    """the encoder's last state is read at every step of the decoder too, beside the token"""
    dropout: float = 0.0
    """share dropped of the embeddings, between layers, and of the last states"""
    vocabulary: int = 80_000
    spread: float = 0.08
    """all weights begin uniformly between this and minus this, as in the paper; 0: matrices by how much they read and words
    wider, with which small ones learn many times sooner"""

    sizes = ("width", "embedding", "depth")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread < 0:
            raise SettingError(f"model.spread must be at least 0, not {self.spread}.")
        if self.both_ways and self.width % 2:
            raise SettingError(f"model.both_ways halves model.width, and {self.width} is odd: take an even number.")


PAPER: dict[str, dict[str, Any]] = {
    "train": {
        "steps": 700_000, "tokens": 8192, "rate": 5e-4, "warmup": 1000, "schedule": "linear", "smoothing": 0.0,
        "betas": "0.9,0.999", "eps": 1e-8, "clip": 5.0, "decay": 0.0,
    },
    "data": {"vocabulary": 80_000},
    "decode": {"beam": 12, "penalty": 0.0},
}  # fmt: skip
"""7.5 passes over 12 million pairs, 128 at a time, gradients of norm 5 at most. The paper learns by plain descent at a rate of
0.7 that is halved later; here all learn by Adam, which wants another rate."""

FULL = Config()
PRESETS = {
    "rnn-tiny": Preset(
        replace(FULL, width=192, embedding=192, depth=1, dropout=0.2, vocabulary=10_000, tables="one", spread=0.0),
        2_509_824,
        {
            "train": {
                **PAPER["train"], "steps": 6000, "rate": 5e-3, "warmup": 300, "smoothing": 0.1, "clip": 1.0,
                "average": 0.999,
            },
            "data": {"vocabulary": 10_000},
            "decode": {"beam": 4, "penalty": 0.6},
        },
    ),
    # the paper's 384,000,000 have another 80,000 words of source: `source_vocabulary=160_000` makes it exactly those
    "rnn-sutskever": Preset(FULL, 304_000_000, PAPER),
}  # fmt: skip


class EncoderDecoder(nn.Module):
    fixed = True
    """search may ask for a state of fixed size"""
    compiles = False
    """a call of a fused kernel for each layer: there is nothing for torch.compile to join"""

    def __init__(self, tables: Tables, encoder: Reader, decoder: Recurrent, config: Config) -> None:
        super().__init__()
        self.tables, self.encoder, self.decoder = tables, encoder, decoder
        self.reversed, self.feeds = config.reversed, config.feeds
        self.fed = config.width if config.feeds else 0
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, batch: Batch) -> Kept:
        """What the decoder begins with: the last states of all layers, and what it is fed."""
        if batch.offsets is not None or batch.target_offsets is not None:
            raise ValueError("a recurrent net reads padded rows: it would go on from one document to the next")
        order = Order.of(None if batch.mask is None else marks(batch.mask, batch.x.shape[1]), self.reversed)
        x = self.dropout(self.tables.of_source(order.ids(batch.x)))
        kept = self.encoder(order.laid(x), order)
        return {**kept, "fed": kept["h"][:, -1]} if self.feeds else kept

    def decode(self, ids: Int[Tensor, "B L"], kept: Kept) -> tuple[Float[Tensor, "B L W"], Kept]:
        """s_t = g(y_{t-1}, s_{t-1}), or g(y_{t-1}, s_{t-1}, c) where c is fed."""
        x = self.dropout(self.tables.of_target(ids))
        if self.feeds:
            x = torch.cat([x, kept["fed"].to(x.dtype)[:, None].expand(-1, ids.shape[1], -1)], -1)
        x, after = self.decoder(x, kept)
        return self.dropout(x), after

    def forward(self, batch: Batch) -> States:
        """The decoder's states over `batch.target`."""
        closed = Closed.of(target_of(batch), batch.target_mask)
        return States(closed.opened(self.decode(closed.ids, self.encode(batch))[0]))

    def read(self, x: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows V"]:
        return self.tables.read(x)

    def held(self, batch: Batch) -> Held:
        return Held(self.decoder.numbers + self.fed, self.tables.vocabulary)

    def start(self, batch: Batch, room: int | None = None) -> Rolling:
        """Read the source, and all but the last token of the prompt `batch.target`."""
        prompt, state = prompt_of(batch), Rolling.fresh(self.encode(batch))
        if (said := prompt.shape[1] - 1) > 0:
            state.put(said, **self.decode(prompt[:, :-1], state.own)[1])
        return state

    def step(self, tokens: Int[Tensor, "B"], state: Rolling) -> Float[Tensor, "B V"]:
        """The logits that follow one more token of each row."""
        x, after = self.decode(tokens[:, None], state.own)
        state.put(**after)
        return self.read(x[:, 0])


def build(config: Config) -> EncoderDecoder:
    """The whole machine."""
    fed = config.width if config.feeds else 0
    body = EncoderDecoder(
        Tables(config.vocabulary, config.embedding, config.width, config.tables, config.source_vocabulary),
        Reader(config.cell, config.embedding, config.width, config.depth, config.dropout, config.both_ways),
        Recurrent(config.cell, config.embedding + fed, config.width, config.depth, config.dropout),
        config,
    )
    return begun(body, config.spread)


def begun(body: EncoderDecoder, spread: float) -> EncoderDecoder:
    """Evenly within `spread`; without one N(0, 1 / what a row reads), and words N(0, 0.3²)."""
    for name, parameter in body.named_parameters():
        if spread:
            nn.init.uniform_(parameter, -spread, spread)
        elif name.startswith("tables.") and not name.startswith("tables.output"):
            nn.init.normal_(parameter, std=WORDS)
        else:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return body


SYSTEM = System(
    name="rnn", about="recurrent encoder–decoder of 2014 with a fixed context", config=Config, presets=PRESETS, build=build,
    tasks=("translate", "recall"), recipes=RECALLS, unsayable=unpublished,
)  # fmt: skip
