"""Language models for tests of generation, prompts, settings, and a comparison of hypotheses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.decode.cuda_graphs import graphed_search
from regard.decode.searches import Hypothesis, SearchInputs
from regard.decode.settings import DecodeSettings
from regard.systems import gpt3
from regard.types import Batch, Body, StateSizes
from tiny import noise, noisy

V, END = 13, 0


@dataclass
class Sums:
    total: Tensor
    positions: Tensor

    def expand_beams(self, beams: int) -> None:
        self.select_rows(torch.arange(len(self.positions)).repeat_interleave(beams))

    def reorder(self, rows: Tensor) -> None:
        self.total.copy_(self.total[rows])

    def select_rows(self, rows: Tensor) -> None:
        self.total, self.positions = self.total[rows], self.positions[rows]

    def tensors(self) -> list[Tensor]:
        return [self.total, self.positions]


class Talk(Body):
    """Logits depend on position, last token and the sum of the past, so mixed-up rows or positions change the output."""

    def __init__(self, vocab_size: int = V, seed: int = 1, sharp: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Parameter(sharp * noise(16, vocab_size, vocab_size, seed=seed))
        self.echo = nn.Parameter(sharp * noise(5, vocab_size, seed=seed + 1000))
        self.calls: list[int] = []
        """Number of rows of each step."""

    def start(self, batch: Batch, max_cache_len: int | None = None) -> Sums:
        self.calls.clear()
        lengths = batch.prompt_lengths
        B, P = batch.prompt.shape
        at = (torch.full((B,), P) if lengths is None else lengths) - 1
        places = torch.arange(P)
        return Sums((batch.prompt * (places + 1) * (places < at[:, None])).sum(1), at.clone())

    def state_sizes(self, batch: Batch) -> StateSizes:
        return StateSizes(self.table.shape[-1], per_beam=1)

    def step(self, tokens: Tensor, state: Sums) -> Tensor:
        self.calls.append(len(tokens))
        state.total += tokens * (state.positions + 1)
        logits = self.table[state.positions % 16, tokens] + self.echo[state.total % 5]
        state.positions += 1
        return logits


def lively(body: Any) -> Any:
    """The model with random weights scaled to prevent generation from repeating a single token."""
    body = noisy(body, 0.6, seed=4)
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.mul_(0.1)
            elif name == "position.table.weight":
                parameter.mul_(2.0)
        body.tokens.table.weight.copy_(2 * nn.functional.normalize(body.tokens.table.weight, dim=1))
    return body


def small(length: int = 300) -> Any:
    """A tiny GPT-3: every other layer attends to the last three tokens."""
    sizes: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "vocab_size": V}
    return lively(gpt3.build(gpt3.Config(**sizes, max_length=length, eos_id=END, local_window=3)))


def follow(body: Any, past: list[int]) -> Tensor:
    """Logits of the next token after `past`, computed without the search under test."""
    with torch.inference_mode():
        if isinstance(body, Talk):
            return body.step(torch.tensor(past[-1:]), body.start(Batch(torch.tensor([past]))))[0]
        return body.to_logits(body(Batch(torch.tensor([past]))).sequence)[0, -1]


BODIES: dict[str, Callable[[], Any]] = {"toy": Talk, "gpt3": small}

PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [5], [12, 2], [3, 3, 3, 3], [9, 1, 4, 7, 7, 1]]
LIMITS = [4, 9, 1, 12, 7]
WAYS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.4},
    {"do_sample": True, "seed": 3},
    {
        "do_sample": True, "num_return_sequences": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5,
        "repetition_penalty": 1.3,
    },
    {"num_beams": 3, "num_return_sequences": 3},
    {"num_beams": 2, "num_return_sequences": 2, "repetition_penalty": 0.6, "early_stopping": "never"},
    {"forced_eos": True},
    {"num_beams": 3, "num_return_sequences": 2, "early_stopping": "always", "forced_eos": True},
]  # fmt: skip
STREAMS = [
    {},
    {"forced_eos": True},
    {"repetition_penalty": 1.4},
    {"do_sample": True, "seed": 5},
    {"do_sample": True, "top_k": 4, "temperature": 1.3},
]


def padded(prompts: list[list[int]], filling: int = 2) -> Batch:
    """A batch padded with a valid token id, so any use of padding changes the output."""
    x = torch.full((len(prompts), max(map(len, prompts))), filling)
    for row, prompt in zip(x, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return Batch(x, torch.tensor([len(prompt) for prompt in prompts]))


Asked = tuple[Batch, int, Tensor, DecodeSettings, np.ndarray]


def asked(rows: list[int], **way: Any) -> Asked:
    limits = torch.tensor([LIMITS[row] for row in rows])
    return padded([PROMPTS[row] for row in rows]), END, limits, DecodeSettings(**way), np.array(rows)


def fixed(body: Any, asked: Asked, **more: Any) -> list[list[Hypothesis]]:
    """Hypotheses of the CUDA graph search, run without capture."""
    with torch.inference_mode():
        found = graphed_search(SearchInputs(body, *asked), capture=False, **more)
    assert found is not None
    return found


def agree(ours: list[list[Hypothesis]], right: list[list[Hypothesis]], tolerance: float = 1e-10) -> None:
    assert [[(f.tokens, f.finish_reason) for f in options] for options in ours] == [
        [(f.tokens, f.finish_reason) for f in options] for options in right
    ]
    for mine, theirs in zip(ours, right, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.score == pytest.approx(b.score, rel=tolerance, abs=tolerance)
            assert a.log_probs == pytest.approx(b.log_probs, rel=tolerance, abs=tolerance)


def enough(row: int, tokens: list[int]) -> bool:
    """Stopping criterion that depends on the row and the last two tokens."""
    return len(tokens) > 1 and (tokens[-1] + tokens[-2] + row) % 4 == 0
