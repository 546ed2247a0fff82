"""The encoder of the Universal Transformer (Dehghani et al. 2018), for the tasks of BERT.

Differences from BERT: one block for all depths. Sinusoidal embeddings of position and step are added before every step;
with ACT, each token halts after its own number of steps. The first token represents the whole text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.nn.attention.masks import AttentionMask, PackedDocuments, Padding, and_masks, valid_mask
from regard.nn.attention.positions import SinusoidalPosition, SinusoidLayout
from regard.nn.blocks.act import Mixing
from regard.nn.blocks.block import NormPlacement, TokenEmbedding
from regard.nn.blocks.encoder import first_token_states
from regard.nn.blocks.universal import UniversalStack, make_universal_stack, max_steps
from regard.systems.common import bert, recipes
from regard.systems.common.configs import ModelConfig
from regard.systems.common.seq2seq import position_ids
from regard.systems.common.system import Preset, System
from regard.types import Batch, BodyOutput


@dataclass(frozen=True)
class Config(ModelConfig):
    width: int = 512
    num_steps: int = 6
    heads: int = 8
    ffn_dim: int = 2048
    vocab_size: int = 30_522
    max_length: int = 512
    type_vocab_size: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.0
    ffn_dropout: float = 0.0
    head_dropout: float = 0.1
    norm_position: NormPlacement = "post"
    activation: Literal["relu", "gelu", "swish"] = "relu"
    position_embedding: SinusoidLayout = "interleaved"
    step_embedding: Literal["sinusoid", "learned"] = "sinusoid"
    act: bool = False
    act_max_steps: int = 0
    act_epsilon: float = 0.01
    act_mixing: Mixing = "convex"
    ponder_cost: float = 0.01
    scale_embedding: bool = True
    pad_id: int = 0
    bos_id: int = 101
    eos_id: int = 102
    mask_id: int = 103

    @property
    def max_steps(self) -> int:
        """Maximum number of steps."""
        return max_steps(self)

    @property
    def head_activation(self) -> str:
        """Activation function of the dense layer in classification heads."""
        return self.activation

    @property
    def norm_eps(self) -> float:
        """LayerNorm epsilon, also of heads."""
        return 1e-5


BASE = Config()
MINI = replace(BASE, **bert.MINI, max_length=256)
PRESETS = {
    "universal-encoder-mini": Preset(MINI, 2_912_576, recipes.small_bert(lr=5e-4)),
    "universal-encoder-mini-halting": Preset(replace(MINI, act=True), 2_912_833, recipes.small_bert(lr=5e-4)),
    "universal-encoder-base": Preset(
        replace(
            BASE,
            width=1024,
            heads=16,
            ffn_dim=4096,
            norm_position="pre",
            position_embedding="halves",
            step_embedding="learned",
        ),
        44_943_162,
        recipes.bert(),
    ),
}


class UniversalEncoder(nn.Module):
    has_pooler = False
    """pooled output is the hidden state of the first token; heads have a dense layer"""

    def __init__(
        self,
        tokens: TokenEmbedding,
        types: nn.Embedding,
        position: SinusoidalPosition,
        encoder: UniversalStack,
        config: Config,
    ) -> None:
        super().__init__()
        self.tokens, self.types, self.position, self.encoder = tokens, types, position, encoder
        self.dropout, self.act_weight, self.pad = nn.Dropout(config.dropout), config.ponder_cost, config.pad_id

    @property
    def repeats(self) -> int:
        """Maximum number of calls of each attention layer per forward pass."""
        return self.encoder.depth

    def embed(self, batch: Batch) -> Float[Tensor, "B L D"]:
        """Embeddings of tokens and segments without positions, which are added before each step."""
        types = torch.zeros_like(batch.inputs) if batch.token_types is None else batch.token_types
        return self.dropout(self.tokens(batch.inputs) + self.types(types))

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Hidden states, and the state of the first token of each row or packed document; `taps` are steps."""
        real = None if batch.mask is None else valid_mask(batch.mask, batch.inputs.shape[1])
        rule: AttentionMask | None = None if batch.mask is None else Padding(batch.mask)
        if batch.offsets is not None:
            real, rule = batch.inputs != self.pad, and_masks(PackedDocuments(batch.offsets, batch.offsets), rule)
        where = position_ids(batch.inputs, batch.offsets) if batch.positions is None else batch.positions
        ran = self.encoder(self.embed(batch), self.position(where), mask=rule, taps=taps, valid=real)
        states = BodyOutput(ran.states, first_token_states(ran.states, batch.offsets), ran.taps)
        if ran.act is None:
            return states
        spent, tokens = ran.act.ponder_cost(ran.act.steps > 0)
        return replace(
            states, act_steps=ran.act.steps, aux_losses={"cost": self.act_weight * spent / tokens.clamp(min=1)}
        )


def build(config: Config) -> UniversalEncoder:
    types = nn.Embedding(config.type_vocab_size, config.width)
    nn.init.normal_(types.weight, std=0.02)
    return UniversalEncoder(
        tokens=TokenEmbedding(config.vocab_size, config.width, config.scale_embedding),
        types=types,
        position=SinusoidalPosition(config.width, config.position_embedding),
        encoder=make_universal_stack(config, decoder=False),
        config=config,
    )


SYSTEM = System(
    name="universal-encoder",
    description="Universal Transformer encoder (2018), fine-tuned like BERT",
    config=Config,
    presets=PRESETS,
    build=build,
    tasks=bert.TASKS,
    recipes=recipes.BERT_TASKS,
    finetune_recipes=recipes.BERT_FINETUNING,
)
