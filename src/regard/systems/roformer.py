"""RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al. 2021): BERT with rotary positions.

Differences from BERT: no position embeddings. Queries and keys are rotated by angles proportional to their positions,
so that scores depend only on relative positions, without a fixed maximum length. There is no pooler, and the embedding
size may be smaller than the hidden size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from regard.errors import WeightsError
from regard.nn.attention.positions import Rotary, SinusoidalPosition
from regard.nn.blocks.block import Stack, transformer_blocks
from regard.nn.blocks.encoder import EncoderOnly
from regard.nn.kernels.linear import Linear
from regard.systems.common import bert, recipes
from regard.systems.common.system import BertConfig, System, check_rotary_width, presets
from regard.types import Traits
from regard.weights.tables import NameTable, Tensors, layer


@dataclass(frozen=True)
class Config(BertConfig):
    embedding_dim: int = 768
    vocab_size: int = 50_000
    max_length: int = 1536
    rotary_value: bool = False

    def check(self) -> None:
        check_rotary_width(self)

    @cached_property
    def traits(self) -> Traits:
        return replace(super().traits, head_activation=self.activation, embedding_dim=self.embedding_dim)


MINI = {**bert.MINI, "embedding_dim": 256, "max_length": 512}
PRESETS = presets(
    Config(),
    ("roformer-mini", 5_282_368, recipes.get("bert_small", lr=1e-3), MINI),
    ("roformer-base", 124_099_664, recipes.get("bert", vocab_size=50_000, max_length=1536), {}),
)
"""The published count of roformer-base, 124,197,968, includes the sinusoidal table (1536 × 64), which is computed here."""


def build(config: Config) -> EncoderOnly:
    width = config.embedding_dim
    embedding = bert.build_embedding(config, config.type_vocab_size, width=width)
    embedding.project = None if width == config.width else Linear(width, config.width)
    return EncoderOnly(
        embedding,
        encoder=Stack(
            transformer_blocks(config, config.depth, activation=config.activation, eps=config.norm_eps),
            position=Rotary(config.width // config.heads, "interleaved", rotate_values=config.rotary_value),
        ),
    )


POSITION_TABLE = "roformer.encoder.embed_positions.weight"


def from_published(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Compare a stored sinusoidal table with the computed table."""
    if POSITION_TABLE in tensors and not torch.allclose(
        tensors[POSITION_TABLE].double(), _sinusoid_table(config, len(tensors[POSITION_TABLE])), atol=1e-2
    ):
        raise WeightsError(
            f"{POSITION_TABLE} differs from the fixed sinusoidal position table of RoFormer; the checkpoint cannot be loaded."
        )
    return config, tensors


def _sinusoid_table(config: Config, length: int) -> torch.Tensor:
    return SinusoidalPosition(config.width // config.heads, "halves")(torch.arange(length))


def to_published(config: Config, tensors: Tensors) -> Tensors:
    like = tensors["roformer.embeddings.word_embeddings.weight"]
    return {**tensors, POSITION_TABLE: _sinusoid_table(config, config.max_length).to(like)}


PUBLISHED = bert.published_layout(
    "roformer",
    "RoFormer",
    Config,
    names=NameTable(
        entries=(
            *bert.encoder_entries("roformer"),
            layer("embedding.project", "roformer.embeddings_project"),
            layer("head.dense", "classifier.dense"),
            layer("head.classes", "classifier.out_proj"),
            *bert.HEAD_ENTRIES,
            *bert.MLM_ENTRIES,
        ),
        tied=bert.tied_output("roformer"),
        drop=(POSITION_TABLE,),
        heads=("classifier.*", "qa_outputs.*", "cls.*", "sequence_summary.*", "roformer.pooler.*"),
        prefix="roformer.",
    ),
    keys={"embedding_dim": ("embedding_size",), "rotary_value": ("rotary_value",)},
    defaults={"embedding_size": None},
    fixed={"is_decoder": False, "add_cross_attention": False, "is_encoder_decoder": False},
    ignored_keys=("summary_*",),
    after_read=lambda fields: {**fields, "embedding_dim": fields["embedding_dim"] or fields["width"]},
    adapt_checkpoint=from_published,
    to_published=to_published,
)


DESCRIPTION = "RoFormer (2021), encoder with rotary position embedding (RoPE)"
SYSTEM = System("roformer", DESCRIPTION, Config, PRESETS, build, recipes.BERT, PUBLISHED)
