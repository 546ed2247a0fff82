"""One path a row: the likeliest token each time, or a drawn one."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.paths import Found, Generating, State, put, refuse_nan, silence
from regard.decode.sampling import chances, draw, narrow
from regard.decode.settings import Decode


class Single:
    """`best` draws of a source run as rows of their own. R rows, T tokens at most."""

    def __init__(
        self, body: Generating, state: State, last: Int[Tensor, "B"], end: int, limits: Int[Tensor, "B"],
        settings: Decode, requests: np.ndarray, banned: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.body, self.state, self.end, self.settings, self.banned = body, state, end, settings, banned
        self.copies = settings.best if settings.sample else 1
        if self.copies > 1:
            rows = torch.arange(len(last), device=last.device).repeat_interleave(self.copies)
            state.keep(rows)
            last, limits = last[rows], limits[rows.to(limits.device)]
        R, device = len(last), last.device
        longest = int(limits.max())
        self.rows = np.arange(R)
        """what each row was numbered in the beginning"""
        self.last, self.limits = last.clone(), limits.to(device)
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.open = torch.ones(R, dtype=torch.bool, device=device)
        self.tokens = torch.zeros(longest, R, dtype=torch.long, device=device)
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.logs = torch.zeros(longest, R, dtype=wide, device=device)
        self.lengths = torch.zeros(R, dtype=torch.long, device=device)
        self.chances: Tensor | None = None
        if settings.sample:
            keys = requests.repeat(self.copies), np.arange(R) % self.copies
            drawn = [chances(settings.seed, *keys, np.full(R, position)) for position in range(longest)]
            self.chances = torch.stack(drawn).to(device=device, dtype=wide)

    def step(self) -> None:
        logits = silence(self.body.step(self.last, self.state), self.banned)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.chances is None:
            chosen = logits.argmax(-1)
        else:
            allowed = narrow(logits, self.settings.temperature, self.settings.top_k, self.settings.top_p)
            chance = self.chances.index_select(0, self.t)[0]
            place = "cpu" if logits.device.type == "mps" else logits.device  # it draws in float64, which MPS has not
            chosen = draw(allowed.to(place), chance.to(place)).to(logits.device)
        value = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        self.tokens.index_copy_(0, self.t, chosen[None])
        self.logs.index_copy_(0, self.t, value[None].to(self.logs.dtype))
        self.lengths += self.open
        self.t += 1
        put(self.last, chosen)
        put(self.open, self.open & (chosen != self.end) & (self.t < self.limits))

    def tensors(self) -> list[Tensor]:
        own = [self.last, self.limits, self.t, self.open, self.tokens, self.logs, self.lengths]
        return own + ([] if self.chances is None else [self.chances])

    def keep(self, rows: Tensor) -> None:
        self.state.keep(rows)
        for name in ("last", "limits", "open", "lengths"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("tokens", "logs"):
            setattr(self, name, getattr(self, name)[:, rows])
        if self.chances is not None:
            self.chances = self.chances[:, rows]
        self.rows = self.rows[rows.cpu().numpy()]

    def answers(self, rows: list[int]) -> list[list[Found]]:
        """What these rows said, each as a list of one."""
        tokens, logs, lengths = self.tokens[:, rows].cpu(), self.logs[:, rows].cpu(), self.lengths[rows].tolist()
        found = []
        for i, length in enumerate(lengths):
            path, values = tokens[:length, i].tolist(), logs[:length, i].tolist()
            score = sum(values)
            refuse_nan(score)
            ended = bool(path) and path[-1] == self.end
            found.append([Found(tuple(path[: length - ended]), score, tuple(values), ended)])
        return found

    def gathered(self, answers: dict[int, list[Found]]) -> list[list[Found]]:
        """By source: its draws, best first."""
        listed = [answers[row][0] for row in sorted(answers)]
        many = self.copies
        return [sorted(listed[i : i + many], key=lambda f: -f.score) for i in range(0, len(listed), many)]
