"""What a person may ask of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import override
from regard.errors import SettingError

MAX_NUM_RETURN = 4096
"""Answers to one input: more are better asked for with several seeds."""


@dataclass(frozen=True)
class DecodeSettings:
    """Applied in this order: repetition, temperature, top_k, top_p, min_p.

    Log-probabilities that are reported are those of the model itself, before any of these."""

    num_beams: int = 1
    """how many unfinished answers are followed at once; 1 is greedy"""
    length_penalty: float = 0.6
    """strength of the length penalty of beam search; 0 is none, more favours longer answers"""
    length_penalty_type: Literal["wu", "power"] = "wu"
    """the length penalty: paper ((5 + length) / 6) ** penalty, power length ** penalty"""
    early_stopping: Literal["heuristic", "never"] = "heuristic"
    """end when an open beam of the present length cannot win (soon), or no longer one could either (sure)"""
    num_return_sequences: int = 1
    """how many answers are given for each input"""
    do_sample: bool = False
    """draw tokens by their probability instead of taking the likeliest; naming one of the next four means it too"""
    temperature: float = 1.0
    """divides the logits before drawing: below 1 bolder, above 1 more varied; 0 is greedy"""
    top_k: int = 0
    """draw among the k likeliest tokens only; 0 is all"""
    top_p: float = 1.0
    """draw among the fewest tokens that together have this probability"""
    min_p: float = 0.0
    """draw among tokens that have at least this share of the likeliest token's probability; 0 is all"""
    threshold: float | None = None
    """span: nothing is answered where that is believed more than the best answer, by more than this; none: 0 where a model
    has learnt to say nothing, and others always answer. classify: from this probability on a label is said, where a text may
    have several; none: 0.5"""
    num_votes: int = 1
    """looks at a cloud whose class is told, each at other points, which are averaged: at least so many. 1: one, or as many as a
    large cloud needs until each of its points was seen, up to 8"""
    repetition_penalty: float = 1.0
    """above 1, tokens of the prompt and the answer are less likely to be said again: their logits are divided by it where
    positive, multiplied where negative"""
    seed: int = 0
    """of the random draws"""
    max_new_tokens: int = 0
    """most tokens that are said; 0 leaves it to the task: translations may be `longer` than their input, language goes
    on for 256 tokens or what is left of the context, captions are as long as the model's length"""
    max_extra_tokens: int = 50
    """an answer may have this many tokens more than its input"""
    stop_strings: tuple[str, ...] = ()
    """texts at which an answer ends, before them; separated by commas, \\n is a new line (a list in Python is taken as
    it is). Beams are cut when they are finished"""
    truncate_prompt: bool = False
    """of a prompt longer than the context keep the end instead of refusing it"""

    def __post_init__(self) -> None:
        for name, least in (
            ("num_beams", 1),
            ("num_return_sequences", 1),
            ("num_votes", 1),
            ("max_extra_tokens", 0),
            ("top_k", 0),
            ("max_new_tokens", 0),
        ):
            if getattr(self, name) < least:
                raise SettingError(f"decode.{name} must be at least {least}, not {getattr(self, name)}.")
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"decode.temperature must be at least 0 (0 is greedy), not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"decode.top_p must be in (0, 1], not {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"decode.min_p must be in [0, 1], not {self.min_p}.")
        if not 0 < self.repetition_penalty < float("inf"):
            raise SettingError("decode.repetition_penalty must be above 0; 1 is no penalty, 1.2 a usual one.")
        if "" in self.stop_strings:
            raise SettingError(
                "decode.stop_strings holds an empty text, at which every answer would end: leave it out."
            )
        if self.num_return_sequences > MAX_NUM_RETURN:
            raise SettingError(
                f"decode.num_return_sequences={self.num_return_sequences} answers at once are too many: ask for up to {MAX_NUM_RETURN:,} at a time, "
                "each time with another decode.seed."
            )
        self._check_conflicts()

    def _check_conflicts(self) -> None:
        if self.do_sample and self.num_beams > 1:
            raise SettingError("decode.do_sample and decode.num_beams > 1 exclude each other: choose one.")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise SettingError(
                f"decode.num_return_sequences={self.num_return_sequences} answers need decode.num_beams={self.num_return_sequences} or more, or decode.do_sample=true."
            )
        if self.num_return_sequences > 1 and self.do_sample and self.temperature == 0:
            raise SettingError(
                f"at decode.temperature=0 all {self.num_return_sequences} answers would be the same: set decode.num_return_sequences=1."
            )

    @property
    def is_sampling(self) -> bool:
        """At temperature 0 nothing is left to chance."""
        return self.do_sample and self.temperature > 0


SAMPLING_SETTINGS = ("temperature", "top_k", "top_p", "min_p")


def apply_overrides(decode: DecodeSettings, overrides: Mapping[str, Any]) -> DecodeSettings:
    """With what a person said, which a preset shall not contradict.

    Who says how to draw (`DRAWING`) wants to draw, as the word would mean nothing otherwise. Who asks for samples does
    not mean the beam that a preset brought along, nor the other way round."""
    overrides = dict(overrides)
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


def _parse_stop_strings(value: str | list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """As they are, for blanks and new lines are what many answers end at; a command line writes them in one text."""
    if isinstance(value, str):
        value = value.replace("\\n", "\n").replace("\\t", "\t").split(",") if value else ()
    for text in value:
        if not isinstance(text, str):
            raise SettingError(f"setting 'decode.stop_strings' must hold texts; '{text}' is not.")
    return tuple(value)
