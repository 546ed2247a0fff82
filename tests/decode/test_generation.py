"""Generation from prompts of different lengths: each row of a batch equals the row alone, for all settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from regard.decode.cuda_graphs import GraphedSearch, _graph_caches, graphed_search
from regard.decode.search import BYTES_PER_LOGIT, search
from regard.decode.searches import SearchInputs
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from toy_language_models import (
    BODIES,
    END,
    LIMITS,
    PROMPTS,
    WAYS,
    V,
    agree,
    asked,
    enough,
    fixed,
    follow,
    padded,
    small,
)


@pytest.fixture(scope="module", params=list(BODIES))
def body(request: pytest.FixtureRequest) -> Any:
    return BODIES[request.param]()


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"do_sample": True, "repetition_penalty": 2.0},
        {"repetition_penalty": 0.5},
        {"repetition_penalty": 5.0},
        {"do_sample": True, "temperature": 0, "top_k": 3, "seed": 8},
    ],
)
def test_one_path_is_followed_as_plain_lists_follow_it(body: Any, way: dict[str, Any]) -> None:
    for row, (found,) in enumerate(search(body, *asked([0, 1, 2, 3, 4], **way))):
        path, penalty = list(PROMPTS[row]), way.get("repetition_penalty", 1.0)
        for place, log in enumerate(found.log_probs):
            logits = follow(body, path)
            bent = logits.clone()
            for token in set(path):
                bent[token] = bent[token] / penalty if bent[token] > 0 else bent[token] * penalty
            token = (*found.tokens, END)[place]
            assert DecodeSettings(**way).is_sampling or token == int(bent.argmax())
            assert log == pytest.approx(float(logits.log_softmax(-1)[token]), rel=1e-9), "without the penalty"
            path.append(token)
        assert found.finish_reason == ("eos" if path[-1] == END else "length") and len(found.log_probs) <= LIMITS[row]
        assert found.finish_reason == "eos" or len(found.tokens) == LIMITS[row]


def test_log_probabilities_of_beams_are_unpenalized(body: Any) -> None:
    way = {"num_beams": 3, "num_return_sequences": 3, "repetition_penalty": 1.7, "length_penalty": 0.0}
    for row, options in enumerate(search(body, *asked([0, 1, 2, 3, 4], **way))):
        for found in options:
            path, score = list(PROMPTS[row]), 0.0
            for token, log in zip((*found.tokens, END), found.log_probs, strict=False):
                logs = follow(body, path).log_softmax(-1)
                assert log == pytest.approx(float(logs[token]), rel=1e-9)
                score += log * (1.7 if token in path else 1.0)
                path.append(token)
            assert found.score == pytest.approx(score, rel=1e-9), "beams are scored with the penalty"


def test_a_search_records_once_for_prompts_of_every_length(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = GraphedSearch.__init__
    monkeypatch.setattr(GraphedSearch, "__init__", lambda *given: made.append(1) or real(*given))
    _graph_caches.pop(body, None)
    for way in ({}, {"do_sample": True, "repetition_penalty": 1.2}, {"num_beams": 2}):
        made.clear()
        for length in range(1, 30, 3):
            prompts = [list(range(1, 1 + count)) for count in (length, 1 + length // 2)]
            prompts = [[token % V for token in prompt] for prompt in prompts]
            asking = padded(prompts), END, torch.tensor([3 + length % 5, 6]), DecodeSettings(**way), np.arange(2)
            agree(fixed(body, asking), search(body, *asking))
        assert len(made) == 1, way


def test_outputs_may_fill_the_context_and_no_more() -> None:
    body = small(length=40)
    prompts = [[1 + place % 11 for place in range(38)], [4, 5]]
    asking = padded(prompts), V, torch.tensor([3, 39]), DecodeSettings(), np.arange(2)
    found = search(body, *asking)
    assert [len(f.tokens) for (f,) in found] == [3, 39]
    agree(fixed(body, asking), found)
    with pytest.raises(RegardError, match="positions"):
        search(body, padded(prompts), V, torch.tensor([4, 1]), DecodeSettings())


@pytest.mark.every(6)
@pytest.mark.parametrize("paths", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("way", WAYS)
def test_rows_and_samples_beyond_a_limit_are_decoded_in_chunks(
    way: dict[str, Any], paths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least one path is computed, however low the limit is."""
    body, asking = small(), asked([0, 1, 2, 3, 4], **way)
    right, sizes, listened = search(body, *asking), [], search(body, *asking, stop_fn=enough)
    beams, real = way.get("num_beams", 1), body.step
    draws = 3 if way.get("num_return_sequences") == 3 and beams == 1 else 1
    most = max(1, paths)
    together = min(draws, most)
    rows = -(-5 // -(-5 // min(5, most // together)))  # chunks of about equal size
    body.step = lambda tokens, state: sizes.append(len(tokens)) or real(tokens, state)
    if draws > 1:  # the longest prompt and the longest output have 9 and 12 tokens
        agree(search(body, *asking, max_batch_tokens=(9 + 12) * paths), right)
        assert max(sizes) == rows * together
        sizes.clear()
    assert BYTES_PER_LOGIT >= 3 * 8, "three float64 copies during sampling"
    one = 4 * 2 * 12 * 8 * (9 + 12 * beams) + beams * V * BYTES_PER_LOGIT
    monkeypatch.setattr("regard.decode.search.DEFAULT_BUDGET", one * paths + one // 2)
    agree(search(body, *asking), right)
    assert max(sizes) == beams * rows * together
    agree(search(body, *asking, stop_fn=enough), listened)


def test_a_size_without_memory_for_a_graph_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    body, tried = small(), []

    def full(*_: Any, **__: Any) -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError("no memory left")

    fixed(body, asked([0, 1]))
    shelf = _graph_caches[body]
    assert len(shelf.entries) == 1
    monkeypatch.setattr("regard.decode.cuda_graphs.capture", full)
    with torch.inference_mode():
        for _ in range(2):  # the second time no capture is attempted
            assert graphed_search(SearchInputs(body, *asked([0, 1, 2, 3, 4]))) is None
        assert not shelf.entries and not shelf.capture_failed and len(tried) == 1
        assert graphed_search(SearchInputs(body, *asked([1]))) is None and len(tried) == 2, "other sizes are tried"


def test_an_error_unrelated_to_the_capture_is_raised() -> None:
    body = small()
    with torch.inference_mode(), pytest.raises(RuntimeError, match="weights"):
        body.start = lambda *_: (_ for _ in ()).throw(RuntimeError("weights"))
        graphed_search(SearchInputs(body, *asked([0, 1])))
