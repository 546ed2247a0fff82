"""Show and Tell: A Neural Image Caption Generator (Vinyals et al. 2015): captioning without attention.

One vector of the whole image is the first input of an LSTM, followed by the words. Later steps have no access to the
image. The paper uses GoogLeNet; here, the image encoder is a setting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.kernels.linear import Linear, linear
from regard.nn.recurrent.rnn import RecurrentState, lstm_cell, run_layer
from regard.systems.common import recipes
from regard.systems.common.captions import ENCODER, TINY_ENCODER, CaptionConfig, CaptionRNN, expand_to_captions
from regard.systems.common.system import System, presets
from regard.types import Batch, BodyOutput, StateSizes


@dataclass(frozen=True)
class Config(CaptionConfig):
    width: int = 512
    embedding_dim: int = 512
    depth: int = 1
    dropout: float = 0.3


TINY = TINY_ENCODER | {"width": 320, "embedding_dim": 192}
BASE_RECIPE = recipes.get("captions_long", None, {"num_beams": 20}, vocab_size=10_000, lr=4e-4, label_smoothing=0.0)
PRESETS = presets(
    Config(),
    ("caption-fixed-tiny", 4_528_304, recipes.get("captions"), TINY),
    ("caption-fixed-base", 36_908_368, BASE_RECIPE, {"encoder": "resnet-50", "freeze_encoder": True}),
)
"""The beam size of the paper is 20, and 3 in its later release. The paper uses SGD; these learning rates are for Adam."""


class ShowTell(CaptionRNN):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eyes = config.build_encoder()
        self.tokens = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.project = Linear(self.eyes.tap.channels, config.embedding_dim)
        between = config.dropout if config.depth > 1 else 0.0
        self.lstm = nn.LSTM(config.embedding_dim, config.width, config.depth, batch_first=True, dropout=between)
        self.words = Linear(config.width, config.vocab_size)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.uniform_(self.tokens.weight, -0.08, 0.08)

    def encode_image(self, batch: Batch) -> Float[Tensor, "B m"]:
        """Image vector in the embedding space of the words, (B, m)."""
        return expand_to_captions(self.project(self.eyes.pooled(batch.inputs)), batch)

    def forward(self, batch: Batch) -> BodyOutput:
        """Teacher forcing; the output at the image is not used."""
        picture = self.encode_image(batch)[:, None]
        words = self.tokens(batch.require_decoder().inputs)
        states, _ = run_layer(self.lstm, self.dropout(torch.cat([picture.to(words.dtype), words], 1)))
        return BodyOutput(self.dropout(states[:, 1:]))

    def state_sizes(self, batch: Batch) -> StateSizes:
        return StateSizes(self.words.weight.shape[0], per_beam=2 * self.lstm.num_layers * self.lstm.hidden_size)

    def initial_state(self, batch: Batch) -> RecurrentState:
        """State after the image."""
        picture = self.encode_image(batch)
        shape = len(picture), self.lstm.num_layers, self.lstm.hidden_size
        state = RecurrentState.from_tensors({name: self.tokens.weight.new_zeros(shape) for name in ("h", "c")})
        self.lstm_step(picture, state, 0)
        return state

    def advance(self, ids: Int[Tensor, "R Q"], state: RecurrentState) -> Float[Tensor, "R Q n"]:
        return torch.stack([self.lstm_step(self.tokens(token), state) for token in ids.unbind(1)], 1)

    def lstm_step(self, x: Float[Tensor, "R m"], state: RecurrentState, count: int = 1) -> Float[Tensor, "R n"]:
        """One step of all LSTM layers, with matrix products for few rows."""
        found: dict[str, list[Tensor]] = {"h": [], "c": []}
        for layer, (h, c) in enumerate(zip(state.state["h"].unbind(1), state.state["c"].unbind(1), strict=True)):
            matrices = [
                getattr(self.lstm, f"{name}_l{layer}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
            ]
            x, c = lstm_cell(linear(x, *matrices[:2]) + linear(h, *matrices[2:]), c)
            found["h"].append(x)
            found["c"].append(c)
        state.update(count, **{name: torch.stack(parts, 1) for name, parts in found.items()})
        return x


DESCRIPTION = "Show and Tell (2015), CNN + LSTM captioning"
SYSTEM = System("caption-fixed", DESCRIPTION, Config, PRESETS, ShowTell, recipes.CAPTIONS, part=ENCODER)
