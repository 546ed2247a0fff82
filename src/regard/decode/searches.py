"""Searches: interfaces of bodies and their decoding states, greedy search, sampling, beam search, and their steps.

Samples use one random stream per row, keyed by (seed, request, sample, position) and independent of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from regard.decode.settings import DecodeSettings
from regard.errors import RegardError
from regard.nn.kernels.linear import recheck_packed
from regard.nn.kernels.losses import chunked_topk
from regard.types import Batch, StateSizes

FinishReason = Literal["eos", "stop", "length", "context"]
StopFn = Callable[[int, list[int]], bool]
"""Given a row of the batch and its generated tokens, return True to end the row."""


class DecodingState(Protocol):
    """State of a body between steps, for example a KV cache. Beams of a source are adjacent rows."""

    positions: Tensor

    def expand_beams(self, beams: int) -> None: ...
    def reorder(self, rows: Tensor) -> None: ...
    def select_rows(self, rows: Tensor) -> None: ...
    def tensors(self) -> list[Tensor]: ...


class GenerativeBody(Protocol):
    """A body that generates token by token. A state of `max_cache_len` positions has constant shapes."""

    def start(self, batch: Batch, max_cache_len: int | None = None) -> Any: ...
    def step(self, tokens: Tensor, state: Any) -> Tensor: ...
    def state_sizes(self, batch: Batch) -> StateSizes: ...
    def parameters(self) -> Iterable[nn.Parameter]: ...


@dataclass(frozen=True)
class SearchInputs:
    """The prompts of a search, and all that determines their outputs."""

    body: GenerativeBody
    batch: Batch
    eos_id: int
    limits: Tensor  # (B,) maximum number of generated tokens
    settings: DecodeSettings
    requests: np.ndarray  # (B,) number of each row, for its random stream
    banned: Tensor | None = None  # tokens that are never generated
    samples: range | None = None  # samples of each row; None: all. Beams are counted as one sample


@dataclass(frozen=True)
class Hypothesis:
    """One output: tokens without prompt and end token, and the log-probability of each token, including the end token.

    Log-probabilities are from the unmodified distribution, before repetition penalty, temperature and filters."""

    tokens: tuple[int, ...]
    score: float
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    """`eos` (end token), `stop` (`stop_fn` returned True), `length` (limit reached), or `context` (context full). A
    search reports `length` for both limits; the caller sets the limits and distinguishes `context`."""


class Search:
    """A search in progress: B rows, each with W paths (beams). Greedy search and sampling have one path per row.

    Steps update all tensors in place, so that a step can be captured as a CUDA graph."""

    row_tensors: tuple[str, ...]  # names of tensors of shape (B, …)
    histories: tuple[str, ...]  # names of tensors of shape (T, B, …), to which each of at most T steps appends
    paths = 1
    num_samples = 1  # number of adjacent rows that are samples of one source
    limits: Tensor  # (B,) maximum number of tokens
    active: Tensor  # (B,) True for rows in progress
    rows: np.ndarray  # (B,) initial row numbers

    def __init__(self, inputs: SearchInputs, max_cache_len: int | None, copies: int) -> None:
        """Process the prompts. `copies`: number of samples, or beams, of each row of the inputs."""
        self.body, self.eos_id, self.settings, self.banned = inputs.body, inputs.eos_id, inputs.settings, inputs.banned
        recheck_packed()
        self.state: DecodingState = inputs.body.start(inputs.batch, max_cache_len)
        prompt, lengths = inputs.batch.prompt, inputs.batch.prompt_lengths
        first = prompt[:, -1] if lengths is None else prompt.gather(1, lengths[:, None] - 1)[:, 0]
        rows = torch.arange(len(first), device=first.device).repeat_interleave(copies)
        self.last_tokens, self.repetition = first[rows], None
        if inputs.settings.repetition_penalty != 1.0:
            longest = prompt.shape[1] - 1 + int(inputs.limits.max()) if max_cache_len is None else max_cache_len
            self.repetition = RepetitionPenalty(prompt, lengths, inputs.settings.repetition_penalty, longest + 1)
            self.repetition.select_rows(rows)
        self.float_type = torch.float32 if first.device.type == "mps" else torch.float64
        self.finished: dict[int, list[Hypothesis]] = {}  # outputs of removed rows, by initial row number

    def step(self) -> None:
        """Extend each path by one token."""
        raise NotImplementedError

    def is_last_step(self) -> Tensor:
        """True for paths that may generate one more token."""
        raise NotImplementedError

    def hypotheses(self, rows: list[int]) -> list[list[Hypothesis]]:
        """Outputs of these rows."""
        raise NotImplementedError

    def run(self, monitor: StopMonitor | None = None) -> Iterator[dict[int, list[int]]]:
        """Run the steps and yield the new tokens of each step. Finished rows are removed, with outputs in `finished`."""
        while True:
            self.step()
            yield {} if monitor is None else monitor.poll()
            if bool(self.active.all()):
                continue
            closed = torch.nonzero(~self.active)[:, 0].tolist()
            for row, outputs in zip(closed, self.hypotheses(closed), strict=True):
                self.finished[int(self.rows[row])] = outputs
            remaining = torch.nonzero(self.active)[:, 0]
            if not len(remaining):
                return
            self.select_rows(remaining)

    def next_logits(self) -> Tensor:
        """Logits of the next token of each path, with -inf for tokens that must not be generated."""
        logits = self.body.step(self.last_tokens, self.state)
        if self.banned is not None:
            logits.index_fill_(-1, self.banned, -torch.inf)
        if self.settings.forced_eos:
            only_eos = torch.full_like(logits[:1], -torch.inf)
            only_eos[:, self.eos_id] = 0.0
            logits = torch.where(self.is_last_step()[:, None], only_eos, logits)
        return logits

    def tensors(self) -> list[Tensor]:
        """All tensors that a step reads or updates, and whose values differ between searches."""
        own = [getattr(self, name) for name in (*self.row_tensors, *self.histories)]
        past = [] if self.repetition is None else self.repetition.tensors()
        return [self.last_tokens, *own, *past, *self.state.tensors()]

    def select_rows(self, rows: Tensor) -> None:
        """Keep these rows with all their paths."""
        paths = rows
        if self.paths > 1:
            paths = (rows[:, None] * self.paths + torch.arange(self.paths, device=rows.device)).flatten()
        self.state.select_rows(paths)
        self.last_tokens = self.last_tokens[paths]
        if self.repetition is not None:
            self.repetition.select_rows(paths)
        for name in self.row_tensors:
            setattr(self, name, getattr(self, name)[rows])
        for name in self.histories:
            setattr(self, name, getattr(self, name)[:, rows])
        self.rows = self.rows[rows.cpu().numpy()]

    def hypothesis(self, tokens: list[int], log_probs: list[float], score: float, stopped: bool = False) -> Hypothesis:
        """Output of a path that may end with the end token."""
        if score != score:
            raise RegardError("The logits are NaN: the weights are damaged, or training diverged.")
        ended = tokens[-1:] == [self.eos_id]
        reason: FinishReason = "eos" if ended else "stop" if stopped else "length"
        return Hypothesis(tuple(tokens[: len(tokens) - ended]), score, tuple(log_probs), reason)

    def collect(self, outputs: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
        """Outputs of each source, best first, from the outputs of each row."""
        sources = (outputs[i : i + self.num_samples] for i in range(0, len(outputs), self.num_samples))
        return [sorted((one for row in source for one in row), key=lambda one: -one.score) for source in sources]


class GreedyOrSample(Search):
    """Search state of R rows with at most T tokens. Each sample of a source is a separate row.

    Each row has its own step count. A closed row overwrites a single slot after its output at every step, hence T + 1
    slots; this slot is never read."""

    row_tensors = ("limits", "lengths", "active", "stopped")

    def __init__(self, inputs: SearchInputs, max_cache_len: int | None = None) -> None:
        settings, longest = inputs.settings, int(inputs.limits.max())
        samples = inputs.samples or range(settings.num_return_sequences if settings.is_sampling else 1)
        super().__init__(inputs, max_cache_len, len(samples))
        R, device = len(self.last_tokens), self.last_tokens.device
        if len(samples) > 1:
            self.state.select_rows(torch.arange(len(inputs.limits), device=device).repeat_interleave(len(samples)))
        self.num_samples, self.rows = len(samples), np.arange(R)
        self.limits = inputs.limits.repeat_interleave(len(samples)).to(device)
        self.lengths = torch.zeros(R, dtype=torch.long, device=device)  # (R,) number of generated tokens
        self.active = torch.ones(R, dtype=torch.bool, device=device)
        self.stopped = torch.zeros(R, dtype=torch.bool, device=device)  # (R,) True for rows ended by `stop_fn`
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


class BeamSearch(Search):
    """Beam search state: W open beams per source, and the scores of the W best finished outputs.

    B open sources, W beams, at most T tokens. A step appends 2 W candidates with their parent beams to a history of
    fixed size; paths are read from the history at the end. A source ends when no open beam can beat its finished
    outputs."""

    row_tensors = ("limits", "active", "scores", "finished_scores")
    histories = ("candidates", "candidate_scores", "survivors")

    def __init__(self, inputs: SearchInputs, max_cache_len: int | None = None) -> None:
        settings, W, longest = inputs.settings, inputs.settings.num_beams, int(inputs.limits.max())
        super().__init__(inputs, max_cache_len, W)
        B, device = len(inputs.limits), self.last_tokens.device
        self.state.expand_beams(W)
        self.paths, self.rows, self.limits = W, np.arange(B), inputs.limits.to(device)
        self.step_count = torch.zeros(1, dtype=torch.long, device=device)
        self.active = torch.ones(B, dtype=torch.bool, device=device)
        self.scores = torch.full((B, W), -torch.inf, dtype=self.float_type, device=device)
        self.scores[:, 0] = 0.0  # all beams are equal at the start: only beam 0 competes in the first step
        self.finished_scores = torch.full((B, W), -torch.inf, dtype=self.float_type, device=device)
        # divisors of the summed log-probabilities: ((5 + length) / 6) ** p (Wu et al. 2016), or length ** p (Hugging Face)
        bases = [(5 + n) / 6 if settings.length_penalty_type == "wu" else float(n) for n in range(1, longest + 1)]
        penalties = [float(base**settings.length_penalty) for base in bases]
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
        logits = self.next_logits()
        log_probs = (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)
        if self.repetition is None:
            # logits have the same order, and 16-bit logits half the bytes
            increments, tokens = chunked_topk(log_probs, 2 * W, logits)
            log_probs = increments = increments.to(self.float_type)
        else:  # as in `transformers`: the penalty changes log-probabilities here, logits in greedy search and sampling
            increments, tokens = chunked_topk(self.repetition.apply(log_probs), 2 * W)
            log_probs = log_probs.gather(1, tokens).to(self.float_type)
            increments = increments.to(self.float_type)
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
        # tokens and log-probabilities, (T, B, n), of the paths that end with `candidate` of step `last`
        sources = np.arange(len(rows))[:, None]
        paths, log_probs = (np.zeros((steps, *last.shape), dtype=x.dtype) for x in (candidates, values))
        for step in range(steps - 1, -1, -1):
            on_path = last >= step
            paths[step] = np.where(on_path, candidates[step, sources, candidate, 0], 0)
            log_probs[step] = np.where(on_path, values[step, sources, candidate, 0], 0.0)
            if step:
                parents = survivors[step - 1, sources, candidates[step, sources, candidate, 1]]
                candidate = np.where(on_path, parents, candidate)
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


class StopMonitor:
    """Reports new tokens to a stream, and ends a row when `stop_fn` returns True.

    Several steps may run between two polls. Tokens are still checked one by one, and tokens after the stop are
    discarded, so that outputs do not depend on how often the search is polled."""

    def __init__(self, search: GreedyOrSample, stop_fn: StopFn | None, num_rows: int | None = None) -> None:
        self.search, self.stop_fn = search, stop_fn
        self.num_rows = num_rows  # rows from this number on are padding
        self.generated: dict[int, list[int]] = {}  # tokens by initial row number, without the end token
        self.num_read: dict[int, int] = {}  # number of checked tokens by row number

    def poll(self) -> dict[int, list[int]]:
        """New tokens of each row since the last call, by row number; rows stopped by `stop_fn` are closed."""
        updated = [
            (place, number, self.num_read.get(number, 0), length)
            for place, (number, length) in enumerate(
                zip(self.search.rows.tolist(), self.search.lengths.tolist(), strict=True)
            )
            if length > self.num_read.get(number, 0) and (self.num_rows is None or number < self.num_rows)
        ]
        if not updated:
            return {}
        first = min(start for _, _, start, _ in updated)
        tokens = self.search.tokens[first : max(length for *_, length in updated)].tolist()
        news, stopped = {}, {}
        for place, number, start, length in updated:
            self.num_read[number] = length
            new = [tokens[at - first][place] for at in range(start, length)]
            news[number] = new = new[:-1] if new[-1] == self.search.eos_id else new
            generated = self.generated.setdefault(number, [])
            for count, token in enumerate(new, 1):
                generated.append(token)
                if self.stop_fn is not None and self.stop_fn(number // self.search.num_samples, generated):
                    news[number] = new[:count]
                    stopped[place] = self.num_read[number] = len(generated)
                    break
        if stopped:
            self.search.close(list(stopped), list(stopped.values()))
        return news


def plain_search(inputs: SearchInputs, stop_fn: StopFn | None = None) -> list[list[Hypothesis]]:
    """Outputs of a search that removes finished rows. Beams do not call `stop_fn`: they are truncated at the end."""
    if inputs.settings.num_beams > 1:
        search: Search = BeamSearch(inputs)
        monitor = None
    else:
        search = one_path = GreedyOrSample(inputs)
        monitor = None if stop_fn is None else StopMonitor(one_path, stop_fn)
    for _ in search.run(monitor):
        pass
    return search.collect([search.finished[row] for row in sorted(search.finished)])


# -- from the logits of a step to the next token: repetition penalty, filters, sampling


class RepetitionPenalty:
    """Tokens of prompt and output of each row. R rows, C columns.

    Token ids need less time than a mask over the vocabulary: a step gathers a few hundred columns, not 50,000. Unused
    columns repeat the first token of the prompt, without effect."""

    def __init__(
        self, prompt: Int[Tensor, "R P"], lengths: Int[Tensor, "R"] | None, penalty: float, max_tokens: int
    ) -> None:
        prompt = prompt[:, :max_tokens]
        P = prompt.shape[1]
        self.penalty = penalty
        self.ids = prompt[:, :1].repeat(1, max_tokens)
        self.next_column = torch.full_like(prompt[:, 0], P) if lengths is None else lengths.clone()
        """(R,) column for the next token"""
        real = torch.arange(P, device=prompt.device) < self.next_column[:, None]
        self.ids[:, :P] = torch.where(real, prompt, prompt[:, :1])

    def apply(self, values: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Logits or log-probabilities, with values of past tokens divided by the penalty, or multiplied if negative."""
        past = values.gather(1, self.ids)
        return values.scatter(1, self.ids, torch.where(past < 0, past * self.penalty, past / self.penalty))

    def append(self, tokens: Int[Tensor, "R"]) -> None:
        """Append one token per row; finished rows overwrite the last column."""
        self.ids.scatter_(1, self.next_column[:, None], tokens[:, None])
        self.next_column.add_(1).clamp_(max=self.ids.shape[1] - 1)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the rows of beams, in place because a CUDA graph requires fixed addresses."""
        self.ids.copy_(self.ids.index_select(0, rows))

    def select_rows(self, rows: Tensor) -> None:
        self.ids, self.next_column = self.ids[rows], self.next_column[rows]

    def tensors(self) -> list[Tensor]:
        return [self.ids, self.next_column]


def filter_logits(
    logits: Float[Tensor, "B V"], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Float[Tensor, "B V"]:
    """Logits after temperature, top-k, top-p and min-p; removed tokens have -inf.

    `top_k` keeps k tokens and ties with the last (0: all), `top_p` the smallest set with at least this probability (the
    first of equal tokens), `min_p` tokens with at least this fraction of the maximum probability."""
    # subtract the maximum first: a very small temperature must not overflow
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1.0:
        ordered, order = logits.sort(descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the most likely token is always kept: its sum is 0
        logits = logits.scatter(-1, order, ordered.masked_fill(before >= top_p, -torch.inf))
    if min_p > 0.0:
        logits = logits.masked_fill(logits < math.log(min_p), -torch.inf)
    return logits


def sample(logits: Float[Tensor, "B V"], uniforms: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Token at which the cumulative probability exceeds the uniform number in [0, 1) of each row."""
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # rounding may leave the last sum below 1: scale by this sum, so that a possible token is found
    tokens = torch.searchsorted(cumulated, (uniforms.double() * cumulated[:, -1])[:, None], right=True)
    return tokens[:, 0].clamp(max=logits.shape[-1] - 1)


def uniform_numbers(seed: int, *keys: np.ndarray) -> Tensor:
    """Uniform numbers in [0, 1) from the seed and the keys (request, sample, position), broadcast."""
    mixed = _splitmix64(np.full(keys[0].shape, seed % 2**64, dtype=np.uint64))
    for key in keys:
        mixed = _splitmix64(mixed ^ key.astype(np.uint64))
    return torch.from_numpy((mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """splitmix64: adjacent keys give independent numbers."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
