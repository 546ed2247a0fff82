"""Language Models are Unsupervised Multitask Learners (Radford et al. 2019): GPT-2.

Differences from the Transformer: decoder-only; learned positions; pre-norm with a final norm; byte-level tokens. Tasks
are given as text prompts, without a task head.

Optimizer, schedule and number of steps were not published; the recipes follow common reproductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.nn.blocks.decoder import DecoderOnly, init_gpt_weights
from regard.systems.common import gpt, recipes
from regard.systems.common.system import LARGE, DecoderConfig, System, presets, sizes
from regard.weights.tables import NameTable, PublishedLayout


@dataclass(frozen=True)
class Config(DecoderConfig):
    """The defaults are those of GPT-2 small."""


CHAR: dict[str, Any] = {"vocab_size": 66, "eos_id": 65}
NO_DROPOUT: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
HIGH_DROPOUT: dict[str, Any] = {"dropout": 0.2, "attention_dropout": 0.2, "embedding_dropout": 0.2}
CHAR_TRAINING: dict[str, Any] = {"tokenizer_type": "char", "warmup_steps": 100, "betas": "0.9,0.99", "eval_every": 250}
TINY_CHAR_RECIPE = recipes.get("gpt2", vocab_size=66, **CHAR_TRAINING, steps=2000, batch_tokens=768, lr=4e-3)
CHAR_RECIPE = recipes.get("gpt2", vocab_size=66, **CHAR_TRAINING, steps=5000, batch_tokens=16_384, lr=1e-3)
MINI_RECIPE = recipes.get("gpt2", vocab_size=8000, steps=10_000, batch_tokens=8192, lr=1e-3, warmup_steps=500)
PRESETS = presets(
    Config(),
    ("gpt2-tiny-char", 809_984, TINY_CHAR_RECIPE, sizes(128, 4, 4) | CHAR | NO_DROPOUT | {"max_length": 64}),
    ("gpt2-char", 10_771_200, CHAR_RECIPE, sizes(384, 6, 6) | CHAR | HIGH_DROPOUT | {"max_length": 256}),
    ("gpt2-mini", 6_852_608, MINI_RECIPE, sizes(256, 6, 4) | {"vocab_size": 8000, "max_length": 256, "eos_id": 7999}),
    ("gpt2-small", 124_439_808, recipes.get("gpt2_paper", lr=6e-4), {}),
    ("gpt2-medium", 354_823_168, recipes.get("gpt2_paper", lr=3e-4), LARGE),
    ("gpt2-large", 774_030_080, recipes.get("gpt2_paper", lr=2.5e-4), sizes(1280, 36, 20)),
    ("gpt2-xl", 1_557_611_200, recipes.get("gpt2_paper", lr=2e-4), sizes(1600, 48, 25)),
)


def build(config: Config) -> DecoderOnly:
    """Weights are initialized as in the code of OpenAI, positions from N(0, 0.01)."""
    return init_gpt_weights(gpt.build_decoder(config, "pre"), position_std=0.01, scale_residual=True)


PUBLISHED = PublishedLayout(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    keys=gpt.KEYS,
    config=Config,
    defaults={"n_inner": None},
    fixed=gpt.FIXED,
    ignored_keys=("n_ctx", "initializer_range", "summary_*", "pad_token_id", "predict_special_tokens", "is_decoder"),
    copied_fields={"bos_token_id": "eos_id"},
    after_read=lambda fields: {**fields, "ffn_dim": fields["ffn_dim"] or 4 * fields["width"]},
    head_architectures={"classify": "GPT2ForSequenceClassification", "choose": "GPT2DoubleHeadsModel"},
    fixed_head_keys=gpt.FIXED_HEAD_KEYS,
    names=NameTable(
        entries=(*gpt.decoder_entries(), *gpt.HEAD_ENTRIES),
        tied={"lm_head.weight": "transformer.wte.weight"},
        drop=gpt.MASK_BUFFERS,
        heads=("score.*", "multiple_choice_head.*"),
        prefix="transformer.",
    ),
    to_published=gpt.to_published,
    required={"position_embedding": "learned", "relative_position": "none"},
    requirement="GPT-2 supports learned positions only",
)


SYSTEM = System("gpt2", "GPT-2 (2019), decoder-only language model", Config, PRESETS, build, recipes.GPT, PUBLISHED)
