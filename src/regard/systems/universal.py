"""Universal Transformers (Dehghani et al. 2018): one block for all depths, with adaptive computation time.

Differences from the Transformer: encoder and decoder are one block each, applied repeatedly; embeddings of position and
step are added before every step; with ACT, each position halts after its own number of steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import TokenEmbedding
from regard.nn.blocks.decoder import DecoderState
from regard.nn.blocks.encoder_decoder import EncoderDecoder, Seq2SeqInputs
from regard.nn.blocks.universal import UniversalStack, make_universal_stack
from regard.systems.common import recipes
from regard.systems.common.system import System, TargetTokens, presets
from regard.systems.common.universal import PUBLISHED_CODE, UniversalConfig, real_tokens
from regard.types import IGNORE, Batch, BodyOutput


@dataclass(frozen=True)
class Config(TargetTokens, UniversalConfig):
    max_position_offset: int = 0


PAPER_RECIPE = recipes.get("transformer", lr=1024**-0.5 * 4000**-0.5)
TINY_RECIPE = recipes.get("transformer", vocab_size=10_000, **{**recipes.TINY_TRANSLATION, "lr": 2e-3})
TINY: dict[str, Any] = {"width": 192, "heads": 4, "ffn_dim": 768, "vocab_size": 10_000}
BASE: dict[str, Any] = {**PUBLISHED_CODE, "dropout": 0.3}
PRESETS = presets(
    Config(),
    ("universal-tiny", 2_958_336, TINY_RECIPE, TINY),
    ("universal-tiny-halting", 2_958_722, TINY_RECIPE, {**TINY, "act": True, "ponder_cost": 1e-3}),
    ("universal-base", 67_297_280, PAPER_RECIPE, BASE),
    ("universal-base-halting", 67_311_618, PAPER_RECIPE, {**BASE, "act": True}),
)


class UniversalTransformer(EncoderDecoder):
    shares_layers = True
    encoder: UniversalStack  # type: ignore[assignment]
    decoder: UniversalStack  # type: ignore[assignment]

    def __init__(self, config: Config) -> None:
        tokens = TokenEmbedding(config.vocab_size, config.width, config.scale_embedding)
        position = SinusoidalPosition(config.width, config.position_embedding)
        encoder, decoder = (make_universal_stack(config, decoder=cross) for cross in (False, True))
        super().__init__(tokens, position, decoder, config.dropout, encoder)  # type: ignore[arg-type]
        self.max_offset, self.act_weight, self.pad = config.max_position_offset, config.ponder_cost, config.pad_id

    def embed(
        self,
        ids: Int[Tensor, "B L"],
        positions: Int[Tensor, "..."],
        position_embeddings: Float[Tensor, "room D"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Token embeddings without positions, which are added before each step."""
        return self.dropout(self.tokens(ids))

    def encode(self, batch: Batch, inputs: Seq2SeqInputs, taps: Collection[int] = ()) -> tuple[Any, ...]:
        x, places = self.embed(batch.inputs, inputs.positions), self.position(inputs.positions)
        return self.encoder(x, places, mask=inputs.mask, taps=taps, valid=real_tokens(batch, self.pad))

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Decoder states for `batch.decoder.inputs`; `taps` are encoder steps."""
        sides = Seq2SeqInputs.from_batch(batch, self.max_offset if self.training else 0)
        target, valid = sides.decoder, real_tokens(sides.decoder, self.pad)
        context, tapped, read = self.encode(batch, sides, taps)
        x, _, ran = self.decoder(
            self.embed(target.inputs, sides.decoder_positions),
            self.position(sides.decoder_positions),
            context,
            mask=sides.decoder_mask,
            context_mask=sides.cross_mask,
            valid=valid,
        )
        states = BodyOutput(x, hidden_states=tapped, cross_states=context)
        if read is None or ran is None:
            return states
        cost, count = ran.ponder_cost(valid if batch.labels is None else batch.labels != IGNORE)
        spent, tokens = read.ponder_cost(read.steps > 0)
        # the loss is summed over target tokens, so the average cost of the source is multiplied by their number
        penalty = self.act_weight * (cost + spent / tokens.clamp(min=1) * count)
        return replace(states, act_steps=read.steps, aux_losses={"penalty": penalty, "target_ponder": ran.steps})

    def act_steps(self, batch: Batch) -> Int[Tensor, "B S"] | None:
        """Number of ACT steps of each source token; None without ACT."""
        return None if self.encoder.halting is None else self.encode(batch, Seq2SeqInputs.from_batch(batch))[2].steps

    def advance(self, ids: Int[Tensor, "B Q"], state: DecoderState) -> Float[Tensor, "B Q D"]:
        turn = state.next_step(ids.shape[1])
        places = (
            self.position(turn.positions)
            if state.position_embeddings is None
            else state.position_embeddings[turn.positions]
        )
        x, *_ = self.decoder(
            self.embed(ids, turn.positions),
            places,
            mask=turn.masks,
            context_mask=state.cross_mask,
            cache=state.layers,
            at=turn.cache_columns,
        )
        state.advance(turn.positions.shape[-1])
        return x


DESCRIPTION = "Universal Transformer (2018), shared block, optional adaptive computation time"
SYSTEM = System("universal", DESCRIPTION, Config, PRESETS, UniversalTransformer, recipes.TRANSLATION)
