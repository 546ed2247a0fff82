"""The one attention: project -> attend -> out. Each of the three can be called on its own.

Shape letters: B batch, Q queries, K keys, H heads, D width, d head width, C width of the context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.nn.attention.kv_cache import Fixed, Memory
from regard.nn.attention.masks import Rule, Written
from regard.nn.attention.relative_positions import Placed
from regard.nn.kernels import dispatch
from regard.nn.kernels.linear import Linear
from regard.types import Look, Seen


@dataclass(frozen=True)
class Dot:
    """score = q · k · scale; the scale is 1/√d, and a temperature divides it further (a high one flattens)."""

    scale: float | None = None
    temperature: float = 1.0

    def factor(self, head_width: int) -> float:
        return (head_width**-0.5 if self.scale is None else self.scale) / self.temperature


class Attention(nn.Module):
    """`Attention(width, heads)` is Vaswani's self-attention; with `context`, the width of what is regarded, it is cross.

    Self-attention has one matrix `qkv`, cross-attention `q` and `kv`; the name tables split and join them.
    """

    def __init__(
        self, width: int, heads: int, context: int | None = None, bias: bool = True, dropout: float = 0.0,
        score: Dot | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} cannot be divided among {heads} heads")
        self.width, self.heads, self.dropout, self.score = width, heads, dropout, score or Dot()
        if context is None:
            self.qkv = Linear(width, 3 * width, bias)
        else:
            self.q = Linear(width, width, bias)
            self.kv = Linear(context, 2 * width, bias)
        self.crossing = context is not None
        self.out = Linear(width, width, bias)
        self.reset()

    def reset(self) -> None:
        """Xavier for each of q, k, v and out as a matrix of its own, however they are stored."""
        joined = (self.q.weight, *self.kv.weight.chunk(2)) if self.crossing else self.qkv.weight.chunk(3)
        for matrix in (*joined, self.out.weight):
            nn.init.xavier_uniform_(matrix)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def split(self, x: Float[Tensor, "B L D"], parts: int) -> tuple[Tensor, ...]:
        """(B, L, parts · D) -> `parts` tensors (B, H, L, d)."""
        B, L, _ = x.shape
        return tuple(x.view(B, L, parts, self.heads, self.width // self.heads).permute(2, 0, 3, 1, 4))

    def query(self, x: Float[Tensor, "B Q D"]) -> Float[Tensor, "B H Q d"]:
        return self.split(self.q(x), 1)[0]

    def keys(self, context: Float[Tensor, "B K C"]) -> tuple[Float[Tensor, "B H K d"], Float[Tensor, "B H K d"]]:
        k, v = self.split(self.kv(context), 2)
        return k, v

    def project(
        self, x: Float[Tensor, "B Q D"], context: Float[Tensor, "B K C"] | None = None
    ) -> tuple[Float[Tensor, "B H Q d"], Float[Tensor, "B H K d"], Float[Tensor, "B H K d"]]:
        if context is not None:
            return (self.query(x), *self.keys(context))
        q, k, v = self.split(self.qkv(x), 3)
        return q, k, v

    def attend(
        self, q: Float[Tensor, "B H Q d"], k: Float[Tensor, "B H K d"], v: Float[Tensor, "B H K e"],
        rule: Rule | None = None, at: Int[Tensor, "..."] | None = None, seen: Recorder | None = None,
        inside: Placed | None = None,
    ) -> Float[Tensor, "B H Q e"]:  # fmt: skip
        if inside is not None and inside.position.measures:
            return self._measured(q, k, v, rule, at, seen, inside)
        scale = self.score.factor(q.shape[-1])
        dropout = self.dropout if self.training else 0.0
        kernel = dispatch.choose(q, k, rule, at, dropout, seen is not None)
        if kernel in ("varlen", "short"):
            return dispatch.varlen(q, k, v, rule, scale, dropout, few=kernel == "short")
        if kernel in ("sdpa", "widened"):
            fused = dispatch.sdpa if kernel == "sdpa" else dispatch.widened
            return fused(q, k, v, rule, at, scale, dropout)
        if kernel == "stepped":
            assert rule is None or isinstance(rule, Written)
            return dispatch.stepped(q, k, v, rule, scale)
        result, weights = dispatch.plain(q, k, v, dispatch.allowed(q, k, rule, at), scale, dropout)
        if seen is not None:
            seen(weights)
        return result

    def _measured(
        self, q: Tensor, k: Tensor, v: Tensor, rule: Rule | None, at: Tensor | None, seen: Recorder | None,
        inside: Placed,
    ) -> Tensor:  # fmt: skip
        """The same where scores have a bias by distance."""
        scale, dropout = self.score.factor(q.shape[-1]), self.dropout if self.training else 0.0
        bias, spreads = inside.bias(q, k.shape[-2], scale), inside.position.spreads
        assert bias is not None
        kernel = dispatch.choose(q, k, rule, at, dropout, seen is not None or spreads, biased=True)
        if kernel == "stepped":
            assert rule is None or isinstance(rule, Written)
            return dispatch.stepped(q, k, v, rule, scale, bias)
        if kernel in ("sdpa", "widened"):
            kind = q.dtype if kernel == "sdpa" else torch.float32
            hidden = inside.alike(
                rule, (kind, *q.shape[:3], k.shape[-2]),
                lambda: dispatch.hidden_in(bias.to(kind), dispatch.allowed(q, k, rule, at)),
            )  # fmt: skip
            return dispatch.biased(q.to(kind), k.to(kind), v.to(kind), hidden, scale, dropout).to(v.dtype)
        mask, spread = dispatch.allowed(q, k, rule, at), inside.spread if spreads else None
        result, weights = dispatch.plain(q, k, v, mask, scale, dropout, bias, spread)
        if seen is not None:
            seen(weights)
        return result

    def _band(self, x: Tensor, memory: Fixed, rule: Rule | None, where: Tensor | None) -> int | None:
        """How far back one more token looks, where the kernel for that can be taken."""
        if self.crossing or self.training or x.shape[1] != 1 or where is None or memory.columns is not None:
            return None
        if not dispatch.steps_alone(memory.k) or memory.k is None or x.dtype != memory.k.dtype:
            return None
        return dispatch.past_form(rule)

    def _step(self, x: Tensor, memory: Fixed, where: Tensor | None, band: int, inside: Placed | None) -> Tensor:
        """One more token a row, by the kernel that writes its key and value itself."""
        assert where is not None and memory.k is not None
        qkv = self.qkv(x)
        if inside is not None:
            turned = inside.turn(*self.split(qkv, 3))
            qkv = torch.stack(turned, 2).transpose(1, 3).flatten(2)
        scale = self.score.factor(memory.k.shape[-1])
        return self.out(dispatch.step(qkv[:, 0], memory, where[:, 0], scale, band)[:, None])

    def forward(
        self, x: Float[Tensor, "B Q D"], context: Float[Tensor, "B K C"] | None = None, *, rule: Rule | None = None,
        memory: Memory | None = None, where: Int[Tensor, "..."] | None = None, seen: Recorder | None = None,
        inside: Placed | None = None,
    ) -> Float[Tensor, "B Q D"]:  # fmt: skip
        """`where`: the columns of x in its row, when it does not start at 0 (with a memory).
        `inside`: a position that acts here, of a self-attention."""
        if isinstance(memory, Fixed) and seen is None and (band := self._band(x, memory, rule, where)) is not None:
            if inside is None or not inside.position.measures:
                return self._step(x, memory, where, band, inside)
        if self.crossing:
            if inside is not None:
                raise ValueError("a position acts inside self-attention: distances to a context mean nothing")
            q, where = self.query(x), None  # positions of x mean nothing among the keys of the context
        elif context is None:
            q, own_k, own_v = self.project(x)
            if inside is not None:
                q, own_k, own_v = inside.turn(q, own_k, own_v)
        else:
            raise ValueError("this is a self-attention: it has no matrices for a context")

        def make() -> tuple[Tensor, Tensor]:
            if not self.crossing:
                return own_k, own_v
            if context is None:
                raise ValueError("cross-attention needs a context, or a memory that holds one")
            return self.keys(context)

        k, v = make() if memory is None else memory.extend(make, where)
        mixed = self.attend(q, k, v, rule, where, seen, inside)
        return self.out(mixed.transpose(1, 2).flatten(2))


@dataclass
class Recorder:
    """Handed to an attention that is watched: it keeps the weights under the attention's name, or hands them on."""

    name: str
    into: Seen
    also: Recorder | None = None
    """another one who watches at the same time"""
    gradients: bool = False
    """whether weights stay in the graph, so that one can ask what a number owes to them"""
    each: Callable[[Look], None] | None = None
    """is told of every look, which then is not kept"""

    def __call__(
        self, weights: Float[Tensor, "B H Q K"], keys: Int[Tensor, "..."] | None = None,
        queries: Int[Tensor, "B Q"] | None = None,
    ) -> None:  # fmt: skip
        look = Look(self.name, weights if self.gradients else weights.detach(), keys, queries)
        (self.into.looks.append if self.each is None else self.each)(look)
        if self.also is not None:
            self.also(weights, keys, queries)
