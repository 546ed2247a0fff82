"""Language Models are Few-Shot Learners (Brown et al. 2020): GPT-3.

Differences from GPT-2: size, and banded attention in every second layer (as in the Sparse Transformer). Tasks are given
as prompts with a few examples, without fine-tuning.

The paper does not specify the banded layers and the band width. Here, layers 0, 2, 4, … are dense and layers 1, 3, 5, …
are banded; with `local_window=256`, a token attends to 256 tokens including itself. Two rows of the table in the paper
are inconsistent: XL (24 heads of 128 do not match width 2048) has 16 heads of 128 here, which gives the 1.3 billion
parameters of its name; 13B (width 5140 does not match 40 heads of 128) has width 5120. The paper does not mention
dropout; the default is 0.

There is no Hugging Face equivalent: the GPT-2 format does not support bands."""

from __future__ import annotations

from dataclasses import dataclass

from regard.nn.blocks.decoder import DecoderOnly, init_gpt_weights
from regard.systems.common import gpt, recipes
from regard.systems.common.system import DecoderConfig, System, presets, sizes


@dataclass(frozen=True)
class Config(DecoderConfig):
    max_length: int = 2048
    local_window: int = 256
    dropout: float = 0.0
    attention_dropout: float = 0.0
    embedding_dropout: float = 0.0


MINI = sizes(256, 6, 4) | {"vocab_size": 8000, "max_length": 512, "local_window": 64, "eos_id": 7999}
MINI_RECIPE = recipes.gpt3(1e-3, 1, 8000, steps=10_000, batch_tokens=8192, warmup_steps=500)
PRESETS = presets(
    Config(),
    ("gpt3-mini", 6_918_144, MINI_RECIPE, MINI),
    ("gpt3-small", 125_226_240, recipes.gpt3(6e-4, 32), {}),
    ("gpt3-medium", 355_871_744, recipes.gpt3(3e-4, 32), sizes(1024, 24, 16)),
    ("gpt3-large", 760_300_032, recipes.gpt3(2.5e-4, 32), sizes(1536, 24, 16)),
    ("gpt3-xl", 1_315_723_264, recipes.gpt3(2e-4, 64), sizes(2048, 24, 16)),
    ("gpt3-2.7b", 2_651_553_280, recipes.gpt3(1.6e-4, 64), sizes(2560, 32, 32)),
    ("gpt3-6.7b", 6_658_404_352, recipes.gpt3(1.2e-4, 128), sizes(4096, 32, 32)),
    ("gpt3-13b", 12_853_386_240, recipes.gpt3(1e-4, 128), sizes(5120, 40, 40)),
    ("gpt3-175b", 174_604_259_328, recipes.gpt3(0.6e-4, 192), sizes(12_288, 96, 96)),
)


def build(config: Config) -> DecoderOnly:
    windows = [config.local_window * (number % 2) for number in range(config.depth)]
    return init_gpt_weights(gpt.build_decoder(config, "pre", windows=windows), position_std=0.01, scale_residual=True)


SYSTEM = System("gpt3", "GPT-3 (2020), alternating dense and banded attention", Config, PRESETS, build, recipes.GPT)
