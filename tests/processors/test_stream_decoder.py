"""Streamed text equals the decoded whole, for every tokenizer and every chunking."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from regard.errors import SettingError
from regard.processors.tokenizer.token_text import StreamDecoder
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer
from tokenizer_texts import HARD, STORY, random_texts, train_words


def train_pieces() -> TextTokenizer:
    """Tokenizer with an external decoder: words marked as in SentencePiece."""
    names = {"▁the": 0, "▁cat": 1, "s": 2, "▁": 3, "▁é": 4, "é": 5, ".": 6}
    backend = Tokenizer(models.WordLevel(names, unk_token="."))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return TextTokenizer(backend)


MAKERS = {
    "bytes": lambda: TextTokenizer.train_lm_bpe([STORY], 340).with_special_tokens(["_start_"]),
    "characters": lambda: TextTokenizer.from_characters([STORY, *HARD]),
    "words": lambda: TextTokenizer(train_words()),
    "sentences": lambda: TextTokenizer.train_sentence_bpe([STORY], 320),
    "pieces": train_pieces,
}


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest) -> TextTokenizer:
    return MAKERS[request.param]()


def flow(made: TextTokenizer, ids: list[int], until: tuple[str, ...], draw: random.Random) -> tuple[str, bool]:
    """Text streamed in random groups of tokens; emitted text never changes."""
    running, said, first = StreamDecoder(made, until), "", 0
    while first < len(ids):
        last = first + draw.choice((0, 1, 1, 1, 2, 5))
        said += running.add(ids[first:last])
        first = last
    return said + running.end(), running.stopped


def cut(whole: str, until: tuple[str, ...]) -> tuple[str, bool]:
    places = [whole.find(stop) for stop in until if stop in whole]
    return whole[: min(places, default=len(whole))], bool(places)


def random_stops(whole: str, draw: random.Random) -> tuple[str, ...]:
    """Random substrings of the text as stop strings, some of them altered or overlapping."""
    stops = []
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        first = draw.randrange(len(whole) + 1)
        stop = whole[first : first + draw.randrange(1, 6)] + draw.choice(("", "", "x", "�"))
        stops += [stop, stop[1:]][: draw.choice((1, 2))]
    return tuple(filter(None, stops))


def test_any_tokens_flow_as_they_are_decoded(made: TextTokenizer) -> None:
    draw, stopped = random.Random(1), 0
    for _ in range(1500):
        few = draw.sample(range(made.size), min(made.size, 6))  # few distinct tokens, so that texts repeat
        ids = draw.choices(draw.choice((few, range(made.size))), k=draw.randrange(30))
        whole = made.decode([ids])[0]
        until = random_stops(whole, draw)
        found = flow(made, ids, until, draw)
        assert found == cut(whole, until), (ids, until)
        stopped += found[1]
    assert 300 < stopped < 1300


def test_any_bytes_flow_as_they_are_decoded() -> None:
    """Partial characters in any order: invalid bytes become U+FFFD, as many as in the decoded whole."""
    made, draw = TextTokenizer.train_lm_bpe([], 257), random.Random(2)
    letters = [made.encode([letter])[0] for letter in "aé€😀\ufffd\u07ff\uffff\U0010ffff"]
    parts = [*range(256), *(i for letter in letters for i in letter * 40)]
    for _ in range(4000):
        ids = draw.choices(parts, k=draw.randrange(12))
        whole = made.decode([ids])[0]
        until = random_stops(whole, draw)
        assert flow(made, ids, until, draw) == cut(whole, until), (ids, until)


@pytest.mark.parametrize("kind", ["bytes", "characters", "sentences"])
def test_texts_flow_token_by_token(kind: str) -> None:
    made = MAKERS[kind]()
    for text in [*HARD, STORY, *(random_texts(200, seed=7) if kind != "characters" else ())]:
        text = text.lstrip(" ") if kind == "sentences" else text  # a leading space is not part of a sentence
        running, ids = StreamDecoder(made), made.encode([text])[0]
        parts = [running.add([i]) for i in ids]
        if kind != "characters":
            assert "\ufffd" in text or not any("\ufffd" in part for part in parts)
        assert "".join(parts) + running.end() == text


def test_certain_text_is_emitted_at_once_and_the_first_stop_string_counts() -> None:
    made = TextTokenizer.train_lm_bpe([], 257)
    running = StreamDecoder(made, ["stop", "\n\n"])
    said = [running.add([i]) for i in made.encode(["sé\nsto!\nst\n\nmore"])[0]]
    assert [part or "-" for part in said] == [
        "-", "-", "sé", "-", "\n", "-", "-", "sto!", "-", "\n", "-", "st", *"-----",
    ]  # fmt: skip
    assert running.stopped and running.end() == "" and running.add([65]) == ""
    made = TextTokenizer.from_characters(["abcdx"])
    for text, expected in (("xabc", "x"), ("xabd", "xa"), ("xab", "xa"), ("xa", "xa")):
        running = StreamDecoder(made, ["b", "abc"])
        said = "".join(running.add([i]) for i in made.encode([text])[0])
        assert said + running.end() == expected and running.stopped == ("b" in text)


def test_special_tokens_and_ids_without_a_token_emit_nothing(made: TextTokenizer) -> None:
    if END_OF_TEXT not in made.backend.get_vocab():
        made = made.with_special_tokens([END_OF_TEXT])
    draw, end = random.Random(3), made.token_to_id(END_OF_TEXT)
    for _ in range(200):
        ids = draw.choices([*draw.sample(range(made.size), 6), end, made.size + 5], k=8)
        assert flow(made, ids, (), draw) == (made.decode([ids])[0], False)


def test_bytes_among_the_pieces_of_any_other_tokenizer_wait_for_each_other() -> None:
    names = {"▁the": 0, "▁": 1, "<0xE2>": 2, "<0x82>": 3, "<0xAC>": 4, "s": 5}
    backend = Tokenizer(models.WordLevel(names, unk_token="s"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    running = StreamDecoder(TextTokenizer(backend))
    assert [running.add([i]) for i in (0, 1, 2, 3, 4, 5, 0)] == ["the", " ", "", "", "€", "s", " the"]
    assert [running.add([2]), running.end()] == ["", "\ufffd"]
    assert "".join(running.add([2]) for _ in range(40)).count("\ufffd") >= 32


@pytest.mark.parametrize("until", ["stop", ["a", ""]])
def test_invalid_stop_strings_are_refused(until: str | list[str]) -> None:
    with pytest.raises(SettingError, match="strings"):
        StreamDecoder(TextTokenizer.from_characters(["a"]), until)


def test_a_token_costs_the_same_after_many_as_after_few(made: TextTokenizer) -> None:
    """Counts decoded tokens instead of time."""
    running = StreamDecoder(made, ["\x07never"])
    ids = list(range(min(made.size, 200))) * 50
    held = 0
    for i in ids:
        running.add([i])
        held = max(held, len(running._pending), len(getattr(running._detokenizer, "_said", [])))
    assert held <= 20
