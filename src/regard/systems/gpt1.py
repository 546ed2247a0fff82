"""Improving Language Understanding by Generative Pre-Training (Radford et al. 2018): GPT-1.

Differences from the Transformer: decoder-only, pretrained on books, then fine-tuned with one additional linear layer on
tasks with a single text as input. Positions are learned, the activation is GELU (tanh approximation), and blocks are
post-norm without a final norm."""

from __future__ import annotations

from dataclasses import dataclass

from regard.nn.blocks.decoder import DecoderOnly, init_gpt_weights
from regard.systems.common import gpt, recipes
from regard.systems.common.system import DecoderConfig, System, presets
from regard.weights.tables import NameTable, PublishedLayout


@dataclass(frozen=True)
class Config(DecoderConfig):
    vocab_size: int = 40_478
    max_length: int = 512
    eos_id: int = 0


PRESETS = presets(Config(), ("gpt1", 116_534_784, recipes.get("gpt1"), {}))


def build(config: Config) -> DecoderOnly:
    return init_gpt_weights(gpt.build_decoder(config, "post"))


PUBLISHED = PublishedLayout(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    keys={name: keys for name, keys in gpt.KEYS.items() if name != "ffn_dim"},
    config=Config,
    fixed={"afn": "gelu", "tie_word_embeddings": True, "is_encoder_decoder": False},
    ignored_keys=("n_ctx", "n_special", "initializer_range", "summary_*", "pad_token_id", "predict_special_tokens"),
    copied_fields={"bos_token_id": "eos_id"},
    after_read=lambda fields: {**fields, "ffn_dim": 4 * fields["width"], "eos_id": fields["eos_id"] or 0},
    head_architectures={"classify": "OpenAIGPTForSequenceClassification", "choose": "OpenAIGPTDoubleHeadsModel"},
    fixed_head_keys=gpt.FIXED_HEAD_KEYS,
    names=NameTable(
        entries=(*gpt.decoder_entries(tokens="tokens_embed", positions="positions_embed")[:-1], *gpt.HEAD_ENTRIES),
        tied={"lm_head.weight": "transformer.tokens_embed.weight"},
        drop=("transformer.h.{n}.attn.bias", "transformer.position_ids"),
        heads=("score.*", "multiple_choice_head.*"),
        prefix="transformer.",
    ),
    to_published=gpt.to_published,
    check_layout=lambda config: (
        ""
        if config.ffn_dim == 4 * config.width
        else f"Hugging Face format for GPT-1 requires model.ffn_dim = 4 x model.width ({4 * config.width}); "
        f"this model has model.ffn_dim={config.ffn_dim}."
    ),
    required={"position_embedding": "learned", "relative_position": "none"},
    requirement="GPT-1 supports learned positions only",
)


SYSTEM = System("gpt1", "GPT-1 (2018), decoder-only language model", Config, PRESETS, build, recipes.GPT, PUBLISHED)
