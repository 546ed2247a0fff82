"""Captured search: failures, cached graphs, threads and empty sources; the top tokens of a step."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from regard.decode.cuda_graphs import _graph_caches, _round_up_rows, graphed_search
from regard.decode.search import search
from regard.decode.searches import SearchInputs
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.nn.kernels.topk import chunked_topk
from regard.types import Batch, DecoderInputs
from tiny import near, noise, tiny


def asked(rows: int, model: Any) -> tuple[Batch, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    lengths = torch.randint(2, 9, (rows,), generator=random)
    x = torch.randint(3, model.config.vocab_size, (rows, int(lengths.max())), generator=random)
    x[torch.arange(x.shape[1]) >= lengths[:, None]] = model.config.pad_id
    prompt = torch.randint(3, model.config.vocab_size, (rows, 2), generator=random)
    return Batch(x, lengths, decoder=DecoderInputs(prompt)), lengths + 4


@pytest.mark.slow
def test_graphs_of_many_sizes_are_evicted_in_turn() -> None:
    model = tiny("transformer")
    with torch.inference_mode():
        for rows in range(1, 70, 6):
            batch, limits = asked(rows, model)
            graphed_search(SearchInputs(model.body, batch, 2, limits, DecodeSettings(), np.arange(rows)), capture=False)
    assert len(_graph_caches[model.body].entries) <= 6
    assert [_round_up_rows(n) for n in (1, 2, 3, 8, 9, 33, 200, 300)] == [1, 2, 4, 8, 16, 64, 224, 384]


@pytest.mark.parametrize("vocabulary", [5, 64, 1000, 8191])
@pytest.mark.parametrize("count", [1, 8])
def test_top_tokens_equal_a_full_sort(vocabulary: int, count: int) -> None:
    logits = noise(6, vocabulary)
    values, tokens = chunked_topk(logits.log_softmax(-1), count, logits)
    right = logits.log_softmax(-1).topk(min(count, vocabulary))
    assert torch.equal(tokens, right.indices)
    near(values, right.values)


def found(model: Any, batch: Batch, limits: torch.Tensor, settings: DecodeSettings | None = None) -> Any:
    with torch.inference_mode():
        rows = np.arange(len(limits))
        settings = settings or DecodeSettings(num_beams=2)
        return graphed_search(
            SearchInputs(model.body, batch, model.config.eos_id, limits, settings, rows), capture=False
        )


@pytest.mark.parametrize("settings", [DecodeSettings(), DecodeSettings(num_beams=2)])
def test_a_failed_search_leaves_no_state(settings: DecodeSettings) -> None:
    model = tiny("transformer")
    batch, limits = asked(2, model)
    batch = replace(batch, decoder=DecoderInputs(batch.decoder.inputs[:, :1]))  # type: ignore[index]
    right = found(model, batch, limits, settings)
    weight = model.body.decoder.blocks[0].attend.inner.qkv.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(RegardError, match="NaN"):
        found(model, batch, limits, settings)
    with torch.no_grad():
        weight.copy_(kept)
    assert found(model, batch, limits, settings) == right


def test_a_deleted_model_is_freed_with_its_graphs() -> None:
    model = tiny("transformer")
    batch, limits = asked(2, model)
    found(model, batch, limits)
    gone = weakref.ref(model.body)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_two_threads_query_one_model() -> None:
    model = tiny("transformer")
    batch, limits = asked(2, model)
    others = [replace(batch, inputs=(batch.inputs + shift) % 9 + 3) for shift in range(4)]
    right = [found(model, other, limits) for other in others]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda other: found(model, other, limits), others)) == right


def test_a_step_that_cannot_be_captured_is_searched_plainly_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("transformer")
    batch, limits = asked(2, model)
    right = search(model.body, batch, model.config.eos_id, limits, DecodeSettings())
    tries = []

    def fails(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr("regard.decode.cuda_graphs.capture", fails)
    monkeypatch.setattr(
        "regard.decode.search.can_capture",
        lambda body, _: not (body in _graph_caches and _graph_caches[body].capture_failed),
    )
    with pytest.warns(UserWarning, match="CUDA graph capture failed") as said:
        for _ in range(2):
            assert search(model.body, batch, model.config.eos_id, limits, DecodeSettings()) == right
    assert len(tries) == len(said) == 1


@pytest.mark.parametrize("rows", [2, 9])
def test_a_source_without_a_token_is_regarded_as_nothing(rows: int) -> None:
    model = tiny("transformer")
    batch, _ = asked(rows, model)
    assert batch.mask is not None and batch.decoder is not None
    batch.mask[1] = 0
    with torch.no_grad():
        right = model.body.to_logits(model.body(batch).sequence)[:, -1]
        state = model.body.start(batch)
        near(model.body.step(batch.decoder.inputs[:, -1], state), right)
        state = model.body.start(batch)
        state.expand_beams(2)
        near(model.body.step(batch.decoder.inputs[:, -1].repeat_interleave(2), state)[::2], right)
