"""Adaptive computation time (Graves 2016) as in the Universal Transformer: a number of steps per position.

Before each step, a position computes a halting probability p. The position halts at the step at which the sum of its
probabilities exceeds 1 − ε. The weight of a step is p, and the weight of the last step is the remainder to 1. The
output is a mixture of the states after all steps by these weights.
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
"""Factor of the learning rate for halting gates. A position that halts after its first step has weight 1 and remainder 1 for
any p, so its gate gets no gradient: with the full learning rate, gates reach that state before later steps are useful."""
StepFunction = Callable[[Tensor, int], Tensor]
"""States before a step, index of the step -> states after the step."""


@dataclass(frozen=True)
class ACTOutput:
    """States, number of steps and remainder of each position; padding has 0 steps."""

    states: Float[Tensor, "B L D"]
    steps: Int[Tensor, "B L"]
    remainders: Float[Tensor, "B L"]

    def ponder_cost(self, valid: Bool[Tensor, "B L"] | None = None) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """Sum of steps and remainders over valid positions, and their number. Only the remainders have a gradient."""
        spent = self.steps + self.remainders
        if valid is None:
            return spent.sum(), self.steps.new_tensor(spent.numel())
        return torch.where(valid, spent, 0.0).sum(), valid.sum()


class Halting(nn.Module):
    """p = σ(w · state + b) of the state with coordinates added; b is initialized to 1.

    With `convex` mixing, out = new · u + out · (1 − u), as in the published code; with `accumulated`, out = Σ new · u,
    where the weights u sum to 1. Halted positions are still transformed, and other positions attend to their new
    states; positions that have not halted after `max_steps` steps get no remainder.

    On CPUs, steps are computed until all positions have halted. On other devices always `max_steps` steps are computed,
    because the check would synchronize with the GPU and a captured CUDA graph has a fixed number of steps. Additional
    steps have weight 0, so the results are equal."""

    lr_scales: ClassVar = {"gate.weight": HALTING_LR_SCALE, "gate.bias": HALTING_LR_SCALE}

    def __init__(self, width: int, max_steps: int, epsilon: float = 0.01, mixing: Mixing = "convex") -> None:
        super().__init__()
        self.max_steps, self.threshold, self.mixing = max_steps, 1 - epsilon, mixing
        self.gate = Linear(width, 1)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.ones_(self.gate.bias)

    def halting_probability(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        """In float32 or wider for any dtype of x, because sums of a few probabilities are compared with 0.99."""
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
        """`add_coordinates` adds the coordinates of a step, `transition` computes the step. Padding is transformed too,
        but is not checked for halting. `run_all_steps`: compute `max_steps` steps, as a KV cache requires."""
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
