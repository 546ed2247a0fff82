"""Show, Attend and Tell (Xu et al. 2015): captioning with attention to image positions.

Differences from Show and Tell: the image is a grid of convolutional features. Before each word, the LSTM state is
scored against all positions (additive score), the weighted average is multiplied by a gate, and the result is an input
of the LSTM. A penalty keeps the total attention to each position over a caption near 1. Only soft attention is
implemented; hard attention samples a position. The paper uses VGG-19; here, the image encoder is a setting."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.blocks.encoder_decoder import valid_targets
from regard.nn.kernels.linear import Linear
from regard.nn.recurrent.rnn import RecurrentState, lstm_cell
from regard.nn.recurrent.score_attention import AdditiveScore, ScoreAttention, ScoreContext
from regard.systems.common import recipes
from regard.systems.common.captions import ENCODER, TINY_ENCODER, CaptionConfig, CaptionRNN, expand_to_captions
from regard.systems.common.system import System, presets
from regard.types import IGNORE, Batch, BodyOutput, StateSizes


@dataclass(frozen=True)
class Config(CaptionConfig):
    feature_level: int | None = None  # type: ignore[misc]
    width: int = 1800
    embedding_dim: int = 512
    attention_dim: int = 0
    project_features: bool = True
    dropout: float = 0.5
    attention_penalty: float = 1.0
    init_std: float = 0.01

    optional_sizes = ("attention_dim",)


TINY = TINY_ENCODER | {"width": 256, "embedding_dim": 192, "attention_dim": 128, "dropout": 0.3, "init_std": 0.0}
BASE: dict[str, Any] = {"encoder": "resnet-50", "freeze_encoder": True, "feature_level": 2}
BASE_RECIPE = recipes.get("captions_long", vocab_size=10_000, lr=4e-4, label_smoothing=0.0)
PRESETS = presets(
    Config(),
    ("caption-attend-tiny", 4_665_586, recipes.get("captions"), TINY),
    ("caption-attend-base", 52_951_434, BASE_RECIPE, BASE),
)


class ShowAttendTell(CaptionRNN):
    """Shape letters: B rows, T words, K image positions, D feature size, n hidden size, m embedding size."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eyes, self.penalty = config.build_encoder(), config.attention_penalty
        D, n, m = self.eyes.tap.channels, config.width, config.embedding_dim
        inner = config.attention_dim or D
        self.tokens = nn.Embedding(config.vocab_size, m)
        self.begin = nn.ModuleDict({"first": Linear(D, D), "h": Linear(D, n), "c": Linear(D, n)})
        self.align = ScoreAttention(AdditiveScore(n, D, inner, bias=True))
        self.deeper = Linear(inner, inner) if config.project_features else None
        self.gate = Linear(n, 1)
        self.cell = nn.ModuleDict({"x": Linear(m, 4 * n), "h": Linear(n, 4 * n, False), "z": Linear(D, 4 * n, False)})
        self.out = nn.ModuleDict({"h": Linear(n, m), "z": Linear(D, m)})
        self.words = Linear(m, config.vocab_size)
        self.dropout = nn.Dropout(config.dropout)

    def encode_image(self, batch: Batch) -> tuple[ScoreContext, Float[Tensor, "B n"], Float[Tensor, "B n"]]:
        """Keys and values of the image positions, and initial LSTM state (h, c)."""
        places = self.eyes.patch_features(batch.inputs)
        mean = self.begin["first"](places.mean(1)).relu()
        h, c = (torch.tanh(self.begin[name](mean)).to(self.tokens.weight.dtype) for name in ("h", "c"))
        ready = self.align.prepare(places)
        if self.deeper is not None:
            ready = replace(ready, keys=torch.tanh(self.deeper(ready.keys)))
        ready = ScoreContext(expand_to_captions(ready.keys, batch), expand_to_captions(ready.values, batch))
        return ready, expand_to_captions(h, batch), expand_to_captions(c, batch)

    def embed(self, ids: Int[Tensor, "*rows"], at: Int[Tensor, "..."]) -> Float[Tensor, "*rows m"]:
        """Word embeddings; zeros at position 0, because no word precedes the first."""
        return self.tokens(ids).masked_fill((at == 0)[..., None], 0.0)

    def attend(
        self, h: Float[Tensor, "R n"], context: ScoreContext
    ) -> tuple[Float[Tensor, "R D"], Float[Tensor, "R K"]]:
        """Gated image context, and attention weights over image positions."""
        mixed, weights = self.align(h[:, None], context)
        return torch.sigmoid(self.gate(h)) * mixed[:, 0], weights[:, 0]

    def lstm_step(
        self, x: Float[Tensor, "R four_n"], h: Float[Tensor, "R n"], c: Float[Tensor, "R n"], z: Float[Tensor, "R D"]
    ) -> tuple[Float[Tensor, "R n"], Float[Tensor, "R n"]]:
        """One LSTM step; `x` is the projection of the last word to the gates."""
        return lstm_cell(x + self.cell["h"](h) + self.cell["z"](z), c, "ifog")

    def output_features(
        self, words: Float[Tensor, "*rows m"], h: Float[Tensor, "*rows n"], z: Float[Tensor, "*rows D"]
    ) -> Float[Tensor, "*rows m"]:
        """Features of the next word, from the last word, the LSTM state and the image context."""
        return self.dropout(torch.tanh(self.out["h"](self.dropout(h)) + words + self.out["z"](z)))

    def forward(self, batch: Batch) -> BodyOutput:
        """The doubly stochastic penalty is Σ (1 − Σ_t α)² over all image positions and rows; padding has no weight."""
        target = batch.require_decoder().inputs
        context, h, c = self.encode_image(batch)
        words = self.embed(target, torch.arange(target.shape[1], device=target.device))
        states, seen, looks = [], [], []
        for x in self.cell["x"](words).unbind(1):
            z, weights = self.attend(h, context)
            h, c = self.lstm_step(x, h, c, z)
            states.append(h)
            seen.append(z)
            looks.append(weights)
        sequence = self.output_features(words, torch.stack(states, 1), torch.stack(seen, 1))
        side = {}
        if self.training and self.penalty:
            valid = valid_targets(batch) if batch.labels is None else batch.labels != IGNORE
            weights = torch.stack(looks, 1)
            weights = weights if weights.dtype == torch.float64 else weights.float()
            total = (weights if valid is None else weights * valid[..., None]).sum(1)
            side = {"penalty": self.penalty * (1 - total).square().sum()}
        return BodyOutput(sequence, cross_states=context.values, aux_losses=side)

    def state_sizes(self, batch: Batch) -> StateSizes:
        places = math.prod(self.grid(batch)) * (self.align.score.inner + self.eyes.tap.channels)
        return StateSizes(self.words.weight.shape[0], per_beam=2 * self.gate.weight.shape[1] + places)

    def initial_state(self, batch: Batch) -> RecurrentState:
        context, h, c = self.encode_image(batch)
        return RecurrentState.from_tensors({"h": h, "c": c}, context.to_dict())

    def advance(self, ids: Int[Tensor, "R Q"], state: RecurrentState) -> Float[Tensor, "R Q m"]:
        context, features = ScoreContext(**state.context), []
        for tokens in ids.unbind(1):
            words, h = self.embed(tokens, state.positions), state.state["h"]
            z, _ = self.attend(h, context)
            h, c = self.lstm_step(self.cell["x"](words), h, state.state["c"], z)
            state.update(h=h, c=c)
            features.append(self.output_features(words, h, z))
        return torch.stack(features, 1)


def build(config: Config) -> ShowAttendTell:
    """Initialization of the authors: N(0, `init_std`), orthogonal for square matrices (also each of the four in the
    LSTM), biases 0. `init_std=0`: matrices are scaled by fan-in, embeddings N(0, 0.1)."""
    body, std = ShowAttendTell(config), config.init_std
    for name, parameter in body.named_parameters():
        if name.startswith("eyes."):
            continue
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
            continue
        if not std:
            nn.init.normal_(parameter, std=0.1 if name.startswith("tokens.") else parameter.shape[1] ** -0.5)
            continue
        nn.init.normal_(parameter, std=std)
        for part in parameter.chunk(4) if name.startswith("cell.") else (parameter,):
            if part.shape[0] == part.shape[1]:
                nn.init.orthogonal_(part)
    return body


DESCRIPTION = "Show, Attend and Tell (2015), captioning with attention"
SYSTEM = System("caption-attend", DESCRIPTION, Config, PRESETS, build, recipes.CAPTIONS, part=ENCODER)
