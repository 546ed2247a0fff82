"""The encoder of the Universal Transformer alone (Dehghani et al. 2018), asked as BERT is.

What differs from BERT: one block for all depths. Before every step the sines of the position and of the number of the step are
added; with halting every token decides by itself after how many steps it stops. The first token stands for a whole text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention.masks import Packed, Real, Rule, join, marks
from regard.nn.attention.positions import Layout, Sinusoid
from regard.nn.blocks.act import Mixing
from regard.nn.blocks.block import Placement, Tokens
from regard.nn.blocks.encoder import first_states
from regard.nn.blocks.universal import Repeated, check_repeated, most_steps, repeated
from regard.systems.common import bert
from regard.systems.common.seq2seq_inputs import places
from regard.systems.common.system import Preset, System, check_sizes, unpublished
from regard.types import Batch, States


@dataclass(frozen=True)
class Config:
    width: int = 512
    """width of the states (d_model)"""
    steps: int = 6
    """how often the block is applied, where tokens do not stop by themselves"""
    heads: int = 8
    """attention heads"""
    hidden: int = 2048
    """inner width of the feed-forward layer"""
    vocabulary: int = 30_522
    """tokens"""
    length: int = 512
    """longest text, or pair of texts, that is read as a whole; the model itself has no limit"""
    types: int = 2
    """texts in a row that can be told apart"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    feed_dropout: float = 0.0
    """share dropped inside the feed-forward layer"""
    head_dropout: float = 0.1
    """share dropped of what a task's head reads"""
    norm: Placement = "post"
    """where the layer norm stands: post as in the paper, or pre as in the published code, with a norm after the last step"""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """non-linearity of the feed-forward layer"""
    positions: Layout = "interleaved"
    """sines and cosines that are added before each step: interleaved as in the paper, or halves [sin | cos]"""
    times: Literal["sinusoid", "learned"] = "sinusoid"
    """how a step is told from others: the same sines of its number, as in the paper, or a vector that is learnt"""
    halting: bool = False
    """each token stops by itself (adaptive computation time)"""
    cap: int = 0
    """steps at most where tokens stop by themselves; 0: twice model.steps"""
    epsilon: float = 0.01
    """a token stops when its probabilities of that sum to more than 1 minus this"""
    mixing: Mixing = "convex"
    """how the states of its steps are mixed: each replaces a share of what was there, or all are accumulated by their shares"""
    ponder: float = 0.01
    """what a step costs beside the loss, where tokens stop by themselves"""
    scaled: bool = True
    """multiply embeddings by the square root of the width"""
    pad: int = 0
    """id of the padding token"""
    start: int = 101
    """id of the token that begins a text, [CLS]"""
    end: int = 102
    """id of the token that ends each text, [SEP]"""
    mask: int = 103
    """id of the token that hides another, [MASK]"""

    def __post_init__(self) -> None:
        sizes = ("width", "steps", "heads", "hidden", "vocabulary", "length", "types")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "feed_dropout", "head_dropout"))
        check_repeated(self)

    @property
    def most(self) -> int:
        """Steps at most."""
        return most_steps(self)

    @property
    def head_activation(self) -> str:
        """Of the layer that a head has for summaries."""
        return self.activation

    @property
    def eps(self) -> float:
        """Small number in the layer norms, that of a head too."""
        return 1e-5


BASE = Config()
MINI = replace(BASE, width=256, heads=4, hidden=1024, vocabulary=8000, length=256, start=2, end=3, mask=4)
PRESETS = {
    "universal-encoder-mini": Preset(
        MINI, 2_912_576, bert.small(steps=10_000, tokens=8192, rate=5e-4, warmup=1000)
    ),
    "universal-encoder-mini-halting": Preset(
        replace(MINI, halting=True), 2_912_833, bert.small(steps=10_000, tokens=8192, rate=5e-4, warmup=1000)
    ),
    "universal-encoder-base": Preset(
        replace(BASE, width=1024, heads=16, hidden=4096, norm="pre", positions="halves", times="learned"),
        44_943_162, bert.pretraining(),
    ),
}  # fmt: skip


class UniversalEncoder(nn.Module):
    pools = False
    """what stands for a whole text is the state of its first token; heads have the layer on it"""

    def __init__(
        self, tokens: Tokens, types: nn.Embedding, position: Sinusoid, encoder: Repeated, config: Config
    ) -> None:
        super().__init__()
        self.tokens, self.types, self.position, self.encoder = tokens, types, position, encoder
        self.dropout, self.price, self.pad = nn.Dropout(config.dropout), config.ponder, config.pad

    @property
    def repeats(self) -> int:
        """How often each attention looks while a text is read, at most."""
        return self.encoder.depth

    def embed(self, batch: Batch) -> Float[Tensor, "B L D"]:
        """Tokens and the text that they belong to: positions are added before each step."""
        types = torch.zeros_like(batch.x) if batch.types is None else batch.types
        return self.dropout(self.tokens(batch.x) + self.types(types))

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> States:
        """The states over `batch.x`, and of each row, or of each document of a packed row, its first; `taps` are steps."""
        real = None if batch.mask is None else marks(batch.mask, batch.x.shape[1])
        rule: Rule | None = None if batch.mask is None else Real(batch.mask)
        if batch.offsets is not None:
            real, rule = batch.x != self.pad, join(Packed(batch.offsets, batch.offsets), rule)
        where = places(batch.x, batch.offsets) if batch.where is None else batch.where
        ran = self.encoder(self.embed(batch), self.position(where), rule=rule, taps=taps, real=real)
        states = States(ran.states, first_states(ran.states, batch.offsets), ran.taps)
        if ran.pondered is None:
            return states
        spent, tokens = ran.pondered.cost(ran.pondered.steps > 0)
        return replace(states, ponder=ran.pondered.steps, side={"cost": self.price * spent / tokens.clamp(min=1)})


def build(config: Config) -> UniversalEncoder:
    """The whole machine."""
    types = nn.Embedding(config.types, config.width)
    nn.init.normal_(types.weight, std=0.02)
    return UniversalEncoder(
        tokens=Tokens(config.vocabulary, config.width, config.scaled),
        types=types,
        position=Sinusoid(config.width, config.positions),
        encoder=repeated(config, cross=False),
        config=config,
    )


SYSTEM = System(
    name="universal-encoder", about="encoder of one block that is repeated, with or without halting", config=Config,
    presets=PRESETS, build=build, tasks=bert.TASKS, unsayable=unpublished, recipes=bert.TUNING,
    further=bert.FURTHER,
)  # fmt: skip
