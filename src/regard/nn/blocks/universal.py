"""Universal Transformer: one block applied several times, with the same weights at every step, and adaptive computation
time (Graves 2016), which chooses the number of steps per position.

Before each step, a position computes a halting probability p. The position halts at the step at which the sum of its
probabilities exceeds 1 − ε. The weight of a step is p, and the weight of the last step is the remainder to 1. The
output is a mixture of the states after all steps by these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.attention.kv_cache import LayerCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.positions import LearnedPosition, SinusoidalPosition
from regard.nn.blocks.block import TransformerBlock, transformer_block
from regard.nn.kernels.linear import Linear
from regard.nn.recording import keep_state, recorded

Mixing = Literal["convex", "accumulated"]
HALTING_LR_SCALE = 0.05
"""Factor of the learning rate for halting gates. A position that halts after its first step has weight 1 and remainder 1 for
any p, so its gate gets no gradient: with the full learning rate, gates reach that state before later steps are useful."""
StepFunction = Callable[[Tensor, int], Tensor]  # States before a step, index of the step -> states after the step.


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


class UniversalStack(nn.Module):
    """Before each step, embeddings of the positions and of the step (`times`: sinusoidal from 1 on, or learned) are
    added. With `halting`, the number of steps is adaptive per position.

    The KV cache has keys and values for each step, and with `halting` for all steps up to the maximum, because a later
    position may take more steps than an earlier position and then attends to keys of all steps."""

    position = None  # No relative position.
    has_bias = False

    def __init__(
        self,
        block: TransformerBlock,
        steps: int,
        step_embedding: SinusoidalPosition | LearnedPosition,
        norm: nn.Module | None = None,
        halting: Halting | None = None,
    ) -> None:
        super().__init__()
        self.block, self.steps, self.times = block, steps, step_embedding
        self.halting = halting
        self.norm = norm or nn.Identity()

    @property
    def depth(self) -> int:
        """Maximum number of steps."""
        return self.steps if self.halting is None else self.halting.max_steps

    @property
    def blocks(self) -> list[TransformerBlock]:
        """The block of each step; each step has a KV cache."""
        return [self.block] * self.depth

    @recorded
    def forward(
        self,
        x: Float[Tensor, "B L D"],
        position_embeddings: Float[Tensor, "..."],
        context: Float[Tensor, "B K D"] | None = None,
        *,
        mask: AttentionMask | Sequence[AttentionMask | None] | None = None,
        context_mask: AttentionMask | None = None,
        cache: Sequence[LayerCache] | None = None,
        at: Int[Tensor, "..."] | None = None,
        taps: Collection[int] = (),
        valid: Bool[Tensor, "B L"] | None = None,
    ) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...], ACTOutput | None]:
        """Final states, the states after the steps `taps` (from 0), and the output of adaptive computation time. `valid`:
        False at padding, which is ignored by adaptive computation time."""
        tapped: list[Tensor] = []
        keep_state(self, x)
        rules = mask if isinstance(mask, Sequence) else [mask] * self.depth
        first = int(isinstance(self.times, SinusoidalPosition))  # the paper counts steps from 1
        times = self.times(torch.arange(first, first + self.depth, device=x.device))

        def place(x: Tensor, number: int) -> Tensor:
            return x + (position_embeddings + times[number]).to(x.dtype)

        def change(x: Tensor, number: int) -> Tensor:
            kept = None if cache is None else cache[number]
            x = self.block(x, context, mask=rules[number], context_mask=context_mask, cache=kept, at=at)
            keep_state(self, x)
            if number in taps:
                tapped.append(x)
            return x

        if self.halting is not None:
            pondered = self.halting(x, place, change, valid, run_all_steps=cache is not None or bool(taps))
            return self.norm(pondered.states), tuple(tapped), pondered
        for number in range(self.steps):
            x = change(place(x, number), number)
        return self.norm(x), tuple(tapped), None


def max_steps(config: Any) -> int:
    """Maximum number of steps."""
    return int(config.act_max_steps or 2 * config.num_steps) if config.act else int(config.num_steps)


def make_universal_stack(config: Any, decoder: bool) -> UniversalStack:
    """Encoder or decoder stack of a Universal Transformer from a config."""
    block = transformer_block(
        config.width,
        config.heads,
        config.ffn_dim,
        cross=decoder,
        norm=config.norm_position,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        feed_dropout=config.ffn_dropout,
    )
    most, learned = max_steps(config), config.step_embedding == "learned"
    times = (
        LearnedPosition(most, config.width) if learned else SinusoidalPosition(config.width, config.position_embedding)
    )
    halting = Halting(config.width, most, config.act_epsilon, config.act_mixing) if config.act else None
    return UniversalStack(
        block, config.num_steps, times, nn.LayerNorm(config.width) if config.norm_position == "pre" else None, halting
    )
