"""DeBERTa: Decoding-enhanced BERT with Disentangled Attention (He et al. 2020), in the form of DeBERTa-v2 and -v3.

Differences from BERT: scores also compare the content of a token with the distance to another token, in both
directions; vectors of distances are shared by all layers and projected like queries and keys. There are no absolute
positions in the input. The xlarge models of v2 add a convolution to the first layer. DeBERTa-v3 (He et al. 2021) is
pretrained by the detection of replaced tokens, which is not implemented."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from torch import nn

from regard.errors import WeightsError
from regard.nn.attention.attention import Attention
from regard.nn.attention.positions import DisentangledPosition, DisentangledTerm, make_absolute_position
from regard.nn.blocks.block import Stack, TransformerBlock, transformer_blocks
from regard.nn.blocks.encoder import ConvolutionBlock, EncoderOnly
from regard.systems.common import bert, recipes
from regard.systems.common.system import LARGE, BertConfig, System, presets, reject, sizes
from regard.types import Traits
from regard.weights.tables import NameTable, Tensors, entry, layer


@dataclass(frozen=True)
class Config(BertConfig):
    vocab_size: int = 128_100
    position_embedding: Literal["learned", "none"] = "none"
    type_vocab_size: int = 0
    pos_att_type: tuple[DisentangledTerm, ...] = ("p2c", "c2p")
    position_buckets: int = 256
    max_relative_positions: int = 0
    share_att_key: bool = True
    norm_rel_ebd: bool = True
    conv_kernel_size: int = 0
    conv_act: Literal["tanh", "gelu"] = "tanh"
    legacy: bool = True
    norm_eps: float = 1e-7
    bos_id: int = 1
    eos_id: int = 2
    mask_id: int = 128_000

    optional_sizes = ("type_vocab_size",)

    def check(self) -> None:
        reject(
            not self.pos_att_type or not set(self.pos_att_type) <= {"c2p", "p2c"},
            f"model.pos_att_type must be c2p, p2c or both, got {self.pos_att_type}.",
        )
        reject(self.conv_kernel_size % 2 == 0 < self.conv_kernel_size, "model.conv_kernel_size must be 0 or odd.")

    @cached_property
    def traits(self) -> Traits:
        """The convolution would mix the documents of a packed row."""
        packs, types = not self.conv_kernel_size, max(self.type_vocab_size, 1)
        return replace(super().traits, head_activation="gelu", token_types=types, packs=packs, packs_efficiently=False)


MINI = {**bert.MINI, "max_length": 256, "position_buckets": 32}
XLARGE = sizes(1536, 24, 24) | {"conv_kernel_size": 3, "conv_act": "gelu"}
PRESETS = presets(
    Config(),
    ("deberta-mini", 5_298_752, recipes.get("bert_small", lr=1e-3), MINI),
    ("deberta-v3-small", 142_024_548, recipes.get("bert", vocab_size=128_100), {"depth": 6}),
    ("deberta-v3-base", 184_551_780, recipes.get("bert", vocab_size=128_100), {}),
    ("deberta-v3-large", 435_191_908, recipes.get("bert", vocab_size=128_100), LARGE),
    ("deberta-v2-xlarge", 887_085_156, recipes.get("bert", vocab_size=128_100), XLARGE),
)


def build(config: Config) -> EncoderOnly:
    width = config.width
    position = DisentangledPosition(
        width,
        config.depth,
        config.position_buckets,
        config.max_relative_positions or config.max_length,
        config.pos_att_type,
        own_projections=not config.share_att_key,
        norm=nn.LayerNorm(width, config.norm_eps) if config.norm_rel_ebd else None,
        dropout=config.dropout,
    )

    def block(number: int) -> TransformerBlock:
        attention = functools.partial(Attention, scale=position.scale(width // config.heads))
        settings: dict[str, Any] = {"activation": config.activation, "eps": config.norm_eps}
        (made,) = transformer_blocks(config, 1, attention_type=attention, **settings)
        if not config.conv_kernel_size or number:
            return made
        convolution = width, config.conv_kernel_size, config.conv_act, config.dropout, config.norm_eps
        return ConvolutionBlock(made.attend, made.feed, *convolution)

    return EncoderOnly(
        bert.build_embedding(config, config.type_vocab_size, lambda: make_absolute_position(config)),
        encoder=Stack([block(number) for number in range(config.depth)], position=position),
    )


SELF = "deberta.encoder.layer.{n}.attention.self"
HEAD, LM_HEAD = "cls.predictions.", "lm_predictions.lm_head."
"""Beginnings of names of the masked-language-modeling head: in transformers (`legacy`), and in files of the authors."""


def from_published(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Rename the head of the authors, unless there is a head of transformers."""
    if f"{LM_HEAD}bias" not in tensors or f"{HEAD}bias" in tensors:
        return config, tensors
    renamed = {name.replace(LM_HEAD, f"{HEAD}transform."): tensor for name, tensor in tensors.items()}
    renamed[f"{HEAD}bias"] = renamed.pop(f"{HEAD}transform.bias")
    return replace(config, legacy=False), renamed


def to_published(config: Config, tensors: Tensors) -> Tensors:
    """Restore the names of the authors' head."""
    return (
        tensors
        if config.legacy
        else {name.replace(f"{HEAD}transform.", LM_HEAD).replace(HEAD, LM_HEAD): x for name, x in tensors.items()}
    )


def _before_read(config: dict[str, Any]) -> dict[str, Any]:
    terms = config.get("pos_att_type")
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    if not config.pop("relative_attention", False) or not terms:
        raise WeightsError("config.json: DeBERTa without relative_attention and pos_att_type is not supported.")
    return {**config, "pos_att_type": tuple(terms)}


UNLIMITED = ("position_buckets", "max_relative_positions")  # Fields with 0 for -1 in config.json.
PUBLISHED = bert.published_layout(
    "deberta-v2", "DebertaV2", Config,
    names=NameTable(
        entries=(
            *bert.encoder_entries("deberta", suffix="_proj"),
            entry("embedding.position.table.weight", "deberta.embeddings.position_embeddings.weight"),
            entry("encoder.position.table.weight", "deberta.encoder.rel_embeddings.weight"),
            layer("encoder.position.norm", "deberta.encoder.LayerNorm"),
            layer("encoder.position.projections.{n}.c2p", f"{SELF}.pos_key_proj"),
            layer("encoder.position.projections.{n}.p2c", f"{SELF}.pos_query_proj"),
            layer("encoder.blocks.0.conv", "deberta.encoder.conv.conv"),
            layer("encoder.blocks.0.norm", "deberta.encoder.conv.LayerNorm"),
            layer("head.dense", "pooler.dense"),
            *bert.CLASSIFIER_ENTRIES,
            *bert.HEAD_ENTRIES,
            *bert.MLM_ENTRIES,
        ),
        tied=bert.tied_output("deberta"),
        drop=("deberta.embeddings.position_ids",),
        heads=("pooler.*", "classifier.*", "qa_outputs.*", "cls.*", "lm_predictions.*", "mask_predictions.*"),
        prefix="deberta.",
    ),
    named_alike=(
        "pos_att_type", "position_buckets", "max_relative_positions", "share_att_key", "norm_rel_ebd",
        "conv_kernel_size", "conv_act", "legacy",
    ),
    keys={"position_embedding": ("position_biased_input",), "head_dropout": ("cls_dropout",)},
    defaults={
        "hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144,
        "position_biased_input": True, "position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none",
        "cls_dropout": None,
    },
    fixed={"pooler_hidden_act": "gelu", "conv_groups": 1}, ignored_keys=("pooler_dropout", "pooler_hidden_size", "z_steps"),
    value_maps={"position_embedding": {True: "learned", False: "none"}, "norm_rel_ebd": {"layer_norm": True, "none": False}},
    extra_keys={"relative_attention": True}, before_read=_before_read,
    after_read=lambda fields: fields | {name: max(fields[name], 0) for name in UNLIMITED},
    before_write=lambda fields: fields | {name: fields[name] or -1 for name in UNLIMITED},
    head_architectures={"choose": "DebertaV2ForMultipleChoice"}, adapt_checkpoint=from_published, to_published=to_published,
)  # fmt: skip


DESCRIPTION = "DeBERTa-v2 and -v3 (2021), disentangled attention"
SYSTEM = System("deberta", DESCRIPTION, Config, PRESETS, build, recipes.BERT, PUBLISHED)
