"""Attention of recurrent models over a context without tokens; systems/test_rnn.py compares the scores with their papers."""

from __future__ import annotations

import pytest
import torch

from oracle import noise, noisy
from regard.nn.recurrent.score_attention import AdditiveScore, MultiplicativeScore, ScoreAttention


def test_a_row_of_padding_is_not_attended_to() -> None:
    align = noisy(ScoreAttention(AdditiveScore(3, 5, 4)))
    mixed, weights = align(noise(2, 1, 3), align.prepare(noise(2, 6, 5), torch.tensor([[True] * 6, [False] * 6])))
    assert weights[0].all() and not weights[1].any() and not mixed[1].any()
    with pytest.raises(ValueError, match="width"):
        MultiplicativeScore(3, 5, general=False)
