"""Convolutional sequence to sequence against loops of its equations; all evaluation modes agree."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.nn.recording import record_attention
from regard.systems.convs2s import Config, parse_stages
from regard.types import Batch
from tiny import TINY, collate, near, same_gradients, tiny

LABELS = ("as published", *TINY["convs2s"].variants)
Vector = list[Tensor]


# -- the equations, with only the parameter names taken from our model


def layer(p: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """b_o + g_o (v_o · x) / |v_o|"""
    v = p[f"{name}.weight"]
    return p[f"{name}.bias"] + p[f"{name}.gain"] * (v @ x) / v.square().sum(1).sqrt()


def block(p: dict[str, Tensor], name: str, x: Vector, kernel: int, before: int, look: Any = None) -> Vector:
    zero, out = torch.zeros_like(x[0]), []
    for i in range(len(x)):
        window = [x[j] if 0 <= j < len(x) else zero for j in range(i - before, i - before + kernel)]
        a, b = layer(p, f"{name}.conv", torch.cat(window)).chunk(2)
        h = a / (1 + (-b).exp())
        if look is not None:
            h = look(name, h, i)
        kept = layer(p, f"{name}.map", x[i]) if f"{name}.map.weight" in p else x[i]
        out.append((h + kept) / math.sqrt(2))
    return out


def embedded(p: dict[str, Tensor], side: str, ids: list[int], length: int) -> Vector:
    table = p.get(f"tables.{side}.weight", p["tables.target.weight"])
    places = p[f"{side}_position.table.weight"]
    return [table[token] + places[min(i, length - 1)] for i, token in enumerate(ids)]


def oracle(p: dict[str, Tensor], config: Config, source: list[int], target: list[int]) -> Tensor:
    """Logits of one pair; the gradients of encoder states are scaled."""
    upper = parse_stages(config.encoder_stages, "")
    lower = parse_stages(config.decoder_stages or config.encoder_stages, "")
    e, g = embedded(p, "source", source, config.max_length), embedded(p, "target", target, config.max_length)
    x = [layer(p, "encoder.into", place) for place in e]
    for n, (_, kernel) in enumerate(upper):
        x = block(p, f"encoder.blocks.{n}", x, kernel, (kernel - 1) // 2)
    z = [layer(p, "encoder.out", place) for place in x]
    part = 0.5 / len(lower)
    z = [part * place + (1 - part) * place.detach() for place in z]

    def look(name: str, h: Tensor, i: int) -> Tensor:
        d = (layer(p, f"{name}.q", h) + g[i]) / math.sqrt(2)
        keys, m = torch.stack(z), len(z)
        c = (keys @ d).softmax(0) @ (keys + torch.stack(e)) / math.sqrt(2)
        return (layer(p, f"{name}.out", c * m * math.sqrt(1 / m)) + h) / math.sqrt(2)

    y = [layer(p, "decoder.into", place) for place in g]
    for n, (_, kernel) in enumerate(lower):
        y = block(p, f"decoder.blocks.{n}", y, kernel, kernel - 1, look)
    states = [layer(p, "decoder.out", place) for place in y]
    if config.tie_embeddings == "all":
        return torch.stack([p["tables.target.weight"] @ state for state in states])
    return torch.stack([layer(p, "tables.output", state) for state in states])


def pair(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    assert batch.mask is not None and batch.decoder is not None and batch.labels is not None
    said = int((batch.labels[row] >= 0).sum())
    return batch.inputs[row, : batch.mask[row]].tolist(), batch.decoder.inputs[row, :said].tolist()


@pytest.mark.parametrize("label", LABELS)
def test_a_batch_equals_the_equations_of_each_pair_with_gradients(label: str) -> None:
    model = tiny("convs2s", label)
    batch = collate(model, TINY["convs2s"].samples)
    logits = model.body.to_logits(model.body(batch).sequence)
    parameters, ours, right = dict(model.body.named_parameters()), [], []
    for row in range(len(batch.inputs)):
        source, target = pair(batch, row)
        right.append(oracle(parameters, model.config, source, target))
        ours.append(logits[row, : len(target)])
    same_gradients(model.body, torch.cat(ours), torch.cat(right))


def test_an_empty_source_has_zero_attention() -> None:
    model = tiny("convs2s")
    batch = replace(collate(model, TINY["convs2s"].samples), labels=None)
    assert batch.mask is not None
    batch.mask[1] = 0
    with torch.no_grad():
        assert bool(model.body.to_logits(model.body(batch).sequence).isfinite().all())


def test_one_attention_per_decoder_block_is_recorded() -> None:
    model = tiny("convs2s")
    batch = collate(model, TINY["convs2s"].samples)
    with record_attention(model) as seen, torch.no_grad():
        model.body(batch)
    assert seen.names() == [f"decoder.blocks.{n}.align" for n in range(3)]
    assert batch.mask is not None and batch.decoder is not None
    weights = seen.weights("decoder.blocks.1.align")
    assert weights.shape == (5, 1, batch.decoder.inputs.shape[1], batch.inputs.shape[1])
    near(weights.sum(-1), torch.ones(weights.shape[:-1]).double())
    assert not weights[1, ..., int(batch.mask[1]) :].any()
