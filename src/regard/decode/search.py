"""One search for every generating system: greedy, sampling, beam.

A body offers `start(batch) -> state` and `step(tokens, state) -> logits`; the state can `reorder` the pasts of rows of
one source and `keep` rows. Search knows nothing else, so an RNN, a GPT and a translator share it. Rows that have
finished are dropped, and what a row answers does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decode.sampling import chances, draw, narrow
from regard.decode.settings import Decode
from regard.errors import RegardError
from regard.waists import Batch


class State(Protocol):
    def reorder(self, rows: Tensor) -> None: ...
    def keep(self, rows: Tensor) -> None: ...


class Generating(Protocol):
    def start(self, batch: Batch, room: int | None = None) -> State: ...
    def step(self, tokens: Tensor, state: State) -> Tensor: ...


@dataclass(frozen=True)
class Found:
    """One answer: its tokens without the prompt and the end token, and the log-probability of each (the end's too)."""

    tokens: tuple[int, ...]
    score: float
    logs: tuple[float, ...]
    ended: bool


def search(
    body: Generating,
    batch: Batch,
    end: int,
    limits: Int[Tensor, "B"],
    settings: Decode,
    requests: np.ndarray | None = None,
    banned: tuple[int, ...] = (),
) -> list[list[Found]]:
    """For each row of `batch`, whose `target` is the prompt, the best answers of at most `limits` tokens, best first.

    `requests` numbers the rows for their random streams (0, 1, 2, … when None); `banned` tokens are never said."""
    if batch.target is None:
        raise ValueError("search needs a prompt in batch.target")
    requests = np.arange(len(limits)) if requests is None else requests
    answers: list[list[Found]] = [[Found((), 0.0, (), False)] for _ in requests]
    speaking = torch.nonzero(limits > 0)[:, 0]  # a row that may say nothing says nothing, whoever its neighbours are
    if not len(speaking):
        return answers
    silent = Silenced(body, banned) if banned else body
    with torch.inference_mode():
        state, last = body.start(batch), batch.target[:, -1]
        if len(speaking) < len(limits):
            state.keep(speaking.to(last.device))
            last = last[speaking.to(last.device)]
        limits, asked = limits[speaking], requests[speaking.cpu().numpy()]
        if settings.beam > 1:
            found = Beams(silent, state, last, end, limits, settings).run()
        else:
            found = _single(silent, state, last, end, limits, settings, asked)
    for row, options in zip(speaking.tolist(), found, strict=True):
        answers[row] = options
    return answers


@dataclass(frozen=True)
class Silenced:
    """A body that never says some tokens."""

    body: Generating
    banned: tuple[int, ...]

    def start(self, batch: Batch, room: int | None = None) -> State:
        return self.body.start(batch, room)

    def step(self, tokens: Tensor, state: State) -> Tensor:
        logits = self.body.step(tokens, state)
        return logits.index_fill(-1, torch.tensor(self.banned, device=logits.device), -torch.inf)


def _single(
    body: Generating,
    state: State,
    last: Tensor,
    end: int,
    limits: Tensor,
    settings: Decode,
    requests: np.ndarray,
) -> list[list[Found]]:
    """One path a row: the likeliest token each time, or a drawn one; `best` draws run as rows of their own."""
    copies = settings.best if settings.sample else 1
    rows = torch.arange(len(last), device=last.device).repeat_interleave(copies)
    if copies > 1:
        state.keep(rows)
        last = last[rows]
    owners = np.arange(len(rows))
    asked = requests.repeat(copies)
    limit = limits.cpu().numpy()[rows.cpu().numpy()]
    paths: list[list[tuple[int, float]]] = [[] for _ in owners]
    for position in range(int(limit.max(initial=0))):
        logs = _logs(body.step(last, state))
        if settings.sample:
            drawn = chances(settings.seed, asked[owners], owners % copies, np.full(len(owners), position))
            chosen = narrow(logs, settings.temperature, settings.top_k, settings.top_p)
            place = "cpu" if logs.device.type == "mps" else logs.device  # it draws in float64, which MPS has not
            last = draw(chosen.to(place), drawn.to(place)).to(logs.device)
        else:
            last = logs.argmax(-1)
        tokens, values = last.tolist(), logs.gather(-1, last[:, None])[:, 0].tolist()
        for owner, token, value in zip(owners, tokens, values, strict=True):
            paths[owner].append((token, value))
        going = np.flatnonzero((np.array(tokens) != end) & (position + 1 < limit[owners]))
        if len(going) == 0:
            break
        if len(going) < len(owners):
            kept = torch.from_numpy(going).to(last.device)
            state.keep(kept)
            last, owners = last[kept], owners[going]
    found = [_found(path, end) for path in paths]
    return [
        sorted(found[i : i + copies], key=lambda f: -f.score) if copies > 1 else [found[i]]
        for i in range(0, len(found), copies)
    ]


def _found(path: list[tuple[int, float]], end: int) -> Found:
    ended = bool(path) and path[-1][0] == end
    logs = tuple(value for _, value in path)
    _refuse_nan(sum(logs))
    return Found(tuple(token for token, _ in path[: len(path) - ended]), sum(logs), logs, ended)


def _refuse_nan(score: float) -> None:
    if score != score:
        raise RegardError("the model's logits are not numbers (NaN): its weights are broken or its training diverged.")


def _logs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)


def length_penalty(length: int, settings: Decode) -> float:
    """What a sum of log-probabilities is divided by. The paper took ((5 + length) / 6) ** α from Wu et al. 2016."""
    base = (5 + length) / 6 if settings.form == "paper" else float(length)
    return float(base**settings.penalty)


class Beams:
    """W unfinished answers a source and the W best finished ones; W beams x V tokens compete at each step.

    B sources still open, W beams, T tokens so far. A source leaves as soon as nothing open can beat its finished ones.
    """

    def __init__(
        self,
        body: Generating,
        state: State,
        last: Int[Tensor, "B"],
        end: int,
        limits: Int[Tensor, "B"],
        settings: Decode,
    ) -> None:
        self.body, self.state, self.end, self.settings = body, state, end, settings
        B, W = len(last), settings.beam
        device = last.device
        self.sources = torch.arange(B, device=device)
        self.limits = limits.to(device)
        state.keep(self.sources.repeat_interleave(W))
        self.last = last.repeat_interleave(W)
        self.scores = torch.full((B, W), -torch.inf, device=device)
        self.scores[:, 0] = 0.0  # the beams start equal: only one of them may speak first
        self.paths = torch.zeros((B, W, 0), dtype=torch.long, device=device)
        self.logs = torch.zeros((B, W, 0), device=device)
        longest = int(limits.max()) if B else 0
        self.done_scores = torch.full((B, W), -torch.inf, device=device)
        self.done_paths = torch.full((B, W, longest), end, dtype=torch.long, device=device)
        self.done_logs = torch.zeros((B, W, longest), device=device)
        self.done_lengths = torch.zeros((B, W), dtype=torch.long, device=device)
        self.answers: dict[int, list[Found]] = {}

    def run(self) -> list[list[Found]]:
        length = 0
        while len(self.sources):
            length += 1
            self._extend(length)
            self._retire(length)
        return [self.answers[source] for source in sorted(self.answers)]

    def _extend(self, length: int) -> None:
        """One more token for every beam: 2 W candidates, so that W unfinished ones remain even if W end."""
        B, W = self.scores.shape
        logs = _logs(self.body.step(self.last, self.state)).view(B, W, -1)
        V = logs.shape[-1]
        sums = self.scores[:, :, None].to(logs.dtype) + logs
        best, flat = sums.view(B, -1).topk(min(2 * W, W * V))
        beams, tokens = flat // V, flat % V
        paths = torch.cat([_pick(self.paths, beams), tokens[..., None]], -1)
        gained = logs.view(B, -1).gather(1, flat)[..., None]
        values = torch.cat([_pick(self.logs.to(logs.dtype), beams), gained], -1)
        over = (tokens == self.end) | (length >= self.limits)[:, None]
        self._finish(best, paths, values, over, length)
        order = best.masked_fill(over, -torch.inf).topk(W).indices
        self.scores = best.masked_fill(over, -torch.inf).gather(1, order)
        self.paths, self.logs = _pick(paths, order), _pick(values, order)
        self.last = tokens.gather(1, order).flatten()
        rows = torch.arange(B, device=flat.device)[:, None] * W + beams.gather(1, order)
        self.state.reorder(rows.flatten())

    def _finish(self, best: Tensor, paths: Tensor, values: Tensor, over: Tensor, length: int) -> None:
        """Candidates that end, and are among the W best, compete with those that ended before."""
        W = self.settings.beam
        allowed = over & (torch.arange(best.shape[1], device=best.device) < W)
        scores = (best / length_penalty(length, self.settings)).masked_fill(~allowed, -torch.inf)
        room = self.done_paths.shape[-1] - length
        merged = torch.cat([self.done_scores.to(scores.dtype), scores], 1)
        self.done_scores, order = merged.topk(W)
        filled = torch.nn.functional.pad
        self.done_paths = _pick(torch.cat([self.done_paths, filled(paths, (0, room), value=self.end)], 1), order)
        self.done_logs = _pick(torch.cat([self.done_logs.to(values.dtype), filled(values, (0, room))], 1), order)
        lengths = torch.full(best.shape, length, device=best.device)
        self.done_lengths = torch.cat([self.done_lengths, lengths], 1).gather(1, order)

    def _retire(self, length: int) -> None:
        """Sources whose open beams cannot win any more leave with their answers."""
        worst = self.done_scores[:, -1]
        if self.settings.stop == "soon" or self.settings.penalty <= 0:
            divisor = torch.full_like(worst, length_penalty(length, self.settings))
        else:  # an open beam could still grow to its limit, where the penalty is weakest
            divisor = torch.tensor([length_penalty(n, self.settings) for n in self.limits.tolist()], dtype=worst.dtype)
            divisor = divisor.to(worst.device)
        going = (self.scores[:, 0].to(worst.dtype) / divisor > worst) & (length < self.limits)
        for row in torch.nonzero(~going)[:, 0].tolist():
            self.answers[int(self.sources[row])] = self._answers(row)
        if not going.all():
            kept = torch.nonzero(going)[:, 0]
            W = self.settings.beam
            rows = (kept[:, None] * W + torch.arange(W, device=kept.device)).flatten()
            self.state.keep(rows)
            self.last = self.last[rows]
            for name in ("sources", "limits", "scores", "paths", "logs"):
                setattr(self, name, getattr(self, name)[kept])
            for name in ("done_scores", "done_paths", "done_logs", "done_lengths"):
                setattr(self, name, getattr(self, name)[kept])

    def _answers(self, row: int) -> list[Found]:
        found = []
        for beam in range(self.settings.best):
            length, score = int(self.done_lengths[row, beam]), float(self.done_scores[row, beam])
            _refuse_nan(score)
            if score == -float("inf"):
                break
            path = self.done_paths[row, beam, :length].tolist()
            ended = bool(path) and path[-1] == self.end
            logs = tuple(self.done_logs[row, beam, :length].tolist())
            found.append(Found(tuple(path[: length - ended]), score, logs, ended))
        if not found:
            _refuse_nan(float("nan"))  # only NaN leaves nothing to compare
        return found


def _pick(values: Float[Tensor, "B N T"] | Int[Tensor, "B N T"], which: Int[Tensor, "B M"]) -> Tensor:
    return values.gather(1, which[..., None].expand(-1, -1, values.shape[-1]))
