"""Captured search: failures, cached graphs, threads and empty sources; the top tokens of a step."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from regard.decode.cuda_graphs import _graph_caches, _round_up_rows
from regard.decode.search import search
from regard.errors import RegardError
from regard.nn.kernels.losses import chunked_topk
from regard.types import Batch, DecoderInputs
from tiny import near, noise, tiny
from toy_language_models import asked, fixed, small


@pytest.mark.slow
def test_graphs_of_many_sizes_are_evicted_in_turn() -> None:
    body = small()
    for rows in range(1, 70, 6):
        fixed(body, asked([rows % 5] * rows))
    assert len(_graph_caches[body].entries) <= 6
    assert [_round_up_rows(n) for n in (1, 2, 3, 8, 9, 33, 200, 300)] == [1, 2, 4, 8, 16, 64, 224, 384]


@pytest.mark.parametrize("vocabulary", [5, 64, 1000, 8191])
@pytest.mark.parametrize("count", [1, 8])
def test_top_tokens_equal_a_full_sort(vocabulary: int, count: int) -> None:
    logits = noise(6, vocabulary)
    values, tokens = chunked_topk(logits.log_softmax(-1), count, logits)
    right = logits.log_softmax(-1).topk(min(count, vocabulary))
    assert torch.equal(tokens, right.indices)
    near(values, right.values)


@pytest.mark.parametrize("way", [{}, {"num_beams": 2}])
def test_a_failed_search_leaves_no_state(way: dict[str, Any]) -> None:
    body, asking = small(), asked([0, 3], **way)
    right = fixed(body, asking)
    weight = body.decoder.blocks[0].attend.inner.qkv.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(RegardError, match="NaN"):
        fixed(body, asking)
    with torch.no_grad():
        weight.copy_(kept)
    assert fixed(body, asking) == right


def test_a_deleted_model_is_freed_with_its_graphs() -> None:
    body = small()
    fixed(body, asked([0, 3]))
    gone = weakref.ref(body)
    del body
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_two_threads_query_one_model() -> None:
    body, several = small(), [asked([0, row]) for row in range(1, 5)]
    right = [fixed(body, asking) for asking in several]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(lambda asking: fixed(body, asking), several)) == right


def test_a_step_that_cannot_be_captured_is_searched_plainly_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    body, asking, tries = small(), asked([0, 3]), []
    right = search(body, *asking)

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
            assert search(body, *asking) == right
    assert len(tries) == len(said) == 1


def test_a_source_without_a_token_is_regarded_as_nothing() -> None:
    model = tiny("transformer")
    x = torch.randint(3, model.config.vocab_size, (9, 7), generator=torch.Generator().manual_seed(9))
    lengths = torch.tensor([7, 0, 5, 1, 7, 2, 3, 4, 6])
    batch = Batch(x, lengths, decoder=DecoderInputs(x[:, :2]))
    with torch.no_grad():
        right = model.body.to_logits(model.body(batch).sequence)[:, -1]
        state = model.body.start(batch)
        near(model.body.step(x[:, 1], state), right)
        state = model.body.start(batch)
        state.expand_beams(2)
        near(model.body.step(x[:, 1].repeat_interleave(2), state)[::2], right)
