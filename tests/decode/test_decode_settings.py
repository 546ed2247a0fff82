"""Decoding settings of the user in combination with the settings of a preset."""

from __future__ import annotations

import math
from typing import Any

import pytest

from data_files import refused
from regard.decode.settings import DecodeSettings, apply_overrides
from regard.errors import SettingError

INVALID: list[dict[str, Any]] = [
    {"num_beams": 0}, {"num_return_sequences": 0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"max_extra_tokens": -1},
    {"max_new_tokens": -1}, {"min_p": 1.5}, {"min_p": -0.1}, {"repetition_penalty": 0.0}, {"repetition_penalty": math.inf},
    {"temperature": -0.1}, {"temperature": math.inf}, {"temperature": math.nan}, {"stop_strings": ("a", "")},
    {"num_return_sequences": 2}, {"num_beams": 2, "num_return_sequences": 3}, {"do_sample": True, "num_beams": 2},
    {"num_return_sequences": 4097, "do_sample": True},
    {"num_return_sequences": 2, "do_sample": True, "temperature": 0},
]  # fmt: skip
"""The first key is the setting that the message names."""


@pytest.mark.parametrize("wrong", INVALID)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    refused(rf"decode\.{next(iter(wrong))}", DecodeSettings, **wrong, error=SettingError)


def test_sampling_overrides_the_beam_of_a_preset() -> None:
    preset = DecodeSettings(num_beams=4, num_return_sequences=2)
    sampled = DecodeSettings(num_beams=1, num_return_sequences=1, do_sample=True)
    assert apply_overrides(preset, {"do_sample": "true"}) == sampled
    assert apply_overrides(preset, {"do_sample": True, "num_return_sequences": 3}).num_return_sequences == 3
    assert apply_overrides(preset, {"num_return_sequences": 3}).num_beams == 4
    drawing = DecodeSettings(do_sample=True, num_return_sequences=3, top_k=7)
    assert apply_overrides(drawing, {"do_sample": True}).num_return_sequences == 3
    assert apply_overrides(drawing, {"num_beams": 4}) == DecodeSettings(num_beams=4, num_return_sequences=3, top_k=7)
    assert apply_overrides(drawing, {"do_sample": False}) == DecodeSettings(top_k=7)
    refused("cannot be combined", apply_overrides, preset, {"do_sample": True, "num_beams": 4}, error=SettingError)


@pytest.mark.parametrize("word", [{"temperature": "0.5"}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_sampling_settings_enable_sampling(word: dict[str, Any]) -> None:
    """Otherwise the setting would silently have no effect."""
    for preset in (DecodeSettings(), DecodeSettings(num_beams=4, num_return_sequences=2)):
        made = apply_overrides(preset, word)
        assert made.do_sample and made.is_sampling and (made.num_beams, made.num_return_sequences) == (1, 1)
    assert not apply_overrides(DecodeSettings(), {**word, "do_sample": "false"}).do_sample
    refused("cannot be combined", apply_overrides, DecodeSettings(), {**word, "num_beams": 4}, error=SettingError)


def test_a_temperature_of_zero_is_greedy() -> None:
    presets = {}, {"num_beams": 4, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 5}
    for preset in (DecodeSettings(**settings) for settings in presets):
        cold = apply_overrides(preset, {"temperature": "0"})
        assert not cold.is_sampling and (cold.num_beams, cold.num_return_sequences) == (1, 1)


def test_stop_strings_are_used_unchanged() -> None:
    preset = DecodeSettings(stop_strings=("a",))
    for overrides, expected in (
        ({"stop_strings": ["\n", " a, b "]}, ("\n", " a, b ")),
        ({"stop_strings": "\\n\\n,Q:"}, ("\n\n", "Q:")),  # the form of the command line
        ({"stop_strings": ""}, ()),
        ({}, ("a",)),
    ):
        assert apply_overrides(preset, overrides).stop_strings == expected
    for wrong in (["a", ""], "a,,b", [3], 3):
        refused("stop_strings", apply_overrides, DecodeSettings(), {"stop_strings": wrong}, error=SettingError)
