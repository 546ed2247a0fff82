"""What a person may ask of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import override
from regard.errors import SettingError

MOST = 4096
"""Answers to one input: more are better asked for with several seeds."""


@dataclass(frozen=True)
class Decode:
    """Applied in this order: repetition, temperature, top_k, top_p, min_p.

    Log-probabilities that are reported are those of the model itself, before any of these."""

    beam: int = 1
    """how many unfinished answers are followed at once; 1 is greedy"""
    penalty: float = 0.6
    """strength of the length penalty of beam search; 0 is none, more favours longer answers"""
    form: Literal["paper", "power"] = "paper"
    """the length penalty: paper ((5 + length) / 6) ** penalty, power length ** penalty"""
    stop: Literal["soon", "sure"] = "soon"
    """end when an open beam of the present length cannot win (soon), or no longer one could either (sure)"""
    best: int = 1
    """how many answers are given for each input"""
    sample: bool = False
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
    votes: int = 1
    """looks at a cloud whose class is told, each at other points, which are averaged: at least so many. 1: one, or as many as a
    large cloud needs until each of its points was seen, up to 8"""
    repetition: float = 1.0
    """above 1, tokens of the prompt and the answer are less likely to be said again: their logits are divided by it where
    positive, multiplied where negative"""
    seed: int = 0
    """of the random draws"""
    length: int = 0
    """most tokens that are said; 0 leaves it to the task: translations may be `longer` than their input, language goes
    on for 256 tokens or what is left of the context, captions are as long as the model's length"""
    longer: int = 50
    """an answer may have this many tokens more than its input"""
    until: tuple[str, ...] = ()
    """texts at which an answer ends, before them; separated by commas, \\n is a new line (a list in Python is taken as
    it is). Beams are cut when they are finished"""
    crop: bool = False
    """of a prompt longer than the context keep the end instead of refusing it"""

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("best", 1), ("votes", 1), ("longer", 0), ("top_k", 0), ("length", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"decode.{name} must be at least {least}, not {getattr(self, name)}.")
        if not 0 <= self.temperature < float("inf"):
            raise SettingError(f"decode.temperature must be at least 0 (0 is greedy), not {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"decode.top_p must be in (0, 1], not {self.top_p}.")
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"decode.min_p must be in [0, 1], not {self.min_p}.")
        if not 0 < self.repetition < float("inf"):
            raise SettingError("decode.repetition must be above 0; 1 is no penalty, 1.2 a usual one.")
        if "" in self.until:
            raise SettingError("decode.until holds an empty text, at which every answer would end: leave it out.")
        if self.best > MOST:
            raise SettingError(
                f"decode.best={self.best} answers at once are too many: ask for up to {MOST:,} at a time, "
                "each time with another decode.seed."
            )
        self._exclude()

    def _exclude(self) -> None:
        if self.sample and self.beam > 1:
            raise SettingError("decode.sample and decode.beam > 1 exclude each other: choose one.")
        if not self.sample and self.best > self.beam:
            raise SettingError(
                f"decode.best={self.best} answers need decode.beam={self.best} or more, or decode.sample=true."
            )
        if self.best > 1 and self.sample and self.temperature == 0:
            raise SettingError(f"at decode.temperature=0 all {self.best} answers would be the same: set decode.best=1.")

    @property
    def drawn(self) -> bool:
        """At temperature 0 nothing is left to chance."""
        return self.sample and self.temperature > 0


DRAWING = ("temperature", "top_k", "top_p", "min_p")


def told(decode: Decode, said: Mapping[str, Any]) -> Decode:
    """With what a person said, which a preset shall not contradict.

    Who says how to draw (`DRAWING`) wants to draw, as the word would mean nothing otherwise. Who asks for samples does
    not mean the beam that a preset brought along, nor the other way round."""
    said = dict(said)
    until = _texts(said.pop("until")) if isinstance(said.get("until"), str | list | tuple) else decode.until
    if "sample" not in said and any(name in said for name in DRAWING):
        said["sample"] = True
    heard = override(
        Decode(), {name: said[name] for name in ("sample", "temperature", "beam") if name in said}, "decode."
    )
    beam = heard.beam if "beam" in said else decode.beam
    means: dict[str, Any] = {}
    if heard.sample:
        means = {"beam": 1, "best": decode.best if decode.sample and heard.drawn else 1}
    elif "sample" in said:
        means = {"best": min(decode.best, beam)}
    elif heard.beam > 1:
        means = {"sample": False, "best": min(decode.best, beam)}
    return replace(override(decode, {**means, **said}, "decode."), until=until)


def _texts(value: str | list[Any] | tuple[Any, ...]) -> tuple[str, ...]:
    """As they are, for blanks and new lines are what many answers end at; a command line writes them in one text."""
    if isinstance(value, str):
        value = value.replace("\\n", "\n").replace("\\t", "\t").split(",") if value else ()
    for text in value:
        if not isinstance(text, str):
            raise SettingError(f"setting 'decode.until' must hold texts; '{text}' is not.")
    return tuple(value)
