"""Decoding settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import override
from regard.errors import SettingError
from regard.foreign_names import print_note, resolve_name, resolve_value

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
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"decode.temperature must be finite and at least 0 (0: greedy), got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"decode.top_p must be in (0, 1], got {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"decode.min_p must be in [0, 1], got {self.min_p}.")
        if not 0 < self.repetition_penalty < float("inf"):
            raise SettingError(
                f"decode.repetition_penalty must be greater than 0 and finite, got {self.repetition_penalty}. "
                "1 turns the penalty off; 1.2 is common."
            )
        if "" in self.stop_strings:
            raise SettingError(
                "decode.stop_strings contains an empty string, which would stop every output at once. Remove it."
            )
        if self.num_return_sequences > MAX_NUM_RETURN:
            raise SettingError(
                f"decode.num_return_sequences must be at most {MAX_NUM_RETURN:,}, got {self.num_return_sequences}. "
                "For more outputs, run the command again with another decode.seed."
            )
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        if self.do_sample and self.num_beams > 1:
            raise SettingError(
                f"decode.do_sample cannot be combined with beam search (decode.num_beams={self.num_beams}). "
                "Set decode.num_beams=1 or decode.do_sample=false."
            )
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise SettingError(
                f"decode.num_return_sequences={self.num_return_sequences} requires decode.num_beams of at least "
                f"{self.num_return_sequences}, or decode.do_sample=true."
            )
        if self.num_return_sequences > 1 and self.do_sample and self.temperature == 0:
            raise SettingError(
                f"decode.temperature=0 generates {self.num_return_sequences} identical outputs. "
                "Set decode.num_return_sequences=1."
            )

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
    overrides = _translate_overrides(decode, overrides)
    until = (
        _parse_stop_strings(overrides.pop("stop_strings"))
        if isinstance(overrides.get("stop_strings"), str | list | tuple)
        else decode.stop_strings
    )
    if "do_sample" not in overrides and any(name in overrides for name in SAMPLING_SETTINGS):
        overrides["do_sample"] = True
    heard = override(
        DecodeSettings(),
        {name: overrides[name] for name in ("do_sample", "temperature", "num_beams") if name in overrides},
        "decode.",
    )
    beam = heard.num_beams if "num_beams" in overrides else decode.num_beams
    means: dict[str, Any] = {}
    if heard.do_sample:
        means = {
            "num_beams": 1,
            "num_return_sequences": decode.num_return_sequences if decode.do_sample and heard.is_sampling else 1,
        }
    elif "do_sample" in overrides:
        means = {"num_return_sequences": min(decode.num_return_sequences, beam)}
    elif heard.num_beams > 1:
        means = {"do_sample": False, "num_return_sequences": min(decode.num_return_sequences, beam)}
    return replace(override(decode, {**means, **overrides}, "decode."), stop_strings=until)


def _translate_overrides(decode: DecodeSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """User settings with names of other libraries replaced, plus the settings that they imply (temperature: do_sample)."""
    names = {key: resolve_name(f"decode.{key}", print_note) for key in given}
    found = {names[key].removeprefix("decode."): resolve_value(names[key], value) for key, value in given.items()}
    if "max_length" in found and "max_new_tokens" not in found:
        found["max_new_tokens"] = 0  # the limit of the user replaces the limit of a checkpoint
    if "length_penalty" in found and "length_penalty_type" not in found:
        found["length_penalty_type"] = "power"
        if decode.length_penalty_type != "power" and str(found["length_penalty"]) not in ("0", "0.0"):
            print_note(
                "note: decode.length_penalty selects decode.length_penalty_type=power, the formula of Hugging Face. "
                "For the formula of Wu et al., also set decode.length_penalty_type=wu."
            )
    return found


def _parse_stop_strings(value: str | list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """Stop strings with unchanged whitespace; a string from the command line is split at commas."""
    if isinstance(value, str):
        value = value.replace("\\n", "\n").replace("\\t", "\t").split(",") if value else ()
    for text in value:
        if not isinstance(text, str):
            raise SettingError(f"decode.stop_strings must be strings, got {text!r}.")
    return tuple(value)
