"""Recorded attention is state of the calls of one thread; recorded weights can be changed before they are used."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import regard
from oracle import noise, noisy
from regard.nn.attention.attention import Attention
from regard.nn.attention.longformer import LongformerAttention
from regard.nn.attention.masks import Causal, GlobalTokens, Padding, SlidingWindow
from regard.nn.recording import HideKeys, ZeroHeads, is_recording, named_attentions, record_attention
from regard.types import Batch


@pytest.fixture(scope="module")
def bert() -> nn.Module:
    torch.manual_seed(0)
    return regard.build("bert-mini", task="embed", width=16, heads=2, ffn_dim=16, depth=2, vocab_size=50).body.eval()


def test_threads_that_record_do_not_see_each_other(bert: nn.Module) -> None:
    batches = [Batch(torch.randint(5, 50, (2, 5 + n), generator=torch.Generator().manual_seed(n))) for n in range(8)]
    layers = list(named_attentions(bert))
    start = threading.Barrier(8)

    def call(number: int) -> tuple[Tensor, list[str], list[Tensor]]:
        with torch.set_grad_enabled(number % 4 == 3):
            if number % 4 == 0:
                return bert(batches[number]).sequence, [], []
            chosen = [layers[1]] if number % 4 == 2 else None
            with record_attention(bert, chosen, gradients=number % 4 == 3) as seen:
                out = bert(batches[number]).sequence
        return out, [record.name for record in seen.records], [record.weights for record in seen.records]

    def repeated(number: int) -> list[tuple[Tensor, list[str], list[Tensor]]]:
        start.wait()
        return [call(number) for _ in range(12)]

    wanted = [call(number) for number in range(8)]
    assert [len(names) for _, names, _ in wanted] == [0, 2, 1, 2] * 2
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(repeated, range(8)))
    for (out, names, weights), calls in zip(wanted, results, strict=True):
        for same_out, same_names, same_weights in calls:
            assert same_names == names and torch.allclose(same_out, out, atol=1e-6)
            assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(same_weights, weights, strict=True))


def test_a_zeroed_head_contributes_nothing() -> None:
    module, x = noisy(Attention(12, 3)), noise(2, 5, 12)
    without = noisy(Attention(12, 3))
    with torch.no_grad():
        without.out.weight[:, 4:8] = 0.0  # the columns of head 1
    with record_attention(nn.ModuleDict({"a": module}), edits=[ZeroHeads({"a": [1]})]) as seen:
        out = module(x, mask=Causal())
    assert torch.allclose(out, without(x, mask=Causal()), atol=1e-12)
    assert not seen.weights("a")[:, 1].any() and seen.weights("a")[:, [0, 2]].any()
    assert not torch.allclose(module(x, mask=Causal()), out)


@pytest.mark.parametrize("names", [None, ["a"], ["b"]])
def test_a_hidden_position_is_masked(names: list[str] | None) -> None:
    module, x = noisy(Attention(12, 3)), noise(2, 5, 12)
    valid = torch.ones(2, 5, dtype=torch.bool)
    valid[:, 2] = False
    with record_attention(nn.ModuleDict({"a": module}), edits=[HideKeys([2], names)]):
        out = module(x, mask=Causal())
    mask = Causal() if names == ["b"] else Causal() & Padding(valid)
    assert torch.allclose(out, module(x, mask=mask), atol=1e-12)


def test_a_hidden_position_is_masked_in_windows_and_for_global_tokens() -> None:
    module, x = noisy(LongformerAttention(12, 3)), noise(1, 9, 12)
    tokens = torch.zeros(1, 9, dtype=torch.bool)
    tokens[:, 0] = True
    window, valid = SlidingWindow(2, 2) | GlobalTokens(tokens), torch.ones(1, 9, dtype=torch.bool)
    valid[:, 4] = False
    with record_attention(nn.ModuleDict({"a": module}), edits=[HideKeys([4])]):
        out = module(x, mask=window)
    rows = valid[0]  # the row of position 4 itself is padding in the masked call
    assert torch.allclose(out[:, rows], module(x, mask=window & Padding(valid))[:, rows], atol=1e-12)


def test_contexts_may_be_nested_and_concern_only_their_model() -> None:
    module, other, x = noisy(Attention(12, 3)), noisy(Attention(12, 3)), noise(2, 5, 12)
    with record_attention(nn.ModuleDict({"a": module})) as outer:
        with record_attention(nn.ModuleDict({"b": module}), edits=[ZeroHeads({"b": [0]})]) as inner:
            module(x)
            other(x)
        module(x)
    assert inner.names() == ["b"] and len(inner.records) == 1 and len(outer.records) == 2
    assert torch.equal(inner.records[0].weights, outer.records[0].weights) and not inner.records[0].weights[:, 0].any()
    assert outer.records[1].weights[:, 0].any()


def test_unknown_names_are_refused_and_an_error_ends_the_recording(bert: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"blocks\.7.*encoder\.blocks\.0"), record_attention(bert, ["blocks.7"]):
        pass
    with pytest.raises(RuntimeError, match="torn"), record_attention(bert):
        raise RuntimeError("torn")
    assert not is_recording()
