"""Adaptive computation time (Graves 2016, as the Universal Transformer has it): every position says when it has thought enough.

Before each step a position says with which probability p it stops. The probabilities of its steps are added up, and with
the step that brings them above 1 − ε it stops; the share of that last step is what is left to 1, its remainder. What a
position ends with is a mixture of its states after all its steps, by these shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.kernels.linear import Linear

Mixing = Literal["convex", "accumulated"]
HALTING_LR_SCALE = 0.05
"""The share of the rate that gates learn at. A position that stops after its first step has the share 1 and the remainder 1,
whatever p is, so that nothing leads back from there: as fast as the rest, gates are there before later steps are of any use."""
StepFunction = Callable[[Tensor, int], Tensor]
"""States before a step, and its number from 0 on -> states after it."""


@dataclass(frozen=True)
class ACTOutput:
    """What positions ended with, and how long they took; padding took no step."""

    states: Float[Tensor, "B L D"]
    steps: Int[Tensor, "B L"]
    remainders: Float[Tensor, "B L"]

    def ponder_cost(self, valid: Bool[Tensor, "B L"] | None = None) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """The sum of steps and remainders over the positions that are real, and how many these are. What is learnt from are
        the remainders: a number of steps has no slope."""
        spent = self.steps + self.remainders
        if valid is None:
            return spent.sum(), self.steps.new_tensor(spent.numel())
        return torch.where(valid, spent, 0.0).sum(), valid.sum()


class Halting(nn.Module):
    """p = σ(w · state + b), with b = 1 at first, of the state with its coordinates already added.

    With `convex` mixing a step's states replace the given share of what was there (out = new · u + out · (1 − u), as the
    published code does); with `accumulated` they are added by their shares, which sum to 1. Positions that have stopped go on
    being transformed, so that others see them as if they had not; those that have not stopped after `cap` steps get no
    remainder.

    How many steps are computed: on CPUs as many as the slowest position needs, for which all are asked after each step. On
    other devices always `cap`: to ask a GPU would be to wait for it, and a recorded pass has one number of steps. What is
    computed beyond the slowest position has the share 0, so that the results are the same."""

    lr_scales: ClassVar = {"gate.weight": HALTING_LR_SCALE, "gate.bias": HALTING_LR_SCALE}

    def __init__(self, width: int, max_steps: int, epsilon: float = 0.01, mixing: Mixing = "convex") -> None:
        super().__init__()
        self.max_steps, self.threshold, self.mixing = max_steps, 1 - epsilon, mixing
        self.gate = Linear(width, 1)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.ones_(self.gate.bias)

    def halting_probability(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        """At least in float32, whatever the states are in: sums of a few of them are compared with 0.99."""
        kind = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            return F.linear(x.to(kind), self.gate.weight.to(kind), self.gate.bias.to(kind))[..., 0].sigmoid()

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        add_coordinates: StepFunction,
        transition: StepFunction,
        valid: Bool[Tensor, "B L"] | None = None,
        run_all_steps: bool = False,
    ) -> ACTOutput:
        """`place` adds the coordinates of a step, `change` is the step itself. Padding is transformed like all others, but
        nobody waits for it. `whole`: all steps up to the cap, as a memory of them needs."""
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid
        steps = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        run_all_steps = run_all_steps or x.device.type != "cpu" or torch.compiler.is_compiling()
        out: Tensor | None = None
        kind = torch.promote_types(x.dtype, torch.float32)
        halted = remainders = torch.zeros(x.shape[:2], dtype=kind, device=x.device)
        for number in range(self.max_steps):
            if number and not run_all_steps and not bool(running.any()):
                break
            x = add_coordinates(x, number)
            p = self.halting_probability(x)
            x = transition(x, number)
            new = running & (halted + p > self.threshold)
            still, left = running & ~new, 1 - halted
            share = torch.where(still, p, torch.where(new, left, 0.0))
            remainders = torch.where(new, left, remainders)
            halted = halted + torch.where(still, p, 0.0)
            steps, running = steps + running, still
            out = self.mix(out, x, share.to(x.dtype)[..., None])
        assert out is not None
        return ACTOutput(out, steps, remainders)

    def mix(self, out: Tensor | None, new: Tensor, weight: Tensor) -> Tensor:
        if out is None:
            return new * weight
        return out * (1 - weight) + new * weight if self.mixing == "convex" else out + new * weight
