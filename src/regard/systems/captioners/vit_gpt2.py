"""A captioner of Transformers alone: a ViT sees, a GPT-2 that may look at its patches speaks.

What is new against convolutions with a Transformer: no convolution is left. The decoder is GPT-2 with a cross-attention between
the two halves of each block; it looks at the class token too, which has no place in the picture. This is the
`VisionEncoderDecoderModel` of `transformers`, whose folders are read and written. Where ViT and GPT-2 are of different widths,
one matrix brings the states of the one to the width of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import WeightsError
from regard.nn.attention.positions import Learned
from regard.nn.blocks.block import Stack, Tokens, vaswani_block
from regard.nn.blocks.norm import Norm
from regard.nn.kernels.linear import Linear
from regard.nn.vision.encoder import Eyes
from regard.systems import gpt2
from regard.systems.captioners.common import FURTHER, SEEING, Captioner, Telling, beside, recipe
from regard.systems.common import vision
from regard.systems.common.system import Preset, System
from regard.types import Batch
from regard.weights.tables import Entry, Names, Published, Tensors, entry, matches, tied, turned


@dataclass(frozen=True)
class Config(Captioner):
    encoder: str = "vit-base-16"
    """what it sees through: a preset of vit, made anew, or a folder of one, whose weights are taken"""
    width: int = 768
    """width of the decoder's states"""
    depth: int = 12
    """blocks of the decoder"""
    heads: int = 12
    """attention heads of the decoder"""
    hidden: int = 3072
    """inner width of its feed-forward layers"""
    dropout: float = 0.1
    """share dropped of each sub-layer's output"""
    attention_dropout: float = 0.1
    """share dropped of the attention weights"""
    embedding_dropout: float = 0.1
    """share dropped of the embeddings"""
    eps: float = 1e-5
    """small number in the layer norms of the decoder"""

    sees = ("vit",)
    sizes = ("width", "depth", "heads", "hidden")
    shares = ("dropout", "attention_dropout", "embedding_dropout")


BASE = Config(vocabulary=50_257, length=1024, pad=50_256, start=50_256, end=50_256)
TINY = Config(
    encoder="vit-tiny", seeing={"patch": 12, "depth": 6, "dropout": 0.1}, size=96, vocabulary=2000, length=64, width=192,
    depth=2, heads=3, hidden=768, dropout=0.2, attention_dropout=0.0, embedding_dropout=0.2,
)  # fmt: skip
PRESETS = {
    "caption-vit-tiny": Preset(TINY, 4_348_992, recipe(2000)),
    "caption-vit-base": Preset(BASE, 238_605_312, recipe(50_257, steps=50_000, rate=5e-5, every=2000, smoothing=0.0)),
}
"""caption-vit-base is ViT-B/16 and GPT-2 small. The published class has 590,592 more, 239,195,904 in all: ViT's pooler, which
nobody reads."""


class CaptionViT(Telling):
    def __init__(self, eyes: Eyes, config: Config, decoder: Stack) -> None:
        tokens, position = Tokens(config.vocabulary, config.width, scaled=False), Learned(config.length, config.width)
        super().__init__(tokens, position, decoder, config.embedding_dropout)
        self.eyes, self.first_place = eyes, eyes.before
        same = eyes.tap.channels == config.width
        self.bridge = nn.Identity() if same else Linear(eyes.tap.channels, config.width)

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """The class token and all patches."""
        return beside(self.bridge(self.eyes.look(batch.x)), batch)


def build(config: Config) -> CaptionViT:
    """The whole machine."""
    blocks = [
        vaswani_block(
            config.width, config.heads, config.hidden, cross=True, norm="pre", activation="gelu_tanh",
            dropout=config.dropout, attention_dropout=config.attention_dropout, eps=config.eps,
        )
        for _ in range(config.depth)
    ]  # fmt: skip
    body = CaptionViT(config.eyes(), config, Stack(blocks, Norm(config.width, config.eps)))
    return _begun(body)


def _begun(body: CaptionViT) -> CaptionViT:
    """The decoder begins as GPT-2 does: N(0, 0.02), less where it is added to the states; ViT as ViT."""
    for name, parameter in body.named_parameters():
        if name.startswith("eyes.") or "norm" in name:
            continue
        std = 0.02 / (3 * len(body.decoder.blocks)) ** 0.5 if name.endswith(ADDED) else 0.02
        nn.init.zeros_(parameter) if parameter.ndim < 2 else nn.init.normal_(parameter, std=std)
    return body


ADDED = ("attend.inner.out.weight", "cross.inner.out.weight", "feed.inner.down.weight")

# -- the published layout

OURS, THEIRS = "decoder.blocks.{n}", "decoder.transformer.h.{n}"


def _under(ours: str, theirs: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The names of a part that lies deeper, here and there."""
    return tuple(
        replace(item, ours=ours + item.ours, theirs=tuple(theirs + name for name in item.theirs)) for item in entries
    )


_SPOKEN = tuple(item for item in gpt2.NAMES.entries if not item.ours.startswith("head."))
NAMES = Names(
    entries=(
        *_under("eyes.body.", "", vision.names("encoder")),
        entry("bridge.{part}", "enc_to_dec_proj.{part}"),
        *_under("", "decoder.", _SPOKEN),
        entry(f"{OURS}.cross.norm.{{part}}", f"{THEIRS}.ln_cross_attn.{{part}}"),
        *turned(f"{OURS}.cross.inner.q", f"{THEIRS}.crossattention.q_attn"),
        *turned(f"{OURS}.cross.inner.kv", f"{THEIRS}.crossattention.c_attn"),
        *turned(f"{OURS}.cross.inner.out", f"{THEIRS}.crossattention.c_proj"),
    ),
    copies=("decoder.lm_head.weight",),
    drop=("encoder.pooler.*", f"{THEIRS}.attn.bias", f"{THEIRS}.attn.masked_bias", f"{THEIRS}.crossattention.bias",
          f"{THEIRS}.crossattention.masked_bias"),
)  # fmt: skip

SAID = tuple(name for name in gpt2.PUBLISHED.keys if name not in ("end", "vocabulary"))
DECODER = replace(gpt2.PUBLISHED, fixed={**gpt2.PUBLISHED.fixed, "add_cross_attention": True})
DUMPED = (
    "pruned_heads", "*_token_id", "cross_attention_hidden_size", "tie_encoder_decoder", "tf_legacy_loss", "typical_p",
    "use_bfloat16", "*_penalty", "*_tokens", "*no_repeat_ngram_size", "num_beam_groups", "num_return_sequences",
    "output_scores", "remove_invalid_values", "return_dict_in_generate", "is_decoder", "is_encoder_decoder", "torch_dtype",
)  # fmt: skip
"""What older files say of every part of a model, and what is nothing to what it computes."""
OF_DECODERS = ("add_cross_attention", "tie_word_embeddings")
"""The same of those alone that see."""


def _part(told: Any, kind: str, side: str) -> dict[str, Any]:
    """One of the two configs, without what is nothing to it."""
    found = told.get("model_type") if isinstance(told, dict) else told
    if found != kind:
        raise WeightsError(f"config.json: {side}.model_type={found!r} is not supported; only {kind!r} is.")
    if kind == "vit":
        return {key: value for key, value in told.items() if not matches((*DUMPED, *OF_DECODERS), key)}
    return {key: value for key, value in told.items() if not matches(DUMPED, key)}


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Our fields of what is published as two configs, one in the other."""
    spoken, seen = fields["width"], SEEING["vit"]
    decoder = DECODER.read(_part(spoken, "gpt2", "decoder"))
    config = seen.config(**seen.published.read(_part(fields["seeing"], "vit", "encoder")))

    def first(*ids: int | None) -> int:
        return next(token for token in ids if token is not None)

    end = first(fields["end"], spoken.get("eos_token_id"), gpt2.PUBLISHED.defaults["eos_token_id"])
    start = first(fields["start"], spoken.get("decoder_start_token_id"), spoken.get("bos_token_id"), end)
    return {
        **{name: decoder[name] for name in (*SAID, "vocabulary")},
        "encoder": "vit", "seeing": {"name": "vit", "system": "vit", "config": dict(config.__dict__)}, "size": config.size,
        "start": start, "end": end, "pad": first(fields["pad"], end),
    }  # fmt: skip


def _written(fields: dict[str, Any]) -> dict[str, Any]:
    told = {name: fields[name] for name in SAID} | {"end": fields["end"], "vocabulary": fields["vocabulary"]}
    spoken = {**DECODER.write(told), "is_decoder": True, "bos_token_id": fields["start"], "pad_token_id": fields["pad"]}
    seen = SEEING["vit"].published.write(fields["seeing"]["config"])
    return {**fields, "width": spoken, "seeing": seen}


PUBLISHED = Published(
    model_type="vision-encoder-decoder",
    architecture="VisionEncoderDecoderModel",
    keys={
        "seeing": ("encoder",), "width": ("decoder",), "start": ("decoder_start_token_id",), "pad": ("pad_token_id",),
        "end": ("eos_token_id",),
    },
    defaults={},
    fixed={"is_encoder_decoder": True},
    harmless=("tie_word_embeddings", *DUMPED),
    filled=_filled,
    written_as=_written,
    written={"tie_word_embeddings": False},
)  # fmt: skip


def adapt(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The matrix that says words is the one that reads them."""
    return config, tied(tensors, "decoder.transformer.wte.weight", NAMES.copies)


def unsayable(config: Config) -> str:
    if config.seeing["config"]["token"]:
        return ""
    return "the published layout has a class token; this model sees without one (model.seeing token=False)."


SYSTEM = System(
    name="caption-vit", about="captioner of Transformers alone: ViT sees, GPT-2 speaks", config=Config, presets=PRESETS,
    build=build, tasks=("caption",), reads="pictures", names=NAMES, published=PUBLISHED, adapt=adapt, unsayable=unsayable,
    further=FURTHER,
)  # fmt: skip
