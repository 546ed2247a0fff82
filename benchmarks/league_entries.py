"""Entries of the league: the size of each workload on this device, and its sides as functions that prepare a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gpt2_generation
import gpt2_training
import harness
import longformer_training
import torch
import translation_training
import vision_speed
from clock import Step

OWN = "regard"
Sides = dict[str, Callable[[], Step]]


@dataclass(frozen=True)
class Entry:
    """A workload. The name of a side starts with the required package, for example "transformers padded"."""

    unit: str
    size: str
    sides: Sides


def own(side: str) -> bool:
    return side.split()[0] == OWN


def gpt2_train() -> Entry:
    size, device = gpt2_training.SIZES[harness.mode()], harness.device()
    way: Any = "compiled" if device == "cuda" else "plain"
    sides: Sides = {
        OWN: lambda: gpt2_training.ours(device, way, size, batches=50),
        "transformers": lambda: gpt2_training.transformers(device, size),
    }
    return Entry("tokens/s", f"{size.model}, {size.rows} x {size.length:,} tokens, bfloat16 autocast", sides)


def gpt2_generate(batch: int) -> Entry:
    """Generation with one batch size. On a CPU `transformers` is faster in float32, so `regard` is measured in both dtypes."""
    size, cuda = gpt2_generation.SIZES[harness.mode()], harness.device() == "cuda"
    if harness.mode() == "cpu":
        size = replace(size, given=32, said=32) if batch == 1 else replace(size, given=8, said=8)

    def repeated(make: Callable[[], gpt2_generation.Action]) -> Callable[[], Step]:
        def prepare() -> Step:
            action = make()
            return lambda: action(batch)

        return prepare

    sides: Sides = {OWN: repeated(lambda: gpt2_generation.ours(torch.bfloat16 if cuda else torch.float32, size))}
    if cuda:
        sides["transformers static cache"] = repeated(lambda: gpt2_generation.peer(size, cache_implementation="static"))
    else:
        sides[f"{OWN} bfloat16"] = repeated(lambda: gpt2_generation.ours(torch.bfloat16, size))
        sides["transformers"] = repeated(lambda: gpt2_generation.peer(size))
        sides["ctranslate2"] = repeated(lambda: gpt2_generation.ctranslate2(size))
    about = f"{size.model}, batch {batch}, {size.given} + {size.said} tokens, {'bfloat16' if cuda else 'float32'}"
    return Entry("tokens/s", about, sides)


def translation_train() -> Entry:
    size, device = translation_training.SIZES[harness.mode()], harness.device()
    way: Any = "compiled" if device == "cuda" else "plain"
    sides: Sides = {OWN: lambda: translation_training.ours(device, way, size)}
    if size.natural:
        sides["transformers padded"] = lambda: translation_training.peer(device, size, full=False)
    sides["transformers full rows"] = lambda: translation_training.peer(device, size, full=True)
    if device == "cpu":
        sides["torch nn.Transformer"] = lambda: translation_training.torch_nn(device, size)
    shape = f"{size.model['depth']} + {size.model['depth']} layers x {size.model['width']}"
    return Entry("tokens/s", f"{shape}, {size.pairs} pairs of up to {size.longest} tokens, bfloat16 autocast", sides)


def longformer() -> Entry:
    model, length = harness.pick(
        cuda=("longformer-base", 16_384), cpu=("longformer-mini", 2048), smoke=("longformer-mini", 32)
    )
    way = "graph" if harness.device() == "cuda" else "plain"
    sides: Sides = {
        OWN: lambda: longformer_training.prepare(way, model, length),
        "transformers": lambda: longformer_training.prepare("transformers", model, length),
    }
    return Entry("tokens/s", f"{model}, forward and backward of {length:,} tokens", sides)


def vision(system: str) -> Entry:
    size, device = vision_speed.SIZES[harness.mode()][system], harness.device()

    def prepared(side: str) -> Callable[[], Step]:
        return lambda: vision_speed.infer(side, system, device, size)

    sides: Sides = {side: prepared(side) for side in vision_speed.PEERS[system]}
    side = size.config.image_size
    return Entry("images/s", f"{size.model}, {size.batch} x {side} x {side}, bfloat16", sides)


ENTRIES: dict[str, Callable[[], Entry]] = {
    "gpt2-training": gpt2_train,
    "gpt2-generation-1": lambda: gpt2_generate(1),
    "gpt2-generation-64": lambda: gpt2_generate(harness.pick(cuda=64, cpu=64, smoke=2)),
    "translation-training": translation_train,
    "longformer": longformer,
    "vit-inference": lambda: vision("vit"),
    "dpt-inference": lambda: vision("dpt"),
}
