"""Adaptive computation time against a loop over single positions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.nn.blocks.universal import Halting, Mixing
from tiny import near, noise, noisy

B, L, D = 3, 5, 4


def world(cap: int, epsilon: float, mixing: Mixing = "convex", seed: int = 1) -> tuple[Halting, Any, Any, Tensor]:
    """Halting module, coordinates and steps that mix positions, so that halted positions influence others."""
    halting = noisy(Halting(D, cap, epsilon, mixing), scale=0.8, seed=seed)
    times, wheres = noise(cap, D, seed=7), noise(L, D, seed=8)
    matrix, mix = noise(D, D, seed=9), noise(L, L, seed=10) * 0.4

    def place(x: Tensor, number: int) -> Tensor:
        return x + wheres + times[number]

    def change(x: Tensor, number: int) -> Tensor:
        return torch.tanh(mix @ x @ matrix)

    return halting, place, change, noise(B, L, D, seed=11 + seed)


def by_hand(
    halting: Halting, place: Any, change: Any, x: Tensor, real: np.ndarray, epsilon: float
) -> tuple[np.ndarray, ...]:
    """All states of all steps first, then a loop over positions with plain numbers."""
    weight, bias = halting.gate.weight.detach().numpy()[0], float(halting.gate.bias.detach())
    befores, afters = [], []
    for number in range(halting.max_steps):
        x = place(x, number)
        befores.append(x.detach().numpy())
        x = change(x, number)
        afters.append(x.detach().numpy())
    out, steps, rests = np.zeros((B, L, D)), np.zeros((B, L), dtype=int), np.zeros((B, L))
    for b, i in itertools.product(range(B), range(L)):
        halt, rest, taken, state = 0.0, 0.0, 0, np.zeros(D)
        while real[b, i] and halt < 1.0 and taken < halting.max_steps:
            p = 1 / (1 + np.exp(-(float(befores[taken][b, i] @ weight) + bias)))
            if halt + p > 1 - epsilon:
                rest = 1 - halt
                u, halt = rest, 1.0
            else:
                u, halt = p, halt + p
            f = afters[taken][b, i]
            state = f * u + state * (1 - u) if halting.mixing == "convex" else state + f * u
            taken += 1
        out[b, i], steps[b, i], rests[b, i] = state, taken, rest
    return out, steps, rests


@pytest.mark.parametrize("mixing", ["convex", "accumulated"])
@pytest.mark.parametrize(("cap", "epsilon"), [(1, 0.01), (2, 0.01), (6, 0.2), (9, 0.01)])
def test_positions_halt_as_in_a_loop(mixing: Mixing, cap: int, epsilon: float) -> None:
    halting, place, change, x = world(cap, epsilon, mixing)
    real = torch.arange(L) < torch.tensor([5, 2, 4])[:, None]
    for marks, whole in itertools.product((None, real), (False, True)):
        wanted = np.ones((B, L), dtype=bool) if marks is None else marks.numpy()
        out, steps, rests = by_hand(halting, place, change, x, wanted, epsilon)
        ours = halting(x, place, change, marks, whole)
        assert np.array_equal(ours.steps.numpy(), steps)
        near(ours.states, torch.from_numpy(out))
        near(ours.remainders, torch.from_numpy(rests))
        total, count = ours.ponder_cost(marks)
        assert count == wanted.sum() and total.item() == pytest.approx((steps + rests)[wanted].sum())
    if cap == 9:
        assert len(set(steps[wanted])) > 2, "positions must have different numbers of steps"
    if cap == 2:
        assert (rests[wanted] == 0).any(), "some positions must reach the limit without a remainder"


def test_no_step_is_computed_that_no_position_needs() -> None:
    halting, place, change, x = world(9, 0.2)
    taken: list[int] = []

    def counted(x: Tensor, number: int) -> Tensor:
        taken.append(number)
        return change(x, number)

    real = torch.arange(L) < torch.tensor([2, 1, 3])[:, None]
    most = int(halting(x, place, counted, real).steps.max())
    assert len(taken) == most < 9
    taken.clear()
    halting(x, place, counted, real, run_all_steps=True)
    assert len(taken) == 9


@pytest.mark.parametrize("mixing", ["convex", "accumulated"])
def test_gradients_of_states_and_cost_are_finite_differences(mixing: Mixing) -> None:
    halting, place, change, x = world(6, 0.1, mixing, seed=3)
    real = torch.arange(L) < torch.tensor([5, 2, 4])[:, None]
    wanted = noise(B, L, D, seed=20)

    def value(x: Tensor, *_: Tensor) -> Tensor:
        found = halting(x, place, change, real)
        return (found.states * wanted).sum() + 0.7 * found.ponder_cost(real)[0]

    assert torch.autograd.gradcheck(value, (x.requires_grad_(), *halting.parameters()))


def test_halting_is_decided_in_float32_however_states_are_kept() -> None:
    halting = Halting(16, 4)
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(halting.halting_probability(x), halting.halting_probability(x.clone()))
        assert halting.halting_probability(x.bfloat16()).dtype == torch.float32
    near(halting.halting_probability(x.bfloat16()), halting.halting_probability(x.bfloat16().float()))
