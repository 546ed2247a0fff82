"""Decoding settings, and their translation from `generation_config.json` of Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import override
from regard.errors import SettingError
from regard.index import print_note, resolve_setting

MAX_NUM_RETURN = 4096
"""Maximum number of outputs per input; use several seeds for more."""


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of generation, applied in this order: repetition penalty, temperature, top_k, top_p, min_p.

    Reported log-probabilities are from the unmodified distribution of the model."""

    num_beams: int = 1
    """Beam width. 1: greedy search."""
    length_penalty: float = 0.6
    """Length penalty of beam search. 0: none; larger values favor longer outputs."""
    length_penalty_type: Literal["wu", "power"] = "wu"
    """Formula: wu ((5 + length) / 6) ** p, or power length ** p as in Hugging Face."""
    early_stopping: Literal["heuristic", "never", "always"] = "heuristic"
    """End of beam search: heuristic (no open beam can win now), never (nor later), always (num_beams outputs)."""
    num_return_sequences: int = 1
    """Number of outputs per input (n-best)."""
    do_sample: bool = False
    """Sample the next token. Implied by temperature, top_k, top_p or min_p."""
    temperature: float = 1.0
    """Sampling temperature. 0: greedy."""
    top_k: int = 0
    """Sample from the k most likely tokens. 0: all."""
    top_p: float = 1.0
    """Nucleus sampling: smallest set of tokens with total probability top_p."""
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the most likely one. 0: off."""
    threshold: float | None = None
    """classify: minimum probability of a label (none: 0.5). qa: margin by which no answer must win."""
    num_votes: int = 1
    """Random point subsets averaged in point-cloud classify. 1: enough to cover all points, at most 8."""
    repetition_penalty: float = 1.0
    """Repetition penalty. 1: off; 1.2 is common."""
    seed: int = 0
    """Random seed for sampling."""
    max_new_tokens: int = 0
    """Maximum tokens to generate. 0: default of the task (lm: 256; caption: model.max_length)."""
    max_length: int = 0
    """Maximum tokens of prompt and output together, if max_new_tokens is 0. 0: off."""
    max_extra_tokens: int = 50
    """translate: maximum output length beyond the input length."""
    forced_eos: bool = False
    """Force the end token as the last token of an output that reaches the maximum length."""
    stop_strings: tuple[str, ...] = ()
    """Stop before any of these strings; comma-separated, \\n for a newline."""
    truncate_prompt: bool = False
    """Keep the end of a prompt that exceeds the context, instead of raising an error."""

    def __post_init__(self) -> None:
        for name, least in (
            ("num_beams", 1),
            ("num_return_sequences", 1),
            ("num_votes", 1),
            ("max_extra_tokens", 0),
            ("top_k", 0),
            ("max_new_tokens", 0),
            ("max_length", 0),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"decode.{name} must be at least {least}, got {getattr(self, name)}.")
        for is_wrong, message in (
            (
                not 0 <= self.temperature < float("inf"),
                f"decode.temperature must be finite and at least 0 (0: greedy), got {self.temperature}.",
            ),
            (not 0 < self.top_p <= 1, f"decode.top_p must be in (0, 1], got {self.top_p}."),
            (not 0 <= self.min_p <= 1, f"decode.min_p must be in [0, 1], got {self.min_p}."),
            (
                not 0 < self.repetition_penalty < float("inf"),
                f"decode.repetition_penalty must be greater than 0 and finite, got {self.repetition_penalty}. "
                "1 turns the penalty off; 1.2 is common.",
            ),
            (
                "" in self.stop_strings,
                "decode.stop_strings contains an empty string, which would stop every output at once. Remove it.",
            ),
            (
                self.num_return_sequences > MAX_NUM_RETURN,
                f"decode.num_return_sequences must be at most {MAX_NUM_RETURN:,}, got {self.num_return_sequences}. "
                "For more outputs, run the command again with another decode.seed.",
            ),
            (
                self.do_sample and self.num_beams > 1,
                f"decode.do_sample cannot be combined with beam search (decode.num_beams={self.num_beams}). "
                "Set decode.num_beams=1 or decode.do_sample=false.",
            ),
            (
                not self.do_sample and self.num_return_sequences > self.num_beams,
                f"decode.num_return_sequences={self.num_return_sequences} requires decode.num_beams of at least "
                f"{self.num_return_sequences}, or decode.do_sample=true.",
            ),
            (
                self.num_return_sequences > 1 and self.do_sample and self.temperature == 0,
                f"decode.temperature=0 generates {self.num_return_sequences} identical outputs. "
                "Set decode.num_return_sequences=1.",
            ),
        ):
            if is_wrong:
                raise SettingError(message)

    @property
    def is_sampling(self) -> bool:
        """True if tokens are sampled; temperature 0 is greedy."""
        return self.do_sample and self.temperature > 0

    def new_token_limit(self, prompt_length: int, default: int) -> int:
        """Maximum number of generated tokens: max_new_tokens, else max_length without the prompt, else the default."""
        if self.max_new_tokens or not self.max_length:
            return self.max_new_tokens or default
        return max(self.max_length - prompt_length, 0)


SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p")


def apply_overrides(decode: DecodeSettings, overrides: Mapping[str, Any]) -> DecodeSettings:
    """Settings of a preset or checkpoint, replaced by the settings of the user.

    Names of other tools are translated. A setting of sampling (`SAMPLING_SETTINGS`) implies sampling, sampling replaces
    the beam search of a preset, and beam search replaces sampling."""
    known = (resolve_setting(f"decode.{key}", value) for key, value in overrides.items())
    user = {name.removeprefix("decode."): value for name, value in known}
    if "max_length" in user:
        user.setdefault("max_new_tokens", 0)  # the limit of the user replaces the limit of a checkpoint
    if "length_penalty" in user and "length_penalty_type" not in user:
        user["length_penalty_type"] = "power"
        if decode.length_penalty_type != "power" and str(user["length_penalty"]) not in ("0", "0.0"):
            print_note(
                "note: decode.length_penalty selects decode.length_penalty_type=power, the formula of Hugging Face. "
                "For the formula of Wu et al., also set decode.length_penalty_type=wu."
            )
    stop_strings = decode.stop_strings
    if isinstance(user.get("stop_strings"), str | list | tuple):
        stop_strings = _parse_stop_strings(user.pop("stop_strings"))
    if any(name in user for name in SAMPLING_SETTINGS):
        user.setdefault("do_sample", True)
    modes: dict[str, Any] = {name: user[name] for name in ("do_sample", "temperature", "num_beams") if name in user}
    mode = override(DecodeSettings(), modes, "decode.")
    beams = mode.num_beams if "num_beams" in user else decode.num_beams
    implied: dict[str, Any] = {}
    if mode.do_sample:
        keeps_samples = decode.do_sample and mode.is_sampling
        implied = {"num_beams": 1, "num_return_sequences": decode.num_return_sequences if keeps_samples else 1}
    elif "do_sample" in user or mode.num_beams > 1:
        implied = {"do_sample": False, "num_return_sequences": min(decode.num_return_sequences, beams)}
    return replace(override(decode, {**implied, **user}, "decode."), stop_strings=stop_strings)


def _parse_stop_strings(value: str | list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """Stop strings with unchanged whitespace; a string from the command line is split at commas."""
    if isinstance(value, str):
        value = value.replace("\\n", "\n").replace("\\t", "\t").split(",") if value else ()
    for text in value:
        if not isinstance(text, str):
            raise SettingError(f"decode.stop_strings must be strings, got {text!r}.")
    return tuple(value)


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
    values = {key: config[key] for key in keys if config.get(key) is not None}
    return {key: value for key, value in values.items() if value != TRANSFORMERS_DEFAULTS.get(key)}


def translate_generation_config(
    values: Mapping[str, Any], config: Any, never_generated: Collection[int] = ()
) -> tuple[dict[str, Any], list[str]]:
    """Settings `decode.*` with the meaning of a `generation_config.json` of Hugging Face, and unsupported keys with
    their values.

    A missing key has the default of transformers, except for the length limit: regard has a default for each task.
    `config` is the model configuration. `never_generated` are tokens excluded by the task."""
    left = {key: value for key, value in values.items() if value is not None}
    settings = {key: TRANSFORMERS_DEFAULTS[key] for key in ("num_beams", "do_sample", "top_k", "length_penalty")}
    settings |= {key: left.pop(key) for key in SAME_NAMES if key in left}
    settings |= {"length_penalty_type": "power", "early_stopping": "heuristic"}
    if isinstance(settings.get("stop_strings"), str):
        settings["stop_strings"] = [settings["stop_strings"]]
    if left.get("early_stopping") in EARLY_STOPPING:
        settings["early_stopping"] = EARLY_STOPPING[left.pop("early_stopping")]
    if left.get("forced_eos_token_id") in (config.eos_id, [config.eos_id]):
        settings["forced_eos"] = True
        del left["forced_eos_token_id"]
    for key, token in (("eos_token_id", config.eos_id), ("decoder_start_token_id", config.traits.bos_id)):
        # read_published_config replaces tokens outside the vocabulary
        outside = isinstance(left.get(key), int) and left[key] >= config.vocab_size
        if token is None or outside or left.get(key) in (token, [token]):
            left.pop(key, None)
    if all(words in [[token] for token in never_generated] for words in left.get("bad_words_ids", ())):
        left.pop("bad_words_ids", None)
    if settings.get("repetition_penalty", 1.0) == 1.0:
        left.pop("renormalize_logits", None)  # log-probabilities are normalized unless a penalty changes them
    unsupported = {
        key: value
        for key, value in left.items()
        if not NO_EFFECT.fullmatch(key) and value != TRANSFORMERS_DEFAULTS.get(key)
    }
    if settings["do_sample"] is True and settings["num_beams"] != 1:  # beam sampling is not supported
        unsupported["do_sample"] = settings.pop("do_sample")
    if settings.get("num_return_sequences", 1) != 1 and not settings.get("do_sample") and settings["num_beams"] == 1:
        unsupported["num_return_sequences"] = settings.pop("num_return_sequences")
    return settings, [f"{key}={value}" for key, value in unsupported.items()]
