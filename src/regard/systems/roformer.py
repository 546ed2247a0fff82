"""RoFormer: Enhanced Transformer with Rotary Position Embedding (Su et al. 2021): BERT whose attention knows distances.

What is new against BERT: no positions are added. Queries and keys are turned by angles that grow with their positions, so
that their product knows how far apart they stand and nothing else; the length of a text has no limit built in. There is no
layer for summaries, and embeddings may be narrower than the states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from regard.errors import WeightsError
from regard.nn.attention.positions import Sinusoid
from regard.nn.attention.relative_positions import Rotary
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.encoder import Embedding, EncoderOnly, encoder_weights
from regard.nn.blocks.norm import Norm
from regard.nn.kernels.linear import Linear
from regard.systems.common import bert
from regard.systems.common.system import Preset, System, check_sizes
from regard.weights.tables import Names, Published, Tensors, entry, tied, under


@dataclass(frozen=True)
class Config:
    width: int = 768
    """width of the states"""
    depth: int = 12
    """blocks"""
    heads: int = 12
    """attention heads"""
    hidden: int = 3072
    """inner width of the feed-forward layers"""
    embedding: int = 768
    """width of the embeddings; another than that of the states is brought to it by a matrix"""
    vocabulary: int = 50_000
    """tokens"""
    length: int = 1536
    """longest text, or pair of texts, that is read as a whole; the model itself has no limit"""
    types: int = 2
    """texts in a row that can be told apart"""
    values: bool = False
    """turn values by their positions too"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.1
    """share dropped of the attention weights"""
    head_dropout: float = 0.1
    """share dropped of what a task's head reads"""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """non-linearity of the feed-forward layers"""
    eps: float = 1e-12
    """small number in the layer norms"""
    pad: int = 0
    """id of the padding token"""
    start: int = 101
    """id of the token that begins a text, [CLS]"""
    end: int = 102
    """id of the token that ends each text, [SEP]"""
    mask: int = 103
    """id of the token that hides another, [MASK]"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "embedding", "vocabulary", "length", "types")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "head_dropout"))
        bert.check_pairs(self)

    @property
    def head_activation(self) -> str:
        """Of the layer that a head has for summaries."""
        return self.activation


BASE = Config()
PRESETS = {
    "roformer-mini": Preset(
        replace(
            BASE, width=256, depth=4, heads=4, hidden=1024, embedding=256, vocabulary=8000, length=512, start=2, end=3, mask=4
        ),
        5_282_368,
        bert.small(steps=10_000, tokens=8192, rate=1e-3, warmup=1000),
    ),
    "roformer-base": Preset(BASE, 124_099_664, bert.pretraining(50_000, 1536)),
}  # fmt: skip
"""The published count of the base, 124,197,968, has the table of sines and cosines in it, 1536 x 64, which is computed here."""


def build(config: Config) -> EncoderOnly:
    """The whole machine."""
    width = config.embedding
    body = EncoderOnly(
        Embedding(
            tokens=Tokens(config.vocabulary, width, scaled=False),
            position=None,
            types=nn.Embedding(config.types, width),
            norm=Norm(width, config.eps),
            dropout=config.dropout,
            project=None if width == config.width else Linear(width, config.width),
        ),
        encoder=Stack(
            bert.encoder_blocks(config), position=Rotary(config.width // config.heads, "interleaved", values=config.values)
        ),
    )  # fmt: skip
    return encoder_weights(body)


TABLE = "roformer.encoder.embed_positions.weight"
NAMES = Names(
    entries=(
        *bert.names("roformer"),
        entry("embedding.project.{part}", "roformer.embeddings_project.{part}"),
        entry("head.dense.{part}", "classifier.dense.{part}"),
        entry("head.classes.{part}", "classifier.out_proj.{part}"),
        *bert.HEADS,
        *bert.PREDICTIONS,
    ),
    copies=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    drop=(TABLE,),
    heads=("classifier.*", "qa_outputs.*", "cls.*", "sequence_summary.*", "roformer.pooler.*"),
)

PUBLISHED = Published(
    model_type="roformer",
    architecture="RoFormerModel",
    keys={**bert.KEYS, "embedding": ("embedding_size",), "values": ("rotary_value",)},
    defaults={
        **bert.DEFAULTS, "vocab_size": 50_000, "max_position_embeddings": 1536, "rotary_value": False,
    },
    fixed={
        "is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True, "is_encoder_decoder": False,
    },
    harmless=("initializer_range", "eos_token_id", "summary_*"),
    values={"activation": bert.ACTIVATIONS},
    filled=lambda fields: bert.filled({**fields, "embedding": fields["embedding"] or fields["width"]}),
    heads={
        "mask": "RoFormerForMaskedLM",
        "classify": "RoFormerForSequenceClassification",
        "tag": "RoFormerForTokenClassification",
        "span": "RoFormerForQuestionAnswering",
        "embed": "RoFormerModel",
    },
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix; a stored table must be what we compute."""
    tensors = under(tensors, "roformer.", ("cls.*", "classifier.*", "qa_outputs.*", "sequence_summary.*"))
    if TABLE in tensors and not torch.allclose(tensors[TABLE].double(), _sines(config, len(tensors[TABLE])), atol=1e-2):
        raise WeightsError(f"{TABLE} holds positions that are not the sines and cosines of the paper.")
    tensors = tied(tensors, "roformer.embeddings.word_embeddings.weight", NAMES.copies[:1])
    return config, bert.one_bias(tensors)


def _sines(config: Config, length: int) -> torch.Tensor:
    return Sinusoid(config.width // config.heads, "halves")(torch.arange(length))


def dress(config: Config, tensors: Tensors) -> Tensors:
    like = tensors["roformer.embeddings.word_embeddings.weight"]
    return {**tensors, TABLE: _sines(config, config.length).to(like)}


SYSTEM = System(
    name="roformer", about="encoder-only of 2021: turns queries and keys by their positions", config=Config, presets=PRESETS,
    build=build, names=NAMES, published=PUBLISHED, tasks=bert.TASKS, adapt=adapt, dress=dress,
    recipes=bert.TUNING, further=bert.FURTHER,
)  # fmt: skip
