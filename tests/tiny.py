"""A tiny model of every listed system, with samples; a system is tested by being listed here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batching.samplers import PackedSampler
from regard.data.text.documents import Passage
from regard.data.text.samples import Pair
from regard.data.text.tagged import TaggedSentence
from regard.model import Model, ModelSpec, assemble
from regard.systems import SYSTEMS
from regard.tasks import find_task
from regard.tasks.base import EncodingContext, HeadOptions
from regard.tasks.lm import document_spans
from regard.types import Batch

torch.set_num_threads(1)  # threads are slower for tensors this small


@dataclass(frozen=True)
class Tiny:
    config: Any
    """All sizes differ, so swapped axes cause an error."""
    samples: Any
    """Samples of different lengths for the task, with numbers as words."""
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Configuration overrides, tested as separate systems."""
    task: str = ""
    """Task of the model; empty: the first task of the system."""
    labels: tuple[str, ...] = ()


class Numbers:
    """Tokenizer that reads "7 4 9" as the tokens 7, 4 and 9."""

    def encode(self, texts: Sequence[str], target: bool = False) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        return [([int(word) for word in words], list(range(len(words)))) for words in sentences]


def pairs(rows: Iterable[tuple[Iterable[int], Iterable[int]]]) -> list[Pair]:
    return [Pair(" ".join(map(str, source)), " ".join(map(str, target)), "", 0) for source, target in rows]


def _some_pairs(lengths: list[tuple[int, int]], vocabulary: int) -> list[Pair]:
    random = np.random.default_rng(5)
    return pairs(
        (random.integers(3, vocabulary, source), random.integers(3, vocabulary, target)) for source, target in lengths
    )


def _some_texts(lengths: list[int], vocabulary: int) -> list[Passage]:
    random = np.random.default_rng(6)
    return [
        Passage(" ".join(map(str, random.integers(0, vocabulary, n))), "", 0, True, document=number)
        for number, n in enumerate(lengths)
    ]


def _some_tagged(lengths: list[int], vocabulary: int) -> list[TaggedSentence]:
    random = np.random.default_rng(7)
    return [TaggedSentence(tuple(map(str, random.integers(5, vocabulary, n))), ()) for n in lengths]


SIZES: dict[str, Any] = {
    "width": 12, "depth": 3, "heads": 3, "ffn_dim": 20, "vocab_size": 23, "max_length": 16, "eos_id": 22,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "width": 12, "depth": 3, "heads": 3, "ffn_dim": 20, "vocab_size": 23, "pad_id": 0, "bos_id": 2, "eos_id": 3, "mask_id": 4,
}  # fmt: skip
WORDS = _some_tagged([6, 1, 2, 9, 3], 23)
TAGS: dict[str, Any] = {"task": "tag", "labels": ("O", "B-A", "I-A", "B-B", "I-B")}
TEXTS = _some_texts([6, 0, 2, 7, 3], 22)
PAIRS = _some_pairs([(4, 6), (1, 3), (7, 2), (3, 7), (5, 0)], 23)
UNIVERSAL: dict[str, Any] = {"width": 12, "num_steps": 3, "heads": 3, "ffn_dim": 20, "vocab_size": 23}
NONE = {"position_embedding": "none"}
TINY: dict[str, Tiny] = {
    "transformer": Tiny(
        SYSTEMS["transformer"].config(width=12, depth=2, decoder_depth=3, heads=3, ffn_dim=20, vocab_size=23, max_length=40),
        PAIRS,
        {
            "pre-norm": {"norm_position": "pre"}, "interleaved": {"position_embedding": "interleaved"},
            "pre-norm, interleaved, biased": {"norm_position": "pre", "position_embedding": "interleaved", "output_bias": True},
            "biased": {"output_bias": True, "activation": "swish"},
            "rotary beside sines": {"relative_position": "rotary", "norm_position": "pre"},
            "buckets": {"relative_position": "t5", **NONE}, "shaw": {"relative_position": "shaw", **NONE},
            "unscaled": {"scale_embedding": False, "activation": "gelu", "depth": 1, "pad_id": 5, "bos_id": 0, "eos_id": 7},
        },
    ),
    "decoder": Tiny(
        SYSTEMS["decoder"].config(**SIZES), TEXTS,
        {
            "halves": {"position_embedding": "halves", "activation": "gelu"}, "nowhere": NONE,
            "rotary": {"relative_position": "rotary", **NONE},
        },
    ),
    "gpt1": Tiny(
        SYSTEMS["gpt1"].config(**{**SIZES, "ffn_dim": 48}), TEXTS,
        {"narrow": {"ffn_dim": 20}, "shaw": {"relative_position": "shaw"}},
    ),
    "gpt2": Tiny(
        SYSTEMS["gpt2"].config(**SIZES), TEXTS,
        {
            "another eps": {"norm_eps": 1e-2, "depth": 1}, "rotary in halves": {"relative_position": "rotary-halves", **NONE},
            "buckets beside learned": {"relative_position": "t5"},
        },
    ),
    "gpt3": Tiny(
        SYSTEMS["gpt3"].config(**SIZES, local_window=3, dropout=0.1), TEXTS,
        {
            "dense": {"local_window": 0}, "shaw": {"relative_position": "shaw", **NONE},
            "buckets": {"relative_position": "t5", **NONE},
        },
    ),
    "bert": Tiny(
        SYSTEMS["bert"].config(**ENCODER, max_length=16, pooler=False), WORDS,
        {"relu": {"activation": "relu", "type_vocab_size": 1}}, **TAGS,
    ),
    "modernbert": Tiny(
        SYSTEMS["modernbert"].config(
            **{**ENCODER, "depth": 4}, max_length=16, local_attention=4, dropout=0.1, attention_dropout=0.1
        ),
        WORDS,
        {"mean of all tokens": {"classifier_pooling": "mean", "global_every": 2}},
        **TAGS,
    ),
    "deberta": Tiny(
        SYSTEMS["deberta"].config(**ENCODER, max_length=16, position_buckets=6),
        WORDS,
        {
            "convolution, segments": {"conv_kernel_size": 3, "type_vocab_size": 2, "position_embedding": "learned"},
            "own projections": {"share_att_key": False, "position_buckets": 0, "norm_rel_ebd": False},
        },
        **TAGS,
    ),
    "roformer": Tiny(
        SYSTEMS["roformer"].config(**ENCODER, embedding_dim=12, max_length=16), WORDS,
        {"narrow": {"embedding_dim": 8}, "turned values": {"rotary_value": True}}, **TAGS,
    ),
    "longformer": Tiny(
        SYSTEMS["longformer"].config(**ENCODER, max_length=16, attention_window=(4, 2, 8)), WORDS,
        {
            "dilated": {"dilation": (1, 2, 1), "undilated_layers": 1}, "one window": {"attention_window": (4,)},
            "rotary": {"relative_position": "rotary"}, "rotary halves": {"relative_position": "rotary-halves"},
        },
        **TAGS,
    ),
    "rnn": Tiny(
        SYSTEMS["rnn"].config(width=10, embedding_dim=7, depth=3, dropout=0.2, vocab_size=23), PAIRS,
        {
            "plain": {"cell": "rnn", "reverse_source": False}, "gru, both ways": {"cell": "gru", "bidirectional": True},
            "both ways": {"bidirectional": True, "depth": 2, "reverse_source": False},
            "fed": {"feed_context": True, "tie_embeddings": "source_target"},
            "fed, one layer, one table": {"feed_context": True, "depth": 1, "embedding_dim": 10, "tie_embeddings": "all"},
            "more words in the source": {"source_vocab_size": 31},
        },
    ),
    "rnnsearch": Tiny(
        SYSTEMS["rnnsearch"].config(
            width=10, encoder_width=6, embedding_dim=7, attention_dim=8, maxout_dim=9, dropout=0.2, vocab_size=23,
            source_vocab_size=29,
        ),
        PAIRS,
        {
            "dot": {"attention_score": "dot", "encoder_width": 5},
            "general, one table": {
                "attention_score": "general", "maxout_dim": 7, "tie_embeddings": "all", "source_vocab_size": 0,
            },
            "unbiased": {"bias": False, "tie_embeddings": "source_target", "source_vocab_size": 0},
        },
    ),
    "convs2s": Tiny(
        SYSTEMS["convs2s"].config(
            encoder_stages=("10x3x2", "14x1"), decoder_stages=("8x3", "11x2", "11x3"), embedding_dim=12, output_dim=9,
            vocab_size=23, max_length=40,
        ),
        PAIRS,
        {
            "one table": {"tie_embeddings": "all", "output_dim": 12, "decoder_stages": ()},
            "even kernels, few positions, two tables": {
                "encoder_stages": ("7x4", "7x2x2"), "max_length": 5, "tie_embeddings": "source_target", "pad_id": 5,
                "bos_id": 0, "eos_id": 7,
            },
        },
    ),
    "universal": Tiny(
        SYSTEMS["universal"].config(**UNIVERSAL, max_length=40, max_position_offset=5), PAIRS,
        {
            "halting": {"act": True, "act_max_steps": 5, "act_epsilon": 0.1},
            "halting, accumulated": {
                "act": True, "act_max_steps": 6, "act_epsilon": 0.01, "act_mixing": "accumulated", "norm_position": "pre",
            },
            "pre-norm, steps learnt": {
                "norm_position": "pre", "step_embedding": "learned", "position_embedding": "halves", "pad_id": 5, "bos_id": 0,
            },
        },
    ),
    "universal-encoder": Tiny(
        SYSTEMS["universal-encoder"].config(**UNIVERSAL, max_length=16, pad_id=0, bos_id=2, eos_id=3, mask_id=4), WORDS,
        {
            "halting": {"act": True, "act_max_steps": 5, "act_epsilon": 0.1},
            "halting, accumulated": {"act": True, "act_max_steps": 6, "act_mixing": "accumulated", "norm_position": "pre"},
            "pre-norm, steps learnt": {
                "norm_position": "pre", "step_embedding": "learned", "position_embedding": "halves", "type_vocab_size": 1,
            },
        },
        **TAGS,
    ),
}  # fmt: skip


CASES = [(name, label) for name in SYSTEMS if name in TINY for label in ("as published", *TINY[name].variants)]


def lecture(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and outputs of an example of the lectures."""
    example = json.loads((Path(__file__).parent / "fixtures/lectures.json").read_text("utf-8"))[name]
    given, right = example["inputs"], example["outputs"]
    doubles = partial(torch.tensor, dtype=torch.float64)
    return {key: doubles(given[key]) for key in given}, {key: doubles(right[key]) for key in right}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noisy(module: Any, scale: float = 0.6, seed: int = 1) -> Any:
    """The module in float64 and eval mode with noise as parameters and running statistics, because initial values of 0 or
    1 hide errors."""
    module = module.double().eval()
    running = [(name, buffer) for name, buffer in module.named_buffers() if "running" in name]
    with torch.no_grad():
        for number, (name, tensor) in enumerate((*module.named_parameters(), *running)):
            made = noise(*tensor.shape, seed=1000 * seed + number)
            tensor.copy_(0.5 + made.abs() if name.endswith("running_var") else scale * made)
    return module


def tiny(name: str, label: str = "as published", seed: int = 1, **changes: Any) -> Model:
    """A model with random weights for a variant of a system."""
    system = SYSTEMS[name]
    config = replace(TINY[name].config, **{**TINY[name].variants.get(label, {}), **changes})
    task = find_task(TINY[name].task or system.tasks[0], "text")
    return noisy(assemble(ModelSpec(system, config, task, options=HeadOptions(TINY[name].labels))), seed=seed)


def collate(model: Model, samples: Any, rows: Iterable[int] | None = None, packed: bool = False) -> Batch:
    """A batch of all samples or the given rows, collated by the task of the model."""
    encoded = model.task.objective.encode(samples, model.config, EncodingContext(Numbers(), 1000))  # type: ignore[arg-type]
    chosen: Any = range(len(samples)) if rows is None else rows
    lengths = encoded.lengths()
    if model.task.name == "lm":  # rows of this task are spans of one token stream
        stretches = document_spans(encoded)
        chosen, lengths = stretches[list(chosen)], stretches[:, 1] - stretches[:, 0]
    # a shape with room to spare: padding must not change the results
    shape = PackedSampler(lengths, 1024, 0).shape if packed else None
    return model.task.objective.collate(encoded, chosen, model.config, shape)


def near(ours: Tensor, right: Tensor, tolerance: float = 1e-12) -> None:
    assert ours.shape == right.shape and ours.dtype == right.dtype and bool(ours.isfinite().all())
    gap, size = float((ours - right).detach().abs().max()), float(right.detach().abs().max())
    assert gap <= tolerance * size + 1e-15, f"they differ by {gap:.3g}, of {size:.3g}"


def gradients(module: nn.Module, value: Tensor) -> dict[str, Tensor]:
    """Gradients of all parameters that the value depends on."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(value, list(named.values()), retain_graph=True, allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def same_gradients(module: nn.Module, ours: Tensor, right: Tensor, tolerance: float = 1e-10) -> None:
    """Compare outputs of a module and of a reference with the same parameters, and the gradients of all parameters."""
    near(ours, right, tolerance / 10)
    pull = noise(*ours.shape, seed=8)
    found, wanted = (gradients(module, (out * pull).sum()) for out in (ours, right))
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        near(found[name], gradient, tolerance)
