"""Streamed decoding: callers receive tokens during the search and may stop it."""

from __future__ import annotations

import gc
import itertools
import math
from typing import Any

import pytest
import torch

from regard.decode.cuda_graphs import _graph_caches, acquire_graph
from regard.decode.search import search, stream
from regard.decode.searches import Hypothesis
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from toy_language_models import BODIES, END, STREAMS, WAYS, agree, asked, enough, fixed, padded


@pytest.fixture(scope="module", params=list(BODIES))
def body(request: pytest.FixtureRequest) -> Any:
    return BODIES[request.param]()


@pytest.mark.parametrize("way", WAYS[:4])
def test_a_row_ends_where_someone_has_heard_enough(body: Any, way: dict[str, Any]) -> None:
    whole, cut = (search(body, *asked([0, 1, 2, 3, 4], **way), stop_fn=until) for until in (None, enough))
    reasons = set()
    for row, options in enumerate(cut):
        shortened = []
        for full in whole[row]:
            here = next((n for n in range(1, len(full.tokens) + 1) if enough(row, list(full.tokens[:n]))), None)
            logs = full.log_probs[:here]
            why = full.finish_reason if here is None else "stop"
            shortened.append(Hypothesis(full.tokens[:here], math.fsum(logs), logs, why))
        agree([options], [sorted(shortened, key=lambda f: -f.score)])
        reasons |= {f.finish_reason for f in options}
    assert "stop" in reasons and len(reasons) > 1
    agree(fixed(body, asked([0, 1, 2, 3, 4], **way), stop_fn=enough), cut)


def test_beams_are_cut_when_they_are_finished(body: Any) -> None:
    way = {"num_beams": 3, "num_return_sequences": 3}
    whole, cut = (search(body, *asked([0, 1, 2, 3, 4], **way), stop_fn=until) for until in (None, enough))
    for row, (before, after) in enumerate(zip(whole, cut, strict=True)):
        for full, short in zip(before, after, strict=True):
            assert short.score == full.score and short.tokens == full.tokens[: len(short.tokens)]
            stops = [enough(row, list(full.tokens[:n])) for n in range(len(full.tokens) + 1)]
            assert (short.finish_reason == "stop") == any(stops)
    assert any(f.finish_reason == "stop" for options in cut for f in options)


def test_a_beam_that_is_cut_is_read_once(body: Any) -> None:
    """A reader keeps its offset in the list: a new list per token would be read from the beginning."""
    lists: dict[int, list[list[int]]] = {}

    def listen(row: int, tokens: list[int]) -> bool:
        known = lists.setdefault(row, [])
        if not any(tokens is one for one in known):
            known.append(tokens)
        return False

    found = search(body, *asked([0, 1, 3], num_beams=2, num_return_sequences=2), stop_fn=listen)
    assert max(len(f.tokens) for options in found for f in options) > 2
    counts = {row: sum(1 for f in options if f.tokens) for row, options in enumerate(found)}
    assert {row: len(known) for row, known in lists.items()} == counts


def test_a_callback_gets_the_row_indices_of_the_whole_batch(body: Any) -> None:
    told_of: set[int] = set()
    batch, end, limits, settings, requests = asked([0, 1, 2, 3, 4])
    limits[1] = limits[3] = 0
    search(body, batch, end, limits, settings, requests, stop_fn=lambda row, tokens: bool(told_of.add(row)))
    assert told_of == {0, 2, 4}
    assert search(body, batch, end, limits, settings, requests)[1] == [Hypothesis((), 0.0, (), "length")]


# -- streams


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams as on CUDA, without graph capture."""
    monkeypatch.setattr("regard.decode.search.can_capture", lambda *_: True)
    monkeypatch.setattr("regard.decode.search.acquire_graph", lambda *asked: acquire_graph(*asked, capture=False))


@pytest.mark.parametrize("until", [None, enough])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("way", STREAMS)
def test_a_stream_is_the_search_in_pieces(
    body: Any, way: dict[str, Any], few: bool, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = asked([0, 1, 2, 3, 4], **way)
    asking[2][2] = 0
    right = search(body, *asking, stop_fn=until)
    if few:
        plainly(monkeypatch)
    said: list[list[int]] = [[] for _ in right]
    looks = 0
    for news in stream(body, *asking, stop_fn=until):
        assert len(news) == len(said) and not torch.is_inference_mode_enabled()
        for row, tokens in zip(said, news, strict=True):
            row += tokens
        looks += 1
    assert [tuple(row) for row in said] == [f.tokens for (f,) in right]
    longest = max(len(f.log_probs) for (f,) in right)
    assert looks <= 1 + math.log2(longest) + longest / 8 if few else looks == longest


def test_an_abandoned_stream_is_released(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _graph_caches.pop(body, None)
    asking = asked([1, 3])
    right = search(body, *asking)
    plainly(monkeypatch)
    open_one = stream(body, *asking)
    next(open_one)
    assert not _graph_caches[body].entries, "a graph in use is not in the cache"
    agree(fixed(body, asking), right)  # and blocks no later search
    assert len(_graph_caches[body].entries) == 1
    open_one.close()  # type: ignore[attr-defined]
    dropped = stream(body, *asking)
    next(dropped)
    del dropped
    gc.collect()
    assert len(_graph_caches[body].entries) == 1 and _graph_caches[body].lock.acquire(blocking=False)
    _graph_caches[body].lock.release()
    agree(fixed(body, asking), right)


def test_two_streams_of_one_kind_are_read_alternately(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [asked([row], do_sample=True) for row in (3, 1, 3)]
    right = [search(body, *asking)[0][0].tokens for asking in several]
    plainly(monkeypatch)
    for _ in range(2):  # in the second round some graphs come from the cache
        streams = [stream(body, *asking) for asking in several]
        said: list[list[int]] = [[] for _ in streams]
        for turn in itertools.zip_longest(*streams, fillvalue=[[]]):
            for row, (news,) in zip(said, turn, strict=True):
                row += news
        assert [tuple(row) for row in said] == right


def test_unsupported_streams_are_reported_at_once(body: Any) -> None:
    with pytest.raises(SettingError, match="num_beams=1"):
        stream(body, *asked([0], num_beams=2))
    with pytest.raises(SettingError, match="num_return_sequences"):
        stream(body, *asked([0], do_sample=True, num_return_sequences=2))
    silent = padded([[1]]), END, torch.tensor([0]), DecodeSettings()
    assert list(stream(body, *silent)) == []
