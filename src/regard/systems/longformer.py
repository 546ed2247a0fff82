"""Longformer: The Long-Document Transformer (Beltagy, Peters, Cohan 2020): an encoder with cost linear in length.

Differences from BERT: sliding-window attention, and global attention for selected tokens with separate projections;
windows may differ by layer and be dilated by head. As in RoBERTa: byte-level tokens, one segment, no next-sentence
prediction, and positions that start after the padding id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from regard.nn.attention.longformer import LongformerAttention
from regard.nn.attention.positions import LearnedPosition, make_position
from regard.nn.blocks.block import Stack, transformer_blocks
from regard.nn.blocks.encoder import EncoderOnly, Pooler
from regard.systems.common import bert, recipes
from regard.systems.common.system import LARGE, BertConfig, RelativePosition, System, presets, reject
from regard.types import Traits
from regard.weights.tables import NameTable, entry, layer


@dataclass(frozen=True)
class Config(RelativePosition, BertConfig):
    vocab_size: int = 50_265
    max_length: int = 4096
    attention_window: tuple[int, ...] = (512,)
    dilation: tuple[int, ...] = ()
    undilated_layers: int = 0
    pooler: bool = False
    type_vocab_size: int = 1
    norm_eps: float = 1e-5
    pad_id: int = 1
    bos_id: int = 0
    eos_id: int = 2
    mask_id: int = 50_264

    base_traits = Traits(separators=2, global_tokens=True, optional_pooler=True, head_activation="tanh")

    def check(self) -> None:
        reject(
            len(self.attention_window) not in (1, self.depth)
            or any(window < 2 or window % 2 for window in self.attention_window),
            f"model.attention_window must be one even number of tokens, or one for each of {self.depth} layers, "
            f"got {self.attention_window}.",
        )
        reject(
            len(self.dilation) not in (0, self.heads) or any(step < 1 for step in self.dilation),
            f"model.dilation must be one number of at least 1 for each of {self.heads} heads, got {self.dilation}.",
        )
        reject(
            self.relative_position in ("t5", "shaw"),
            f"model.relative_position={self.relative_position} is not supported with sliding-window attention. "
            "Use none, rotary or rotary-halves.",
        )


MINI = {**bert.MINI, "attention_window": (128,)}
PRESETS = presets(
    Config(),
    ("longformer-mini", 7_120_448, recipes.get("bert_small", lr=1e-3), MINI),
    ("longformer-base", 148_711_257, recipes.get("bert", vocab_size=50_265, max_length=4096), {}),
    ("longformer-large", 434_653_273, recipes.get("bert", vocab_size=50_265, max_length=4096), LARGE),
)


def build(config: Config) -> EncoderOnly:
    settings: dict[str, Any] = {"activation": config.activation, "eps": config.norm_eps}
    blocks = transformer_blocks(config, config.depth, attention_type=LongformerAttention, **settings)
    windows = config.attention_window * (config.depth if len(config.attention_window) == 1 else 1)
    return EncoderOnly(
        bert.build_embedding(
            config,
            config.type_vocab_size,
            lambda: LearnedPosition(config.max_length + config.pad_id + 1, config.width),
            position_offset=config.pad_id + 1,
        ),
        encoder=Stack(blocks, position=make_position(config, config.depth)),
        pooler=Pooler(config.width) if config.pooler else None,
        windows=[window // 2 for window in windows],
        dilations=[config.dilation if number >= config.undilated_layers else () for number in range(config.depth)],
    )


def _after_read(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields from a config with a maximum length that includes the position offset, and a window for each layer."""
    windows = fields["attention_window"]
    windows = tuple(windows) if isinstance(windows, list | tuple) else (windows,)
    windows = windows[:1] if len(set(windows)) == 1 else windows
    return {**fields, "attention_window": windows, "max_length": fields["max_length"] - fields["pad_id"] - 1}


def _before_write(fields: dict[str, Any]) -> dict[str, Any]:
    windows, length = list(fields["attention_window"]), fields["max_length"] + fields["pad_id"] + 1
    windows = windows * fields["depth"] if len(windows) == 1 else windows
    return {**fields, "max_length": length, "attention_window": windows}


PUBLISHED = bert.published_layout(
    "longformer",
    "Longformer",
    Config,
    names=NameTable(
        entries=(
            *bert.encoder_entries("longformer", global_projections=True),
            entry("embedding.position.table.weight", "longformer.embeddings.position_embeddings.weight"),
            layer("pooler.dense", "longformer.pooler.dense"),
            layer("head.dense", "classifier.dense"),
            layer("head.classes", "classifier.out_proj"),
            *bert.HEAD_ENTRIES,
            layer("head.words.dense", "lm_head.dense"),
            layer("head.words.norm", "lm_head.layer_norm"),
            entry("head.words.bias", "lm_head.bias"),
        ),
        tied={
            "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        drop=("longformer.embeddings.position_ids",),
        heads=("classifier.*", "qa_outputs.*", "lm_head.*", "longformer.pooler.*"),
        optional=("pooler.*",),
        prefix="longformer.",
    ),
    keys={"attention_window": ("attention_window",), "bos_id": ("bos_token_id",)},
    defaults={"vocab_size": 30_522, "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    fixed={"is_encoder_decoder": False, "is_decoder": False, "onnx_export": False},
    ignored_keys=("ignore_attention_mask", "attention_mode", "position_embedding_type", "cls_token_id"),
    copied_fields={"eos_token_id": "eos_id"},
    after_read=_after_read,
    before_write=_before_write,
    adapt_checkpoint=lambda config, tensors: (
        replace(config, pooler="longformer.pooler.dense.weight" in tensors), tensors
    ),
    check_layout=lambda config: (
        "Hugging Face format for Longformer does not support dilated windows; this model has "
        f"model.dilation={config.dilation}."
        if any(step != 1 for step in config.dilation)
        else ""
    ),
    required={"relative_position": "none"},
    requirement="Longformer does not support relative positions",
)  # fmt: skip


DESCRIPTION = "Longformer (2020), encoder with sliding-window and global attention"
SYSTEM = System("longformer", DESCRIPTION, Config, PRESETS, build, recipes.LONGFORMER, PUBLISHED)
