"""Longformer: The Long-Document Transformer (Beltagy, Peters, Cohan 2020): an encoder whose cost is linear in length.

What is new against BERT: a token looks at a window around it, and only marked tokens look at all others and are seen by all,
with matrices of their own; windows may differ by block and be dilated by head. The rest is RoBERTa's: byte-level tokens, no
second type, no next sentences, and positions that begin behind that of the padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import nn

from regard.errors import SettingError
from regard.nn.attention.longformer import Reaching
from regard.nn.attention.positions import Learned
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Block, Feed, Residual, Stack, Tokens
from regard.nn.blocks.encoder import Embedding, EncoderOnly, Pooler, encoder_weights
from regard.nn.blocks.norm import Norm
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
    vocabulary: int = 50_265
    """tokens"""
    length: int = 4096
    """longest text: there are no more learned positions"""
    windows: tuple[int, ...] = (512,)
    """how many tokens around it a token looks at, both sides together (even): one number for all blocks, or one for each"""
    dilation: tuple[int, ...] = ()
    """steps between the tokens of a window: one number for each head; none given: 1 for all"""
    undilated: int = 0
    """so many of the lowest blocks have windows without gaps"""
    relative: Relative = "none"
    """positions inside attention, beside those that are added: rotary in either layout; the others need a table of all tokens
    by all, which windows do not have"""
    pooler: bool = False
    """one more layer on the state of the first token, as the bare published model has it; no task here reads it"""
    types: int = 1
    """texts in a row that can be told apart"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output and of the embeddings"""
    attention_dropout: float = 0.1
    """share dropped of the attention weights"""
    head_dropout: float = 0.1
    """share dropped of what a task's head reads"""
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """non-linearity of the feed-forward layers"""
    eps: float = 1e-5
    """small number in the layer norms"""
    pad: int = 1
    """id of the padding token; positions begin behind it"""
    start: int = 0
    """id of the token that begins a text, <s>"""
    end: int = 2
    """id of the token that ends each text, </s>"""
    mask: int = 50_264
    """id of the token that hides another, <mask>"""

    between: ClassVar[int] = 2
    """ends that stand between two texts"""
    head_activation: ClassVar[str] = "tanh"
    """of the layer that a head has for summaries"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length", "types")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "head_dropout"))
        if len(self.windows) not in (1, self.depth) or any(window < 2 or window % 2 for window in self.windows):
            raise SettingError(
                f"model.windows are even numbers of tokens, one or one for each of {self.depth} blocks, not {self.windows}."
            )
        if len(self.dilation) not in (0, self.heads) or any(step < 1 for step in self.dilation):
            raise SettingError(
                f"model.dilation has a number of at least 1 for each of {self.heads} heads, not {self.dilation}."
            )
        if self.relative in ("buckets", "shaw"):
            raise SettingError(
                f"model.relative={self.relative} needs a number for every token by every other, and windows have no such "
                "table: none, rotary and rotary-halves can be had."
            )
        check_relative(self)

    @property
    def reaches(self) -> tuple[int, ...]:
        """Tokens to each side, by block."""
        windows = self.windows * (self.depth if len(self.windows) == 1 else 1)
        return tuple(window // 2 for window in windows)


BASE = Config()
PRESETS = {
    "longformer-mini": Preset(
        replace(
            BASE, width=256, depth=4, heads=4, hidden=1024, vocabulary=8000, length=4096, windows=(128,), pad=0, start=2,
            end=3, mask=4,
        ),
        7_120_448,
        bert.small(steps=10_000, tokens=8192, rate=1e-3, warmup=1000),
    ),
    "longformer-base": Preset(BASE, 148_711_257, bert.pretraining(50_265, 4096)),
    "longformer-large": Preset(
        replace(BASE, width=1024, depth=24, heads=16, hidden=4096), 434_653_273, bert.pretraining(50_265, 4096)
    ),
}  # fmt: skip


def build(config: Config) -> EncoderOnly:
    """The whole machine."""

    def residual(inner: nn.Module) -> Residual:
        return Residual(inner, config.width, "post", config.dropout, config.eps)

    blocks = [
        Block(
            attend=residual(Reaching(config.width, config.heads, dropout=config.attention_dropout)),
            feed=residual(Feed(config.width, config.hidden, config.activation)),
        )
        for _ in range(config.depth)
    ]
    body = EncoderOnly(
        Embedding(
            tokens=Tokens(config.vocabulary, config.width, scaled=False),
            position=Learned(config.length + config.pad + 1, config.width),
            types=nn.Embedding(config.types, config.width),
            norm=Norm(config.width, config.eps),
            dropout=config.dropout,
            first=config.pad + 1,
        ),
        encoder=Stack(blocks, position=inside(config, config.depth)),
        pooler=Pooler(config.width) if config.pooler else None,
        windows=config.reaches,
        dilations=[config.dilation if number >= config.undilated else () for number in range(config.depth)],
    )
    return encoder_weights(body)


NAMES = Names(
    entries=(
        *bert.names("longformer", far=True),
        entry("embedding.position.table.weight", "longformer.embeddings.position_embeddings.weight"),
        entry("pooler.dense.{part}", "longformer.pooler.dense.{part}"),
        entry("head.dense.{part}", "classifier.dense.{part}"),
        entry("head.classes.{part}", "classifier.out_proj.{part}"),
        *bert.HEADS,
        entry("head.words.dense.{part}", "lm_head.dense.{part}"),
        entry("head.words.norm.{part}", "lm_head.layer_norm.{part}"),
        entry("head.words.bias", "lm_head.bias"),
    ),
    copies=("lm_head.decoder.weight", "lm_head.decoder.bias"),
    drop=("longformer.embeddings.position_ids",),
    heads=("classifier.*", "qa_outputs.*", "lm_head.*", "longformer.pooler.*"),
    optional=("pooler.*",),
)

PUBLISHED = Published(
    model_type="longformer",
    architecture="LongformerModel",
    keys={**bert.KEYS, "windows": ("attention_window",), "start": ("bos_token_id",)},
    defaults={
        **bert.DEFAULTS, "attention_window": 512, "pad_token_id": 1, "bos_token_id": 0, "sep_token_id": 2,
        "mask_token_id": 50_264,
    },
    fixed={"tie_word_embeddings": True, "is_encoder_decoder": False, "is_decoder": False, "onnx_export": False},
    harmless=(
        "initializer_range", "eos_token_id", "ignore_attention_mask", "attention_mode", "position_embedding_type",
        "cls_token_id",
    ),
    values={"activation": bert.ACTIVATIONS},
    copied={"eos_token_id": "end"},
    filled=lambda fields: bert.filled(_counted(fields)),
    written_as=lambda fields: {**fields, "length": fields["length"] + fields["pad"] + 1, "windows": _each(fields)},
    heads={
        "mask": "LongformerForMaskedLM",
        "classify": "LongformerForSequenceClassification",
        "tag": "LongformerForTokenClassification",
        "span": "LongformerForQuestionAnswering",
        "embed": "LongformerModel",
    },
)  # fmt: skip


def _counted(fields: dict[str, Any]) -> dict[str, Any]:
    """The published length counts the places of the padding and before it; one window stands for all blocks."""
    windows = fields["windows"]
    windows = tuple(windows) if isinstance(windows, list | tuple) else (windows,)
    if len(set(windows)) == 1:
        windows = windows[:1]
    return {**fields, "windows": windows, "length": fields["length"] - fields["pad"] - 1}


def _each(fields: dict[str, Any]) -> list[int]:
    windows = list(fields["windows"])
    return windows * fields["depth"] if len(windows) == 1 else windows


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """Files of the bare body have no prefix."""
    tensors = under(tensors, "longformer.", ("lm_head.*", "classifier.*", "qa_outputs.*"))
    tensors = tied(tensors, "longformer.embeddings.word_embeddings.weight", NAMES.copies[:1])
    if "lm_head.bias" in tensors or "lm_head.decoder.bias" in tensors:
        tensors = tied(tensors, "lm_head.bias", NAMES.copies[1:])
    return replace(config, pooler="longformer.pooler.dense.weight" in tensors), tensors


def unsayable(config: Config) -> str:
    if any(step != 1 for step in config.dilation):
        return f"the published layout has no dilated windows; this model has dilation={config.dilation}."
    if config.relative != "none":
        return f"the published layout has no positions inside attention; this model has relative={config.relative}."
    return ""


LONG = ("classify", "choose", "tag", "span")


def _whole(recipes: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The same, but long documents are read as far as the model reads: that is what it is for. Two of them at least."""
    longest = {"longest": BASE.length}
    return {
        task: {**recipe, "train": {**recipe["train"], "tokens": 2 * BASE.length}, "data": longest}
        if task in LONG
        else recipe
        for task, recipe in recipes.items()
    }


SYSTEM = System(
    name="longformer", about="encoder-only of 2020: windows and global tokens, for long documents", config=Config,
    presets=PRESETS, build=build, names=NAMES, published=PUBLISHED, tasks=bert.TASKS, adapt=adapt, unsayable=unsayable,
    recipes=_whole(bert.TUNING), further=_whole(bert.FURTHER),
)  # fmt: skip
