"""One block again and again: depth is a number of steps, and all of them have the same weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import SettingError
from regard.nn.attention.kv_cache import Fixed, Frozen, Growing, LayerMemory
from regard.nn.attention.masks import Rule
from regard.nn.attention.positions import Learned, Sinusoid
from regard.nn.blocks.act import Halting, Pondered
from regard.nn.blocks.block import Block, vaswani_block
from regard.nn.blocks.norm import Norm


@dataclass(frozen=True)
class Ran:
    """What a row of steps ended with."""

    states: Float[Tensor, "B L D"]
    taps: tuple[Tensor, ...] = ()
    pondered: Pondered | None = None


class Repeated(nn.Module):
    """Before each step the coordinates of every position are added: where it stands (`places`), and which step it is (`times`:
    sines of 1, 2, …, or vectors that are learnt). With `halting` each position stops by itself.

    A memory of such a decoder has keys and values for each step. Where positions stop by themselves it has them for all
    steps up to the cap: a later position may go on for longer than an earlier one did, and sees it as it would be then."""

    position = None
    """nothing acts inside attention"""
    measures = False

    def __init__(
        self, block: Block, steps: int, times: Sinusoid | Learned, norm: nn.Module | None = None,
        halting: Halting | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.block, self.steps, self.times = block, steps, times
        if halting is not None:
            self.halting = halting
        self.halts = halting is not None
        self.norm = norm or nn.Identity()

    @property
    def depth(self) -> int:
        """Steps that there may be, and memories that one more token writes into."""
        return self.halting.cap if self.halts else self.steps

    def forward(
        self, x: Float[Tensor, "B L D"], places: Float[Tensor, "..."], context: Float[Tensor, "B K D"] | None = None, *,
        rule: Rule | Sequence[Rule | None] | None = None, context_rule: Rule | None = None,
        memory: Sequence[LayerMemory] | None = None, where: Int[Tensor, "..."] | None = None, taps: Collection[int] = (),
        real: Bool[Tensor, "B L"] | None = None,
    ) -> Ran:  # fmt: skip
        """`taps` are steps, from 0 on. `real`: positions that are not padding, which have a say in when it is enough."""
        tapped: list[Tensor] = []
        rules = rule if isinstance(rule, Sequence) else [rule] * self.depth
        first = int(isinstance(self.times, Sinusoid))  # the paper counts steps from 1
        times = self.times(torch.arange(first, first + self.depth, device=x.device))

        def place(x: Tensor, number: int) -> Tensor:
            return x + (places + times[number]).to(x.dtype)

        def change(x: Tensor, number: int) -> Tensor:
            kept = None if memory is None else memory[number]
            x = self.block(x, context, rule=rules[number], context_rule=context_rule, memory=kept, where=where)
            if number in taps:
                tapped.append(x)
            return x

        if self.halts:
            pondered = self.halting(x, place, change, real, whole=memory is not None or bool(taps))
            return Ran(self.norm(pondered.states), tuple(tapped), pondered)
        for number in range(self.steps):
            x = change(place(x, number), number)
        return Ran(self.norm(x), tuple(tapped))

    def regarded(self, context: Float[Tensor, "B K C"]) -> list[Frozen]:
        """One for all steps, which share the weights that make it."""
        return [self.block.regarded(context)] * self.depth

    def memories(self, x: Float[Tensor, "B L D"], room: int | None = None) -> list[LayerMemory]:
        """Of rows like these that have read nothing yet: growing ones, or fixed ones with `room`."""
        attention: Any = self.block.attend.inner
        k, v = attention.project(x[:, :0])[1:]
        return [LayerMemory(Growing(k, v) if room is None else Fixed(room).made(k, v)) for _ in range(self.depth)]


def check_repeated(config: Any) -> None:
    """Refuse steps that cannot be taken."""
    for name in ("cap", "ponder"):
        if getattr(config, name) < 0:
            raise SettingError(f"model.{name} must be at least 0, not {getattr(config, name)}.")
    if not 0 < config.epsilon < 1:
        raise SettingError(f"model.epsilon must lie between 0 and 1, not {config.epsilon}.")


def most_steps(config: Any) -> int:
    """Steps at most."""
    return int(config.cap or 2 * config.steps) if config.halting else int(config.steps)


def repeated(config: Any, cross: bool) -> Repeated:
    """One side of a Universal Transformer, from the sizes of a config; `cross`: that of a decoder."""
    block = vaswani_block(
        config.width, config.heads, config.hidden, cross=cross, norm=config.norm, activation=config.activation,
        dropout=config.dropout, attention_dropout=config.attention_dropout, feed_dropout=config.feed_dropout,
    )  # fmt: skip
    most, learned = most_steps(config), config.times == "learned"
    times = Learned(most, config.width) if learned else Sinusoid(config.width, config.positions)
    halting = Halting(config.width, most, config.epsilon, config.mixing) if config.halting else None
    return Repeated(block, config.steps, times, Norm(config.width) if config.norm == "pre" else None, halting)
