"""BERT: Pre-training of Deep Bidirectional Transformers (Devlin et al. 2018): encoder-only.

Differences from the Transformer: no decoder; each token attends to all tokens. Pretraining is masked language modeling
and next-sentence prediction; each task adds one linear layer. Positions are learned, segments of a text pair have
embeddings, and the sum of all embeddings is normalized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from regard.nn.attention.positions import make_absolute_position, make_position
from regard.nn.blocks.block import Stack, transformer_blocks
from regard.nn.blocks.encoder import EncoderOnly, Pooler
from regard.systems.common import bert, recipes
from regard.systems.common.system import LARGE, BertConfig, RelativePosition, System, presets
from regard.types import Traits
from regard.weights.tables import NameTable, Tensors, entry, layer


@dataclass(frozen=True)
class Config(RelativePosition, BertConfig):
    position_embedding: Literal["learned", "none"] = "learned"
    pooler: bool = True
    nsp: bool = True

    base_traits = Traits(optional_pooler=True)


MINI = {**bert.MINI, "max_length": 256}
SMALL_RECIPE = recipes.get("bert_small", steps=20_000, batch_tokens=16_384, lr=5e-4, warmup_steps=2000)
PRESETS = presets(
    Config(),
    ("bert-mini", 5_414_210, recipes.get("bert_small", lr=1e-3), MINI),
    ("bert-small", 17_374_018, SMALL_RECIPE, {**MINI, "width": 512, "heads": 8, "ffn_dim": 2048}),
    ("bert-base", 110_106_428, recipes.get("bert"), {}),
    ("bert-large", 336_226_108, recipes.get("bert"), LARGE),
)


def build(config: Config) -> EncoderOnly:
    return EncoderOnly(
        bert.build_embedding(config, config.type_vocab_size, lambda: make_absolute_position(config)),
        encoder=Stack(
            transformer_blocks(config, config.depth, activation=config.activation, eps=config.norm_eps),
            position=make_position(config, config.depth, bidirectional=True),
        ),
        pooler=Pooler(config.width) if config.pooler else None,
    )


def from_published(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Rename gamma and beta of old files, and detect pooler and next-sentence prediction."""
    tensors = {
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): tensor
        for name, tensor in tensors.items()
    }
    words, pairs = "cls.predictions.bias" in tensors, "cls.seq_relationship.weight" in tensors
    return replace(config, pooler="bert.pooler.dense.weight" in tensors, nsp=pairs or not words), tensors


PUBLISHED = bert.published_layout(
    "bert",
    "Bert",
    Config,
    names=NameTable(
        entries=(
            *bert.encoder_entries("bert"),
            entry("embedding.position.table.weight", "bert.embeddings.position_embeddings.weight"),
            layer("pooler.dense", "bert.pooler.dense"),
            *bert.CLASSIFIER_ENTRIES,
            *bert.HEAD_ENTRIES,
            *bert.MLM_ENTRIES,
            layer("head.follows", "cls.seq_relationship"),
        ),
        tied=bert.tied_output("bert"),
        drop=("bert.embeddings.position_ids",),
        heads=("classifier.*", "qa_outputs.*", "cls.*", "bert.pooler.*"),
        optional=("pooler.*",),
        prefix="bert.",
    ),
    fixed={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "is_encoder_decoder": False,
    },
    ignored_keys=("directionality", "pooler_*"),
    head_architectures={"mlm": "BertForPreTraining", "choose": "BertForMultipleChoice"},
    other_architectures={"BertForMaskedLM": "mlm"},
    select_architecture=lambda fields, task: "BertForMaskedLM" if task == "mlm" and not fields["nsp"] else "",
    adapt_checkpoint=from_published,
    required={"position_embedding": "learned", "relative_position": "none"},
    requirement="BERT supports learned positions only",
)


SYSTEM = System("bert", "BERT (2018), bidirectional encoder", Config, PRESETS, build, recipes.BERT, PUBLISHED)
