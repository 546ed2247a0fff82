"""Going on from prompts of any length: rows beside each other say what each says alone, whatever is asked of them."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.decode.heard import Heard
from regard.decode.recorded import Recording, _shelves, borrow, recorded
from regard.decode.search import Found, search
from regard.decode.settings import Decode
from regard.decode.single import Single
from regard.decode.steps import begin, run
from regard.decode.stream import stream
from regard.errors import RegardError, SettingError
from regard.nn.block import Stack, Tokens, vaswani_block
from regard.nn.causal import DecoderOnly
from regard.nn.norm import Norm
from regard.nn.position import Learned
from regard.waists import Batch
from tiny import noise, noisy

V, END = 13, 0


@dataclass
class Sums:
    total: Tensor
    at: Tensor

    def widen(self, beams: int) -> None:
        self.keep(torch.arange(len(self.at)).repeat_interleave(beams))

    def reorder(self, rows: Tensor) -> None:
        self.total.copy_(self.total[rows])

    def keep(self, rows: Tensor) -> None:
        self.total, self.at = self.total[rows], self.at[rows]

    def join(self, other: Sums) -> None:
        self.total, self.at = torch.cat([self.total, other.total]), torch.cat([self.at, other.at])

    def tensors(self) -> list[Tensor]:
        return [self.total, self.at]


class Talk(nn.Module):
    """Logits by position, last token and the whole past: one that is mixed up, or counted from elsewhere, shows."""

    fixed = True

    def __init__(self) -> None:
        super().__init__()
        self.table, self.echo = nn.Parameter(noise(16, V, V, seed=1)), nn.Parameter(noise(5, V, seed=2))

    def start(self, batch: Batch, room: int | None = None) -> Sums:
        lengths = batch.prompt_lengths
        B, P = batch.prompt.shape
        at = (torch.full((B,), P) if lengths is None else lengths) - 1
        places = torch.arange(P)
        return Sums((batch.prompt * (places + 1) * (places < at[:, None])).sum(1), at.clone())

    def step(self, tokens: Tensor, state: Sums) -> Tensor:
        state.total += tokens * (state.at + 1)
        logits = self.table[state.at % 16, tokens] + self.echo[state.total % 5]
        state.at += 1
        return logits

    def follow(self, past: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.step(torch.tensor(past[-1:]), self.start(Batch(torch.tensor([past]))))[0]


class Small(DecoderOnly):
    """A real one, of learned positions."""

    def __init__(self, length: int) -> None:
        blocks = [vaswani_block(12, 3, 20, norm="pre", dropout=0.0) for _ in range(2)]
        super().__init__(Tokens(V, 12, scaled=False), Learned(length, 12), Stack(blocks, Norm(12)), 0.0)

    def follow(self, past: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.read(self(Batch(torch.tensor([past]))).sequence)[0, -1]


def lively(length: int = 300) -> Any:
    """Noise that does not fall for one token."""
    body = noisy(Small(length), 0.6, seed=4)
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.mul_(0.1)
        body.tokens.table.weight.copy_(2 * nn.functional.normalize(body.tokens.table.weight, dim=1))
        body.position.table.weight.mul_(2)
    return body


@pytest.fixture(scope="module", params=["toy", "decoder"])
def body(request: pytest.FixtureRequest) -> Any:
    return Talk() if request.param == "toy" else lively()


PROMPTS = [[3, 4, 5, 6, 7, 8, 9, 10, 11], [5], [12, 2], [3, 3, 3, 3], [9, 1, 4, 7, 7, 1]]
LIMITS = [4, 9, 1, 12, 7]
WAYS: list[dict[str, Any]] = [
    {},
    {"repetition": 1.4},
    {"sample": True, "seed": 3},
    {"sample": True, "best": 3, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5, "repetition": 1.3},
    {"beam": 3, "best": 3},
    {"beam": 2, "best": 2, "repetition": 0.6, "stop": "sure"},
]


def padded(prompts: list[list[int]], filling: int = 2) -> Batch:
    """Padding is a token like others: nobody may take it for one that was read."""
    x = torch.full((len(prompts), max(map(len, prompts))), filling)
    for row, prompt in zip(x, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    return Batch(x, torch.tensor([len(prompt) for prompt in prompts]))


Asked = tuple[Batch, int, Tensor, Decode, np.ndarray]


def asked(rows: list[int], **way: Any) -> Asked:
    limits = torch.tensor([LIMITS[row] for row in rows])
    return padded([PROMPTS[row] for row in rows]), END, limits, Decode(**way), np.array(rows)


def fixed(body: Any, asked: Asked, **more: Any) -> list[list[Found]]:
    """As it is recorded, without the recording."""
    with torch.inference_mode():
        found = recorded(body, *asked, None, graph=False, **more)
    assert found is not None
    return found


def agree(ours: list[list[Found]], right: list[list[Found]], tolerance: float = 1e-10) -> None:
    assert [[(f.tokens, f.why) for f in options] for options in ours] == [
        [(f.tokens, f.why) for f in options] for options in right
    ]
    for mine, theirs in zip(ours, right, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert a.score == pytest.approx(b.score, rel=tolerance, abs=tolerance)
            assert a.logs == pytest.approx(b.logs, rel=tolerance, abs=tolerance)


def test_a_temperature_of_zero_is_greedy(body: Any) -> None:
    cold = search(body, *asked([0, 1, 2, 3, 4], sample=True, temperature=0, top_k=3, seed=8))
    assert cold == search(body, *asked([0, 1, 2, 3, 4]))


# -- rows beside each other


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_different_lengths_say_what_each_says_alone(body: Any, way: dict[str, Any]) -> None:
    together = search(body, *asked([0, 1, 2, 3, 4], **way))
    alone = [search(body, *asked([row], **way))[0] for row in range(5)]
    agree(together, alone)
    agree(search(body, *asked([3, 0, 4], **way)), [alone[3], alone[0], alone[4]])
    assert len({f.tokens for options in together for f in options}) > 4 and max(len(o[0].logs) for o in together) > 3
    for _ in range(2):  # the second time in the tensors of the first
        agree(fixed(body, asked([0, 1, 2, 3, 4], **way)), alone)


@pytest.mark.parametrize("way", [{}, {"sample": True, "repetition": 2.0}, {"repetition": 0.5}, {"repetition": 5.0}])
def test_one_path_is_followed_as_plain_lists_follow_it(body: Any, way: dict[str, Any]) -> None:
    for row, (found,) in enumerate(search(body, *asked([0, 1, 2, 3, 4], **way))):
        path, penalty = list(PROMPTS[row]), way.get("repetition", 1.0)
        for place, log in enumerate(found.logs):
            logits = body.follow(path)
            bent = logits.clone()
            for token in set(path):
                bent[token] = bent[token] / penalty if bent[token] > 0 else bent[token] * penalty
            token = (*found.tokens, END)[place]
            assert "sample" in way or token == int(bent.argmax())
            assert log == pytest.approx(float(logits.log_softmax(-1)[token]), rel=1e-9), "the model's own, not the bent"
            path.append(token)
        assert found.why == ("end" if path[-1] == END else "length") and len(found.logs) <= LIMITS[row]
        assert found.why == "end" or len(found.tokens) == LIMITS[row]


def test_repetition_is_discouraged(body: Any) -> None:
    def repeated(penalty: float) -> int:
        found = search(body, *asked([0, 1, 3, 4], repetition=penalty))
        return sum(len(f.tokens) - len({*f.tokens}) for (f,) in found)

    assert repeated(0.3) > repeated(1.0) > repeated(1e9)


def test_a_search_records_once_for_prompts_of_every_length(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(Recording, "__init__", _counted(Recording.__init__, made))
    _shelves.pop(body, None)
    for way in ({}, {"sample": True, "repetition": 1.2}, {"beam": 2}):
        made.clear()
        for length in range(1, 30, 3):
            prompts = [list(range(1, 1 + count)) for count in (length, 1 + length // 2)]
            prompts = [[token % V for token in prompt] for prompt in prompts]
            asking = padded(prompts), END, torch.tensor([3 + length % 5, 6]), Decode(**way), np.arange(2)
            agree(fixed(body, asking), search(body, *asking))
        assert len(made) == 1, way


def _counted(real: Callable[..., None], made: list[int]) -> Callable[..., None]:
    def build(self: Any, *arguments: Any) -> None:
        made.append(1)
        real(self, *arguments)

    return build


def test_answers_may_fill_the_context_and_no_more() -> None:
    body = lively(length=40)
    prompts = [[1 + place % 11 for place in range(38)], [4, 5]]
    asking = padded(prompts), V, torch.tensor([3, 39]), Decode(), np.arange(2)
    found = search(body, *asking)
    assert [len(f.tokens) for (f,) in found] == [3, 39]
    agree(fixed(body, asking), found)
    with pytest.raises(RegardError, match="positions"):
        search(body, padded(prompts), V, torch.tensor([4, 1]), Decode())


# -- who listens


def enough(row: int, tokens: list[int]) -> bool:
    """A different pair of tokens ends each row: sums of a kind."""
    return len(tokens) > 1 and (tokens[-1] + tokens[-2] + row) % 4 == 0


@pytest.mark.parametrize("way", WAYS[:4])
def test_a_row_ends_where_someone_has_heard_enough(body: Any, way: dict[str, Any]) -> None:
    whole, cut = (search(body, *asked([0, 1, 2, 3, 4], **way), until=until) for until in (None, enough))
    reasons = set()
    for row, options in enumerate(cut):
        shortened = []
        for full in whole[row]:
            here = next((n for n in range(1, len(full.tokens) + 1) if enough(row, list(full.tokens[:n]))), None)
            logs = full.logs[:here]
            why = full.why if here is None else "until"
            shortened.append(Found(full.tokens[:here], math.fsum(logs), logs, why))
        agree([options], [sorted(shortened, key=lambda f: -f.score)])
        reasons |= {f.why for f in options}
    assert "until" in reasons and len(reasons) > 1
    agree(fixed(body, asked([0, 1, 2, 3, 4], **way), until=enough), cut)


def test_beams_are_cut_when_they_are_finished(body: Any) -> None:
    way = {"beam": 3, "best": 3}
    whole, cut = (search(body, *asked([0, 1, 2, 3, 4], **way), until=until) for until in (None, enough))
    for row, (before, after) in enumerate(zip(whole, cut, strict=True)):
        for full, short in zip(before, after, strict=True):
            assert short.score == full.score and short.tokens == full.tokens[: len(short.tokens)]
            assert (short.why == "until") == any(
                enough(row, list(full.tokens[:n])) for n in range(len(full.tokens) + 1)
            )
    assert any(f.why == "until" for options in cut for f in options)


def test_who_listens_is_told_the_places_in_the_whole_batch(body: Any) -> None:
    told_of: set[int] = set()
    batch, end, limits, settings, requests = asked([0, 1, 2, 3, 4])
    limits[1] = limits[3] = 0
    search(body, batch, end, limits, settings, requests, until=lambda row, tokens: bool(told_of.add(row)))
    assert told_of == {0, 2, 4}
    assert search(body, batch, end, limits, settings, requests)[1] == [Found((), 0.0, (), "length")]


# -- streams


def plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams as on CUDA, without the recording."""
    monkeypatch.setattr("regard.decode.stream.recordable", lambda *_: True)
    monkeypatch.setattr("regard.decode.stream.borrow", lambda *asked: borrow(*asked, graph=False))


STREAMS = [{}, {"repetition": 1.4}, {"sample": True, "seed": 5}, {"sample": True, "top_k": 4, "temperature": 1.3}]


@pytest.mark.parametrize("until", [None, enough])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("way", STREAMS)
def test_a_stream_is_the_search_in_pieces(
    body: Any, way: dict[str, Any], few: bool, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        plainly(monkeypatch)
    asking = asked([0, 1, 2, 3, 4], **way)
    asking[2][2] = 0
    right = search(body, *asking, until=until)
    said: list[list[int]] = [[] for _ in right]
    looks = 0
    for news in stream(body, *asking, until=until):
        assert len(news) == len(said) and not torch.is_inference_mode_enabled()
        for row, tokens in zip(said, news, strict=True):
            row += tokens
        looks += 1
    assert [tuple(row) for row in said] == [f.tokens for (f,) in right]
    longest = max(len(f.logs) for (f,) in right)
    assert looks <= 1 + math.log2(longest) + longest / 8 if few else looks == longest


def test_a_stream_that_nobody_reads_on_is_let_go(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly(monkeypatch)
    _shelves.pop(body, None)
    asking = asked([1, 3])
    right = search(body, *asking)
    open_one = stream(body, *asking)
    next(open_one)
    assert not _shelves[body].recordings, "what is in use is not on the shelf"
    agree(fixed(body, asking), right)  # and stands in nobody's way
    assert len(_shelves[body].recordings) == 1
    open_one.close()  # type: ignore[attr-defined]
    dropped = stream(body, *asking)
    next(dropped)
    del dropped
    gc.collect()
    assert len(_shelves[body].recordings) == 1 and _shelves[body].lock.acquire(blocking=False)
    _shelves[body].lock.release()
    agree(fixed(body, asking), right)


def test_what_cannot_be_streamed_is_said_at_once(body: Any) -> None:
    with pytest.raises(SettingError, match="change its mind"):
        stream(body, *asked([0], beam=2))
    with pytest.raises(SettingError, match="one answer"):
        stream(body, *asked([0], sample=True, best=2))
    silent = padded([[1]]), END, torch.tensor([0]), Decode()
    assert list(stream(body, *silent)) == []


# -- many draws, and rows that come and go


@pytest.mark.parametrize("budget", [1, 60, 150, 10**6])
def test_many_draws_are_made_in_parts_that_change_nothing(body: Any, budget: int) -> None:
    asking = asked([1, 4], sample=True, best=10, temperature=1.5, repetition=1.2)
    right, sizes = search(body, *asking), []
    real = body.step
    try:
        body.step = lambda tokens, state: sizes.append(len(tokens)) or real(tokens, state)
        agree(search(body, *asking, budget=budget), right)
    finally:
        del body.step
    one = 2 * (6 + 9)  # two rows of the longest prompt and the longest answer
    assert max(sizes) == 2 * min(10, max(1, budget // one))


@pytest.mark.parametrize("room", [None, 32])
@pytest.mark.parametrize("way", STREAMS)
def test_rows_that_join_a_running_search_say_what_they_say_alone(
    body: Any, way: dict[str, Any], room: int | None
) -> None:
    alone = [search(body, *asked([row], **way))[0] for row in range(5)]
    with torch.inference_mode():
        quest = begin(body, *asked([1, 3], **way), None, room)
        later = [begin(body, *asked(rows, **way), None, room) for rows in ([0, 4], [2])]
        assert isinstance(quest, Single)
        found: dict[int, list[Found]] = {}
        for steps, joining in ((3, later[0]), (2, later[1])):
            for _ in range(steps):
                quest.step()
                leave(quest, found)
            assert isinstance(joining, Single)
            assert quest.join(joining).tolist() == ([2, 3] if joining is later[0] else [4])
        while len(quest.rows):
            quest.step()
            leave(quest, found)
    agree([found[number] for number in range(5)], [alone[row] for row in (1, 3, 0, 4, 2)])


def leave(quest: Single, found: dict[int, list[Found]]) -> None:
    closed = torch.nonzero(~quest.open)[:, 0].tolist()
    found.update(zip(quest.rows[closed].tolist(), quest.answers(closed), strict=True))
    quest.keep(torch.nonzero(quest.open)[:, 0])


def test_only_alike_searches_join_and_who_joined_is_heard(body: Any) -> None:
    with torch.inference_mode():
        one, other, third = (
            begin(body, *asked([row], **way), None) for row, way in ((1, {}), (3, {"top_k": 2}), (4, {}))
        )
        assert isinstance(one, Single) and isinstance(other, Single) and isinstance(third, Single)
        with pytest.raises(ValueError, match="same settings"):
            one.join(other)
        heard = Heard(one, None)
        one.step()
        heard.listen()
        one.join(third)
        right = run(one, heard)
    assert [tuple(heard.said[number]) for number in (0, 1)] == [f.tokens for (f,) in right]
