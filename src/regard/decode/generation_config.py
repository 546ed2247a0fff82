"""`generation_config.json` of Hugging Face, translated to settings `decode.*` with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

SAME_NAMES = (
    "num_beams", "num_return_sequences", "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "length_penalty", "max_length", "max_new_tokens", "stop_strings",
)  # fmt: skip
"""Keys with the name and meaning of a setting of regard."""

EARLY_STOPPING = {False: "heuristic", True: "always", "never": "never"}

TRANSFORMERS_DEFAULTS = {
    "num_beams": 1, "num_return_sequences": 1, "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
    "repetition_penalty": 1.0, "length_penalty": 1.0, "early_stopping": False, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "num_beam_groups": 1, "diversity_penalty": 0.0, "min_new_tokens": 0,
    "renormalize_logits": False, "token_healing": False, "guidance_scale": 1.0, "suppress_tokens": [],
    "begin_suppress_tokens": [], "low_memory": False,
}  # fmt: skip
"""Defaults of transformers for missing keys."""

NO_EFFECT = re.compile(
    r"_.*|transformers_version|(pad|bos)_token_id|use_cache|cache_.*|max_cache_len|output_.*|return_dict_in_generate"
    r"|remove_invalid_values|(disable_)?compile.*|.*assistant.*|.*lookbehind|prompt_lookup_num_tokens|max_matching_ngram_size"
    r"|prefill_chunk_size"
)
"""Keys without effect on the generated tokens."""


def generation_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Generation keys in the config.json of older checkpoints, without values equal to the defaults."""
    keys = (*SAME_NAMES, "early_stopping", "forced_eos_token_id", "bad_words_ids", "no_repeat_ngram_size", "min_length")
    found = {key: config[key] for key in keys if config.get(key) is not None}
    return {key: value for key, value in found.items() if value != TRANSFORMERS_DEFAULTS.get(key)}


def translate_generation_config(
    values: Mapping[str, Any], config: Any, never_generated: Collection[int] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Settings `decode.*`, and unsupported keys with their values.

    A missing key has the default of transformers, except for the length limit: regard has a default for each task.
    `config` is the model configuration. `never_generated` are tokens excluded by the task."""
    given = {key: value for key, value in values.items() if value is not None}
    found = {key: TRANSFORMERS_DEFAULTS[key] for key in ("num_beams", "do_sample", "top_k", "length_penalty")}
    found |= {key: given.pop(key) for key in SAME_NAMES if key in given}
    found |= {"length_penalty_type": "power", "early_stopping": "heuristic"}
    if isinstance(found.get("stop_strings"), str):
        found["stop_strings"] = [found["stop_strings"]]
    if given.get("early_stopping") in EARLY_STOPPING:
        found["early_stopping"] = EARLY_STOPPING[given.pop("early_stopping")]
    if _same_tokens(given.get("forced_eos_token_id"), config.eos_id):
        found["forced_eos"] = True
        del given["forced_eos_token_id"]
    for key, token in (("eos_token_id", config.eos_id), ("decoder_start_token_id", config.traits.bos_id)):
        outside = (
            isinstance(given.get(key), int) and given[key] >= config.vocab_size
        )  # read_published_config replaces this token
        if token is None or outside or _same_tokens(given.get(key), token):
            given.pop(key, None)
    if all(words in [[token] for token in never_generated] for words in given.get("bad_words_ids", ())):
        given.pop("bad_words_ids", None)
    if found.get("repetition_penalty", 1.0) == 1.0:
        given.pop("renormalize_logits", None)  # log-probabilities are normalized unless a penalty changes them
    left = {
        key: value
        for key, value in given.items()
        if not NO_EFFECT.fullmatch(key) and value != TRANSFORMERS_DEFAULTS.get(key)
    }
    if found["do_sample"] is True and found["num_beams"] != 1:  # beam sampling is not supported
        left["do_sample"] = found.pop("do_sample")
    if found.get("num_return_sequences", 1) != 1 and not found.get("do_sample") and found["num_beams"] == 1:
        left["num_return_sequences"] = found.pop("num_return_sequences")
    return found, [f"{key}={value}" for key, value in left.items()]


def _same_tokens(value: Any, token: int) -> bool:
    return value == token or value == [token]
