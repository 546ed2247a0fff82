"""Decoding with static shapes, as captured on CUDA, equals decoding with growing shapes; beams with shared keys."""

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
from regard.decode.searches import SearchInputs, chunked_topk
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.types import Batch, DecoderInputs
from tiny import CASES, near, noise, tiny
from toy_language_models import agree

SETTINGS = [
    DecodeSettings(),
    DecodeSettings(num_beams=2),
    DecodeSettings(num_beams=4, num_return_sequences=3, length_penalty=1.0),
    DecodeSettings(num_beams=3, early_stopping="never"),
    DecodeSettings(num_beams=3, num_return_sequences=2, early_stopping="always", forced_eos=True),
    DecodeSettings(forced_eos=True),
    DecodeSettings(do_sample=True, num_return_sequences=2, seed=3),
    DecodeSettings(do_sample=True, temperature=0.7, top_k=5),
]


models = pytest.mark.parametrize(
    ("name", "label"), [("transformer", ""), *(case for case in CASES if case[0] in ("rnn", "rnnsearch"))]
)


def asked(rows: int, model: Any) -> tuple[Batch, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    lengths = torch.randint(2, 9, (rows,), generator=random)
    x = torch.randint(3, model.config.vocab_size, (rows, int(lengths.max())), generator=random)
    x[torch.arange(x.shape[1]) >= lengths[:, None]] = model.config.pad_id
    prompt = torch.randint(3, model.config.vocab_size, (rows, 2), generator=random)
    return Batch(x, lengths, decoder=DecoderInputs(prompt)), lengths + 4


@pytest.mark.every(6)
@models
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rows", [1, 3, 5])
def test_static_shapes_and_rows_alone_equal_growing_shapes(
    name: str, label: str, settings: DecodeSettings, rows: int
) -> None:
    model = tiny(name, label)
    batch, limits = asked(rows, model)
    requests, end, banned = np.arange(rows) + 7, model.config.eos_id, model.config.pad_id
    right = search(model.body, batch, end, limits, settings, requests, (banned,))
    for row in range(rows):
        alone = batch.select_rows(torch.tensor([row]))
        alone = replace(alone, inputs=alone.inputs[:, : int(alone.mask[0])], mask=None)  # type: ignore[index]
        own = search(model.body, alone, end, limits[row : row + 1], settings, requests[row : row + 1], (banned,))
        agree(own, right[row : row + 1], 1e-8)
    with torch.inference_mode():
        for _ in range(2):  # the second time with reused buffers
            inputs = SearchInputs(model.body, batch, end, limits, settings, requests, torch.tensor([banned]))
            agree(graphed_search(inputs, capture=False) or [], right, 1e-9)
    assert len(_graph_caches[model.body].entries) == 1


@pytest.mark.slow
def test_graphs_of_many_sizes_are_evicted_in_turn() -> None:
    model = tiny("transformer")
    with torch.inference_mode():
        for rows in range(1, 70, 6):
            batch, limits = asked(rows, model)
            graphed_search(SearchInputs(model.body, batch, 2, limits, DecodeSettings(), np.arange(rows)), capture=False)
    assert len(_graph_caches[model.body].entries) <= 6
    assert [_round_up_rows(n) for n in (1, 2, 3, 8, 9, 33, 200, 300)] == [1, 2, 4, 8, 16, 64, 224, 384]


@models
@pytest.mark.parametrize("room", [None, 9])
@pytest.mark.parametrize("prompt", [1, 3])
def test_beams_swap_their_states_and_rows_end(name: str, label: str, room: int | None, prompt: int) -> None:
    """Two beams of three sources swap their prefixes twice; outputs equal one pass over each path."""
    model, W = tiny(name, label), 2
    batch, _ = asked(3, model)
    start = torch.randint(3, 15, (3, prompt), generator=torch.Generator().manual_seed(5))
    said = noise(4, 6, seed=3).abs().mul(5).long() + 3
    with torch.no_grad():
        state = model.body.start(replace(batch, decoder=DecoderInputs(start)), room)
        state.expand_beams(W)
        paths = start.repeat_interleave(W, 0)[:, :-1]
        owners = torch.arange(3).repeat_interleave(W)
        for number, rows in enumerate(([1, 0, 2, 2, 5, 4], [0, 1, 3, 2, 4, 4], [0, 1, 2, 3])):
            tokens = start[:, -1].repeat_interleave(W) if number == 0 else said[number]
            paths = torch.cat([paths, tokens[:, None]], 1)
            ours = model.body.step(tokens, state)
            whole = replace(batch, inputs=batch.inputs[owners], mask=batch.mask[owners], decoder=DecoderInputs(paths))  # type: ignore[index]
            near(ours, model.body.to_logits(model.body(whole).sequence)[:, -1])
            state.reorder(torch.tensor(rows))
            paths = paths[rows]
            if number == 1:  # the second source is removed
                kept = [4, 5, 0, 1]
                state.select_rows(torch.tensor(kept))
                paths, owners, said = paths[kept], owners[kept], said[:, :4]
    if name == "transformer":
        assert state.layers[0].self_cache.k.shape[0] == 2, "keys are stored per source, not per beam"


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
