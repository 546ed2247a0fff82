"""Decoding against exhaustive search, a beam search on lists, and expected sampling frequencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard.decode.search import search
from regard.decode.searches import Hypothesis, filter_logits, sample, uniform_numbers
from regard.decode.settings import DecodeSettings
from regard.types import Batch, DecoderInputs
from tiny import noise
from toy_language_models import END, WAYS, Talk, follow

Past = tuple[int, ...]
Follow = Callable[[Past], list[float]]
"""Log-probabilities of the next token after an output."""


def prompt_of(source: int) -> Past:
    """Prompts of two tokens, which differ for 9 sources and 3 tokens."""
    return (source + 2) % 3, (source // 3 + 1) % 3


def after(chain: Talk, source: int = 0) -> Follow:
    return lambda past: follow(chain, [*prompt_of(source), *past]).log_softmax(-1).tolist()


def ask(
    chain: Any, sources: list[int], limits: list[int], named: Any = None, **settings: Any
) -> list[list[Hypothesis]]:
    prompts = torch.tensor([prompt_of(source) for source in sources], dtype=torch.long).view(-1, 2)
    requests = None if named is None else np.array(named)
    return search(chain, Batch(prompts), END, torch.tensor(limits).long(), DecodeSettings(**settings), requests)


def divisor(length: int, penalty: float, form: str) -> float:
    """Equation 14 of Wu et al. (2016), or a power of the length; the end token counts."""
    return ((5 + length) / 6) ** penalty if form == "wu" else length**penalty


def worth(logs: tuple[float, ...], penalty: float, form: str) -> float:
    return sum(logs) / divisor(len(logs), penalty, form)


def every_answer(logs_after: Follow, limit: int, past: Past = (), logs: tuple[float, ...] = ()) -> list[Any]:
    """All (tokens with the end, log-probabilities) that end or reach the limit."""
    found = []
    for token, value in enumerate(logs_after(past)):
        path, values = (*past, token), (*logs, value)
        over = token == END or len(values) == limit
        found += [(path, values)] if over else every_answer(logs_after, limit, path, values)
    return found


def beam_by_hand(logs_after: Follow, limit: int, W: int, penalty: float, form: str, stop: str) -> list[Any]:
    """Beam search on lists: among the 2W best, ends among the first W are final, and the first W others continue."""
    going: list[tuple[Past, tuple[float, ...]]] = [((), ())]
    done: list[tuple[Past, tuple[float, ...]]] = []
    for length in range(1, limit + 1):
        longer = []
        for path, logs in going:
            longer += [((*path, token), (*logs, value)) for token, value in enumerate(logs_after(path))]
        longer = sorted(longer, key=lambda one: -sum(one[1]))[: 2 * W]
        over = [one[0][-1] == END or length == limit for one in longer]
        done += [one for one, ended in zip(longer[:W], over[:W], strict=True) if ended]
        done = sorted(done, key=lambda one: -worth(one[1], penalty, form))[:W]
        going = [one for one, ended in zip(longer, over, strict=True) if not ended][:W]
        if not going:
            break
        reach = length if stop == "heuristic" or penalty <= 0 else limit
        if len(done) == W and sum(going[0][1]) / divisor(reach, penalty, form) <= worth(done[-1][1], penalty, form):
            break
    return done


def same(found: list[Hypothesis], right: list[Any], penalty: float, form: str) -> None:
    assert [(*f.tokens, END) if (f.finish_reason == "eos") else f.tokens for f in found] == [path for path, _ in right]
    for ours, (path, logs) in zip(found, right, strict=True):
        assert (ours.finish_reason == "eos") == (path[-1] == END)
        assert ours.log_probs == pytest.approx(logs, rel=1e-12, abs=1e-13)
        assert ours.score == pytest.approx(worth(logs, penalty, form), rel=1e-12)


PENALTIES = [(0.0, "wu"), (0.6, "wu"), (2.0, "wu"), (0.6, "power"), (1.0, "power"), (-0.5, "wu")]


@pytest.mark.parametrize(("penalty", "form"), PENALTIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_beam_wide_enough_ranks_all_possible_outputs(seed: int, penalty: float, form: str) -> None:
    chain = Talk(3, seed)
    right = sorted(every_answer(after(chain), 4), key=lambda one: -worth(one[1], penalty, form))
    assert len(right) == 31
    way = {"length_penalty": penalty, "length_penalty_type": form, "early_stopping": "never"}
    same(ask(chain, [0], [4], num_beams=32, num_return_sequences=32, **way)[0], right, penalty, form)


@pytest.mark.parametrize("stop", ["heuristic", "never"])
@pytest.mark.parametrize(("penalty", "form"), PENALTIES)
def test_a_narrow_beam_is_the_beam_search_of_plain_lists(penalty: float, form: str, stop: str) -> None:
    sizes = ((2, 4, 6), (3, 5, 5), (4, 3, 7), (2, 6, 1), (9, 3, 5), (2, 3, 8), (2, 8, 9), (4, 9, 8))
    for seed, (W, V, limit) in enumerate(3 * sizes):
        chain = Talk(V, seed, 0.5)
        way = {"length_penalty": penalty, "length_penalty_type": form, "early_stopping": stop}
        found = ask(chain, [0], [limit], num_beams=W, num_return_sequences=W, **way)[0]
        same(found, beam_by_hand(after(chain), limit, W, penalty, form, stop), penalty, form)


def test_the_best_come_first_and_none_comes_twice() -> None:
    chain = Talk(5)
    few, all_six = (ask(chain, [0, 1, 2], [5] * 3, num_beams=6, num_return_sequences=n) for n in (2, 6))
    assert few == [found[:2] for found in all_six]
    drawn = ask(chain, [0, 1, 2], [5] * 3, do_sample=True, num_return_sequences=6)
    for found in (*all_six, *drawn):
        assert len(found) == 6 and [f.score for f in found] == sorted((f.score for f in found), reverse=True)
    assert all(len({(f.tokens, f.finish_reason) for f in found}) == 6 for found in all_six)


@pytest.mark.parametrize("way", [{}, {"do_sample": True, "num_return_sequences": 2}, {"num_beams": 3}])
def test_finished_rows_are_not_computed_any_more(way: dict[str, Any]) -> None:
    chain = Talk(4, 2)
    answers = ask(chain, list(range(6)), [2, 9, 4, 9, 1, 7], **way)
    if "num_beams" in way:
        alone = [len(ask(chain, [n], [limit], **way) and chain.calls) for n, limit in enumerate((2, 9, 4, 9, 1, 7))]
        ask(chain, list(range(6)), [2, 9, 4, 9, 1, 7], **way)
        assert chain.calls == [3 * sum(steps > at for steps in alone) for at in range(max(alone))]
    else:
        steps = [len(f.log_probs) for found in answers for f in found]
        assert chain.calls == [sum(step > at for step in steps) for at in range(max(steps))]


@pytest.mark.parametrize("way", [*WAYS, {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 1.5}])
def test_a_limit_of_0_gives_an_empty_output_in_every_batch(way: dict[str, Any]) -> None:
    """A limit of 0 gives the empty output: probability 1, no computation, not ended."""
    chain = Talk(4)
    silent = [Hypothesis((), 0.0, (), "length")]
    assert ask(chain, [0], [0], **way)[0][:1] == silent
    assert chain.calls == []
    mixed = ask(chain, [0, 1], [0, 5], **way)
    assert mixed[0][:1] == silent
    assert mixed[1] == ask(chain, [1], [5], named=[1], **way)[0]


def test_no_rows_have_no_outputs() -> None:
    assert ask(Talk(3), [], [])[:] == [] and ask(Talk(3), [], [], num_beams=2) == []


@pytest.mark.parametrize("beam", [1, 5])
def test_ties_are_settled_the_same_way_for_every_row(beam: int) -> None:
    chain = Talk(4, sharp=0.0)
    together = ask(chain, [0, 1, 2, 3], [3] * 4, num_beams=beam, num_return_sequences=beam, length_penalty=0.0)
    alone = ask(chain, [2], [3], num_beams=beam, num_return_sequences=beam, length_penalty=0.0)[0]
    assert all(found == alone for found in together)
    # ties: the first token, then the fewest steps
    assert together[0][0].tokens == () and together[0][0].finish_reason == "eos"
    assert len({(f.tokens, (f.finish_reason == "eos")) for f in together[0]}) == beam
    for f in together[0]:
        assert f.score == pytest.approx(-len(f.log_probs) * math.log(4), rel=1e-12)


# -- sampling


Narrowing = tuple[float, int, float, float]


NARROWINGS = [
    (1.0, 0, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (2.0, 0, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 0, 0.7, 0.0), (1.4, 5, 0.8, 0.0),
    (0.7, 1, 1.0, 0.0), (1.0, 0, 1.0, 0.3), (1.5, 6, 0.9, 0.2), (1.0, 0, 1.0, 1.0),
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize("settings", NARROWINGS)
def test_tokens_are_drawn_as_often_as_they_are_likely(settings: Narrowing) -> None:
    chain, draws = Talk(7, 3), 20000
    way = dict(zip(("temperature", "top_k", "top_p", "min_p"), settings, strict=True))
    drawn = ask(chain, [0] * draws, [1] * draws, do_sample=True, **way)
    found = [one for (one,) in drawn]
    seen = Counter(END if (one.finish_reason == "eos") else one.tokens[0] for one in found)
    model = after(chain)(())
    right = filter_logits(torch.tensor([model]).double(), *settings).softmax(-1)[0].tolist()
    assert set(seen) == {token for token, share in enumerate(right) if share}
    # 6 degrees of freedom: p = 1 in 10,000
    assert sum((seen[t] - draws * p) ** 2 / (draws * p) for t, p in enumerate(right) if p) < 28
    logs = {END if (one.finish_reason == "eos") else one.tokens[0]: one.log_probs[0] for one in found}
    assert logs == pytest.approx({token: model[token] for token in seen}), "before filtering"


def test_the_second_draw_depends_on_the_first_only_by_its_token() -> None:
    chain, draws = Talk(3, 8), 20000
    drawn = ask(chain, [0] * 5, [2] * 5, do_sample=True, num_return_sequences=4000)
    found = [one for options in drawn for one in options]
    seen = Counter((*f.tokens, END) if (f.finish_reason == "eos") else f.tokens for f in found)
    right = {path: math.exp(sum(logs)) for path, logs in every_answer(after(chain), 2)}
    assert set(seen) == set(right) and sum(right.values()) == pytest.approx(1)
    assert sum((seen[path] - draws * p) ** 2 / (draws * p) for path, p in right.items()) < 28


def test_a_seed_gives_the_same_draws_and_another_seed_others() -> None:
    def drawn(seed: int, best: int = 1) -> list[list[Past]]:
        chain, way = Talk(6), {"do_sample": True, "seed": seed, "num_return_sequences": best}
        found = ask(chain, list(range(9)), [6] * 9, **way)
        return [[one.tokens for one in row] for row in found]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(-1) == drawn(2**64 - 1) != drawn(1) == drawn(2**64 + 1)
    assert all(one[0] in more for one, more in zip(drawn(1), drawn(1, best=4), strict=True)), "same first draw"
    equal = ask(Talk(6), [0] * 40, [6] * 40, do_sample=True)
    assert len({row[0].tokens for row in equal}) > 20, "equal prompts have different samples"


def test_random_numbers_are_uniform_and_keyed_by_all_their_inputs() -> None:
    requests, positions = (axis.ravel() for axis in np.meshgrid(np.arange(200), np.arange(100)))
    u = uniform_numbers(7, requests, np.zeros_like(requests), positions)
    assert u.dtype == torch.float64 and u.min() >= 0 and u.max() < 1 and len(u.unique()) == len(u)
    assert ((u * 20).long().bincount() - 1000).abs().max() < 4.5 * (1000 * 0.95) ** 0.5
    assert abs(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1]) < 4 / len(u) ** 0.5
    grid = u.view(100, 200)
    assert abs(torch.corrcoef(torch.stack([grid[:-1].flatten(), grid[1:].flatten()]))[0, 1]) < 4 / len(u) ** 0.5
    assert uniform_numbers(7, np.array([3]), np.array([0]), np.array([5])) == grid[5, 3]
    keys = ((1, 2, 3), (2, 1, 3), (3, 2, 1), (1, 3, 2))
    assert len({float(uniform_numbers(7, *(np.array([number]) for number in key))) for key in keys}) == 4


def test_only_tokens_with_positive_probability_are_drawn() -> None:
    edges = torch.tensor([0.0, 0.3, 1 - 2**-53], dtype=torch.float64)
    for logits in ([-math.inf, 0.0, -math.inf, 0.0, -math.inf], [0.0, -math.inf, -math.inf, -math.inf, -40.0]):
        rows = torch.tensor(logits, dtype=torch.float64).expand(3, 5)
        assert all(logits[token] > -math.inf for token in sample(rows, edges).tolist())
    quarters = torch.log(torch.tensor([[0.25, 0.25, 0.5]])).expand(4, 3)
    assert sample(quarters, torch.tensor([0.0, 0.26, 0.49, 0.51])).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("temperature", [1e-60, 1e-40, 1e-3, 1.0, 1e6])
def test_the_most_likely_token_can_always_be_drawn(temperature: float) -> None:
    for rows in (noise(5, 6), torch.zeros(2, 6), torch.tensor([[-math.inf] * 5 + [-3.0]])):
        for logits in (rows.log_softmax(-1), rows.float().log_softmax(-1)):
            for top_k, top_p in ((0, 1.0), (1, 1.0), (2, 0.5), (50, 1e-12), (0, 1e-12)):
                left = filter_logits(logits, temperature, top_k, top_p)
                assert left.gather(-1, logits.argmax(-1, keepdim=True)).isfinite().all() and not left.isnan().any()
                assert (left[logits == -math.inf] == -math.inf).all()


FILTERS = [
    {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"top_p": 0.05}, {"min_p": 0.1}, {"min_p": 1.0},
    {"temperature": 1.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
]  # fmt: skip


@pytest.mark.parametrize("way", FILTERS)
def test_filtered_distributions_equal_transformers(way: dict[str, Any]) -> None:
    """Distinct logits, and sixteen values among sixty tokens: the order of equal tokens matters only to top-p."""
    transformers = pytest.importorskip("transformers")
    warpers = {"temperature": "Temperature", "top_k": "TopK", "top_p": "TopP", "min_p": "MinP"}
    for logits in (3 * noise(50, 60, seed=4), (2 * noise(200, 60, seed=4)).round() / 2):
        theirs = logits
        for name in [name for name in warpers if name in way]:  # in the order of `generate`
            theirs = getattr(transformers, f"{warpers[name]}LogitsWarper")(way[name])(None, theirs)
        ours, theirs = filter_logits(logits, **way).softmax(-1), theirs.softmax(-1)
        assert (ours.sort(-1).values - theirs.sort(-1).values).abs().max() < 1e-14
        if len(logits) == 50 or "top_p" not in way:
            assert torch.equal(ours > 0, theirs > 0) and (ours - theirs).abs().max() < 1e-14


def test_a_search_needs_a_prompt() -> None:
    with pytest.raises(ValueError, match="prompt"):
        search(Talk(3), Batch(torch.zeros(1, 3, 8, 8)), END, torch.tensor([1]), DecodeSettings())
    empty = Batch(torch.zeros(1, 1).long(), decoder=DecoderInputs(torch.zeros(1, 0).long()))
    for batch in (empty, Batch(torch.zeros(2, 3).long(), torch.tensor([3, 0]))):
        with pytest.raises(ValueError, match="least"):
            search(Talk(3), batch, END, torch.ones(len(batch.inputs)).long(), DecodeSettings())
