"""What a person may ask of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from regard.config import override
from regard.errors import SettingError


@dataclass(frozen=True)
class Decode:
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
    """draw tokens by their probability instead of taking the likeliest"""
    temperature: float = 1.0
    """divides the logits before drawing: below 1 bolder, above 1 more varied"""
    top_k: int = 0
    """draw among the k likeliest tokens only; 0 is all"""
    top_p: float = 1.0
    """draw among the fewest tokens that together have this probability"""
    seed: int = 0
    """of the random draws"""
    longer: int = 50
    """an answer may have this many tokens more than its input"""

    def __post_init__(self) -> None:
        if self.beam < 1 or self.best < 1 or self.longer < 0 or self.top_k < 0:
            raise SettingError(
                "decode.beam and decode.best must be at least 1, decode.longer and decode.top_k at least 0."
            )
        if self.temperature <= 0 or not 0 < self.top_p <= 1:
            raise SettingError(
                "decode.temperature must be above 0 and decode.top_p in (0, 1]; for greedy set sample=false."
            )
        if self.sample and self.beam > 1:
            raise SettingError("decode.sample and decode.beam > 1 exclude each other: choose one.")
        if not self.sample and self.best > self.beam:
            raise SettingError(
                f"decode.best={self.best} answers need decode.beam={self.best} or more, or decode.sample=true."
            )


def told(decode: Decode, said: Mapping[str, Any]) -> Decode:
    """With what a person said: who asks for samples does not mean the beam that a preset brought along."""
    sampling = str(said.get("sample", "")).lower() in ("true", "yes", "on", "1") and "beam" not in said
    return override(replace(decode, beam=1, best=1) if sampling else decode, said, "decode.")
