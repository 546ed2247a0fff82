"""Greedy search and sampling: one path per row."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from regard.decode.protocol import (
    DecodingState,
    FinishReason,
    GenerativeBody,
    Hypothesis,
    check_not_nan,
    copy_into,
    force_eos,
    mask_banned,
)
from regard.decode.repetition import RepetitionPenalty
from regard.decode.sampling import filter_logits, sample, uniform_numbers
from regard.decode.settings import DecodeSettings


class GreedyOrSample:
    """Search state of R rows with at most T tokens. Each sample of a source is a separate row.

    Each row has its own step count, so that rows can be added and removed. A closed row overwrites a single slot after
    its output at every step, hence T + 1 slots; this slot is never read."""

    def __init__(
        self,
        body: GenerativeBody,
        state: DecodingState,
        last_tokens: Int[Tensor, "B"],
        eos_id: int,
        limits: Int[Tensor, "B"],
        settings: DecodeSettings,
        requests: np.ndarray,
        banned: Tensor | None = None,
        repetition: RepetitionPenalty | None = None,
        sample_range: range | None = None,
    ) -> None:
        self.body, self.state, self.eos_id, self.settings, self.banned = body, state, eos_id, settings, banned
        self.repetition = repetition
        sample_range = (
            range(settings.num_return_sequences if settings.is_sampling else 1)
            if sample_range is None
            else sample_range
        )
        """samples of each source in this search; other chunks generate the rest"""
        self.num_samples = len(sample_range)
        if self.num_samples > 1:
            rows = torch.arange(len(last_tokens), device=last_tokens.device).repeat_interleave(self.num_samples)
            state.select_rows(rows)
            last_tokens, limits = last_tokens[rows], limits[rows.to(limits.device)]
            if repetition is not None:
                repetition.select_rows(rows)
        R, device = len(last_tokens), last_tokens.device
        longest = int(limits.max())
        self.rows = np.arange(R)
        """(R,) initial row numbers"""
        self.total_rows = R
        """number of rows so far, including removed rows"""
        self.last_tokens, self.limits = last_tokens.clone(), limits.to(device)
        self.lengths = torch.zeros(R, dtype=torch.long, device=device)
        """(R,) number of generated tokens"""
        self.active = torch.ones(R, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(R, dtype=torch.bool, device=device)
        """(R,) True for rows ended by `stop_fn`"""
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.tokens = torch.zeros(longest + 1, R, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(longest + 1, R, dtype=wide, device=device)
        self.uniforms: Tensor | None = None
        if settings.is_sampling:
            keys = requests.repeat(self.num_samples)[None], np.tile(np.array(sample_range), len(requests))[None]
            drawn = uniform_numbers(settings.seed, *keys, np.arange(longest + 1)[:, None])
            self.uniforms = drawn.to(device=device, dtype=wide)

    def step(self) -> None:
        logits = mask_banned(self.body.step(self.last_tokens, self.state), self.banned)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.settings.forced_eos:
            logits = force_eos(logits, self.eos_id, self.lengths + 1 >= self.limits)
        bent = logits if self.repetition is None else self.repetition.apply(logits)
        at = self.lengths[None]
        if self.uniforms is None:
            chosen = bent.argmax(-1)
        else:
            settings = self.settings
            allowed = filter_logits(bent, settings.temperature, settings.top_k, settings.top_p, settings.min_p)
            chance = self.uniforms.gather(0, at)[0]
            # sampling uses float64, which MPS does not support
            place = "cpu" if logits.device.type == "mps" else logits.device
            chosen = sample(allowed.to(place), chance.to(place)).to(logits.device)
        value = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        self.tokens.scatter_(0, at, chosen[None])
        self.log_probs.scatter_(0, at, value[None].to(self.log_probs.dtype))
        if self.repetition is not None:
            self.repetition.append(chosen)
        self.lengths += self.active
        copy_into(self.last_tokens, chosen)
        copy_into(self.active, self.active & (chosen != self.eos_id) & (self.lengths < self.limits))

    def tensors(self) -> list[Tensor]:
        own = [self.last_tokens, self.limits, self.lengths, self.active, self.stopped, self.tokens, self.log_probs]
        own += [] if self.uniforms is None else [self.uniforms]
        return own + ([] if self.repetition is None else self.repetition.tensors())

    def close(self, rows: list[int], lengths: list[int]) -> None:
        """End rows stopped by `stop_fn`, and discard tokens after these lengths."""
        at = torch.tensor(rows, device=self.lengths.device)
        self.lengths[at] = torch.tensor(lengths, device=self.lengths.device)
        self.active[at], self.stopped[at] = False, True

    def select_rows(self, rows: Tensor) -> None:
        self.state.select_rows(rows)
        for name in ("last_tokens", "limits", "lengths", "active", "stopped"):
            setattr(self, name, getattr(self, name)[rows])
        for name in ("tokens", "log_probs"):
            setattr(self, name, getattr(self, name)[:, rows])
        if self.uniforms is not None:
            self.uniforms = self.uniforms[:, rows]
        if self.repetition is not None:
            self.repetition.select_rows(rows)
        self.rows = self.rows[rows.cpu().numpy()]

    def append_rows(self, other: GreedyOrSample) -> np.ndarray:
        """Add the rows of another search with the same settings; returns their row numbers."""
        if (self.settings, self.eos_id, self.num_samples) != (other.settings, other.eos_id, other.num_samples):
            raise ValueError("Merged searches must have the same settings, eos_id and number of samples.")
        self.state.append_rows(other.state)
        for name in ("last_tokens", "limits", "lengths", "active", "stopped"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        longest = max(len(self.tokens), len(other.tokens))
        for name in ("tokens", "log_probs", *(() if self.uniforms is None else ("uniforms",))):
            both = [F.pad(x, (0, 0, 0, longest - len(x))) for x in (getattr(self, name), getattr(other, name))]
            setattr(self, name, torch.cat(both, 1))
        if self.repetition is not None and other.repetition is not None:
            self.repetition.append_rows(other.repetition)
        numbers = self.total_rows + other.rows
        self.rows, self.total_rows = np.concatenate([self.rows, numbers]), self.total_rows + other.total_rows
        return numbers

    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]:
        """Output of each row, as a list of one hypothesis."""
        tokens, logs = self.tokens[:, rows].cpu(), self.log_probs[:, rows].cpu()
        found = []
        for i, (length, met) in enumerate(zip(self.lengths[rows].tolist(), self.stopped[rows].tolist(), strict=True)):
            path, values = tokens[:length, i].tolist(), logs[:length, i].tolist()
            score = sum(values)
            check_not_nan(score)
            ended = bool(path) and path[-1] == self.eos_id
            why: FinishReason = "eos" if ended else "stop" if met else "length"
            found.append([Hypothesis(tuple(path[: length - ended]), score, tuple(values), why)])
        return found

    def collect(self, finished: dict[int, list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Samples of each source, best first."""
        listed = [finished[row][0] for row in sorted(finished)]
        many = self.num_samples
        return [sorted(listed[i : i + many], key=lambda f: -f.score) for i in range(0, len(listed), many)]
