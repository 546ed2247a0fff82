"""Memory limits of decoding: models with a state of constant size, and captioners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_generating_systems import GENERATING, body_and_batch, with_prompt

from regard.decode.search import BYTES_PER_LOGIT, max_rows
from regard.types import StateSizes
from tiny_caption_models import KINDS, batch_of, config_of
from tiny_caption_models import made as captioner

ROLLING = [
    case for case in [*GENERATING, *KINDS] if case[0].startswith(("rnn", "convs2s", "caption-fixed", "caption-attend"))
]


@pytest.mark.parametrize(("name", "label"), ROLLING)
def test_a_body_reports_its_cache_size_before_reading(name: str, label: str) -> None:
    body, batch, _ = body_and_batch(name, label)
    batch = replace(with_prompt(batch, torch.ones(3, 1, dtype=torch.long)), mask=None)
    with torch.no_grad():
        state = body.start(batch)
        logits = body.step(batch.prompt[:, -1], state)
    kept = sum(tensor[0].numel() for held in (state.state, state.context) for tensor in held.values())
    assert body.state_sizes(batch) == StateSizes(logits.shape[1], per_beam=kept)


@pytest.mark.parametrize("name", ["caption-transformer", "caption-vit"])
def test_image_positions_take_memory_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = captioner(name)
    few, many = batch_of((1, 1)), batch_of((1, 1), 96, 96)
    config: Any = config_of(name)
    depth = getattr(config, "decoder_depth", config.depth)
    for batch in (few, many):
        columns = 1 + torch.Size(body.grid(batch)).numel() + 10 * 3
        row = 4 * depth * config.width * 8 * columns + 3 * 23 * BYTES_PER_LOGIT
        monkeypatch.setattr("regard.decode.search.DEFAULT_BUDGET", 100 * row + row // 2)
        assert max_rows(body, batch, 10, 3) == 100
