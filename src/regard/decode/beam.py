"""Beam search: the best partial outputs of each source are extended in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decode.logits import RepetitionPenalty, chunked_topk, top_log_probs
from regard.decode.protocol import DecodingState, Hypothesis, Search, SearchInputs
from regard.decode.settings import DecodeSettings

Array = npt.NDArray[Any]


def length_penalty(length: int, settings: DecodeSettings) -> float:
    """Divisor of the summed log-probabilities: ((5 + length) / 6) ** p (Wu et al. 2016), or length ** p (Hugging Face)."""
    base = (5 + length) / 6 if settings.length_penalty_type == "wu" else float(length)
    return float(base**settings.length_penalty)


class BeamSearch(Search):
    """Beam search state: W open beams per source, and the scores of the W best finished outputs.

    B open sources, W beams, at most T tokens. A step appends 2 W candidates with their parent beams to a history of
    fixed size; paths are read from the history at the end. A source ends when no open beam can beat its finished
    outputs."""

    row_tensors = ("limits", "active", "scores", "finished_scores")
    histories = ("candidates", "candidate_scores", "survivors")

    def __init__(self, inputs: SearchInputs, state: DecodingState, repetition: RepetitionPenalty | None = None) -> None:
        settings, last_tokens = inputs.settings, inputs.batch.last_tokens()
        B, W, device, longest = len(last_tokens), settings.num_beams, last_tokens.device, int(inputs.limits.max())
        state.expand_beams(W)
        if repetition is not None:
            repetition.select_rows(torch.arange(B, device=device).repeat_interleave(W))
        super().__init__(inputs, state, last_tokens.repeat_interleave(W), repetition)
        self.paths, self.rows, self.limits = W, np.arange(B), inputs.limits.to(device)
        self.step_count = torch.zeros(1, dtype=torch.long, device=device)
        self.active = torch.ones(B, dtype=torch.bool, device=device)
        self.scores = torch.full((B, W), -torch.inf, dtype=self.float_type, device=device)
        self.scores[:, 0] = 0.0  # all beams are equal at the start: only beam 0 competes in the first step
        self.finished_scores = torch.full((B, W), -torch.inf, dtype=self.float_type, device=device)
        penalties = [length_penalty(length, settings) for length in range(1, longest + 1)]
        self.penalties = torch.tensor(penalties, dtype=self.float_type, device=device)
        self.candidates = torch.zeros(longest, B, 2 * W, 2, dtype=torch.long, device=device)
        """token and parent beam of each candidate"""
        self.candidate_scores = torch.full((longest, B, 2 * W, 2), -torch.inf, dtype=self.float_type, device=device)
        """log-probability of the token, and score if the output ends here"""
        self.survivors = torch.zeros(longest, B, W, dtype=torch.long, device=device)
        """indices of the candidates kept as open beams"""
        self.row_offsets = torch.arange(B, device=device)[:, None] * W
        self.in_top_beams = torch.arange(2 * W, device=device) < W

    def is_last_step(self) -> Tensor:
        return (self.step_count + 1 >= self.limits).repeat_interleave(self.paths)

    def step(self) -> None:
        """Extend all beams by one token: 2 W candidates, so that W open beams remain even if W candidates end."""
        B, W = self.scores.shape
        increments, log_probs, tokens = self._top_candidates(self.next_logits())
        k = increments.shape[1]
        sums = (self.scores.view(-1, 1) + increments).view(B, W * k)
        best, which = sums.topk(min(2 * W, W * k))
        if missing := 2 * W - best.shape[1]:  # vocabulary of less than 2 W tokens
            best, which = F.pad(best, (0, missing), value=-torch.inf), F.pad(which, (0, missing))
        candidates = torch.stack([tokens.view(B, -1).gather(1, which), which // k], -1)
        penalty = self.penalties.index_select(0, self.step_count)
        at_limit = self.step_count + 1 >= self.limits
        over = (candidates[..., 0] == self.eos_id) | at_limit[:, None]
        # an ended candidate counts only if among the W best
        ends = over & self.in_top_beams & self.active[:, None]
        finished = (best / penalty).masked_fill(~ends, -torch.inf)
        scores, survivors = best.masked_fill(over, -torch.inf).topk(W)
        self.candidates.index_copy_(0, self.step_count, candidates[None])
        candidate_scores = torch.stack([log_probs.view(B, -1).gather(1, which), finished], -1)
        self.candidate_scores.index_copy_(0, self.step_count, candidate_scores[None])
        self.survivors.index_copy_(0, self.step_count, survivors[None])
        self.step_count += 1
        self.scores.copy_(scores)
        self.finished_scores.copy_(torch.cat([self.finished_scores, finished], 1).topk(W).values)
        kept = candidates.gather(1, survivors[..., None].expand(-1, -1, 2))
        self.last_tokens.copy_(kept[..., 0].flatten())
        parents = (kept[..., 1] + self.row_offsets[:B]).flatten()
        self.state.reorder(parents)
        if self.repetition is not None:
            self.repetition.reorder(parents)
            self.repetition.append(self.last_tokens)
        if self.settings.early_stopping == "always":
            can_improve = self.finished_scores[:, -1] == -torch.inf
        else:
            if self.settings.early_stopping == "never" and self.settings.length_penalty > 0:
                penalty = self.penalties[self.limits - 1]  # an open beam may still reach its maximum length
            can_improve = scores[:, 0] / penalty > self.finished_scores[:, -1]
        self.active.copy_(self.active & can_improve & ~at_limit)

    def _top_candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Score increments, log-probabilities and tokens of the best candidates of each beam, each (B W, 2 W).

        The first two differ only with a repetition penalty. As in `transformers`, the penalty changes the
        log-probabilities in beam search, and the logits in greedy search and sampling."""
        if self.repetition is None:
            logs, tokens = top_log_probs(logits, 2 * self.paths)
            logs = logs.to(self.float_type)
            return logs, logs, tokens
        whole = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        penalized, tokens = chunked_topk(self.repetition.apply(whole), 2 * self.paths)
        return penalized.to(self.float_type), whole.gather(1, tokens).to(self.float_type), tokens

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), self.step_count, self.penalties]

    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]:
        """Best outputs of these sources, read from the history."""
        steps = int(self.step_count)
        candidates, values, survivors = (getattr(self, name)[:steps, rows].cpu().numpy() for name in self.histories)
        scores = values[..., 1].transpose(1, 0, 2).reshape(len(rows), -1)
        ranked = np.argsort(-scores, axis=1, kind="stable")[:, : self.settings.num_return_sequences]
        best = np.take_along_axis(scores, ranked, 1)
        last, candidate = np.divmod(ranked, candidates.shape[2])
        paths, log_probs = _backtrack(candidates, values[..., 0], survivors, last, candidate)
        if np.isnan(scores).any() or (best[:, 0] == -np.inf).any():  # only NaN leaves no candidate
            best = np.full_like(best, np.nan)
        return [
            [
                self.hypothesis(paths[: end + 1, i, n].tolist(), log_probs[: end + 1, i, n].tolist(), float(best[i, n]))
                for n, end in enumerate(last[i].tolist())
                if best[i, n] != -np.inf
            ]
            for i in range(len(rows))
        ]


def _backtrack(
    candidates: Array, values: Array, survivors: Array, last: Array, candidate: Array
) -> tuple[Array, Array]:
    """Tokens and log-probabilities, (T, B, n), of the paths that end with candidate (B, n) of step `last`."""
    rows = np.arange(candidates.shape[1])[:, None]
    paths, log_probs = (np.zeros((len(candidates), *last.shape), dtype=x.dtype) for x in (candidates, values))
    for step in range(len(candidates) - 1, -1, -1):
        on_path = last >= step
        paths[step] = np.where(on_path, candidates[step, rows, candidate, 0], 0)
        log_probs[step] = np.where(on_path, values[step, rows, candidate], 0.0)
        if step:
            parents = survivors[step - 1, rows, candidates[step, rows, candidate, 1]]
            candidate = np.where(on_path, parents, candidate)
    return paths, log_probs
