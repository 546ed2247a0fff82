"""The encoder of the Universal Transformer (Dehghani et al. 2018), for the tasks of BERT.

Differences from BERT: one block for all depths. Sinusoidal embeddings of position and step are added before every step;
with ACT, each token halts after its own number of steps. The first token represents the whole text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from regard.nn.attention.masks import PackedDocuments, Padding, and_masks
from regard.nn.attention.positions import SinusoidalPosition
from regard.nn.blocks.block import TokenEmbedding
from regard.nn.blocks.encoder import first_token_states
from regard.nn.blocks.encoder_decoder import position_ids
from regard.nn.blocks.universal import make_universal_stack
from regard.systems.common import bert, recipes
from regard.systems.common.system import EncoderConfig, System, TokenTypes, presets
from regard.systems.common.universal import PUBLISHED_CODE, UniversalConfig, real_tokens
from regard.types import Batch, Body, BodyOutput, Traits


@dataclass(frozen=True)
class Config(UniversalConfig, TokenTypes, EncoderConfig):
    attention_dropout: float = 0.0

    @cached_property
    def traits(self) -> Traits:
        return replace(super().traits, head_activation=self.activation)

    @property
    def norm_eps(self) -> float:
        """LayerNorm epsilon, also of heads."""
        return 1e-5


MINI = {name: value for name, value in bert.MINI.items() if name != "depth"} | {"max_length": 256}
PRESETS = presets(
    Config(),
    ("universal-encoder-mini", 2_912_576, recipes.get("bert_small", lr=5e-4), MINI),
    ("universal-encoder-mini-halting", 2_912_833, recipes.get("bert_small", lr=5e-4), {**MINI, "act": True}),
    ("universal-encoder-base", 44_943_162, recipes.get("bert"), PUBLISHED_CODE),
)


class UniversalEncoder(Body):
    shares_layers = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        types = nn.Embedding(config.type_vocab_size, config.width)
        nn.init.normal_(types.weight, std=0.02)
        self.tokens = TokenEmbedding(config.vocab_size, config.width, config.scale_embedding)
        self.types, self.position = types, SinusoidalPosition(config.width, config.position_embedding)
        self.encoder = make_universal_stack(config, decoder=False)
        self.dropout, self.act_weight, self.pad = nn.Dropout(config.dropout), config.ponder_cost, config.pad_id

    @property
    def repeats(self) -> int:
        return self.encoder.depth

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        """Hidden states, and the state of the first token of each row or packed document; `taps` are steps."""
        documents = None if batch.packing is None else PackedDocuments(batch.packing, batch.packing)
        rule = and_masks(documents, None if batch.mask is None else Padding(batch.mask))
        where = position_ids(batch.inputs, batch.packing) if batch.positions is None else batch.positions
        types = torch.zeros_like(batch.inputs) if batch.text.token_types is None else batch.text.token_types
        x = self.dropout(self.tokens(batch.inputs) + self.types(types))  # positions are added before each step
        x, tapped, act = self.encoder(x, self.position(where), mask=rule, taps=taps, valid=real_tokens(batch, self.pad))
        states = BodyOutput(x, first_token_states(x, batch.packing), tapped)
        if act is None:
            return states
        spent, tokens = act.ponder_cost(act.steps > 0)
        return replace(states, act_steps=act.steps, aux_losses={"cost": self.act_weight * spent / tokens.clamp(min=1)})


DESCRIPTION = "Universal Transformer encoder (2018), fine-tuned like BERT"
SYSTEM = System("universal-encoder", DESCRIPTION, Config, PRESETS, UniversalEncoder, recipes.BERT)
