"""Residual, Feed, Block, Stack: attention becomes a network here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard import capabilities
from regard.nn.attention.attention import Attention
from regard.nn.attention.kv_cache import Fixed, Frozen, Growing, LayerMemory
from regard.nn.attention.masks import Rule
from regard.nn.attention.relative_positions import Inside, Placed, Standing
from regard.nn.blocks.losses import read_cross_entropy
from regard.nn.blocks.norm import RMS, Norm
from regard.nn.kernels.linear import Linear, linear
from regard.nn.kernels.linear_gelu import fused

Placement = Literal["pre", "post"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Residual(nn.Module):
    """x + inner(x), and where the norm stands: `post` LN(x + inner(x)) as in 2017, `pre` x + inner(LN(x)), None nowhere.

    `kind` is the norm itself: Norm, or RMS."""

    def __init__(
        self, inner: nn.Module, width: int, norm: Placement | None = "post", dropout: float = 0.0, eps: float = 1e-5,
        kind: type[Norm] | type[RMS] = Norm,
    ) -> None:  # fmt: skip
        super().__init__()
        self.inner, self.placement = inner, norm
        self.norm = nn.Identity() if norm is None else kind(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*rows D"], *args: Any, **kwargs: Any) -> Float[Tensor, "*rows D"]:
        if self.placement == "pre":
            return x + self.more(self.norm(x), *args, **kwargs)
        added = self.more(x, *args, **kwargs)
        return x + added if self.placement is None else self.norm(x, added)

    def more(self, x: Float[Tensor, "*rows D"], *args: Any, **kwargs: Any) -> Float[Tensor, "*rows D"]:
        """What is added."""
        return self.dropout(self.inner(x, *args, **kwargs))


class Feed(nn.Module):
    """Two matrices with a non-linearity between, at each position alone: equation 2."""

    def __init__(
        self, width: int, hidden: int, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.up, self.down = Linear(width, hidden, bias), Linear(hidden, width, bias)
        self.kind, self.activation = activation, ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for layer in (self.up, self.down):
            nn.init.xavier_uniform_(layer.weight)
            if bias:
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        made = fused(x, self.up.weight, self.up.bias, self.kind)
        return self.down(self.dropout(self.activation(self.up(x)) if made is None else made))


class Block(nn.Module):
    """attend, optionally cross, feed; each inside a Residual."""

    def __init__(self, attend: Residual, feed: Residual, cross: Residual | None = None) -> None:
        super().__init__()
        self.attend = attend
        if cross is not None:
            self.cross = cross
        self.feed = feed
        self.crosses = cross is not None

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *, rule: Rule | None = None,
        context_rule: Rule | None = None, memory: LayerMemory | None = None, where: Int[Tensor, "..."] | None = None,
        inside: Placed | None = None,
    ) -> Float[Tensor, "B L D"]:  # fmt: skip
        if inside is not None:
            own = None if memory is None else memory.attend
            x = self.attend(x, rule=rule, memory=own, where=where, inside=inside)
        else:
            if memory is not None and where is not None and x.is_cuda and capabilities.available("triton"):
                from regard.nn.blocks import decode_block

                band = decode_block.band_of(self, x, memory.attend, rule, where)
                if band is not None:
                    return decode_block.step(self, x, memory.attend, where, band)  # type: ignore[arg-type]
            if torch.compiler.is_compiling() and memory is None and self._joins():
                norm: Any = self.feed.norm
                x, normed = norm.added(x, self.attend.more(self.attend.norm(x), rule=rule, where=where))
                return x + self.feed.more(normed)
            x = self.attend(x, rule=rule, memory=None if memory is None else memory.attend, where=where)
        if self.crosses:
            x = self.cross(x, context, rule=context_rule, memory=None if memory is None else memory.cross)
        return self.feed(x)

    def _joins(self) -> bool:
        """attend and feed with their norms before them, and nobody listens to these: the sum and norm between them may be one
        operator."""
        attend, feed = self.attend, self.feed
        plain = type(attend) is type(feed) is Residual and attend.placement == feed.placement == "pre"
        quiet = not any(part._forward_hooks or part._forward_pre_hooks for part in (attend, feed, feed.norm))
        return plain and quiet and type(feed.norm) is Norm and not self.crosses

    def regarded(self, context: Float[Tensor, "B K C"]) -> Frozen:
        """Keys and values of the context, made once for all steps of a decoding."""
        attention: Any = self.cross.inner
        k, v = attention.keys(context)
        return Frozen((k.contiguous(), v.contiguous()))  # read again at every step: they lie together


class Stack(nn.Module):
    """Blocks one after another, with a last norm where the system has one.

    `position` acts inside the self-attention of the blocks: one for all of them, or one for each."""

    def __init__(
        self, blocks: Sequence[nn.Module], norm: nn.Module | None = None,
        position: Inside | Sequence[Inside] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm or nn.Identity()
        self.position = position if position is None or isinstance(position, Inside) else nn.ModuleList(position)
        for block, own in zip(self.blocks, self.positions(), strict=True):
            if own is not None:
                own.check(*_heads(block))

    def positions(self) -> Sequence[Inside | None]:
        """What acts inside each block."""
        several: Any = self.position
        return [*several] if isinstance(self.position, nn.ModuleList) else [several] * len(self.blocks)

    @property
    def depth(self) -> int:
        """Memories that one more token writes into."""
        return len(self.blocks)

    @property
    def measures(self) -> bool:
        """Whether a step must be told where the keys stand."""
        return self.position is not None and any(own is not None and own.measures for own in self.positions())

    def forward(
        self, x: Float[Tensor, "B L D"], context: Float[Tensor, "B K C"] | None = None, *,
        rule: Rule | Sequence[Rule | None] | None = None, context_rule: Rule | None = None,
        memory: Sequence[LayerMemory] | None = None, where: Int[Tensor, "..."] | None = None, taps: Collection[int] = (),
        standing: Standing | None = None,
    ) -> tuple[Float[Tensor, "B L D"], tuple[Tensor, ...]]:  # fmt: skip
        """The last states, and the states after the blocks numbered in `taps` (before the last norm).

        `rule` is one for all blocks, or one for each. `standing`: where x and what it looks at stand, for positions inside
        attention; None: in their columns."""
        tapped: list[Tensor] = []
        rules = rule if isinstance(rule, Sequence) else [rule] * len(self.blocks)
        inside = None if self.position is None else self._placed(memory, where, standing)
        for number, block in enumerate(self.blocks):
            kept = None if memory is None else memory[number]
            call = block if inside is None else functools.partial(block, inside=inside[number])
            x = call(x, context, rule=rules[number], context_rule=context_rule, memory=kept, where=where)
            if number in taps:
                tapped.append(x)
        return self.norm(x), tuple(tapped)

    def _placed(
        self, memory: Sequence[LayerMemory] | None, where: Tensor | None, standing: Standing | None
    ) -> list[Placed]:
        if standing is None:
            if where is None and memory is not None and memory[0].attend.begun:
                raise ValueError("positions inside attention must be told where the next tokens of a memory stand")
            standing = Standing(where)
        return [Placed(own, standing) for own in self.positions() if own is not None]

    def regarded(self, context: Float[Tensor, "B K C"]) -> list[Frozen]:
        blocks: Any = self.blocks
        return [block.regarded(context) for block in blocks]

    def memories(self, x: Float[Tensor, "B L D"], room: int | None = None) -> list[LayerMemory]:
        """Of rows like these that have read nothing yet: growing ones, or fixed ones with `room`."""
        blocks: Any = self.blocks
        empty = [block.attend.inner.project(x[:, :0])[1:] for block in blocks]
        return [LayerMemory(Growing(k, v) if room is None else Fixed(room).made(k, v)) for k, v in empty]


def _heads(block: nn.Module) -> tuple[int, int]:
    """How many heads a block has and how wide they are; a position acts inside our own attention only."""
    attention = block.attend.inner if isinstance(block, Block) else None
    if not isinstance(attention, Attention) or attention.crossing:
        raise ValueError(f"a position acts inside the self-attention of a Block, and {type(block).__name__} has none")
    return attention.heads, attention.width // attention.heads


def vaswani_block(
    width: int, heads: int, hidden: int, *, cross: bool = False, norm: Placement = "post", activation: str = "relu",
    dropout: float = 0.0, attention_dropout: float = 0.0, feed_dropout: float = 0.0, eps: float = 1e-5,
) -> Block:  # fmt: skip
    """The block of 2017 from its sizes; `cross` makes it a decoder's."""

    def residual(inner: nn.Module) -> Residual:
        return Residual(inner, width, norm, dropout, eps)

    return Block(
        attend=residual(Attention(width, heads, dropout=attention_dropout)),
        cross=residual(Attention(width, heads, context=width, dropout=attention_dropout)) if cross else None,
        feed=residual(Feed(width, hidden, activation, feed_dropout)),
    )


class Tokens(nn.Module):
    """Token embeddings that are also the output matrix. The one accessor of tied weights is `read`."""

    def __init__(self, vocabulary: int, width: int, scaled: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.scale = width**0.5 if scaled else 1.0
        if bias:
            self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.biased = bias
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, ids: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        return self.table(ids) * self.scale

    def read(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
        """States -> logits, by the same matrix."""
        return linear(x, self.table.weight, self.bias if self.biased else None)

    def cross_entropy(
        self, x: Float[Tensor, "*rows D"], labels: Int[Tensor, "*rows"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
        """(sum, count) of the loss of `read(x)`, which need not be kept to learn from it."""
        return read_cross_entropy(x, self.table.weight, self.bias if self.biased else None, labels, smoothing)
