"""Greedy search and sampling: one path per row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decode.logits import RepetitionPenalty, filter_logits, sample, uniform_numbers
from regard.decode.protocol import DecodingState, Hypothesis, Search, SearchInputs


class GreedyOrSample(Search):
    """Search state of R rows with at most T tokens. Each sample of a source is a separate row.

    Each row has its own step count, so that rows can be added and removed. A closed row overwrites a single slot after
    its output at every step, hence T + 1 slots; this slot is never read."""

    row_tensors = ("limits", "lengths", "active", "stopped")

    def __init__(self, inputs: SearchInputs, state: DecodingState, repetition: RepetitionPenalty | None = None) -> None:
        samples = range(inputs.num_samples) if inputs.samples is None else inputs.samples
        settings, last_tokens, limits = inputs.settings, inputs.batch.last_tokens(), inputs.limits
        if len(samples) > 1:
            rows = torch.arange(len(last_tokens), device=last_tokens.device).repeat_interleave(len(samples))
            state.select_rows(rows)
            last_tokens, limits = last_tokens[rows], limits[rows.to(limits.device)]
            if repetition is not None:
                repetition.select_rows(rows)
        super().__init__(inputs, state, last_tokens.clone(), repetition)
        R, device, longest = len(last_tokens), last_tokens.device, int(limits.max())
        self.num_samples, self.limits = len(samples), limits.to(device)
        self.total_rows = R
        """number of rows so far, including removed rows"""
        self.lengths = torch.zeros(R, dtype=torch.long, device=device)
        """(R,) number of generated tokens"""
        self.active = torch.ones(R, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(R, dtype=torch.bool, device=device)
        """(R,) True for rows ended by `stop_fn`"""
        self.tokens = torch.zeros(longest + 1, R, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(longest + 1, R, dtype=self.float_type, device=device)
        self.histories = ("tokens", "log_probs")
        self.uniforms: Tensor | None = None
        if settings.is_sampling:
            keys = inputs.requests.repeat(len(samples))[None], np.tile(np.array(samples), len(inputs.requests))[None]
            drawn = uniform_numbers(settings.seed, *keys, np.arange(longest + 1)[:, None])
            self.uniforms = drawn.to(device=device, dtype=self.float_type)
            self.histories += ("uniforms",)

    def is_last_step(self) -> Tensor:
        return self.lengths + 1 >= self.limits

    def step(self) -> None:
        logits = self.next_logits()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        penalized = logits if self.repetition is None else self.repetition.apply(logits)
        at = self.lengths[None]
        if self.uniforms is None:
            chosen = penalized.argmax(-1)
        else:
            settings = self.settings
            allowed = filter_logits(penalized, settings.temperature, settings.top_k, settings.top_p, settings.min_p)
            uniforms = self.uniforms.gather(0, at)[0]
            # sampling uses float64, which MPS does not support
            device = "cpu" if logits.device.type == "mps" else logits.device
            chosen = sample(allowed.to(device), uniforms.to(device)).to(logits.device)
        log_probs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
        self.tokens.scatter_(0, at, chosen[None])
        self.log_probs.scatter_(0, at, log_probs[None].to(self.float_type))
        if self.repetition is not None:
            self.repetition.append(chosen)
        self.lengths += self.active
        self.last_tokens.copy_(chosen)
        self.active.copy_(self.active & (chosen != self.eos_id) & (self.lengths < self.limits))

    def close(self, rows: list[int], lengths: list[int]) -> None:
        """End rows stopped by `stop_fn`, and discard tokens after these lengths."""
        at = torch.tensor(rows, device=self.lengths.device)
        self.lengths[at] = torch.tensor(lengths, device=self.lengths.device)
        self.active[at], self.stopped[at] = False, True

    def append_rows(self, other: GreedyOrSample) -> np.ndarray:
        """Add the rows of another search with the same settings; returns their row numbers."""
        if (self.settings, self.eos_id, self.num_samples) != (other.settings, other.eos_id, other.num_samples):
            raise ValueError("Merged searches must have the same settings, eos_id and number of samples.")
        self.state.append_rows(other.state)
        for name in ("last_tokens", *self.row_tensors):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        longest = max(len(self.tokens), len(other.tokens))
        for name in self.histories:
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
        outputs = []
        for i, (length, stopped) in enumerate(
            zip(self.lengths[rows].tolist(), self.stopped[rows].tolist(), strict=True)
        ):
            log_probs = logs[:length, i].tolist()
            outputs.append([self.hypothesis(tokens[:length, i].tolist(), log_probs, sum(log_probs), stopped)])
        return outputs
