"""Universal Transformer: one block applied several times, with the same weights at every step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.nn.attention.kv_cache import CrossCache, DynamicCache, LayerCache, StaticCache
from regard.nn.attention.masks import AttentionMask
from regard.nn.attention.positions import LearnedPosition, SinusoidalPosition
from regard.nn.blocks.act import ACTOutput, Halting
from regard.nn.blocks.block import TransformerBlock, transformer_block
from regard.nn.blocks.norm import LayerNorm
from regard.nn.recording import uncompiled_while_recording


@dataclass(frozen=True)
class UniversalOutput:
    """Final states, states after the tapped steps, and the output of adaptive computation time."""

    states: Float[Tensor, "B L D"]
    taps: tuple[Tensor, ...] = ()
    act: ACTOutput | None = None


class UniversalStack(nn.Module):
    """Before each step, embeddings of the positions and of the step (`times`: sinusoidal from 1 on, or learned) are
    added. With `halting`, the number of steps is adaptive per position.

    The KV cache has keys and values for each step, and with `halting` for all steps up to the maximum, because a later
    position may take more steps than an earlier position and then attends to keys of all steps."""

    position = None
    """No relative position."""
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
        if halting is not None:
            self.halting = halting
        self.has_act = halting is not None
        self.norm = norm or nn.Identity()

    @property
    def depth(self) -> int:
        """Maximum number of steps, which is the number of KV caches."""
        return self.halting.max_steps if self.has_act else self.steps

    @uncompiled_while_recording
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
    ) -> UniversalOutput:
        """`taps`: steps, from 0. `valid`: False at padding, which is ignored by adaptive computation time."""
        tapped: list[Tensor] = []
        rules = mask if isinstance(mask, Sequence) else [mask] * self.depth
        first = int(isinstance(self.times, SinusoidalPosition))  # the paper counts steps from 1
        times = self.times(torch.arange(first, first + self.depth, device=x.device))

        def place(x: Tensor, number: int) -> Tensor:
            return x + (position_embeddings + times[number]).to(x.dtype)

        def change(x: Tensor, number: int) -> Tensor:
            kept = None if cache is None else cache[number]
            x = self.block(x, context, mask=rules[number], context_mask=context_mask, cache=kept, at=at)
            if number in taps:
                tapped.append(x)
            return x

        if self.has_act:
            pondered = self.halting(x, place, change, valid, run_all_steps=cache is not None or bool(taps))
            return UniversalOutput(self.norm(pondered.states), tuple(tapped), pondered)
        for number in range(self.steps):
            x = change(place(x, number), number)
        return UniversalOutput(self.norm(x), tuple(tapped))

    def cross_kv(self, context: Float[Tensor, "B K C"]) -> list[CrossCache]:
        """A single cache for all steps, because the weights are shared."""
        return [self.block.cross_kv(context)] * self.depth

    def make_caches(self, x: Float[Tensor, "B L D"], max_cache_len: int | None = None) -> list[LayerCache]:
        """Empty caches for rows like x: growing, or of fixed shape with `max_cache_len`."""
        attention: Any = self.block.attend.inner
        k, v = attention.project(x[:, :0])[1:]
        return [
            LayerCache(DynamicCache(k, v) if max_cache_len is None else StaticCache(max_cache_len).allocate(k, v))
            for _ in range(self.depth)
        ]


def max_steps(config: Any) -> int:
    """Maximum number of steps."""
    return int(config.act_max_steps or 2 * config.num_steps) if config.act else int(config.num_steps)


def make_universal_stack(config: Any, decoder: bool) -> UniversalStack:
    """Encoder or decoder stack of a Universal Transformer from a config."""
    block = transformer_block(
        config.width, config.heads, config.ffn_dim, cross=decoder, norm=config.norm_position, activation=config.activation,
        dropout=config.dropout, attention_dropout=config.attention_dropout, feed_dropout=config.ffn_dropout,
    )  # fmt: skip
    most, learned = max_steps(config), config.step_embedding == "learned"
    times = (
        LearnedPosition(most, config.width) if learned else SinusoidalPosition(config.width, config.position_embedding)
    )
    halting = Halting(config.width, most, config.act_epsilon, config.act_mixing) if config.act else None
    return UniversalStack(
        block, config.num_steps, times, LayerNorm(config.width) if config.norm_position == "pre" else None, halting
    )
