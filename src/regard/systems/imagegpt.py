"""Generative Pretraining from Pixels (Chen et al. 2020): ImageGPT.

Differences from GPT-2: an image is a sequence of pixels in row-major order, each quantized to a palette of a few
hundred colors. Positions are one-dimensional. Norms are RMSNorm, and the output matrix is not tied, because the start
token is never predicted.

The layers in the paper's code have no biases; published checkpoints have biases of 0, as here."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from regard.errors import WeightsError
from regard.nn.attention.positions import LearnedPosition
from regard.nn.blocks.block import RMSNorm, Stack, TokenEmbedding, transformer_blocks
from regard.nn.blocks.decoder import DecoderOnly
from regard.nn.blocks.encoder import mean_token_states
from regard.nn.kernels.linear import Linear
from regard.nn.vision.dense import FeatureTap, sequence_maps
from regard.nn.vision.patches import quarter_blocks
from regard.systems.common import gpt, recipes
from regard.systems.common.system import ModelConfig, System, presets, sizes
from regard.types import Batch, BodyOutput, Traits
from regard.weights.tables import NameTable, PublishedLayout, entry, layer


@dataclass(frozen=True)
class Config(ModelConfig):
    image_size: int = 32
    num_colors: int = 512
    width: int = 512
    depth: int = 24
    heads: int = 8
    ffn_dim: int = 2048
    dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0
    norm_eps: float = 1e-5
    lm_head: bool = True

    head_dropout: ClassVar[float] = 0.0
    head_bias = False
    modality = "image"
    base_traits = Traits(palette=True, optional_lm_head=True)

    @property
    def max_length(self) -> int:
        return self.image_size**2

    @property
    def vocab_size(self) -> int:
        """Number of input tokens: colors and the start token."""
        return self.num_colors + 1

    @property
    def bos_id(self) -> int:
        """Start token of an image."""
        return self.num_colors

    def feature_maps(self) -> tuple[FeatureTap, ...]:
        """Feature maps with one cell per pixel."""
        return sequence_maps(quarter_blocks(self.depth), self.width, 1, class_token=False)


MINI_STEPS: dict[str, Any] = {"steps": 10_000, "warmup_steps": 500, "eval_every": 1000}
MINI_RECIPE = recipes.get("imagegpt", batch_size=32, grad_accum=1, lr=1e-3, **MINI_STEPS)
LARGE_RECIPE = recipes.get("imagegpt", batch_size=8, grad_accum=16, lr=1e-3)
PRESETS = presets(
    Config(),
    ("imagegpt-mini", 3_719_040, MINI_RECIPE, sizes(192, 8, 6) | {"image_size": 28, "num_colors": 32}),
    ("imagegpt-small", 76_682_240, recipes.get("imagegpt", batch_size=32, grad_accum=4, lr=3e-3), {}),
    ("imagegpt-medium", 455_489_536, recipes.get("imagegpt", batch_size=16, grad_accum=8, lr=3e-3), sizes(1024, 36, 8)),
    ("imagegpt-large", 1_362_914_304, LARGE_RECIPE, sizes(1536, 48, 16)),
)


class ImageGPT(DecoderOnly):
    """Decoder-only body with an untied output matrix over colors and mean pooling."""

    colours: Linear  # Output matrix, absent without `lm_head`.

    def position_embeddings(self) -> Tensor:
        assert isinstance(self.position, LearnedPosition)
        return self.position.table.weight

    def forward(self, batch: Batch, taps: Collection[int] = ()) -> BodyOutput:
        states = super().forward(batch, taps)
        if batch.packing is not None:
            return states
        return replace(states, pooled=mean_token_states(states.sequence, batch))

    @property
    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        return self.colours.weight, None


def build(config: Config) -> ImageGPT:
    """Weights are initialized as in the code of OpenAI: q, k and v with variance 1/width, attention outputs with
    1/(width × depth), and the color matrix with 0, so that all colors are equally likely at the start."""
    settings: dict[str, Any] = {"norm": "pre", "activation": "quick_gelu", "eps": config.norm_eps, "norm_type": RMSNorm}
    body = ImageGPT(
        tokens=TokenEmbedding(config.vocab_size, config.width, scaled=False),
        position=LearnedPosition(config.max_length, config.width, std=0.01),
        decoder=Stack(
            transformer_blocks(config, config.depth, **settings), norm=RMSNorm(config.width, config.norm_eps)
        ),
        dropout=config.embedding_dropout,
    )
    if config.lm_head:
        body.colours = Linear(config.width, config.num_colors, bias=False)
        nn.init.zeros_(body.colours.weight)
    stds = {"qkv": config.width**-0.5, "out": (config.width * config.depth) ** -0.5, "up": 0.02, "down": 0.02}
    nn.init.normal_(body.tokens.table.weight, std=0.02)
    for name, part in body.decoder.named_modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=stds[name.rpartition(".")[2]])
            nn.init.zeros_(part.bias)
    return body


def _after_read(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields from a config with a number of positions instead of an image size, and a start token among the colors."""
    size = math.isqrt(fields["image_size"])
    if size**2 != fields["image_size"]:
        raise WeightsError(
            f"config.json: n_positions={fields['image_size']} is not a square number; only square images are supported."
        )
    hidden = fields["ffn_dim"] or 4 * fields["width"]
    return {**fields, "image_size": size, "num_colors": fields["num_colors"] - 1, "ffn_dim": hidden}


PUBLISHED = PublishedLayout(
    model_type="imagegpt",
    architecture="ImageGPTModel",
    keys={
        "image_size": ("n_positions",),
        "num_colors": ("vocab_size",),
        **{name: keys for name, keys in gpt.KEYS.items() if name not in ("vocab_size", "max_length", "eos_id")},
    },
    config=Config,
    defaults={"n_inner": None, "resid_pdrop": 0.1, "attn_pdrop": 0.1, "embd_pdrop": 0.1},
    fixed={**gpt.FIXED, "activation_function": "quick_gelu", "tie_word_embeddings": False},
    ignored_keys=("n_ctx", "initializer_range", "pad_token_id", "eos_token_id", "is_decoder"),
    after_read=_after_read,
    before_write=lambda fields: {
        **fields,
        "image_size": fields["image_size"] ** 2,
        "num_colors": fields["num_colors"] + 1,
    },
    head_architectures={"draw": "ImageGPTForCausalImageModeling", "classify": "ImageGPTForImageClassification"},
    names=NameTable(
        entries=(*gpt.decoder_entries(), entry("colours.weight", "lm_head.weight"), layer("head.classes", "score")),
        drop=gpt.MASK_BUFFERS,
        heads=("lm_head.*", "score.*"),
        optional=("colours.*",),
        prefix="transformer.",
    ),
)


DESCRIPTION = "ImageGPT (2020), autoregressive image model"
SYSTEM = System("imagegpt", DESCRIPTION, Config, PRESETS, build, recipes.IMAGEGPT, PUBLISHED)
