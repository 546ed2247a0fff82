"""Beam search: several unfinished answers of a source are followed at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.protocol import Found, Generating, State, put, refuse_nan, silence
from regard.decode.repetition import Past
from regard.decode.settings import Decode
from regard.decode.topk import highest, likeliest

Array = npt.NDArray[Any]


def length_penalty(length: int, settings: Decode) -> float:
    """What a sum of log-probabilities is divided by. The paper took ((5 + length) / 6) ** α from Wu et al. 2016."""
    base = (5 + length) / 6 if settings.form == "paper" else float(length)
    return float(base**settings.penalty)


class Beams:
    """W unfinished answers a source and the W best finished ones; W beams x V tokens compete at each step.

    B sources still open, W beams, T tokens at most. Nothing is moved: each step writes its 2 W candidates into the history
    with the beam that each comes from, and paths are read back from there at the end. A source closes as soon as nothing
    open can beat its finished ones.
    """

    def __init__(
        self, body: Generating, state: State, last: Int[Tensor, "B"], end: int, limits: Int[Tensor, "B"],
        settings: Decode, banned: Tensor | None = None, past: Past | None = None,
    ) -> None:  # fmt: skip
        self.body, self.state, self.end, self.settings, self.banned = body, state, end, settings, banned
        self.past = past
        B, W, device = len(last), settings.beam, last.device
        wide = torch.float32 if device.type == "mps" else torch.float64
        longest = int(limits.max())
        state.widen(W)
        if past is not None:
            past.keep(torch.arange(B, device=device).repeat_interleave(W))
        self.rows = np.arange(B)
        self.limits = limits.to(device)
        self.last = last.repeat_interleave(W)
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.open = torch.ones(B, dtype=torch.bool, device=device)
        self.scores = torch.full((B, W), -torch.inf, dtype=wide, device=device)
        self.scores[:, 0] = 0.0  # the beams start equal: only one of them may speak first
        self.done = torch.full((B, W), -torch.inf, dtype=wide, device=device)
        penalties = [length_penalty(length, settings) for length in range(1, longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=wide, device=device)
        self.names = torch.zeros(longest, B, 2 * W, 2, dtype=torch.long, device=device)
        """token and parent of each candidate"""
        self.worths = torch.full((longest, B, 2 * W, 2), -torch.inf, dtype=wide, device=device)
        """log-probability of its token, and score if it ends here"""
        self.orders = torch.zeros(longest, B, W, dtype=torch.long, device=device)
        """which candidates became the open beams"""
        self.base = torch.arange(B, device=device)[:, None] * W
        self.front = torch.arange(2 * W, device=device) < W

    def step(self) -> None:
        """One more token for every beam: 2 W candidates, so that W unfinished ones remain even if W end."""
        B, W = self.scores.shape
        logs, own, tokens = self._likeliest(silence(self.body.step(self.last, self.state), self.banned))
        k = logs.shape[1]
        sums = (self.scores.view(-1, 1) + logs).view(B, W * k)
        best, which = sums.topk(min(2 * W, W * k))
        if best.shape[1] < 2 * W:  # a tiny vocabulary
            best, which = _filled(best, 2 * W, -torch.inf), _filled(which, 2 * W, 0)
        names = torch.stack([tokens.view(B, -1).gather(1, which), which // k], -1)
        penalty = self.penalties.index_select(0, self.t)
        self.t += 1
        last = self.t >= self.limits
        over = (names[..., 0] == self.end) | last[:, None]
        # candidates that end, and are among the W best, compete with those that ended before
        ends = over & self.front & self.open[:, None]
        ended = (best / penalty).masked_fill(~ends, -torch.inf)
        worths = torch.stack([own.view(B, -1).gather(1, which), ended], -1)
        scores, order = best.masked_fill(over, -torch.inf).topk(W)
        self._remember(names, worths, order)
        put(self.scores, scores)
        put(self.done, torch.cat([self.done, ended], 1).topk(W).values)
        chosen = names.gather(1, order[..., None].expand(-1, -1, 2))
        put(self.last, chosen[..., 0])
        parents = (chosen[..., 1] + self.base).flatten()
        self.state.reorder(parents)
        if self.past is not None:
            self.past.move(parents)
            self.past.add(self.last)
        divisor = penalty
        if self.settings.stop == "sure" and self.settings.penalty > 0:
            divisor = self.penalties[self.limits - 1]  # an open beam could still grow to where the penalty is weakest
        put(self.open, self.open & (scores[:, 0] / divisor > self.done[:, -1]) & ~last)

    def _likeliest(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each beam: what its likeliest tokens add to its score, their log-probabilities, and their names.

        They differ where repetition is penalised, which bends the log-probabilities of beams (and the logits of rows that
        follow one path), as `transformers` does it."""
        count, wide = 2 * self.settings.beam, self.scores.dtype
        if self.past is None:
            logs, tokens = likeliest(logits, count)
            logs = logs.to(wide)
            return logs, logs, tokens
        whole = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        bent, tokens = highest(self.past.bend(whole), count)
        return bent.to(wide), whole.gather(1, tokens).to(wide), tokens

    def _remember(self, names: Tensor, worths: Tensor, order: Tensor) -> None:
        at = self.t - 1
        for history, value in ((self.names, names), (self.worths, worths), (self.orders, order)):
            history.index_copy_(0, at, value[None])

    def tensors(self) -> list[Tensor]:
        own = [self.limits, self.last, self.t, self.open, self.scores, self.done, self.penalties]
        past = [] if self.past is None else self.past.tensors()
        return [*own, self.names, self.worths, self.orders, *past]

    def keep(self, rows: Tensor) -> None:
        W = self.settings.beam
        flat = (rows[:, None] * W + torch.arange(W, device=rows.device)).flatten()
        self.state.keep(flat)
        self.last = self.last[flat]
        if self.past is not None:
            self.past.keep(flat)
        for name in ("limits", "open", "scores", "done"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("names", "worths", "orders"):
            setattr(self, name, getattr(self, name)[:, rows])
        self.base = self.base[: len(rows)]
        self.rows = self.rows[rows.cpu().numpy()]

    def answers(self, rows: list[int]) -> list[list[Found]]:
        """The best answers of these sources, read back from the history."""
        steps = int(self.t)
        names, worths, orders = (x[:steps, rows].cpu().numpy() for x in (self.names, self.worths, self.orders))
        scores = worths[..., 1].transpose(1, 0, 2).reshape(len(rows), -1)
        refuse_nan(float(scores.max(initial=0.0)))  # a NaN is its own maximum
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, : self.settings.best]
        best = np.take_along_axis(scores, ranked, 1)
        at, candidate = np.divmod(ranked, names.shape[2])
        paths, logs = _walk(names, worths[..., 0], orders, at, candidate)
        return [self._found(best[i], at[i], paths[:, i].T, logs[:, i].T) for i in range(len(rows))]

    def _found(self, scores: Array, at: Array, paths: Array, worths: Array) -> list[Found]:
        found = []
        for score, last, path, values in zip(scores.tolist(), at.tolist(), paths, worths, strict=True):
            refuse_nan(score)
            if score == -float("inf"):
                break
            said = path[: last + 1].tolist()
            ended = said[-1] == self.end
            logs = tuple(values[: last + 1].tolist())
            found.append(Found(tuple(said[: len(said) - ended]), score, logs, "end" if ended else "length"))
        if not found:
            refuse_nan(float("nan"))  # only NaN leaves nothing to compare
        return found

    def gathered(self, answers: dict[int, list[Found]]) -> list[list[Found]]:
        return [answers[row] for row in sorted(answers)]


def _walk(names: Array, worths: Array, orders: Array, at: Array, candidate: Array) -> tuple[Array, Array]:
    """Tokens and their logs (T, B, n) on the way to candidate (B, n) of step `at`, all sources at once, from the end back."""
    rows = np.arange(names.shape[1])[:, None]
    paths, logs = (np.zeros((len(names), *at.shape), dtype=x.dtype) for x in (names, worths))
    for step in range(len(names) - 1, -1, -1):
        on = at >= step
        paths[step] = np.where(on, names[step, rows, candidate, 0], 0)
        logs[step] = np.where(on, worths[step, rows, candidate], 0.0)
        if step:
            before = orders[step - 1, rows, names[step, rows, candidate, 1]]
            candidate = np.where(on, before, candidate)
    return paths, logs


def _filled(values: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=value)
