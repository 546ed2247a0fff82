"""BERT: Pre-training of Deep Bidirectional Transformers (Devlin et al. 2018): the encoder alone.

What is new against the Transformer: no decoder. Every token looks at all others on both sides, and what is learnt is which
words were hidden and whether one text follows another; after that any task is one matrix on its states. Positions are
learned, each of two texts has a vector of its own, and a norm stands after their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from regard.nn.attention.positions import added
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.encoder import Embedding, EncoderOnly, Pooler, encoder_weights
from regard.nn.blocks.norm import Norm
from regard.systems.common import bert
from regard.systems.common.system import Preset, System, check_sizes
from regard.weights.tables import Names, Published, Tensors, entry, renamed, tied, under


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
    vocabulary: int = 30_522
    """tokens"""
    length: int = 512
    """longest text, or pair of texts: there are no more learned positions"""
    positions: Literal["learned", "none"] = "learned"
    """positions that are added: learned, or none"""
    relative: Relative = "none"
    """positions inside attention: rotary, rotary-halves (as LLaMA's), buckets (T5's), shaw, or none"""
    types: int = 2
    """texts in a row that can be told apart"""
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
    pooler: bool = True
    """one more layer on the state of the first token, for tasks that ask about a whole text"""
    pairs: bool = True
    """pre-training also asks whether the second of two texts follows the first"""
    pad: int = 0
    """id of the padding token"""
    start: int = 101
    """id of the token that begins a text, [CLS]"""
    end: int = 102
    """id of the token that ends each text, [SEP]"""
    mask: int = 103
    """id of the token that hides another, [MASK]"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length", "types")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "head_dropout"))
        check_relative(self)


BASE = Config()
_SMALL = replace(BASE, vocabulary=8000, length=256, pad=0, start=2, end=3, mask=4)


PRESETS = {
    "bert-mini": Preset(
        replace(_SMALL, width=256, depth=4, heads=4, hidden=1024),
        5_414_210,
        bert.small(steps=10_000, tokens=8192, rate=1e-3, warmup=1000),
    ),
    "bert-small": Preset(
        replace(_SMALL, width=512, depth=4, heads=8, hidden=2048),
        17_374_018,
        bert.small(steps=20_000, tokens=16_384, rate=5e-4, warmup=2000),
    ),
    "bert-base": Preset(BASE, 110_106_428, bert.pretraining()),
    "bert-large": Preset(replace(BASE, width=1024, depth=24, heads=16, hidden=4096), 336_226_108, bert.pretraining()),
}


def build(config: Config) -> EncoderOnly:
    """The whole machine."""
    body = EncoderOnly(
        Embedding(
            tokens=Tokens(config.vocabulary, config.width, scaled=False),
            position=added(config),
            types=nn.Embedding(config.types, config.width),
            norm=Norm(config.width, config.eps),
            dropout=config.dropout,
        ),
        encoder=Stack(bert.encoder_blocks(config), position=inside(config, config.depth, both_ways=True)),
        pooler=Pooler(config.width) if config.pooler else None,
    )
    return encoder_weights(body)


NAMES = Names(
    entries=(
        *bert.names("bert"),
        entry("embedding.position.table.weight", "bert.embeddings.position_embeddings.weight"),
        entry("pooler.dense.{part}", "bert.pooler.dense.{part}"),
        entry("head.classes.{part}", "classifier.{part}"),
        entry("head.choice.{part}", "classifier.{part}"),
        *bert.HEADS,
        *bert.PREDICTIONS,
        entry("head.follows.{part}", "cls.seq_relationship.{part}"),
    ),
    copies=("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
    drop=("bert.embeddings.position_ids",),
    heads=("classifier.*", "qa_outputs.*", "cls.*", "bert.pooler.*"),
    optional=("pooler.*",),
)

PUBLISHED = Published(
    model_type="bert",
    architecture="BertModel",
    keys=bert.KEYS,
    defaults=bert.DEFAULTS,
    fixed={
        "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute",
        "tie_word_embeddings": True, "is_encoder_decoder": False,
    },
    harmless=("initializer_range", "directionality", "pooler_*", "eos_token_id"),
    values={"activation": bert.ACTIVATIONS},
    filled=bert.filled,
    heads={
        "mask": "BertForPreTraining",
        "classify": "BertForSequenceClassification",
        "tag": "BertForTokenClassification",
        "span": "BertForQuestionAnswering",
        "choose": "BertForMultipleChoice",
        "embed": "BertModel",
    },
    also={"BertForMaskedLM": "mask"},
    instead=lambda fields, task: "BertForMaskedLM" if task == "mask" and not fields["pairs"] else "",
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix, the oldest call a norm's parts gamma and beta; what is there says the rest."""
    tensors = under(renamed(tensors, OLD), "bert.", ("cls.*", "classifier.*", "qa_outputs.*"))
    tensors = tied(tensors, "bert.embeddings.word_embeddings.weight", NAMES.copies[:1])
    tensors = bert.one_bias(tensors)
    words, pairs = "cls.predictions.bias" in tensors, "cls.seq_relationship.weight" in tensors
    return replace(config, pooler="bert.pooler.dense.weight" in tensors, pairs=pairs or not words), tensors


OLD: Mapping[str, str] = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def unsayable(config: Config) -> str:
    if config.positions == "learned" and config.relative == "none":
        return ""
    return (
        "the published layout knows learned positions only; this model has "
        f"positions={config.positions} and relative={config.relative}."
    )


SYSTEM = System(
    name="bert", about="encoder-only of 2018: looks both ways, tuned for tasks", config=Config, presets=PRESETS,
    build=build, names=NAMES, published=PUBLISHED, tasks=bert.TASKS, adapt=adapt,
    unsayable=unsayable, recipes=bert.TUNING, further=bert.FURTHER,
)  # fmt: skip
