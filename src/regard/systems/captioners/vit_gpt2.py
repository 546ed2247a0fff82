"""Captioning with a ViT encoder and a GPT-2 decoder, without convolutions.

The decoder is GPT-2 with cross-attention between the two sub-layers of each block; the keys include the class token,
which has no position in the image. This is `VisionEncoderDecoderModel` of `transformers`, and its checkpoints are
supported. If the hidden sizes of ViT and GPT-2 differ, a linear layer projects the image features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.config import as_dict
from regard.errors import WeightsError
from regard.nn.attention.positions import LearnedPosition
from regard.nn.blocks.block import Stack, TokenEmbedding, transformer_blocks
from regard.nn.kernels.linear import Linear
from regard.systems import SYSTEMS
from regard.systems.common import gpt, recipes, vision
from regard.systems.common.captions import ENCODER, CaptionConfig, CaptionDecoder, expand_to_captions
from regard.systems.common.system import Sizes, System, presets, sizes
from regard.types import Batch
from regard.weights.tables import NameTable, PublishedLayout, layer, matches, transposed_linear


@dataclass(frozen=True)
class Config(Sizes, CaptionConfig):
    encoder: str = "vit-base-16"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float = 0.1
    norm_eps: float = 1e-5

    encoder_systems = ("vit",)


BASE: dict[str, Any] = {"vocab_size": 50_257, "max_length": 1024, "pad_id": 50_256, "bos_id": 50_256, "eos_id": 50_256}
TINY: dict[str, Any] = {
    **sizes(192, 2, 3), "encoder": "vit-tiny", "encoder_config": {"patch_size": 12, "depth": 6, "dropout": 0.1},
    "image_size": 96, "vocab_size": 2000, "dropout": 0.2, "attention_dropout": 0.0, "embedding_dropout": 0.2,
}  # fmt: skip
BASE_RECIPE = recipes.get("captions_long", vocab_size=50_257, lr=5e-5, label_smoothing=0.0)
PRESETS = presets(
    Config(),
    ("caption-vit-tiny", 4_348_992, recipes.get("captions"), TINY),
    ("caption-vit-base", 238_605_312, BASE_RECIPE, BASE),
)
"""caption-vit-base is ViT-B/16 and GPT-2 small. The Hugging Face class has 239,195,904 parameters, 590,592 more: the
unused pooler of ViT."""


class CaptionViT(CaptionDecoder):
    def __init__(self, config: Config) -> None:
        settings: dict[str, Any] = {"cross": True, "norm": "pre", "activation": "gelu_tanh", "eps": config.norm_eps}
        blocks, eyes = transformer_blocks(config, config.depth, **settings), config.build_encoder()
        tokens = TokenEmbedding(config.vocab_size, config.width, scaled=False)
        decoder = Stack(blocks, nn.LayerNorm(config.width, config.norm_eps))
        super().__init__(tokens, LearnedPosition(config.max_length, config.width), decoder, config.embedding_dropout)
        self.eyes, self.first_image_position = eyes, eyes.num_prefix_tokens
        same = eyes.tap.channels == config.width
        self.bridge = nn.Identity() if same else Linear(eyes.tap.channels, config.width)

    def encode(self, batch: Batch) -> Float[Tensor, "B K D"]:
        """Features of the class token and all patches."""
        return expand_to_captions(self.bridge(self.eyes.features(batch.inputs)), batch)


def build(config: Config) -> CaptionViT:
    """The decoder is initialized as in GPT-2: N(0, 0.02), scaled down for residual projections."""
    body = CaptionViT(config)
    residual = "attend.inner.out.weight", "cross.inner.out.weight", "feed.inner.down.weight"
    for name, parameter in body.named_parameters():
        if name.startswith("eyes.") or "norm" in name:
            continue
        std = 0.02 / (3 * config.depth) ** 0.5 if name.endswith(residual) else 0.02
        nn.init.zeros_(parameter) if parameter.ndim < 2 else nn.init.normal_(parameter, std=std)
    return body


OURS, THEIRS = "decoder.blocks.{n}.cross", "decoder.transformer.h.{n}"
IGNORED_PART_KEYS = (
    "pruned_heads", "*_token_id", "cross_attention_hidden_size", "tie_encoder_decoder", "tf_legacy_loss", "typical_p",
    "use_bfloat16", "*_penalty", "*_tokens", "*no_repeat_ngram_size", "num_beam_groups", "num_return_sequences",
    "output_scores", "remove_invalid_values", "return_dict_in_generate", "is_decoder", "is_encoder_decoder", "torch_dtype",
)  # fmt: skip
"""Keys of older files in the configs of both parts, without effect on the computation."""


def _decoder_layout() -> PublishedLayout:
    """Layout of GPT-2 with cross-attention."""
    layout = SYSTEMS["gpt2"].published
    return replace(layout, fixed={**layout.fixed, "add_cross_attention": True})


def _part_config(config: Any, kind: str, side: str) -> dict[str, Any]:
    """Config of the encoder or the decoder, without ignored keys."""
    model_type = config.get("model_type") if isinstance(config, dict) else config
    if model_type != kind:
        raise WeightsError(f"config.json: {side}.model_type={model_type!r} is not supported. Supported: {kind!r}.")
    ignored = (*IGNORED_PART_KEYS, *(("add_cross_attention", "tie_word_embeddings") if kind == "vit" else ()))
    return {key: value for key, value in config.items() if not matches(ignored, key)}


def _after_read(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields from two nested configs, of encoder and decoder."""
    published, vit = fields["width"], SYSTEMS["vit"]
    decoder = _decoder_layout().read(_part_config(published, "gpt2", "decoder"))
    config = vit.config(**vit.published.read(_part_config(fields["encoder_config"], "vit", "encoder")))

    def first(*ids: int | None) -> int:
        return next(token for token in ids if token is not None)

    end = first(fields["eos_id"], published.get("eos_token_id"), _decoder_layout().missing_values["eos_token_id"])
    start = first(fields["bos_id"], published.get("decoder_start_token_id"), published.get("bos_token_id"), end)
    return {
        **decoder,
        "encoder": "vit",
        "encoder_config": {"name": "vit", "system": "vit", "config": as_dict(config)},
        "image_size": config.image_size,
        "bos_id": start,
        "eos_id": end,
        "pad_id": first(fields["pad_id"], end),
    }


def _before_write(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = {"is_decoder": True, "bos_token_id": fields["bos_id"], "pad_token_id": fields["pad_id"]}
    encoder = SYSTEMS["vit"].published.write(fields["encoder_config"]["config"])
    return {**fields, "width": {**_decoder_layout().write(fields), **tokens}, "encoder_config": encoder}


PUBLISHED = PublishedLayout(
    model_type="vision-encoder-decoder",
    architecture="VisionEncoderDecoderModel",
    keys={
        "encoder_config": ("encoder",),
        "width": ("decoder",),
        "bos_id": ("decoder_start_token_id",),
        "pad_id": ("pad_token_id",),
        "eos_id": ("eos_token_id",),
    },
    fixed={"is_encoder_decoder": True},
    ignored_keys=("tie_word_embeddings", *IGNORED_PART_KEYS),
    after_read=_after_read,
    before_write=_before_write,
    extra_keys={"tie_word_embeddings": False},
    names=NameTable(
        entries=(
            *(replace(item, native=f"eyes.body.{item.native}") for item in vision.vit_entries("encoder")),
            layer("bridge", "enc_to_dec_proj"),
            *gpt.decoder_entries("decoder.transformer"),
            layer(f"{OURS}.norm", f"{THEIRS}.ln_cross_attn"),
            *transposed_linear(f"{OURS}.inner.q", f"{THEIRS}.crossattention.q_attn"),
            *transposed_linear(f"{OURS}.inner.kv", f"{THEIRS}.crossattention.c_attn"),
            *transposed_linear(f"{OURS}.inner.out", f"{THEIRS}.crossattention.c_proj"),
        ),
        tied={"decoder.lm_head.weight": "decoder.transformer.wte.weight"},
        drop=("encoder.pooler.*", *gpt.MASK_BUFFERS, "*.crossattention.bias", "*.crossattention.masked_bias"),
    ),
    check_layout=lambda config: (
        ""
        if config.encoder_config["config"]["class_token"]
        else "Hugging Face format for ViT + GPT-2 requires a class token; the image encoder of this model has none "
        "(model.encoder_config: class_token=False)."
    ),
)

DESCRIPTION = "ViT + GPT-2 captioning"
SYSTEM = System("caption-vit", DESCRIPTION, Config, PRESETS, build, recipes.CAPTIONS, PUBLISHED, part=ENCODER)
