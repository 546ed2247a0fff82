"""Convolutional Sequence to Sequence Learning (Gehring et al. 2017): a convolutional encoder–decoder.

Differences from the Transformer: convolutions instead of self-attention, with a receptive field that grows with depth;
learned positions; each decoder block has cross-attention with one head, where keys are encoder outputs and values are
the sum of encoder outputs and embeddings. All positions of a sentence are computed in parallel.

If the equations of the paper and the authors' code differ, the code is followed: the context is projected to the width
of the block, sums are multiplied by √½, and the gradient of the encoder is divided by twice the number of attention
layers (each contributes through its keys and its values)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention.masks import valid_mask
from regard.nn.attention.positions import LearnedPosition
from regard.nn.blocks.block import SharedEmbeddings
from regard.nn.blocks.encoder_decoder import valid_targets
from regard.nn.recurrent.conv_sequence import SQRT_HALF, ConvStack, ScaleGradient, WeightNormLinear
from regard.nn.recurrent.rnn import RecurrentState
from regard.nn.recurrent.score_attention import ScoreContext
from regard.systems.common import recipes
from regard.systems.common.recurrent import TINY_TOKENS, RecurrentBody, Seq2SeqConfig
from regard.systems.common.system import System, presets, reject
from regard.types import Batch, BodyOutput, StateSizes

STD = 0.1  # Standard deviation of all embeddings at initialization.


@dataclass(frozen=True)
class Config(Seq2SeqConfig):
    encoder_stages: tuple[str, ...] = ("512x3x9", "1024x3x4", "2048x1x2")
    decoder_stages: tuple[str, ...] = ()
    embedding_dim: int = 768
    output_dim: int = 512
    vocab_size: int = 40_000
    dropout: float = 0.2
    max_length: int = 1024

    output_width_field = "output_dim"

    def check(self) -> None:
        super().check()
        self.blocks()

    def blocks(self) -> list[list[tuple[int, int]]]:
        """Width and kernel of each block of encoder and decoder."""
        stages = {"encoder": self.encoder_stages, "decoder": self.decoder_stages or self.encoder_stages}
        return [parse_stages(words, f"model.{side}_stages") for side, words in stages.items()]

    @property
    def width(self) -> int:
        """Size of the states before the output layer."""
        return self.output_dim


def parse_stages(words: tuple[str, ...], name: str) -> list[tuple[int, int]]:
    """Width and kernel of each block: ("512x3x2", "64x1") -> [(512, 3), (512, 3), (64, 1)]."""
    blocks: list[tuple[int, int]] = []
    for word in words:
        sizes = re.fullmatch(r"(\d+)x(\d+)(?:x(\d+))?", word.strip())
        width, kernel, count = (int(size or 1) for size in sizes.groups()) if sizes else (0, 0, 0)
        reject(
            min(width, kernel, count) < 1,
            f"{name}: '{word}' is not a valid stage. Use WIDTHxKERNELxCOUNT with integers of at least 1, e.g. 512x3x9.",
        )
        blocks += [(width, kernel)] * count
    reject(not blocks, f"{name} must contain at least one stage, e.g. 512x3x9.")
    return blocks


TINY_SIZES = {"encoder_stages": ("128x3x5",), "embedding_dim": 128, "output_dim": 128, "max_length": 256}
TINY = TINY_TOKENS | TINY_SIZES | {"dropout": 0.3}
PRESETS = presets(
    Config(),
    ("convs2s-tiny", 2_566_656, recipes.get("convs2s", vocab_size=10_000, **recipes.TINY_TRANSLATION), TINY),
    ("convs2s-en-de", 209_569_920, recipes.get("convs2s"), {}),
)


class ConvS2S(RecurrentBody):
    def __init__(self, tables: SharedEmbeddings, config: Config) -> None:
        super().__init__()
        E, (encoder, decoder) = config.embedding_dim, config.blocks()
        positions = [LearnedPosition(config.max_length, E, STD) for _ in range(2)]
        self.tables, self.encoder = tables, ConvStack(E, encoder, E, config.dropout)
        self.decoder = ConvStack(E, decoder, config.output_dim, config.dropout, cross=True)
        self.source_position, self.target_position = positions
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, ids: Int[Tensor, "B L"], positions: Int[Tensor, "..."], target: bool) -> Float[Tensor, "B L E"]:
        position = self.target_position if target else self.source_position
        assert position.max_length is not None
        x = self.tables.target(ids) if target else self.tables.embed_source(ids)
        return self.dropout(x + position(positions.clamp(max=position.max_length - 1)))

    def encode(self, batch: Batch, taps: Collection[int] = ()) -> tuple[ScoreContext, tuple[Tensor, ...]]:
        """Keys (encoder outputs) and values (with embeddings added) for the decoder, and the states of `taps`."""
        if batch.packing is not None:
            raise ValueError(
                "Packed batches are not supported: convolutions would mix neighboring sentences. Use padded rows."
            )
        length = batch.inputs.shape[1]
        where = torch.arange(length, device=batch.inputs.device) if batch.positions is None else batch.positions
        real = None if batch.mask is None else valid_mask(batch.mask, length)
        e = self.embed(batch.inputs, where, target=False)
        z, tapped = self.encoder(e, real, taps=taps)
        z = ScaleGradient.apply(z, 1 / (2 * len(self.decoder.blocks)))  # type: ignore[no-untyped-call]
        # values are multiplied by m √(1/m) for m positions: an average of m vectors has lower variance than one vector
        scale = z.new_full((1, 1, 1), math.sqrt(length))
        if real is not None:
            scale = real.sum(1).to(z.dtype).sqrt()[:, None, None]
        return ScoreContext(z, (z + e) * (SQRT_HALF * scale), real), tapped

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Decoder states for `batch.decoder.inputs`; `taps` are encoder blocks."""
        target, (context, tapped) = batch.require_decoder().inputs, self.encode(batch, taps)
        g = self.embed(target, torch.arange(target.shape[1], device=batch.inputs.device), target=True)
        sequence, _ = self.decoder(g, valid_targets(batch), context)
        return BodyOutput(self.dropout(sequence), hidden_states=tapped, cross_states=context.keys)

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        output: Any = self.tables.output
        return (self.tables.target.weight, None) if output is None else (output.normalized_weight(), output.bias)

    def state_sizes(self, batch: Batch) -> StateSizes:
        places = 2 * batch.inputs.shape[1] * self.tables.target.embedding_dim
        return StateSizes(self.tables.target.num_embeddings, per_beam=self.decoder.state_size + places)

    def initial_state(self, batch: Batch) -> RecurrentState:
        context, _ = self.encode(batch)
        states = self.decoder.initial_states(len(batch.inputs), context.keys)
        positions = torch.zeros(len(batch.inputs), dtype=torch.long, device=batch.inputs.device)
        return RecurrentState(positions, states, context.to_dict())

    def advance(self, ids: Int[Tensor, "B Q"], state: RecurrentState) -> Float[Tensor, "B Q O"]:
        where = state.positions[:, None] + torch.arange(ids.shape[1], device=ids.device)
        g = self.embed(ids, where, target=True)
        pasts = [state.state.get(str(number)) for number in range(len(self.decoder.blocks))]
        x, _ = self.decoder(g, context=ScoreContext(**state.context), states=pasts)
        state.update(ids.shape[1])
        return self.dropout(x)


def build(config: Config) -> ConvS2S:
    """Embeddings are initialized from N(0, 0.1²); a separate output layer has weight normalization."""
    tables: Any = SharedEmbeddings(config.vocab_size, config.embedding_dim, config.output_dim, config.tie_embeddings)
    if tables.output is not None:
        tables.output = WeightNormLinear(config.output_dim, config.vocab_size, config.dropout)
    for table in (tables.target, tables.source):
        if table is not None:
            nn.init.normal_(table.weight, std=STD)
    return ConvS2S(tables, config)


DESCRIPTION = "ConvS2S (Gehring et al. 2017), convolutional encoder–decoder"
SYSTEM = System("convs2s", DESCRIPTION, Config, PRESETS, build, recipes.TRANSLATION)
