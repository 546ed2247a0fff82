"""Language Models are Few-Shot Learners (Brown et al. 2020): GPT-3.

What is new against GPT-2: size, and every other layer looks at a band of near positions instead of all (as the Sparse
Transformer does). It is asked by text with a few examples in it, and nothing is trained for a task.

Which layers are banded and how wide the band is was not published. Here layers 0, 2, 4, … are dense, 1, 3, 5, … banded, and a
band of `band` is a token and those before it, 256 together. Two rows of the paper's table contradict themselves and are
resolved so: XL (24 heads of 128 are not its width of 2048) has 16 heads of 128, which gives the 1.3 billion of its name;
13B (width 5140 is not 40 heads of 128) has a width of 5120. Dropout is not mentioned, and is 0.

There is no published layout: that of GPT-2 cannot say bands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.errors import SettingError
from regard.nn.attention.positions import added
from regard.nn.attention.relative_positions import Relative, check_relative, inside
from regard.nn.blocks.block import Stack, Tokens
from regard.nn.blocks.decoder import DecoderOnly, gpt_blocks, gpt_weights
from regard.nn.blocks.norm import Norm
from regard.systems.common import gpt
from regard.systems.common.system import Preset, System, check_sizes, unpublished


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
    vocabulary: int = 50_257
    """tokens"""
    length: int = 2048
    """longest context: there are no more learned positions"""
    positions: Literal["learned", "none"] = "learned"
    """positions that are added: learned, or none"""
    relative: Relative = "none"
    """positions inside attention: rotary, rotary-halves (as LLaMA's), buckets (T5's), shaw, or none"""
    band: int = 256
    """positions that every other layer sees, its own included; 0: all layers see all"""
    dropout: float = 0.0
    """share dropped of each sub-layer's output"""
    attention_dropout: float = 0.0
    """share dropped of the attention weights"""
    embedding_dropout: float = 0.0
    """share dropped of the embeddings"""
    eps: float = 1e-5
    """small number in the layer norms"""
    end: int = 50_256
    """id of the token that ends and begins documents"""

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "heads", "hidden", "vocabulary", "length")
        check_sizes(self, sizes, ("dropout", "attention_dropout", "embedding_dropout"))
        check_relative(self)
        if self.band < 0:
            raise SettingError(f"model.band must be at least 0, not {self.band}.")


def _recipe(rate: float, grains: int, **changes: Any) -> dict[str, dict[str, Any]]:
    """300 billion tokens in steps of that many grains of 16,384; the rate rises over 375 million tokens.

    In the paper the batch grows over the first billions of tokens and the rate falls to a tenth; here the one is constant,
    and the other falls to 0."""
    train = {
        "steps": round(300e9 / (grains * 16_384)), "tokens": 16_384, "accumulate": grains, "rate": rate,
        "warmup": round(375e6 / (grains * 16_384)), "schedule": "cosine", "smoothing": 0.0, "betas": "0.9,0.95",
        "eps": 1e-8, "decay": 0.1, "clip": 1.0,
    }  # fmt: skip
    return {
        "train": {**train, **changes}, "data": {"vocabulary": 50_257}, "decode": {"sample": True, "top_p": 0.9},
    }  # fmt: skip


SMALL = Config()


def _size(width: int, depth: int, heads: int) -> Config:
    return replace(SMALL, width=width, depth=depth, heads=heads, hidden=4 * width)


MINI = _recipe(1e-3, 1, steps=10_000, tokens=8192, warmup=500)
PRESETS = {
    "gpt3-mini": Preset(
        replace(_size(256, 6, 4), vocabulary=8000, length=512, band=64, end=7999),
        6_918_144,
        {**MINI, "data": {"vocabulary": 8000}},
    ),
    "gpt3-small": Preset(SMALL, 125_226_240, _recipe(6e-4, 32)),
    "gpt3-medium": Preset(_size(1024, 24, 16), 355_871_744, _recipe(3e-4, 32)),
    "gpt3-large": Preset(_size(1536, 24, 16), 760_300_032, _recipe(2.5e-4, 32)),
    "gpt3-xl": Preset(_size(2048, 24, 16), 1_315_723_264, _recipe(2e-4, 64)),
    "gpt3-2.7b": Preset(_size(2560, 32, 32), 2_651_553_280, _recipe(1.6e-4, 64)),
    "gpt3-6.7b": Preset(_size(4096, 32, 32), 6_658_404_352, _recipe(1.2e-4, 128)),
    "gpt3-13b": Preset(_size(5120, 40, 40), 12_853_386_240, _recipe(1e-4, 128)),
    "gpt3-175b": Preset(_size(12_288, 96, 96), 174_604_259_328, _recipe(0.6e-4, 192)),
}


def build(config: Config) -> DecoderOnly:
    """The whole machine."""
    body = DecoderOnly(
        tokens=Tokens(config.vocabulary, config.width, scaled=False),
        position=added(config),
        decoder=Stack(gpt_blocks(config, "pre"), Norm(config.width, config.eps), inside(config, config.depth)),
        dropout=config.embedding_dropout,
        bands=[config.band * (number % 2) for number in range(config.depth)],
    )
    return gpt_weights(body, positions=0.01, narrow=True)


SYSTEM = System(
    name="gpt3", about="decoder-only of 2020: every other layer looks at a band", config=Config, presets=PRESETS,
    build=build, tasks=("language", *gpt.TASKS), unsayable=unpublished, recipes=gpt.RECIPES,
    further=gpt.FURTHER,
)  # fmt: skip
