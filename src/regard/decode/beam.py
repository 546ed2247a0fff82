"""Beam search: the best partial outputs of each source are extended in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from regard.decode.protocol import (
    DecodingState,
    GenerativeBody,
    Hypothesis,
    check_not_nan,
    copy_into,
    force_eos,
    mask_banned,
)
from regard.decode.repetition import RepetitionPenalty
from regard.decode.settings import DecodeSettings
from regard.decode.topk import chunked_topk, top_log_probs

Array = npt.NDArray[Any]


def length_penalty(length: int, settings: DecodeSettings) -> float:
    """Divisor of the summed log-probabilities: ((5 + length) / 6) ** p (Wu et al. 2016), or length ** p (Hugging Face)."""
    base = (5 + length) / 6 if settings.length_penalty_type == "wu" else float(length)
    return float(base**settings.length_penalty)


class BeamSearch:
    """Beam search state: W open beams per source, and the scores of the W best finished outputs.

    B open sources, W beams, at most T tokens. A step appends 2 W candidates with their parent beams to a history of
    fixed size; paths are read from the history at the end. A source ends when no open beam can beat its finished
    outputs."""

    def __init__(
        self, body: GenerativeBody, state: DecodingState, last_tokens: Int[Tensor, "B"], eos_id: int, limits: Int[Tensor, "B"],
        settings: DecodeSettings, banned: Tensor | None = None, repetition: RepetitionPenalty | None = None,
    ) -> None:  # fmt: skip
        self.body, self.state, self.eos_id, self.settings, self.banned = body, state, eos_id, settings, banned
        self.repetition = repetition
        B, W, device = len(last_tokens), settings.num_beams, last_tokens.device
        wide = torch.float32 if device.type == "mps" else torch.float64
        longest = int(limits.max())
        state.expand_beams(W)
        if repetition is not None:
            repetition.select_rows(torch.arange(B, device=device).repeat_interleave(W))
        self.rows = np.arange(B)
        self.limits = limits.to(device)
        self.last_tokens = last_tokens.repeat_interleave(W)
        self.step_count = torch.zeros(1, dtype=torch.long, device=device)
        self.active = torch.ones(B, dtype=torch.bool, device=device)
        self.scores = torch.full((B, W), -torch.inf, dtype=wide, device=device)
        self.scores[:, 0] = 0.0  # all beams are equal at the start: only beam 0 competes in the first step
        self.finished_scores = torch.full((B, W), -torch.inf, dtype=wide, device=device)
        penalties = [length_penalty(length, settings) for length in range(1, longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=wide, device=device)
        self.candidates = torch.zeros(longest, B, 2 * W, 2, dtype=torch.long, device=device)
        """token and parent beam of each candidate"""
        self.candidate_scores = torch.full((longest, B, 2 * W, 2), -torch.inf, dtype=wide, device=device)
        """log-probability of the token, and score if the output ends here"""
        self.survivors = torch.zeros(longest, B, W, dtype=torch.long, device=device)
        """indices of the candidates kept as open beams"""
        self.row_offsets = torch.arange(B, device=device)[:, None] * W
        self.in_top_beams = torch.arange(2 * W, device=device) < W

    def step(self) -> None:
        """Extend all beams by one token: 2 W candidates, so that W open beams remain even if W candidates end."""
        B, W = self.scores.shape
        logits = mask_banned(self.body.step(self.last_tokens, self.state), self.banned)
        if self.settings.forced_eos:
            logits = force_eos(logits, self.eos_id, (self.step_count + 1 >= self.limits).repeat_interleave(W))
        logs, own, tokens = self._top_candidates(logits)
        k = logs.shape[1]
        sums = (self.scores.view(-1, 1) + logs).view(B, W * k)
        best, which = sums.topk(min(2 * W, W * k))
        if best.shape[1] < 2 * W:  # vocabulary of less than 2 W tokens
            best, which = _pad_columns(best, 2 * W, -torch.inf), _pad_columns(which, 2 * W, 0)
        names = torch.stack([tokens.view(B, -1).gather(1, which), which // k], -1)
        penalty = self.penalties.index_select(0, self.step_count)
        self.step_count += 1
        last = self.step_count >= self.limits
        over = (names[..., 0] == self.eos_id) | last[:, None]
        # an ended candidate counts only if among the W best
        ends = over & self.in_top_beams & self.active[:, None]
        ended = (best / penalty).masked_fill(~ends, -torch.inf)
        worths = torch.stack([own.view(B, -1).gather(1, which), ended], -1)
        scores, order = best.masked_fill(over, -torch.inf).topk(W)
        self._append_history(names, worths, order)
        copy_into(self.scores, scores)
        copy_into(self.finished_scores, torch.cat([self.finished_scores, ended], 1).topk(W).values)
        chosen = names.gather(1, order[..., None].expand(-1, -1, 2))
        copy_into(self.last_tokens, chosen[..., 0])
        parents = (chosen[..., 1] + self.row_offsets).flatten()
        self.state.reorder(parents)
        if self.repetition is not None:
            self.repetition.reorder(parents)
            self.repetition.append(self.last_tokens)
        divisor = penalty
        if self.settings.early_stopping == "never" and self.settings.length_penalty > 0:
            # the score bound of an open beam uses the penalty at its maximum length
            divisor = self.penalties[self.limits - 1]
        open_ = scores[:, 0] / divisor > self.finished_scores[:, -1]
        if self.settings.early_stopping == "always":
            open_ = self.finished_scores[:, -1] == -torch.inf
        copy_into(self.active, self.active & open_ & ~last)

    def _top_candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score increments, log-probabilities and tokens of the best candidates of each beam, each (B W, 2 W).

        The first two differ only with a repetition penalty. As in `transformers`, the penalty changes the
        log-probabilities in beam search, and the logits in greedy search and sampling."""
        count, wide = 2 * self.settings.num_beams, self.scores.dtype
        if self.repetition is None:
            logs, tokens = top_log_probs(logits, count)
            logs = logs.to(wide)
            return logs, logs, tokens
        whole = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        bent, tokens = chunked_topk(self.repetition.apply(whole), count)
        return bent.to(wide), whole.gather(1, tokens).to(wide), tokens

    def _append_history(self, names: Tensor, worths: Tensor, order: Tensor) -> None:
        at = self.step_count - 1
        for history, value in ((self.candidates, names), (self.candidate_scores, worths), (self.survivors, order)):
            history.index_copy_(0, at, value[None])

    def tensors(self) -> list[Tensor]:
        own = [
            self.limits,
            self.last_tokens,
            self.step_count,
            self.active,
            self.scores,
            self.finished_scores,
            self.penalties,
        ]
        past = [] if self.repetition is None else self.repetition.tensors()
        return [*own, self.candidates, self.candidate_scores, self.survivors, *past]

    def select_rows(self, rows: Tensor) -> None:
        W = self.settings.num_beams
        flat = (rows[:, None] * W + torch.arange(W, device=rows.device)).flatten()
        self.state.select_rows(flat)
        self.last_tokens = self.last_tokens[flat]
        if self.repetition is not None:
            self.repetition.select_rows(flat)
        for name in ("limits", "active", "scores", "finished_scores"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("candidates", "candidate_scores", "survivors"):
            setattr(self, name, getattr(self, name)[:, rows])
        self.row_offsets = self.row_offsets[: len(rows)]
        self.rows = self.rows[rows.cpu().numpy()]

    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]:
        """Best outputs of these sources, read from the history."""
        steps = int(self.step_count)
        names, worths, orders = (
            x[:steps, rows].cpu().numpy() for x in (self.candidates, self.candidate_scores, self.survivors)
        )
        scores = worths[..., 1].transpose(1, 0, 2).reshape(len(rows), -1)
        check_not_nan(float(scores.max(initial=0.0)))  # the maximum of an array with NaN is NaN
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, : self.settings.num_return_sequences]
        best = np.take_along_axis(scores, ranked, 1)
        at, candidate = np.divmod(ranked, names.shape[2])
        paths, logs = _backtrack(names, worths[..., 0], orders, at, candidate)
        return [self._build_hypotheses(best[i], at[i], paths[:, i].T, logs[:, i].T) for i in range(len(rows))]

    def _build_hypotheses(self, scores: Array, at: Array, paths: Array, worths: Array) -> list[Hypothesis]:
        found = []
        for score, last, path, values in zip(scores.tolist(), at.tolist(), paths, worths, strict=True):
            check_not_nan(score)
            if score == -float("inf"):
                break
            said = path[: last + 1].tolist()
            ended = said[-1] == self.eos_id
            logs = tuple(values[: last + 1].tolist())
            found.append(Hypothesis(tuple(said[: len(said) - ended]), score, logs, "eos" if ended else "length"))
        if not found:
            check_not_nan(float("nan"))  # only NaN leaves no candidate
        return found

    def collect(self, finished: dict[int, list[Hypothesis]]) -> list[list[Hypothesis]]:
        return [finished[row] for row in sorted(finished)]


def _backtrack(names: Array, worths: Array, orders: Array, at: Array, candidate: Array) -> tuple[Array, Array]:
    """Tokens and log-probabilities, (T, B, n), of the paths that end with candidate (B, n) of step `at`."""
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


def _pad_columns(values: Tensor, width: int, value: float) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=value)
