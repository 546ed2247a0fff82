"""Memory limits of decoding: models with a state of constant size, and captioners."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.decode.search import BYTES_PER_LOGIT, max_rows
from regard.types import Batch, DecoderInputs, StateSizes
from tiny import TINY, tiny
from tiny_caption_models import batch_of, config_of
from tiny_caption_models import made as captioner

SPOKEN = [(name, label) for name in ("rnn", "rnnsearch", "convs2s") for label in ("", *TINY[name].variants)]
ROLLING = [*SPOKEN, ("caption-fixed", ""), *(("caption-attend", encoder) for encoder in ("", "vit", "swin"))]


def asked(name: str, label: str) -> tuple[Any, Batch]:
    """A model and a batch of five rows with one token each."""
    if name.startswith("caption"):
        return captioner(name, label), batch_of((1,) * 5, 32, 48)
    model = tiny(name, label) if label else tiny(name)
    random = torch.Generator().manual_seed(5)
    x = torch.randint(3, model.config.vocab_size, (5, 6), generator=random)
    return model.body, Batch(x, decoder=DecoderInputs(torch.ones(5, 1, dtype=torch.long)))


@pytest.mark.parametrize(("name", "label"), ROLLING)
def test_a_body_reports_its_cache_size_before_reading(name: str, label: str) -> None:
    body, batch = asked(name, label)
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
