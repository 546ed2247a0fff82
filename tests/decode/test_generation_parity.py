"""Logits processors and generated tokens, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from parity import marian
from regard.decode.search import search
from regard.decode.searches import Hypothesis, filter_logits
from regard.decode.settings import DecodeSettings
from regard.types import Batch, DecoderInputs
from tiny import noise, tiny
from toy_language_models import lively

transformers = pytest.importorskip("transformers")

NARROWINGS = [
    {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"top_p": 0.05}, {"min_p": 0.1}, {"min_p": 1.0},
    {"temperature": 1.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
]  # fmt: skip


@pytest.mark.parametrize("way", NARROWINGS)
def test_filtered_distributions_equal_transformers(way: dict[str, Any]) -> None:
    """Distinct logits, and sixteen values among sixty tokens: the order of equal tokens matters only to top-p."""
    warpers = {
        "temperature": transformers.TemperatureLogitsWarper, "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper, "min_p": transformers.MinPLogitsWarper,
    }  # fmt: skip
    for logits in (3 * noise(50, 60, seed=4), (2 * noise(200, 60, seed=4)).round() / 2):
        theirs = logits
        for name in [name for name in warpers if name in way]:  # in the order of `generate`
            theirs = warpers[name](way[name])(None, theirs)
        ours, theirs = filter_logits(logits, **way).softmax(-1), theirs.softmax(-1)
        assert (ours.sort(-1).values - theirs.sort(-1).values).abs().max() < 1e-14
        if len(logits) == 50 or "top_p" not in way:
            assert torch.equal(ours > 0, theirs > 0) and (ours - theirs).abs().max() < 1e-14


# -- repetition penalties


def generate(theirs: Any, x: Tensor, beams: int, penalty: float, **more: Any) -> Any:
    return theirs.generate(
        x, max_new_tokens=12, do_sample=False, num_beams=beams, num_return_sequences=beams, length_penalty=1.0,
        repetition_penalty=penalty, early_stopping=False, return_dict_in_generate=True, output_scores=True, **more,
    )  # fmt: skip


def same(found: list[list[Hypothesis]], out: Any, prompt: int, end: int, beams: int) -> None:
    ours = [one for options in found for one in options]
    rows = [row[prompt:] for row in out.sequences.tolist()]
    assert [one.tokens for one in ours] == [tuple(row[: row.index(end)] if end in row else row) for row in rows]
    if beams > 1:
        assert [one.score for one in ours] == pytest.approx(out.sequences_scores.tolist(), rel=1e-4)


PENALTIES = [1.0, 1.3, 4.0, 0.8]


def ways(beams: int) -> list[DecodeSettings]:
    way: dict[str, Any] = {"num_beams": beams, "length_penalty": 1.0, "length_penalty_type": "power"}
    return [DecodeSettings(num_return_sequences=beams, repetition_penalty=penalty, **way) for penalty in PENALTIES]


@pytest.mark.every(2)
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_translator_with_repetition_penalty_equals_transformers(beams: int, prompt: int, tmp_path: Path) -> None:
    model, random = tiny("transformer", depth=1), torch.Generator().manual_seed(3)
    lively(model.body)
    theirs = marian(model, tmp_path)
    x, lengths = torch.randint(3, 23, (4, 6), generator=random), torch.tensor([6, 2, 4, 3])
    marks = (torch.arange(6) < lengths[:, None]).long()
    target = torch.cat([torch.full((4, 1), 1), x[:, : prompt - 1]], 1)
    different = set()
    for settings in ways(beams):
        found = search(model.body, Batch(x, lengths, decoder=DecoderInputs(target)), 2, torch.full((4,), 12), settings)
        out = generate(theirs, x, beams, settings.repetition_penalty, attention_mask=marks, decoder_input_ids=target)
        same(found, out, prompt, 2, beams)
        different.add(tuple(one.tokens for options in found for one in options))
    assert len(different) > 2
