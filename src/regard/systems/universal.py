"""Universal Transformers (Dehghani et al. 2018): one block for all depths, and each position thinks as long as it needs.

What differs from Vaswani: encoder and decoder are one block each, applied again and again; before every step the position
and the number of the step are added; with halting every position decides by itself after how many steps it stops.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import SettingError
from regard.nn.attention.masks import marks
from regard.nn.attention.positions import Layout, Sinusoid
from regard.nn.blocks.act import Mixing
from regard.nn.blocks.block import Placement, Tokens
from regard.nn.blocks.cross_decoder import CrossDecoder
from regard.nn.blocks.decoding_state import DecoderState
from regard.nn.blocks.universal import Ran, Repeated, check_repeated, most_steps, repeated
from regard.systems.common.seq2seq_inputs import Sides, prompt_of, target_of
from regard.systems.common.system import RECALLS, Preset, System, check_sizes, unpublished
from regard.systems.transformer import recipe
from regard.types import IGNORE, Batch, States


@dataclass(frozen=True)
class Config:
    width: int = 512
    """width of the states (d_model)"""
    steps: int = 6
    """how often the block is applied, where positions do not stop by themselves"""
    heads: int = 8
    """attention heads"""
    hidden: int = 2048
    """inner width of the feed-forward layer"""
    vocabulary: int = 37000
    """tokens, shared by source and target"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    feed_dropout: float = 0.0
    """share dropped inside the feed-forward layer"""
    norm: Placement = "post"
    """where the layer norm stands: post as in the paper, or pre as in the published code, with a norm after the last step"""
    activation: Literal["relu", "gelu", "swish"] = "relu"
    """non-linearity of the feed-forward layer"""
    positions: Layout = "interleaved"
    """sines and cosines that are added before each step: interleaved as in the paper, or halves [sin | cos]"""
    times: Literal["sinusoid", "learned"] = "sinusoid"
    """how a step is told from others: the same sines of its number, as in the paper, or a vector that is learnt"""
    shift: int = 0
    """while learning, positions of a row begin anywhere up to here, so that later ones are known too (in the paper, where
    lengths are tested that were never seen)"""
    halting: bool = False
    """each position stops by itself (adaptive computation time)"""
    cap: int = 0
    """steps at most where positions stop by themselves; 0: twice model.steps"""
    epsilon: float = 0.01
    """a position stops when its probabilities of that sum to more than 1 minus this"""
    mixing: Mixing = "convex"
    """how the states of its steps are mixed: each replaces a share of what was there, or all are accumulated by their shares"""
    ponder: float = 0.01
    """what a step costs beside the loss, where positions stop by themselves"""
    scaled: bool = True
    """multiply embeddings by the square root of the width"""
    length: int = 512
    """longest sequence that others should expect; the model itself has no limit"""
    pad: int = 0
    """id of the padding token"""
    start: int = 1
    """id of the token that an answer starts from"""
    end: int = 2
    """id of the token that ends a text"""

    def __post_init__(self) -> None:
        sizes = ("width", "steps", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "feed_dropout"))
        check_repeated(self)
        if self.shift < 0:
            raise SettingError(f"model.shift must be at least 0, not {self.shift}.")

    @property
    def most(self) -> int:
        """Steps at most."""
        return most_steps(self)


PAPER = recipe(rate=1024**-0.5 * 4000**-0.5)
TINY = {
    **recipe(steps=6000, tokens=16_384, rate=2e-3, warmup=1500, schedule="linear", clip=1.0, average=0.999),
    "data": {"vocabulary": 10_000},
}

FULL = Config()
BASE = replace(
    FULL, width=1024, hidden=4096, heads=16, dropout=0.3, norm="pre", positions="halves", times="learned"
)  # as the published code has it
SMALL = replace(FULL, width=192, heads=4, hidden=768, vocabulary=10_000)
PRESETS = {
    "universal-tiny": Preset(SMALL, 2_958_336, TINY),
    "universal-tiny-halting": Preset(replace(SMALL, halting=True, ponder=1e-3), 2_958_722, TINY),
    "universal-base": Preset(BASE, 67_297_280, PAPER),
    "universal-base-halting": Preset(replace(BASE, halting=True), 67_311_618, PAPER),
}


class Universal(CrossDecoder):
    encoder: Repeated  # type: ignore[assignment]
    decoder: Repeated  # type: ignore[assignment]

    def __init__(
        self, tokens: Tokens, position: Sinusoid, encoder: Repeated, decoder: Repeated, config: Config
    ) -> None:
        super().__init__(tokens, position, decoder, config.dropout, encoder)  # type: ignore[arg-type]
        self.shift, self.price, self.pad = config.shift, config.ponder, config.pad

    def embed(
        self, ids: Int[Tensor, "B L"], where: Int[Tensor, "..."], known: Float[Tensor, "room D"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Tokens alone: positions are added before each step."""
        return self.dropout(self.tokens(ids))

    def encode(self, batch: Batch, sides: Sides, taps: Collection[int] = ()) -> Ran:
        real = None if batch.mask is None else marks(batch.mask, batch.x.shape[1])
        if batch.offsets is not None:
            real = batch.x != self.pad
        x, places = self.embed(batch.x, sides.where), self.position(sides.where)
        return self.encoder(x, places, rule=sides.rule, taps=taps, real=real)

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> States:
        """The decoder's states over `batch.target`; `taps` are steps of the encoder."""
        target, sides = target_of(batch), Sides.of(batch)
        if self.training and self.shift:
            sides = sides.shifted(batch, self.shift)
        read = self.encode(batch, sides, taps)
        ran = self.decoder(
            self.embed(target, sides.target_where), self.position(sides.target_where), read.states, rule=sides.target_rule,
            context_rule=sides.context_rule, real=self._real(batch),
        )  # fmt: skip
        states = States(ran.states, taps=read.taps, context=read.states)
        if read.pondered is None or ran.pondered is None:
            return states
        cost, count = ran.pondered.cost(self._real(batch) if batch.labels is None else batch.labels != IGNORE)
        spent, tokens = read.pondered.cost(read.pondered.steps > 0)
        # the loss is summed over what is said: so is the mean of what was read
        penalty = self.price * (cost + spent / tokens.clamp(min=1) * count)
        return replace(
            states, ponder=read.pondered.steps, side={"penalty": penalty, "target_ponder": ran.pondered.steps}
        )

    def _real(self, batch: Batch) -> Tensor | None:
        """Positions of the target that are no padding, where that is known."""
        target = target_of(batch)
        if batch.target_mask is not None:
            return marks(batch.target_mask, target.shape[1])
        return None if batch.target_offsets is None else target != self.pad

    def pondered(self, batch: Batch) -> Int[Tensor, "B S"] | None:
        """How many steps each token of the source took; None where all take the same."""
        if not self.encoder.halts:
            return None
        ran = self.encode(batch, Sides.of(batch))
        assert ran.pondered is not None
        return ran.pondered.steps

    def start(self, batch: Batch, room: int | None = None) -> DecoderState:
        """Read the source, and all but the last token of the prompt `batch.target`.

        With `room`, memory is made for that many positions at once and keeps its shape."""
        if batch.offsets is not None:
            raise ValueError("generation starts from padded sources")
        prompt, context = prompt_of(batch), self.encode(batch, Sides.of(batch)).states
        real = None if batch.mask is None else marks(batch.mask, batch.x.shape[1])[:, None]
        return self.begin(context, real, prompt, room)

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        turn = state.turn(ids.shape[1])
        places = self.position(turn.where) if state.places is None else state.places[turn.where]
        ran = self.decoder(
            self.embed(ids, turn.where), places, rule=turn.rules, context_rule=state.regard, memory=state.layers,
            where=turn.columns,
        )  # fmt: skip
        state.passed(turn.where.shape[-1])
        return ran.states


def build(config: Config) -> Universal:
    """The whole machine: the encoder looks both ways, the decoder back."""
    return Universal(
        tokens=Tokens(config.vocabulary, config.width, config.scaled),
        position=Sinusoid(config.width, config.positions),
        encoder=repeated(config, cross=False),
        decoder=repeated(config, cross=True),
        config=config,
    )


SYSTEM = System(
    name="universal", about="encoder–decoder of one block that is repeated, with or without halting", config=Config,
    presets=PRESETS, build=build, tasks=("translate", "recall"), recipes=RECALLS, unsayable=unpublished,
)  # fmt: skip
