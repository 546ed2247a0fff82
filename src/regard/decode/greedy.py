"""One path a row: the likeliest token each time, or a drawn one."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from regard.decode.protocol import Found, Generating, State, Why, put, refuse_nan, silence
from regard.decode.repetition import Past
from regard.decode.sampling import chances, draw, narrow
from regard.decode.settings import Decode


class Single:
    """The draws of a source run as rows of their own. R rows, T tokens at most.

    Each row counts its own steps, so that rows may join and leave. A row that is closed stands still: what it would say
    next is written over and over behind its answer (hence one place more than T) and never read."""

    def __init__(
        self, body: Generating, state: State, last: Int[Tensor, "B"], end: int, limits: Int[Tensor, "B"],
        settings: Decode, requests: np.ndarray, banned: Tensor | None = None, past: Past | None = None,
        copies: range | None = None,
    ) -> None:  # fmt: skip
        self.body, self.state, self.end, self.settings, self.banned = body, state, end, settings, banned
        self.past = past
        copies = range(settings.best if settings.drawn else 1) if copies is None else copies
        """which draws of each source; others are another quest's"""
        self.copies = len(copies)
        if self.copies > 1:
            rows = torch.arange(len(last), device=last.device).repeat_interleave(self.copies)
            state.keep(rows)
            last, limits = last[rows], limits[rows.to(limits.device)]
            if past is not None:
                past.keep(rows)
        R, device = len(last), last.device
        longest = int(limits.max())
        self.rows = np.arange(R)
        """what each row was numbered in the beginning"""
        self.count = R
        """rows that there have been"""
        self.last, self.limits = last.clone(), limits.to(device)
        self.t = torch.zeros(R, dtype=torch.long, device=device)
        """tokens that each row has said"""
        self.open = torch.ones(R, dtype=torch.bool, device=device)
        self.met = torch.zeros(R, dtype=torch.bool, device=device)
        """what these said was enough for who listens"""
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.tokens = torch.zeros(longest + 1, R, dtype=torch.long, device=device)
        self.logs = torch.zeros(longest + 1, R, dtype=wide, device=device)
        self.chances: Tensor | None = None
        if settings.drawn:
            keys = requests.repeat(self.copies)[None], np.tile(np.array(copies), len(requests))[None]
            drawn = chances(settings.seed, *keys, np.arange(longest + 1)[:, None])
            self.chances = drawn.to(device=device, dtype=wide)

    def step(self) -> None:
        logits = silence(self.body.step(self.last, self.state), self.banned)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        bent = logits if self.past is None else self.past.bend(logits)
        at = self.t[None]
        if self.chances is None:
            chosen = bent.argmax(-1)
        else:
            settings = self.settings
            allowed = narrow(bent, settings.temperature, settings.top_k, settings.top_p, settings.min_p)
            chance = self.chances.gather(0, at)[0]
            place = "cpu" if logits.device.type == "mps" else logits.device  # it draws in float64, which MPS has not
            chosen = draw(allowed.to(place), chance.to(place)).to(logits.device)
        value = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        self.tokens.scatter_(0, at, chosen[None])
        self.logs.scatter_(0, at, value[None].to(self.logs.dtype))
        if self.past is not None:
            self.past.add(chosen)
        self.t += self.open
        put(self.last, chosen)
        put(self.open, self.open & (chosen != self.end) & (self.t < self.limits))

    def tensors(self) -> list[Tensor]:
        own = [self.last, self.limits, self.t, self.open, self.met, self.tokens, self.logs]
        own += [] if self.chances is None else [self.chances]
        return own + ([] if self.past is None else self.past.tensors())

    def close(self, rows: list[int], lengths: list[int]) -> None:
        """Someone who listens has heard enough of these rows; what they said beyond those lengths is forgotten."""
        at = torch.tensor(rows, device=self.t.device)
        self.t[at] = torch.tensor(lengths, device=self.t.device)
        self.open[at], self.met[at] = False, True

    def keep(self, rows: Tensor) -> None:
        self.state.keep(rows)
        for name in ("last", "limits", "t", "open", "met"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("tokens", "logs"):
            setattr(self, name, getattr(self, name)[:, rows])
        if self.chances is not None:
            self.chances = self.chances[:, rows]
        if self.past is not None:
            self.past.keep(rows)
        self.rows = self.rows[rows.cpu().numpy()]

    def join(self, other: Single) -> np.ndarray:
        """Rows of another quest, begun later with the same settings, go on beside these; returns their numbers here."""
        if (self.settings, self.end, self.copies) != (other.settings, other.end, other.copies):
            raise ValueError("quests that join must have the same settings")
        self.state.join(other.state)
        for name in ("last", "limits", "t", "open", "met"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        longest = max(len(self.tokens), len(other.tokens))
        for name in ("tokens", "logs", *(() if self.chances is None else ("chances",))):
            both = [F.pad(x, (0, 0, 0, longest - len(x))) for x in (getattr(self, name), getattr(other, name))]
            setattr(self, name, torch.cat(both, 1))
        if self.past is not None and other.past is not None:
            self.past.join(other.past)
        numbers = self.count + other.rows
        self.rows, self.count = np.concatenate([self.rows, numbers]), self.count + other.count
        return numbers

    def answers(self, rows: list[int]) -> list[list[Found]]:
        """What these rows said, each as a list of one."""
        tokens, logs = self.tokens[:, rows].cpu(), self.logs[:, rows].cpu()
        found = []
        for i, (length, met) in enumerate(zip(self.t[rows].tolist(), self.met[rows].tolist(), strict=True)):
            path, values = tokens[:length, i].tolist(), logs[:length, i].tolist()
            score = sum(values)
            refuse_nan(score)
            ended = bool(path) and path[-1] == self.end
            why: Why = "end" if ended else "until" if met else "length"
            found.append([Found(tuple(path[: length - ended]), score, tuple(values), why)])
        return found

    def gathered(self, answers: dict[int, list[Found]]) -> list[list[Found]]:
        """By source: its draws, best first."""
        listed = [answers[row][0] for row in sorted(answers)]
        many = self.copies
        return [sorted(listed[i : i + many], key=lambda f: -f.score) for i in range(0, len(listed), many)]
